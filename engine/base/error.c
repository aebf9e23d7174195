/* Error objects: formatting and context. */
#include <hx/error.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static bool is_io_class(int r)
{
    return r == -EIO || r == -ENOENT || r == -EACCES || r == -ENOSPC || r == -ENOMEM;
}

/* Messages quote names and values from files and clients: whatever those hold, a message is one
 * line of valid UTF-8. Control characters and ill-formed parts become '?'. */
static void clean(char *text)
{
    size_t len = strlen(text), to = 0;
    for (size_t i = 0; i < len;) {
        int n = hx_utf8_next((const uint8_t *)text + i, len - i);
        uint8_t c = (uint8_t)text[i];
        size_t used = n > 0 ? (size_t)n : n < 0 ? (size_t)-n : len - i;
        bool control =
            c < 0x20 || c == 0x7F || (c == 0xC2 && used == 2 && (uint8_t)text[i + 1] < 0xA0);
        if (n <= 0 || control) {
            text[to++] = '?';
        } else {
            memmove(text + to, text + i, used);
            to += used;
        }
        i += used;
    }
    text[to] = '\0';
}

static void set(struct hx_error *err, int r, int native, const char *fmt, va_list ap)
{
    err->domain = is_io_class(r) ? HX_DOMAIN_SYS : HX_DOMAIN_DATA;
    err->code = r;
    err->native = native;
    err->param[0] = '\0';
    err->slug[0] = '\0';
    vsnprintf(err->text, sizeof(err->text), fmt, ap);
    clean(err->text);
}

int hx_fail(struct hx_error *err, int r, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        set(err, r, 0, fmt, ap);
        va_end(ap);
    }
    return r;
}

int hx_fail_errno(struct hx_error *err, int errno_value, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        set(err, -errno_value, errno_value, fmt, ap);
        va_end(ap);
        err->domain = HX_DOMAIN_SYS;
        size_t n = strlen(err->text);
        char reason[128];
        snprintf(err->text + n, sizeof(err->text) - n, ": %s",
                 strerror_r(errno_value, reason, sizeof(reason)));
        clean(err->text);
    }
    return -errno_value;
}

int hx_fail_param(struct hx_error *err, int r, const char *param, const char *slug, const char *fmt,
                  ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        set(err, r, 0, fmt, ap);
        va_end(ap);
        snprintf(err->param, sizeof(err->param), "%s", param ? param : "");
        snprintf(err->slug, sizeof(err->slug), "%s", slug ? slug : "");
    }
    return r;
}

int hx_wrap(struct hx_error *err, int r, const char *fmt, ...)
{
    if (err) {
        char context[sizeof(err->text)];
        char inner[sizeof(err->text)];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(context, sizeof(context), fmt, ap);
        va_end(ap);
        memcpy(inner, err->text, sizeof(inner));
        size_t n = strlen(context);
        if (n > sizeof(err->text) / 2)
            n = sizeof(err->text) / 2;
        memcpy(err->text, context, n);
        snprintf(err->text + n, sizeof(err->text) - n, ": %s", inner);
        clean(err->text);
    }
    return r;
}
