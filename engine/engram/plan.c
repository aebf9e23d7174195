/* Plans: what a sequence wants next, hashed, de-duplicated, served from memory or sent to the
 * drives; waiting for it, and giving it back. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rand.h"
#include "engram/stream_impl.h"

#define SLICE         64 /* groups planned without giving others the lock */
#define LATE_DECODE_S 0.05

static size_t code_bytes(const struct hx_engram_stream *s, int t)
{
    return (size_t)s->n_heads * (size_t)s->table[t].row_bytes;
}

static size_t scale_bytes(const struct hx_engram_stream *s, int t)
{
    return (size_t)s->n_heads * (size_t)s->table[t].scale_bytes;
}

/* ---- making ---- */

/* A plan with room for so many groups of each table. */
static struct hx_engram_plan *plan_new(struct hx_engram_stream *s, enum hx_engram_class urgency,
                                       const size_t *n_groups, int n_tok)
{
    size_t bytes = sizeof(struct hx_engram_plan), n_index = (size_t)n_tok * (size_t)s->n_sizes;
    for (int t = 0; t < s->n_tables; t++)
        bytes += n_groups[t] * sizeof(struct hx_engram_waiter) + n_index * sizeof(int32_t);
    struct hx_engram_plan *p = malloc(bytes);
    if (!p)
        return NULL;
    memset(p, 0, sizeof(*p));
    p->s = s;
    p->urgency = urgency;
    p->n_tok = n_tok;
    struct hx_engram_waiter *w = (struct hx_engram_waiter *)(p + 1);
    for (int t = 0; t < s->n_tables; w += n_groups[t], t++)
        p->table[t].waiter = w;
    int32_t *g = (int32_t *)w;
    for (int t = 0; t < s->n_tables; t++, g += n_index)
        p->table[t].group = g;
    return p;
}

/* With the lock held. */
static void set_flag(struct hx_engram_plan *p, int table, unsigned value)
{
    atomic_store_explicit(&p->table[table].flag, value, memory_order_release);
    pthread_cond_broadcast(&p->s->done);
}

static void hand_over(struct hx_engram_stream *s, struct hx_engram_plan *p, int t, int32_t group,
                      const struct hx_engram_entry *e)
{
    size_t nc = code_bytes(s, t), ns = scale_bytes(s, t);
    memcpy(p->table[t].codes + (size_t)group * nc, hx_engram_cache_codes(s->cache, e), nc);
    memcpy(p->table[t].scales + (size_t)group * ns, hx_engram_cache_scales(s->cache, e), ns);
}

static struct hx_engram_flight *flight_take(struct hx_engram_stream *s, struct hx_engram_entry *e,
                                            int table, enum hx_engram_class urgency)
{
    struct hx_engram_flight *f = s->free_flight;
    s->free_flight = f->next_free;
    s->n_free_flights--;
    *f = (struct hx_engram_flight){.entry = e, .table = table, .urgency = (int)urgency};
    e->flight = f;
    return f;
}

static void flight_give(struct hx_engram_stream *s, struct hx_engram_flight *f)
{
    f->next_free = s->free_flight;
    s->free_flight = f;
    s->n_free_flights++;
}

static void attach(struct hx_engram_plan *p, int t, int32_t group, struct hx_engram_flight *f)
{
    struct hx_engram_waiter *w = &p->table[t].waiter[group];
    *w = (struct hx_engram_waiter){
        .plan = p, .flight = f, .next = f->waiter, .group = group, .table = (uint8_t)t};
    if (f->waiter)
        f->waiter->prev = w;
    f->waiter = w;
    p->table[t].n_pending++;
}

static void detach(struct hx_engram_waiter *w)
{
    *(w->prev ? &w->prev->next : &w->flight->waiter) = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->flight = NULL;
}

static void start_flight(struct hx_engram_stream *s, struct hx_engram_flight *f,
                         const int64_t *rows, int n)
{
    f->n_rows = n;
    atomic_store(&f->left, n);
    for (int i = 0; i < n; i++)
        f->job[i] = (struct hx_engram_job){.flight = f, .row = rows[i], .at = (uint8_t)i};
    s->stats.table[f->table].reads_submitted += (uint64_t)n;
    hx_engram_flight_queue(s, f);
}

static void flight_raise(struct hx_engram_flight *f, enum hx_engram_class urgency)
{
    if (f->urgency <= (int)urgency)
        return;
    f->urgency = (int)urgency;
    for (int i = 0; i < f->n_rows; i++) {
        struct hx_engram_job *j = &f->job[i];
        if (j->state == HX_JOB_QUEUED) {
            struct hx_engram_drive *d = j->drive;
            hx_engram_job_unqueue(j);
            hx_engram_job_queue(j, d, 2 * f->urgency + (f->table > 0));
        }
    }
}

/* One group: from memory, with another plan's flight, or on its own. */
static void want_group(struct hx_engram_plan *p, int t, int32_t group, int size, uint64_t key)
{
    struct hx_engram_stream *s = p->s;
    struct hx_engram_entry *e = hx_engram_cache_find(s->cache, t, size, key);
    if (e && !e->flight) {
        hx_engram_cache_touch(e);
        hand_over(s, p, t, group, e);
        p->table[t].waiter[group].flight = NULL;
        s->stats.table[t].cache_hits++;
        return;
    }
    if (e) {
        hx_engram_cache_touch(e);
        attach(p, t, group, e->flight);
        flight_raise(e->flight, p->urgency);
        s->stats.table[t].attached_waits++;
        return;
    }
    int64_t rows[HX_ENGRAM_MAX_COLS];
    e = hx_engram_cache_add(s->cache, t, size, key, true);
    struct hx_engram_flight *f = flight_take(s, e, t, p->urgency);
    attach(p, t, group, f);
    hx_engram_key_rows(s->o.hash, t, size, key, rows);
    start_flight(s, f, rows, s->n_heads);
}

/* ---- de-duplication ---- */

/* keys [n] of each token's sizes in turn -> group [n], unique [n_groups], size_of [n_groups]. */
static int unique_keys(const uint64_t *keys, size_t n, int n_sizes, int32_t *group,
                       uint32_t *unique, uint32_t *table, size_t mask)
{
    int n_groups = 0;
    memset(table, 0, (mask + 1) * sizeof(*table));
    for (size_t i = 0; i < n; i++) {
        unsigned size = (unsigned)(i % (size_t)n_sizes);
        size_t at = hx_mix64(keys[i] + size) & mask;
        for (; table[at]; at = (at + 1) & mask) {
            uint32_t u = unique[table[at] - 1];
            if (keys[u] == keys[i] && u % (unsigned)n_sizes == size)
                break;
        }
        if (!table[at]) {
            unique[n_groups++] = (uint32_t)i;
            table[at] = (uint32_t)n_groups;
        }
        group[i] = (int32_t)table[at] - 1;
    }
    return n_groups;
}

struct scratch {
    uint64_t *keys;   /* [n_tables][n] */
    uint32_t *unique; /* [n_tables][n] */
    int32_t *group;   /* [n_tables][n] */
    uint32_t *table;  /* [mask + 1] */
    size_t mask;
};

static int scratch_new(struct scratch *x, size_t n, int n_tables)
{
    x->mask = 63;
    while (x->mask + 1 < 2 * n)
        x->mask = 2 * x->mask + 1;
    size_t each = n * (size_t)n_tables;
    x->keys = malloc(each * (sizeof(*x->keys) + sizeof(*x->unique) + sizeof(*x->group)) +
                     (x->mask + 1) * sizeof(*x->table));
    if (!x->keys)
        return -ENOMEM;
    x->unique = (uint32_t *)(x->keys + each);
    x->group = (int32_t *)(x->unique + each);
    x->table = (uint32_t *)(x->group + each);
    return 0;
}

/* ---- admission: with the lock held ---- */

static bool table_online(const struct hx_engram_stream *s, int t)
{
    for (int i = 0; i < s->n_drives; i++) {
        if (s->drive[i]->online && s->drive[i]->file_of[t] >= 0)
            return true;
    }
    return false;
}

static const char *lost_text(const struct hx_engram_stream *s, int t)
{
    const char *text = s->table[t].path;
    for (int i = 0; i < s->n_drives; i++) {
        if (!s->drive[i]->online && s->drive[i]->file_of[t] >= 0)
            text = s->drive[i]->lost_reason.text;
    }
    return text;
}

static void give_staging(struct hx_engram_plan *p)
{
    for (int t = 0; t < p->s->n_tables; t++) {
        struct hx_engram_plan_table *pt = &p->table[t];
        if (pt->staging_bytes)
            hx_engram_staging_give(p->s, pt->staging_at, pt->staging_bytes);
        pt->staging_bytes = 0;
    }
}

/* Takes everything a plan may need, or nothing. */
static int admit(struct hx_engram_plan *p, struct hx_error *err)
{
    struct hx_engram_stream *s = p->s;
    int n_groups = 0;
    for (int t = 0; t < s->n_tables; t++) {
        if (p->table[t].n_groups > 0 && !table_online(s, t))
            return hx_fail(err, -EHOSTDOWN, "Engram table %d is offline: %s", t, lost_text(s, t));
        n_groups += p->table[t].n_groups;
    }
    /* The lock is given up between slices of a plan, so what it needs is reserved. */
    bool fits = n_groups <= s->n_free_flights - s->n_reserved;
    for (int t = 0; fits && t < s->n_tables; t++) {
        struct hx_engram_plan_table *pt = &p->table[t];
        size_t bytes = (size_t)pt->n_groups * (code_bytes(s, t) + scale_bytes(s, t));
        if (bytes == 0)
            continue;
        fits = hx_engram_staging_take(s, bytes, &pt->staging_at);
        pt->staging_bytes = fits ? bytes : 0;
        pt->codes = s->staging + pt->staging_at;
        pt->scales = pt->codes + (size_t)pt->n_groups * code_bytes(s, t);
    }
    if (!fits) {
        give_staging(p);
        s->stats.busy_rejections++;
        return hx_fail(err, -EAGAIN, "%d groups of Engram rows are too many beside those wanted",
                       n_groups);
    }
    s->n_reserved += n_groups;
    s->n_plans++;
    if (p->urgency == HX_ENGRAM_DECODE) {
        s->n_decode_plans++;
        s->last_decode = p->made;
    }
    return 0;
}

/* ---- planning ---- */

static void want_all(struct hx_engram_plan *p, int t, const uint64_t *keys, const uint32_t *unique)
{
    struct hx_engram_stream *s = p->s;
    int n = p->table[t].n_groups;
    /* One more than there are, so that nobody sees the table complete before it is. */
    p->table[t].n_pending = 1;
    for (int g = 0; g < n; g++) {
        s->n_reserved--;
        want_group(p, t, g, (int)(unique[g] % (uint32_t)s->n_sizes), keys[unique[g]]);
        if (g % SLICE == SLICE - 1) {
            hx_engram_drives_kick(s);
            pthread_mutex_unlock(&s->lock);
            pthread_mutex_lock(&s->lock);
        }
    }
    if (--p->table[t].n_pending == 0 && atomic_load(&p->table[t].flag) == 0)
        set_flag(p, t, 1);
    hx_engram_drives_kick(s);
}

static void count_wanted(struct hx_engram_stream *s, const struct hx_engram_plan *p)
{
    for (int t = 0; t < s->n_tables; t++) {
        struct hx_engram_table_stats *st = &s->stats.table[t];
        uint64_t groups = (uint64_t)p->n_tok * (uint64_t)s->n_sizes,
                 unique = (uint64_t)p->table[t].n_groups, heads = (uint64_t)s->n_heads;
        st->groups_requested += groups;
        st->groups_unique += unique;
        st->rows_requested += groups * heads;
        st->rows_unique += unique * heads;
    }
}

int hx_engram_plan(struct hx_engram_stream *s, enum hx_engram_class urgency, const int32_t *tokens,
                   const uint8_t *dead, int64_t first, int n, struct hx_engram_plan **out,
                   struct hx_error *err)
{
    struct scratch x;
    size_t each = (size_t)n * (size_t)s->n_sizes, n_groups[HX_ENGRAM_MAX_TABLES];
    double start = hx_engram_now();
    if (n < 1 || !s->o.hash)
        return hx_fail(err, -EINVAL, "engram: plan of %d tokens", n);
    if (scratch_new(&x, each, s->n_tables) < 0)
        return hx_fail(err, -ENOMEM, "out of memory for the Engram rows of %d tokens", n);
    int r = 0;
    for (int t = 0; r == 0 && t < s->n_tables; t++) {
        uint64_t *keys = x.keys + (size_t)t * each;
        r = hx_engram_hash_keys(s->o.hash, t, tokens, dead, first, n, keys, err);
        if (r == 0)
            n_groups[t] = (size_t)unique_keys(keys, each, s->n_sizes, x.group + (size_t)t * each,
                                              x.unique + (size_t)t * each, x.table, x.mask);
    }
    struct hx_engram_plan *p = r == 0 ? plan_new(s, urgency, n_groups, n) : NULL;
    if (r == 0 && !p)
        r = hx_fail(err, -ENOMEM, "out of memory for the Engram rows of %d tokens", n);
    if (r < 0) {
        free(x.keys);
        return r;
    }
    p->made = start;
    for (int t = 0; t < s->n_tables; t++) {
        memcpy(p->table[t].group, x.group + (size_t)t * each, each * sizeof(int32_t));
        p->table[t].n_groups = (int)n_groups[t];
        p->table[t].n_rows = (int)n_groups[t] * s->n_heads;
    }
    double hashed = hx_engram_now();
    pthread_mutex_lock(&s->lock);
    r = admit(p, err);
    if (r == 0) {
        hx_engram_hist_add(&s->stats.hash_us, (hashed - start) * 1e6);
        count_wanted(s, p);
        for (int t = 0; t < s->n_tables; t++)
            want_all(p, t, x.keys + (size_t)t * each, x.unique + (size_t)t * each);
    }
    pthread_mutex_unlock(&s->lock);
    free(x.keys);
    if (r < 0) {
        free(p);
        return r;
    }
    *out = p;
    return 0;
}

int hx_engram_plan_rows(struct hx_engram_stream *s, enum hx_engram_class urgency, int table,
                        const int64_t *rows, int64_t n, struct hx_engram_plan **out,
                        struct hx_error *err)
{
    size_t n_groups[HX_ENGRAM_MAX_TABLES] = {0};
    if (table < 0 || table >= s->n_tables || n < 1 || n > s->o.max_rows)
        return hx_fail(err, -EINVAL, "engram: %lld rows of table %d, there are %d tables",
                       (long long)n, table, s->n_tables);
    for (int64_t i = 0; i < n; i++) {
        if (rows[i] < 0 || rows[i] >= s->table[table].n_rows)
            return hx_fail(err, -EINVAL, "%s: Engram row %lld, the table has %lld",
                           s->table[table].path, (long long)rows[i],
                           (long long)s->table[table].n_rows);
    }
    n_groups[table] = (size_t)(n + s->n_heads - 1) / (size_t)s->n_heads;
    struct hx_engram_plan *p = plan_new(s, urgency, n_groups, 0);
    if (!p)
        return hx_fail(err, -ENOMEM, "out of memory for %lld Engram rows", (long long)n);
    struct hx_engram_plan_table *pt = &p->table[table];
    p->made = hx_engram_now();
    pt->n_groups = (int)n_groups[table];
    pt->n_rows = (int)n;
    pthread_mutex_lock(&s->lock);
    int r = admit(p, err);
    if (r == 0) {
        s->stats.table[table].rows_requested += (uint64_t)n;
        pt->n_pending = 1;
        for (int g = 0; g < pt->n_groups; g++) {
            int64_t left = n - (int64_t)g * s->n_heads;
            s->n_reserved--;
            struct hx_engram_entry *e = hx_engram_cache_add(s->cache, table, 0, 0, false);
            struct hx_engram_flight *f = flight_take(s, e, table, urgency);
            attach(p, table, g, f);
            start_flight(s, f, rows + (int64_t)g * s->n_heads,
                         left < s->n_heads ? (int)left : s->n_heads);
            if (g % SLICE == SLICE - 1) {
                hx_engram_drives_kick(s);
                pthread_mutex_unlock(&s->lock);
                pthread_mutex_lock(&s->lock);
            }
        }
        if (--pt->n_pending == 0 && atomic_load(&pt->flag) == 0)
            set_flag(p, table, 1);
        hx_engram_drives_kick(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (r < 0) {
        free(p);
        return r;
    }
    *out = p;
    return 0;
}

int hx_engram_plan_groups(struct hx_engram_stream *s, const uint8_t *entries, int n,
                          struct hx_error *err)
{
    int r = 0;
    pthread_mutex_lock(&s->lock);
    for (int t = 0; r == 0 && t < s->n_tables; t++) {
        if (!table_online(s, t))
            r = hx_fail(err, -EHOSTDOWN, "Engram table %d is offline: %s", t, lost_text(s, t));
    }
    /* Half of what may be on its way stays free for those who wait. */
    if (r == 0 && n > s->n_free_flights - s->n_reserved - s->n_flights / 2)
        r = hx_fail(err, -EAGAIN, "%d more groups are too many now", n);
    for (const uint8_t *p = entries; r == 0 && n > 0; n--, p += HX_ENGRAM_HOT_ENTRY) {
        int64_t rows[HX_ENGRAM_MAX_COLS];
        uint64_t key = 0;
        int t = p[8] / 8, size = p[8] % 8;
        for (int i = 0; i < 8; i++)
            key |= (uint64_t)p[i] << 8 * i;
        if (hx_engram_cache_find(s->cache, t, size, key))
            continue;
        struct hx_engram_entry *e = hx_engram_cache_add(s->cache, t, size, key, true);
        struct hx_engram_flight *f = flight_take(s, e, t, HX_ENGRAM_IDLE);
        hx_engram_key_rows(s->o.hash, t, size, key, rows);
        start_flight(s, f, rows, s->n_heads);
    }
    hx_engram_drives_kick(s);
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* ---- arriving ---- */

static void plan_failed(struct hx_engram_plan *p, int t, const struct hx_engram_flight *f)
{
    if (p->error.code == 0) {
        if (f->error == -EHOSTDOWN)
            hx_fail(&p->error, f->error, "Engram read error: row %lld: %s", (long long)f->error_row,
                    f->error_what);
        else
            hx_fail(&p->error, f->error, "Engram read error: %s: row %lld at offset %llu: %s%s",
                    f->error_path, (long long)f->error_row,
                    (unsigned long long)hx_engram_code_offset(&p->s->table[t], f->error_row),
                    f->error_what ? f->error_what : strerror(f->native),
                    f->error == -EILSEQ ? " (damaged file; verify or download it again)" : "");
    }
    set_flag(p, t, 2);
}

void hx_engram_flight_done(struct hx_engram_stream *s, struct hx_engram_flight *f)
{
    struct hx_engram_entry *e = f->entry;
    int t = f->table;
    while (f->waiter) {
        struct hx_engram_waiter *w = f->waiter;
        struct hx_engram_plan *p = w->plan;
        detach(w);
        if (f->error)
            plan_failed(p, t, f);
        else
            hand_over(s, p, t, w->group, e);
        if (--p->table[t].n_pending == 0 && atomic_load(&p->table[t].flag) == 0)
            set_flag(p, t, 1);
    }
    if (f->error)
        hx_engram_cache_drop(s->cache, e);
    else
        hx_engram_cache_keep(s->cache, e);
    flight_give(s, f);
}

/* ---- using ---- */

const atomic_uint *hx_engram_plan_flag(const struct hx_engram_plan *p, int table)
{
    return &p->table[table].flag;
}

int hx_engram_wait(struct hx_engram_plan *p, int table, int64_t timeout_us, struct hx_error *err)
{
    struct hx_engram_stream *s = p->s;
    const atomic_uint *flag = &p->table[table].flag;
    double start = hx_engram_now();
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + timeout_us % 1000000 * 1000;
    until.tv_sec += timeout_us / 1000000 + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&s->lock);
    int r = 0;
    while (atomic_load(flag) == 0 && r != ETIMEDOUT)
        r = timeout_us < 0 ? pthread_cond_wait(&s->done, &s->lock)
                           : pthread_cond_timedwait(&s->done, &s->lock, &until);
    unsigned v = atomic_load(flag);
    double waited = hx_engram_now() - start;
    hx_engram_hist_add(&s->stats.plan_wait_us[p->urgency], waited * 1e6);
    if (p->urgency == HX_ENGRAM_DECODE && waited > LATE_DECODE_S) {
        s->stats.late_decode_waits++;
        hx_log(HX_LOG_DEBUG, "engram", "a decode step waited %.0f ms for its rows", waited * 1e3);
    }
    if (v == 2 && err)
        *err = p->error;
    int code = v == 2 ? p->error.code : 0;
    pthread_mutex_unlock(&s->lock);
    if (v == 0)
        return hx_fail(err, -ETIMEDOUT, "Engram rows of table %d are not there after %lld ms",
                       table, (long long)(timeout_us / 1000));
    return code;
}

void hx_engram_plan_raise(struct hx_engram_plan *p, enum hx_engram_class urgency)
{
    struct hx_engram_stream *s = p->s;
    pthread_mutex_lock(&s->lock);
    if (urgency < p->urgency) {
        if (urgency == HX_ENGRAM_DECODE) {
            s->n_decode_plans++;
            s->last_decode = hx_engram_now();
        }
        p->urgency = urgency;
        for (int t = 0; t < s->n_tables; t++) {
            for (int g = 0; g < p->table[t].n_groups; g++) {
                if (p->table[t].waiter[g].flight)
                    flight_raise(p->table[t].waiter[g].flight, urgency);
            }
        }
        hx_engram_drives_kick(s);
    }
    pthread_mutex_unlock(&s->lock);
}

void hx_engram_plan_block(const struct hx_engram_plan *p, int table, struct hx_engram_block *out)
{
    const struct hx_engram_plan_table *pt = &p->table[table];
    *out = (struct hx_engram_block){.codes = pt->codes,
                                    .scales = pt->scales,
                                    .n_rows = pt->n_rows,
                                    .n_tok = p->n_tok,
                                    .n_sizes = p->s->n_sizes,
                                    .n_heads = p->s->n_heads,
                                    .group = pt->group};
}

void hx_engram_plan_gather(const struct hx_engram_plan *p, int table, int first, int n,
                           uint8_t *codes, uint8_t *scales)
{
    const struct hx_engram_plan_table *pt = &p->table[table];
    size_t nc = code_bytes(p->s, table), ns = scale_bytes(p->s, table),
           n_sizes = (size_t)p->s->n_sizes;
    const int32_t *group = pt->group + (size_t)first * n_sizes;
    for (size_t i = 0; i < (size_t)n * n_sizes; i++) {
        memcpy(codes + i * nc, pt->codes + (size_t)group[i] * nc, nc);
        memcpy(scales + i * ns, pt->scales + (size_t)group[i] * ns, ns);
    }
}

/* Nobody waits for it any more: rows that were not issued are not read. */
static void abandon(struct hx_engram_stream *s, struct hx_engram_flight *f)
{
    if (f->waiter || f->n_issued > 0 || atomic_load(&f->left) < f->n_rows)
        return;
    for (int i = 0; i < f->n_rows; i++) {
        if (f->job[i].state != HX_JOB_QUEUED)
            return;
    }
    for (int i = 0; i < f->n_rows; i++)
        hx_engram_job_unqueue(&f->job[i]);
    s->stats.table[f->table].reads_submitted -= (uint64_t)f->n_rows;
    hx_engram_cache_drop(s->cache, f->entry);
    flight_give(s, f);
}

void hx_engram_release(struct hx_engram_plan *p)
{
    if (!p)
        return;
    struct hx_engram_stream *s = p->s;
    pthread_mutex_lock(&s->lock);
    bool cancelled = false;
    for (int t = 0; t < s->n_tables; t++) {
        for (int g = 0; g < p->table[t].n_groups; g++) {
            struct hx_engram_waiter *w = &p->table[t].waiter[g];
            struct hx_engram_flight *f = w->flight;
            if (!f)
                continue;
            cancelled = true;
            detach(w);
            abandon(s, f);
        }
    }
    give_staging(p);
    s->n_plans--;
    if (p->urgency == HX_ENGRAM_DECODE)
        s->n_decode_plans--;
    s->stats.cancelled_plans += cancelled;
    pthread_mutex_unlock(&s->lock);
    free(p);
}

void hx_engram_count_rejected(struct hx_engram_stream *s, int n_tok)
{
    pthread_mutex_lock(&s->lock);
    s->stats.rejected_draft_rows +=
        (uint64_t)n_tok * (uint64_t)s->n_sizes * (uint64_t)s->n_heads * (uint64_t)s->n_tables;
    pthread_mutex_unlock(&s->lock);
}
