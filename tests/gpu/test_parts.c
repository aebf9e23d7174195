/* The rest of the operations on the card against the CPU back end: streams, rows, Engram, products
 * of groups and pairs, experts of every format, drafter, best tokens, the head. */
#include "sides.h"

#include <errno.h>

static const int32_t *integers(enum side s, size_t at)
{
    return (const int32_t *)(side[s].base + at);
}

/* ---- streams and rows ---- */

static void test_streams(void **state)
{
    (void)state;
    static const int widths[] = {32, 77, 128, 1000, 5120};
    enum { S = 4, VOCAB = 97, SLOTS = 3 };
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        for (int k = 0; k < N_KINDS; k++) {
            int n = row_counts[r], d = widths[(r + k) % 5];
            int64_t all = (int64_t)n * d;
            begin();
            size_t table = bf16s((int64_t)VOCAB * d, (enum kind)k, 1), token = take((size_t)n * 4),
                   streams = take((size_t)(all * S) * 2), pre = take((size_t)n * S * 4),
                   mix = floats((int64_t)n * S, (enum kind)k, .4f),
                   comb = floats((int64_t)n * S * S, NORMAL, .4f), y = bf16s(all, (enum kind)k, 1),
                   x = take((size_t)all * 2), mean = take((size_t)(all * SLOTS) * 2);
            for (int i = 0; i < n; i++)
                ((int32_t *)(host + token))[i] = (int32_t)(hx_rng_next(&rng) % VOCAB);
            send();
            for (int s = 0; s < N_SIDES; s++) {
                enum side at = (enum side)s;
                struct hx_weight w = dense(at, HX_DTYPE_BF16, table, VOCAB, d);
                struct hx_tensor ts = at_side(at, HX_DTYPE_BF16, streams, n, S, d),
                                 tp = at_side(at, HX_DTYPE_F32, pre, n, S, 0),
                                 tm = at_side(at, HX_DTYPE_F32, mix, n, S, 0),
                                 tc = at_side(at, HX_DTYPE_F32, comb, n, S, S),
                                 ty = at_side(at, HX_DTYPE_BF16, y, n, d, 0),
                                 tx = at_side(at, HX_DTYPE_BF16, x, n, d, 0),
                                 to = at_side(at, HX_DTYPE_BF16, mean, n, SLOTS, d);
                RUN(s, embed, &w, integers(at, token), &ts, &tp);
                RUN(s, hc_expand, &ty, &tm, &tc, &ts);
                RUN(s, hc_collapse, &ts, &tm, &tx);
                for (int slot = 0; slot < SLOTS; slot++)
                    RUN(s, stream_mean, &ts, slot, &to);
                sync_side(at);
            }
            snprintf(what, sizeof(what), "streams, %s, %d x %d", kind_name[k], n, d);
            same(what, HX_DTYPE_F32, pre, (int64_t)n * S, EXACT);
            same(what, HX_DTYPE_BF16, streams, all * S, EXACT);
            same(what, HX_DTYPE_BF16, x, all, EXACT);
            same(what, HX_DTYPE_BF16, mean, all * SLOTS, EXACT);
        }
    }
}

static void test_coefficients(void **state)
{
    (void)state;
    static const int widths[] = {32, 96, 544, 5120};
    enum { S = 4, MIX = (2 + S) * S };
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        int n = row_counts[r], d = widths[r % 4];
        enum kind k = (enum kind)(r % N_KINDS);
        if (d == 5120 && n > 16)
            continue;
        begin();
        size_t streams = bf16s((int64_t)n * S * d, k, 1),
               fn = floats((int64_t)MIX * S * d, NORMAL, .02f), base = floats(MIX, NORMAL, .5f),
               scale = floats(3, NORMAL, .5f), pre = take((size_t)n * S * 4),
               post = take((size_t)n * S * 4), comb = take((size_t)n * S * S * 4);
        send();
        for (int s = 0; s < N_SIDES; s++) {
            enum side at = (enum side)s;
            struct hx_tensor ts = at_side(at, HX_DTYPE_BF16, streams, n, S, d),
                             tp = at_side(at, HX_DTYPE_F32, pre, n, S, 0),
                             to = at_side(at, HX_DTYPE_F32, post, n, S, 0),
                             tc = at_side(at, HX_DTYPE_F32, comb, n, S, S);
            struct hx_weight wf = dense(at, HX_DTYPE_F32, fn, MIX, (int64_t)S * d),
                             wb = dense(at, HX_DTYPE_F32, base, 1, MIX),
                             ws = dense(at, HX_DTYPE_F32, scale, 1, 3);
            RUN(s, hc_mix,
                &(struct hx_hc_args){&ts, &wf, &wb, &ws, 20, 1e-6f, 1e-6f, &tp, &to, &tc});
            sync_side(at);
        }
        snprintf(what, sizeof(what), "coefficients, %s, %d x %d", kind_name[k], n, d);
        same(what, HX_DTYPE_F32, pre, (int64_t)n * S, COEFFICIENT);
        same(what, HX_DTYPE_F32, post, (int64_t)n * S, COEFFICIENT);
        same(what, HX_DTYPE_F32, comb, (int64_t)n * S * S, COEFFICIENT);
    }
}

static void test_keep_rows(void **state)
{
    (void)state;
    static const int widths[] = {1, 7, 64, 5120};
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        int n = row_counts[r], d = widths[r % 4], kept = 0;
        begin();
        size_t x = bf16s((int64_t)n * d, NORMAL, 1), row = take((size_t)n * 4);
        for (int i = 0; i < n; i++) {
            if (i % 3 != 1)
                ((int32_t *)(host + row))[kept++] = i;
        }
        send();
        for (int s = 0; s < N_SIDES; s++) {
            struct hx_tensor tx = at_side((enum side)s, HX_DTYPE_BF16, x, n, d, 0);
            RUN(s, keep_rows, &tx, integers((enum side)s, row), kept);
            assert_int_equal(tx.ne[0], kept);
            sync_side((enum side)s);
        }
        snprintf(what, sizeof(what), "keep_rows, %d of %d x %d", kept, n, d);
        same(what, HX_DTYPE_BF16, x, (int64_t)kept * d, EXACT);
    }
}

/* ---- products ---- */

static void test_linear_grouped(void **state)
{
    (void)state;
    static const int shapes[][3] = {{4, 32, 64}, {4, 32, 96}, {2, 48, 128}, {8, 256, 512}};
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        for (int k = 0; k < N_KINDS; k++) {
            int n = row_counts[r], g = shapes[(r + k) % 4][0];
            int64_t rows = shapes[(r + k) % 4][1], n_in = shapes[(r + k) % 4][2], n_out = g * rows;
            begin();
            size_t x = bf16s(n * g * n_in, (enum kind)k, 1), y = take((size_t)(n * n_out) * 2),
                   code = e4m3s(n_out * n_in),
                   scale = bytes((n_out + 31) / 32 * (n_in / 32), 115, 122);
            send();
            struct hx_tensor tx, ty;
            for (int s = 0; s < N_SIDES; s++) {
                struct hx_weight w = fp8((enum side)s, code, scale, n_out, n_in);
                tx = at_side((enum side)s, HX_DTYPE_BF16, x, n, g, n_in);
                ty = at_side((enum side)s, HX_DTYPE_BF16, y, n, n_out, 0);
                RUN(s, linear_grouped, &w, g, &tx, &ty);
                sync_side((enum side)s);
            }
            snprintf(what, sizeof(what), "linear_grouped, %s, %d of %d x %lld x %lld", kind_name[k],
                     n, g, (long long)rows, (long long)n_in);
            same(what, HX_DTYPE_BF16, y, n * n_out, ACTIVATION);
            struct hx_weight w = fp8(CARD, code, scale, n_out, n_in);
            struct rows all = keep(y, (size_t)n_out * 2, n);
            tx.ne[0] = ty.ne[0] = 1;
            for (int i = 0; i<n; i += n> 8 ? 11 : 1) {
                tx.data = side[CARD].base + x + (size_t)(i * g * n_in) * 2;
                RUN(CARD, linear_grouped, &w, g, &tx, &ty);
                same_alone(what, &all, i);
            }
            free(all.all);
        }
    }
}

static void test_linear_pair(void **state)
{
    (void)state;
    static const int shapes[][3] = {{32, 64, 64}, {1280, 512, 512}, {96, 33, 128}, {64, 64, 96}};
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        int n = row_counts[r], n_in = shapes[r % 4][2];
        enum kind k = (enum kind)(r % N_KINDS);
        begin();
        size_t x = bf16s((int64_t)n * n_in, k, 1), y[2], code[2], scale[2];
        for (int i = 0; i < 2; i++) {
            int64_t o = shapes[r % 4][i];
            y[i] = take((size_t)(n * o) * 2);
            code[i] = e4m3s(o * n_in);
            scale[i] = bytes((o + 31) / 32 * (n_in / 32), 115, 122);
        }
        send();
        for (int s = 0; s < N_SIDES; s++) {
            struct hx_tensor tx = at_side((enum side)s, HX_DTYPE_BF16, x, n, n_in, 0), ty[2];
            struct hx_weight w[2];
            for (int i = 0; i < 2; i++) {
                w[i] = fp8((enum side)s, code[i], scale[i], shapes[r % 4][i], n_in);
                ty[i] = at_side((enum side)s, HX_DTYPE_BF16, y[i], n, shapes[r % 4][i], 0);
            }
            const struct hx_weight *const both[2] = {&w[0], &w[1]};
            struct hx_tensor *const to[2] = {&ty[0], &ty[1]};
            if (side[s].be->kernels->linear_pair) {
                RUN(s, linear_pair, both, &tx, to);
            } else {
                RUN(s, linear, both[0], false, &tx, to[0]);
                RUN(s, linear, both[1], false, &tx, to[1]);
            }
            sync_side((enum side)s);
        }
        snprintf(what, sizeof(what), "linear_pair, %s, %d of %d", kind_name[k], n, n_in);
        for (int i = 0; i < 2; i++)
            same(what, HX_DTYPE_BF16, y[i], (int64_t)n * shapes[r % 4][i], ACTIVATION);
    }
}

/* A quarter of the head. */
static void test_head(void **state)
{
    (void)state;
    enum { N = 3, OUT = 32320, IN = 5120 };
    begin();
    size_t x = bf16s((int64_t)N * IN, OUTLIERS, 1), w = take((size_t)OUT * IN * 2),
           y = take((size_t)N * OUT * 4);
    for (size_t i = 0; i < (size_t)OUT * IN / 4; i++) { /* 2^-7 to 2^-5, either sign */
        uint64_t v = (hx_rng_next(&rng) & 0x80FF80FF80FF80FFu) | 0x3C003C003C003C00u;
        memcpy(host + w + i * 8, &v, 8);
    }
    send();
    for (int s = 0; s < N_SIDES; s++) {
        struct hx_tensor tx = at_side((enum side)s, HX_DTYPE_BF16, x, N, IN, 0),
                         ty = at_side((enum side)s, HX_DTYPE_F32, y, N, OUT, 0);
        struct hx_weight m = dense((enum side)s, HX_DTYPE_BF16, w, OUT, IN);
        RUN(s, linear, &m, false, &tx, &ty);
        sync_side((enum side)s);
    }
    same("head", HX_DTYPE_F32, y, (int64_t)N * OUT, COEFFICIENT);
}

/* ---- experts ---- */

struct expert_case {
    const char *name;
    enum hx_format format;
    enum hx_codebook codebook;
    int bits, down_bits;
    int d, ff, n_expert, used;
    bool bias;
    int empty; /* every so many experts have none of their width here */
};

static const struct expert_case expert_cases[] = {
    {"EXL3 3 bits", HX_FORMAT_EXL3, HX_CODEBOOK_MUL1, 3, 3, 256, 384, 16, 6, false, 0},
    {"EXL3 2 and 3 bits", HX_FORMAT_EXL3, HX_CODEBOOK_MUL1, 2, 3, 384, 128, 16, 6, false, 0},
    {"EXL3 1 bit", HX_FORMAT_EXL3, HX_CODEBOOK_MUL1, 1, 4, 128, 256, 8, 3, false, 0},
    {"EXL3 8 bits", HX_FORMAT_EXL3, HX_CODEBOOK_MUL1, 8, 5, 256, 128, 8, 3, false, 0},
    {"EXL3 mcg", HX_FORMAT_EXL3, HX_CODEBOOK_MCG, 3, 6, 256, 128, 8, 3, false, 0},
    {"EXL3 3inst", HX_FORMAT_EXL3, HX_CODEBOOK_3INST, 4, 7, 128, 256, 8, 3, false, 0},
    {"EXL3 padded, bias", HX_FORMAT_EXL3, HX_CODEBOOK_MUL1, 3, 2, 160, 96, 8, 3, true, 0},
    {"EXL3 some empty", HX_FORMAT_EXL3, HX_CODEBOOK_MUL1, 3, 3, 128, 128, 8, 3, false, 3},
    {"FP4", HX_FORMAT_FP4, HX_CODEBOOK_3INST, 0, 0, 256, 384, 16, 6, false, 0},
    {"FP4 some empty", HX_FORMAT_FP4, HX_CODEBOOK_3INST, 0, 0, 128, 128, 8, 3, false, 3},
    {"FP4 narrow", HX_FORMAT_FP4, HX_CODEBOOK_3INST, 0, 0, 96, 64, 8, 3, false, 0},
    {"FP8", HX_FORMAT_FP8, HX_CODEBOOK_3INST, 0, 0, 128, 96, 8, 3, false, 0},
};

#define MAX_EXPERT 16

/* Offsets of a matrix's parts. */
struct parts {
    size_t data, scale, suh, svh, bias;
};

static size_t halves(int64_t n, int exponent)
{
    size_t at = take((size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)(host + at))[i] =
            (uint16_t)((hx_rng_next(&rng) & 0x83FF) | (unsigned)exponent << 10);
    return at;
}

static int64_t padded(int64_t n)
{
    return (n + 127) / 128 * 128;
}

static struct parts make_parts(const struct expert_case *c, int64_t n_out, int64_t n_in, int bits)
{
    struct parts p = {0};
    switch (c->format) {
    case HX_FORMAT_EXL3:
        p.data = bytes(padded(n_out) * padded(n_in) * bits / 8, 0, 255);
        p.suh = halves(padded(n_in), 8);
        p.svh = halves(padded(n_out), 15);
        p.bias = halves(padded(n_out), 12);
        break;
    case HX_FORMAT_FP4:
        p.data = bytes(n_out * n_in / 2, 0, 255);
        p.scale = bytes(n_out * n_in / 32, 116, 121);
        break;
    default:
        p.data = e4m3s(n_out * n_in);
        p.scale = bytes((n_out + 31) / 32 * (n_in / 32), 112, 117);
    }
    return p;
}

static struct hx_weight weight_at(enum side s, const struct expert_case *c, const struct parts *p,
                                  int64_t n_out, int64_t n_in, int bits)
{
    struct hx_weight w = {
        .format = c->format, .codebook = c->codebook, .bits = bits, .n_out = n_out, .n_in = n_in};
    if (n_out == 0 || n_in == 0) { /* as the loader leaves it */
        if (c->format == HX_FORMAT_EXL3)
            w.part[HX_PART_DATA] = (struct hx_tensor){
                HX_DTYPE_I16, 3, {0, padded(n_out ? n_out : c->ff) / 16, 16 * bits, 1}, NULL};
        return w;
    }
    switch (c->format) {
    case HX_FORMAT_EXL3:
        w.part[HX_PART_DATA] = at_side(s, HX_DTYPE_I16, p->data, padded(n_in) / 16,
                                       padded(n_out) / 16, 16 * (int64_t)bits);
        w.part[HX_PART_SUH] = at_side(s, HX_DTYPE_F16, p->suh, padded(n_in), 0, 0);
        w.part[HX_PART_SVH] = at_side(s, HX_DTYPE_F16, p->svh, padded(n_out), 0, 0);
        if (c->bias)
            w.part[HX_PART_BIAS] = at_side(s, HX_DTYPE_F16, p->bias, padded(n_out), 0, 0);
        break;
    case HX_FORMAT_FP4:
        w.part[HX_PART_DATA] = at_side(s, HX_DTYPE_I8, p->data, n_out, n_in / 2, 0);
        w.part[HX_PART_SCALE] = at_side(s, HX_DTYPE_F8_E8M0, p->scale, n_out, n_in / 32, 0);
        break;
    default: return fp8(s, p->data, p->scale, n_out, n_in);
    }
    return w;
}

/* Weights of a side; tables are known by their address, so they stay. */
struct layer {
    struct hx_weight w[3][MAX_EXPERT], s[3];
    const struct hx_weight *table[3][MAX_EXPERT];
};

static void test_experts(void **state)
{
    const struct expert_case *c = *state;
    enum { N = 48 };
    static struct layer layers[sizeof(expert_cases) / sizeof(expert_cases[0])][N_SIDES];
    struct layer *layer = layers[c - expert_cases];
    struct parts part[3][MAX_EXPERT];
    int64_t d = c->d;
    char what[96];
    begin();
    for (int e = 0; e < c->n_expert; e++) {
        for (int i = 0; i < 3; i++)
            part[i][e] = make_parts(c, i == 1 ? d : c->ff, i == 1 ? c->ff : d,
                                    i == 1 ? c->down_bits : c->bits);
    }
    size_t shared[3] = {bf16s((int64_t)128 * d, NORMAL, .05f),
                        bf16s((int64_t)128 * d, NORMAL, .05f),
                        bf16s((int64_t)128 * d, NORMAL, .05f)};
    size_t z[N_KINDS], sel = take((size_t)(N * c->used) * 4),
                       weight = floats((int64_t)N * c->used, NORMAL, .3f),
                       y = take((size_t)(N * d) * 2);
    for (int k = 0; k < N_KINDS; k++)
        z[k] = bf16s(N * d, (enum kind)k, k == OUTLIERS ? .1f : 1);
    for (int r = 0; r < N; r++) { /* ascending, each with the chance that is left */
        for (int e = 0, at = 0; e < c->n_expert; e++) {
            if (hx_rng_next(&rng) % (uint64_t)(c->n_expert - e) < (uint64_t)(c->used - at))
                ((int32_t *)(host + sel))[r * c->used + at++] = e;
        }
    }
    send();
    for (int s = 0; s < N_SIDES; s++) {
        struct layer *l = &layer[s];
        for (int i = 0; i < 3; i++) {
            for (int e = 0; e < c->n_expert; e++) {
                int64_t ff = c->empty && e % c->empty == 0 ? 0 : c->ff;
                l->w[i][e] = weight_at((enum side)s, c, &part[i][e], i == 1 ? d : ff,
                                       i == 1 ? ff : d, i == 1 ? c->down_bits : c->bits);
                l->table[i][e] = &l->w[i][e];
            }
            l->s[i] =
                dense((enum side)s, HX_DTYPE_BF16, shared[i], i == 1 ? d : 128, i == 1 ? 128 : d);
        }
    }
    for (int k = 0; k < N_KINDS; k++) {
        for (int r = k % 3; r < N_ROW_COUNTS; r += 3) {
            int n = row_counts[r];
            for (int s = 0; s < N_SIDES; s++) {
                enum side at = (enum side)s;
                struct layer *l = &layer[s];
                struct hx_tensor tz = at_side(at, HX_DTYPE_BF16, z[k], n, d, 0),
                                 te = at_side(at, HX_DTYPE_I32, sel, n, c->used, 0),
                                 tw = at_side(at, HX_DTYPE_F32, weight, n, c->used, 0),
                                 ty = at_side(at, HX_DTYPE_BF16, y, n, d, 0);
                RUN(s, experts,
                    &(struct hx_experts_args){.z = &tz,
                                              .w1 = l->table[0],
                                              .w2 = l->table[1],
                                              .w3 = l->table[2],
                                              .n_expert = c->n_expert,
                                              .sel = &te,
                                              .weight = &tw,
                                              .s1 = &l->s[0],
                                              .s2 = &l->s[1],
                                              .s3 = &l->s[2],
                                              .limit = 10,
                                              .y = &ty});
                sync_side(at);
            }
            snprintf(what, sizeof(what), "experts, %s, %s, %d rows", c->name, kind_name[k], n);
            same(what, HX_DTYPE_BF16, y, n * d, ACTIVATION);
        }
    }
}

/* ---- Engram ---- */

static void test_engram_rows(void **state)
{
    (void)state;
    static const int widths[] = {32, 64, 256, 128};
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        int n = row_counts[r], d = widths[r % 4], cols = 1 + r % 6;
        int64_t all = (int64_t)n * cols * d;
        begin();
        size_t code = e4m3s(all), scale = bytes(all / 32, 100, 140), v = take((size_t)all * 2),
               fetched = take((size_t)all * 2);
        send();
        struct hx_buffer *pinned = NULL; /* flag, codes, scales */
        CHECK(side[CARD].be->alloc(side[CARD].dev, HX_MEM_PINNED, 256 + (size_t)(2 * all), &pinned,
                                   ERR));
        uint8_t *seen = side[CARD].be->address(pinned);
        memset(seen, 0, 256);
        for (int s = 0; s < N_SIDES; s++) {
            enum side at = (enum side)s;
            struct hx_tensor tc = at_side(at, HX_DTYPE_U8, code, n, cols, d),
                             ts = at_side(at, HX_DTYPE_U8, scale, n, cols, d / 32),
                             tv = at_side(at, HX_DTYPE_BF16, v, n, (int64_t)cols * d, 0);
            RUN(s, engram_rows, &tc, &ts, &tv);
            tv.data = side[s].base + fetched;
            if (s == CPU || !side[s].be->kernels->engram_fetch) {
                RUN(s, engram_rows, &tc, &ts, &tv);
                continue;
            }
            tc.data = seen + 256;
            ts.data = seen + 256 + all;
            RUN(s, engram_fetch, &(struct hx_fetch_args){(const uint32_t *)seen, &tc, &ts, &tv});
            memcpy(tc.data, host + code, (size_t)all); /* the card waits for them */
            memcpy(ts.data, host + scale, (size_t)all / 32);
            __atomic_store_n((uint32_t *)seen, 1, __ATOMIC_RELEASE);
            sync_side(at);
        }
        snprintf(what, sizeof(what), "engram_rows, %d x %d x %d", n, cols, d);
        same(what, HX_DTYPE_BF16, v, all, EXACT);
        same(what, HX_DTYPE_BF16, fetched, all, EXACT);
        side[CARD].be->free(pinned);
    }
}

static void test_engram_gate(void **state)
{
    (void)state;
    static const int widths[] = {32, 96, 1280, 5120};
    enum { S = 4 };
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        for (int k = 0; k < N_KINDS; k++) {
            int n = row_counts[r], d = widths[(r + k) % 4];
            if (d == 5120 && n > 9)
                continue;
            begin();
            size_t streams = bf16s((int64_t)n * S * d, (enum kind)k, 1),
                   z = bf16s((int64_t)n * (S + 1) * d, (enum kind)k, 1),
                   q = bf16s((int64_t)S * d, NORMAL, 1), w = bf16s((int64_t)S * d, NORMAL, 1),
                   dead = bytes(n, 0, 3), dot = take((size_t)n * S * 4),
                   gate = take((size_t)n * S * 4);
            for (int i = 0; i < n; i++)
                host[dead + (size_t)i] = host[dead + (size_t)i] == 3;
            send();
            struct hx_tensor ts, tz;
            struct hx_engram_args a = {.eps = 1e-6f};
            for (int s = 0; s < N_SIDES; s++) {
                enum side at = (enum side)s;
                struct hx_weight wq = dense(at, HX_DTYPE_BF16, q, S, d),
                                 wk = dense(at, HX_DTYPE_BF16, w, S, d);
                struct hx_tensor td = at_side(at, HX_DTYPE_F32, dot, n, S, 0),
                                 tg = at_side(at, HX_DTYPE_F32, gate, n, S, 0);
                ts = at_side(at, HX_DTYPE_BF16, streams, n, S, d);
                tz = at_side(at, HX_DTYPE_BF16, z, n, (int64_t)(S + 1) * d, 0);
                a = (struct hx_engram_args){&ts,   &tz, &wq, &wk, side[s].base + dead,
                                            1e-6f, &td, &tg};
                RUN(s, engram_gate, &a);
                sync_side(at);
            }
            snprintf(what, sizeof(what), "engram_gate, %s, %d x %d", kind_name[k], n, d);
            same(what, HX_DTYPE_F32, dot, (int64_t)n * S, COEFFICIENT);
            same(what, HX_DTYPE_F32, gate, (int64_t)n * S, COEFFICIENT);
            same(what, HX_DTYPE_BF16, streams, (int64_t)n * S * d, ACTIVATION);
        }
    }
}

/* ---- drafter and best tokens ---- */

static void test_markov(void **state)
{
    (void)state;
    static const int shapes[][3] = {{512, 32, 5}, {1000, 64, 5}, {31, 96, 2}, {32320, 256, 5}};
    char what[96];
    for (int n = 1; n <= 9; n += n < 4 ? 1 : 5) {
        for (int k = 0; k < N_KINDS; k++) {
            for (int c = 0; c < 4; c++) {
                int vocab = shapes[c][0], rank = shapes[c][1], block = shapes[c][2];
                if (vocab > 2000 && n > 3)
                    continue;
                begin();
                size_t embed = bf16s((int64_t)vocab * rank, (enum kind)k, 1),
                       head = bf16s((int64_t)vocab * rank, (enum kind)k, k == TIES ? 1 : .1f),
                       base = floats((int64_t)n * block * vocab, (enum kind)k, 1),
                       tokens = take((size_t)(n * (block + 1)) * 4),
                       latent = take((size_t)(n * block * rank) * 2),
                       logits = take((size_t)n * (size_t)(block * vocab) * 4);
                for (int i = 0; i < n * (block + 1); i++)
                    ((int32_t *)(host + tokens))[i] =
                        (int32_t)(hx_rng_next(&rng) % (unsigned)vocab);
                send();
                for (int s = 0; s < N_SIDES; s++) {
                    enum side at = (enum side)s;
                    struct hx_weight we = dense(at, HX_DTYPE_BF16, embed, vocab, rank),
                                     wh = dense(at, HX_DTYPE_BF16, head, vocab, rank);
                    struct hx_tensor tb = at_side(at, HX_DTYPE_F32, base, n, block, vocab),
                                     tt = at_side(at, HX_DTYPE_I32, tokens, n, block + 1, 0),
                                     tl = at_side(at, HX_DTYPE_BF16, latent, (int64_t)n * block,
                                                  rank, 0),
                                     to = at_side(at, HX_DTYPE_F32, logits, n, block, vocab);
                    for (int draft = 0; draft < block; draft++)
                        RUN(s, markov,
                            &(struct hx_markov_args){&we, &wh, &tb, draft, &tt, &tl, &to});
                    sync_side(at);
                }
                snprintf(what, sizeof(what), "markov, %s, %d blocks, %d x %d", kind_name[k], n,
                         vocab, rank);
                same(what, HX_DTYPE_I32, tokens, (int64_t)n * (block + 1), EXACT);
                same(what, HX_DTYPE_BF16, latent, (int64_t)n * block * rank, EXACT);
                same(what, HX_DTYPE_F32, logits, (int64_t)n * block * vocab, COEFFICIENT);
            }
        }
    }
}

static void test_best(void **state)
{
    (void)state;
    static const int widths[] = {1, 31, 512, 1000, 32320};
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        for (int k = 0; k < N_KINDS; k++) {
            int n = row_counts[r] == 48 ? 70 : row_counts[r], vocab = widths[(r + k) % 5];
            begin();
            size_t logits = floats((int64_t)n * vocab, (enum kind)k, 1),
                   tokens = take((size_t)n * 8);
            for (int i = 0; i < vocab && n > 2; i++) /* a row of which nothing is possible */
                ((float *)(host + logits))[2 * vocab + i] = -INFINITY;
            if (n > 1)
                ((float *)(host + logits))[vocab + vocab / 2] = 3e38f;
            send();
            for (int s = 0; s < N_SIDES; s++) {
                struct hx_tensor tl = at_side((enum side)s, HX_DTYPE_F32, logits, n, 1, vocab),
                                 tt = at_side((enum side)s, HX_DTYPE_I32, tokens, n, 2, 0);
                RUN(s, best, &tl, &tt);
                sync_side((enum side)s);
            }
            snprintf(what, sizeof(what), "best, %s, %d of %d", kind_name[k], n, vocab);
            same(what, HX_DTYPE_I32, tokens, (int64_t)n * 2, EXACT);
        }
    }
}

static void test_confidence(void **state)
{
    (void)state;
    static const int shapes[][2] = {{128, 32}, {5120, 256}, {77, 5}};
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        for (int k = 0; k < N_KINDS; k++) {
            int n = row_counts[r], d = shapes[(r + k) % 3][0], rank = shapes[(r + k) % 3][1];
            begin();
            size_t w = bf16s(d + rank, NORMAL, 1), h = bf16s((int64_t)n * d, (enum kind)k, 1),
                   latent = bf16s((int64_t)n * rank, (enum kind)k, 1), z = take((size_t)n * 4);
            send();
            for (int s = 0; s < N_SIDES; s++) {
                enum side at = (enum side)s;
                struct hx_weight ww = dense(at, HX_DTYPE_BF16, w, 1, d + rank);
                struct hx_tensor th = at_side(at, HX_DTYPE_BF16, h, n, d, 0),
                                 tl = at_side(at, HX_DTYPE_BF16, latent, n, rank, 0),
                                 tz = at_side(at, HX_DTYPE_F32, z, n, 1, 0);
                RUN(s, confidence, &ww, &th, &tl, &tz);
                sync_side(at);
            }
            snprintf(what, sizeof(what), "confidence, %s, %d of %d and %d", kind_name[k], n, d,
                     rank);
            same(what, HX_DTYPE_F32, z, n, COEFFICIENT);
        }
    }
}

/* ---- NaN where something is chosen: the error of the CPU back end, and none afterwards ---- */

static int best_of(enum side s, size_t logits, size_t tokens, int n, int vocab)
{
    struct hx_error err = {0};
    struct hx_tensor tl = at_side(s, HX_DTYPE_F32, logits, n, 1, vocab),
                     tt = at_side(s, HX_DTYPE_I32, tokens, n, 2, 0);
    int r = side[s].be->kernels->best(side[s].dev, &tl, &tt, &err);
    return r < 0 ? r : side[s].be->sync(side[s].dev, &err);
}

static int route_of(enum side s, const size_t at[6], int n, int d, int n_expert, int k)
{
    struct hx_error err = {0};
    struct hx_tensor z = at_side(s, HX_DTYPE_BF16, at[0], n, d, 0),
                     sel = at_side(s, HX_DTYPE_I32, at[3], n, k, 0),
                     weight = at_side(s, HX_DTYPE_F32, at[4], n, k, 0),
                     score = at_side(s, HX_DTYPE_F32, at[5], n, n_expert, 0);
    struct hx_weight gate = dense(s, HX_DTYPE_BF16, at[1], n_expert, d),
                     bias = dense(s, HX_DTYPE_F32, at[2], 1, n_expert);
    int r = side[s].be->kernels->route(side[s].dev,
                                       &(struct hx_route_args){.z = &z,
                                                               .gate = &gate,
                                                               .bias = &bias,
                                                               .bias_vl = &bias,
                                                               .temp = 1,
                                                               .route_scale = 1,
                                                               .norm = true,
                                                               .sel = &sel,
                                                               .weight = &weight,
                                                               .score = &score},
                                       &err);
    return r < 0 ? r : side[s].be->sync(side[s].dev, &err);
}

static void test_nan(void **state)
{
    (void)state;
    enum { N = 7, VOCAB = 1000, D = 256, EXPERTS = 24, USED = 6 };
    const uint32_t nan = 0x7FC00000u;
    const float inf = INFINITY;
    const uint16_t nan16 = 0x7FC0;
    begin();
    size_t logits = floats((int64_t)N * VOCAB, NORMAL, 1), tokens = take((size_t)N * 8);
    size_t at[6] = {bf16s((int64_t)N * D, NORMAL, 1), bf16s((int64_t)EXPERTS * D, NORMAL, .1f),
                    floats(EXPERTS, NORMAL, .1f),     take((size_t)N * USED * 4),
                    take((size_t)N * USED * 4),       take((size_t)N * EXPERTS * 4)};
    for (int s = 0; s < N_SIDES; s++) {
        send();
        assert_int_equal(best_of((enum side)s, logits, tokens, N, VOCAB), 0);
        assert_int_equal(route_of((enum side)s, at, N, D, EXPERTS, USED), 0);
        put((enum side)s, logits + (size_t)(3 * VOCAB + 777) * 4, &nan, 4);
        assert_int_equal(best_of((enum side)s, logits, tokens, N, VOCAB), -EDOM);
        put((enum side)s, logits + (size_t)(3 * VOCAB + 777) * 4, &inf, 4);
        assert_int_equal(best_of((enum side)s, logits, tokens, N, VOCAB), -EDOM);
        put((enum side)s, at[0] + (size_t)(5 * D + 7) * 2, &nan16, 2);
        assert_int_equal(route_of((enum side)s, at, N, D, EXPERTS, USED), -EDOM);
        send();
        assert_int_equal(best_of((enum side)s, logits, tokens, N, VOCAB), 0);
        assert_int_equal(route_of((enum side)s, at, N, D, EXPERTS, USED), 0);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest single[] = {
        cmocka_unit_test(test_streams),     cmocka_unit_test(test_coefficients),
        cmocka_unit_test(test_keep_rows),   cmocka_unit_test(test_linear_grouped),
        cmocka_unit_test(test_linear_pair), cmocka_unit_test(test_head),
        cmocka_unit_test(test_engram_rows), cmocka_unit_test(test_engram_gate),
        cmocka_unit_test(test_markov),      cmocka_unit_test(test_best),
        cmocka_unit_test(test_confidence),  cmocka_unit_test(test_nan),
    };
    enum {
        N = sizeof(expert_cases) / sizeof(expert_cases[0]),
        M = sizeof(single) / sizeof(single[0])
    };
    struct CMUnitTest tests[M + N];
    static char names[N][48];
    memcpy(tests, single, sizeof(single));
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "experts, %s", expert_cases[i].name);
        tests[M + i] = (struct CMUnitTest){.name = names[i],
                                           .test_func = test_experts,
                                           .initial_state = (void *)(uintptr_t)&expert_cases[i]};
    }
    return run_sides("parts", tests, M + N, argc, argv);
}
