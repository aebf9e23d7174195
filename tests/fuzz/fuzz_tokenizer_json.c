/* Importer: any bytes are refused with a message or give a tokenizer that encodes. */
#include <stdint.h>
#include <stdlib.h>

#include "text/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_tokenizer *t;
    struct hx_error err = {0};
    if (hx_tokenizer_parse("input", (const char *)data, size, &t, &err) < 0) {
        if (err.text[0] == '\0')
            abort();
        return 0;
    }
    struct hx_ids ids = {0};
    const struct hx_encode_options opt = {.parse_special = true};
    if (hx_tokenizer_encode(t, "abba <s>", 8, &opt, &ids, &err) < 0)
        abort();
    hx_ids_done(&ids);
    hx_tokenizer_close(t);
    return 0;
}
