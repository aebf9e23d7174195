/* What reads and writes the KV state, on the card against the CPU back end: stored rows, pooled
 * groups, window rows and index queries made in one launch, attention over window and selected
 * rows. Every row of attention with the bits it has alone. */
#include "sides.h"

#define MAX_SEQ  4
#define PER      64 /* rows of a page */
#define OPEN_ROW (8 * 2)

/* KV state of some sequences, one layer; the new rows of a pass. Offsets of both sides. */
struct world {
    int n_seq, n_row, d, ring, n_page; /* n_page: of a sequence */
    size_t win, comp, key;             /* pools */
    size_t win_bytes, page_comp, page_key;
    size_t win_table, table, open, streams, opens, views, pointers;
    size_t seq, pos, first_pos, first_row;
};

static size_t page(size_t codes, size_t scales)
{
    return (PER * (codes + scales) + 255) / 256 * 256;
}

/* past and rows: of each sequence; a sequence's rows lie side by side. */
static struct world make_world(int n_seq, int d, int ring, int n_page, const int *past,
                               const int *rows, enum kind k)
{
    struct world w = {.n_seq = n_seq, .d = d, .ring = ring, .n_page = n_page};
    size_t n = (size_t)d, pages = (size_t)(n_seq * n_page);
    w.win_bytes = ((size_t)ring * (n + n / 32) + 255) / 256 * 256;
    w.page_comp = page(n / 2, n / 16);
    w.page_key = page(n / 2, n / 32);
    w.win = e4m3s((int64_t)(w.win_bytes * (size_t)n_seq));
    w.comp = e4m3s((int64_t)(w.page_comp * pages));
    w.key = e4m3s((int64_t)(w.page_key * pages));
    for (int s = 0; s < n_seq; s++) { /* scales of the window: 2^-9 to 2^-7 */
        uint8_t *at = host + w.win + (size_t)s * w.win_bytes + (size_t)ring * n;
        for (size_t i = 0; i < (size_t)ring * (n / 32); i++)
            at[i] = (uint8_t)(118 + hx_rng_next(&rng) % 3);
    }
    for (size_t i = 0; i < pages; i++) { /* of compressed rows: 2^-3 to 1 */
        uint8_t *at = host + w.comp + i * w.page_comp + PER * (n / 2);
        for (size_t j = 0; j < PER * (n / 16); j++)
            at[j] = (uint8_t)(0x20 + hx_rng_next(&rng) % 24);
    }
    for (int s = 0; k == TIES && s < n_seq; s++) { /* every window row the same */
        uint8_t *at = host + w.win + (size_t)s * w.win_bytes;
        for (int i = 1; i < ring; i++) {
            memcpy(at + (size_t)i * n, at, n);
            memcpy(at + (size_t)ring * n + (size_t)i * (n / 32), at + (size_t)ring * n, n / 32);
        }
    }
    w.win_table = take((size_t)n_seq * 4);
    w.table = take(pages * 4);
    for (int i = 0; i < n_seq; i++)
        ((int32_t *)(host + w.win_table))[i] = n_seq - 1 - i;
    for (size_t i = 0; i < pages; i++) /* pages of the sequences in turn, from the end */
        ((int32_t *)(host + w.table))[i] =
            (int32_t)(pages - 1 - (i % (size_t)n_page * (size_t)n_seq + i / (size_t)n_page));
    w.open = floats((int64_t)n_seq * OPEN_ROW * d, NORMAL, 1);
    w.streams = take((size_t)n_seq * 3 * sizeof(struct hx_kv_stream));
    w.opens = take((size_t)n_seq * sizeof(float *));
    w.views = take((size_t)n_seq * sizeof(struct hx_kv_view));
    w.pointers = take((size_t)n_seq * sizeof(struct hx_kv_view *));
    for (int s = 0; s < n_seq; s++)
        w.n_row += rows[s];
    w.seq = take((size_t)w.n_row * 4);
    w.pos = take((size_t)w.n_row * 8);
    w.first_pos = take((size_t)n_seq * 8);
    w.first_row = take((size_t)n_seq * 4);
    for (int s = 0, r = 0; s < n_seq; s++) {
        ((int64_t *)(host + w.first_pos))[s] = past[s];
        ((int32_t *)(host + w.first_row))[s] = r;
        for (int i = 0; i < rows[s]; i++, r++) {
            ((int32_t *)(host + w.seq))[r] = s;
            ((int64_t *)(host + w.pos))[r] = past[s] + i;
        }
    }
    return w;
}

/* Views with the addresses of a side. After send. */
static void put_views(enum side s, const struct world *w)
{
    uint8_t *b = side[s].base;
    struct hx_kv_stream of[MAX_SEQ][3];
    struct hx_kv_view view[MAX_SEQ] = {0};
    const struct hx_kv_view *pointer[MAX_SEQ];
    float *open[MAX_SEQ];
    const struct hx_kv_stream *streams = (const struct hx_kv_stream *)(b + w->streams);
    for (int i = 0; i < w->n_seq; i++) {
        of[i][0] = (struct hx_kv_stream){.base = b + w->win,
                                         .table = (const int32_t *)(b + w->win_table) + i,
                                         .rows_per_block = w->ring,
                                         .ring = w->ring,
                                         .block_stride = w->win_bytes,
                                         .scale_offset = (size_t)w->ring * (size_t)w->d,
                                         .data_bytes = w->d,
                                         .scale_bytes = w->d / 32};
        of[i][1] = (struct hx_kv_stream){.base = b + w->comp,
                                         .table = (const int32_t *)(b + w->table) + i * w->n_page,
                                         .rows_per_block = PER,
                                         .block_stride = w->page_comp,
                                         .scale_offset = (size_t)PER * (size_t)w->d / 2,
                                         .data_bytes = w->d / 2,
                                         .scale_bytes = w->d / 16};
        of[i][2] = of[i][1];
        of[i][2].base = b + w->key;
        of[i][2].block_stride = w->page_key;
        of[i][2].scale_bytes = w->d / 32;
        open[i] = (float *)(b + w->open) + (int64_t)i * OPEN_ROW * w->d;
        view[i].window = streams + (ptrdiff_t)3 * i;
        view[i].comp = streams + (ptrdiff_t)3 * i + 1;
        view[i].key = streams + (ptrdiff_t)3 * i + 2;
        view[i].open = (float *const *)(b + w->opens) + i;
        pointer[i] = (const struct hx_kv_view *)(b + w->views) + i;
    }
    put(s, w->streams, of, (size_t)w->n_seq * sizeof(of[0]));
    put(s, w->opens, open, (size_t)w->n_seq * sizeof(open[0]));
    put(s, w->views, view, (size_t)w->n_seq * sizeof(view[0]));
    put(s, w->pointers, pointer, (size_t)w->n_seq * sizeof(pointer[0]));
}

static void send_world(const struct world *w)
{
    send();
    for (int s = 0; s < N_SIDES; s++)
        put_views((enum side)s, w);
}

/* n rows from row `first` on; positions of fresh rows are those of the whole pass. */
static struct hx_batch batch_of(enum side s, const struct world *w, int first, int n)
{
    const uint8_t *b = side[s].base;
    const struct hx_kv_view *const *views = (const struct hx_kv_view *const *)(b + w->pointers);
    bool on_host = strcmp(side[s].be->name, "cpu") == 0;
    return (struct hx_batch){.n_row = n,
                             .n_seq = w->n_seq,
                             .seq = (const int32_t *)(b + w->seq) + first,
                             .pos = (const int64_t *)(b + w->pos) + first,
                             .first_pos = (const int64_t *)(b + w->first_pos),
                             .first_row = (const int32_t *)(b + w->first_row),
                             .kv = on_host ? views : NULL,
                             .kv_device = views};
}

static size_t frequencies(int n)
{
    size_t at = take((size_t)n * 4);
    for (int i = 0; i < n; i++)
        ((float *)(host + at))[i] = (float)pow(10000.0, -(double)i / n);
    return at;
}

static void same_state(const char *what, const struct world *w)
{
    size_t pages = (size_t)(w->n_seq * w->n_page);
    same(what, HX_DTYPE_U8, w->win, (int64_t)(w->win_bytes * (size_t)w->n_seq), EXACT);
    same(what, HX_DTYPE_U8, w->comp, (int64_t)(w->page_comp * pages), EXACT);
    same(what, HX_DTYPE_U8, w->key, (int64_t)(w->page_key * pages), EXACT);
    same(what, HX_DTYPE_F32, w->open, (int64_t)w->n_seq * OPEN_ROW * w->d, EXACT);
}

/* ---- stored rows, pooled groups ---- */

struct pass {
    int n_seq, past[MAX_SEQ], rows[MAX_SEQ];
};
static const struct pass passes[] = {
    {1, {0}, {1}},
    {1, {1}, {1}},
    {1, {37}, {2}},
    {2, {0, 64}, {3, 2}},
    {2, {127, 5}, {1, 5}},
    {3, {63, 100, 200}, {3, 3, 2}},
    {4, {15, 16, 17, 0}, {9, 8, 7, 7}},
    {4, {31, 90, 255, 128}, {24, 8, 3, 13}},
};
#define N_PASSES ((int)(sizeof(passes) / sizeof(passes[0])))

static void test_kv_store(void **state)
{
    (void)state;
    static const int widths[] = {32, 64, 96, 512};
    char what[96];
    for (int c = 0; c < N_PASSES; c++) {
        for (int which = 0; which < 3; which++) {
            const struct pass *p = &passes[c];
            int d = widths[(c + which) % 4];
            begin();
            struct world w = make_world(p->n_seq, d, 80, 5, p->past, p->rows, NORMAL);
            int n_code = which ? d / 2 : d, n_scale = which == HX_KV_COMP ? d / 16 : d / 32;
            size_t codes = bytes((int64_t)w.n_row * n_code, 0, 255),
                   scales = bytes((int64_t)w.n_row * n_scale, 0, 254),
                   row = take((size_t)w.n_row * 8);
            for (int i = 0; i < w.n_row; i++) /* some go nowhere */
                ((int64_t *)(host + row))[i] =
                    i % 7 == 5 ? -1 : ((const int64_t *)(host + w.pos))[i];
            send_world(&w);
            for (int s = 0; s < N_SIDES; s++) {
                struct hx_batch b = batch_of((enum side)s, &w, 0, w.n_row);
                struct hx_tensor tc = at_side((enum side)s, HX_DTYPE_U8, codes, w.n_row, n_code, 0),
                                 ts = at_side((enum side)s, HX_DTYPE_U8, scales, w.n_row, n_scale,
                                              0);
                RUN(s, kv_store, &b, (enum hx_kv_which)which, 0,
                    (const int64_t *)(side[s].base + row), &tc, &ts);
                CHECK(side[s].be->sync(side[s].dev, ERR));
            }
            snprintf(what, sizeof(what), "kv_store %d, pass %d, width %d", which, c, d);
            same_state(what, &w);
        }
    }
}

static void test_pool_groups(void **state)
{
    (void)state;
    static const int widths[] = {32, 64, 100, 512};
    char what[96];
    for (int c = 0; c < N_PASSES; c++) {
        for (int k = 0; k < N_KINDS; k++) {
            const struct pass *p = &passes[c];
            int d = widths[(c + k) % 4], n = 0;
            begin();
            struct world w = make_world(p->n_seq, d, 80, 1, p->past, p->rows, NORMAL);
            size_t u = floats((int64_t)w.n_row * d, (enum kind)k, 1),
                   g = floats((int64_t)w.n_row * d, (enum kind)k, 1),
                   seq = take((size_t)w.n_row * 4), row = take((size_t)w.n_row * 8),
                   lat = take((size_t)(w.n_row * d) * 2);
            for (int i = 0; i < w.n_row; i++) { /* groups whose second row is one of the pass */
                int64_t pos = ((const int64_t *)(host + w.pos))[i];
                if (pos % 2 == 0)
                    continue;
                ((int32_t *)(host + seq))[n] = ((const int32_t *)(host + w.seq))[i];
                ((int64_t *)(host + row))[n++] = pos / 2;
            }
            send_world(&w);
            for (int s = 0; s < N_SIDES; s++) {
                enum side at = (enum side)s;
                struct hx_batch b = batch_of(at, &w, 0, w.n_row);
                struct hx_tensor tu = at_side(at, HX_DTYPE_F32, u, w.n_row, d, 0),
                                 tg = at_side(at, HX_DTYPE_F32, g, w.n_row, d, 0),
                                 tl = at_side(at, HX_DTYPE_BF16, lat, n, d, 0);
                tl.ne[0] = n;
                RUN(s, pool_groups, &b, 0, &tu, &tg, (const int32_t *)(side[s].base + seq),
                    (const int64_t *)(side[s].base + row), &tl);
                CHECK(side[s].be->sync(side[s].dev, ERR));
            }
            snprintf(what, sizeof(what), "pool_groups, %s, pass %d, width %d", kind_name[k], c, d);
            same(what, HX_DTYPE_BF16, lat, (int64_t)n * d, EXACT);
            same_state(what, &w);
        }
    }
}

/* ---- several operations in one launch, against the single ones ---- */

static void run_latents(enum side s, const struct world *w, int n_q, const size_t at[7], int n_freq,
                        bool store)
{
    int n = w->n_row, d = w->d;
    struct hx_batch b = batch_of(s, w, 0, n);
    struct hx_tensor q = at_side(s, HX_DTYPE_BF16, at[0], n, n_q, 0),
                     kv = at_side(s, HX_DTYPE_BF16, at[1], n, d, 0),
                     codes = at_side(s, HX_DTYPE_U8, at[4], n, d, 0),
                     scales = at_side(s, HX_DTYPE_U8, at[5], n, d / 32, 0),
                     freq = at_side(s, HX_DTYPE_F32, at[6], n_freq, 0, 0);
    struct hx_weight q_norm = dense(s, HX_DTYPE_BF16, at[2], 1, n_q),
                     kv_norm = dense(s, HX_DTYPE_BF16, at[3], 1, d);
    if (side[s].be->kernels->latents) {
        RUN(s, latents,
            &(struct hx_latents_args){&b, 0, &q, &kv, &q_norm, &kv_norm, 1e-6f, &freq, &codes,
                                      &scales, store ? b.pos : NULL, NULL, NULL});
        return;
    }
    struct hx_tensor head = at_side(s, HX_DTYPE_BF16, at[1], n, 1, d);
    RUN(s, rms_norm, &q_norm, 1e-6f, &q, &q);
    RUN(s, rms_norm, &kv_norm, 1e-6f, &kv, &kv);
    RUN(s, rope, &head, b.pos, &freq, false);
    RUN(s, quantise, HX_GRID_FP8_B32, &kv, &codes, &scales, NULL);
    if (store)
        RUN(s, kv_store, &b, HX_KV_WINDOW, 0, b.pos, &codes, &scales);
}

static void test_latents(void **state)
{
    (void)state;
    static const int widths[][2] = {{64, 64}, {96, 96}, {1280, 512}, {160, 32}};
    char what[96];
    for (int c = 0; c < N_PASSES; c++) {
        for (int k = 0; k < N_KINDS; k++) {
            const struct pass *p = &passes[c];
            int n_q = widths[(c + k) % 4][0], d = widths[(c + k) % 4][1];
            begin();
            struct world w = make_world(p->n_seq, d, 80, 1, p->past, p->rows, NORMAL);
            size_t at[7] = {bf16s((int64_t)w.n_row * n_q, (enum kind)k, 1),
                            bf16s((int64_t)w.n_row * d, (enum kind)k, 1),
                            bf16s(n_q, NORMAL, 1),
                            bf16s(d, NORMAL, 1),
                            take((size_t)(w.n_row * d)),
                            take((size_t)(w.n_row * d / 32)),
                            frequencies(d / 4)};
            send_world(&w);
            for (int s = 0; s < N_SIDES; s++) {
                run_latents((enum side)s, &w, n_q, at, d / 4, (c + k) % 3 != 0);
                CHECK(side[s].be->sync(side[s].dev, ERR));
            }
            snprintf(what, sizeof(what), "latents, %s, pass %d, %d and %d", kind_name[k], c, n_q,
                     d);
            same(what, HX_DTYPE_BF16, at[0], (int64_t)w.n_row * n_q, EXACT);
            same(what, HX_DTYPE_U8, at[4], (int64_t)w.n_row * d, EXACT);
            same(what, HX_DTYPE_U8, at[5], (int64_t)w.n_row * d / 32, EXACT);
            same_state(what, &w);
        }
    }
}

/* The products of queries and window rows in the same launch as all else: the bits of two launches,
 * again and again, since its blocks meet. */
static void latents_with_products(int n_in, int d, int n_q, int repeat)
{
    static const int counts[] = {1, 2, 6, 8};
    for (int c = 0; c < 4; c++) {
        const int past = 40, n = counts[c];
        begin();
        struct world w = make_world(1, d, 80, 1, &past, &n, NORMAL);
        size_t x = bf16s((int64_t)n * n_in, NORMAL, 1), code[2], scale[2];
        for (int i = 0; i < 2; i++) {
            int64_t n_out = i ? n_q : d;
            code[i] = e4m3s(n_out * n_in);
            scale[i] = bytes((n_out + 31) / 32 * (n_in / 32), 115, 122);
        }
        size_t q_norm = bf16s(n_q, NORMAL, 1), kv_norm = bf16s(d, NORMAL, 1),
               freq = frequencies(d / 4), q = take((size_t)(n * n_q) * 2),
               kv = take((size_t)(n * d) * 2), codes = take((size_t)(n * d)),
               scales = take((size_t)(n * d / 32));
        send_world(&w);
        struct hx_batch b = batch_of(CARD, &w, 0, n);
        struct hx_tensor tx = at_side(CARD, HX_DTYPE_BF16, x, n, n_in, 0),
                         tq = at_side(CARD, HX_DTYPE_BF16, q, n, n_q, 0),
                         tkv = at_side(CARD, HX_DTYPE_BF16, kv, n, d, 0),
                         tc = at_side(CARD, HX_DTYPE_U8, codes, n, d, 0),
                         ts = at_side(CARD, HX_DTYPE_U8, scales, n, d / 32, 0),
                         tf = at_side(CARD, HX_DTYPE_F32, freq, d / 4, 0, 0);
        struct hx_weight nq = dense(CARD, HX_DTYPE_BF16, q_norm, 1, n_q),
                         nkv = dense(CARD, HX_DTYPE_BF16, kv_norm, 1, d),
                         of[2] = {fp8(CARD, code[0], scale[0], d, n_in),
                                  fp8(CARD, code[1], scale[1], n_q, n_in)};
        const struct hx_weight *const both[2] = {&of[0], &of[1]};
        struct hx_tensor *const to[2] = {&tkv, &tq};
        struct hx_latents_args a = {&b,  0,   &tq, &tkv, &nq,  &nkv, 1e-6f,
                                    &tf, &tc, &ts, NULL, NULL, NULL};
        RUN(CARD, linear_pair, both, &tx, to);
        RUN(CARD, latents, &a);
        sync_side(CARD);
        const size_t at[4] = {q, kv, codes, scales},
                     row[4] = {(size_t)n_q * 2, (size_t)d * 2, (size_t)d, (size_t)d / 32};
        struct rows want[4];
        for (int i = 0; i < 4; i++)
            want[i] = keep(at[i], row[i], n);
        a.w = both;
        a.x = &tx;
        for (int k = 0; k < repeat; k++) {
            RUN(CARD, latents, &a);
            if (k % 20 != 0 && k != repeat - 1)
                continue;
            sync_side(CARD);
            char what[96];
            snprintf(what, sizeof(what), "latents with products, %d of %d, launch %d", n, n_in, k);
            for (int r = 0; r < n; r++) {
                for (int i = 0; i < 4; i++)
                    same_row_at(what, &want[i], at[i] + (size_t)r * row[i], r);
            }
        }
        for (int i = 0; i < 4; i++)
            free(want[i].all);
    }
}

static void test_latents_with_products(void **state)
{
    (void)state;
    latents_with_products(128, 64, 64, 10);
}

static void latents_again_and_again(void **state)
{
    (void)state;
    latents_with_products(5120, 512, 1280, 300);
    latents_with_products(1024, 512, 160, 300);
}

static void test_index_queries(void **state)
{
    (void)state;
    static const int shapes[][2] = {{4, 32}, {32, 128}, {5, 64}, {1, 96}};
    char what[96];
    for (int r = 0; r < N_ROW_COUNTS; r++) {
        for (int k = 0; k < N_KINDS; k++) {
            int n = row_counts[r], h = shapes[(r + k) % 4][0], d = shapes[(r + k) % 4][1];
            int64_t all = (int64_t)n * h * d;
            begin();
            size_t q = bf16s(all, (enum kind)k, 1), codes = take((size_t)all / 2),
                   scales = take((size_t)all / 32), pos = take((size_t)n * 8),
                   freq = frequencies(d / 4);
            for (int i = 0; i < n; i++)
                ((int64_t *)(host + pos))[i] = (int64_t)(hx_rng_next(&rng) % 1000000);
            send();
            for (int s = 0; s < N_SIDES; s++) {
                enum side at = (enum side)s;
                const int64_t *positions = (const int64_t *)(side[s].base + pos);
                struct hx_tensor tq = at_side(at, HX_DTYPE_BF16, q, n, h, d),
                                 tc = at_side(at, HX_DTYPE_U8, codes, n, h, d / 2),
                                 ts = at_side(at, HX_DTYPE_U8, scales, n, h, d / 32),
                                 tf = at_side(at, HX_DTYPE_F32, freq, d / 4, 0, 0);
                if (side[s].be->kernels->index_queries) {
                    RUN(s, index_queries, &tq, positions, &tf, &tc, &ts);
                } else {
                    RUN(s, rope, &tq, positions, &tf, false);
                    RUN(s, quantise, HX_GRID_FP4_B32, &tq, &tc, &ts, &tq);
                }
                CHECK(side[s].be->sync(side[s].dev, ERR));
            }
            snprintf(what, sizeof(what), "index_queries, %s, %d rows, %d x %d", kind_name[k], n, h,
                     d);
            same(what, HX_DTYPE_BF16, q, all, EXACT);
            same(what, HX_DTYPE_U8, codes, all / 2, EXACT);
            same(what, HX_DTYPE_U8, scales, all / 32, EXACT);
        }
    }
}

/* ---- attention ---- */

struct attend_case {
    const char *name;
    int n_head, d, window, topk, block; /* topk 0: window only */
    struct pass pass;
    enum kind kind;
};

static const struct attend_case attend_cases[] = {
    {"first token", 8, 64, 16, 0, 0, {1, {0}, {1}}, NORMAL},
    {"a start of nine", 16, 512, 128, 0, 0, {1, {0}, {9}}, NORMAL},
    {"released, one row", 16, 512, 128, 512, 0, {1, {700}, {1}}, NORMAL},
    {"released, six rows", 16, 512, 128, 512, 0, {1, {1001}, {6}}, OUTLIERS},
    {"released, a rank's heads", 32, 512, 128, 512, 0, {2, {300, 640}, {1, 1}}, NORMAL},
    {"tiny", 8, 64, 16, 8, 0, {3, {5, 90, 0}, {3, 2, 4}}, NORMAL},
    {"tiny, ties", 8, 64, 16, 8, 0, {3, {40, 90, 17}, {3, 2, 3}}, TIES},
    {"17 heads", 17, 128, 32, 40, 0, {2, {100, 31}, {4, 3}}, NORMAL},
    {"one head, outliers", 1, 256, 24, 33, 0, {1, {130}, {16}}, OUTLIERS},
    {"denormals", 5, 128, 32, 31, 0, {2, {64, 1}, {5, 4}}, DENORMALS},
    {"zeros", 4, 64, 16, 7, 0, {1, {50}, {7}}, ZEROS},
    {"odd width", 3, 96, 20, 9, 0, {2, {77, 3}, {3, 5}}, NORMAL},
    {"prime window", 8, 64, 61, 67, 0, {1, {200}, {31}}, NORMAL},
    {"48 rows", 8, 512, 128, 512, 0, {4, {900, 127, 128, 0}, {12, 12, 12, 12}}, NORMAL},
    {"drafts", 8, 64, 16, 0, 5, {3, {100, 3, 40}, {5, 5, 5}}, NORMAL},
    {"drafts, released", 16, 512, 128, 0, 5, {2, {1000, 60}, {5, 5}}, OUTLIERS},
};

struct attend_run {
    const struct attend_case *c;
    struct world w;
    size_t q, codes, scales, sel, sink, freq, o;
};

/* Rows first .. first + n - 1. The CPU turns queries and outputs apart. */
static void run_attend(enum side s, const struct attend_run *r, int first, int n)
{
    const struct attend_case *c = r->c;
    int64_t row = (int64_t)c->n_head * c->d;
    int n_freq = c->d / 8;
    struct hx_batch b = batch_of(s, &r->w, first, n);
    bool rotates = side[s].be->kernels->rotates;
    struct hx_tensor q = at_side(s, HX_DTYPE_BF16, r->q + (size_t)(first * row) * 2, n, c->n_head,
                                 c->d),
                     o = at_side(s, HX_DTYPE_BF16, r->o + (size_t)(first * row) * 2, n, c->n_head,
                                 c->d),
                     codes = at_side(s, HX_DTYPE_U8, r->codes, r->w.n_row, c->d, 0),
                     scales = at_side(s, HX_DTYPE_U8, r->scales, r->w.n_row, c->d / 32, 0),
                     sel = at_side(s, HX_DTYPE_I32, r->sel + (size_t)(first * c->topk) * 4, n,
                                   c->topk ? c->topk : 1, 0),
                     freq = at_side(s, HX_DTYPE_F32, r->freq, n_freq, 0, 0);
    struct hx_weight sink = dense(s, HX_DTYPE_F32, r->sink, 1, c->n_head);
    if (!rotates)
        RUN(s, rope, &q, b.pos, &freq, false);
    RUN(s, attend,
        &(struct hx_attend_args){.batch = &b,
                                 .layer = 0,
                                 .source = c->topk ? 0 : -1,
                                 .window = c->window,
                                 .block = c->block,
                                 .q = &q,
                                 .fresh_codes = &codes,
                                 .fresh_scales = &scales,
                                 .sel = &sel,
                                 .sink = &sink,
                                 .scale = (float)pow(c->d, -0.5),
                                 .freq = rotates ? &freq : NULL,
                                 .o = &o});
    if (!rotates)
        RUN(s, rope, &o, b.pos, &freq, true);
    CHECK(side[s].be->sync(side[s].dev, ERR));
}

/* Rising rows, more or fewer for each row of the pass, -1 behind them. */
static void choose_rows(const struct attend_run *r, int n_comp)
{
    int topk = r->c->topk;
    for (int t = 0; t < r->w.n_row; t++) {
        int32_t *sel = (int32_t *)(host + r->sel) + (int64_t)t * topk;
        int want = t % 4 == 3 ? t * 7 % (topk + 1) : topk, n = 0;
        for (int j = 0; j < n_comp; j++) {
            if (hx_rng_next(&rng) % (uint64_t)(n_comp - j) < (uint64_t)(want - n))
                sel[n++] = j;
        }
        for (; n < topk; n++)
            sel[n] = -1;
    }
}

/* A NaN in the query of a row: that head is no number, other rows keep their bits. */
static void bad_row(const struct attend_run *r, const struct rows *all)
{
    const struct attend_case *c = r->c;
    int64_t row = (int64_t)c->n_head * c->d;
    int at = r->w.n_row / 2;
    uint16_t nan = 0x7FC0;
    put(CARD, r->q, host + r->q, (size_t)(r->w.n_row * row) * 2);
    put(CARD, r->q + (size_t)(at * row) * 2, &nan, 2);
    run_attend(CARD, r, 0, r->w.n_row);
    uint16_t *o = fetch(CARD, r->o, (size_t)(r->w.n_row * row) * 2);
    for (int t = 0; t < r->w.n_row; t++) {
        bool same_bits = memcmp(o + t * row, all->all + (size_t)t * all->row, all->row) == 0;
        if (t == at && isfinite(value16(o[t * row])))
            fail_msg("row %d is finite behind a NaN", t);
        if (t != at && !same_bits)
            fail_msg("row %d differs beside a NaN", t);
    }
    free(o);
}

static void test_attend(void **state)
{
    const struct attend_case *c = *state;
    struct attend_run r = {.c = c};
    int n_page = c->topk ? (c->topk + 200 + PER - 1) / PER : 1;
    begin();
    r.w = make_world(c->pass.n_seq, c->d, c->window + c->block + 3, n_page, c->pass.past,
                     c->pass.rows, c->kind);
    int n = r.w.n_row;
    int64_t row = (int64_t)c->n_head * c->d;
    r.q = bf16s(n * row, c->kind, 1);
    r.codes = e4m3s((int64_t)n * c->d);
    r.scales = bytes((int64_t)n * c->d / 32, 118, 120);
    r.sel = take((size_t)(n * c->topk) * 4);
    r.sink = floats(c->n_head, NORMAL, 2);
    r.freq = frequencies(c->d / 8);
    r.o = take((size_t)(n * row) * 2);
    choose_rows(&r, n_page * PER);
    send_world(&r.w);
    for (int s = 0; s < N_SIDES; s++)
        run_attend((enum side)s, &r, 0, n);
    uint16_t *want = fetch(CPU, r.o, (size_t)(n * row) * 2),
             *got = fetch(CARD, r.o, (size_t)(n * row) * 2);
    print_message("attend, %s: %d rows, %d heads of %d: %.2g\n", c->name, n, c->n_head, c->d,
                  distance(HX_DTYPE_BF16, got, want, n * row));
    free(want);
    free(got);
    same(c->name, HX_DTYPE_BF16, r.o, n * row, ACTIVATION);
    struct rows all = keep(r.o, (size_t)row * 2, n);
    for (int i = 0; i<n; i += n> 8 ? 5 : 1) {
        put(CARD, r.q, host + r.q, (size_t)(n * row) * 2);
        run_attend(CARD, &r, i, 1);
        same_row_at(c->name, &all, r.o + (size_t)(i * row) * 2, i);
    }
    bad_row(&r, &all);
    free(all.all);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest single[] = {
        cmocka_unit_test(test_kv_store),
        cmocka_unit_test(test_pool_groups),
        cmocka_unit_test(test_latents),
        cmocka_unit_test(test_latents_with_products),
        cmocka_unit_test(latents_again_and_again),
        cmocka_unit_test(test_index_queries),
    };
    enum {
        N = sizeof(attend_cases) / sizeof(attend_cases[0]),
        M = sizeof(single) / sizeof(single[0])
    };
    struct CMUnitTest tests[M + N];
    static char names[N][48];
    memcpy(tests, single, sizeof(single));
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "attend, %s", attend_cases[i].name);
        tests[M + i] = (struct CMUnitTest){.name = names[i],
                                           .test_func = test_attend,
                                           .initial_state = (void *)(uintptr_t)&attend_cases[i]};
    }
    return run_sides("attend", tests, M + N, argc, argv);
}
