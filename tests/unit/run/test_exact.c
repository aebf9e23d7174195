/* The same bits however a sequence is computed: chunks, batches, cuts, the prefill short cut. */
#include "golden.h"

#define N_TOK 130
#define VOCAB 512

/* A prompt long enough to wrap the ring and to exceed top-k and candidate pool. */
static void make_prompt(int32_t *tokens, int n, uint32_t seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = 3 + (int32_t)(seed >> 16) % 470;
    }
    for (int i = 40; i + 8 < n; i += 23) /* repeats, so that n-grams and selections recur */
        memcpy(tokens + i, tokens + i / 2, 8 * sizeof(*tokens));
}

static float *logits_new(int n)
{
    float *l = malloc((size_t)n * VOCAB * sizeof(*l));
    assert_non_null(l);
    return l;
}

static void same_row(const float *a, const float *b)
{
    assert_memory_equal(a, b, VOCAB * sizeof(*a));
}

/* Every stored row of two sequences of the same length, window rows as far as the ring goes. */
static void same_state(struct hx_rank *r, struct hx_kv_seq *a, struct hx_kv_seq *b)
{
    const struct hx_hparams *h = hx_rank_hparams(r);
    const struct hx_maps *maps = hx_model_maps(hx_rank_model(r));
    const struct hx_kv_view *va = hx_kv_seq_view(a), *vb = hx_kv_seq_view(b);
    int64_t n = hx_kv_seq_len(a);
    assert_int_equal(n, hx_kv_seq_len(b));
    for (int il = 0; il < h->n_layer; il++) {
        const struct hx_kv_stream *wa = &va->window[il], *wb = &vb->window[il];
        for (int64_t p = n > wa->ring ? n - wa->ring : 0; p < n; p++) {
            assert_memory_equal(hx_kv_row_data(wa, p), hx_kv_row_data(wb, p), wa->data_bytes);
            assert_memory_equal(hx_kv_row_scale(wa, p), hx_kv_row_scale(wb, p), wa->scale_bytes);
        }
        if (!maps->is_kv_source[il])
            continue;
        for (int64_t j = 0; j < n / h->ratio[il]; j++) {
            const struct hx_kv_stream *ca = &va->comp[il], *cb = &vb->comp[il];
            const struct hx_kv_stream *ka = &va->key[il], *kb = &vb->key[il];
            assert_memory_equal(hx_kv_row_data(ca, j), hx_kv_row_data(cb, j), ca->data_bytes);
            assert_memory_equal(hx_kv_row_scale(ca, j), hx_kv_row_scale(cb, j), ca->scale_bytes);
            assert_memory_equal(hx_kv_row_data(ka, j), hx_kv_row_data(kb, j), ka->data_bytes);
            assert_memory_equal(hx_kv_row_scale(ka, j), hx_kv_row_scale(kb, j), ka->scale_bytes);
        }
        if (h->ratio[il] > 1 && n % 2)
            assert_memory_equal(va->open[il] + (n - 1) % 8 * 2 * h->head_dim,
                                vb->open[il] + (n - 1) % 8 * 2 * h->head_dim,
                                (size_t)h->head_dim * 2 * sizeof(float));
    }
}

static void ignore(void *user, const char *name, int layer, const struct hx_tensor *t)
{
    (void)name;
    (void)layer;
    (void)t;
    ++*(int *)user;
}

/* All logits of a prompt in one pass over all rows: what everything else is compared with. */
static struct hx_kv_seq *whole(struct hx_rank *r, const int32_t *tokens, int n, float *logits)
{
    struct hx_kv_seq *s = seq_new(r);
    struct hx_step_seq q = {.kv = s, .tokens = tokens, .n_tok = n, .n_logits = n};
    int n_taps = 0;
    CHECK(hx_rank_step(r, &q, 1, logits, ignore, &n_taps, ERR));
    assert_true(n_taps > 100);
    assert_int_equal(hx_rank_layer_rows(r), (int64_t)n * hx_rank_hparams(r)->n_layer);
    return s;
}

static void chunks(enum hx_mode mode, int n)
{
    static const int size[] = {1, 2, 3, 7, 16, 33, 97};
    struct hx_rank *r = rank_open(MODEL_DIR, mode, 0);
    int32_t tokens[N_TOK];
    float *want = logits_new(n), *got = logits_new(n);
    make_prompt(tokens, n, 1);
    struct hx_kv_seq *a = whole(r, tokens, n, want);
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
        struct hx_kv_seq *b = seq_new(r);
        for (int at = 0; at < n; at += size[i]) {
            int m = n - at < size[i] ? n - at : size[i];
            feed(r, b, tokens + at, m, m, got + (int64_t)at * VOCAB);
        }
        assert_memory_equal(got, want, (size_t)n * VOCAB * sizeof(*got));
        same_state(r, a, b);
        hx_kv_seq_free(b);
    }
    hx_kv_seq_free(a);
    hx_rank_close(r);
    free(want);
    free(got);
}

static void test_chunks(void **state)
{
    (void)state;
    chunks(HX_MODE_W8A16, N_TOK);
}

static void test_chunks_reference(void **state)
{
    (void)state;
    chunks(HX_MODE_REFERENCE, 60);
}

/* Prefill for the last row alone, in one pass and in chunks, then decode. */
static void test_short_cut(void **state)
{
    (void)state;
    enum { N = 150, MORE = 6 };
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    int32_t tokens[N + MORE];
    float *want = logits_new(N + MORE), row[VOCAB];
    make_prompt(tokens, N + MORE, 2);
    struct hx_kv_seq *a = whole(r, tokens, N, want);
    for (int i = 0; i < MORE; i++)
        feed(r, a, tokens + N + i, 1, 1, want + (int64_t)(N + i) * VOCAB);
    static const int size[] = {N, 100, 64, 31};
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
        struct hx_kv_seq *b = seq_new(r), *full = seq_new(r);
        float *unused = logits_new(N);
        int64_t rows = 0;
        for (int at = 0; at < N; at += size[i]) {
            int m = N - at < size[i] ? N - at : size[i], last = at + m == N;
            feed(r, b, tokens + at, m, last, row);
            rows += hx_rank_layer_rows(r);
        }
        print_message("chunks of %d: %lld of %d layer rows\n", size[i], (long long)rows, 10 * N);
        assert_true(rows < 10 * N);
        same_row(row, want + (int64_t)(N - 1) * VOCAB);
        hx_kv_seq_free(full);
        full = whole(r, tokens, N, unused);
        same_state(r, full, b); /* rings are complete: any later cut or snapshot is exact */
        for (int t = 0; t < MORE; t++) {
            feed(r, b, tokens + N + t, 1, 1, row);
            same_row(row, want + (int64_t)(N + t) * VOCAB);
        }
        same_state(r, a, b);
        hx_kv_seq_free(b);
        hx_kv_seq_free(full);
        free(unused);
    }
    hx_kv_seq_free(a);
    hx_rank_close(r);
    free(want);
}

/* Eight sequences of different lengths step together, each with its own chunk size. */
static void test_batch(void **state)
{
    (void)state;
    enum { N_SEQ = 8 };
    static const int len[N_SEQ] = {1, 5, 17, 40, 66, 97, 128, 31};
    static const int size[N_SEQ] = {1, 2, 17, 9, 33, 20, 64, 1};
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    static int32_t tokens[N_SEQ][N_TOK];
    float *want[N_SEQ], *batch = logits_new(256);
    struct hx_kv_seq *alone[N_SEQ], *together[N_SEQ];
    for (int i = 0; i < N_SEQ; i++) {
        make_prompt(tokens[i], len[i], 10 + (uint32_t)i);
        want[i] = logits_new(len[i]);
        hx_kv_seq_free(whole(r, tokens[i], len[i], want[i]));
        together[i] = seq_new(r);
    }
    for (int left = N_SEQ; left > 0;) {
        struct hx_step_seq q[N_SEQ];
        int who[N_SEQ], n = 0;
        left = 0;
        for (int i = 0; i < N_SEQ; i++) {
            int at = (int)hx_kv_seq_len(together[i]);
            int m = len[i] - at < size[i] ? len[i] - at : size[i];
            if (m == 0)
                continue;
            left += at + m < len[i];
            who[n] = i;
            q[n++] = (struct hx_step_seq){
                .kv = together[i], .tokens = tokens[i] + at, .n_tok = m, .n_logits = 1};
        }
        if (n == 0)
            break;
        CHECK(hx_rank_step(r, q, n, batch, NULL, NULL, ERR));
        for (int i = 0; i < n; i++)
            same_row(batch + (int64_t)i * VOCAB,
                     want[who[i]] + (hx_kv_seq_len(together[who[i]]) - 1) * VOCAB);
    }
    for (int i = 0; i < N_SEQ; i++) {
        float *l = logits_new(len[i]);
        alone[i] = whole(r, tokens[i], len[i], l);
        same_state(r, alone[i], together[i]);
        hx_kv_seq_free(alone[i]);
        hx_kv_seq_free(together[i]);
        free(want[i]);
        free(l);
    }
    free(batch);
    hx_rank_close(r);
}

/* A second prompt that shares the first n tokens starts from the snapshot at n. */
static void test_prefix(void **state)
{
    (void)state;
    enum { N = 60 };
    int32_t tokens[N];
    float *want = logits_new(N), row[VOCAB];
    make_prompt(tokens, N, 3);
    static const int cuts[] = {1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 40, 45};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        int cut = cuts[i];
        struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
        struct hx_kv_seq *full = whole(r, tokens, N, want);
        struct hx_kv_seq *a = seq_new(r), *b = seq_new(r);
        feed(r, a, tokens, cut, 0, NULL);
        hx_kv_prefix_publish(a);
        hx_kv_seq_free(a);
        assert_int_equal(hx_kv_prefix_restore(b, tokens, N), cut);
        feed(r, b, tokens + cut, N - cut, 1, row);
        same_row(row, want + (int64_t)(N - 1) * VOCAB);
        same_state(r, full, b);
        hx_kv_seq_free(full);
        hx_kv_seq_free(b);
        hx_rank_close(r);
    }
    free(want);
}

/* Verification: 1 to 6 rows behind a prompt, 0 to all of them kept, then plain decode. */
static void test_truncate(void **state)
{
    (void)state;
    enum { N = 61 };
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    int32_t tokens[N + 16], wrong[6] = {400, 401, 402, 403, 404, 405};
    float *want = logits_new(N + 16), row[6 * VOCAB];
    make_prompt(tokens, N + 16, 4);
    hx_kv_seq_free(whole(r, tokens, N + 16, want));
    for (int start = N - 1; start <= N; start++) { /* odd and even */
        for (int n = 1; n <= 6; n += start % 2 ? 5 : 1) {
            for (int kept = 0; kept <= n; kept++) {
                struct hx_kv_seq *s = seq_new(r);
                int32_t rows[6];
                feed(r, s, tokens, start, 0, NULL); /* the short cut is on */
                for (int i = 0; i < n; i++)
                    rows[i] = i < kept ? tokens[start + i] : wrong[i];
                feed(r, s, rows, n, n, row);
                for (int i = 0; i < kept; i++)
                    same_row(row + i * VOCAB, want + (int64_t)(start + i) * VOCAB);
                CHECK(hx_kv_seq_truncate(s, start + kept, ERR));
                for (int i = start + kept; i < start + kept + 3; i++) {
                    feed(r, s, tokens + i, 1, 1, row);
                    same_row(row, want + (int64_t)i * VOCAB);
                }
                hx_kv_seq_free(s);
            }
        }
    }
    hx_rank_close(r);
    free(want);
}

/* A cut as far back as the open groups allow, right behind a prefill that used the short cut. */
static void test_truncate_prefill(void **state)
{
    (void)state;
    enum { N = 120, BACK = 8 };
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    int32_t tokens[N];
    float *want = logits_new(N), row[VOCAB];
    make_prompt(tokens, N, 5);
    hx_kv_seq_free(whole(r, tokens, N, want));
    for (int back = 1; back <= BACK; back++) {
        struct hx_kv_seq *s = seq_new(r);
        feed(r, s, tokens, N, 1, row);
        same_row(row, want + (int64_t)(N - 1) * VOCAB);
        CHECK(hx_kv_seq_truncate(s, N - back, ERR));
        for (int i = N - back; i < N; i++) {
            feed(r, s, tokens + i, 1, 1, row);
            same_row(row, want + (int64_t)i * VOCAB);
        }
        hx_kv_seq_free(s);
    }
    hx_rank_close(r);
    free(want);
}

/* An image span cut anywhere: flags and rows of the span belong to their chunk, the n-gram hash
 * looks back across the cut. */
static void test_image_chunks(void **state)
{
    (void)state;
    static const int size[] = {1, 4, 9, 23};
    struct hx_st_file *f = golden_open(GOLDEN_FILE);
    struct hx_rank *r = rank_open(MODEL_DIR, HX_MODE_W8A16, 0);
    const struct hx_st_tensor *t;
    int32_t *tokens = golden_get(f, &t, "pimg.tokens");
    int n = (int)t->ne[0], width = hx_rank_hparams(r)->n_embd;
    int32_t *types = golden_get(f, &t, "pimg.types");
    uint16_t *span = golden_get(f, &t, "pimg.span");
    float *want = golden_get(f, &t, "pimg.w8a16.logits"), *got = logits_new(n);
    uint8_t dead[32];
    uint16_t *embeds = calloc((size_t)(n * width), 2);
    assert_true(n <= 32 && embeds);
    for (int i = 0, at = 0; i < n; i++) {
        dead[i] = types[i] >= 0;
        if (dead[i])
            memcpy(embeds + i * width, span + at++ * width, (size_t)width * 2);
    }
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
        struct hx_kv_seq *s = seq_new(r);
        for (int at = 0; at < n; at += size[i]) {
            int m = n - at < size[i] ? n - at : size[i];
            struct hx_step_seq q = {.kv = s,
                                    .tokens = tokens + at,
                                    .dead = dead + at,
                                    .n_tok = m,
                                    .n_logits = m,
                                    .embeds = embeds + at * width};
            CHECK(hx_rank_step(r, &q, 1, got + (int64_t)at * VOCAB, NULL, NULL, ERR));
        }
        assert_memory_equal(got, want, (size_t)n * VOCAB * sizeof(*got));
        hx_kv_seq_free(s);
    }
    free(tokens);
    free(types);
    free(span);
    free(want);
    free(got);
    free(embeds);
    hx_rank_close(r);
    hx_st_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),           cmocka_unit_test(test_chunks_reference),
        cmocka_unit_test(test_short_cut),        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_prefix),           cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_truncate_prefill), cmocka_unit_test(test_image_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
