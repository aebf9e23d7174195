/* A layer of EXL3 or FP4 experts on the card: the fast kernels against the plain ones, 1 to 48
 * rows, every row with the bits it has alone, NaN and outliers in one row only. */
#include "gpu.h"

#define MAX_ROWS 48

struct shape {
    const char *name;
    int64_t d, ff;
    int n_expert, used, bits, down_bits;
    int popular;    /* experts that take most of the rows; 0: all alike */
    int64_t narrow; /* width of every other expert, 0: all alike */
    bool fp4;
};

static const struct shape shapes[] = {
    {"tiny", 128, 128, 8, 3, 3, 3, 0, 0, false},
    {"three bits", 1280, 768, 24, 6, 3, 3, 0, 0, false},
    {"two bits", 640, 384, 24, 6, 2, 2, 0, 0, false},
    {"two and three", 1280, 512, 24, 6, 2, 3, 0, 0, false},
    {"few experts", 1280, 768, 24, 6, 3, 2, 7, 0, false},
    {"many experts", 256, 128, 384, 6, 3, 3, 0, 0, false},
    {"unequal, tiny", 128, 256, 8, 3, 3, 3, 0, 128, false},
    {"unequal, many experts", 256, 256, 384, 6, 2, 2, 0, 128, false},
    {"a rank's share, three bits", 5120, 640, 24, 6, 3, 3, 0, 512, false},
    {"a rank's share, two bits", 5120, 640, 24, 6, 2, 2, 7, 512, false},
    {"released, three bits", 5120, 2304, 16, 6, 3, 3, 0, 0, false},
    {"released, two bits", 5120, 2304, 16, 6, 2, 2, 8, 0, false},
    {"FP4, tiny", 128, 128, 8, 3, 0, 0, 0, 0, true},
    {"FP4", 1280, 768, 24, 3, 0, 0, 0, 0, true},
    {"FP4, few experts", 640, 384, 24, 6, 0, 0, 7, 0, true},
    {"FP4, many experts", 256, 256, 384, 6, 0, 0, 0, 128, true},
    {"FP4, a rank's share", 5120, 640, 24, 3, 0, 0, 0, 512, true},
    {"FP4, released", 5120, 2304, 16, 3, 0, 0, 0, 0, true},
};

struct layer {
    struct hx_weight w[3][384];
    const struct hx_weight *table[3][384];
    struct hx_weight s[3];
};

struct card {
    const struct hx_backend *be;
    struct hx_device *dev;
};

struct test {
    const struct shape *sh;
    struct card fast, plain;
    struct hx_buffer *buf;
    uint8_t *host, *device;
    size_t size, used;
    struct hx_rng rng;
    struct layer fast_layer, plain_layer; /* tables are known by their address */
    uint16_t *z;                          /* host and device addresses below */
    int32_t *sel;
    float *weight;
    size_t z_at, sel_at, weight_at, y_at;
};

static size_t take(struct test *t, size_t n)
{
    size_t at = t->used;
    t->used += (n + 255) / 256 * 256;
    assert_true(t->used <= t->size);
    return at;
}

/* n binary16 values of random sign and significand with the exponent field e. */
static size_t halves(struct test *t, int64_t n, int e)
{
    size_t at = take(t, (size_t)n * 2);
    uint16_t *p = (uint16_t *)(t->host + at);
    for (int64_t i = 0; i < n; i++)
        p[i] = (uint16_t)((hx_rng_next(&t->rng) & 0x83FF) | (unsigned)e << 10);
    return at;
}

static struct hx_weight make_expert(struct test *t, int64_t n_out, int64_t n_in, int bits)
{
    struct hx_weight w = {.format = HX_FORMAT_EXL3,
                          .codebook = HX_CODEBOOK_MUL1,
                          .bits = bits,
                          .n_out = n_out,
                          .n_in = n_in};
    size_t n = (size_t)(n_out * n_in) * (size_t)bits / 8, at = take(t, n);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = hx_rng_next(&t->rng);
        memcpy(t->host + at + i, &v, 8);
    }
    size_t suh = halves(t, n_in, 8), svh = halves(t, n_out, 15);
    ((uint16_t *)(t->host + svh))[1] = 0;
    w.part[HX_PART_DATA] =
        (struct hx_tensor){HX_DTYPE_I16, 3, {n_in / 16, n_out / 16, 16 * bits, 1}, t->device + at};
    w.part[HX_PART_SUH] = (struct hx_tensor){HX_DTYPE_F16, 1, {n_in, 1, 1, 1}, t->device + suh};
    w.part[HX_PART_SVH] = (struct hx_tensor){HX_DTYPE_F16, 1, {n_out, 1, 1, 1}, t->device + svh};
    return w;
}

/* All codes, exponents of real weights. */
static struct hx_weight make_fp4(struct test *t, int64_t n_out, int64_t n_in)
{
    struct hx_weight w = {.format = HX_FORMAT_FP4, .n_out = n_out, .n_in = n_in};
    size_t n = (size_t)(n_out * n_in / 2), at = take(t, n), e = take(t, n / 16);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = hx_rng_next(&t->rng);
        memcpy(t->host + at + i, &v, 8);
    }
    for (size_t i = 0; i < n / 16; i++)
        t->host[e + i] = (uint8_t)(116 + hx_rng_next(&t->rng) % 6);
    w.part[HX_PART_DATA] =
        (struct hx_tensor){HX_DTYPE_I8, 2, {n_out, n_in / 2, 1, 1}, t->device + at};
    w.part[HX_PART_SCALE] =
        (struct hx_tensor){HX_DTYPE_F8_E8M0, 2, {n_out, n_in / 32, 1, 1}, t->device + e};
    return w;
}

static struct hx_weight make_shared(struct test *t, int64_t n_out, int64_t n_in)
{
    struct hx_weight w = {.format = HX_FORMAT_DENSE, .n_out = n_out, .n_in = n_in};
    size_t at = take(t, (size_t)(n_out * n_in) * 2);
    uint16_t *p = (uint16_t *)(t->host + at);
    for (int64_t i = 0; i < n_out * n_in; i++)
        p[i] = (uint16_t)((hx_rng_next(&t->rng) & 0x807F) | 0x3C80); /* 2^-6 and more */
    w.part[HX_PART_DATA] =
        (struct hx_tensor){HX_DTYPE_BF16, 2, {n_out, n_in, 1, 1}, t->device + at};
    return w;
}

static void make_layer(struct test *t)
{
    const struct shape *sh = t->sh;
    struct layer *l = &t->fast_layer;
    for (int e = 0; e < sh->n_expert; e++) {
        int64_t ff = sh->narrow && e % 2 ? sh->narrow : sh->ff;
        for (int i = 0; i < 3; i++) {
            int64_t n_out = i == 1 ? sh->d : ff, n_in = i == 1 ? ff : sh->d;
            l->w[i][e] = sh->fp4 ? make_fp4(t, n_out, n_in)
                                 : make_expert(t, n_out, n_in, i == 1 ? sh->down_bits : sh->bits);
        }
    }
    for (int i = 0; i < 3; i++)
        l->s[i] = make_shared(t, i == 1 ? sh->d : 128, i == 1 ? 128 : sh->d);
    t->plain_layer = *l;
    for (int i = 0; i < 3; i++) {
        for (int e = 0; e < sh->n_expert; e++) {
            t->fast_layer.table[i][e] = &t->fast_layer.w[i][e];
            t->plain_layer.table[i][e] = &t->plain_layer.w[i][e];
        }
    }
}

static void make_rows(struct test *t)
{
    const struct shape *sh = t->sh;
    t->z_at = take(t, (size_t)(MAX_ROWS * sh->d) * 2);
    t->sel_at = take(t, (size_t)(MAX_ROWS * sh->used) * 4);
    t->weight_at = take(t, (size_t)(MAX_ROWS * sh->used) * 4);
    t->y_at = take(t, (size_t)(MAX_ROWS * sh->d) * 2);
    t->z = (uint16_t *)(t->host + t->z_at);
    t->sel = (int32_t *)(t->host + t->sel_at);
    t->weight = (float *)(t->host + t->weight_at);
    for (int64_t i = 0; i < MAX_ROWS * sh->d; i++)
        t->z[i] = bf16(normal(&t->rng));
    for (int r = 0; r < MAX_ROWS; r++) {
        t->z[r * sh->d + r] = bf16(r % 3 == 0 ? 300.0f : 20.0f); /* outliers */
        int at = 0, most = sh->popular && r % 8 != 7 ? sh->popular : sh->n_expert;
        for (int e = 0; e < most; e++) { /* ascending, each with the chance that is left */
            if (hx_rng_next(&t->rng) % (uint64_t)(most - e) < (uint64_t)(sh->used - at))
                t->sel[r * sh->used + at++] = e;
        }
        assert_int_equal(at, sh->used);
        for (int k = 0; k < sh->used; k++)
            t->weight[r * sh->used + k] = 0.1f + (float)hx_rng_uniform(&t->rng);
    }
}

/* y of n rows from row `first` on. */
static void compute(struct test *t, struct card *c, struct layer *l, int first, int n, uint16_t *y)
{
    const struct shape *sh = t->sh;
    int64_t d = sh->d;
    int used = sh->used;
    struct hx_tensor z = {HX_DTYPE_BF16, 2, {n, d, 1, 1}, t->device + t->z_at + first * d * 2};
    struct hx_tensor sel = {
        HX_DTYPE_I32, 2, {n, used, 1, 1}, t->device + t->sel_at + (size_t)(first * used) * 4};
    struct hx_tensor weight = {
        HX_DTYPE_F32, 2, {n, used, 1, 1}, t->device + t->weight_at + (size_t)(first * used) * 4};
    struct hx_tensor out = {HX_DTYPE_BF16, 2, {n, d, 1, 1}, t->device + t->y_at};
    struct hx_experts_args a = {.z = &z,
                                .w1 = l->table[0],
                                .w2 = l->table[1],
                                .w3 = l->table[2],
                                .n_expert = sh->n_expert,
                                .sel = &sel,
                                .weight = &weight,
                                .s1 = &l->s[0],
                                .s2 = &l->s[1],
                                .s3 = &l->s[2],
                                .limit = 10,
                                .y = &out};
    memset(y, 0xFF, (size_t)(n * d) * 2);
    CHECK(c->be->upload(c->dev, out.data, y, (size_t)(n * d) * 2, ERR));
    CHECK(c->be->kernels->experts(c->dev, &a, ERR));
    CHECK(c->be->download(c->dev, y, out.data, (size_t)(n * d) * 2, ERR));
    CHECK(c->be->sync(c->dev, ERR));
}

static void upload(struct test *t, size_t at, size_t n)
{
    CHECK(t->fast.be->upload(t->fast.dev, t->device + at, t->host + at, n, ERR));
    CHECK(t->fast.be->sync(t->fast.dev, ERR));
}

static void same_rows(struct test *t, const uint16_t *all, uint16_t *y)
{
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 31};
    size_t row = (size_t)t->sh->d * 2;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        int n = counts[k];
        for (int first = 0; first + n <= MAX_ROWS; first += n * 3 + 1) {
            compute(t, &t->fast, &t->fast_layer, first, n, y);
            for (int r = 0; r < n; r++) {
                if (memcmp((char *)y + (size_t)r * row,
                           (const char *)all + (size_t)(first + r) * row, row) != 0)
                    fail_msg("row %d of %d from %d on has other bits than among %d", r, n, first,
                             MAX_ROWS);
            }
        }
    }
}

/* A NaN and an infinity in one row: that row is not finite, others keep their bits. */
static void bad_rows(struct test *t, const uint16_t *all, uint16_t *y)
{
    int64_t d = t->sh->d;
    uint16_t kept[2] = {t->z[2 * d + 5], t->z[4 * d + 7]};
    t->z[2 * d + 5] = 0x7FC0;
    t->z[4 * d + 7] = 0x7F80;
    upload(t, t->z_at, (size_t)(MAX_ROWS * d) * 2);
    compute(t, &t->fast, &t->fast_layer, 0, 6, y);
    for (int r = 0; r < 6; r++) {
        bool same = memcmp(y + r * d, all + r * d, (size_t)d * 2) == 0;
        if ((r == 2 || r == 4) && isfinite(value16(y[r * d])))
            fail_msg("row %d is finite", r);
        if (r != 2 && r != 4 && !same)
            fail_msg("row %d differs beside a NaN", r);
    }
    t->z[2 * d + 5] = kept[0];
    t->z[4 * d + 7] = kept[1];
    upload(t, t->z_at, (size_t)(MAX_ROWS * d) * 2);
}

static void test_shape(void **state)
{
    struct test *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    t->sh = *state;
    t->size = (size_t)(t->sh->d * t->sh->ff) * (size_t)t->sh->n_expert * (t->sh->fp4 ? 14 : 9) / 8 +
              (size_t)t->sh->n_expert * (size_t)(t->sh->d + t->sh->ff) * 16 + ((size_t)8 << 20);
    t->host = malloc(t->size);
    assert_non_null(t->host);
    hx_rng_seed(&t->rng, 7);
    struct card *cards[2] = {&t->fast, &t->plain};
    for (int i = 0; i < 2; i++) {
        CHECK((cards[i]->be = hx_backend_select(i ? "cuda-exact" : "cuda", ERR)) ? 0 : -1);
        CHECK(cards[i]->be->open(0, &cards[i]->dev, ERR));
    }
    CHECK(t->fast.be->alloc(t->fast.dev, HX_MEM_DEVICE, t->size, &t->buf, ERR));
    t->device = t->fast.be->address(t->buf);
    make_layer(t);
    make_rows(t);
    upload(t, 0, t->used);
    size_t row = (size_t)t->sh->d * 2;
    uint16_t *want = malloc(MAX_ROWS * row), *all = malloc(MAX_ROWS * row);
    uint16_t *y = malloc(MAX_ROWS * row);
    assert_true(want && all && y);
    compute(t, &t->plain, &t->plain_layer, 0, MAX_ROWS, want);
    compute(t, &t->fast, &t->fast_layer, 0, MAX_ROWS, all);
    double worst = 0, size = 0;
    for (int r = 0; r < MAX_ROWS; r++) {
        double v = distance(HX_DTYPE_BF16, all + r * t->sh->d, want + r * t->sh->d, t->sh->d);
        worst = v > worst ? v : worst;
        size += fabs((double)value16(want[r * t->sh->d]));
    }
    print_message("%s: %lld -> %lld, %d and %d bits: worst row %.2g, mean output %.2g\n",
                  t->sh->name, (long long)t->sh->d, (long long)t->sh->ff, t->sh->bits,
                  t->sh->down_bits, worst, size / MAX_ROWS);
    assert_true(worst <= ACTIVATION);
    same_rows(t, all, y);
    bad_rows(t, all, y);
    free(want);
    free(all);
    free(y);
    t->fast.be->free(t->buf);
    for (int i = 0; i < 2; i++)
        cards[i]->be->close(cards[i]->dev);
    free(t->host);
    free(t);
}

int main(int argc, char **argv)
{
    enum { N = sizeof(shapes) / sizeof(shapes[0]) };
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){.name = shapes[i].name,
                                       .test_func = test_shape,
                                       .initial_state = (void *)(uintptr_t)&shapes[i]};
    return run_group("experts", tests, N, NULL, NULL, argc, argv);
}
