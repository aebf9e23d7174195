/* Opens a model folder as the engine does and runs one step over a few tokens: what test_hostile.py
 * drives before and beside the real programs.
 * usage: open_model DIR; exit 0, or 65 with one line on standard error. */
#include <stdio.h>
#include <stdlib.h>

#include "run/rank.h"

#define N_TOK 12

static int step(struct hx_rank *r, struct hx_error *err)
{
    int32_t token[N_TOK];
    struct hx_kv_seq *kv = NULL;
    float *logits = calloc((size_t)hx_rank_hparams(r)->n_vocab, sizeof(*logits));
    if (!logits)
        return hx_fail(err, -ENOMEM, "out of memory");
    for (int i = 0; i < N_TOK; i++)
        token[i] = 5 + i;
    int e = hx_kv_seq_new(hx_rank_kv(r), &kv, err);
    if (e == 0) {
        struct hx_step_seq s = {.kv = kv, .tokens = token, .n_tok = N_TOK, .n_logits = 1};
        e = hx_rank_step(r, &s, 1, logits, NULL, NULL, err);
    }
    hx_kv_seq_free(kv);
    free(logits);
    return e;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "open_model: usage: open_model DIR\n");
        return 64;
    }
    struct hx_rank_options opt = {.model_dir = argv[1],
                                  .backend = "cpu",
                                  .max_tok = 16,
                                  .max_seq = 1,
                                  .max_context = 64,
                                  .kv = {.block_tok = 16, .n_blocks = 8, .n_seqs = 1}};
    struct hx_rank *r = NULL;
    struct hx_error err;
    int e = hx_rank_open(&opt, &r, &err);
    if (e == 0)
        e = step(r, &err);
    hx_rank_close(r);
    if (e < 0)
        fprintf(stderr, "open_model: %s\n", err.text);
    return e < 0 ? 65 : 0;
}
