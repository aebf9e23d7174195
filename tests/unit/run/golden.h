/* Golden data of the tiny model: named arrays, a model folder, comparison with first drift. */
#ifndef TESTS_UNIT_RUN_GOLDEN_H
#define TESTS_UNIT_RUN_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/safetensors.h"
#include "run/rank.h"

#define UNUSED __attribute__((unused))

#define MODEL_DIR   "tests/vectors/model"
#define GOLDEN_FILE "tests/vectors/model/golden/golden.safetensors"
#define TIE_FILE    "tests/vectors/model/golden/tie.safetensors"
#define HYBRID_FILE "tests/vectors/model_exl3/golden/golden.safetensors"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct hx_error check_err = {0};                                                           \
        int check_r = (call);                                                                      \
        if (check_r != 0)                                                                          \
            fail_msg("%s: %d: %s", #call, check_r, check_err.text);                                \
    } while (0)
#define ERR (&check_err)

static UNUSED struct hx_st_file *golden_open(const char *path)
{
    struct hx_st_file *f = NULL;
    CHECK(hx_st_open(path, &f, ERR));
    return f;
}

/* Data of an array (free it), its description in *t; NULL if there is none. */
static UNUSED void *golden_get(const struct hx_st_file *f, const struct hx_st_tensor **t,
                               const char *fmt, ...)
{
    char name[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    *t = hx_st_find(f, name);
    if (!*t)
        return NULL;
    void *data = malloc((*t)->size ? (*t)->size : 1);
    assert_non_null(data);
    CHECK(hx_st_read(f, *t, data, ERR));
    return data;
}

/* A folder in which the routed experts of the tiny model come from the EXL3 pack. */
static UNUSED void hybrid_make(char dir[64])
{
    char here[2048], from[4200], to[4200];
    assert_non_null(getcwd(here, sizeof(here)));
    snprintf(dir, 64, "/tmp/hx-test-hybrid-XXXXXX");
    assert_non_null(mkdtemp(dir));
    static const char *const names[] = {"config.json", "engram_token_map.i32"};
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof(from), "%s/" MODEL_DIR "/%s", here, names[i]);
        snprintf(to, sizeof(to), "%s/%s", dir, names[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    for (int i = 1; i <= 18; i++) {
        snprintf(from, sizeof(from), "%s/" MODEL_DIR "/model-%05d-of-00018.safetensors", here, i);
        snprintf(to, sizeof(to), "%s/model-%05d-of-00018.safetensors", dir, i);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(from, sizeof(from), "%s/tests/vectors/model_exl3", here);
    snprintf(to, sizeof(to), "%s/experts", dir);
    assert_int_equal(symlink(from, to), 0);
}

static UNUSED void hybrid_remove(const char *dir)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/engram_token_map.i32", dir);
    unlink(path);
    for (int i = 1; i <= 18; i++) {
        snprintf(path, sizeof(path), "%s/model-%05d-of-00018.safetensors", dir, i);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/experts", dir);
    unlink(path);
    rmdir(dir);
}

static UNUSED struct hx_rank *rank_open(const char *dir, enum hx_mode mode, int ring_tok)
{
    struct hx_rank_options o = {
        .model_dir = dir,
        .backend = "cpu",
        .mode = mode,
        .max_tok = 256,
        .max_seq = 8,
        .max_context = 512,
        .drafts = true,
        .engram = {.slow_ms = 60000}, /* a busy build host may take seconds for a read */
        .kv =
            {.block_tok = 16, .ring_tok = ring_tok, .n_blocks = 128, .n_seqs = 9, .n_snapshots = 8},
    };
    struct hx_rank *r = NULL;
    CHECK(hx_rank_open(&o, &r, ERR));
    return r;
}

static UNUSED struct hx_kv_seq *seq_new(struct hx_rank *r)
{
    struct hx_kv_seq *s = NULL;
    CHECK(hx_kv_seq_new(hx_rank_kv(r), &s, ERR));
    return s;
}

/* One step of one sequence. */
static UNUSED void feed(struct hx_rank *r, struct hx_kv_seq *s, const int32_t *tokens, int n,
                        int n_logits, float *logits)
{
    struct hx_step_seq q = {.kv = s, .tokens = tokens, .n_tok = n, .n_logits = n_logits};
    CHECK(hx_rank_step(r, &q, 1, logits, NULL, NULL, ERR));
}

static UNUSED int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* ---- comparison ---- */

struct compared {
    int64_t n, n_different;
    double rel_rms; /* of float arrays */
};

static UNUSED double element(const void *data, enum hx_dtype t, int64_t i)
{
    uint32_t u;
    float f;
    switch (t) {
    case HX_DTYPE_F32: return ((const float *)data)[i];
    case HX_DTYPE_BF16:
        u = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&f, &u, 4);
        return f;
    case HX_DTYPE_I32: return ((const int32_t *)data)[i];
    case HX_DTYPE_I64: return (double)((const int64_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

static UNUSED struct compared compare(const void *got, const void *want, enum hx_dtype t, int64_t n)
{
    struct compared c = {.n = n};
    double diff = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = element(got, t, i), b = element(want, t, i);
        if (!(a == b || (isnan(a) && isnan(b))))
            c.n_different++;
        if (isfinite(b)) {
            diff += (a - b) * (a - b);
            all += b * b;
        }
    }
    c.rel_rms = all > 0 ? sqrt(diff / all) : diff > 0 ? INFINITY : 0;
    return c;
}

#endif
