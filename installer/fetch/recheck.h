/* Reads a published file again and says which of its pieces are not what they should be. */
#ifndef HX_FETCH_RECHECK_H
#define HX_FETCH_RECHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/sha256.h"
#include "fetch/plan.h"

struct hx_recheck {
    const char *path;
    const struct hx_plan_file *plan; /* NULL: not from the lock file, the file's hash alone */
    uint64_t size;                   /* as state.json has it */
    uint8_t want[HX_SHA256_BYTES];
    bool direct;
    double sample;              /* share of the chunks that is read, 1: everything */
    atomic_uint_fast64_t *done; /* grows by the bytes that were read or skipped */
    const atomic_bool *stop;

    /* Results. */
    bool wrong;                         /* something is */
    bool *bad;                          /* by chunk of the plan */
    uint8_t (*digest)[HX_SHA256_BYTES]; /* by chunk of the plan, of those that were read */
    size_t n_bad;
    uint64_t bad_bytes;
    char message[512]; /* the first thing that is wrong */
};

/* 0, whatever it finds; -ECANCELED; -ENOMEM. */
int hx_recheck_file(struct hx_recheck *c, struct hx_error *err) HX_MUST;
void hx_recheck_done(struct hx_recheck *c);

#endif
