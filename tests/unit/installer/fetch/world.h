/* A small release for tests of the store: three files in memory, a lock file and a plan for them, a
 * folder to put them in, and a feeder that plays the download. */
#ifndef HX_TEST_FETCH_WORLD_H
#define HX_TEST_FETCH_WORLD_H

#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rand.h"
#include "base/sha256.h"
#include "fetch/journal.h"
#include "fetch/lock.h"
#include "fetch/plan.h"
#include "fetch/store.h"

#define WORLD_FILES 3

struct world {
    char models[96];
    struct hx_lock *lock;
    struct hx_plan *plan;
    uint8_t *source[WORLD_FILES]; /* as the server has it, by file of the lock */
    size_t source_bytes[WORLD_FILES];
    uint64_t fetched; /* source bytes fed */
    size_t n_bad, n_lost, n_file_bad, n_stopped, n_full, n_read_only, n_resumed, n_notes;
    char message[512]; /* of the last bad news */
};

static inline void world_hex(const uint8_t *p, size_t n, char out[HX_SHA256_HEX])
{
    uint8_t d[HX_SHA256_BYTES];
    hx_sha256_data(p, n, d);
    hx_sha256_to_hex(d, out);
}

/* Tensors of BF16 with finite values under a header. */
static inline uint8_t *world_shard(const size_t *tensor_bytes, int n_tensors, uint64_t seed,
                                   size_t *n, size_t *header)
{
    char json[4096];
    size_t at = 0, len = (size_t)snprintf(json, sizeof(json), "{");
    for (int i = 0; i < n_tensors; i++) {
        len += (size_t)snprintf(json + len, sizeof(json) - len,
                                "%s\"t%d\":{\"dtype\":\"BF16\",\"shape\":[%zu],"
                                "\"data_offsets\":[%zu,%zu]}",
                                i ? "," : "", i, tensor_bytes[i] / 2, at, at + tensor_bytes[i]);
        at += tensor_bytes[i];
    }
    len += (size_t)snprintf(json + len, sizeof(json) - len, "}");
    *header = 8 + len;
    *n = *header + at;
    uint8_t *p = calloc(1, *n);
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(len >> (8 * i));
    memcpy(p + 8, json, len);
    struct hx_rng g;
    hx_rng_seed(&g, seed);
    for (size_t i = *header; i < *n; i++) /* high byte of a value: never an exponent of ones */
        p[i] = (uint8_t)(hx_rng_next(&g) & ((i - *header) % 2 ? 0x3f : 0xff));
    return p;
}

static inline size_t world_chunks(char *to, size_t room, const uint8_t *p, size_t n, size_t chunk)
{
    size_t len = (size_t)snprintf(to, room, ",\"chunk_sha256\":[");
    for (size_t at = 0; at < n; at += chunk) {
        char hex[HX_SHA256_HEX];
        world_hex(p + at, n - at < chunk ? n - at : chunk, hex);
        len += (size_t)snprintf(to + len, room - len, "%s\"%s\"", at ? "," : "", hex);
    }
    return len + (size_t)snprintf(to + len, room - len, "]");
}

enum world_chunks { WORLD_WHOLE, WORLD_CHUNKS, WORLD_CHECKED };

/* Makes lock and plan from the sources. chunks: the lock file knows the chunk hashes of the whole
 * files, or also that they are those of the whole; wrong: it has another hash of the big file. */
static inline int world_plan(struct world *w, size_t chunk, int chunks, bool wrong,
                             struct hx_error *err)
{
    size_t room = (1u << 20) + w->source_bytes[1] / chunk * 70, n = 0;
    char *j = malloc(room), hex[4][HX_SHA256_HEX], t0[HX_SHA256_HEX], t2[HX_SHA256_HEX];
    for (int i = 0; i < WORLD_FILES; i++)
        world_hex(w->source[i], w->source_bytes[i], hex[i]);
    if (wrong)
        hex[1][0] = hex[1][0] == '0' ? '1' : '0';
    /* The cut takes the first and the last of three tensors. */
    uint64_t head = 8;
    for (int i = 0; i < 8; i++)
        head += (uint64_t)w->source[2][i] << (8 * i);
    size_t data = w->source_bytes[2] - head, a = data / 4 / 2 * 2, b = data - a;
    world_hex(w->source[2] + head, a, t0);
    world_hex(w->source[2] + head + b, a, t2);
    n += (size_t)snprintf(
        j + n, room - n,
        "{\"format\":\"hybrid-lock-1\",\"model\":\"m\",\"created\":"
        "\"2026-11-30T00:00:00Z\",\"made_here\":false,\"sources\":[{\"id\":"
        "\"official\",\"repo\":\"a/b\",\"commit\":"
        "\"0123456789012345678901234567890123456789\",\"licence\":\"MIT\"}],"
        "\"files\":[{\"source\":\"official\",\"path\":\"config.json\",\"size\":%zu,"
        "\"sha256\":\"%s\",\"mode\":\"whole\",\"out\":\"config.json\","
        "\"chunk\":%zu},",
        w->source_bytes[0], hex[0], chunk);
    n += (size_t)snprintf(j + n, room - n,
                          "{\"source\":\"official\",\"path\":\"big.safetensors\",\"size\":%zu,"
                          "\"sha256\":\"%s\",\"mode\":\"whole\",\"out\":\"engram/big.safetensors\","
                          "\"chunk\":%zu",
                          w->source_bytes[1], hex[1], chunk);
    if (chunks)
        n += world_chunks(j + n, room - n, w->source[1], w->source_bytes[1], chunk);
    if (chunks == WORLD_CHECKED)
        n += (size_t)snprintf(j + n, room - n, ",\"chunks_checked\":true");
    n += (size_t)snprintf(
        j + n, room - n,
        "},{\"source\":\"official\",\"path\":\"cut.safetensors\",\"size\":%zu,\"sha256\":\"%s\","
        "\"mode\":\"cut\",\"out\":\"dense/cut.safetensors\",\"chunk\":%zu,\"header_bytes\":%llu,"
        "\"header_sha256\":\"",
        w->source_bytes[2], hex[2], chunk, (unsigned long long)head);
    world_hex(w->source[2], head, hex[3]);
    n += (size_t)snprintf(
        j + n, room - n,
        "%s\",\"tensors\":[{\"name\":\"t0\",\"dtype\":\"BF16\",\"shape\":[%zu],\"begin\":0,\"end\":"
        "%zu,\"sha256\":\"%s\"},{\"name\":\"t2\",\"dtype\":\"BF16\",\"shape\":[%zu],\"begin\":%zu,"
        "\"end\":%zu,\"sha256\":\"%s\"}]}]}",
        hex[3], a / 2, a, t0, a / 2, b, data, t2);
    int r = hx_lock_parse(j, n, "test lock", &w->lock, err);
    if (r == 0)
        r = hx_plan_make(w->lock, NULL, &w->plan, err);
    free(j);
    return r;
}

static inline int world_open(struct world *w, size_t big, size_t chunk, int chunks)
{
    struct hx_error err = {0};
    size_t header;
    *w = (struct world){0};
    snprintf(w->models, sizeof(w->models), "/tmp/hx-test-store-XXXXXX");
    if (!mkdtemp(w->models))
        return -1;
    w->source_bytes[0] = 321;
    w->source[0] = malloc(321);
    for (int i = 0; i < 321; i++)
        w->source[0][i] = (uint8_t)(' ' + i % 90);
    w->source[1] = world_shard((size_t[]){big / 2 / 2 * 2, big / 4 / 2 * 2}, 2, 1,
                               &w->source_bytes[1], &header);
    size_t part = big / 8 / 4 * 4 + 2;
    w->source[2] =
        world_shard((size_t[]){part, 2 * part, part}, 3, 2, &w->source_bytes[2], &header);
    int r = world_plan(w, chunk, chunks, false, &err);
    if (r < 0)
        fprintf(stderr, "%s\n", err.text);
    return r;
}

static inline int world_remove_one(const char *path, const struct stat *st, int type,
                                   struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void world_remove(const char *path)
{
    nftw(path, world_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void world_close(struct world *w)
{
    world_remove(w->models);
    hx_plan_free(w->plan);
    hx_lock_free(w->lock);
    for (int i = 0; i < WORLD_FILES; i++)
        free(w->source[i]);
}

static inline size_t world_file(const struct world *w, size_t plan_file)
{
    return (size_t)(w->plan->files[plan_file].lock - w->lock->files);
}

/* The file as it has to come out. */
static inline uint8_t *world_expected(const struct world *w, size_t plan_file, size_t *n)
{
    const struct hx_plan_file *p = &w->plan->files[plan_file];
    const uint8_t *source = w->source[world_file(w, plan_file)];
    uint8_t *out = calloc(1, p->out_bytes + 1);
    if (p->header)
        memcpy(out, p->header, p->header_bytes);
    for (size_t i = 0; i < p->n_segments; i++)
        memcpy(out + p->segments[i].out_begin, source + p->segments[i].src_begin,
               p->segments[i].n_bytes);
    *n = p->out_bytes;
    return out;
}

static inline bool world_same(const struct world *w, size_t plan_file, const char *path)
{
    struct hx_error err;
    size_t n, n_found;
    char *found;
    uint8_t *want = world_expected(w, plan_file, &n);
    bool same = false;
    if (hx_file_read(path, 1u << 30, &found, &n_found, &err) == 0) {
        same = n == n_found && memcmp(want, found, n) == 0;
        free(found);
    }
    free(want);
    return same;
}

static inline void world_path(const struct world *w, size_t plan_file, const char *suffix,
                              char *out, size_t n)
{
    snprintf(out, n, "%s/incoming/m/%s%s", w->models, w->plan->files[plan_file].lock->out, suffix);
}

/* Takes all events that are there. */
static inline void world_events(struct world *w, struct hx_store *s)
{
    struct hx_store_event ev;
    while (hx_store_next(s, &ev)) {
        w->n_bad += ev.type == HX_STORE_CHUNK_BAD;
        w->n_lost += ev.type == HX_STORE_CHUNK_LOST;
        w->n_file_bad += ev.type == HX_STORE_FILE_BAD;
        w->n_stopped += ev.type == HX_STORE_FILE_STOPPED;
        w->n_full += ev.type == HX_STORE_FULL;
        w->n_read_only += ev.type == HX_STORE_READ_ONLY;
        w->n_resumed += ev.type == HX_STORE_RESUMED;
        w->n_notes += ev.type == HX_STORE_NOTE;
        if (*ev.message)
            snprintf(w->message, sizeof(w->message), "%s", ev.message);
    }
}

static inline void world_wait(struct world *w, struct hx_store *s, int ms)
{
    struct pollfd p = {.fd = hx_store_event_fd(s), .events = POLLIN};
    poll(&p, 1, ms);
    world_events(w, s);
}

/* Feeds one chunk from `source` (NULL: the right one) in pieces of `step` bytes. */
static inline int world_feed(struct world *w, struct hx_store *s, size_t file, size_t chunk,
                             const uint8_t *source, size_t step)
{
    const struct hx_plan_chunk *c = &w->plan->files[file].chunks[chunk];
    struct hx_error err = {0};
    struct hx_sink *k;
    uint64_t at;
    if (!source)
        source = w->source[world_file(w, file)];
    int r = hx_store_begin(s, file, chunk, &at, &k, &err);
    if (r < 0)
        return r;
    while (at < c->src_bytes) {
        size_t n = c->src_bytes - at < step ? (size_t)(c->src_bytes - at) : step;
        r = hx_sink_write(k, source + c->src_begin + at, n);
        if (r == -EAGAIN) {
            world_wait(w, s, 1000);
            continue;
        }
        if (r < 0) {
            hx_sink_end(k, false);
            return r;
        }
        at += n;
        w->fetched += n;
    }
    hx_sink_end(k, false);
    return 0;
}

/* Feeds whatever is missing until every file is ready; one chunk after the other. */
static inline int world_complete(struct world *w, struct hx_store *s)
{
    for (int turn = 0; turn < 50; turn++) {
        bool all = true;
        for (size_t f = 0; f < w->plan->n_files; f++) {
            for (size_t c = 0; c < w->plan->files[f].n_chunks; c++) {
                if (hx_store_chunk_done(s, f, c))
                    continue;
                int r = world_feed(w, s, f, c, NULL, 1500);
                if (r < 0)
                    return r;
                r = hx_store_flush(s, NULL);
                if (r < 0)
                    return r;
                world_events(w, s);
            }
        }
        for (int i = 0; i < 200; i++) {
            all = true;
            for (size_t f = 0; f < w->plan->n_files; f++)
                all &= hx_store_file_ready(s, f);
            if (all || w->n_stopped + w->n_file_bad > 0)
                break;
            world_wait(w, s, 20);
        }
        if (all)
            return 0;
        if (w->n_stopped > 0)
            return -EIO;
        w->n_file_bad = 0;
    }
    return -ETIMEDOUT;
}

#endif
