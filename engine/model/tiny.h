/* The demo model: a small folder in the layout of the hybrid checkpoint (dense/ FP8, experts/ EXL3,
 * engram/ tables, FP4 drafter experts) with random weights and the released vocabulary. */
#ifndef HX_MODEL_TINY_H
#define HX_MODEL_TINY_H

#include <stdint.h>

#include <hx/error.h>

struct hx_tiny_options {
    const char *dir;       /* made if missing; must be empty or hold an earlier demo model */
    const char *tokenizer; /* tokenizer.json to copy; NULL: the folder gets none */
    const char *token_map; /* engram_token_map.i32 to copy; NULL: a made-up map */
    uint64_t seed;         /* equal seeds give equal bytes on every machine */
    void (*progress)(void *user, double fraction); /* may be NULL */
    void *user;
};

/* Writes state.json as incomplete first and as complete last, so that an interrupted run leaves
 * nothing that opens. -EEXIST: the folder holds something else. About 90 MB. */
int hx_tiny_write(const struct hx_tiny_options *opt, struct hx_error *err) HX_MUST;

#endif
