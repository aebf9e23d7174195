/* Passes of few rows, drafts and their context as recorded work: the first of a kind runs as it is
 * queued, the second is recorded, later ones are replayed with the host taking part in nothing but
 * Engram rows, which it puts into pinned memory while the card is on its way to them. What a pass
 * is, its kind, is every number of the host that decides launches: counts of rows, sets, groups,
 * the room for index scores. Positions, tokens, tables of sequences are in device memory at the
 * same addresses each time. */
#include <stdlib.h>
#include <string.h>

#include "model/dsv41_pass.h"

#define N_GRAPHS 64
#define ALIGN    256

struct recorded {
    uint64_t kind; /* 0: free */
    struct hx_graph *graph;
    int64_t layer_rows;
    uint64_t last; /* use */
};

struct hx_graphs {
    struct hx_buffer *mem; /* pinned */
    uint32_t *ready;       /* [n_engram] */
    uint8_t *codes[HX_MAX_ENGRAM], *scales[HX_MAX_ENGRAM];
    float *logits;   /* [HX_HEAD_ROWS][n_vocab] */
    int32_t *best;   /* [HX_BEST_ROWS][2] */
    int32_t *drafts; /* [HX_DRAFT_ROWS] */
    float *z;        /* [HX_DRAFT_ROWS] */
    struct recorded of[N_GRAPHS];
    uint64_t uses;
};

/* ---- staging ---- */

static size_t room(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Bytes of a row of Engram codes; scales take a 32nd. */
static size_t engram_row(const struct hx_hparams *h)
{
    return (size_t)(h->engram_ngram - 1) * (size_t)h->engram_n_head * (size_t)h->engram_dim;
}

static size_t lay_out(const struct hx_hparams *h, struct hx_graphs *g, uint8_t *at)
{
    size_t used = room(HX_MAX_ENGRAM * sizeof(uint32_t)), codes = HX_HEAD_ROWS * engram_row(h);
    g->ready = (uint32_t *)at;
    for (int i = 0; i < h->n_engram; i++) {
        g->codes[i] = at + used;
        used += room(codes);
        g->scales[i] = at + used;
        used += room(codes / 32);
    }
    g->best = (void *)(at + used);
    used += room(HX_BEST_ROWS * 2 * sizeof(int32_t));
    g->drafts = (void *)(at + used);
    used += room(HX_DRAFT_ROWS * sizeof(int32_t));
    g->z = (void *)(at + used);
    used += room(HX_DRAFT_ROWS * sizeof(float));
    g->logits = (void *)(at + used);
    return used + room((size_t)HX_HEAD_ROWS * (size_t)h->n_vocab * sizeof(float));
}

size_t hx_graphs_bytes(const struct hx_hparams *h)
{
    struct hx_graphs g;
    static uint8_t nothing[1];
    return lay_out(h, &g, nothing);
}

int hx_graphs_open(struct hx_forward *f, struct hx_error *err)
{
    struct hx_graphs *g = calloc(1, sizeof(*g));
    struct hx_buffer *mem = NULL;
    if (!g)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = f->be->alloc(f->dev, HX_MEM_PINNED, hx_graphs_bytes(f->hp), &mem, err);
    if (r < 0) {
        free(g);
        return hx_wrap(err, r, "staging memory of passes");
    }
    g->mem = mem;
    lay_out(f->hp, g, f->be->address(mem));
    f->graphs = g;
    return 0;
}

static void forget(const struct hx_forward *f, struct recorded *g)
{
    if (g->graph)
        f->be->graph_free(g->graph);
    *g = (struct recorded){0};
}

void hx_graphs_close(struct hx_forward *f)
{
    struct hx_graphs *g = f->graphs;
    if (!g)
        return;
    for (int i = 0; i < N_GRAPHS; i++)
        forget(f, &g->of[i]);
    f->be->free(g->mem);
    free(g);
    f->graphs = NULL;
}

const uint32_t *hx_graphs_engram(const struct hx_forward *f, int slot, struct hx_tensor *codes,
                                 struct hx_tensor *scales)
{
    const struct hx_graphs *g = f->graphs;
    codes->data = g->codes[slot];
    scales->data = g->scales[slot];
    return &g->ready[slot];
}

float *hx_graphs_logits(const struct hx_forward *f)
{
    return f->graphs->logits;
}

int32_t *hx_graphs_best(const struct hx_forward *f)
{
    return f->graphs->best;
}

int32_t *hx_graphs_drafts(const struct hx_forward *f, float **z)
{
    *z = f->graphs->z;
    return f->graphs->drafts;
}

/* ---- kinds ---- */

static uint64_t mix(uint64_t h, int64_t v)
{
    for (int i = 0; i < 8; i++)
        h = (h ^ ((uint64_t)v >> 8 * i & 255)) * 0x100000001B3u;
    return h;
}

static uint64_t begin_kind(const struct hx_forward *f)
{
    return mix(0xCBF29CE484222325u, f->comm ? f->comm->version : 0);
}

/* Whether anything can be recorded. */
static bool records(const struct hx_pass *p)
{
    const struct hx_forward *f = p->f;
    return f->be->capture_begin && !p->tap && (!f->comm || f->comm->recordable);
}

uint64_t hx_graphs_kind(const struct hx_pass *p, const char *name, const int64_t *number, int n)
{
    uint64_t h = begin_kind(p->f);
    if (!records(p))
        return 0;
    for (; *name; name++)
        h = mix(h, *name);
    for (int i = 0; i < n; i++)
        h = mix(h, number[i]);
    return h ? h : 1;
}

static uint64_t kind_of(const struct hx_pass *p)
{
    const struct hx_forward *f = p->f;
    const struct hx_row_sets *rows = &f->rows;
    uint64_t h = mix(begin_kind(f), p->in->n_seq);
    h = mix(h, rows->n_set);
    h = mix(h, rows->groups.n_row);
    h = mix(h, p->in->logits != NULL);
    for (int i = 0; i < rows->n_set; i++)
        h = mix(h, rows->set[i].batch.n_row);
    for (int il = 0; il <= f->hp->n_layer; il++)
        h = mix(h, rows->in[il]);
    for (int il = 0; il < f->hp->n_layer; il++)
        h = mix(h, f->hp->ratio[il] ? hx_pass_visible(p, f->hp->ratio[il]) : 0);
    return h ? h : 1;
}

/* Whether nothing but device and staging memory tells such passes apart. */
static bool can_record(const struct hx_pass *p)
{
    const struct hx_forward *f = p->f;
    const struct hx_row_sets *rows = &f->rows;
    if (!records(p) || !f->k->engram_fetch)
        return false;
    if (rows->set[0].batch.n_row > HX_HEAD_ROWS)
        return false;
    for (int i = 0; i < p->in->n_seq; i++) {
        if (p->in->seq[i].embeds)
            return false;
    }
    for (int i = 0; i < f->hp->n_engram; i++) {
        if (rows->in[f->hp->engram_layer[i]] != 0)
            return false;
    }
    return true;
}

uint64_t hx_graphs_pass_kind(const struct hx_pass *p)
{
    return can_record(p) ? kind_of(p) : 0;
}

static struct recorded *find(const struct hx_forward *f, uint64_t kind)
{
    struct hx_graphs *g = f->graphs;
    for (int i = 0; i < N_GRAPHS; i++) {
        if (g->of[i].kind == kind)
            return &g->of[i];
    }
    return NULL;
}

/* A place for a new kind: a free one, or that of the longest unused. */
static void note(const struct hx_forward *f, uint64_t kind)
{
    struct hx_graphs *g = f->graphs;
    struct recorded *old = &g->of[0];
    for (int i = 1; i < N_GRAPHS; i++)
        old = g->of[i].last < old->last ? &g->of[i] : old;
    forget(f, old);
    old->kind = kind;
    old->last = ++g->uses;
}

/* ---- recording and replay ---- */

static int record(struct hx_pass *p, int (*queue)(struct hx_pass *p), struct recorded *g)
{
    const struct hx_forward *f = p->f;
    struct hx_graph *graph = NULL;
    HX_STEP(f->be->capture_begin(f->dev, p->err));
    p->recording = true;
    int r = queue(p);
    p->recording = false;
    struct hx_error ignored = {0};
    int e = f->be->capture_end(f->dev, &graph, r < 0 ? &ignored : p->err);
    if (r < 0 && e == 0)
        f->be->graph_free(graph);
    if (r < 0 || e < 0)
        return r < 0 ? r : e;
    g->graph = graph;
    g->layer_rows = f->layer_rows;
    return 0;
}

static void set_ready(struct hx_graphs *g, int slot, uint32_t value)
{
    __atomic_store_n(&g->ready[slot], value, __ATOMIC_RELEASE);
}

/* Rows of every Engram layer as they come. The card waits for all of them, whatever happens. */
static int feed(struct hx_pass *p)
{
    struct hx_graphs *g = p->f->graphs;
    const struct hx_forward_in *in = p->in;
    size_t n = (size_t)p->f->rows.set[0].batch.n_row * engram_row(p->f->hp);
    int r = 0;
    for (int i = 0; i < p->f->hp->n_engram; i++) {
        if (r == 0 && in->engram_wait)
            r = in->engram_wait(in->engram_user, i, p->err);
        if (r == 0) {
            memcpy(g->codes[i], in->engram[i].codes, n);
            memcpy(g->scales[i], in->engram[i].scales, n / 32);
        }
        set_ready(g, i, 1);
    }
    return r;
}

static int replay(struct hx_pass *p, const struct recorded *g)
{
    struct hx_forward *f = p->f;
    for (int i = 0; p->in && i < f->hp->n_engram; i++)
        set_ready(f->graphs, i, 0);
    /* What is there already needs no wait: under a profiler a replay may not return before its end.
     */
    bool late = p->in && p->in->engram_wait;
    int r = p->in && !late ? feed(p) : 0;
    HX_STEP(f->be->replay(f->dev, g->graph, p->err));
    r = late ? feed(p) : r;
    struct hx_error ignored = {0};
    int e = f->be->sync(f->dev, r < 0 ? &ignored : p->err);
    if (r < 0 || e < 0)
        return r < 0 ? r : e;
    if (!p->in)
        return 0;
    f->layer_rows = g->layer_rows;
    size_t n = (size_t)f->rows.set[f->rows.in[f->hp->n_layer]].batch.n_row;
    if (n > 0 && p->in->logits)
        memcpy(p->in->logits, f->graphs->logits, n * (size_t)f->hp->n_vocab * sizeof(float));
    return 0;
}

int hx_graphs_run(struct hx_pass *p, uint64_t kind, int (*queue)(struct hx_pass *p))
{
    struct recorded *g = kind ? find(p->f, kind) : NULL;
    if (!g) { /* the first one makes what a recording must find: tables, limits of kernels */
        if (kind)
            note(p->f, kind);
        HX_STEP(queue(p));
        return p->f->be->sync(p->f->dev, p->err);
    }
    g->last = ++p->f->graphs->uses;
    if (!g->graph)
        HX_STEP(record(p, queue, g));
    return replay(p, g);
}
