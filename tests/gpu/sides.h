/* One operation on two back ends: the CPU's and the card's. Both have a piece of memory of the same
 * layout; an array is known by its offset in it. */
#ifndef TESTS_GPU_SIDES_H
#define TESTS_GPU_SIDES_H

#include "gpu.h"

#define ROOM ((size_t)768 << 20) /* of each side */

enum side { CPU, CARD, N_SIDES };
enum kind { NORMAL, OUTLIERS, DENORMALS, TIES, ZEROS, N_KINDS };
static const char *const kind_name[N_KINDS] = {"normal", "outliers", "denormals", "ties", "zeros"};
static const int row_counts[] = {1, 2, 3, 5, 6, 7, 8, 9, 16, 31, 48};
#define N_ROW_COUNTS ((int)(sizeof(row_counts) / sizeof(row_counts[0])))

static struct {
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_buffer *buf;
    uint8_t *base;
} side[N_SIDES];
static uint8_t *host; /* image of both: [ROOM] */
static size_t used;
static struct hx_rng rng;

#define RUN(s, op, ...) CHECK(side[s].be->kernels->op(side[s].dev, __VA_ARGS__, ERR))

/* ---- memory ---- */

static inline void begin(void)
{
    used = 0;
    hx_rng_seed(&rng, 99);
}

static inline size_t take(size_t n)
{
    size_t at = used;
    used += (n + 255) / 256 * 256;
    assert_true(used <= ROOM);
    return at;
}

static inline struct hx_tensor at_side(enum side s, enum hx_dtype type, size_t at, int64_t a,
                                       int64_t b, int64_t c)
{
    struct hx_tensor t = {.dtype = type, .n_dims = c > 0 ? 3 : b > 0 ? 2 : 1};
    t.ne[0] = a;
    t.ne[1] = b > 0 ? b : 1;
    t.ne[2] = c > 0 ? c : 1;
    t.ne[3] = 1;
    t.data = side[s].base + at;
    return t;
}

/* What host holds up to now, to both. */
static inline void send(void)
{
    for (int s = 0; s < N_SIDES; s++) {
        CHECK(side[s].be->upload(side[s].dev, side[s].base, host, used, ERR));
        CHECK(side[s].be->sync(side[s].dev, ERR));
    }
}

static inline void put(enum side s, size_t at, const void *p, size_t n)
{
    CHECK(side[s].be->upload(side[s].dev, side[s].base + at, p, n, ERR));
    CHECK(side[s].be->sync(side[s].dev, ERR));
}

static inline void *fetch(enum side s, size_t at, size_t n)
{
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    CHECK(side[s].be->download(side[s].dev, p, side[s].base + at, n, ERR));
    CHECK(side[s].be->sync(side[s].dev, ERR));
    return p;
}

/* ---- values ---- */

static inline float draw(enum kind k)
{
    float v = normal(&rng);
    switch (k) {
    case OUTLIERS: return hx_rng_next(&rng) % 61 == 0 ? v * 3000 : v;
    case DENORMALS: return (float)(hx_rng_next(&rng) % 3 ? (double)v * 1e-39 : (double)v * 1e-3);
    case TIES: return (float)(int)(v * 1.4f);
    case ZEROS: return hx_rng_next(&rng) % 2 ? 0.0f : -0.0f;
    default: return v;
    }
}

static inline size_t bf16s(int64_t n, enum kind k, float scale)
{
    size_t at = take((size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)(host + at))[i] = bf16(draw(k) * scale);
    return at;
}

static inline size_t floats(int64_t n, enum kind k, float scale)
{
    size_t at = take((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        ((float *)(host + at))[i] = draw(k) * scale;
    return at;
}

static inline size_t bytes(int64_t n, int lo, int hi)
{
    size_t at = take((size_t)n);
    for (int64_t i = 0; i < n; i++)
        host[at + (size_t)i] = (uint8_t)(lo + (int)(hx_rng_next(&rng) % (unsigned)(hi - lo + 1)));
    return at;
}

/* All e4m3 codes but the two NaN. */
static inline size_t e4m3s(int64_t n)
{
    size_t at = bytes(n, 0, 0x7E);
    for (int64_t i = 0; i < n; i++)
        host[at + (size_t)i] |= (uint8_t)(hx_rng_next(&rng) & 0x80);
    return at;
}

static inline struct hx_weight dense(enum side s, enum hx_dtype type, size_t at, int64_t n_out,
                                     int64_t n_in)
{
    struct hx_weight w = {.format = HX_FORMAT_DENSE, .n_out = n_out, .n_in = n_in};
    w.part[HX_PART_DATA] = at_side(s, type, at, n_out, n_in, 0);
    return w;
}

/* FP8 with scales of blocks of 32 x 32. */
static inline struct hx_weight fp8(enum side s, size_t code, size_t scale, int64_t n_out,
                                   int64_t n_in)
{
    struct hx_weight w = {.format = HX_FORMAT_FP8, .n_out = n_out, .n_in = n_in};
    w.part[HX_PART_DATA] = at_side(s, HX_DTYPE_F8_E4M3, code, n_out, n_in, 0);
    w.part[HX_PART_SCALE] = at_side(s, HX_DTYPE_F8_E8M0, scale, (n_out + 31) / 32, n_in / 32, 0);
    return w;
}

static inline void sync_side(enum side s)
{
    CHECK(side[s].be->sync(side[s].dev, ERR));
}

/* ---- comparing ---- */

/* Largest distances that were allowed, of those with either bound. */
static struct {
    double rms;
    char what[96];
} worst[2];

/* Array of both sides within a relative RMS; EXACT: the same bits. */
static inline void same(const char *what, enum hx_dtype type, size_t at, int64_t n, double bound)
{
    size_t size = hx_dtype_size(type), all = (size_t)n * size;
    uint8_t *want = fetch(CPU, at, all), *got = fetch(CARD, at, all);
    for (size_t i = 0; bound <= 0 && i < all; i += size) {
        if (memcmp(want + i, got + i, size) != 0)
            fail_msg("%s: element %zu of %lld differs", what, i / size, (long long)n);
    }
    double rms = bound > 0 ? distance(type, got, want, n) : 0;
    if (!(rms <= bound))
        fail_msg("%s: relative RMS %.3g, allowed %.3g", what, rms, bound);
    int which = bound > COEFFICIENT;
    if (rms > worst[which].rms) {
        worst[which].rms = rms;
        snprintf(worst[which].what, sizeof(worst[which].what), "%s", what);
    }
    free(want);
    free(got);
}

/* Rows of the card: kept from one launch, compared with those of another. */
struct rows {
    uint8_t *all;
    size_t at, row;
};

static inline struct rows keep(size_t at, size_t row, int n)
{
    return (struct rows){fetch(CARD, at, row * (size_t)n), at, row};
}

/* The row at `at` of the launch that was just made is row r of the kept ones. */
static inline void same_row_at(const char *what, const struct rows *k, size_t at, int r)
{
    uint8_t *one = fetch(CARD, at, k->row);
    if (memcmp(one, k->all + k->row * (size_t)r, k->row) != 0)
        fail_msg("%s: row %d has other bits alone", what, r);
    free(one);
}

/* The same for row 0. */
static inline void same_alone(const char *what, const struct rows *k, int r)
{
    same_row_at(what, k, k->at, r);
}

/* ---- both sides ---- */

static const char *card_name = "cuda";

static int open_sides(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIDES; s++) {
        struct hx_error err = {0};
        side[s].be = hx_backend_select(s == CPU ? "cpu" : card_name, &err);
        if (!side[s].be || side[s].be->open(0, &side[s].dev, &err) < 0 ||
            side[s].be->alloc(side[s].dev, HX_MEM_DEVICE, ROOM, &side[s].buf, &err) < 0) {
            print_message("%s\n", err.text);
            return -1;
        }
        side[s].base = side[s].be->address(side[s].buf);
    }
    host = calloc(1, ROOM);
    return host ? 0 : -1;
}

static int close_sides(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        print_message("worst distance with a bound of %.0e: %.2g, %s\n",
                      i ? ACTIVATION : COEFFICIENT, worst[i].rms,
                      worst[i].what[0] ? worst[i].what : "none");
    for (int s = 0; s < N_SIDES; s++) {
        side[s].be->free(side[s].buf);
        side[s].be->close(side[s].dev);
    }
    free(host);
    return 0;
}

/* usage: test_x [only [back end]]      back end: instead of cuda; cpu: the tests themselves, where
 * no card is */
static inline int run_sides(const char *name, const struct CMUnitTest *tests, size_t n, int argc,
                            char **argv)
{
    card_name = argc > 2 ? argv[2] : card_name;
    return run_group(name, tests, n, open_sides, close_sides, argc, argv);
}

#endif
