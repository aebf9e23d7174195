/* Kernel command line and boot loader's variable. */
#include "init/options.h"

#include <stdlib.h>
#include <string.h>

/* The value of the first word KEY=VALUE, NULL if there is none. */
static const char *find(const char *text, const char *key, size_t *len)
{
    size_t n_key = strlen(key);
    while (*text) {
        text += strspn(text, " \t\n");
        size_t n = strcspn(text, " \t\n");
        if (n > n_key && strncmp(text, key, n_key) == 0 && text[n_key] == '=') {
            *len = n - n_key - 1;
            return text + n_key + 1;
        }
        text += n;
    }
    return NULL;
}

static int parse_wait(const char *value, size_t len, unsigned *out, struct hx_error *err)
{
    unsigned n = 0;
    if (len == 0 || len > 3 || strspn(value, "0123456789") < len)
        return hx_fail(err, -EINVAL, "rootwait= is not a number of seconds");
    for (size_t i = 0; i < len; i++)
        n = n * 10 + (unsigned)(value[i] - '0');
    if (n > HX_INIT_WAIT_MAX)
        return hx_fail(err, -ERANGE, "rootwait=%u is over %d seconds", n, HX_INIT_WAIT_MAX);
    *out = n;
    return 0;
}

int hx_init_options_parse(const char *text, struct hx_init_options *out, struct hx_error *err)
{
    struct hx_init_options o = {.wait_s = HX_INIT_WAIT_DEFAULT};
    size_t len;
    const char *value = find(text, "roothash", &len);
    if (!value)
        return hx_fail(err, -EINVAL, "the kernel command line has no roothash=");
    if (len != HX_VERITY_HASH_HEX)
        return hx_fail(err, -EINVAL, "roothash= has %zu digits, not %d", len, HX_VERITY_HASH_HEX);
    memcpy(o.root_hash, value, len);
    value = find(text, "rootwait", &len);
    if (value) {
        int r = parse_wait(value, len, &o.wait_s, err);
        if (r < 0)
            return r;
    }
    *out = o;
    return 0;
}

int hx_init_loader_guid(const uint8_t *raw, size_t len, uint8_t out[HX_GPT_GUID])
{
    enum { ATTRIBUTES = 4, DIGITS = 36 };
    char text[DIGITS + 1];
    if (len < ATTRIBUTES + 2 * DIGITS || len > ATTRIBUTES + 2 * DIGITS + 2)
        return -EINVAL;
    for (int i = 0; i < DIGITS; i++) {
        const uint8_t *c = raw + ATTRIBUTES + 2 * i;
        if (c[1] != 0 || c[0] == 0 || c[0] > 0x7E)
            return -EINVAL;
        text[i] = (char)c[0];
    }
    text[DIGITS] = '\0';
    return hx_gpt_guid_parse(text, out);
}
