/* UTF-8: repaired text is valid, valid text is not touched, decoding and encoding agree. */
#include "fuzz.h"

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    int n_bad = hx_utf8_sanitize(data, size, &out);
    size_t valid = hx_utf8_valid_prefix(data, size);
    EXPECT(n_bad >= 0 && valid <= size);
    EXPECT((n_bad == 0) == (valid == size));
    EXPECT(out.len == 0 || hx_utf8_valid_prefix(out.data, out.len) == out.len);
    EXPECT(valid == 0 || memcmp(out.data, data, valid) == 0);
    for (size_t i = 0; i < out.len;) {
        unsigned n;
        uint8_t s[4];
        uint32_t c = hx_utf8_decode(out.data + i, out.len - i, &n);
        EXPECT(n >= 1 && n <= out.len - i && c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF));
        EXPECT(hx_utf8_encode(c, s) == n && memcmp(s, out.data + i, n) == 0);
        EXPECT(hx_utf8_next(out.data + i, out.len - i) == (int)n);
        i += n;
    }
    hx_buf_done(&out);
    return 0;
}
