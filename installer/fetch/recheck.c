#include "fetch/recheck.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "fetch/part.h"

#define BLOCK ((size_t)1 << 20)

/* One file being read. */
struct reading {
    struct hx_recheck *c;
    struct hx_part part;
    uint8_t *buf;
    struct hx_sha256 *all, *one, *tensor;
    bool all_read; /* `all` has seen every byte */
    size_t at_tensor;
    uint64_t tensor_begin;
};

HX_PRINTF(2, 3)
static void say(struct hx_recheck *c, const char *fmt, ...)
{
    c->wrong = true;
    if (*c->message)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->message, sizeof(c->message), fmt, ap);
    va_end(ap);
}

static void mark(struct hx_recheck *c, size_t chunk)
{
    c->wrong = true;
    if (c->bad[chunk])
        return;
    c->bad[chunk] = true;
    c->n_bad++;
    c->bad_bytes += c->plan->chunks[chunk].out_bytes;
}

static void mark_all(struct hx_recheck *c)
{
    for (size_t i = 0; c->plan && i < c->plan->n_chunks; i++)
        mark(c, i);
}

static void mark_range(struct hx_recheck *c, uint64_t begin, uint64_t end)
{
    for (size_t i = 0; i < c->plan->n_chunks; i++) {
        const struct hx_plan_chunk *k = &c->plan->chunks[i];
        if (k->out_begin < end && k->out_begin + k->out_bytes > begin)
            mark(c, i);
    }
}

static void compare_tensor(struct reading *r, const struct hx_lock_tensor *t)
{
    uint8_t found[HX_SHA256_BYTES];
    hx_sha256_final(r->tensor, found);
    hx_sha256_reset(r->tensor);
    if (!t->has_sha256 || memcmp(found, t->sha256, HX_SHA256_BYTES) == 0)
        return;
    say(r->c, "%s: tensor '%s' is damaged", r->c->path, t->name);
    mark_range(r->c, r->tensor_begin, r->tensor_begin + (t->end - t->begin));
}

/* Bytes of a cut's data: also into the hash of the tensor they belong to. */
static void feed_tensors(struct reading *r, uint64_t at, const uint8_t *p, size_t n)
{
    const struct hx_lock_file *f = r->c->plan->lock;
    while (n > 0 && r->at_tensor < f->n_tensors) {
        const struct hx_lock_tensor *t = &f->tensors[r->at_tensor];
        uint64_t end = r->tensor_begin + (t->end - t->begin);
        if (at >= end) { /* its last bytes could not be read */
            compare_tensor(r, t);
            r->at_tensor++;
            r->tensor_begin = end;
            continue;
        }
        size_t len = end - at < n ? (size_t)(end - at) : n;
        hx_sha256_update(r->tensor, p, len);
        at += len;
        p += len;
        n -= len;
        if (at == end) {
            compare_tensor(r, t);
            r->at_tensor++;
            r->tensor_begin = end;
        }
    }
}

/* [begin, end) into the hashes; false: could not be read. */
static int read_range(struct reading *r, uint64_t begin, uint64_t end, bool *readable)
{
    struct hx_error err;
    *readable = true;
    for (uint64_t at = begin; at < end;) {
        size_t skew = (size_t)(at % HX_PART_ALIGN), n = BLOCK - skew;
        if (n > end - at)
            n = (size_t)(end - at);
        if (atomic_load_explicit(r->c->stop, memory_order_relaxed))
            return -ECANCELED;
        if (hx_part_read(&r->part, r->buf + skew, n, at, &err) < 0) {
            say(r->c, "%s", err.text);
            atomic_fetch_add(r->c->done, end - at);
            *readable = r->all_read = false;
            /* The tensors from here on get a wrong hash by themselves. */
            return 0;
        }
        hx_sha256_update_pair(r->all, r->one, r->buf + skew, n);
        if (r->c->plan && r->c->plan->header && at >= r->c->plan->header_bytes)
            feed_tensors(r, at, r->buf + skew, n);
        hx_part_forget(&r->part, at, n);
        atomic_fetch_add(r->c->done, n);
        at += n;
    }
    return 0;
}

static bool picked(const struct hx_recheck *c)
{
    uint32_t dice;
    if (c->sample >= 1)
        return true;
    if (getrandom(&dice, sizeof(dice), 0) != (ssize_t)sizeof(dice))
        return true;
    return dice < c->sample * UINT32_MAX;
}

static int read_chunk(struct reading *r, size_t i)
{
    struct hx_recheck *c = r->c;
    const struct hx_plan_chunk *k = &c->plan->chunks[i];
    bool readable;
    hx_sha256_reset(r->one);
    int e = read_range(r, k->out_begin, k->out_begin + k->out_bytes, &readable);
    if (e < 0)
        return e;
    hx_sha256_final(r->one, c->digest[i]);
    if (!readable) {
        mark(c, i);
    } else if (k->sha256 && memcmp(c->digest[i], k->sha256, HX_SHA256_BYTES) != 0) {
        say(c, "%s: bytes %llu to %llu are damaged", c->path, (unsigned long long)k->out_begin,
            (unsigned long long)(k->out_begin + k->out_bytes - 1));
        mark(c, i);
    }
    return 0;
}

static int read_header(struct reading *r)
{
    struct hx_recheck *c = r->c;
    uint8_t digest[HX_SHA256_BYTES], want[HX_SHA256_BYTES];
    bool readable;
    int e = read_range(r, 0, c->plan->header_bytes, &readable);
    if (e < 0)
        return e;
    hx_sha256_final(r->one, digest);
    hx_sha256_data(c->plan->header, c->plan->header_bytes, want);
    if (!readable || memcmp(digest, want, sizeof(want)) != 0)
        say(c, "%s: its header is damaged", c->path);
    r->tensor_begin = c->plan->header_bytes;
    return 0;
}

static int read_all(struct reading *r)
{
    struct hx_recheck *c = r->c;
    uint8_t digest[HX_SHA256_BYTES];
    bool readable;
    int e = 0;
    r->all_read = true;
    if (!c->plan) {
        e = read_range(r, 0, c->size, &readable);
    } else {
        /* A cut's chunks have no hash of their own, so a sample of it is all of it. */
        bool every = c->sample >= 1 || c->plan->header || c->plan->n_chunks == 1;
        if (c->plan->header)
            e = read_header(r);
        for (size_t i = 0; e == 0 && i < c->plan->n_chunks; i++) {
            if (every || (c->plan->chunks[i].sha256 && picked(c))) {
                e = read_chunk(r, i);
                continue;
            }
            r->all_read = false;
            atomic_fetch_add(c->done, c->plan->chunks[i].out_bytes);
        }
    }
    if (e < 0 || !r->all_read)
        return e;
    hx_sha256_final(r->all, digest);
    if (memcmp(digest, c->want, HX_SHA256_BYTES) != 0 && !c->wrong) {
        say(c, "%s: is damaged, its SHA-256 is not the one in state.json", c->path);
        mark_all(c);
    }
    return 0;
}

int hx_recheck_file(struct hx_recheck *c, struct hx_error *err)
{
    struct reading r = {.c = c, .part = HX_PART_INIT};
    size_t n = c->plan ? c->plan->n_chunks : 0;
    void *buf = NULL;
    struct stat st;
    int e = 0;
    c->bad = calloc(n + 1, sizeof(*c->bad));
    c->digest = calloc(n + 1, sizeof(*c->digest));
    if (!c->bad || !c->digest || posix_memalign(&buf, HX_PART_ALIGN, BLOCK) != 0)
        return hx_fail(err, -ENOMEM, "%s: out of memory", c->path);
    r.buf = buf;
    if (hx_sha256_new(&r.all, err) < 0 || hx_sha256_new(&r.one, err) < 0 ||
        hx_sha256_new(&r.tensor, err) < 0)
        e = -ENOMEM;
    struct hx_error why;
    if (e < 0) {
        /* err is set */
    } else if (hx_part_open_read(c->path, c->direct, &r.part, &why) < 0) {
        say(c, "%s", why.text);
        mark_all(c);
        atomic_fetch_add(c->done, c->size);
    } else {
        if (fstat(r.part.fd, &st) == 0 && (uint64_t)st.st_size != c->size)
            say(c, "%s: has %lld bytes, expected %llu", c->path, (long long)st.st_size,
                (unsigned long long)c->size);
        e = read_all(&r);
    }
    hx_part_close(&r.part);
    hx_sha256_free(r.all);
    hx_sha256_free(r.one);
    hx_sha256_free(r.tensor);
    free(buf);
    return e;
}

void hx_recheck_done(struct hx_recheck *c)
{
    free(c->bad);
    free(c->digest);
    c->bad = NULL;
    c->digest = NULL;
}
