/* One rank: device, model, forward pass, KV pool and Engram reader held together. */
#include "run/rank.h"

#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "run/feed.h"

struct hx_rank {
    struct hx_rank_options opt;
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_model *model;
    const struct hx_hparams *hp;
    struct hx_forward *fwd;
    struct hx_kv_pool *kv;
    struct hx_feed *feed;         /* NULL: a model without Engram */
    struct hx_feed_seq *feed_seq; /* [max_seq] */
    struct hx_forward_seq *seq;   /* [max_seq] */
    struct hx_draft_seq *draft;   /* [max_seq] */
    int *n_keep;                  /* [max_seq] */
    bool has_drafter;
    int32_t *token; /* [max_tok] */
    uint8_t *dead;
    int64_t *rows; /* [max_tok][cols], taps */
    uint8_t *codes[HX_MAX_ENGRAM], *scales[HX_MAX_ENGRAM];
};

static void report(const struct hx_rank_options *o, const char *stage, double fraction)
{
    if (o->progress)
        o->progress(o->user, stage, fraction);
}

static void weights_progress(void *user, double fraction)
{
    report(user, "weights", fraction);
}

static int open_engram(struct hx_rank *r, struct hx_error *err)
{
    struct hx_feed_options o = r->opt.engram;
    o.max_tok = r->opt.max_tok;
    o.max_seq = r->opt.max_seq;
    return hx_feed_open(r->model, &o, &r->feed, err);
}

/* Values around 1, for a model without tables. */
static void random_rows(uint8_t *codes, uint8_t *scales, size_t n)
{
    struct hx_rng g;
    hx_rng_seed(&g, 1);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(0x30 | (hx_rng_next(&g) & 0x8F)); /* 0.5 to 1.9, either sign */
    memset(scales, 126, n / 32);
}

static int open_arrays(struct hx_rank *r, struct hx_error *err)
{
    size_t n = (size_t)r->opt.max_tok, n_seq = (size_t)r->opt.max_seq;
    bool ok = (r->seq = calloc(n_seq, sizeof(*r->seq))) &&
              (r->draft = calloc(n_seq, sizeof(*r->draft))) &&
              (r->n_keep = calloc(n_seq, sizeof(*r->n_keep))) && (r->token = calloc(n, 4)) &&
              (r->dead = calloc(n, 1));
    size_t cols = (size_t)(r->hp->engram_ngram - 1) * (size_t)r->hp->engram_n_head,
           width = (size_t)r->hp->engram_dim;
    if (ok && r->feed)
        ok = (r->feed_seq = calloc(n_seq, sizeof(*r->feed_seq))) &&
             (r->rows = calloc(n * cols, sizeof(*r->rows)));
    for (int i = 0; ok && i < r->hp->n_engram; i++) {
        r->codes[i] = malloc(n * cols * width);
        r->scales[i] = malloc(n * cols * (width / 32));
        ok = r->codes[i] && r->scales[i];
        if (ok && !r->feed)
            random_rows(r->codes[i], r->scales[i], n * cols * width);
    }
    return ok ? 0 : hx_fail(err, -ENOMEM, "out of memory for passes of %zu rows", n);
}

int hx_rank_open(const struct hx_rank_options *opt, struct hx_rank **out, struct hx_error *err)
{
    struct hx_rank *r = calloc(1, sizeof(*r));
    if (!r)
        return hx_fail(err, -ENOMEM, "out of memory");
    r->opt = *opt;
    int e = 0;
    r->be = hx_backend_select(opt->backend, err);
    if (!r->be)
        e = -ENODEV;
    if (e == 0)
        e = r->be->open(0, &r->dev, err);
    if (e == 0) {
        struct hx_model_options mo = {r->be,   r->dev,     weights_progress,
                                      &r->opt, opt->slice, opt->synthetic};
        e = hx_model_open(opt->model_dir, &mo, &r->model, err);
    }
    if (e == 0) {
        r->hp = hx_model_hparams(r->model);
        r->has_drafter = opt->drafts && r->hp->n_draft_layer > 0;
        report(&r->opt, "memory", 0);
        e = hx_forward_open(r->model, r->be, r->dev, opt->comm, opt->mode, opt->max_tok,
                            opt->max_seq, opt->drafts, &r->fwd, err);
    }
    if (e == 0)
        e = hx_kv_pool_open(r->hp, hx_model_maps(r->model), r->be, r->dev, &opt->kv, &r->kv, err);
    if (e == 0 && r->hp->n_engram > 0 && !opt->synthetic)
        e = open_engram(r, err);
    if (e == 0)
        e = open_arrays(r, err);
    if (e < 0) {
        hx_rank_close(r);
        return e;
    }
    r->opt.progress = NULL; /* valid during the call only */
    *out = r;
    return 0;
}

void hx_rank_close(struct hx_rank *r)
{
    if (!r)
        return;
    hx_feed_close(r->feed);
    hx_kv_pool_close(r->kv);
    hx_forward_close(r->fwd);
    hx_model_close(r->model);
    if (r->dev)
        r->be->close(r->dev);
    for (int i = 0; i < HX_MAX_ENGRAM; i++) {
        free(r->codes[i]);
        free(r->scales[i]);
    }
    free(r->seq);
    free(r->draft);
    free(r->n_keep);
    free(r->token);
    free(r->dead);
    free(r->feed_seq);
    free(r->rows);
    free(r);
}

const struct hx_hparams *hx_rank_hparams(const struct hx_rank *r)
{
    return r->hp;
}

struct hx_model *hx_rank_model(struct hx_rank *r)
{
    return r->model;
}

struct hx_kv_pool *hx_rank_kv(struct hx_rank *r)
{
    return r->kv;
}

int64_t hx_rank_layer_rows(const struct hx_rank *r)
{
    return hx_forward_layer_rows(r->fwd);
}

/* ---- step ---- */

static int check_step(const struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs,
                      struct hx_error *err)
{
    int64_t n = 0;
    if (n_seqs < 1 || n_seqs > r->opt.max_seq)
        return hx_fail(err, -EINVAL, "step of %d sequences: expected 1 to %d", n_seqs,
                       r->opt.max_seq);
    for (int i = 0; i < n_seqs; i++) {
        int64_t past = hx_kv_seq_len(seqs[i].kv);
        if (seqs[i].n_tok < 1 || seqs[i].n_tok > r->opt.max_tok)
            return hx_fail(err, -EINVAL, "sequence %d of a step: %d rows: expected 1 to %d", i,
                           seqs[i].n_tok, r->opt.max_tok);
        if (r->opt.max_context > 0 && past > r->opt.max_context - seqs[i].n_tok)
            return hx_fail(err, -EINVAL,
                           "sequence %d of a step: %d tokens behind %lld exceed the context of "
                           "%lld",
                           i, seqs[i].n_tok, (long long)past, (long long)r->opt.max_context);
        n += seqs[i].n_tok;
    }
    if (n > r->opt.max_tok)
        return hx_fail(err, -EINVAL, "step of %lld rows: expected at most %d", (long long)n,
                       r->opt.max_tok);
    return 0;
}

/* The pass comes to a layer with Engram. */
static int wait_engram(void *user, int slot, struct hx_error *err)
{
    struct hx_rank *r = user;
    int e = hx_feed_rows(r->feed, slot, r->codes[slot], r->scales[slot], err);
    return e < 0 ? hx_wrap(err, e, "Engram rows of layer %d", r->hp->engram_layer[slot]) : 0;
}

static int begin_engram(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, int n_tok,
                        hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    for (int i = 0; i < n_seqs; i++)
        r->feed_seq[i] = (struct hx_feed_seq){seqs[i].kv, seqs[i].tokens, seqs[i].dead,
                                              seqs[i].n_tok, seqs[i].n_logits > 0};
    int e = hx_feed_begin(r->feed, r->feed_seq, n_seqs, err);
    for (int i = 0; e == 0 && tap && i < r->hp->n_engram; i++) {
        e = hx_feed_row_ids(r->feed, i, r->rows, err);
        if (e == 0)
            tap(tap_user, "engram.rows", r->hp->engram_layer[i],
                &(struct hx_tensor){
                    HX_DTYPE_I64, 2, {n_tok, hx_feed_n_cols(r->feed), 1, 1}, r->rows});
    }
    return e;
}

void hx_rank_want(struct hx_rank *r, enum hx_engram_class urgency, const struct hx_kv_seq *kv,
                  const int32_t *tokens, int64_t first, int n)
{
    if (r->feed && n > 0)
        hx_feed_want(r->feed, urgency, kv, tokens, first, n);
}

void hx_rank_forget(struct hx_rank *r, const struct hx_kv_seq *kv)
{
    if (r->feed)
        hx_feed_forget(r->feed, kv);
}

struct hx_engram_stream *hx_rank_engram(struct hx_rank *r)
{
    return r->feed ? hx_feed_stream(r->feed) : NULL;
}

static int step(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, float *logits,
                int32_t *best, hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    int e = check_step(r, seqs, n_seqs, err), n = 0;
    for (int i = 0; e == 0 && i < n_seqs; i++) {
        const struct hx_step_seq *s = &seqs[i];
        e = hx_kv_seq_reserve(s->kv, hx_kv_seq_len(s->kv) + s->n_tok, err);
        r->seq[i] = (struct hx_forward_seq){.kv = hx_kv_seq_view(s->kv),
                                            .n_past = hx_kv_seq_len(s->kv),
                                            .n_tok = s->n_tok,
                                            .n_logits = s->n_logits,
                                            .embeds = s->embeds};
        memcpy(r->token + n, s->tokens, (size_t)s->n_tok * 4);
        if (s->dead)
            memcpy(r->dead + n, s->dead, (size_t)s->n_tok);
        else
            memset(r->dead + n, 0, (size_t)s->n_tok);
        n += s->n_tok;
    }
    if (e < 0)
        return e;
    struct hx_forward_in in = {.n_seq = n_seqs,
                               .seq = r->seq,
                               .token = r->token,
                               .dead = r->dead,
                               .logits = logits,
                               .best = best,
                               .tap = tap,
                               .tap_user = tap_user};
    for (int i = 0; i < r->hp->n_engram; i++) {
        in.engram[i].codes = r->codes[i];
        in.engram[i].scales = r->scales[i];
    }
    if (r->feed) {
        in.engram_wait = wait_engram;
        in.engram_user = r;
        e = begin_engram(r, seqs, n_seqs, n, tap, tap_user, err);
    }
    if (e == 0)
        e = hx_forward_run(r->fwd, &in, err);
    if (r->feed)
        hx_feed_end(r->feed, e < 0);
    bool drafts = false;
    for (int i = 0; i < n_seqs; i++) {
        r->n_keep[i] = seqs[i].n_tok;
        drafts = drafts || seqs[i].n_draft > 0;
    }
    if (e == 0 && r->has_drafter && !drafts)
        e = hx_forward_keep_context(r->fwd, r->n_keep, tap, tap_user, err);
    for (int i = 0; e == 0 && i < n_seqs; i++)
        e = hx_kv_seq_commit(seqs[i].kv, seqs[i].tokens, seqs[i].dead, seqs[i].n_tok, err);
    return e;
}

int hx_rank_step(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, float *logits,
                 hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    int e = step(r, seqs, n_seqs, logits, NULL, tap, tap_user, err);
    if (e < 0 && r->opt.comm)
        r->opt.comm->ops->stop(r->opt.comm, err);
    return e;
}

int hx_rank_step_best(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, int32_t *best,
                      struct hx_error *err)
{
    int e = step(r, seqs, n_seqs, NULL, best, NULL, NULL, err);
    if (e < 0 && r->opt.comm)
        r->opt.comm->ops->stop(r->opt.comm, err);
    return e;
}

int hx_rank_accept(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, const int *n_keep,
                   struct hx_error *err)
{
    int e = 0;
    for (int i = 0; e == 0 && i < n_seqs; i++) {
        if (n_keep[i] < seqs[i].n_tok - seqs[i].n_draft || n_keep[i] > seqs[i].n_tok)
            return hx_fail(err, -EINVAL,
                           "sequence %d of a step: keeps %d of %d rows, %d of them drafts", i,
                           n_keep[i], seqs[i].n_tok, seqs[i].n_draft);
        if (n_keep[i] < seqs[i].n_tok && hx_rank_engram(r))
            hx_engram_count_rejected(hx_rank_engram(r), seqs[i].n_tok - n_keep[i]);
        if (n_keep[i] < seqs[i].n_tok)
            e = hx_kv_seq_truncate(seqs[i].kv,
                                   hx_kv_seq_len(seqs[i].kv) - seqs[i].n_tok + n_keep[i], err);
    }
    if (e == 0 && r->has_drafter)
        e = hx_forward_keep_context(r->fwd, n_keep, NULL, NULL, err);
    return e;
}

int hx_rank_draft(struct hx_rank *r, struct hx_kv_seq *const *seqs, const int32_t *anchors, int n,
                  int32_t *tokens, float *z, hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    if (n < 1 || n > r->opt.max_seq)
        return hx_fail(err, -EINVAL, "drafts for %d sequences: expected 1 to %d", n,
                       r->opt.max_seq);
    for (int i = 0; i < n; i++)
        r->draft[i] =
            (struct hx_draft_seq){hx_kv_seq_view(seqs[i]), hx_kv_seq_len(seqs[i]), anchors[i]};
    return hx_forward_draft(r->fwd, r->draft, n, tokens, z, tap, tap_user, err);
}
