/* Any bytes encode; decoding the ids gives the text back, ill-formed parts replaced. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <hx/build_facts.h>
#include <hx/tokenizer.h>

#include "base/buf.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const struct hx_tokenizer *t, const uint8_t *data, size_t size, bool special,
                       const struct hx_buf *want)
{
    const struct hx_encode_options opt = {.parse_special = special};
    struct hx_buf got = HX_BUF_INIT(64u << 20);
    struct hx_detok d = {0};
    struct hx_ids ids = {0};
    struct hx_error err;
    if (hx_tokenizer_encode(t, (const char *)data, size, &opt, &ids, &err) < 0)
        abort();
    for (size_t i = 0; i < ids.len; i++) {
        size_t len;
        const uint8_t *bytes = hx_tokenizer_bytes(t, ids.id[i], &len);
        if (!bytes || hx_detok_push(&d, bytes, len, &got) < 0)
            abort();
    }
    if (hx_detok_flush(&d, &got) < 0 || got.len != want->len ||
        (got.len > 0 && memcmp(got.data, want->data, got.len) != 0))
        abort();
    hx_ids_done(&ids);
    hx_buf_done(&got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hx_tokenizer *t;
    struct hx_error err;
    struct hx_buf want = HX_BUF_INIT(64u << 20);
    if (!t && hx_tokenizer_open(HX_BUILD_DATA "/tokenizer.json", &t, &err) < 0)
        abort();
    if (hx_utf8_sanitize(data, size, &want) < 0)
        abort();
    round_trip(t, data, size, true, &want);
    round_trip(t, data, size, false, &want);
    hx_buf_done(&want);
    return 0;
}
