/* Compressor pooling, index scores, candidate blocks, top-k (spec model.md 3.5, 3.6). */
#include <stdlib.h>

#include "backend/cpu/cpu.h"

/* ---- choice ---- */

/* a is a worse choice than b: lower score, or the same score (-0.0 = +0.0) and a higher index. */
static bool worse(const float *score, int32_t a, int32_t b)
{
    return score[a] != score[b] ? score[a] < score[b] : a > b;
}

/* Heap with the worst choice on top. */
static void sift_down(const float *score, int32_t *heap, int n, int at)
{
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n)
            return;
        if (child + 1 < n && worse(score, heap[child + 1], heap[child]))
            child++;
        if (!worse(score, heap[child], heap[at]))
            return;
        int32_t t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

int hx_top_indices(const float *score, int64_t n, int k, int32_t *idx)
{
    int have = 0;
    bool heap = false;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(score[i]))
            return -EDOM;
        if (score[i] == -INFINITY)
            continue;
        if (have < k) {
            idx[have++] = (int32_t)i;
            continue;
        }
        if (!heap) {
            for (int at = k / 2 - 1; at >= 0; at--)
                sift_down(score, idx, k, at);
            heap = true;
        }
        if (worse(score, idx[0], (int32_t)i)) {
            idx[0] = (int32_t)i;
            sift_down(score, idx, k, 0);
        }
    }
    if (heap)
        qsort(idx, (size_t)have, sizeof(*idx), ascending);
    return have;
}

int hx_candidate_blocks(const float *score, int64_t n, int block, int n_keep, float *work,
                        int32_t *blocks)
{
    int64_t n_block = (n + block - 1) / block;
    if (n == 0)
        return 0;
    for (int64_t b = 0; b < n_block; b++) {
        float best = -INFINITY;
        for (int64_t i = b * block; i < (b + 1) * block && i < n; i++) {
            if (isnan(score[i]))
                return -EDOM;
            best = score[i] > best ? score[i] : best;
        }
        work[b] = best;
    }
    work[(n - 1) / block] = INFINITY; /* the newest row's block is pinned */
    return hx_top_indices(work, n_block, n_keep, blocks);
}

/* ---- scores ---- */

float hx_index_score(const double *q, const float *w, const double *key, int n_head, int d,
                     float factor, bool reference)
{
    double sum = 0;
    for (int h = 0; h < n_head; h++) {
        float dot = (float)hx_dot(q + h * d, key, d);
        if (reference)
            dot = hx_bf16_round(dot);
        dot = dot > 0 ? dot : isnan(dot) ? dot : 0.0f;
        float wh = reference ? hx_bf16_round(w[h] * factor) : w[h];
        float p = dot * wh;
        sum += (double)(reference ? hx_bf16_round(p) : p);
    }
    return reference ? hx_bf16_round((float)sum) : (float)sum * factor;
}

struct row_scores {
    float *score; /* [V] */
    float *work;  /* [blocks] */
    int32_t *idx;
};

static void score_row(const struct hx_index_args *a, int t, int64_t n_visible, double *q, float *w,
                      double *key, float *key_f, float *score)
{
    int n_head = (int)a->q->ne[1], d = (int)a->q->ne[2];
    const struct hx_kv_stream *keys = &a->batch->kv[a->batch->seq[t]]->key[a->source];
    hx_bf16_to_double(hx_u16(a->q) + (int64_t)t * n_head * d, n_head * d, q);
    hx_bf16_to_float(hx_u16(a->w) + (int64_t)t * n_head, n_head, w);
    for (int64_t j = 0; j < n_visible; j++) {
        hx_dequant_fp4_b32(hx_kv_row_data(keys, j), hx_kv_row_scale(keys, j), d, key_f);
        for (int i = 0; i < d; i++)
            key[i] = (double)key_f[i];
        score[j] = hx_index_score(q, w, key, n_head, d, a->factor, a->reference);
    }
}

/* Masks rows outside the kept blocks. */
static void mask_outside(float *score, int64_t n, int block, const int32_t *kept, int n_kept)
{
    int at = 0;
    for (int64_t b = 0; b * block < n; b++) {
        if (at < n_kept && kept[at] == b) {
            at++;
            continue;
        }
        for (int64_t i = b * block; i < (b + 1) * block && i < n; i++)
            score[i] = -INFINITY;
    }
}

static void put_padded(int32_t *to, int64_t width, const int32_t *idx, int n)
{
    for (int64_t i = 0; i < width; i++)
        to[i] = i < n ? idx[i] : -1;
}

static int select_row(const struct hx_index_args *a, int t, int64_t n_visible, struct row_scores *s)
{
    int n;
    if (a->score) {
        int64_t width = a->score->ne[1];
        float *to = hx_f32(a->score) + t * width;
        for (int64_t j = 0; j < width; j++)
            to[j] = j < n_visible ? s->score[j] : -INFINITY;
    }
    int32_t *cand = a->cand ? hx_i32(a->cand) + (int64_t)t * a->n_cand : NULL;
    if (a->write_cand) {
        n = hx_candidate_blocks(s->score, n_visible, a->cand_block, a->n_cand, s->work, s->idx);
        if (n < 0)
            return n;
        put_padded(cand, a->n_cand, s->idx, n);
    } else if (a->read_cand) {
        n = 0;
        while (n < a->n_cand && cand[n] >= 0)
            n++;
        mask_outside(s->score, n_visible, a->cand_block, cand, n);
    }
    n = hx_top_indices(s->score, n_visible, a->topk, s->idx);
    if (n < 0)
        return n;
    put_padded(hx_i32(a->sel) + (int64_t)t * a->topk, a->topk, s->idx, n);
    return 0;
}

int hx_cpu_index_select(struct hx_device *dev, const struct hx_index_args *a, struct hx_error *err)
{
    size_t mark = dev->used;
    int n_head = (int)a->q->ne[1], d = (int)a->q->ne[2];
    int64_t most = 1;
    for (int t = 0; t < a->batch->n_row; t++) {
        int64_t v = (a->batch->pos[t] + 1) / a->ratio;
        most = v > most ? v : most;
    }
    int n_idx = a->topk > a->n_cand ? a->topk : a->n_cand;
    double *q = hx_scratch(dev, (size_t)(n_head * d) * 8, err);
    double *key = q ? hx_scratch(dev, (size_t)d * 8, err) : NULL;
    float *w = key ? hx_scratch(dev, (size_t)n_head * 4, err) : NULL;
    float *key_f = w ? hx_scratch(dev, (size_t)d * 4, err) : NULL;
    struct row_scores s = {0};
    s.score = key_f ? hx_scratch(dev, (size_t)most * 4, err) : NULL;
    s.work = s.score ? hx_scratch(dev, (size_t)most * 4, err) : NULL;
    s.idx = s.work ? hx_scratch(dev, (size_t)n_idx * 4, err) : NULL;
    if (!s.idx)
        return hx_scratch_fail(dev, mark);
    int r = 0;
    for (int t = 0; r == 0 && t < a->batch->n_row; t++) {
        int64_t n_visible = (a->batch->pos[t] + 1) / a->ratio;
        score_row(a, t, n_visible, q, w, key, key_f, s.score);
        r = select_row(a, t, n_visible, &s);
        if (r < 0)
            hx_fail(err, r, "index scores of row %d (position %lld): NaN", t,
                    (long long)a->batch->pos[t]);
    }
    hx_scratch_reset(dev, mark);
    return r;
}

/* ---- compressor ---- */

/* u or g (which = 0, 1) of position p: from this pass, or from the open-group store. */
static const float *open_row(const struct hx_batch *b, int source, int seq, int64_t p,
                             const struct hx_tensor *t, int which)
{
    int64_t d = t->ne[1];
    if (p >= b->first_pos[seq])
        return hx_f32(t) + (b->first_row[seq] + (p - b->first_pos[seq])) * d;
    return b->kv[seq]->open[source] + (p % 8 * 2 + which) * d;
}

int hx_cpu_pool_groups(struct hx_device *dev, const struct hx_batch *b, int source,
                       const struct hx_tensor *u, const struct hx_tensor *g, const int32_t *seq,
                       const int64_t *row, struct hx_tensor *lat, struct hx_error *err)
{
    (void)dev;
    (void)err;
    int64_t d = u->ne[1];
    for (int64_t i = 0; i < lat->ne[0]; i++) {
        const float *u0 = open_row(b, source, seq[i], 2 * row[i], u, 0);
        const float *u1 = open_row(b, source, seq[i], 2 * row[i] + 1, u, 0);
        const float *g0 = open_row(b, source, seq[i], 2 * row[i], g, 1);
        const float *g1 = open_row(b, source, seq[i], 2 * row[i] + 1, g, 1);
        for (int64_t c = 0; c < d; c++) {
            float max = g0[c] > g1[c] ? g0[c] : g1[c];
            float e0 = hx_exp32(g0[c] - max), e1 = hx_exp32(g1[c] - max);
            float den = e0 + e1;
            float acc = (e0 / den) * u0[c];
            acc = acc + (e1 / den) * u1[c];
            hx_u16(lat)[i * d + c] = hx_bf16(acc);
        }
    }
    /* Only now: the store's row of an open group may share its slot with a row of this pass. */
    for (int t = 0; t < b->n_row; t++) {
        float *to = b->kv[b->seq[t]]->open[source] + b->pos[t] % 8 * 2 * d;
        memcpy(to, hx_f32(u) + t * d, (size_t)d * 4);
        memcpy(to + d, hx_f32(g) + t * d, (size_t)d * 4);
    }
    return 0;
}
