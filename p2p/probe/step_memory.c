/* Memory tests: dense alias detection and patterns under load.
 *
 * The memory is one index space of 64-bit words over chunks that are taken until the card refuses.
 * Every word carries a tag that tells which index it was written for, so a wrong word shows whether
 * it is an alias (another index of this run) or corruption. One tag per 2 MiB would not do: known
 * folds follow 256-byte granules. */
#include "probe/cuda.h"

#include <stdlib.h>
#include <time.h>

#include "kernels/kernels.h"

#define CHUNK_BYTES   ((size_t)1 << 30)
#define RESERVE_BYTES ((size_t)1 << 30)
#define LAUNCH_WORDS  ((uint64_t)4 * HX_SEGMENT_WORDS)
#define CONTROL_WORDS ((uint64_t)1024)
#define LOWEST_WORDS  (((uint64_t)4 << 30) / 8)
#define MAX_SEGMENTS  16384 /* 1 TiB */
#define GEMM_N        4096
#define GEMM_REPEATS  32
#define HOLD_S        30.0
#define BURST_WORDS   8192

struct space {
    struct hx_probe_shared *sh;
    const struct hx_probe_plant *plant;
    struct hx_mem_map map;
    int device;
    uint64_t **segments, **dev_segments; /* [n_segments], host and device copy */
    void **chunks;
    size_t n_segments, n_chunks;
    uint64_t n_words;
    struct hx_mem_count *count; /* device */
    uint8_t *blocks;            /* device, a byte for each 2 MiB */
    size_t n_blocks;
    double coverage, started;
};

static const struct hx_mem_count no_count = {0, 0, UINT64_MAX, UINT64_MAX};

static void space_close(struct space *s)
{
    for (size_t i = 0; i < s->n_chunks; i++)
        cudaFree(s->chunks[i]);
    cudaFree(s->dev_segments);
    cudaFree(s->count);
    cudaFree(s->blocks);
    free(s->segments);
    free(s->chunks);
}

/* Takes chunks of 1 GiB, then smaller ones, until the reserve or the card's refusal. */
static int space_take(struct space *s, size_t want, struct hx_error *err)
{
    size_t taken = 0;
    int r = 0;
    for (size_t bytes = CHUNK_BYTES; bytes >= HX_SEGMENT_BYTES;) {
        void *p = NULL;
        if (taken + bytes > want || s->n_segments + bytes / HX_SEGMENT_BYTES > MAX_SEGMENTS) {
            bytes /= 2;
            continue;
        }
        const cudaError_t e = cudaMalloc(&p, bytes);
        if (e == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError();
            bytes /= 2;
            continue;
        }
        HX_CU(e);
        s->chunks[s->n_chunks++] = p;
        for (size_t at = 0; at < bytes; at += HX_SEGMENT_BYTES)
            s->segments[s->n_segments++] = (uint64_t *)((uint8_t *)p + at);
        taken += bytes;
    }
    if (s->n_segments == 0)
        r = hx_fail(err, -ENOMEM, "card %d has no 64 MiB of free memory to test", s->device);
out:
    return r;
}

static int space_open(struct space *s, struct hx_probe_shared *sh, const struct hx_probe_options *o,
                      const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    size_t free_bytes = 0, total = 0;
    int r = 0;
    *s = (struct space){.sh = sh, .plant = plant, .device = device, .started = hx_probe_now()};
    if (plant && plant->fold)
        s->map = *(const struct hx_mem_map *)plant->fold;
    s->segments = calloc(MAX_SEGMENTS, sizeof(*s->segments));
    s->chunks = calloc(MAX_SEGMENTS, sizeof(*s->chunks));
    if (!s->segments || !s->chunks) {
        r = hx_fail(err, -ENOMEM, "memory test: out of host memory");
        goto out;
    }
    HX_CU(cudaSetDevice(device));
    HX_CU(cudaMalloc((void **)&s->count, sizeof(*s->count)));
    HX_CU(cudaMalloc((void **)&s->dev_segments, MAX_SEGMENTS * sizeof(*s->segments)));
    s->n_blocks = MAX_SEGMENTS * (HX_SEGMENT_BYTES >> 21);
    HX_CU(cudaMalloc((void **)&s->blocks, s->n_blocks));
    HX_CU(cudaMemset(s->blocks, 0, s->n_blocks));
    HX_CU(cudaMemGetInfo(&free_bytes, &total));
    const size_t reserve = free_bytes / 32 < RESERVE_BYTES ? free_bytes / 32 : RESERVE_BYTES;
    size_t want = free_bytes - reserve;
    if (o->memory_bytes && o->memory_bytes < want)
        want = (size_t)o->memory_bytes;
    if ((r = space_take(s, want, err)) != 0)
        goto out;
    HX_CU(cudaMemcpy(s->dev_segments, s->segments, s->n_segments * sizeof(*s->segments),
                     cudaMemcpyHostToDevice));
    s->n_words = (uint64_t)s->n_segments * HX_SEGMENT_WORDS;
    s->coverage = (double)s->n_segments * HX_SEGMENT_BYTES / (double)free_bytes;
out:
    return r;
}

/* The driver runs launches of a stream in order, so the order of filling is the order of launches:
 * ascending, or descending. Waits for the end. */
static int space_fill(struct space *s, struct hx_pattern pattern, uint64_t to, bool descending,
                      struct hx_error *err)
{
    const uint64_t n = (to + LAUNCH_WORDS - 1) / LAUNCH_WORDS;
    int r = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t from = (descending ? n - 1 - i : i) * LAUNCH_WORDS;
        const uint64_t end = from + LAUNCH_WORDS < to ? from + LAUNCH_WORDS : to;
        HX_CU(hx_k_mem_fill(s->dev_segments, &s->map, from, end, pattern, NULL));
    }
    HX_CU(cudaDeviceSynchronize());
    if (s->plant && s->plant->memory)
        s->plant->memory(s->plant->ctx, (void *const *)s->segments, s->n_segments);
out:
    return r;
}

static int space_check(struct space *s, struct hx_pattern pattern, uint64_t to,
                       struct hx_mem_count *found, struct hx_error *err)
{
    int r = 0;
    HX_CU(cudaMemcpy(s->count, &no_count, sizeof(no_count), cudaMemcpyHostToDevice));
    for (uint64_t from = 0; from < to; from += LAUNCH_WORDS) {
        const uint64_t end = from + LAUNCH_WORDS < to ? from + LAUNCH_WORDS : to;
        HX_CU(hx_k_mem_check(s->dev_segments, &s->map, from, end, pattern, s->n_words, s->count,
                             s->blocks, NULL));
    }
    HX_CU(cudaMemcpy(found, s->count, sizeof(*found), cudaMemcpyDeviceToHost));
out:
    return r;
}

static uint64_t *space_at(const struct space *s, uint64_t index)
{
    return s->segments[index / HX_SEGMENT_WORDS] + index % HX_SEGMENT_WORDS;
}

static bool space_ended(const struct space *s)
{
    return hx_probe_stopped(s->sh, s->device) || atomic_load(&s->sh->hot[s->device]);
}

/* The kernels must be able to find a fold: with a map that sends the upper half of a small buffer
 * to the lower half, every word of the lower half is an alias. */
static int alias_control(struct space *s, uint64_t *detected, struct hx_error *err)
{
    const uint64_t half = CONTROL_WORDS / 2;
    const struct hx_mem_map fold = {half, CONTROL_WORDS, half, 0, 0};
    const struct hx_pattern tags = {HX_PATTERN_TAG, hx_probe_seed()};
    struct hx_mem_count found;
    int r = 0;
    HX_CU(cudaMemcpy(s->count, &no_count, sizeof(no_count), cudaMemcpyHostToDevice));
    HX_CU(hx_k_mem_fill(s->dev_segments, &fold, 0, half, tags, NULL));
    HX_CU(hx_k_mem_fill(s->dev_segments, &fold, half, CONTROL_WORDS, tags, NULL));
    HX_CU(hx_k_mem_check(s->dev_segments, &fold, 0, CONTROL_WORDS, tags, CONTROL_WORDS, s->count,
                         NULL, NULL));
    HX_CU(cudaMemcpy(&found, s->count, sizeof(found), cudaMemcpyDeviceToHost));
    *detected = found.aliases;
    if (found.aliases != half || found.mismatches != half)
        r = hx_fail(err, -EIO, "alias test of card %d found %llu of %llu folded words", s->device,
                    found.aliases, (unsigned long long)half);
out:
    return r;
}

/* Keeps the worst pass, and of the first wrong word the place and what lies there. */
static int alias_note(struct space *s, struct hx_probe_alias *a, const struct hx_mem_count *found,
                      uint64_t seed, struct hx_error *err)
{
    uint64_t word = 0;
    int r = 0;
    if (found->mismatches == 0)
        return 0;
    a->outcome = HX_PROBE_MISMATCH;
    if (found->mismatches > a->mismatches)
        a->mismatches = found->mismatches;
    if (a->has_first && a->is_alias)
        return 0;
    const bool alias = found->aliases > 0;
    const uint64_t index = alias ? found->first_alias : found->first_index;
    uint64_t other = index;
    if (alias) {
        /* Under a planted fold this reads the place itself, which holds the same tag. */
        HX_CU(cudaMemcpy(&word, space_at(s, index), sizeof(word), cudaMemcpyDeviceToHost));
        other = hx_pattern_tag_index(word, seed);
        if (other >= s->n_words)
            other = index;
    }
    a->has_first = true;
    a->is_alias = alias && other != index;
    a->first_low = 8 * (index < other ? index : other);
    a->first_high = 8 * (index < other ? other : index);
out:
    return r;
}

int hx_step_alias(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                  const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    struct hx_probe_alias *a = &sh->result.device[device].alias;
    struct space s;
    struct hx_mem_count found;
    uint64_t detected = 0;
    double fill_s = 0, check_s = 0;
    int r = space_open(&s, sh, o, plant, device, err);
    if (r != 0 || (r = alias_control(&s, &detected, err)) != 0)
        goto out;
    /* First the lowest 4 GiB alone: they have to be clean on any card. Then all of it twice, since
     * of two places that share a cell the last writer wins. Nothing is read before all is written.
     */
    const uint64_t lowest = s.n_words < LOWEST_WORDS ? s.n_words : LOWEST_WORDS;
    const double begun = hx_probe_now();
    for (int pass = 0; pass < 3 && !space_ended(&s); pass++) {
        const struct hx_pattern tags = {HX_PATTERN_TAG, hx_probe_seed()};
        const uint64_t to = pass == 0 ? lowest : s.n_words;
        const double t0 = hx_probe_now();
        if ((r = space_fill(&s, tags, to, pass == 2, err)) != 0)
            goto out;
        const double t1 = hx_probe_now();
        if ((r = space_check(&s, tags, to, &found, err)) != 0 ||
            (r = alias_note(&s, a, &found, tags.seed, err)) != 0)
            goto out;
        if (pass == 1) {
            fill_s = t1 - t0;
            check_s = hx_probe_now() - t1;
        }
        hx_probe_progress(sh, device, (pass + 1) / 3.0);
    }
    if (space_ended(&s)) { /* not all was read: no verdict */
        r = hx_fail(err, -ECANCELED, "alias test of card %d was ended", device);
        goto out;
    }
    a->seconds = hx_probe_now() - begun;
    a->coverage = s.coverage;
    a->words_checked = s.n_words;
    if (a->outcome == HX_PROBE_NOT_RUN)
        a->outcome = HX_PROBE_OK;
    if (device == 0) {
        sh->result.control.bytes_tagged = s.n_words * 8;
        sh->result.control.fill_s = fill_s;
        sh->result.control.check_s = check_s;
        sh->result.control.injected_words = CONTROL_WORDS / 2;
        sh->result.control.detected_words = detected;
        sh->result.control.run = true;
    }
out:
    space_close(&s);
    return r;
}

/* --- patterns ------------------------------------------------------------------------------- */

/* How many bytes in a row are wrong from the first wrong word on, and whether single bits are. */
static int burst_measure(struct space *s, struct hx_probe_pattern *p, struct hx_pattern pattern,
                         uint64_t first, struct hx_error *err)
{
    const uint64_t left = HX_SEGMENT_WORDS - first % HX_SEGMENT_WORDS;
    const size_t n = left < BURST_WORDS ? (size_t)left : BURST_WORDS;
    uint64_t *words = malloc(n * sizeof(*words));
    size_t bad = 0;
    bool flips = true;
    int r = 0;
    if (!words)
        return hx_fail(err, -ENOMEM, "memory test: out of host memory");
    HX_CU(cudaMemcpy(words, space_at(s, first), n * sizeof(*words), cudaMemcpyDeviceToHost));
    for (; bad < n; bad++) {
        const uint64_t wrong = words[bad] ^ hx_pattern_word(pattern, first + bad);
        if (wrong == 0)
            break;
        flips = flips && __builtin_popcountll(wrong) <= 2;
    }
    /* None: the word read right this time, so it was lost on the way. */
    p->burst_bytes = (uint32_t)(8 * (bad ? bad : 1));
    p->bit_flips = bad > 0 && flips;
out:
    free(words);
    return r;
}

/* found: counts of one check over [0, to) with this pattern. */
static int pattern_note(struct space *s, struct hx_probe_pattern *p, struct hx_pattern pattern,
                        const struct hx_mem_count *found, struct hx_error *err)
{
    if (found->mismatches == 0)
        return 0;
    p->outcome = HX_PROBE_MISMATCH;
    p->mismatches += found->mismatches;
    return p->burst_bytes ? 0 : burst_measure(s, p, pattern, found->first_index, err);
}

static int pattern_pass(struct space *s, struct hx_probe_pattern *p, struct hx_pattern pattern,
                        struct hx_error *err)
{
    struct hx_mem_count found;
    int r = space_fill(s, pattern, s->n_words, false, err);
    if (r == 0)
        r = space_check(s, pattern, s->n_words, &found, err);
    return r != 0 ? r : pattern_note(s, p, pattern, &found, err);
}

/* Random words in the lower half, copied at full bandwidth to the upper half, checked there. */
static int pattern_copy(struct space *s, struct hx_probe_pattern *p, struct hx_error *err)
{
    const size_t half = s->n_segments / 2;
    const struct hx_pattern random = {HX_PATTERN_TAG, hx_probe_seed()};
    struct hx_mem_count found;
    int r = 0;
    if (half == 0)
        return 0;
    if ((r = space_fill(s, random, half * HX_SEGMENT_WORDS, false, err)) != 0)
        return r;
    for (size_t i = 0; i < half; i++)
        HX_CU(cudaMemcpyAsync(s->segments[half + i], s->segments[i], HX_SEGMENT_BYTES,
                              cudaMemcpyDeviceToDevice, NULL));
    /* The upper half as an index space of its own. */
    struct space upper = *s;
    upper.dev_segments += half;
    upper.segments += half;
    upper.blocks += half * (HX_SEGMENT_BYTES >> 21);
    if ((r = space_check(&upper, random, half * HX_SEGMENT_WORDS, &found, err)) == 0)
        r = pattern_note(&upper, p, random, &found, err);
out:
    return r;
}

struct product {
    void *a, *b, *c, *first;
    unsigned long long *differ;
};

static int product_open(struct product *g, struct hx_error *err)
{
    const size_t n = (size_t)GEMM_N * GEMM_N;
    int r = 0;
    HX_CU(cudaMalloc(&g->a, n * 2));
    HX_CU(cudaMalloc(&g->b, n * 2));
    HX_CU(cudaMalloc(&g->c, n * 2));
    HX_CU(cudaMalloc(&g->first, n * 2));
    HX_CU(cudaMalloc((void **)&g->differ, sizeof(*g->differ)));
    HX_CU(hx_k_fill_bf16(g->a, n, 11, NULL));
    HX_CU(hx_k_fill_bf16(g->b, n, 12, NULL));
    HX_CU(hx_k_gemm(g->a, g->b, g->first, GEMM_N, GEMM_N, NULL));
out:
    return r;
}

static void product_close(struct product *g)
{
    cudaFree(g->a);
    cudaFree(g->b);
    cudaFree(g->c);
    cudaFree(g->first);
    cudaFree(g->differ);
}

/* The same product again and again has to give the same bits: a load step at full power. */
static int product_repeat(struct product *g, struct hx_probe_pattern *p, struct hx_error *err)
{
    const size_t bytes = (size_t)GEMM_N * GEMM_N * 2;
    unsigned long long differ = 0;
    int r = 0;
    HX_CU(cudaMemset(g->differ, 0, sizeof(*g->differ)));
    for (int i = 0; i < GEMM_REPEATS; i++) {
        HX_CU(hx_k_gemm(g->a, g->b, g->c, GEMM_N, GEMM_N, NULL));
        HX_CU(hx_k_differ(g->c, g->first, bytes, g->differ, NULL));
    }
    HX_CU(cudaMemcpy(&differ, g->differ, sizeof(differ), cudaMemcpyDeviceToHost));
    if (differ) {
        p->outcome = HX_PROBE_MISMATCH;
        p->mismatches += differ;
    }
out:
    return r;
}

static void hold(const struct space *s, double until)
{
    while (hx_probe_now() < until && !space_ended(s))
        nanosleep(&(struct timespec){0, 50000000}, NULL);
}

static int pattern_quick(struct space *s, struct hx_probe_pattern *p, struct hx_error *err)
{
    static const struct hx_pattern patterns[] = {
        {HX_PATTERN_CONSTANT, 0},
        {HX_PATTERN_CONSTANT, UINT64_MAX},
        {HX_PATTERN_CONSTANT, 0x5555555555555555u},
        {HX_PATTERN_CONSTANT, 0xaaaaaaaaaaaaaaaau},
        {HX_PATTERN_ADDRESS, 0},
        {HX_PATTERN_ADDRESS, UINT64_MAX},
    };
    const size_t n = sizeof(patterns) / sizeof(patterns[0]);
    int r = 0;
    for (size_t i = 0; i < n && r == 0 && !space_ended(s); i++) {
        r = pattern_pass(s, p, patterns[i], err);
        hx_probe_progress(s->sh, s->device, (double)(i + 1) / (double)n);
    }
    return r;
}

/* Rounds until the time is over. Bad cards fail at load steps, so each round changes between memory
 * and arithmetic, and every fourth ends in a pause. */
static int pattern_rounds(struct space *s, struct hx_probe_pattern *p, double seconds,
                          struct hx_error *err)
{
    struct product g = {NULL, NULL, NULL, NULL, NULL};
    const double start = hx_probe_now(), end = start + seconds;
    int r = product_open(&g, err);
    for (unsigned round = 1; r == 0 && hx_probe_now() < end && !space_ended(s); round++) {
        for (unsigned bit = 0; bit < 64 && r == 0 && hx_probe_now() < end && !space_ended(s);
             bit++) {
            r = pattern_pass(s, p, (struct hx_pattern){HX_PATTERN_WALK, bit}, err);
            hx_probe_progress(s->sh, s->device, (hx_probe_now() - start) / seconds);
        }
        if (r == 0)
            r = pattern_copy(s, p, err);
        if (r == 0)
            r = product_repeat(&g, p, err);
        if (r == 0 && round % 4 == 0)
            hold(s, hx_probe_now() + HOLD_S < end ? hx_probe_now() + HOLD_S : end);
        hx_probe_progress(s->sh, s->device, (hx_probe_now() - start) / seconds);
    }
    product_close(&g);
    return r;
}

static int blocks_count(const struct space *s, struct hx_probe_pattern *p, struct hx_error *err)
{
    const size_t n = s->n_segments * (HX_SEGMENT_BYTES >> 21);
    uint8_t *blocks = malloc(n);
    int r = 0;
    if (!blocks)
        return hx_fail(err, -ENOMEM, "memory test: out of host memory");
    HX_CU(cudaMemcpy(blocks, s->blocks, n, cudaMemcpyDeviceToHost));
    p->blocks = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        p->bad_blocks += blocks[i];
out:
    free(blocks);
    return r;
}

int hx_step_pattern(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                    const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    struct hx_probe_pattern *p = &sh->result.device[device].pattern;
    struct space s;
    int r = space_open(&s, sh, o, plant, device, err);
    if (r != 0)
        goto out;
    p->coverage = s.coverage;
    const double begun = hx_probe_now();
    r = pattern_quick(&s, p, err);
    if (r == 0 && o->pattern_s)
        r = pattern_rounds(&s, p, o->pattern_s, err);
    p->seconds = hx_probe_now() - begun;
    if (r != 0 || (r = blocks_count(&s, p, err)) != 0)
        goto out;
    p->stopped_hot = atomic_load(&sh->hot[device]) != 0;
    if (p->outcome == HX_PROBE_NOT_RUN && !hx_probe_stopped(sh, device))
        p->outcome = HX_PROBE_OK;
out:
    space_close(&s);
    return r;
}
