#include "fetch/sthdr.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

static bool starts_with(const uint8_t *data, size_t n, const char *what)
{
    size_t len = strlen(what);
    return n >= len && strncasecmp((const char *)data, what, len) == 0;
}

static bool is_web_page(const uint8_t *data, size_t n)
{
    static const char *const starts[] = {"<!doctype", "<html", "<head", "<?xml", "<script"};
    while (n > 0 && (*data == ' ' || *data == '\n' || *data == '\r' || *data == '\t')) {
        data++;
        n--;
    }
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (starts_with(data, n, starts[i]))
            return true;
    }
    return false;
}

int hx_sthdr_length(const char *label, const uint8_t *data, size_t n, uint64_t file_size,
                    uint64_t *header_bytes, struct hx_error *err)
{
    size_t probe = n < HX_STHDR_PROBE ? n : HX_STHDR_PROBE, zeros = 0;
    while (zeros < probe && data[zeros] == 0)
        zeros++;
    if (probe > 0 && zeros == probe)
        return hx_fail(err, -EINVAL,
                       "%s: the header is all zeros: the file was never written at its source",
                       label);
    if (is_web_page(data, n))
        return hx_fail(err, -EINVAL,
                       "%s: a web page instead of data: a login page or a proxy answered", label);
    if (starts_with(data, n, "version https://git-lfs"))
        return hx_fail(err, -EINVAL,
                       "%s: the pointer of a large file instead of the file: the server does not "
                       "serve large-file storage",
                       label);
    if (file_size < 10 || n < 9)
        return hx_fail(err, -EINVAL, "%s: %llu bytes are too few for a safetensors file", label,
                       (unsigned long long)file_size);
    uint64_t len = 0;
    for (int i = 7; i >= 0; i--)
        len = len << 8 | data[i];
    if (len < 2 || len > HX_ST_MAX_HEADER || len > file_size - 8)
        return hx_fail(err, -EINVAL,
                       "%s: header length %llu (2 to %u and within the file's %llu bytes allowed)",
                       label, (unsigned long long)len, HX_ST_MAX_HEADER,
                       (unsigned long long)file_size);
    if (data[8] != '{')
        return hx_fail(err, -EINVAL, "%s: the header does not start with '{' but with byte 0x%02x",
                       label, data[8]);
    *header_bytes = 8 + len;
    return 0;
}

int hx_sthdr_parse(const char *label, const uint8_t *data, size_t n, uint64_t file_size,
                   struct hx_st_file **out, struct hx_error *err)
{
    uint64_t header_bytes = 0;
    int r = hx_sthdr_length(label, data, n, file_size, &header_bytes, err);
    if (r == 0 && header_bytes != n)
        r = hx_fail(err, -EINVAL, "%s: %zu bytes of a header of %llu", label, n,
                    (unsigned long long)header_bytes);
    return r < 0 ? r : hx_st_parse(label, data + 8, n - 8, file_size, out, err);
}
