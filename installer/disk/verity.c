#include "disk/verity.h"

#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

#define BLOCK      4096u
#define PER_BLOCK  (BLOCK / HX_SHA256_BYTES)
#define MAX_LEVELS 8
#define SALT_MAX   256

struct walk {
    const struct hx_extent *data, *tree;
    struct hx_sha256 *salted, *h; /* salted: the state behind the salt */
    uint64_t n_data;              /* blocks */
    uint64_t start[MAX_LEVELS],
        count[MAX_LEVELS]; /* blocks of the tree; level 0 is over the data */
    int n_levels;
    uint8_t *below, *hashes; /* PER_BLOCK blocks; one block */
};

static uint64_t get_le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static int read_at(const struct hx_extent *x, void *to, size_t len, uint64_t at,
                   struct hx_error *err)
{
    if (at > x->n_bytes || len > x->n_bytes - at)
        return hx_fail(err, -EBADMSG, "%s: ends too early for the hash tree", x->disk->path);
    return hx_disk_read(x->disk, to, len, x->offset + at, err);
}

static void digest(struct walk *w, const uint8_t *block, uint8_t out[HX_SHA256_BYTES])
{
    hx_sha256_copy(w->h, w->salted);
    hx_sha256_update(w->h, block, BLOCK);
    hx_sha256_final(w->h, out);
}

static int read_superblock(struct walk *w, struct hx_error *err)
{
    static const uint8_t algorithm[32] = {'s', 'h', 'a', '2', '5', '6'};
    uint8_t s[512];
    const char *path = w->tree->disk->path;
    int r = read_at(w->tree, s, sizeof(s), 0, err);
    if (r < 0)
        return r;
    if (memcmp(s, "verity\0\0", 8) != 0)
        return hx_fail(err, -EBADMSG, "%s: no hash tree", path);
    uint64_t salt = get_le(s + 80, 2);
    w->n_data = get_le(s + 72, 8);
    if (get_le(s + 8, 4) != 1 || get_le(s + 12, 4) != 1 ||
        memcmp(s + 32, algorithm, sizeof(algorithm)) != 0 || get_le(s + 64, 4) != BLOCK ||
        get_le(s + 68, 4) != BLOCK || salt > SALT_MAX)
        return hx_fail(err, -EINVAL, "%s: hash tree of another form", path);
    if (w->n_data == 0 || w->n_data > w->data->n_bytes / BLOCK)
        return hx_fail(err, -EBADMSG, "%s: hash tree over %llu blocks, the data has %llu", path,
                       (unsigned long long)w->n_data,
                       (unsigned long long)(w->data->n_bytes / BLOCK));
    return hx_sha256_update(w->salted, s + 88, salt);
}

static void place_levels(struct walk *w)
{
    uint64_t n = w->n_data;
    do {
        n = (n + PER_BLOCK - 1) / PER_BLOCK;
        w->count[w->n_levels++] = n;
    } while (n > 1 && w->n_levels < MAX_LEVELS);
    uint64_t at = 1; /* behind the superblock, top level first */
    for (int l = w->n_levels - 1; l >= 0; l--) {
        w->start[l] = at;
        at += w->count[l];
    }
}

static int check_level(struct walk *w, int level, hx_progress progress, void *ctx,
                       struct hx_error *err)
{
    const struct hx_extent *from = level == 0 ? w->data : w->tree;
    uint64_t n = level == 0 ? w->n_data : w->count[level - 1];
    uint64_t base = level == 0 ? 0 : w->start[level - 1];
    for (uint64_t b = 0; b < w->count[level]; b++) {
        uint64_t first = b * PER_BLOCK;
        size_t k = n - first < PER_BLOCK ? (size_t)(n - first) : PER_BLOCK;
        int r = read_at(w->tree, w->hashes, BLOCK, (w->start[level] + b) * BLOCK, err);
        if (r == 0)
            r = read_at(from, w->below, k * BLOCK, (base + first) * BLOCK, err);
        for (size_t i = 0; r == 0 && i < k; i++) {
            uint8_t found[HX_SHA256_BYTES];
            digest(w, w->below + i * BLOCK, found);
            if (memcmp(found, w->hashes + i * HX_SHA256_BYTES, HX_SHA256_BYTES) != 0)
                r = hx_fail(err, -EBADMSG, "%s: block %llu of the %s is damaged", from->disk->path,
                            (unsigned long long)(first + i), level == 0 ? "system" : "hash tree");
        }
        if (r == 0 && level == 0 && progress)
            r = progress(ctx, "check", (first + k) * BLOCK, n * BLOCK);
        if (r < 0)
            return r;
    }
    return 0;
}

static int check_root(struct walk *w, const char *root_hash, struct hx_error *err)
{
    uint8_t top[HX_SHA256_BYTES];
    char hex[HX_SHA256_HEX];
    int r = read_at(w->tree, w->hashes, BLOCK, w->start[w->n_levels - 1] * BLOCK, err);
    if (r < 0)
        return r;
    digest(w, w->hashes, top);
    hx_sha256_to_hex(top, hex);
    if (strcmp(hex, root_hash) != 0)
        return hx_fail(err, -EBADMSG, "%s: root hash is %s, expected %.64s", w->tree->disk->path,
                       hex, root_hash);
    return 0;
}

int hx_verity_check(const struct hx_extent *data, const struct hx_extent *tree,
                    const char *root_hash, hx_progress progress, void *ctx, struct hx_error *err)
{
    struct walk w = {.data = data, .tree = tree};
    int r = hx_sha256_new(&w.salted, err);
    if (r == 0)
        r = hx_sha256_new(&w.h, err);
    w.below = malloc((size_t)PER_BLOCK * BLOCK);
    w.hashes = malloc(BLOCK);
    if (r == 0 && (!w.below || !w.hashes))
        r = hx_fail(err, -ENOMEM, "out of memory for the hash tree");
    if (r == 0)
        r = read_superblock(&w, err);
    if (r == 0) {
        place_levels(&w);
        r = check_root(&w, root_hash, err);
    }
    /* From the root down, so that every hash that is compared with is itself proven. */
    for (int l = w.n_levels - 1; r == 0 && l >= 0; l--)
        r = check_level(&w, l, progress, ctx, err);
    free(w.below);
    free(w.hashes);
    hx_sha256_free(w.salted);
    hx_sha256_free(w.h);
    return r;
}
