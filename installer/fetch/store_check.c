/* The checker: one thread that follows with the whole-file hash where chunks came out of order,
 * and does the final verification of a file whose chunks are all there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fetch/step.h"
#include "fetch/sthdr.h"
#include "fetch/store_int.h"

#define MAX_BAD_COPIES 99
#define SPARE_BYTES    ((uint64_t)1 << 30)

bool hx_file_is_safetensors(const struct hx_store_file *f)
{
    const char *s = f->plan->lock->out, *dot = strrchr(s, '.');
    return dot && strcmp(dot, ".safetensors") == 0;
}

/* ---- the running hash ---- */

bool hx_file_front_settle(struct hx_store_file *f)
{
    if (f->front_limit == UINT64_MAX || f->front_sink || f->checking)
        return false;
    uint64_t limit = f->front_limit;
    f->front_limit = UINT64_MAX;
    if (f->front <= limit)
        return true;
    while (f->n_hashes > 0 && f->hashes[f->n_hashes - 1].n_bytes > limit)
        f->n_hashes--;
    if (f->n_hashes > 0 && hx_sha256_load(f->front_hash, &f->hashes[f->n_hashes - 1]) == 0) {
        f->front = f->hashes[f->n_hashes - 1].n_bytes;
    } else {
        hx_sha256_reset(f->front_hash);
        f->front = 0;
    }
    return true;
}

void hx_file_front_reset(struct hx_store_file *f, uint64_t limit)
{
    if (limit < f->front_limit)
        f->front_limit = limit;
    hx_file_front_settle(f);
}

/* What a read pass looks at; every member may be NULL. */
struct pass {
    struct hx_sha256 *a, *b;
    struct hx_scan *scan;
    const bool *stop;
};

static int read_range(struct hx_store_file *f, uint64_t begin, uint64_t end, struct pass *p,
                      uint8_t *buf, struct hx_error *err)
{
    for (uint64_t at = begin; at < end;) {
        size_t skew = (size_t)(at % HX_PART_ALIGN), n = HX_STORE_BLOCK - skew;
        if (n > end - at)
            n = (size_t)(end - at);
        int r = hx_part_read(&f->part, buf + skew, n, at, err);
        if (r < 0)
            return r;
        if (p->a && p->b)
            hx_sha256_update_pair(p->a, p->b, buf + skew, n);
        else if (p->a)
            hx_sha256_update(p->a, buf + skew, n);
        if (p->scan)
            r = hx_scan_data(p->scan, buf + skew, n, err);
        if (r < 0)
            return hx_wrap(err, r, "%s", f->plan->lock->out);
        hx_part_forget(&f->part, at, n);
        at += n;
        if (p->stop && __atomic_load_n(p->stop, __ATOMIC_RELAXED))
            return -ECANCELED;
    }
    return 0;
}

int hx_file_hash_chunk(struct hx_store_file *f, size_t chunk, struct hx_sha256 *h,
                       struct hx_sha256 *also, uint8_t *buf, struct hx_error *err)
{
    const struct hx_plan_chunk *c = &f->plan->chunks[chunk];
    struct pass p = {h, also, NULL, NULL};
    return read_range(f, c->out_begin, c->out_begin + c->out_bytes, &p, buf, err);
}

static size_t chunk_at(const struct hx_plan_file *p, uint64_t offset)
{
    size_t lo = 0, hi = p->n_chunks;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (p->chunks[mid].out_begin <= offset)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* One chunk of the whole file's hash. Mutex held at begin and end. */
static int follow(struct hx_store *s, struct hx_store_file *f, uint8_t *buf, struct hx_error *err)
{
    const struct hx_plan_chunk *c = &f->plan->chunks[chunk_at(f->plan, f->front)];
    struct hx_sha256 *h = NULL;
    int r = hx_sha256_new(&h, err);
    if (r < 0)
        return r;
    hx_sha256_copy(h, f->front_hash);
    pthread_mutex_unlock(&s->m);
    struct pass p = {h, NULL, NULL, &s->stop_check};
    r = read_range(f, c->out_begin, c->out_begin + c->out_bytes, &p, buf, err);
    pthread_mutex_lock(&s->m);
    f->checking = false;
    if (!hx_file_front_settle(f) && r == 0) {
        hx_sha256_copy(f->front_hash, h);
        f->front = c->out_begin + c->out_bytes;
        hx_file_save_front(s, f);
    }
    hx_sha256_free(h);
    return r;
}

/* ---- header and values ---- */

/* Bytes in front of the data area, from the part. */
static int header_length(struct hx_store_file *f, uint64_t *n, struct hx_error *err)
{
    uint8_t b[HX_STHDR_PROBE];
    uint64_t size = f->plan->out_bytes;
    size_t len = size < sizeof(b) ? (size_t)size : sizeof(b);
    int r = hx_part_read(&f->part, b, len, 0, err);
    return r < 0 ? r : hx_sthdr_length(f->plan->lock->out, b, len, size, n, err);
}

/* Checks the header and keeps what the scan needs. */
static int load_table(struct hx_store_file *f, struct hx_scan_table **out, struct hx_error *err)
{
    const struct hx_lock_file *lock = f->plan->lock;
    uint8_t digest[HX_SHA256_BYTES];
    uint64_t n;
    struct hx_st_file *header = NULL;
    int r = header_length(f, &n, err);
    if (r < 0)
        return r;
    uint8_t *data = malloc((size_t)n);
    if (!data)
        return hx_fail(err, -ENOMEM, "%s: out of memory for its header", lock->out);
    r = hx_part_read(&f->part, data, (size_t)n, 0, err);
    if (r == 0 && lock->has_header_sha256 && !f->plan->header) {
        hx_sha256_data(data, (size_t)n, digest);
        if (memcmp(digest, lock->header_sha256, HX_SHA256_BYTES) != 0)
            r = hx_fail(err, -EINVAL, "%s: its header is not the one that the lock file names",
                        lock->out);
    }
    if (r == 0)
        r = hx_sthdr_parse(lock->out, data, (size_t)n, f->plan->out_bytes, &header, err);
    if (r == 0)
        r = hx_scan_table_new(header, out, err);
    hx_st_close(header);
    free(data);
    return r;
}

/* Chunks that arrived before the header was known, and elements that lie in two chunks. */
static int scan_rest(struct hx_store *s, struct hx_store_file *f, uint8_t *buf,
                     struct hx_error *err)
{
    struct hx_scan scan;
    struct pass p = {NULL, NULL, &scan, &s->stop_check};
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        uint64_t begin = f->plan->chunks[i].out_begin;
        uint64_t end = begin + f->plan->chunks[i].out_bytes;
        if (f->chunks[i].flags & HX_JOURNAL_SCANNED) {
            begin = begin < 4 ? 0 : begin - 4;
            end = begin + 8 < f->plan->out_bytes ? begin + 8 : f->plan->out_bytes;
        }
        hx_scan_begin(&scan, f->table, begin);
        int r = read_range(f, begin, end, &p, buf, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- the end of a file ---- */

/* The data of a file that stays wrong is kept for whoever wants to look, if there is room for
 * another try beside it. */
static void set_aside(struct hx_store *s, struct hx_store_file *f)
{
    struct statvfs v;
    char *name = NULL;
    if (fstatvfs(f->part.fd, &v) < 0 ||
        (uint64_t)v.f_bavail * v.f_frsize < f->plan->out_bytes + SPARE_BYTES)
        return;
    for (int i = 1; i <= MAX_BAD_COPIES; i++) {
        free(name);
        if (asprintf(&name, "%s.bad-%d", f->ready_path, i) < 0)
            return;
        if (access(name, F_OK) < 0)
            break;
    }
    if (rename(f->part_path, name) == 0)
        hx_store_note(s, f->index, "%s: its data was kept as %s", f->plan->lock->out, name);
    free(name);
}

/* Journals that the marked chunks have to be fetched again, then says so. Mutex not held. */
static int file_bad(struct hx_store *s, struct hx_store_file *f, const bool *drop,
                    const char *message, struct hx_error *err)
{
    struct hx_journal_entry *e = calloc(f->plan->n_chunks + 1, sizeof(*e));
    size_t n = 1;
    if (!e)
        return hx_fail(err, -ENOMEM, "%s: out of memory", f->plan->lock->out);
    e[0] = (struct hx_journal_entry){.type = HX_JOURNAL_HASH};
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        if (drop[i])
            e[n++] = (struct hx_journal_entry){.type = HX_JOURNAL_DROP, .index = (uint32_t)i};
    }
    int r = hx_file_record(s, f, e, n, err);
    free(e);
    if (r < 0)
        return r;
    bool last = ++f->n_bad_hash >= s->opt.most_wrong;
    pthread_mutex_lock(&s->m);
    for (size_t i = 0; i < f->plan->n_chunks; i++) {
        if (!drop[i])
            continue;
        f->chunks[i].state = HX_CHUNK_MISSING;
        f->n_done--;
        s->bytes_done -= f->plan->chunks[i].out_bytes;
    }
    f->n_hashes = 0;
    f->checking = false;
    if (f->front_hash)
        hx_file_front_reset(f, 0);
    if (last) {
        set_aside(s, f);
        hx_store_stop_file(s, f, -EBADMSG, message);
    } else {
        f->notice.ev = (struct hx_store_event){.type = HX_STORE_FILE_BAD, .file = f->index};
        snprintf(f->notice.ev.message, sizeof(f->notice.ev.message), "%s", message);
        hx_store_notify(s, &f->notice);
    }
    pthread_mutex_unlock(&s->m);
    return 0;
}

/* 0: right; 1: wrong and dealt with; negative: cannot go on. */
static int check_hash(struct hx_store *s, struct hx_store_file *f, struct hx_error *err)
{
    char found[HX_SHA256_HEX], want[HX_SHA256_HEX], message[512];
    struct hx_sha256 *h = NULL;
    int r = hx_sha256_new(&h, err);
    if (r < 0)
        return r;
    hx_sha256_copy(h, f->front_hash);
    hx_sha256_final(h, f->sha256);
    hx_sha256_free(h);
    if (f->plan->lock->has_sha256 &&
        memcmp(f->sha256, f->plan->lock->sha256, HX_SHA256_BYTES) != 0) {
        hx_sha256_to_hex(f->sha256, found);
        hx_sha256_to_hex(f->plan->lock->sha256, want);
        bool *drop = calloc(f->plan->n_chunks + 1, sizeof(*drop));
        size_t n = 0;
        for (size_t i = 0; drop && i < f->plan->n_chunks; i++) {
            drop[i] = !(f->chunks[i].flags & HX_JOURNAL_CHECKED);
            n += drop[i];
        }
        if (!drop)
            return hx_fail(err, -ENOMEM, "%s: out of memory", f->plan->lock->out);
        if (n == 0)
            r = hx_fail(err, -EINVAL,
                        "%s: every chunk is what the lock file says, but the file's SHA-256 is %s "
                        "and not %s: the lock file contradicts itself",
                        f->plan->lock->out, found, want);
        snprintf(message, sizeof(message), "%s: SHA-256 is %s, the lock file says %s",
                 f->plan->lock->out, found, want);
        if (n > 0)
            r = file_bad(s, f, drop, message, err);
        free(drop);
        return r < 0 ? r : 1;
    }
    return 0;
}

/* As above. */
static int check_whole(struct hx_store *s, struct hx_store_file *f, uint8_t *buf,
                       struct hx_error *err)
{
    int r = 0;
    if (f->front_hash)
        r = check_hash(s, f, err);
    else /* every chunk is what the lock file says */
        memcpy(f->sha256, f->plan->lock->sha256, HX_SHA256_BYTES);
    if (r != 0 || !hx_file_is_safetensors(f))
        return r;
    if (!f->table)
        r = load_table(f, &f->table, err);
    return r < 0 ? r : scan_rest(s, f, buf, err);
}

/* Tensor by tensor, since a cut has no hash of its own at the source. */
static int check_tensors(struct hx_store *s, struct hx_store_file *f, struct hx_sha256 *all,
                         struct hx_sha256 *one, bool *drop, char *message, size_t n_message,
                         uint8_t *buf, struct hx_error *err)
{
    uint64_t at = f->plan->header_bytes;
    struct hx_scan scan;
    hx_scan_begin(&scan, f->table, at);
    for (size_t i = 0; i < f->plan->lock->n_tensors; i++) {
        const struct hx_lock_tensor *t = &f->plan->lock->tensors[i];
        uint64_t end = at + (t->end - t->begin);
        uint8_t digest[HX_SHA256_BYTES];
        struct pass p = {all, one, &scan, &s->stop_check};
        hx_sha256_reset(one);
        int r = read_range(f, at, end, &p, buf, err);
        if (r < 0)
            return r;
        hx_sha256_final(one, digest);
        if (t->has_sha256 && memcmp(digest, t->sha256, HX_SHA256_BYTES) != 0) {
            char found[HX_SHA256_HEX], want[HX_SHA256_HEX];
            hx_sha256_to_hex(digest, found);
            hx_sha256_to_hex(t->sha256, want);
            if (!*message)
                snprintf(message, n_message,
                         "%s: tensor '%s' has SHA-256 %s, the lock file says %s",
                         f->plan->lock->out, t->name, found, want);
            for (size_t c = chunk_at(f->plan, at);
                 c < f->plan->n_chunks && f->plan->chunks[c].out_begin < end; c++)
                drop[c] = true;
        }
        at = end;
    }
    return 0;
}

static int check_cut(struct hx_store *s, struct hx_store_file *f, uint8_t *buf,
                     struct hx_error *err)
{
    char message[512] = "";
    struct hx_sha256 *all = NULL, *one = NULL;
    bool *drop = calloc(f->plan->n_chunks + 1, sizeof(*drop));
    int r = drop ? 0 : hx_fail(err, -ENOMEM, "%s: out of memory", f->plan->lock->out);
    if (r == 0)
        r = hx_sha256_new(&all, err);
    if (r == 0)
        r = hx_sha256_new(&one, err);
    /* Last of all: a file without a header is obviously not finished. */
    while (r == 0 &&
           (r = hx_part_write(&f->part, f->plan->header, f->plan->header_bytes, 0, err)) < 0)
        r = hx_store_wait_room(s, r, err->text);
    if (r == 0)
        r = hx_part_sync(&f->part, err);
    if (r == 0 && !f->table)
        r = load_table(f, &f->table, err);
    if (r == 0) {
        hx_sha256_update(all, f->plan->header, f->plan->header_bytes);
        r = check_tensors(s, f, all, one, drop, message, sizeof(message), buf, err);
    }
    if (r == 0 && *message) {
        r = file_bad(s, f, drop, message, err);
        r = r < 0 ? r : 1;
    } else if (r == 0) {
        hx_sha256_final(all, f->sha256);
    }
    hx_sha256_free(all);
    hx_sha256_free(one);
    free(drop);
    return r;
}

int hx_file_make_ready(struct hx_store_file *f, struct hx_error *err)
{
    if (rename(f->part_path, f->ready_path) < 0)
        return hx_fail_errno(err, errno, "%s: cannot rename to %s", f->part_path, f->ready_path);
    hx_fetch_step("part renamed");
    char *folder = strdup(f->ready_path);
    if (!folder)
        return hx_fail(err, -ENOMEM, "%s: out of memory", f->ready_path);
    *strrchr(folder, '/') = '\0';
    int r = hx_folder_sync(folder, err);
    free(folder);
    hx_fetch_step("folder synced");
    return r;
}

/* All chunks are there. Mutex held at begin and end. */
static int conclude(struct hx_store *s, struct hx_store_file *f, uint8_t *buf, struct hx_error *err)
{
    pthread_mutex_unlock(&s->m);
    int r = f->plan->header ? check_cut(s, f, buf, err) : check_whole(s, f, buf, err);
    if (r == 0) {
        struct hx_journal_entry e = {.type = HX_JOURNAL_READY};
        memcpy(e.digest, f->sha256, HX_SHA256_BYTES);
        r = hx_file_record(s, f, &e, 1, err);
    }
    while (r == 0 && (r = hx_file_make_ready(f, err)) < 0)
        r = hx_store_wait_room(s, r, err->text);
    pthread_mutex_lock(&s->m);
    f->checking = false;
    if (r == 0) {
        hx_part_close(&f->part);
        f->phase = HX_FILE_READY;
        f->notice.ev = (struct hx_store_event){
            .type = HX_STORE_FILE_READY, .file = f->index, .n_bytes = f->plan->out_bytes};
        hx_store_notify(s, &f->notice);
    }
    return r < 0 ? r : 0;
}

/* The header can be read as soon as its chunks are there; what follows is then scanned on the way
 * in. Mutex held at begin and end. */
static void try_table(struct hx_store *s, struct hx_store_file *f)
{
    struct hx_error err = {0};
    struct hx_scan_table *table = NULL;
    uint64_t n = 0;
    pthread_mutex_unlock(&s->m);
    int r = header_length(f, &n, &err);
    pthread_mutex_lock(&s->m);
    bool there = r == 0;
    for (size_t i = 0; there && i < f->plan->n_chunks && f->plan->chunks[i].out_begin < n; i++)
        there = f->chunks[i].state == HX_CHUNK_DONE;
    if (!there)
        return;
    f->table_tried = true;
    pthread_mutex_unlock(&s->m);
    r = load_table(f, &table, &err); /* a failure is reported when the file is complete */
    pthread_mutex_lock(&s->m);
    if (r == 0)
        f->table = table;
}

static bool table_wanted(const struct hx_store_file *f)
{
    return !f->table && !f->table_tried && !f->plan->header && hx_file_is_safetensors(f) &&
           f->plan->n_chunks > 1 && f->n_done > f->table_n_done &&
           f->chunks[0].state == HX_CHUNK_DONE;
}

static bool follow_wanted(const struct hx_store_file *f)
{
    return f->front_hash && f->front < f->plan->out_bytes && !f->front_sink &&
           f->chunks[chunk_at(f->plan, f->front)].state == HX_CHUNK_DONE;
}

static bool conclude_wanted(const struct hx_store_file *f)
{
    return f->n_done == f->plan->n_chunks && (!f->front_hash || f->front == f->plan->out_bytes) &&
           !f->front_sink;
}

/* One piece of work; false: none. Mutex held at begin and end. */
static bool check_one(struct hx_store *s, uint8_t *buf)
{
    for (size_t i = 0; i < s->n_files; i++) {
        struct hx_store_file *f = &s->files[i];
        struct hx_error err = {0};
        int r = 0;
        if (f->phase != HX_FILE_GROWING)
            continue;
        if (table_wanted(f)) {
            f->checking = true;
            f->table_n_done = f->n_done;
            try_table(s, f);
        } else if (follow_wanted(f)) {
            f->checking = true;
            r = follow(s, f, buf, &err);
        } else if (conclude_wanted(f)) {
            f->checking = true;
            r = conclude(s, f, buf, &err);
        } else {
            continue;
        }
        f->checking = false;
        hx_file_front_settle(f);
        if (r < 0 && r != -ECANCELED)
            hx_store_stop_file(s, f, r, err.text);
        return true;
    }
    return false;
}

void *hx_store_checker(void *store)
{
    struct hx_store *s = store;
    void *buf = NULL;
    bool out_of_memory = posix_memalign(&buf, HX_PART_ALIGN, HX_STORE_BLOCK) != 0;
    pthread_mutex_lock(&s->m);
    for (size_t i = 0; out_of_memory && i < s->n_files; i++)
        hx_store_stop_file(s, &s->files[i], -ENOMEM, "out of memory for verification");
    while (!s->stop_check && !out_of_memory) {
        if (!check_one(s, buf))
            pthread_cond_wait(&s->check, &s->m);
    }
    pthread_mutex_unlock(&s->m);
    free(buf);
    return NULL;
}
