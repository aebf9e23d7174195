/* Engram rows ahead of the steps that need them. What was wanted is found again by its tokens, so
 * that a sequence that was rolled back, forked or restarted never gets rows of other tokens. */
#include "run/feed.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"

#define HISTORY    (HX_ENGRAM_MAX_NGRAM - 1)
#define MAX_CACHE  ((int64_t)4 << 30)
#define WAIT_US    60000000 /* for rows; reads fail sooner by themselves */
#define BUSY_TRIES 10000
#define BUSY_US    1000
#define MAX_ABS    64 /* of the released tables (spec engram.md 1.2) */

/* Some positions of a sequence that were wanted. */
struct want {
    struct want *next;
    const struct hx_kv_seq *kv;
    struct hx_engram_plan *plan;
    int64_t first;
    int n, back; /* token and dead begin back before first */
    bool ahead, used;
    uint8_t *dead;   /* [back + n] */
    int32_t token[]; /* [back + n] */
};

/* Rows of a step that one plan has. */
struct piece {
    struct want *want;
    int first, n; /* tokens of the plan */
};

struct hx_feed {
    struct hx_engram_hash *hash;
    struct hx_engram_stream *stream;
    struct hx_engram_reader *reader;
    int n_gram, cols, n_tables, row_bytes, scale_bytes, max_tok;
    struct want *wants;
    struct piece *piece; /* [max_piece], of the step */
    int n_pieces, max_piece;
    const struct hx_feed_seq *seqs; /* of the step */
    int n_seqs;
    char *hot_file;
    pthread_t hot_thread;
    bool has_hot_thread;
    atomic_bool hot_stop;
    int64_t *rows; /* [max_tok][cols] */
    int32_t *history;
    uint8_t *history_dead;
};

/* ---- opening ---- */

/* "dir/name" for every folder of paths that has the file; the model folder's own if there is
 * none. */
static int find_copies(const char *paths, const struct hx_engram_table *t,
                       struct hx_engram_table *out, char **owned, int *n, struct hx_error *err)
{
    const char *slash = strrchr(t->path, '/'), *name = slash ? slash + 1 : t->path;
    *n = 0;
    for (const char *p = paths; p && *p;) {
        size_t len = strcspn(p, ":");
        struct hx_buf b = HX_BUF_INIT(4096);
        hx_buf_append(&b, p, len);
        hx_buf_printf(&b, "/%s", name);
        char *path = hx_buf_cstr(&b);
        if (!path) {
            hx_buf_done(&b);
            return hx_fail(err, -EINVAL, "[engram] paths: a path is too long");
        }
        if (*n == HX_ENGRAM_MAX_COPIES) {
            hx_buf_done(&b);
            return hx_fail(err, -EINVAL, "[engram] paths: more than %d folders have %s",
                           HX_ENGRAM_MAX_COPIES, name);
        }
        struct stat st;
        if (len > 0 && stat(path, &st) == 0) {
            owned[*n] = path;
            out[*n] = *t;
            out[(*n)++].path = path;
        } else {
            hx_buf_done(&b);
        }
        p += len + (p[len] == ':');
    }
    if (*n == 0)
        out[(*n)++] = *t;
    return 0;
}

static int64_t auto_cache(void)
{
    struct sysinfo i;
    if (sysinfo(&i) < 0)
        return 0;
    int64_t tenth = (int64_t)((uint64_t)i.totalram * i.mem_unit / 10);
    return tenth < MAX_CACHE ? tenth : MAX_CACHE;
}

static int open_stream(struct hx_feed *f, const struct hx_hparams *h,
                       const struct hx_engram_table *table, const struct hx_feed_options *o,
                       struct hx_error *err)
{
    struct hx_engram_stream_options so = {
        .hash = f->hash,
        .n_tables = f->n_tables,
        .max_abs = h->released_size ? MAX_ABS : 0,
        .buffered = o->buffered,
        .best = o->best,
        .slow_ms = o->slow_ms,
        .lost_ms = 5 * o->slow_ms,
    };
    char *owned[HX_MAX_ENGRAM][HX_ENGRAM_MAX_COPIES] = {{NULL}};
    int64_t cache = o->cache_bytes >= 0 ? o->cache_bytes : auto_cache(), all = 0;
    int r = 0;
    for (int t = 0; r == 0 && t < f->n_tables; t++) {
        r = find_copies(o->paths, &table[t], so.table[t], owned[t], &so.n_copies[t], err);
        all += table[t].n_rows * (table[t].row_bytes + table[t].scale_bytes);
    }
    so.cache_bytes = (uint64_t)(cache < all ? cache : all);
    /* A step and two chunks ahead, with a part of a granule lost by each plan. */
    size_t row = (size_t)f->row_bytes + (size_t)f->scale_bytes,
           rows = (size_t)o->max_tok * (size_t)f->cols * (size_t)f->n_tables;
    so.staging_bytes = 3 * rows * row + (size_t)(8 * o->max_seq + 8) * 32768;
    so.max_rows = rows * 3 > 262144 ? (int)(rows * 3 < 1 << 24 ? rows * 3 : 1 << 24) : 262144;
    if (r == 0)
        r = hx_engram_stream_open(&so, &f->stream, err);
    for (int t = 0; t < f->n_tables; t++) {
        for (int c = 0; c < HX_ENGRAM_MAX_COPIES; c++)
            free(owned[t][c]);
    }
    return r;
}

/* What was hot before the restart, beside everything else. */
static void *load_hot(void *arg)
{
    struct hx_feed *f = arg;
    struct hx_error err = {0};
    uint64_t n = 0;
    if (hx_engram_hot_load(f->stream, f->hot_file, &f->hot_stop, &n, &err) < 0)
        hx_log(HX_LOG_DEBUG, "run", "no Engram keys of before: %s", err.text);
    else
        hx_log(HX_LOG_DEBUG, "run", "%llu Engram n-grams of before", (unsigned long long)n);
    return NULL;
}

static int start_hot(struct hx_feed *f, const char *path, struct hx_error *err)
{
    if (!path || !*path || !f->stream)
        return 0;
    f->hot_file = strdup(path);
    if (!f->hot_file)
        return hx_fail(err, -ENOMEM, "out of memory");
    f->has_hot_thread = pthread_create(&f->hot_thread, NULL, load_hot, f) == 0;
    return 0;
}

static void stop_hot(struct hx_feed *f)
{
    struct hx_error err;
    if (f->has_hot_thread) {
        atomic_store(&f->hot_stop, true);
        pthread_join(f->hot_thread, NULL);
    }
    if (f->hot_file && hx_engram_hot_save(f->stream, f->hot_file, &err) < 0)
        hx_log(HX_LOG_DEBUG, "run", "Engram keys are not kept: %s", err.text);
    free(f->hot_file);
}

int hx_feed_hash(const struct hx_hparams *h, const int32_t *token_map, struct hx_engram_hash **out,
                 struct hx_error *err)
{
    struct hx_engram_hash_config c = {.n_table = h->n_engram,
                                      .n_gram = h->engram_ngram,
                                      .n_head = h->engram_n_head,
                                      .first_bucket = h->engram_vocab,
                                      .n_compressed = h->engram_compressed,
                                      .pad_token = h->engram_pad,
                                      .token_map = token_map,
                                      .n_vocab = h->n_vocab};
    for (int i = 0; i < h->n_engram; i++) {
        c.layer[i] = h->engram_layer[i];
        c.declared_rows[i] = h->engram_rows[i];
    }
    return hx_engram_hash_new(&c, out, err);
}

int hx_feed_table(const struct hx_row_file *f, int layer, struct hx_engram_table *out,
                  struct hx_error *err)
{
    if (!f->path || !f->scale_path)
        return hx_fail(err, -ENOENT, "no Engram table of layer %d", layer);
    if (strcmp(f->path, f->scale_path) != 0)
        return hx_fail(err, -EINVAL,
                       "Engram table of layer %d: weights in %s but scales in %s: one file is "
                       "expected",
                       layer, f->path, f->scale_path);
    *out = (struct hx_engram_table){f->path,   f->data_offset, f->scale_offset,
                                    f->n_rows, f->row_bytes,   f->scale_bytes};
    return 0;
}

static int open_tables(struct hx_feed *f, const struct hx_model *m, const struct hx_feed_options *o,
                       struct hx_error *err)
{
    const struct hx_hparams *h = hx_model_hparams(m);
    struct hx_engram_table table[HX_MAX_ENGRAM];
    int e = 0;
    for (int i = 0; e == 0 && i < h->n_engram; i++) {
        struct hx_row_file rf;
        e = hx_model_engram_file(m, i, &rf);
        if (e == 0)
            e = hx_feed_table(&rf, h->engram_layer[i], &table[i], err);
    }
    if (e == 0)
        e = hx_feed_hash(h, hx_model_token_map(m), &f->hash, err);
    if (e < 0)
        return e;
    f->n_tables = h->n_engram;
    f->row_bytes = table[0].row_bytes;
    f->scale_bytes = table[0].scale_bytes;
    f->cols = hx_engram_n_cols(f->hash);
    f->n_gram = h->engram_ngram;
    return f->reader ? 0 : open_stream(f, h, table, o, err);
}

int hx_feed_open(const struct hx_model *m, const struct hx_feed_options *o, struct hx_feed **out,
                 struct hx_error *err)
{
    struct hx_feed *f = calloc(1, sizeof(*f));
    if (!f)
        return hx_fail(err, -ENOMEM, "out of memory");
    size_t n = (size_t)o->max_tok;
    f->reader = o->reader;
    f->max_tok = o->max_tok;
    /* Of each sequence: what was wanted, and what lies before, between and behind it. */
    f->max_piece = o->max_tok < 16 * o->max_seq ? o->max_tok : 16 * o->max_seq;
    int e = open_tables(f, m, o, err);
    if (e == 0) {
        f->piece = calloc((size_t)f->max_piece, sizeof(*f->piece));
        f->rows = calloc(n * (size_t)f->cols, sizeof(*f->rows));
        f->history = calloc(n + HISTORY, sizeof(*f->history));
        f->history_dead = calloc(n + HISTORY, 1);
        if (!f->piece || !f->rows || !f->history || !f->history_dead)
            e = hx_fail(err, -ENOMEM, "out of memory for the Engram rows of %zu tokens", n);
    }
    if (e == 0)
        e = start_hot(f, o->hot_file, err);
    if (e < 0) {
        f->reader = NULL; /* still the caller's */
        hx_feed_close(f);
        return e;
    }
    *out = f;
    return 0;
}

static void drop(struct hx_feed *f, struct want *w)
{
    struct want **at = &f->wants;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    hx_engram_release(w->plan);
    free(w);
}

void hx_feed_close(struct hx_feed *f)
{
    if (!f)
        return;
    while (f->wants)
        drop(f, f->wants);
    stop_hot(f);
    hx_engram_stream_close(f->stream);
    if (f->reader)
        f->reader->ops->close(f->reader);
    hx_engram_hash_free(f->hash);
    free(f->piece);
    free(f->rows);
    free(f->history);
    free(f->history_dead);
    free(f);
}

int hx_feed_n_cols(const struct hx_feed *f)
{
    return f->cols;
}

struct hx_engram_stream *hx_feed_stream(struct hx_feed *f)
{
    return f->stream;
}

/* ---- wanting ---- */

static int look_back(const struct hx_feed *f, int64_t first)
{
    return first < f->n_gram - 1 ? (int)first : f->n_gram - 1;
}

/* Token and dead flag at a position: committed ones, else from tokens, which begin at first. */
static int32_t token_at(const struct hx_kv_seq *kv, const int32_t *tokens, const uint8_t *dead,
                        int64_t first, int64_t p, uint8_t *is_dead)
{
    bool committed = p < hx_kv_seq_len(kv);
    *is_dead = committed ? hx_kv_seq_dead(kv)[p] : p >= first && dead ? dead[p - first] : 0;
    return committed ? hx_kv_seq_tokens(kv)[p] : tokens[p - first];
}

/* Plans positions; -EAGAIN: not now. */
static int add(struct hx_feed *f, enum hx_engram_class urgency, const struct hx_kv_seq *kv,
               const int32_t *tokens, const uint8_t *dead, int64_t first, int64_t at, int n,
               struct want **out, struct hx_error *err)
{
    int back = look_back(f, at);
    size_t len = (size_t)(back + n);
    struct want *w = malloc(sizeof(*w) + len * (sizeof(*w->token) + 1));
    if (!w)
        return hx_fail(err, -ENOMEM, "out of memory for the Engram rows of %d tokens", n);
    *w = (struct want){.kv = kv,
                       .first = at,
                       .n = n,
                       .back = back,
                       .ahead = urgency > HX_ENGRAM_CHUNK,
                       .dead = (uint8_t *)(w->token + len)};
    for (size_t i = 0; i < len; i++)
        w->token[i] = token_at(kv, tokens, dead, first, at - back + (int64_t)i, &w->dead[i]);
    int r = hx_engram_plan(f->stream, urgency, w->token, w->dead, back, n, &w->plan, err);
    if (r < 0) {
        free(w);
        return r;
    }
    w->next = f->wants;
    f->wants = w;
    *out = w;
    return 0;
}

/* Whether w's tokens from position p on, and those before p that count, are the sequence's. */
static bool same_tokens(const struct hx_feed *f, const struct want *w, const int32_t *tokens,
                        const uint8_t *dead, int64_t first, int64_t p, int n)
{
    for (int64_t q = p - look_back(f, p); q < p + n; q++) {
        int64_t i = q - w->first + w->back;
        uint8_t is_dead;
        if (i < 0 || i >= w->back + w->n ||
            w->token[i] != token_at(w->kv, tokens, dead, first, q, &is_dead) ||
            w->dead[i] != is_dead)
            return false;
    }
    return true;
}

/* The plan that has position p; those of other tokens are dropped. */
static struct want *find(struct hx_feed *f, const struct hx_kv_seq *kv, const int32_t *tokens,
                         const uint8_t *dead, int64_t first, int64_t p, int64_t end)
{
    for (struct want *w = f->wants, *next; w; w = next) {
        next = w->next;
        if (w->kv != kv || p < w->first || p >= w->first + w->n)
            continue;
        int64_t last = end < w->first + w->n ? end : w->first + w->n;
        if (same_tokens(f, w, tokens, dead, first, p, (int)(last - p)))
            return w;
        drop(f, w);
    }
    return NULL;
}

/* The first planned position behind p, at most end. */
static int64_t gap_end(const struct hx_feed *f, const struct hx_kv_seq *kv, int64_t p, int64_t end)
{
    for (const struct want *w = f->wants; w; w = w->next) {
        if (w->kv == kv && w->first > p && w->first < end)
            end = w->first;
    }
    return end;
}

void hx_feed_want(struct hx_feed *f, enum hx_engram_class urgency, const struct hx_kv_seq *kv,
                  const int32_t *tokens, int64_t first, int n)
{
    int64_t end = first + n;
    for (int64_t p = first; f->stream && p < end;) {
        struct want *w = find(f, kv, tokens, NULL, first, p, end);
        if (!w && add(f, urgency, kv, tokens, NULL, first, p, (int)(gap_end(f, kv, p, end) - p), &w,
                      NULL) < 0)
            return;
        if (urgency <= HX_ENGRAM_CHUNK && w->ahead) {
            hx_engram_plan_raise(w->plan, urgency);
            w->ahead = false;
        }
        p = w->first + w->n;
    }
}

void hx_feed_forget(struct hx_feed *f, const struct hx_kv_seq *kv)
{
    for (struct want *w = f->wants, *next; w; w = next) {
        next = w->next;
        if (w->kv == kv)
            drop(f, w);
    }
}

/* ---- a step ---- */

/* Something that no step has asked for yet; true: given back. */
static bool drop_ahead(struct hx_feed *f)
{
    struct want *last = NULL;
    for (struct want *w = f->wants; w; w = w->next) {
        if (!w->used && (!last || w->first > last->first))
            last = w;
    }
    if (last)
        drop(f, last);
    return last != NULL;
}

/* As add, but this step cannot do without: later chunks make room, and reads of dropped ones
 * end. */
static int add_now(struct hx_feed *f, const struct hx_feed_seq *s, int64_t first, int64_t at, int n,
                   struct want **out, struct hx_error *err)
{
    enum hx_engram_class urgency = s->urgent ? HX_ENGRAM_DECODE : HX_ENGRAM_CHUNK;
    int r = -EAGAIN;
    for (int i = 0; r == -EAGAIN && i < BUSY_TRIES; i++) {
        r = add(f, urgency, s->kv, s->tokens, s->dead, first, at, n, out, err);
        if (r == -EAGAIN && !drop_ahead(f))
            usleep(BUSY_US);
    }
    if (r < 0 && err && r != -EINVAL && r != -ENOMEM)
        memcpy(err->slug, HX_FEED_SLUG, sizeof(HX_FEED_SLUG));
    return r;
}

static int begin_sequence(struct hx_feed *f, const struct hx_feed_seq *s, struct hx_error *err)
{
    int64_t first = hx_kv_seq_len(s->kv), end = first + s->n_tok;
    for (int64_t p = first; p < end;) {
        struct want *w = find(f, s->kv, s->tokens, s->dead, first, p, end);
        int r = 0;
        if (!w)
            r = add_now(f, s, first, p, (int)(gap_end(f, s->kv, p, end) - p), &w, err);
        if (r == 0 && f->n_pieces == f->max_piece)
            r = hx_fail(err, -EINVAL, "a step of more than %d pieces of Engram rows", f->max_piece);
        if (r < 0)
            return r;
        hx_engram_plan_raise(w->plan, s->urgent ? HX_ENGRAM_DECODE : HX_ENGRAM_CHUNK);
        w->ahead = false;
        w->used = true;
        int64_t last = w->first + w->n < end ? w->first + w->n : end;
        f->piece[f->n_pieces++] = (struct piece){w, (int)(p - w->first), (int)(last - p)};
        p = last;
    }
    return 0;
}

int hx_feed_begin(struct hx_feed *f, const struct hx_feed_seq *seqs, int n_seqs,
                  struct hx_error *err)
{
    int r = 0;
    f->seqs = seqs;
    f->n_seqs = n_seqs;
    f->n_pieces = 0;
    for (int i = 0; f->stream && r == 0 && i < n_seqs; i++) {
        r = begin_sequence(f, &seqs[i], err);
        if (r < 0)
            r = hx_wrap(err, r, "sequence %d of a step", i);
    }
    return r;
}

int hx_feed_row_ids(struct hx_feed *f, int table, int64_t *rows, struct hx_error *err)
{
    int r = 0;
    for (int i = 0; r == 0 && i < f->n_seqs; i++) {
        const struct hx_feed_seq *s = &f->seqs[i];
        int64_t first = hx_kv_seq_len(s->kv);
        int back = look_back(f, first);
        for (int k = 0; k < back + s->n_tok; k++)
            f->history[k] =
                token_at(s->kv, s->tokens, s->dead, first, first - back + k, &f->history_dead[k]);
        r = hx_engram_hash_rows(f->hash, table, f->history, f->history_dead, back, s->n_tok, rows,
                                err);
        if (r < 0)
            r = hx_wrap(err, r, "sequence %d of a step", i);
        rows += (int64_t)s->n_tok * f->cols;
    }
    return r;
}

static int read_now(struct hx_feed *f, int table, uint8_t *codes, uint8_t *scales,
                    struct hx_error *err)
{
    int64_t n = 0;
    for (int i = 0; i < f->n_seqs; i++)
        n += f->seqs[i].n_tok;
    int r = hx_feed_row_ids(f, table, f->rows, err);
    if (r < 0)
        return r;
    r = f->reader->ops->read(f->reader, table, f->rows, n * f->cols, codes, scales, err);
    if (r < 0 && err)
        memcpy(err->slug, HX_FEED_SLUG, sizeof(HX_FEED_SLUG));
    return r;
}

int hx_feed_rows(struct hx_feed *f, int table, uint8_t *codes, uint8_t *scales,
                 struct hx_error *err)
{
    if (f->reader)
        return read_now(f, table, codes, scales, err);
    size_t nc = (size_t)f->cols * (size_t)f->row_bytes,
           ns = (size_t)f->cols * (size_t)f->scale_bytes;
    for (int i = 0; i < f->n_pieces; i++) {
        const struct piece *p = &f->piece[i];
        int r = hx_engram_wait(p->want->plan, table, WAIT_US, err);
        if (r < 0) {
            if (err)
                memcpy(err->slug, HX_FEED_SLUG, sizeof(HX_FEED_SLUG));
            return r;
        }
        hx_engram_plan_gather(p->want->plan, table, p->first, p->n, codes, scales);
        codes += (size_t)p->n * nc;
        scales += (size_t)p->n * ns;
    }
    return 0;
}

/* Positions behind those of the step stay wanted, unless it failed. */
void hx_feed_end(struct hx_feed *f, bool failed)
{
    for (int i = 0; i < f->n_pieces; i++) {
        const struct piece *p = &f->piece[i];
        p->want->used = false;
        if (failed || p->first + p->n == p->want->n)
            drop(f, p->want);
    }
    f->n_pieces = 0;
    f->n_seqs = 0;
}
