/* Chunks and segments of every file of a lock. */
#include "fetch/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json_write.h"
#include "base/sha256.h"

#define HEADER_ALIGN 4096u
#define GAP_PERCENT  2u /* received and thrown away, of the wanted bytes of a file */

/* Wanted bytes that follow each other at the source. */
struct run {
    uint64_t src_begin, n_bytes;
    bool joined; /* shares a request with the run before it */
};

/* ---- whole files ----------------------------------------------------------------------------- */

static int plan_whole(struct hx_plan_file *p, struct hx_error *err)
{
    const struct hx_lock_file *f = p->lock;
    p->out_bytes = p->wanted_bytes = p->fetched_bytes = f->size;
    size_t n = (f->size + f->chunk - 1) / f->chunk;
    p->chunks = calloc(n, sizeof(*p->chunks));
    p->segments = calloc(n, sizeof(*p->segments));
    if (!p->chunks || !p->segments)
        return hx_fail(err, -ENOMEM, "out of memory for the plan of %s", f->out);
    for (size_t i = 0; i < n; i++) {
        uint64_t at = i * f->chunk, len = f->size - at < f->chunk ? f->size - at : f->chunk;
        p->segments[i] = (struct hx_plan_segment){at, len, at};
        p->chunks[i] = (struct hx_plan_chunk){
            at, len, at, len, (uint32_t)i, 1, f->chunk_sha256 ? f->chunk_sha256[i] : NULL};
    }
    p->n_chunks = p->n_segments = n;
    return 0;
}

/* ---- cut files ------------------------------------------------------------------------------- */

static void put_pair(struct hx_json_writer *w, const char *key, const char *value)
{
    hx_jw_key(w, key);
    hx_jw_str(w, value);
}

static void put_tensor(struct hx_json_writer *w, const struct hx_lock_tensor *t, uint64_t begin)
{
    hx_jw_key(w, t->name);
    hx_jw_object(w);
    put_pair(w, "dtype", t->dtype);
    hx_jw_key(w, "shape");
    hx_jw_array(w);
    for (unsigned d = 0; d < t->n_dims; d++)
        hx_jw_uint(w, t->shape[d]);
    hx_jw_end_array(w);
    hx_jw_key(w, "data_offsets");
    hx_jw_array(w);
    hx_jw_uint(w, begin);
    hx_jw_uint(w, begin + (t->end - t->begin));
    hx_jw_end_array(w);
    hx_jw_end_object(w);
}

/* Same names, types and shapes in source order; padded with spaces up to the data area. */
static int make_header(struct hx_plan_file *p, struct hx_error *err)
{
    const struct hx_lock_file *f = p->lock;
    struct hx_buf b = HX_BUF_INIT(128u << 20);
    struct hx_json_writer w;
    uint8_t length[8] = {0};
    uint64_t at = 0;
    hx_buf_append(&b, length, 8);
    hx_jw_init(&w, &b, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "__metadata__");
    hx_jw_object(&w);
    put_pair(&w, "commit", p->source->commit);
    put_pair(&w, "file", f->path);
    if (f->has_header_sha256) {
        char hex[HX_SHA256_HEX];
        hx_sha256_to_hex(f->header_sha256, hex);
        put_pair(&w, "header_sha256", hex);
    }
    put_pair(&w, "repository", p->source->repo);
    hx_jw_end_object(&w);
    for (size_t i = 0; i < f->n_tensors; i++) {
        put_tensor(&w, &f->tensors[i], at);
        at += f->tensors[i].end - f->tensors[i].begin;
    }
    hx_jw_end_object(&w);
    while (!b.failed && b.len % HEADER_ALIGN != 0)
        hx_buf_putc(&b, ' ');
    if (b.failed) {
        hx_buf_done(&b);
        return hx_fail(err, -ENOMEM, "out of memory for the header of %s", f->out);
    }
    for (int i = 0; i < 8; i++)
        b.data[i] = (uint8_t)((b.len - 8) >> 8 * i);
    p->wanted_bytes = at;
    p->out_bytes = b.len + at;
    p->header = hx_buf_take(&b, &p->header_bytes);
    return 0;
}

static int by_gap(const void *a, const void *b)
{
    uint64_t x = (*(struct run *const *)a)->n_bytes, y = (*(struct run *const *)b)->n_bytes;
    return x < y ? -1 : x > y;
}

/* Wanted runs that are close share a request, the closest first, until a file's allowance of wasted
 * bytes is used up. */
static int join_runs(struct run *runs, size_t n, uint64_t wanted)
{
    struct run *gaps = calloc(n + 1, sizeof(*gaps)), **order = calloc(n + 1, sizeof(*order));
    int r = gaps && order ? 0 : -ENOMEM;
    uint64_t left = wanted / 100 * GAP_PERCENT;
    for (size_t i = 1; r == 0 && i < n; i++) {
        gaps[i].n_bytes = runs[i].src_begin - (runs[i - 1].src_begin + runs[i - 1].n_bytes);
        order[i - 1] = &gaps[i];
    }
    if (r == 0 && n > 1) {
        qsort(order, n - 1, sizeof(*order), by_gap);
        for (size_t i = 0; i + 1 < n; i++) {
            uint64_t gap = order[i]->n_bytes;
            if (gap > HX_PLAN_MAX_GAP || gap > left)
                break;
            left -= gap;
            runs[order[i] - gaps].joined = true;
        }
    }
    free(gaps);
    free(order);
    return r;
}

static size_t find_runs(const struct hx_lock_file *f, struct run *runs)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct hx_lock_tensor *t = &f->tensors[i];
        uint64_t begin = f->header_bytes + t->begin, len = t->end - t->begin;
        if (len == 0)
            continue;
        if (n > 0 && runs[n - 1].src_begin + runs[n - 1].n_bytes == begin)
            runs[n - 1].n_bytes += len;
        else
            runs[n++] = (struct run){begin, len, false};
    }
    return n;
}

/* Pieces of one run that do not cross a multiple of the chunk size in the output. */
static void place_run(struct hx_plan_file *p, const struct run *run, uint64_t *out_at)
{
    uint64_t chunk = p->lock->chunk, src = run->src_begin, left = run->n_bytes;
    for (bool joined = run->joined; left > 0; joined = true) {
        uint64_t room = chunk - *out_at % chunk, len = left < room ? left : room;
        if (room == chunk || !joined || p->n_chunks == 0) {
            p->chunks[p->n_chunks++] =
                (struct hx_plan_chunk){src, 0, *out_at, 0, (uint32_t)p->n_segments, 0, NULL};
        }
        struct hx_plan_chunk *c = &p->chunks[p->n_chunks - 1];
        p->segments[p->n_segments++] = (struct hx_plan_segment){src, len, *out_at};
        c->n_segments++;
        c->src_bytes = src + len - c->src_begin;
        c->out_bytes += len;
        src += len;
        *out_at += len;
        left -= len;
    }
}

static int plan_cut(struct hx_plan_file *p, struct hx_error *err)
{
    const struct hx_lock_file *f = p->lock;
    struct run *runs = calloc(f->n_tensors, sizeof(*runs));
    int r = runs ? make_header(p, err) : -ENOMEM;
    size_t n = runs ? find_runs(f, runs) : 0;
    size_t most = n + p->out_bytes / f->chunk + 2; /* each boundary cuts one run in two */
    if (r == 0)
        r = join_runs(runs, n, p->wanted_bytes);
    if (r == 0) {
        p->chunks = calloc(most, sizeof(*p->chunks));
        p->segments = calloc(most, sizeof(*p->segments));
    }
    if (r < 0 || !p->chunks || !p->segments) {
        free(runs);
        return hx_fail(err, -ENOMEM, "out of memory for the plan of %s", f->out);
    }
    uint64_t out_at = p->header_bytes;
    for (size_t i = 0; i < n; i++)
        place_run(p, &runs[i], &out_at);
    for (size_t i = 0; i < p->n_chunks; i++)
        p->fetched_bytes += p->chunks[i].src_bytes;
    free(runs);
    return 0;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static int parse_groups(const char *groups, bool want[HX_GROUP_MAX], struct hx_error *err)
{
    for (int g = 0; g < HX_GROUP_MAX; g++)
        want[g] = !groups || *groups == '\0';
    for (const char *s = groups; s && *s;) {
        size_t n = strcspn(s, ",");
        int g = 0;
        while (g < HX_GROUP_MAX && (strlen(hx_lock_group_name((enum hx_lock_group)g)) != n ||
                                    strncmp(hx_lock_group_name((enum hx_lock_group)g), s, n) != 0))
            g++;
        if (g == HX_GROUP_MAX)
            return hx_fail(err, -EINVAL,
                           "groups: '%.*s' is unknown; expected small, dense, experts or engram, "
                           "separated by commas",
                           n > 60 ? 60 : (int)n, s);
        want[g] = true;
        s += n + (s[n] == ',');
    }
    return 0;
}

/* Cheap failures first; experts and Engram take turns, so that both advance. */
static void order_files(const struct hx_lock *lock, const bool want[HX_GROUP_MAX], size_t *order,
                        size_t *n)
{
    *n = 0;
    for (int g = HX_GROUP_SMALL; g <= HX_GROUP_DENSE; g++) {
        for (size_t i = 0; i < lock->n_files; i++) {
            if (want[g] && (int)lock->files[i].group == g)
                order[(*n)++] = i;
        }
    }
    size_t at[2] = {0, 0};
    for (bool more = true; more;) {
        more = false;
        for (int k = 0; k < 2; k++) {
            enum hx_lock_group g = k ? HX_GROUP_ENGRAM : HX_GROUP_EXPERTS;
            while (at[k] < lock->n_files && (!want[g] || lock->files[at[k]].group != g))
                at[k]++;
            if (at[k] < lock->n_files) {
                order[(*n)++] = at[k]++;
                more = true;
            }
        }
    }
}

static int plan_file(struct hx_plan_file *p, const struct hx_lock *lock, size_t i,
                     struct hx_error *err)
{
    p->lock = &lock->files[i];
    p->source = &lock->sources[p->lock->source];
    int r = hx_lock_file_identity(lock, p->lock, p->sha256, err);
    if (r == 0)
        r = p->lock->mode == HX_LOCK_CUT ? plan_cut(p, err) : plan_whole(p, err);
    return r;
}

int hx_plan_make(const struct hx_lock *lock, const char *groups, struct hx_plan **out,
                 struct hx_error *err)
{
    bool want[HX_GROUP_MAX];
    size_t n = 0, *order = NULL;
    int r = parse_groups(groups, want, err);
    if (r < 0)
        return r;
    struct hx_plan *plan = calloc(1, sizeof(*plan));
    order = calloc(lock->n_files, sizeof(*order));
    if (plan)
        plan->files = calloc(lock->n_files, sizeof(*plan->files));
    if (!plan || !order || !plan->files)
        r = hx_fail(err, -ENOMEM, "out of memory for the plan");
    if (r == 0) {
        plan->lock = lock;
        order_files(lock, want, order, &n);
        if (n == 0)
            r = hx_fail(err, -EINVAL, "groups: the lock file has no file in '%.80s'", groups);
    }
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct hx_plan_file *p = &plan->files[plan->n_files++];
        r = plan_file(p, lock, order[i], err);
        plan->wanted_bytes += p->wanted_bytes;
        plan->fetched_bytes += p->fetched_bytes;
    }
    if (r == 0)
        r = hx_lock_identity(lock, plan->sha256, err);
    free(order);
    if (r < 0)
        hx_plan_free(plan);
    else
        *out = plan;
    return r;
}

void hx_plan_free(struct hx_plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; plan->files && i < plan->n_files; i++) {
        free(plan->files[i].header);
        free(plan->files[i].segments);
        free(plan->files[i].chunks);
    }
    free(plan->files);
    free(plan);
}
