/* What the drafter does with its base logits: the Markov head's correction, token after token, and
 * the confidence in each (spec dspark.md section 2, steps 6 and 7). */
#include "backend/cpu/cpu.h"

#include <string.h>

/* Largest logit, the lower id among equals; -1 if one is NaN or +inf. */
static int32_t best_token(const float *logits, int64_t n)
{
    int32_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(logits[i] < INFINITY))
            return -1;
        if (logits[i] > logits[best])
            best = (int32_t)i;
    }
    return best;
}

int hx_cpu_markov(struct hx_device *dev, const struct hx_markov_args *a, struct hx_error *err)
{
    int64_t n_block = a->base->ne[1], n_vocab = a->base->ne[2], rank = a->embed->n_in;
    for (int64_t s = 0; s < a->base->ne[0]; s++) {
        int64_t at = s * n_block + a->k;
        int32_t *token = hx_i32(a->tokens) + s * (n_block + 1) + a->k;
        uint16_t *latent = hx_u16(a->latent) + at * rank;
        float *logits = hx_f32(a->logits) + at * n_vocab;
        const float *base = hx_f32(a->base) + at * n_vocab;
        const uint16_t *embed = a->embed->part[HX_PART_DATA].data;
        memcpy(latent, embed + token[0] * rank, (size_t)rank * 2);
        int r = hx_product(dev, a->head, false, latent, 1, logits, err);
        if (r < 0)
            return r;
        for (int64_t i = 0; i < n_vocab; i++)
            logits[i] = base[i] + logits[i];
        token[1] = best_token(logits, n_vocab);
        if (token[1] < 0)
            return hx_fail(err, -EDOM, "draft %d: a logit is NaN or infinite", a->k + 1);
    }
    return 0;
}

int hx_cpu_best(struct hx_device *dev, const struct hx_tensor *logits, struct hx_tensor *tokens,
                struct hx_error *err)
{
    (void)dev;
    int64_t n_vocab = logits->ne[2];
    for (int64_t r = 0; r < logits->ne[0]; r++) {
        int32_t best = best_token(hx_f32(logits) + r * n_vocab, n_vocab);
        if (best < 0)
            return hx_fail(err, -EDOM, "row %lld with logits: one is NaN or infinite",
                           (long long)r);
        hx_i32(tokens)[2 * r + 1] = best;
    }
    return 0;
}

int hx_cpu_confidence(struct hx_device *dev, const struct hx_weight *w, const struct hx_tensor *h,
                      const struct hx_tensor *latent, struct hx_tensor *z, struct hx_error *err)
{
    size_t mark = dev->used;
    int64_t n = z->ne[0], d = h->ne[1], rank = w->n_in - d;
    uint16_t *row = hx_scratch(dev, (size_t)w->n_in * 2, err);
    int r = 0;
    if (!row)
        return hx_scratch_fail(dev, mark);
    for (int64_t t = 0; r == 0 && t < n; t++) {
        memcpy(row, hx_u16(h) + t * d, (size_t)d * 2);
        memcpy(row + d, hx_u16(latent) + t * rank, (size_t)rank * 2);
        r = hx_product(dev, w, false, row, 1, hx_f32(z) + t, err);
    }
    hx_scratch_reset(dev, mark);
    return r;
}
