/* One rank: device, model, forward pass, KV pool, Engram. */
#include "run/rank.h"

#include <stdlib.h>
#include <string.h>

#include "engram/engram.h"

struct hx_rank {
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_model *model;
    struct hx_forward *forward;
    struct hx_kv_pool *kv;
    struct hx_engram_hash *hash;
    struct hx_engram_reader *reader;
    int max_tok, max_seq;
    /* One pass, allocated for the largest. */
    int32_t *token;
    uint8_t *dead;
    struct hx_forward_seq *seq;
    int64_t *row_id;
    uint8_t *codes[HX_MAX_ENGRAM], *scales[HX_MAX_ENGRAM];
    int64_t n_cols;
    int row_bytes, scale_bytes;
    int32_t *history; /* tokens of a sequence around the new rows */
    uint8_t *history_dead;
    void (*progress)(void *user, const char *stage, double fraction);
    void *user;
};

/* ---- opening
 * ----------------------------------------------------------------------------------------- */

static void weights_progress(void *user, double fraction)
{
    struct hx_rank *r = user;
    if (r->progress)
        r->progress(r->user, "weights", fraction);
}

static int open_engram(struct hx_rank *r, struct hx_error *err)
{
    const struct hx_hparams *hp = hx_model_hparams(r->model);
    struct hx_engram_hash_config c = {.n_table = hp->n_engram,
                                      .n_gram = hp->engram_ngram,
                                      .n_head = hp->engram_n_head,
                                      .first_bucket = hp->engram_vocab,
                                      .n_compressed = hp->engram_compressed,
                                      .pad_token = hp->engram_pad,
                                      .token_map = hx_model_token_map(r->model),
                                      .n_vocab = hp->n_vocab};
    struct hx_engram_table table[HX_MAX_ENGRAM];
    for (int i = 0; i < hp->n_engram; i++) {
        struct hx_row_file f;
        int ret = hx_model_engram_file(r->model, i, &f);
        if (ret < 0)
            return hx_fail(err, ret, "engram: table of layer %d", hp->engram_layer[i]);
        c.layer[i] = hp->engram_layer[i];
        c.declared_rows[i] = hp->engram_rows[i];
        table[i] = (struct hx_engram_table){f.path,   f.data_offset, f.scale_offset,
                                            f.n_rows, f.row_bytes,   f.scale_bytes};
    }
    int ret = hx_engram_hash_new(&c, &r->hash, err);
    if (ret == 0)
        ret = hx_engram_pread_open(table, hp->n_engram, &r->reader, err);
    if (ret < 0)
        return ret;
    r->n_cols = hx_engram_n_cols(r->hash);
    r->row_bytes = hp->engram_dim;
    r->scale_bytes = hp->engram_dim / 32;
    return 0;
}

static int alloc_pass(struct hx_rank *r, struct hx_error *err)
{
    const struct hx_hparams *hp = hx_model_hparams(r->model);
    size_t T = (size_t)r->max_tok, cols = (size_t)r->n_cols, before = (size_t)hp->engram_ngram;
    r->token = malloc(T * sizeof(*r->token));
    r->dead = malloc(T);
    r->seq = calloc((size_t)r->max_seq, sizeof(*r->seq));
    r->row_id = malloc(T * (cols ? cols : 1) * sizeof(*r->row_id));
    r->history = malloc((T + before) * sizeof(*r->history));
    r->history_dead = malloc(T + before);
    bool ok = r->token && r->dead && r->seq && r->row_id && r->history && r->history_dead;
    for (int i = 0; i < hp->n_engram; i++) {
        r->codes[i] = malloc(T * cols * (size_t)r->row_bytes);
        r->scales[i] = malloc(T * cols * (size_t)r->scale_bytes);
        ok = ok && r->codes[i] && r->scales[i];
    }
    return ok ? 0 : hx_fail(err, -ENOMEM, "out of memory for passes of %d rows", r->max_tok);
}

int hx_rank_open(const struct hx_rank_options *opt, struct hx_rank **out, struct hx_error *err)
{
    struct hx_rank *r = calloc(1, sizeof(*r));
    if (!r)
        return hx_fail(err, -ENOMEM, "out of memory");
    r->max_tok = opt->max_tok;
    r->max_seq = opt->max_seq;
    r->progress = opt->progress;
    r->user = opt->user;
    int ret = 0;
    r->be = hx_backend_select(opt->backend, err);
    if (!r->be)
        ret = -ENODEV;
    if (ret == 0)
        ret = r->be->open(0, &r->dev, err);
    const struct hx_model_options mo = {r->be, r->dev, weights_progress, r};
    if (ret == 0)
        ret = hx_model_open(opt->model_dir, &mo, &r->model, err);
    if (ret == 0 && hx_model_hparams(r->model)->n_engram > 0)
        ret = open_engram(r, err);
    if (ret == 0)
        ret = hx_kv_pool_open(hx_model_hparams(r->model), hx_model_maps(r->model), r->be, r->dev,
                              &opt->kv, &r->kv, err);
    if (ret == 0)
        ret = hx_forward_open(r->model, r->be, r->dev, opt->mode, opt->max_tok, opt->max_seq,
                              &r->forward, err);
    if (ret == 0)
        ret = alloc_pass(r, err);
    if (ret < 0) {
        hx_rank_close(r);
        return ret;
    }
    *out = r;
    return 0;
}

void hx_rank_close(struct hx_rank *r)
{
    if (!r)
        return;
    for (int i = 0; i < HX_MAX_ENGRAM; i++) {
        free(r->codes[i]);
        free(r->scales[i]);
    }
    free(r->token);
    free(r->dead);
    free(r->seq);
    free(r->row_id);
    free(r->history);
    free(r->history_dead);
    if (r->reader)
        r->reader->ops->close(r->reader);
    hx_engram_hash_free(r->hash);
    hx_forward_close(r->forward);
    hx_kv_pool_close(r->kv);
    hx_model_close(r->model);
    if (r->dev)
        r->be->close(r->dev);
    free(r);
}

const struct hx_hparams *hx_rank_hparams(const struct hx_rank *r)
{
    return hx_model_hparams(r->model);
}

struct hx_model *hx_rank_model(struct hx_rank *r)
{
    return r->model;
}

struct hx_kv_pool *hx_rank_kv(struct hx_rank *r)
{
    return r->kv;
}

/* ---- a step
 * ------------------------------------------------------------------------------------------ */

/* Row ids of one sequence's new tokens. The hash looks n_gram - 1 tokens back and not further, so a
 * window of the history is enough: it starts at the sequence's start or exactly that far before the
 * first new token. */
static int hash_seq(struct hx_rank *r, int table, const struct hx_step_seq *s, int64_t *rows,
                    struct hx_error *err)
{
    int64_t len = hx_kv_seq_len(s->kv), look_back = hx_rank_hparams(r)->engram_ngram - 1;
    int64_t before = len < look_back ? len : look_back;
    memcpy(r->history, hx_kv_seq_tokens(s->kv) + len - before,
           (size_t)before * sizeof(*r->history));
    memcpy(r->history_dead, hx_kv_seq_dead(s->kv) + len - before, (size_t)before);
    memcpy(r->history + before, s->tokens, (size_t)s->n_tok * sizeof(*r->history));
    if (s->dead)
        memcpy(r->history_dead + before, s->dead, (size_t)s->n_tok);
    else
        memset(r->history_dead + before, 0, (size_t)s->n_tok);
    return hx_engram_hash_rows(r->hash, table, r->history, r->history_dead, before, s->n_tok, rows,
                               err);
}

static int read_engram(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, int n_tok,
                       struct hx_forward_in *in, hx_tap_fn tap, void *tap_user,
                       struct hx_error *err)
{
    const struct hx_hparams *hp = hx_rank_hparams(r);
    for (int t = 0; t < hp->n_engram; t++) {
        int64_t *rows = r->row_id;
        for (int i = 0; i < n_seqs; i++) {
            int ret = hash_seq(r, t, &seqs[i], rows, err);
            if (ret < 0)
                return ret;
            rows += seqs[i].n_tok * r->n_cols;
        }
        int ret = r->reader->ops->read(r->reader, t, r->row_id, n_tok * r->n_cols, r->codes[t],
                                       r->scales[t], err);
        if (ret < 0)
            return hx_wrap(err, ret, "Engram of layer %d", hp->engram_layer[t]);
        if (tap) {
            struct hx_tensor ids = {HX_DTYPE_I64, 2, {n_tok, r->n_cols, 1, 1}, r->row_id};
            tap(tap_user, "engram.rows", hp->engram_layer[t], &ids);
        }
        in->engram[t].codes = r->codes[t];
        in->engram[t].scales = r->scales[t];
    }
    return 0;
}

int hx_rank_step(struct hx_rank *r, const struct hx_step_seq *seqs, int n_seqs, float *logits,
                 hx_tap_fn tap, void *tap_user, struct hx_error *err)
{
    struct hx_forward_in in = {.n_seq = n_seqs,
                               .seq = r->seq,
                               .token = r->token,
                               .dead = r->dead,
                               .logits = logits,
                               .tap = tap,
                               .tap_user = tap_user};
    int n = 0;
    if (n_seqs > r->max_seq)
        return hx_fail(err, -EINVAL, "a step of %d sequences, at most %d", n_seqs, r->max_seq);
    for (int i = 0; i < n_seqs; i++) {
        const struct hx_step_seq *s = &seqs[i];
        if (s->n_tok < 1 || s->n_tok > r->max_tok - n || s->n_logits < 0 || s->n_logits > s->n_tok)
            return hx_fail(err, -EINVAL,
                           "a step of more than %d rows, or of a sequence without any", r->max_tok);
        int ret = hx_kv_seq_reserve(s->kv, hx_kv_seq_len(s->kv) + s->n_tok, err);
        if (ret < 0)
            return ret;
        memcpy(r->token + n, s->tokens, (size_t)s->n_tok * sizeof(*r->token));
        if (s->dead)
            memcpy(r->dead + n, s->dead, (size_t)s->n_tok);
        else
            memset(r->dead + n, 0, (size_t)s->n_tok);
        r->seq[i] = (struct hx_forward_seq){hx_kv_seq_view(s->kv), hx_kv_seq_len(s->kv), s->n_tok,
                                            s->n_logits};
        n += s->n_tok;
    }
    int ret = read_engram(r, seqs, n_seqs, n, &in, tap, tap_user, err);
    if (ret == 0)
        ret = hx_forward_run(r->forward, &in, err);
    for (int i = 0; ret == 0 && i < n_seqs; i++)
        ret = hx_kv_seq_commit(seqs[i].kv, seqs[i].tokens, seqs[i].dead, seqs[i].n_tok, err);
    return ret;
}
