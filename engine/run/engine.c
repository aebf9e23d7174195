/* The engine as callers see it: opening with every limit checked, what it is, how it does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run/engine_impl.h"
#include "run/memory_plan.h"

#include <hx/build_facts.h>

#define BLOCK_TOK HX_KV_BLOCK_TOK
#define MAX_CHUNK 65536
#define MAX_QUEUE 65536

double hx_engine_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void hx_engine_kick(struct hx_engine *e)
{
    pthread_mutex_lock(&e->mutex);
    e->kicked = true;
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->mutex);
}

/* ---- opening ---- */

static int check_options(const struct hx_engine_options *o, struct hx_error *err)
{
    const struct {
        const char *name;
        int64_t value, min, max;
    } rows[] = {
        {"max_sequences", o->max_sequences, 1, HX_MAX_SEQUENCES},
        {"max_context", o->max_context, 0, INT32_MAX},
        {"kv_tokens", o->kv_tokens, 0, INT32_MAX},
        {"prefill_chunk", o->prefill_chunk, 1, MAX_CHUNK},
        {"drafts", o->drafts, 0, HX_MAX_DRAFTS},
        {"queue", o->queue, 0, MAX_QUEUE},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].value < rows[i].min || rows[i].value > rows[i].max)
            return hx_fail(err, -EINVAL, "%s is %lld: expected %lld to %lld", rows[i].name,
                           (long long)rows[i].value, (long long)rows[i].min,
                           (long long)rows[i].max);
    }
    return 0;
}

/* The pool: as many tokens as asked for, or as the sequences can use and half of the host's memory
 * holds; check_memory fits it to a card's. */
static int size_pool(const struct hx_engine *e, const struct hx_hparams *hp,
                     const struct hx_maps *maps, uint64_t memory, bool card,
                     struct hx_kv_options *kv, struct hx_error *err)
{
    const struct hx_engine_options *o = &e->opt;
    int n = o->max_sequences;
    int64_t most = e->info.max_context * n, tokens = o->kv_tokens ? o->kv_tokens : most;
    bool ours = o->kv_tokens == 0; /* to choose */
    if (tokens > INT32_MAX)
        tokens = INT32_MAX;
    *kv = (struct hx_kv_options){.block_tok = BLOCK_TOK,
                                 .n_seqs = n,
                                 .n_snapshots = n * HX_KV_SNAPSHOTS_EACH,
                                 .n_blocks = (int)((tokens + BLOCK_TOK - 1) / BLOCK_TOK)};
    if (ours)
        kv->n_blocks += n; /* the last block of every sequence is its own, however short */
    while (ours && !card && memory > 0 && kv->n_blocks > 2 * n &&
           hx_kv_bytes(hp, maps, kv) > memory / 2)
        kv->n_blocks /= 2;
    size_t bytes = hx_kv_bytes(hp, maps, kv);
    if (bytes == 0)
        return hx_fail(err, -EINVAL, "the model has no KV geometry");
    if (memory > 0 && bytes > memory && !(ours && card))
        return hx_fail(err, -ENOMEM,
                       "KV memory for %lld tokens takes %zu MiB, but %llu MiB are free: lower "
                       "kv_tokens, max_context or max_sequences",
                       (long long)tokens, bytes >> 20, (unsigned long long)(memory >> 20));
    return 0;
}

/* Before anything is read. A pool whose size is ours to choose shrinks until the rest fits beside
 * it: by halves in the host's memory, which others use too, to the last block on a card. */
static int check_memory(const struct hx_engine *e, uint64_t memory, bool card,
                        struct hx_rank_options *o, const struct hx_hparams *hp,
                        const struct hx_maps *maps, struct hx_error *err)
{
    struct hx_placement place;
    struct hx_memory_plan plan;
    struct hx_memory_wish wish = {.max_tok = o->max_tok,
                                  .max_seq = o->max_seq,
                                  .drafts = o->drafts,
                                  .kv = o->kv,
                                  .device_bytes = (int64_t)memory,
                                  .kernel_bytes = card ? (int64_t)HX_CUDA_SCRATCH : 0,
                                  .graph_bytes = card ? HX_CARD_RESERVE : 0};
    if (memory == 0)
        return 0;
    int r = hx_place_folder(o->model_dir, HX_LAYOUT_CPU, &place, err);
    if (r < 0)
        return r;
    r = hx_memory_plan(hp, maps, &place, &wish, &plan, err);
    if (r == -ENOMEM && card && e->opt.kv_tokens == 0) {
        wish.max_tokens = (int64_t)wish.kv.n_blocks * BLOCK_TOK;
        wish.kv.n_blocks = 0;
        r = hx_memory_plan(hp, maps, &place, &wish, &plan, err);
        wish.kv.n_blocks = plan.n_blocks;
    }
    while (r == -ENOMEM && !card && e->opt.kv_tokens == 0 && wish.kv.n_blocks > 2 * o->max_seq) {
        wish.kv.n_blocks /= 2;
        r = hx_memory_plan(hp, maps, &place, &wish, &plan, err);
    }
    o->kv = wish.kv;
    return r;
}

static int open_rank(struct hx_engine *e, struct hx_error *err)
{
    const struct hx_engine_options *o = &e->opt;
    struct hx_hparams *hp = malloc(sizeof(*hp));
    struct hx_maps *maps = malloc(sizeof(*maps));
    struct hx_rank_options ro = {.model_dir = o->model_dir,
                                 .backend = o->backend,
                                 .mode = o->mode,
                                 .max_tok = o->prefill_chunk + o->max_sequences * (1 + o->drafts),
                                 .drafts = o->drafts > 0,
                                 .max_seq = o->max_sequences,
                                 .progress = o->progress,
                                 .user = o->user,
                                 .engram = {.paths = o->engram_paths,
                                            .buffered = o->engram_buffered,
                                            .hot_file = o->engram_hot,
                                            .slow_ms = o->engram_slow_ms,
                                            .cache_bytes = o->engram_cache}};
    uint64_t memory = 0;
    bool card = false;
    int r = hp && maps ? hx_hparams_load(o->model_dir, hp, err)
                       : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_maps_derive(hp, maps, err);
    if (r == 0) {
        e->info.n_vocab = hp->n_vocab;
        e->info.n_layer = hp->n_layer;
        e->draft_block = hp->n_draft_layer > 0 ? hp->draft_block : 0;
        e->info.trained_context = hp->max_positions;
        /* One configuration serves any model: a limit above the model's own is the model's own. */
        e->info.max_context = o->max_context && o->max_context < hp->max_positions
                                  ? o->max_context
                                  : hp->max_positions;
        ro.max_context = e->info.max_context;
        r = hx_memory_free(o->backend, &memory, &card, err);
    }
    if (r == 0)
        r = size_pool(e, hp, maps, memory, card, &ro.kv, err);
    if (r == 0)
        r = check_memory(e, memory, card, &ro, hp, maps, err);
    if (r == 0) {
        int64_t room = (int64_t)ro.kv.n_blocks * BLOCK_TOK;
        e->seq_limit = e->info.max_context < room ? e->info.max_context : room;
        e->info.max_context = e->seq_limit;
        r = hx_rank_open(&ro, &e->rank, err);
    }
    free(hp);
    free(maps);
    return r;
}

static int open_arrays(struct hx_engine *e, struct hx_error *err)
{
    size_t n = (size_t)e->opt.max_sequences, rows = n * (size_t)(1 + e->opt.drafts),
           drafts = n * (size_t)e->draft_block;
    e->running = calloc(n, sizeof(struct hx_sequence *));
    e->item = calloc(n, sizeof(*e->item));
    e->rows = calloc(n, sizeof(*e->rows));
    e->step = calloc(n, sizeof(*e->step));
    e->logits = calloc(rows * (size_t)e->info.n_vocab, sizeof(*e->logits));
    e->best = calloc(rows, sizeof(*e->best));
    e->draft = calloc(drafts + 1, sizeof(*e->draft));
    e->draft_z = calloc(drafts + 1, sizeof(*e->draft_z));
    if (!e->running || !e->item || !e->rows || !e->step || !e->logits || !e->best || !e->draft ||
        !e->draft_z)
        return hx_fail(err, -ENOMEM, "out of memory for %zu sequences", n);
    return hx_sampler_new(e->info.n_vocab, &e->sampler, err);
}

static int fill_info(struct hx_engine *e, struct hx_error *err)
{
    static const char *const verification[] = {
        [HX_VERIFICATION_UNKNOWN] = "unknown",
        [HX_VERIFICATION_NOT_INDEPENDENT] = "not independently verified",
        [HX_VERIFICATION_INDEPENDENT] = "independently verified",
    };
    struct hx_engine_info *i = &e->info;
    struct hx_manifest m;
    i->max_sequences = e->opt.max_sequences;
    i->default_temperature = 1.0;
    i->default_top_p = 0.95;
    int r = hx_generation_load(e->opt.model_dir, &i->default_temperature, &i->default_top_p, err);
    if (r == 0)
        r = hx_manifest_load(e->opt.model_dir, &m, err);
    if (r < 0)
        return r;
    i->demo = m.synthetic;
    if (m.synthetic) /* random weights: its drafter has nothing to say, and a block costs ten rows
                      */
        e->opt.drafts = 0;
    snprintf(i->lock_id, sizeof(i->lock_id), "%s", m.lock_id);
    snprintf(i->verification, sizeof(i->verification), "%s", verification[m.verification]);
    snprintf(i->layout, sizeof(i->layout), "%s", e->opt.backend);
    snprintf(i->fingerprint, sizeof(i->fingerprint), "hx170-%.40s-%.12s", HX_BUILD_VERSION,
             i->layout);
    return 0;
}

int hx_engine_open(const struct hx_engine_options *opt, struct hx_engine **out,
                   struct hx_error *err)
{
    int r = check_options(opt, err);
    if (r < 0)
        return r;
    struct hx_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return hx_fail(err, -ENOMEM, "out of memory");
    e->opt = *opt;
    e->free_slots = opt->max_sequences;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->cond, NULL);
    r = fill_info(e, err);
    if (r == 0)
        r = open_rank(e, err);
    if (r == 0)
        r = open_arrays(e, err);
    if (r == 0)
        r = hx_scheduler_start(e, err);
    if (r < 0) {
        hx_engine_close(e);
        return r;
    }
    *out = e;
    return 0;
}

void hx_engine_close(struct hx_engine *e)
{
    if (!e)
        return;
    hx_scheduler_stop(e);
    hx_rank_close(e->rank);
    hx_sampler_free(e->sampler);
    free(e->running);
    free(e->item);
    free(e->rows);
    free(e->step);
    free(e->logits);
    free(e->best);
    free(e->draft);
    free(e->draft_z);
    pthread_mutex_destroy(&e->mutex);
    pthread_cond_destroy(&e->cond);
    free(e);
}

/* ---- state ---- */

void hx_engine_info(const struct hx_engine *e, struct hx_engine_info *out)
{
    *out = e->info;
}

/* Time until a place in the queue is free: one request's mean time shared by the slots. */
static double retry_after(const struct hx_engine *e)
{
    const struct hx_histogram *h = &e->stats.e2e;
    double s = h->count > 0 ? h->sum / (double)h->count / e->info.max_sequences : 1;
    return s < 1 ? 1 : s > 60 ? 60 : s;
}

void hx_engine_stats(struct hx_engine *e, struct hx_engine_stats *out)
{
    pthread_mutex_lock(&e->mutex);
    e->stats.retry_after = retry_after(e);
    *out = e->stats;
    pthread_mutex_unlock(&e->mutex);
    hx_engine_engram_counters(hx_rank_engram(e->rank), &out->engram);
}

enum hx_engine_health hx_engine_health(struct hx_engine *e, struct hx_error *reason)
{
    struct hx_engram_stream *engram = hx_rank_engram(e->rank);
    struct hx_error why;
    enum hx_engram_health drives = engram ? hx_engram_stream_health(engram, &why) : HX_ENGRAM_OK;
    pthread_mutex_lock(&e->mutex);
    enum hx_engine_health h = e->health;
    if (reason && h != HX_HEALTH_OK)
        *reason = e->health_reason;
    pthread_mutex_unlock(&e->mutex);
    /* A lost drive may come back, so this is not kept. */
    enum hx_engine_health theirs = drives == HX_ENGRAM_OFFLINE    ? HX_HEALTH_FAILED
                                   : drives == HX_ENGRAM_DEGRADED ? HX_HEALTH_DEGRADED
                                                                  : HX_HEALTH_OK;
    if (theirs > h) {
        h = theirs;
        if (reason)
            *reason = why;
    }
    return h;
}
