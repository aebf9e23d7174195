/* The loop of EXL3 products for few rows, codebook mul1, 2 and 3 bits (docs/kernels.md, "EXL3
 * experts").
 *
 * A weight is k (s - 510) + c with s the sum of the four bytes of a 32-bit product of its state, so
 * a row needs the sum of s times x, and the tensor core takes it from the product's bytes as they
 * are: operand A of m16n8k32 (u8 x s8) holds the products of 16 outputs, operand B each input four
 * times. An input is a pair of 8-bit integers, x = q (i + j / 254): two of the eight columns a row,
 * four rows a tile. All sums are integers and exact, so how the work is cut over warps and which
 * rows share it changes no bit.
 *
 * Lane (g, t) of a warp decodes positions 32 g .. 32 g + 31 of the tile of K slice 4 s + t: whole
 * words and the word before, all bit offsets constants. */
#ifndef HX_BACKEND_CUDA_EXL3_INNER_CUH
#define HX_BACKEND_CUDA_EXL3_INNER_CUH

#include <type_traits>

#include "backend/cuda/kernels/expert_groups.cuh"

#define EXL3_ROWS   4  /* rows of a job */
#define EXL3_TILES  4  /* tiles of 16 outputs that a warp takes together */
#define EXL3_SLICES 4  /* K slices of 16 of a stage */
#define EXL3_RING   4  /* stages of a warp, one in use and the others on their way */
#define EXL3_WARPS  16 /* of a block, the only one of a multiprocessor */
#define EXL3_MUL1   0x83DCD12Du

/* Up to EXL3_ROWS rows of one expert. All that a warp must know to begin, in one read. */
struct alignas(16) exl3_job {
    const uint8_t *data[3]; /* gate, up, down */
    int32_t pair[EXL3_ROWS];
    int64_t n; /* rows; 64 bits: no byte of a job is without a value, since jobs are copied whole */
};

struct exl3_inner {
    int first, n_matrix; /* data[first .. first + n_matrix - 1] */
    const struct exl3_job *job;
    const uint8_t *codes;    /* [matrix][pair][2][n_in]: i and j, in the order of quantise_row */
    unsigned long long *sum; /* [matrix][pair][n_out], 254 sum(i s) + sum(j s) is added */
    int n_pair, n_in, n_out; /* widths: the largest */
    const int32_t *begins;   /* [jobs + 1] groups of 64 of the experts' widths before each job */
};

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes on their way, past the first-level cache or through it. */
static __device__ __forceinline__ void copy_stream(uint32_t to, const void *from, bool on)
{
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0;"
                 " @p cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(to),
                 "l"(from), "r"((int)on)
                 : "memory");
}

static __device__ __forceinline__ void copy_cached(uint32_t to, const void *from, bool on)
{
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0;"
                 " @p cp.async.ca.shared.global [%0], [%1], 16; }" ::"r"(to),
                 "l"(from), "r"((int)on)
                 : "memory");
}

/* All copies of this warp are there, and what it copied may be overwritten. */
static __device__ __forceinline__ void copies_done()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
}

static __device__ __forceinline__ uint32_t load_word(uint32_t a)
{
    uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(a));
    return r;
}

static __device__ __forceinline__ void mma_bytes(int32_t c[4], uint32_t a0, uint32_t a1,
                                                 uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* ---- windows: w[0] the word before the run, w[1..BITS] the bits of its 32 positions ---- */

/* x 2^K on the multiplier, which has time to spare; the compiler would make it a shift. */
template <int K> static __device__ __forceinline__ uint32_t shift_left(uint32_t x)
{
    uint32_t r;
    asm("mul.lo.u32 %0, %1, %2;" : "=r"(r) : "r"(x), "n"(1u << K));
    return r;
}

/* The register whose lowest bit is the last one of a window that ends at bit END of the run. */
template <int END> static __device__ __forceinline__ uint32_t aligned(const uint32_t *w)
{
    if constexpr (END % 32 == 0)
        return w[END / 32];
    else
        return __funnelshift_r(w[END / 32 + 1], w[END / 32], 32 - END % 32);
}

/* 16 bits of v from bit AT on. */
template <int AT> static __device__ __forceinline__ uint32_t take(uint32_t v)
{
    if constexpr (AT == 0)
        return v & 0xFFFFu;
    else if constexpr (AT == 8)
        return __byte_perm(v, 0, 0x4421);
    else
        return v >> 16;
}

template <int BITS, int P> static __device__ __forceinline__ uint32_t state(const uint32_t *w)
{
    if constexpr (BITS == 3) {
        constexpr int end = 3 * (P + 1), word = (end - 1) / 32, at = 32 * (word + 1) - end;
        if constexpr (end - 16 < 32 * word)
            return aligned<end>(w) & 0xFFFFu;
        else if constexpr (at == 0 || at == 8 || at == 16)
            return take<at>(w[word + 1]);
        else
            return shift_left<16 - at>(w[word + 1]) >> 16;
    } else {
        /* Ends repeat modulo 8 bits: one register serves windows at its bits 0, 8 and 16. */
        constexpr int m = P / 4, end = 2 * (P % 4 + 1);
        if constexpr (P % 4 == 3 && m >= 1 && m <= 3)
            return take<(3 - m) * 8>(w[1]);
        else if constexpr (P % 4 == 3 && m >= 5)
            return take<(7 - m) * 8>(w[2]);
        else if constexpr (P % 4 == 3)
            return aligned<end + 8 * m>(w) & 0xFFFFu;
        else if constexpr (m <= 2)
            return take<(2 - m) * 8>(aligned<end + 16>(w));
        else if constexpr (m <= 5)
            return take<(5 - m) * 8>(aligned<end + 40>(w));
        else
            return take<(8 - m) * 8>(shift_left<end>(w[2]));
    }
}

template <int BITS, int R>
static __device__ __forceinline__ void step(int32_t c[4], const uint32_t *w, const uint32_t b[4])
{
    uint32_t v[8];
    v[0] = state<BITS, 8 * R + 0>(w) * EXL3_MUL1, v[1] = state<BITS, 8 * R + 1>(w) * EXL3_MUL1;
    v[2] = state<BITS, 8 * R + 2>(w) * EXL3_MUL1, v[3] = state<BITS, 8 * R + 3>(w) * EXL3_MUL1;
    v[4] = state<BITS, 8 * R + 4>(w) * EXL3_MUL1, v[5] = state<BITS, 8 * R + 5>(w) * EXL3_MUL1;
    v[6] = state<BITS, 8 * R + 6>(w) * EXL3_MUL1, v[7] = state<BITS, 8 * R + 7>(w) * EXL3_MUL1;
    mma_bytes(c, v[0], v[4], v[1], v[5], b[0], b[1]);
    mma_bytes(c, v[2], v[6], v[3], v[7], b[2], b[3]);
}

/* ---- the stream of a warp ---- */

/* A stage: 4 K slices by 64 outputs, then the 16 inputs of each of the lanes. */
template <int BITS> struct exl3_stage {
    static constexpr int tile_words = 8 * BITS;
    static constexpr int slice_words = EXL3_TILES * tile_words + 8; /* 8 mod 32: no conflicts */
    static constexpr int input_at = EXL3_SLICES * slice_words;
    static constexpr int words = input_at + 32 * 4;
};

struct exl3_place {
    int k, column, matrix, job; /* k: group of 64 inputs, column: group of 64 outputs */
    int n_k, n_column;          /* of the job */
};

/* A warp's stages of a product: n from `at` on. */
struct exl3_share {
    int n;
    struct exl3_place at;
};

/* Widths of q's job. */
template <bool UNEQUAL>
static __device__ __forceinline__ void measure(const exl3_inner &p, exl3_place *q)
{
    q->n_k = p.n_in / 64;
    q->n_column = p.n_out / 64;
    if (UNEQUAL)
        (p.first == 2 ? q->n_k : q->n_column) = p.begins[q->job + 1] - p.begins[q->job];
}

/* Stage `at` of all. */
template <bool UNEQUAL>
static __device__ __forceinline__ exl3_place place_of(const exl3_inner &p, int n_job, int at)
{
    exl3_place q;
    q.job = 0;
    if (UNEQUAL) {
        int per_group = p.first == 2 ? p.n_out / 64 : p.n_in / 64 * p.n_matrix;
        q.job = job_at(p.begins, n_job, at / per_group);
        at -= p.begins[q.job] * per_group;
    }
    measure<UNEQUAL>(p, &q);
    q.k = at % q.n_k;
    at /= q.n_k;
    q.column = at % q.n_column;
    at /= q.n_column;
    q.matrix = at % p.n_matrix;
    q.job += at / p.n_matrix;
    return q;
}

/* Every warp takes an equal share of all stages. */
template <bool UNEQUAL>
static __device__ __forceinline__ exl3_share share_of(const exl3_inner &p, int n_job)
{
    const int per_group = p.first == 2 ? p.n_out / 64 : p.n_in / 64 * p.n_matrix;
    const uint32_t all = (uint32_t)(UNEQUAL ? p.begins[n_job] * per_group
                                            : n_job * p.n_matrix * (p.n_out / 64) * (p.n_in / 64));
    const uint32_t me = blockIdx.x * EXL3_WARPS + threadIdx.x / 32, n_warp = gridDim.x * EXL3_WARPS;
    const uint32_t each = all / n_warp, rest = all % n_warp;
    const int from = (int)(me * each + me * rest / n_warp);
    const int to = (int)((me + 1) * each + (me + 1) * rest / n_warp);
    exl3_share s = {to - from, {}};
    if (s.n > 0)
        s.at = place_of<UNEQUAL>(p, n_job, from);
    return s;
}

/* Moves to the next group of outputs, not behind the last one; true if the matrix is another one.
 */
template <bool UNEQUAL>
static __device__ __forceinline__ bool next_column(const exl3_inner &p, exl3_place *q)
{
    q->k = 0;
    if (++q->column < q->n_column)
        return false;
    q->column = 0;
    if (++q->matrix == p.n_matrix) {
        q->matrix = 0;
        q->job++;
        if (UNEQUAL)
            measure<UNEQUAL>(p, q);
    }
    return true;
}

/* One of the launch's two products, of which this warp has `share`; first: the job that it begins
 * with. N_TILES: tiles of 16 outputs of a matrix, 0: as p says. ring: of this warp, EXL3_RING
 * stages. LATE: the inputs do not exist yet; the first weights are requested, then `before` is
 * called, by all threads, and makes them. */
template <int BITS, int N_TILES, bool UNEQUAL, bool LATE, class BEFORE>
static __device__ __forceinline__ void exl3_product(const exl3_inner &p, const exl3_share &share,
                                                    const struct exl3_job *first, uint32_t base,
                                                    BEFORE before)
{
    using stage = exl3_stage<BITS>;
    constexpr int chunks = EXL3_TILES * stage::tile_words / 4; /* of 16 bytes in a slice: 16, 24 */
    constexpr int slices = chunks == 16 ? 2 : 1;               /* of one copy instruction */
    constexpr uint32_t stage_bytes = stage::words * 4;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (share.n == 0) {
        if (LATE)
            before();
        return;
    }

    /* What this lane copies and where it reads. */
    const bool copies = chunks * slices >= 32 || lane < chunks * slices;
    const int copy_slice = slices == 2 ? lane / 16 : 0, copy_chunk = slices == 2 ? lane % 16 : lane;
    const uint32_t copy_to = (copy_slice * stage::slice_words + copy_chunk * 4) * 4;
    const uint32_t word_at = (t * stage::slice_words + BITS * g) * 4;
    const uint32_t before_at =
        (t * stage::slice_words + (BITS * g + stage::tile_words - 1) % stage::tile_words) * 4;

    /* Ahead of the products: */
    exl3_place f = share.at, c = f;
    const int first_job = f.job;
    auto job_of = [&](int job) { return job == first_job ? first : &p.job[job]; };
    int64_t row_bytes = 0; /* of a K slice of the matrix that is copied */
    const uint8_t *weights, *input;
    bool has_input;
    int left = share.n;
    auto enter = [&]() {
        const struct exl3_job *job = job_of(f.job);
        row_bytes = (int64_t)(N_TILES ? N_TILES : f.n_column * EXL3_TILES) * stage::tile_words * 4;
        has_input = g / 2 < job->n;
        int pair = has_input ? job->pair[g / 2] : 0;
        weights = job->data[p.first + f.matrix] + f.k * EXL3_SLICES * row_bytes +
                  f.column * EXL3_TILES * stage::tile_words * 4 + copy_slice * row_bytes +
                  copy_chunk * 16;
        input = p.codes + (((int64_t)f.matrix * p.n_pair + pair) * 2 + (g & 1)) * p.n_in +
                f.k * 64 + 16 * t;
    };
    auto request = [&](uint32_t at, bool with_input) {
        if (left > 0) {
#pragma unroll
            for (int r = 0; r < EXL3_SLICES; r += slices)
                copy_stream(at + copy_to + r * stage::slice_words * 4, weights + r * row_bytes,
                            copies);
            if (with_input)
                copy_cached(at + stage::input_at * 4 + lane * 16, input, has_input);
            weights += EXL3_SLICES * row_bytes;
            input += 64;
            if (--left > 0 && ++f.k == f.n_k) {
                if (next_column<UNEQUAL>(p, &f)) {
                    enter();
                } else {
                    weights += EXL3_TILES * stage::tile_words * 4 - f.n_k * EXL3_SLICES * row_bytes;
                    input -= f.n_k * 64;
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    enter();
    const uint8_t *late[EXL3_RING - 1];
#pragma unroll
    for (int i = 0; i < EXL3_RING - 1; i++) {
        late[i] = left > 0 && has_input ? input : NULL;
        request(base + i * stage_bytes, !LATE);
    }
    if (LATE) {
        before();
#pragma unroll
        for (int i = 0; i < EXL3_RING - 1; i++)
            copy_cached(base + i * stage_bytes + stage::input_at * 4 + lane * 16, late[i],
                        late[i] != NULL);
        asm volatile("cp.async.commit_group;\n cp.async.wait_group 0;" ::: "memory");
    }

    int pair = -1; /* of row t */
    auto rows = [&]() {
        const struct exl3_job *job = job_of(c.job);
        pair = t < job->n ? job->pair[t] : -1;
    };
    rows();
    int32_t sum[EXL3_TILES][4] = {};
    uint32_t use = base, fill = base + (EXL3_RING - 1) * stage_bytes;
#pragma unroll 1
    for (int n = share.n; n > 0; n--) {
        asm volatile("cp.async.wait_group %0;" ::"n"(EXL3_RING - 2) : "memory");
        __syncwarp();
        request(fill, true);
        uint32_t x[4], b[4][4];
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(use + stage::input_at * 4 + lane * 16));
#pragma unroll
        for (int r = 0; r < 4; r++) {
            b[r][0] = __byte_perm(x[r], 0, 0x0000), b[r][1] = __byte_perm(x[r], 0, 0x1111);
            b[r][2] = __byte_perm(x[r], 0, 0x2222), b[r][3] = __byte_perm(x[r], 0, 0x3333);
        }
#pragma unroll
        for (int i = 0; i < EXL3_TILES; i++) {
            uint32_t w[BITS + 1], at = use + i * stage::tile_words * 4;
            w[0] = load_word(at + before_at);
            if constexpr (BITS == 2) {
                asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                             : "=r"(w[1]), "=r"(w[2])
                             : "r"(at + word_at));
            } else {
                w[1] = load_word(at + word_at), w[2] = load_word(at + word_at + 4);
                w[3] = load_word(at + word_at + 8);
            }
            step<BITS, 0>(sum[i], w, b[0]);
            step<BITS, 1>(sum[i], w, b[1]);
            step<BITS, 2>(sum[i], w, b[2]);
            step<BITS, 3>(sum[i], w, b[3]);
        }
        fill = use; /* read, so the next request may write it */
        use = use == base + (EXL3_RING - 1) * stage_bytes ? base : use + stage_bytes;
        if (++c.k < c.n_k && n > 1)
            continue;
        /* Lane (g, t) has i and j of row t for outputs g and g + 8. */
        if (pair >= 0) {
            unsigned long long *y = p.sum + ((int64_t)c.matrix * p.n_pair + pair) * p.n_out +
                                    c.column * EXL3_TILES * 16 + g;
#pragma unroll
            for (int i = 0; i < EXL3_TILES; i++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int64_t v = 254 * (int64_t)sum[i][2 * h] + sum[i][2 * h + 1];
                    atomicAdd(y + 16 * i + 8 * h, (unsigned long long)v);
                }
            }
        }
        if (n == 1)
            break;
#pragma unroll
        for (int i = 0; i < EXL3_TILES; i++)
            sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0;
        if (next_column<UNEQUAL>(p, &c))
            rows();
    }
}

#endif
