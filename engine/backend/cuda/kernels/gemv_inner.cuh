/* The stream of few-row products (docs/kernels.md, "GEMV"): what gemv.cu and fp4.cu share.
 *
 * A warp multiplies tiles of 16 outputs by stages of 128 bytes of each weight row. Stages come
 * through a ring of its own in shared memory by cp.async, so they are on their way without
 * registers and without a barrier of the block; the ring runs on over the ends of tiles. Inside a
 * stage the order of k is free as long as both operands agree, so a lane takes whole words of codes
 * and the inputs that belong to them. The warps of a tile take the stages of a row in turn; their
 * sums are added in one order. All that depends on the format and the number of inputs alone: a row
 * has the same bits whatever rows or matrices are beside it. */
#ifndef HX_BACKEND_CUDA_GEMV_INNER_CUH
#define HX_BACKEND_CUDA_GEMV_INNER_CUH

#include "backend/cuda/kernels/numeric.cuh"

#define GEMV_BF16 0
#define GEMV_FP8  1
#define GEMV_FP4  2

#define GEMV_LINE 128 /* bytes of a weight row in a stage */

/* Inputs of a stage; tensor steps of half a stage (one 16-byte word of a lane and row). */
template <int FORMAT> struct gemv_format;
template <> struct gemv_format<GEMV_BF16> {
    static constexpr int inputs = 64, steps = 2;
};
template <> struct gemv_format<GEMV_FP8> {
    static constexpr int inputs = 128, steps = 4;
};
template <> struct gemv_format<GEMV_FP4> {
    static constexpr int inputs = 256, steps = 8;
};

static __device__ __forceinline__ uint32_t gemv_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes on their way, past the first-level cache; 4 bytes through it. */
static __device__ __forceinline__ void gemv_copy(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void gemv_copy_word(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ uint4 gemv_shared4(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

static __device__ __forceinline__ uint32_t gemv_shared_byte(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint32_t gemv_scale_pair(uint32_t pair, uint32_t factor)
{
    uint32_t r;
    /* sm_80 has no BF16 product alone; adding -0.0 changes nothing. */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(factor), "r"(0x80008000u));
    return r;
}

static __device__ __forceinline__ uint32_t gemv_word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A code becomes BF16 by moving its bits (the value times 2^-120 for e4m3, 2^-126 for e2m1,
 * subnormals included) and one exact product by 2^(120 or 126 + block exponent). Pairs hold the
 * codes that lie 16 bits apart, so most moves are one shift and two masks. */
template <int FORMAT> static __device__ __forceinline__ uint32_t gemv_factor(uint32_t e)
{
    return (e + (FORMAT == GEMV_FP8 ? 120 : 126)) * 0x00800080u;
}

template <int FORMAT, int S>
static __device__ __forceinline__ void gemv_operand(const uint4 &v, uint32_t factor,
                                                    uint32_t out[2])
{
    if constexpr (FORMAT == GEMV_BF16) {
        out[0] = gemv_word(v, 2 * S);
        out[1] = gemv_word(v, 2 * S + 1);
    } else if constexpr (FORMAT == GEMV_FP8) { /* codes 0 and 2, codes 1 and 3 */
        uint32_t w = gemv_word(v, S);
        out[0] = gemv_scale_pair((w << 8 & 0x80008000u) | (w << 4 & 0x07F007F0u), factor);
        out[1] = gemv_scale_pair((w & 0x80008000u) | (w >> 4 & 0x07F007F0u), factor);
    } else { /* codes 0 and 4, 1 and 5; 2 and 6, 3 and 7 */
        uint32_t w = gemv_word(v, S / 2);
        if constexpr (S % 2 == 0) {
            out[0] = gemv_scale_pair((w << 12 & 0x80008000u) | (w << 6 & 0x01C001C0u), factor);
            out[1] = gemv_scale_pair((w << 8 & 0x80008000u) | (w << 2 & 0x01C001C0u), factor);
        } else {
            out[0] = gemv_scale_pair((w << 4 & 0x80008000u) | (w >> 2 & 0x01C001C0u), factor);
            out[1] = gemv_scale_pair((w & 0x80008000u) | (w >> 6 & 0x01C001C0u), factor);
        }
    }
}

/* A lane's inputs of a stage as they lie, 16 bytes a word of weights and half. */
template <int FORMAT> struct gemv_x {
    uint32_t of[2][2 * gemv_format<FORMAT>::steps];

    /* p: this lane's first input; second: how far its second half lies (0: there is none). */
    __device__ __forceinline__ void load(const uint16_t *p, uint32_t second)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int i = 0; i < gemv_format<FORMAT>::steps / 2; i++) {
                uint4 v = __ldg((const uint4 *)(p + h * second) + i);
                of[h][4 * i] = v.x, of[h][4 * i + 1] = v.y;
                of[h][4 * i + 2] = v.z, of[h][4 * i + 3] = v.w;
            }
        }
    }
    /* Inputs of step S of half H in the pairs of gemv_operand. */
    template <int S> __device__ __forceinline__ void pairs(int h, uint32_t b[2]) const
    {
        const uint32_t *x = of[h];
        if constexpr (FORMAT == GEMV_BF16) {
            b[0] = x[2 * S], b[1] = x[2 * S + 1];
        } else {
            constexpr int lo = FORMAT == GEMV_FP8 ? 2 * S : 4 * (S / 2) + S % 2;
            constexpr int hi = FORMAT == GEMV_FP8 ? lo + 1 : lo + 2;
            b[0] = __byte_perm(x[lo], x[hi], 0x5410);
            b[1] = __byte_perm(x[lo], x[hi], 0x7632);
        }
    }
};

/* Steps S and on of half h of a stage. v, factor: of rows g and g + 8 of the tile. */
template <int FORMAT, int NT, int S>
static __device__ __forceinline__ void gemv_steps(const uint4 v[2], const uint32_t factor[2],
                                                  const gemv_x<FORMAT> x[NT], int h, float c[NT][4])
{
    if constexpr (S < gemv_format<FORMAT>::steps) {
        uint32_t lo[2], hi[2];
        gemv_operand<FORMAT, S>(v[0], factor[0], lo);
        gemv_operand<FORMAT, S>(v[1], factor[1], hi);
        uint32_t a[4] = {lo[0], hi[0], lo[1], hi[1]};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t b[2];
            x[n].template pairs<S>(h, b);
            mma_bf16(c[n], a, b[0], b[1]);
        }
        gemv_steps<FORMAT, NT, S + 1>(v, factor, x, h, c);
    }
}

/* A stage: weights, then FP8 the 4 exponents of its blocks, FP4 8 of each row. */
template <int FORMAT> struct gemv_stage {
    static constexpr int weights = 16 * GEMV_LINE;
    static constexpr int bytes = weights + (FORMAT == GEMV_FP4 ? 128 : FORMAT == GEMV_FP8 ? 16 : 0);
};

/* Floats of a warp's sums of a tile: row r of x, output o at [r][o], padded against collisions. */
template <int NT> struct gemv_sums {
    static constexpr int stride = 20, floats = 8 * NT * stride;
};

/* A tile of 16 outputs as a warp reads it. */
struct gemv_tile {
    const uint8_t *w;     /* its first row */
    const uint8_t *scale; /* FP8: of its block of rows; FP4: of its first row */
};

/* The shape of a launch; blocks are (32, n_split, n_sub) threads. Number of stages of a split and
 * of places of a block: the quotient, one more for the first `rest`. */
struct gemv_shape {
    int n_split, stages, stages_rest;
    int places, places_rest;
    int together; /* places between two barriers */
};

/* All of a block's shared memory: rings, then two sets of sums. */
template <int FORMAT, int NT, int RING> constexpr size_t gemv_shared_bytes(int n_warp, int together)
{
    return (size_t)n_warp * (RING * gemv_stage<FORMAT>::bytes +
                             2 * together * gemv_sums<NT>::floats * sizeof(float));
}

/* All of it, for what comes behind the products. */
static __device__ __forceinline__ uint8_t *gemv_memory_of()
{
    extern __shared__ __align__(128) uint8_t gemv_memory[];
    return gemv_memory;
}

/* A block takes neighbouring places, equal shares of all (times `grain`); its warps with
 * threadIdx.z = sub work on tile (place, sub). SOURCE says what those are; a cursor of its own type
 * goes from place to place, forwards:
 *   seek(cursor, place)
 *   row_bytes(cursor)
 *   tile(cursor, place, sub)
 *   row(cursor, place, sub, r)  inputs of row r of this pass; behind the last: any row
 *   finish(cursor, shape, place, n, sums)  by all threads, sums of n places in shared memory
 * TAIL: rows may end inside a stage (at its half or before its beginning), scales of FP8 may lie at
 * any byte. The code is kept short on purpose: fetching it is a good part of a short launch. */
template <int FORMAT, int NT, int RING, bool TAIL, class SOURCE>
static __device__ __forceinline__ void gemv_stream(const SOURCE &src, const struct gemv_shape &s,
                                                   int grain)
{
    using stage = gemv_stage<FORMAT>;
    using sums = gemv_sums<NT>;
    constexpr int inputs = gemv_format<FORMAT>::inputs;
    constexpr bool early = NT == 1 && FORMAT != GEMV_FP4; /* inputs a stage ahead */
    extern __shared__ __align__(128) uint8_t gemv_memory[];
    const int lane = threadIdx.x, slice = threadIdx.y, sub = threadIdx.z, block = blockIdx.x;
    const int row = lane / 4, t = lane % 4;
    const int n = s.stages + (slice < s.stages_rest);
    const int p0 = grain * (block * s.places + min(block, s.places_rest));
    const int p1 = p0 + grain * (s.places + (block < s.places_rest));
    const int warp = sub * s.n_split + slice, n_warp = s.n_split * blockDim.z;
    const uint32_t base = gemv_address(gemv_memory) + warp * RING * stage::bytes;

    /* Ahead of the products: a lane copies 16 bytes of every fourth row. */
    const uint32_t copy_to = lane / 8 * GEMV_LINE + (lane % 8 ^ (lane / 8 & 1) << 2) * 16;
    int fp = p0, fk = 0, width = 0;
    typename SOURCE::cursor ahead, now;
    const uint8_t *from = NULL, *scale_from = NULL;
    auto request = [&](uint32_t at) {
        if (fp < p1 && n > 0) {
            if (fk == 0) {
                src.seek(ahead, fp);
                width = src.row_bytes(ahead);
                struct gemv_tile q = src.tile(ahead, fp, sub);
                from = q.w + lane / 8 * width + slice * GEMV_LINE + lane % 8 * 16;
                if (FORMAT == GEMV_FP8)
                    scale_from = q.scale + slice * 4;
                if (FORMAT == GEMV_FP4) /* a byte for 16 of weights */
                    scale_from = q.scale + lane / 2 * (width / 16) + slice * 8 + lane % 2 * 4;
            }
            int at_byte = (slice + fk * s.n_split) * GEMV_LINE;
            if (!TAIL || at_byte + lane % 8 * 16 < width) {
                const uint8_t *p = from;
#pragma unroll
                for (int i = 0; i < 4; i++, p += 4 * width)
                    gemv_copy(at + copy_to + i * 4 * GEMV_LINE, p);
            }
            if (FORMAT == GEMV_FP8 && !TAIL && lane == 0)
                gemv_copy_word(at + stage::weights, scale_from);
            if (FORMAT == GEMV_FP4 && (!TAIL || at_byte + lane % 2 * 64 < width))
                gemv_copy_word(at + stage::weights + lane * 4, scale_from);
            from += s.n_split * GEMV_LINE;
            scale_from += s.n_split * (FORMAT == GEMV_FP4 ? 8 : 4);
            if (++fk == n) {
                fk = 0;
                fp++;
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    uint32_t fill = base;
#pragma unroll 1
    for (int i = 0; i < RING - 1; i++, fill += stage::bytes)
        request(fill);

    const uint32_t read_at = row * GEMV_LINE + (t ^ (row & 1) << 2) * 16;
    uint32_t use = base;
    float *part = (float *)(gemv_memory + n_warp * RING * stage::bytes);
    float *mine = part + warp * s.together * sums::floats;
    int flip = 0;
#pragma unroll 1
    for (int p = p0; p < p1; p += s.together) {
        const int end = min(p + s.together, p1);
        float *to = mine + flip;
        typename SOURCE::cursor first = now;
#pragma unroll 1
        for (int q = p; q < end; q++, to += sums::floats) {
            float c[2][NT][4] = {}; /* halves apart: two chains */
            const uint16_t *x[NT];
            gemv_x<FORMAT> next[NT];
            src.seek(now, q);
            if (q == p)
                first = now;
            const int n_in = TAIL ? src.row_bytes(now) / (GEMV_LINE / 2) * (inputs / 2) : 0;
            /* First input of stage k; how many of its halves there are; its second half's distance.
             */
            auto input_at = [&](int k) { return (slice + k * s.n_split) * inputs; };
            auto halves = [&](int k) { return TAIL ? (n_in - input_at(k)) / (inputs / 2) : 2; };
            auto second = [&](int k) { return halves(k) > 1 ? inputs / 2 : 0; };
            auto fetch = [&](int k) {
#pragma unroll
                for (int i = 0; i < NT; i++)
                    next[i].load(x[i] + (TAIL && halves(k) < 1 ? 0 : input_at(k)), second(k));
            };
#pragma unroll
            for (int i = 0; i < NT; i++)
                x[i] = src.row(now, q, sub, 8 * i + row) + t * (inputs / 8);
            if (early && n > 0)
                fetch(0);
            const uint8_t *scale = NULL;
            if (FORMAT == GEMV_FP8 && TAIL)
                scale = src.tile(now, q, sub).scale + t / 2;
#pragma unroll 1
            for (int k = 0; k < n; k++) {
                gemv_x<FORMAT> in[NT];
                if (!early)
                    fetch(k);
#pragma unroll
                for (int i = 0; i < NT; i++)
                    in[i] = next[i];
                if (early && k + 1 < n)
                    fetch(k + 1);
                asm volatile("cp.async.wait_group %0;" ::"n"(RING - 2) : "memory");
                __syncwarp();
                request(fill);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    if (TAIL && h >= halves(k))
                        break;
                    uint32_t at = use + (read_at ^ h * 64), factor[2] = {0, 0};
                    const uint4 v[2] = {gemv_shared4(at), gemv_shared4(at + 8 * GEMV_LINE)};
                    if (FORMAT == GEMV_FP8) {
                        uint32_t e = TAIL ? __ldg(scale + (input_at(k) + h * second(k)) / 32)
                                          : gemv_shared_byte(use + stage::weights + 2 * h + t / 2);
                        factor[0] = factor[1] = gemv_factor<FORMAT>(e);
                    }
                    if (FORMAT == GEMV_FP4) {
                        uint32_t of = use + stage::weights + row * 8 + t + 4 * h;
                        factor[0] = gemv_factor<FORMAT>(gemv_shared_byte(of));
                        factor[1] = gemv_factor<FORMAT>(gemv_shared_byte(of + 64));
                    }
                    gemv_steps<FORMAT, NT, 0>(v, factor, in, h, c[h]);
                }
                fill = use; /* read, so the next request may write it */
                use = use == base + (RING - 1) * stage::bytes ? base : use + stage::bytes;
            }
            /* Lane (row, t) has outputs row, row + 8 of columns 2 t, 2 t + 1. */
#pragma unroll
            for (int i = 0; i < NT; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    to[(8 * i + 2 * t + (j & 1)) * sums::stride + row + 8 * (j >> 1)] =
                        c[0][i][j] + c[1][i][j];
            }
        }
        __syncthreads();
        src.finish(first, s, p, end - p, part + flip);
        flip = flip ? 0 : n_warp * s.together * sums::floats;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Output o of row r of tile `sub` of place q behind the first: the splits' sums in one order. */
template <int NT>
static __device__ __forceinline__ float gemv_sum(const float *part, const struct gemv_shape &s,
                                                 int q, int sub, int r, int o)
{
    using sums = gemv_sums<NT>;
    const int step = s.together * sums::floats;
    const float *p =
        part + (sub * s.n_split * s.together + q) * sums::floats + r * sums::stride + o;
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < s.n_split; i += 4, p += 4 * step) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = i + j < s.n_split ? p[j * step] : 0;
        sum += v[0] + v[1] + (v[2] + v[3]);
    }
    return sum;
}

#endif
