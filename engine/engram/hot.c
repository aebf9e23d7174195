/* The keys of the cached groups over a restart. A hint, not data: rows are read again, so a damaged
 * file can only cost reads.
 *
 *   "hx170 engram hot"  16 bytes
 *   fingerprint         8 bytes: what the keys depend on (layers, multipliers, sizes)
 *   n                   8 bytes, little-endian
 *   n x 9 bytes         key, then table * 8 + size
 *   SHA-256 of all above */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rand.h"
#include "base/sha256.h"
#include "engram/stream_impl.h"

#define MAGIC       "hx170 engram hot"
#define MAGIC_BYTES 16
#define HEAD_BYTES  32
#define ENTRY_BYTES HX_ENGRAM_HOT_ENTRY
#define MAX_BYTES   ((size_t)64 << 20)
#define MAX_GROUPS  ((MAX_BYTES - HEAD_BYTES - HX_SHA256_BYTES) / ENTRY_BYTES)
#define LOAD_GROUPS 512 /* of one plan */
#define BUSY_US     2000

static uint64_t fingerprint(const struct hx_engram_stream *s)
{
    uint64_t x = (uint64_t)s->n_sizes * 64 + (uint64_t)s->n_heads;
    for (int t = 0; t < s->n_tables; t++) {
        const int64_t *m = hx_engram_multipliers(s->o.hash, t);
        for (int k = 0; k <= s->n_sizes; k++)
            x = hx_mix64(x ^ (uint64_t)m[k]);
        x = hx_mix64(x ^ (uint64_t)s->table[t].n_rows);
    }
    return x;
}

static void put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

struct writer {
    uint8_t *data;
    size_t n, most;
};

static bool write_entry(void *user, const struct hx_engram_entry *e)
{
    struct writer *w = user;
    uint8_t *p = w->data + HEAD_BYTES + w->n * ENTRY_BYTES;
    if (w->n == w->most)
        return false;
    put_u64(p, e->key);
    p[8] = (uint8_t)(e->table * 8 + e->size);
    w->n++;
    return true;
}

int hx_engram_hot_save(struct hx_engram_stream *s, const char *path, struct hx_error *err)
{
    if (!s->o.hash)
        return hx_fail(err, -EINVAL, "%s: rows by id have no keys", path);
    pthread_mutex_lock(&s->lock);
    struct writer w = {.most = hx_engram_cache_count(s->cache)};
    w.most = w.most < MAX_GROUPS ? w.most : MAX_GROUPS;
    w.data = malloc(HEAD_BYTES + w.most * ENTRY_BYTES + HX_SHA256_BYTES);
    if (w.data)
        hx_engram_cache_walk(s->cache, write_entry, &w);
    pthread_mutex_unlock(&s->lock);
    if (!w.data)
        return hx_fail(err, -ENOMEM, "out of memory for the keys of %zu groups", w.most);
    size_t len = HEAD_BYTES + w.n * ENTRY_BYTES;
    memcpy(w.data, MAGIC, MAGIC_BYTES);
    put_u64(w.data + MAGIC_BYTES, fingerprint(s));
    put_u64(w.data + MAGIC_BYTES + 8, w.n);
    int r = hx_sha256_data(w.data, len, w.data + len);
    if (r < 0)
        hx_fail(err, r, "%s: cannot hash", path);
    if (r == 0)
        r = hx_file_replace(path, w.data, len + HX_SHA256_BYTES, err);
    free(w.data);
    return r;
}

/* ---- loading ---- */

static int check_file(const struct hx_engram_stream *s, const uint8_t *d, size_t len,
                      const char *path, struct hx_error *err)
{
    uint8_t digest[HX_SHA256_BYTES];
    if (len < HEAD_BYTES + HX_SHA256_BYTES || memcmp(d, MAGIC, MAGIC_BYTES) != 0)
        return hx_fail(err, -EINVAL, "%s: not a file of Engram keys", path);
    size_t body = len - HX_SHA256_BYTES;
    if (get_u64(d + MAGIC_BYTES + 8) != (body - HEAD_BYTES) / ENTRY_BYTES ||
        (body - HEAD_BYTES) % ENTRY_BYTES != 0 || hx_sha256_data(d, body, digest) < 0 ||
        memcmp(digest, d + body, sizeof(digest)) != 0)
        return hx_fail(err, -EINVAL, "%s: damaged", path);
    if (get_u64(d + MAGIC_BYTES) != fingerprint(s))
        return hx_fail(err, -EINVAL, "%s: keys of other tables", path);
    for (const uint8_t *p = d + HEAD_BYTES; p < d + body; p += ENTRY_BYTES) {
        if (p[8] / 8 >= s->n_tables || p[8] % 8 >= s->n_sizes)
            return hx_fail(err, -EINVAL, "%s: key of table %d, size %d", path, p[8] / 8, p[8] % 8);
    }
    return 0;
}

int hx_engram_hot_load(struct hx_engram_stream *s, const char *path, const atomic_bool *stop,
                       uint64_t *n_groups, struct hx_error *err)
{
    char *text = NULL;
    size_t len = 0;
    if (!s->o.hash)
        return hx_fail(err, -EINVAL, "%s: rows by id have no keys", path);
    int r = hx_file_read(path, MAX_BYTES, &text, &len, err);
    if (r < 0)
        return r;
    const uint8_t *d = (const uint8_t *)text;
    r = check_file(s, d, len, path, err);
    uint64_t n = r == 0 ? get_u64(d + MAGIC_BYTES + 8) : 0, done = 0;
    /* The last used first, so backwards: what does not fit any more is the least used. */
    while (r == 0 && done < n && !(stop && atomic_load(stop))) {
        uint64_t part = n - done < LOAD_GROUPS ? n - done : LOAD_GROUPS;
        r = hx_engram_plan_groups(s, d + HEAD_BYTES + (n - done - part) * ENTRY_BYTES, (int)part,
                                  err);
        if (r == -EAGAIN) {
            usleep(BUSY_US);
            r = 0;
            continue;
        }
        done += part;
    }
    free(text);
    if (r == 0)
        *n_groups = done;
    return r;
}
