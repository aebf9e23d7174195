/* Operations of the CUDA back end against the CPU one, one by one: shapes, outliers, denormals,
 * ties, 1 to 48 rows, odd lengths; every row with the bits it has alone. */
#include "sides.h"

/* ---- row by row ---- */

static void test_rows(void **state)
{
    (void)state;
    static const int widths[] = {32, 96, 160, 512, 1280, 5120};
    char what[96];
    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        for (int k = 0; k < N_KINDS; k++) {
            int d = widths[w], n = row_counts[((int)w * 3 + k) % N_ROW_COUNTS];
            begin();
            size_t x = bf16s((int64_t)n * d, k, 1), y = take((size_t)n * (size_t)d * 2);
            size_t wt = bf16s(d, NORMAL, 1), pos = take((size_t)n * 8), freq = take(16 * 4);
            size_t code[3], scale[3], val[3];
            for (int g = 0; g < 3; g++) {
                code[g] = take((size_t)n * (size_t)d);
                scale[g] = take((size_t)n * (size_t)d);
                val[g] = take((size_t)n * (size_t)d * 2);
            }
            for (int i = 0; i < n; i++)
                ((int64_t *)(host + pos))[i] = (int64_t)(hx_rng_next(&rng) % 1000000);
            for (int i = 0; i < 16; i++)
                ((float *)(host + freq))[i] = (float)pow(10000.0, -i / 16.0);
            send();
            for (int s = 0; s < N_SIDES; s++) {
                struct hx_tensor tx = at_side(s, HX_DTYPE_BF16, x, n, d, 0),
                                 ty = at_side(s, HX_DTYPE_BF16, y, n, d, 0),
                                 tf = at_side(s, HX_DTYPE_F32, freq, 16, 0, 0);
                struct hx_weight wn = dense(s, HX_DTYPE_BF16, wt, 1, d);
                RUN(s, rms_norm, &wn, 1e-6f, &tx, &ty);
                for (int g = 0; g < 3; g++) {
                    struct hx_tensor tc = at_side(s, HX_DTYPE_U8, code[g], n, g ? d / 2 : d, 0),
                                     ts = at_side(s, HX_DTYPE_U8, scale[g], n,
                                                  d / (g == 2 ? 16 : 32), 0),
                                     tv = at_side(s, HX_DTYPE_BF16, val[g], n, d, 0);
                    RUN(s, quantise, (enum hx_grid)g, &tx, &tc, &ts, &tv);
                }
                struct hx_tensor heads = at_side(s, HX_DTYPE_BF16, x, n, d / 32, 32);
                RUN(s, rope, &heads, (const int64_t *)(side[s].base + pos), &tf, w % 2 == 0);
                CHECK(side[s].be->sync(side[s].dev, ERR));
            }
            int64_t all = (int64_t)n * d;
            snprintf(what, sizeof(what), "%s, %d x %d: rms_norm", kind_name[k], n, d);
            same(what, HX_DTYPE_BF16, y, all, EXACT);
            snprintf(what, sizeof(what), "%s, %d x %d: rope", kind_name[k], n, d);
            same(what, HX_DTYPE_BF16, x, all, EXACT);
            for (int g = 0; g < 3; g++) {
                snprintf(what, sizeof(what), "%s, %d x %d: grid %d", kind_name[k], n, d, g);
                same(what, HX_DTYPE_U8, code[g], g ? all / 2 : all, EXACT);
                same(what, HX_DTYPE_U8, scale[g], all / (g == 2 ? 16 : 32), EXACT);
                same(what, HX_DTYPE_BF16, val[g], all, EXACT);
            }
        }
    }
}

/* ---- a site whole, against its four operations on the CPU ---- */

struct site {
    size_t streams, y, pre, next, post, comb, x, fn, base, scale, norm;
    int n, d;
};

static void run_site(enum side s, const struct site *c, int first, int n)
{
    size_t f = (size_t)first, d = (size_t)c->d;
    struct hx_tensor streams = at_side(s, HX_DTYPE_BF16, c->streams + f * 4 * d * 2, n, 4, c->d),
                     y = at_side(s, HX_DTYPE_BF16, c->y + f * d * 2, n, c->d, 0),
                     pre = at_side(s, HX_DTYPE_F32, c->pre + f * 16, n, 4, 0),
                     next = at_side(s, HX_DTYPE_F32, c->next + f * 16, n, 4, 0),
                     post = at_side(s, HX_DTYPE_F32, c->post + f * 16, n, 4, 0),
                     comb = at_side(s, HX_DTYPE_F32, c->comb + f * 64, n, 4, 4),
                     x = at_side(s, HX_DTYPE_BF16, c->x + f * d * 2, n, c->d, 0);
    struct hx_weight fn = dense(s, HX_DTYPE_F32, c->fn, 24, 4 * c->d),
                     base = dense(s, HX_DTYPE_F32, c->base, 1, 24),
                     scale = dense(s, HX_DTYPE_F32, c->scale, 1, 3),
                     norm = dense(s, HX_DTYPE_BF16, c->norm, 1, c->d);
    struct hx_hc_args mix = {&streams, &fn, &base, &scale, 20, 1e-6f, 1e-6f, &next, &post, &comb};
    if (side[s].be->kernels->hc_site) {
        RUN(s, hc_site, &(struct hx_site_args){mix, &y, &streams, &pre, &norm, 1e-6f, &x});
        return;
    }
    RUN(s, hc_expand, &y, &post, &comb, &streams);
    RUN(s, hc_collapse, &streams, &pre, &x);
    RUN(s, rms_norm, &norm, 1e-6f, &x, &x);
    RUN(s, hc_mix, &mix);
}

static void test_site(void **state)
{
    (void)state;
    static const int widths[] = {64, 96, 544, 5120};
    char what[96];
    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        for (int r = 0; r <= N_ROW_COUNTS; r++) {
            int n = r < N_ROW_COUNTS ? row_counts[r] : 75, d = widths[w];
            enum kind k = (enum kind)((r + (int)w) % N_KINDS);
            if (d == 5120 && n > 16 && n != 75)
                continue;
            begin();
            struct site c = {.n = n, .d = d};
            c.streams = bf16s((int64_t)n * 4 * d, k, 1);
            c.y = bf16s((int64_t)n * d, k == DENORMALS ? NORMAL : k, 1);
            c.pre = floats(n * 4, NORMAL, .3f);
            c.next = floats(n * 4, NORMAL, 1);
            c.post = floats(n * 4, NORMAL, .5f);
            c.comb = floats(n * 16, NORMAL, .3f);
            c.x = take((size_t)n * (size_t)d * 2);
            c.fn = floats((int64_t)24 * 4 * d, NORMAL, .02f);
            c.base = floats(24, NORMAL, .5f);
            c.scale = floats(3, NORMAL, .5f);
            c.norm = bf16s(d, NORMAL, 1);
            send();
            for (int s = 0; s < N_SIDES; s++) {
                run_site(s, &c, 0, n);
                CHECK(side[s].be->sync(side[s].dev, ERR));
            }
            snprintf(what, sizeof(what), "site, %s, %d x %d", kind_name[k], n, d);
            same(what, HX_DTYPE_BF16, c.streams, (int64_t)n * 4 * d, EXACT);
            same(what, HX_DTYPE_BF16, c.x, (int64_t)n * d, EXACT);
            same(what, HX_DTYPE_F32, c.next, n * 4, COEFFICIENT);
            same(what, HX_DTYPE_F32, c.post, n * 4, COEFFICIENT);
            same(what, HX_DTYPE_F32, c.comb, n * 16, COEFFICIENT);
            struct rows comb = keep(c.comb, 64, n), next = keep(c.next, 16, n),
                        x = keep(c.x, (size_t)d * 2, n);
            for (int i = 0; i<n; i += n> 8 ? 7 : 1) {
                size_t f = (size_t)i;
                send();
                run_site(CARD, &c, i, 1);
                CHECK(side[CARD].be->sync(side[CARD].dev, ERR));
                struct rows at = comb;
                at.at += f * 64;
                same_alone(what, &at, i);
                at = next;
                at.at += f * 16;
                same_alone(what, &at, i);
                at = x;
                at.at += f * (size_t)d * 2;
                same_alone(what, &at, i);
            }
            free(comb.all);
            free(next.all);
            free(x.all);
        }
    }
}

/* ---- router ---- */

static void run_route(enum side s, int n, int d, int n_expert, int k, const size_t at[7], int first)
{
    size_t f = (size_t)first;
    struct hx_tensor z = at_side(s, HX_DTYPE_BF16, at[0] + f * (size_t)d * 2, n, d, 0),
                     sel = at_side(s, HX_DTYPE_I32, at[4], n, k, 0),
                     weight = at_side(s, HX_DTYPE_F32, at[5], n, k, 0),
                     score = at_side(s, HX_DTYPE_F32, at[6], n, n_expert, 0);
    struct hx_weight gate = dense(s, HX_DTYPE_BF16, at[1], n_expert, d),
                     bias = dense(s, HX_DTYPE_F32, at[2], 1, n_expert),
                     other = dense(s, HX_DTYPE_F32, at[3], 1, n_expert);
    static uint8_t odd[48];
    RUN(s, route,
        &(struct hx_route_args){.z = &z,
                                .gate = &gate,
                                .bias = &bias,
                                .bias_vl = &other,
                                .dead = s == CPU ? odd : NULL,
                                .temp = 1.0f,
                                .route_scale = 2.5f,
                                .norm = true,
                                .sel = &sel,
                                .weight = &weight,
                                .score = &score});
}

static void test_route(void **state)
{
    (void)state;
    static const struct {
        int d, n_expert, k;
    } shapes[] = {{128, 8, 3}, {256, 31, 6}, {1280, 384, 6}, {5120, 384, 6}, {128, 512, 8}};
    char what[96];
    for (size_t w = 0; w < sizeof(shapes) / sizeof(shapes[0]); w++) {
        for (int r = 0; r < N_ROW_COUNTS; r++) {
            int n = row_counts[r], d = shapes[w].d, e = shapes[w].n_expert, k = shapes[w].k;
            enum kind kind = (enum kind)((r + (int)w) % N_KINDS);
            if (d == 5120 && n > 9)
                continue;
            begin();
            size_t at[7];
            at[0] = bf16s((int64_t)n * d, kind, 1);
            at[1] = bf16s((int64_t)e * d, kind == TIES ? TIES : NORMAL, .03f);
            at[2] = floats(e, kind == TIES ? ZEROS : NORMAL, .1f);
            at[3] = floats(e, NORMAL, .1f);
            at[4] = take((size_t)n * (size_t)k * 4);
            at[5] = take((size_t)n * (size_t)k * 4);
            at[6] = take((size_t)n * (size_t)e * 4);
            send();
            for (int s = 0; s < N_SIDES; s++) {
                run_route(s, n, d, e, k, at, 0);
                CHECK(side[s].be->sync(side[s].dev, ERR));
            }
            snprintf(what, sizeof(what), "route, %s, %d of %d x %d", kind_name[kind], n, e, d);
            same(what, HX_DTYPE_I32, at[4], (int64_t)n * k, EXACT);
            same(what, HX_DTYPE_F32, at[5], (int64_t)n * k, COEFFICIENT);
            same(what, HX_DTYPE_F32, at[6], (int64_t)n * e, COEFFICIENT);
            struct rows sel = keep(at[4], (size_t)k * 4, n), weight = keep(at[5], (size_t)k * 4, n);
            for (int i = 0; i<n; i += n> 8 ? 7 : 1) {
                run_route(CARD, 1, d, e, k, at, i);
                CHECK(side[CARD].be->sync(side[CARD].dev, ERR));
                same_alone(what, &sel, i);
                same_alone(what, &weight, i);
            }
            free(sel.all);
            free(weight.all);
        }
    }
}

/* ---- index: scores and choice over keys in pages ---- */

struct index_case {
    const char *name;
    int n_head, d, topk, n_cand; /* n_cand 0: no candidates */
    int64_t n_key;
    int n_row, ratio;
    enum { PLAIN, EQUAL_KEYS, WIDE_SCALES, ONE_NAN } keys;
};

static const struct index_case index_cases[] = {
    {"few keys", 32, 128, 512, 0, 65, 6, 1, PLAIN},
    {"one key", 32, 128, 512, 0, 1, 1, 1, PLAIN},
    {"tiny heads", 4, 32, 16, 4, 333, 9, 2, PLAIN},
    {"as many as wanted", 32, 128, 512, 0, 512, 1, 1, PLAIN},
    {"one more", 32, 128, 512, 0, 513, 3, 1, PLAIN},
    {"ties", 32, 128, 512, 64, 3000, 6, 1, EQUAL_KEYS},
    {"wide scales", 16, 64, 128, 32, 3000, 5, 1, WIDE_SCALES},
    {"candidates", 32, 128, 512, 256, 20011, 2, 1, PLAIN},
    {"40,000 keys", 8, 128, 512, 2048, 40007, 48, 1, PLAIN},
    {"1M keys", 4, 128, 512, 2048, 1048576, 2, 1, PLAIN},
    {"1M equal keys", 2, 64, 512, 2048, 1048573, 1, 1, EQUAL_KEYS},
};

static void test_index(void **state)
{
    const struct index_case *c = *state;
    enum { PER = 64, CAND = 8 };
    int b32 = c->d / 32, row = c->d / 2 + b32;
    int64_t n_page = (c->n_key + PER - 1) / PER, n_last = c->n_key * c->ratio;
    begin();
    size_t q = bf16s((int64_t)c->n_row * c->n_head * c->d, NORMAL, 1),
           w = bf16s((int64_t)c->n_row * c->n_head, NORMAL, .2f),
           later = bf16s((int64_t)c->n_row * c->n_head, NORMAL, .2f);
    size_t qc = take((size_t)(c->n_row * c->n_head * c->d / 2)),
           qs = take((size_t)(c->n_row * c->n_head * b32)),
           pool = take((size_t)(n_page * PER * row)), table = take((size_t)n_page * 4),
           seq = take((size_t)c->n_row * 4), pos = take((size_t)c->n_row * 8),
           sel = take((size_t)(c->n_row * c->topk) * 4),
           cand = take((size_t)(c->n_row * (c->n_cand + 1)) * 4),
           within = take((size_t)(c->n_row * c->topk) * 4), stream = take(256), view = take(256),
           views = take(8);
    for (int64_t i = 0; i < n_page * PER; i++) {
        uint8_t *at = host + pool + (size_t)(i / PER) * PER * (size_t)row;
        uint8_t *code = at + (size_t)(i % PER) * (size_t)c->d / 2,
                *scale = at + PER * (size_t)c->d / 2 + (size_t)(i % PER) * (size_t)b32;
        bool copy = c->keys == EQUAL_KEYS && i > 0 && i % 5 != 0;
        for (int k = 0; k < c->d / 2; k++)
            code[k] = copy ? host[pool + (size_t)k] : (uint8_t)hx_rng_next(&rng);
        for (int k = 0; k < b32; k++) {
            int e = c->keys == WIDE_SCALES ? 60 + (int)(hx_rng_next(&rng) % 100)
                                           : 124 + (int)(hx_rng_next(&rng) % 5);
            scale[k] = copy ? host[pool + PER * (size_t)c->d / 2 + (size_t)k] : (uint8_t)e;
        }
        if (i % 11 == 3 && !copy) /* a block of zeros with the scale that quantise gives it */
            memset(code, 0, 16), scale[0] = 1;
    }
    for (int64_t i = 0; i < n_page; i++) /* pages in falling order */
        ((int32_t *)(host + table))[i] = (int32_t)(n_page - 1 - i);
    for (int i = 0; i < c->n_row; i++) {
        ((int32_t *)(host + seq))[i] = 0;
        ((int64_t *)(host + pos))[i] = n_last - c->n_row + i > 0 ? n_last - c->n_row + i : 0;
    }
    send();
    for (int s = 0; s < N_SIDES; s++) {
        uint8_t *base = side[s].base;
        struct hx_kv_stream ks = {.base = base + pool,
                                  .table = (const int32_t *)(base + table),
                                  .rows_per_block = PER,
                                  .block_stride = (size_t)(PER * row),
                                  .scale_offset = (size_t)PER * (size_t)c->d / 2,
                                  .data_bytes = c->d / 2,
                                  .scale_bytes = b32};
        struct hx_kv_view kv = {.key = (const struct hx_kv_stream *)(base + stream)};
        const struct hx_kv_view *on_side = (const struct hx_kv_view *)(base + view), *on_host;
        CHECK(side[s].be->upload(side[s].dev, base + stream, &ks, sizeof(ks), ERR));
        CHECK(side[s].be->upload(side[s].dev, base + view, &kv, sizeof(kv), ERR));
        CHECK(side[s].be->upload(side[s].dev, base + views, &on_side, sizeof(on_side), ERR));
        CHECK(side[s].be->sync(side[s].dev, ERR));
        on_host = strcmp(side[s].be->name, "cpu") == 0 ? on_side : NULL;
        struct hx_batch batch = {.n_row = c->n_row,
                                 .n_seq = 1,
                                 .seq = (const int32_t *)(base + seq),
                                 .pos = (const int64_t *)(base + pos),
                                 .kv = &on_host,
                                 .kv_device = (const struct hx_kv_view *const *)(base + views)};
        struct hx_tensor tq = at_side(s, HX_DTYPE_BF16, q, c->n_row, c->n_head, c->d),
                         tc = at_side(s, HX_DTYPE_U8, qc, c->n_row, c->n_head, c->d / 2),
                         ts = at_side(s, HX_DTYPE_U8, qs, c->n_row, c->n_head, b32),
                         tw = at_side(s, HX_DTYPE_BF16, w, c->n_row, c->n_head, 0),
                         tsel = at_side(s, HX_DTYPE_I32, sel, c->n_row, c->topk, 0),
                         tcand =
                             at_side(s, HX_DTYPE_I32, cand, c->n_row, c->n_cand ? c->n_cand : 1, 0);
        RUN(s, quantise, HX_GRID_FP4_B32, &tq, &tc, &ts, &tq);
        struct hx_index_args a = {.batch = &batch,
                                  .source = 0,
                                  .ratio = c->ratio,
                                  .q = &tq,
                                  .q_codes = &tc,
                                  .q_scales = &ts,
                                  .w = &tw,
                                  .factor = 1.0f / 64,
                                  .n_visible = c->n_key,
                                  .topk = c->topk,
                                  .cand_block = CAND,
                                  .n_cand = c->n_cand ? c->n_cand : 1,
                                  .write_cand = c->n_cand > 0,
                                  .sel = &tsel,
                                  .cand = &tcand};
        RUN(s, index_select, &a);
        if (c->n_cand) { /* a later layer: other weights, rows of the kept blocks alone */
            tsel.data = side[s].base + within;
            tw.data = side[s].base + later;
            a.write_cand = false;
            a.read_cand = true;
            RUN(s, index_select, &a);
        }
        CHECK(side[s].be->sync(side[s].dev, ERR));
    }
    same("queries", HX_DTYPE_BF16, q, (int64_t)c->n_row * c->n_head * c->d, EXACT);
    same("selected rows", HX_DTYPE_I32, sel, (int64_t)c->n_row * c->topk, EXACT);
    if (c->n_cand) {
        same("candidate blocks", HX_DTYPE_I32, cand, (int64_t)c->n_row * c->n_cand, EXACT);
        same("rows of candidates", HX_DTYPE_I32, within, (int64_t)c->n_row * c->topk, EXACT);
    }
}

/* ---- products ---- */

struct linear_case {
    int64_t n_out, n_in;
    int format; /* of format_name */
};
static const char *const format_name[] = {"FP8", "BF16", "F32", "FP4"};
static const struct linear_case linear_cases[] = {
    {512, 5120, 0}, {1280, 5120, 0}, {8192, 1280, 0}, {96, 192, 0}, {32, 64, 0},  {160, 96, 0},
    {128, 512, 1},  {384, 5120, 1},  {33, 77, 1},     {7, 130, 2},  {64, 256, 3}, {96, 160, 3}};

static void test_linear(void **state)
{
    const struct linear_case *c = *state;
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        int n = row_counts[r], format = c->format;
        int64_t o = c->n_out, k = c->n_in;
        enum kind kind = (enum kind)((r + (int)(c - linear_cases)) % N_KINDS);
        if (o * k > 1 << 20 && n > 9)
            continue;
        begin();
        size_t x = bf16s(n * k, kind, 1), y = take((size_t)(n * o) * 4);
        size_t code = format == 0   ? e4m3s(o * k)
                      : format == 1 ? bf16s(o * k, NORMAL, .05f)
                      : format == 2 ? floats(o * k, NORMAL, .05f)
                                    : bytes(o * k / 2, 0, 255);
        int64_t blocks = format == 0 ? (o + 31) / 32 * (k / 32) : o * (k / 32);
        size_t scale = bytes(format == 0 || format == 3 ? blocks : 1, 115, 122);
        send();
        for (int s = 0; s < N_SIDES; s++) {
            struct hx_weight m = {.format = format == 0   ? HX_FORMAT_FP8
                                            : format == 3 ? HX_FORMAT_FP4
                                                          : HX_FORMAT_DENSE,
                                  .n_out = o,
                                  .n_in = k};
            m.part[HX_PART_DATA] = at_side(s,
                                           format == 0   ? HX_DTYPE_F8_E4M3
                                           : format == 1 ? HX_DTYPE_BF16
                                           : format == 2 ? HX_DTYPE_F32
                                                         : HX_DTYPE_I8,
                                           code, o, format == 3 ? k / 2 : k, 0);
            if (format == 0 || format == 3)
                m.part[HX_PART_SCALE] =
                    at_side(s, HX_DTYPE_F8_E8M0, scale, format == 0 ? (o + 31) / 32 : o, k / 32, 0);
            struct hx_tensor tx = at_side(s, HX_DTYPE_BF16, x, n, k, 0),
                             ty = at_side(s, HX_DTYPE_F32, y, n, o, 0);
            RUN(s, linear, &m, false, &tx, &ty);
            CHECK(side[s].be->sync(side[s].dev, ERR));
            if (s == CPU)
                continue;
            snprintf(what, sizeof(what), "linear, %s, %s, %d of %lld x %lld", kind_name[kind],
                     format_name[format], n, (long long)o, (long long)k);
            same(what, HX_DTYPE_F32, y, n * o, ACTIVATION);
            struct rows all = keep(y, (size_t)o * 4, n);
            for (int i = 0; i<n; i += n> 8 ? 11 : 1) {
                tx.ne[0] = ty.ne[0] = 1;
                tx.data = side[s].base + x + (size_t)(i * k) * 2;
                RUN(s, linear, &m, false, &tx, &ty);
                same_alone(what, &all, i);
            }
            free(all.all);
        }
    }
}

int main(int argc, char **argv)
{
    enum {
        N = sizeof(index_cases) / sizeof(index_cases[0]),
        M = sizeof(linear_cases) / sizeof(linear_cases[0])
    };
    struct CMUnitTest tests[3 + M + N] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_site),
        cmocka_unit_test(test_route),
    };
    static char names[M + N][48];
    for (int i = 0; i < M + N; i++) {
        const struct linear_case *c = &linear_cases[i < M ? i : 0];
        if (i < M)
            snprintf(names[i], sizeof(names[i]), "linear, %s %lld x %lld", format_name[c->format],
                     (long long)c->n_out, (long long)c->n_in);
        else
            snprintf(names[i], sizeof(names[i]), "index, %s", index_cases[i - M].name);
        tests[3 + i] = (struct CMUnitTest){
            .name = names[i],
            .test_func = i < M ? test_linear : test_index,
            .initial_state = i < M ? (void *)(uintptr_t)c : (void *)(uintptr_t)&index_cases[i - M]};
    }
    return run_sides("ops", tests, 3 + M + N, argc, argv);
}
