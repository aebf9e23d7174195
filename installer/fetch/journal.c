/* Journal records. Little-endian: crc32c u32 of the other 60 bytes, type u8, flags u8, zero u16,
 * index u32, zero u32, length u64, record number u64, digest 32 bytes. */
#include "fetch/journal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "fetch/step.h"

#define MAX_BYTES  ((size_t)1 << 30)
#define MAX_HASHES 65536

static uint32_t crc32c(const uint8_t *p, size_t n)
{
    uint32_t c = ~0u;
    while (n--) {
        c ^= *p++;
        for (int i = 0; i < 8; i++)
            c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0);
    }
    return ~c;
}

static void put(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static void encode(const struct hx_journal_entry *e, uint64_t seq, uint8_t out[HX_JOURNAL_RECORD])
{
    memset(out, 0, HX_JOURNAL_RECORD);
    out[4] = (uint8_t)e->type;
    out[5] = (uint8_t)e->flags;
    put(out + 8, e->index, 4);
    put(out + 16, e->length, 8);
    put(out + 24, seq, 8);
    memcpy(out + 32, e->digest, HX_SHA256_BYTES);
    put(out, crc32c(out + 4, HX_JOURNAL_RECORD - 4), 4);
}

static bool decode(const uint8_t *p, uint64_t seq, struct hx_journal_entry *e)
{
    if (get(p, 4) != crc32c(p + 4, HX_JOURNAL_RECORD - 4) || get(p + 24, 8) != seq || p[4] == 0 ||
        p[4] >= HX_JOURNAL_TYPE_MAX)
        return false;
    e->type = (enum hx_journal_type)p[4];
    e->flags = p[5];
    e->index = (uint32_t)get(p + 8, 4);
    e->length = get(p + 16, 8);
    memcpy(e->digest, p + 32, HX_SHA256_BYTES);
    return true;
}

static int add_hash(struct hx_journal_image *im, const struct hx_journal_entry *e)
{
    /* A lower one follows when chunks were dropped: those above it are void; 0 voids them all. */
    while (im->n_hashes > 0 && im->hashes[im->n_hashes - 1].n_bytes >= e->length)
        im->n_hashes--;
    if (im->n_hashes == MAX_HASHES || e->length == 0)
        return 0;
    struct hx_sha256_state *h = realloc(im->hashes, (im->n_hashes + 1) * sizeof(*h));
    if (!h)
        return -ENOMEM;
    im->hashes = h;
    h[im->n_hashes].n_bytes = e->length;
    memcpy(h[im->n_hashes].h, e->digest, HX_SHA256_BYTES);
    im->n_hashes++;
    return 0;
}

/* 1: taken, 0: contradicts the header, -ENOMEM. */
static int apply(struct hx_journal_image *im, const struct hx_journal_entry *e)
{
    im->clean = e->type == HX_JOURNAL_CLEAN;
    switch (e->type) {
    case HX_JOURNAL_CHUNK:
        if (e->index >= im->n_chunks || e->length == 0 || e->length > im->out_bytes)
            return 0;
        im->chunks[e->index] = (struct hx_journal_chunk){true, e->flags, im->n_records, {0}};
        memcpy(im->chunks[e->index].digest, e->digest, HX_SHA256_BYTES);
        return 1;
    case HX_JOURNAL_DROP:
        if (e->index >= im->n_chunks)
            return 0;
        im->chunks[e->index].done = false;
        im->ready = false;
        return 1;
    case HX_JOURNAL_HASH:
        if (e->length % 64 != 0 || e->length > im->out_bytes)
            return 0;
        return add_hash(im, e) < 0 ? -ENOMEM : 1;
    case HX_JOURNAL_READY:
        im->ready = true;
        im->back = false;
        memcpy(im->ready_sha256, e->digest, HX_SHA256_BYTES);
        return 1;
    case HX_JOURNAL_BACK: im->back = true; return 1;
    case HX_JOURNAL_CLEAN: return 1;
    default: return 0;
    }
}

int hx_journal_parse(const uint8_t *data, size_t n, struct hx_journal_image *out,
                     struct hx_error *err)
{
    struct hx_journal_image im = {0};
    struct hx_journal_entry plan, content, e;
    if (n < 2 * HX_JOURNAL_RECORD || !decode(data, 0, &plan) ||
        !decode(data + HX_JOURNAL_RECORD, 1, &content) || plan.type != HX_JOURNAL_PLAN ||
        content.type != HX_JOURNAL_CONTENT)
        return hx_fail(err, -EINVAL, "the journal has no valid beginning");
    if (plan.index > HX_JOURNAL_MAX_CHUNKS)
        return hx_fail(err, -EINVAL, "the journal is of %u chunks, at most %u are possible",
                       plan.index, HX_JOURNAL_MAX_CHUNKS);
    im.n_chunks = plan.index;
    im.out_bytes = plan.length;
    memcpy(im.plan, plan.digest, HX_SHA256_BYTES);
    memcpy(im.content, content.digest, HX_SHA256_BYTES);
    im.chunks = calloc((size_t)im.n_chunks + 1, sizeof(*im.chunks));
    if (!im.chunks)
        return hx_fail(err, -ENOMEM, "out of memory for a journal of %u chunks", im.n_chunks);
    int r = 1;
    for (im.n_records = 2; n / HX_JOURNAL_RECORD > im.n_records; im.n_records++) {
        if (!decode(data + im.n_records * HX_JOURNAL_RECORD, im.n_records, &e))
            break;
        bool clean = im.clean;
        r = apply(&im, &e);
        if (r <= 0) {
            im.clean = clean;
            break;
        }
    }
    im.valid_bytes = im.n_records * HX_JOURNAL_RECORD;
    if (r < 0) {
        hx_journal_image_done(&im);
        return hx_fail(err, -ENOMEM, "out of memory for a journal");
    }
    *out = im;
    return 0;
}

void hx_journal_image_done(struct hx_journal_image *image)
{
    free(image->chunks);
    free(image->hashes);
    *image = (struct hx_journal_image){0};
}

int hx_journal_open(const char *path, struct hx_journal *j, struct hx_journal_image *image,
                    struct hx_error *err)
{
    struct hx_journal_image im = {0};
    char *data = NULL;
    size_t n;
    int r, fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    r = hx_file_read(path, MAX_BYTES, &data, &n, err);
    if (r == 0) {
        r = hx_journal_parse((const uint8_t *)data, n, &im, err);
        if (r < 0)
            hx_wrap(err, r, "%s", path);
    }
    if (r == 0 && im.valid_bytes < n) {
        im.clean = false;
        if (ftruncate(fd, (off_t)im.valid_bytes) < 0 || fsync(fd) < 0)
            r = hx_fail_errno(err, errno, "%s: cannot cut a torn record", path);
        hx_fetch_step("journal cut");
    }
    free(data);
    char *copy = r == 0 ? strdup(path) : NULL;
    if (r == 0 && !copy)
        r = hx_fail(err, -ENOMEM, "%s: out of memory", path);
    if (r < 0) {
        hx_journal_image_done(&im);
        close(fd);
        return r;
    }
    *j = (struct hx_journal){fd, copy, im.n_records};
    *image = im;
    return 0;
}

int hx_journal_create(const char *path, const struct hx_journal_entry *entries, size_t n,
                      struct hx_journal *j, struct hx_error *err)
{
    uint8_t *data = malloc(n * HX_JOURNAL_RECORD);
    char *copy = strdup(path);
    int r = 0, fd = -1;
    if (!data || !copy) {
        r = hx_fail(err, -ENOMEM, "%s: out of memory", path);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        encode(&entries[i], i, data + i * HX_JOURNAL_RECORD);
    r = hx_file_replace(path, data, n * HX_JOURNAL_RECORD, err);
    if (r < 0)
        goto out;
    hx_fetch_step("journal created");
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        r = hx_fail_errno(err, errno, "%s: cannot open", path);
        goto out;
    }
    *j = (struct hx_journal){fd, copy, n};
    copy = NULL;
out:
    free(data);
    free(copy);
    return r;
}

int hx_journal_append(struct hx_journal *j, const struct hx_journal_entry *entries, size_t n,
                      struct hx_error *err)
{
    uint8_t data[64 * HX_JOURNAL_RECORD];
    uint64_t at = j->n_records;
    for (size_t i = 0; i < n;) {
        size_t k = 0;
        while (i < n && k < sizeof(data) / HX_JOURNAL_RECORD) {
            encode(&entries[i++], at + k, data + k * HX_JOURNAL_RECORD);
            k++;
        }
        int r = hx_file_pwrite(j->fd, j->path, data, k * HX_JOURNAL_RECORD, at * HX_JOURNAL_RECORD,
                               err);
        if (r < 0)
            return r;
        at += k;
        hx_fetch_step("journal written");
    }
    j->n_records = at;
    return 0;
}

int hx_journal_sync(struct hx_journal *j, struct hx_error *err)
{
    if (fdatasync(j->fd) < 0)
        return hx_fail_errno(err, errno, "%s: cannot sync", j->path);
    hx_fetch_step("journal synced");
    return 0;
}

void hx_journal_close(struct hx_journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    free(j->path);
    *j = HX_JOURNAL_INIT;
}
