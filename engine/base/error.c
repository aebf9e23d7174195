/* Error objects: formatting and context. */
#include <hx/error.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool is_io_class(int r)
{
    return r == -EIO || r == -ENOENT || r == -EACCES || r == -ENOSPC || r == -ENOMEM;
}

static void set(struct hx_error *err, int r, int native, const char *fmt, va_list ap)
{
    err->domain = is_io_class(r) ? HX_DOMAIN_SYS : HX_DOMAIN_DATA;
    err->code = r;
    err->native = native;
    err->param[0] = '\0';
    err->slug[0] = '\0';
    vsnprintf(err->text, sizeof(err->text), fmt, ap);
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
    }
    return r;
}
