/* Inside of the tokenizer: shared by tokenizer.c and tokenizer_json.c. */
#ifndef HX_TEXT_TOKENIZER_IMPL_H
#define HX_TEXT_TOKENIZER_IMPL_H

#include "text/bpe.h"

struct hx_added_token {
    char *text;
    uint32_t len;
    int32_t id;
};

struct hx_tokenizer {
    struct hx_bpe bpe;
    uint8_t *classes;
    struct hx_added_token *added; /* by spelling; none is a prefix of another */
    int n_added;
    int32_t *added_of; /* [n_ids] index into added, -1 */
    int32_t n_ids;
    bool first_byte[256]; /* some added token begins with it */
};

/* Importer on a text in memory. label: for messages. */
int hx_tokenizer_parse(const char *label, const char *json, size_t len, struct hx_tokenizer **out,
                       struct hx_error *err) HX_MUST;

#endif
