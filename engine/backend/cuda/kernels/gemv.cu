/* y = W x for few rows: FP8 and BF16 weights on tensor cores, read once (docs/kernels.md, "GEMV").
 *
 * A warp multiplies 16 or 32 outputs by 64 inputs at a time. The order of k inside such a chunk is
 * free as long as both operands agree, so every lane reads 16 neighbouring weights of a row with
 * one load and the same 16 inputs of a row of x. FP8 codes become BF16 by moving their bits, which
 * is the value times 2^-120; one exact multiplication by 2^(120 + block exponent) puts scale and
 * offset in. Warps of a block share the outputs and split K; their sums are added in warp order.
 * The tile, the split and the order depend on the matrix alone, so a row has the same bits whatever
 * rows are beside it. */
#include "backend/cuda/kernels/numeric.cuh"

#define CHUNK 64

static __device__ __forceinline__ uint32_t scale_pair(uint32_t pair, uint32_t factor)
{
    uint32_t r;
    /* sm_80 has no BF16 product alone; adding -0.0 changes nothing. */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(factor), "r"(0x80008000u));
    return r;
}

/* Four codes to two BF16 pairs times factor (2^(120 + exponent) twice). */
static __device__ __forceinline__ void decode_e4m3(uint32_t code, uint32_t factor, uint32_t out[2])
{
    uint32_t lo = __byte_perm(code, 0, 0x1404), hi = __byte_perm(code, 0, 0x3424);
    out[0] = scale_pair((lo & 0x80008000u) | (lo >> 4 & 0x07F007F0u), factor);
    out[1] = scale_pair((hi & 0x80008000u) | (hi >> 4 & 0x07F007F0u), factor);
}

/* Streamed once: past the first-level cache. */
static __device__ __forceinline__ uint4 stream(const void *p)
{
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}

struct gemv {
    const uint8_t *w;
    const uint8_t *scale; /* FP8: [n_out / 32][scale_columns] */
    int scale_columns;
    int64_t n_out, n_in;
    const uint16_t *x;
    int64_t x_stride, group; /* elements between rows of x; outputs of a group, 0: one group */
    int n_row;
    uint16_t *y; /* BF16, or NULL */
    float *y32;
};

/* The 16 weights of a lane: one load of FP8 codes, two of BF16 values. */
template <bool FP8> struct piece;
template <> struct piece<true> {
    uint4 v;
    __device__ void load(const gemv &g, int64_t o, int64_t k)
    {
        v = stream(g.w + o * g.n_in + k);
    }
    __device__ void operand(int j, uint32_t factor, uint32_t out[2]) const
    {
        decode_e4m3(j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w, factor, out);
    }
};
template <> struct piece<false> {
    uint4 v[2];
    __device__ void load(const gemv &g, int64_t o, int64_t k)
    {
        const uint8_t *p = g.w + (o * g.n_in + k) * 2;
        v[0] = stream(p);
        v[1] = stream(p + 16);
    }
    __device__ void operand(int j, uint32_t, uint32_t out[2]) const
    {
        const uint4 &u = v[j >> 1];
        out[0] = j & 1 ? u.z : u.x;
        out[1] = j & 1 ? u.w : u.y;
    }
};

/* What a warp needs of one chunk. */
template <bool FP8, int MT, int NT> struct stage {
    piece<FP8> w[MT][2];
    uint32_t exponent;
    __device__ void load(const gemv &g, int64_t o0, int64_t k, int row, int t)
    {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            w[m][0].load(g, o0 + 16 * m + row, k + 16 * t);
            w[m][1].load(g, o0 + 16 * m + row + 8, k + 16 * t);
        }
        if (FP8)
            exponent = g.scale[o0 / 32 * g.scale_columns + (k + 16 * t) / 32];
    }
};

template <bool FP8, int MT, int NT>
static __device__ __forceinline__ void multiply(const gemv &g, const stage<FP8, MT, NT> &st,
                                                const uint16_t *x, int64_t k, int first_row,
                                                int row, int t, float c[MT][NT][4])
{
    uint32_t factor = 0;
    if (FP8) {
        factor = (st.exponent + 120) << 7; /* exponent field 120 + (e - 127) + 127 */
        factor |= factor << 16;
    }
    uint32_t b[NT][8];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int r = first_row + 8 * n + row;
        uint4 lo = make_uint4(0, 0, 0, 0), hi = lo;
        if (r < g.n_row) {
            const uint4 *p = (const uint4 *)(x + r * g.x_stride + k + 16 * t);
            lo = p[0];
            hi = p[1];
        }
        b[n][0] = lo.x, b[n][1] = lo.y, b[n][2] = lo.z, b[n][3] = lo.w;
        b[n][4] = hi.x, b[n][5] = hi.y, b[n][6] = hi.z, b[n][7] = hi.w;
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t lo[2], hi[2];
            st.w[m][0].operand(j, factor, lo);
            st.w[m][1].operand(j, factor, hi);
            uint32_t a[4] = {lo[0], hi[0], lo[1], hi[1]};
#pragma unroll
            for (int n = 0; n < NT; n++)
                mma_bf16(c[m][n], a, b[n][2 * j], b[n][2 * j + 1]);
        }
    }
}

/* MT tiles of 16 outputs a warp, NT tiles of 8 rows, DEPTH chunks on their way. */
template <bool FP8, int MT, int NT, int DEPTH> static __global__ void gemv_kernel(gemv g)
{
    extern __shared__ float part[]; /* [warps][16 MT][8 NT] */
    int warp = threadIdx.x / 32, n_warp = blockDim.x / 32, lane = threadIdx.x % 32;
    int row = lane / 4, t = lane % 4;
    int64_t o0 = (int64_t)blockIdx.x * 16 * MT, step = (int64_t)n_warp * CHUNK;
    const uint16_t *x = g.x + (g.group > 0 ? o0 / g.group * g.n_in : 0);
    float c[MT][NT][4];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++)
            c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
    }
    int first_row = blockIdx.y * 8 * NT;
    stage<FP8, MT, NT> st[DEPTH];
    int64_t k = (int64_t)warp * CHUNK;
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        if (k + i * step < g.n_in)
            st[i].load(g, o0, k + i * step, row, t);
    }
    for (; k < g.n_in; k += DEPTH * step) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            if (k + i * step >= g.n_in)
                break;
            multiply<FP8, MT, NT>(g, st[i], x, k + i * step, first_row, row, t, c);
            if (k + (i + DEPTH) * step < g.n_in)
                st[i].load(g, o0, k + (i + DEPTH) * step, row, t);
        }
    }
    /* Lane (row, t) has outputs row, row + 8 of columns 2 t, 2 t + 1. */
    float *mine = part + warp * (16 * MT * 8 * NT);
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            for (int i = 0; i < 4; i++)
                mine[(16 * m + row + 8 * (i >> 1)) * 8 * NT + 8 * n + 2 * t + (i & 1)] = c[m][n][i];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * MT * 8 * NT; i += blockDim.x) {
        int o = i % (16 * MT), r = first_row + i / (16 * MT), at = o * 8 * NT + i / (16 * MT);
        if (r >= g.n_row)
            continue;
        float sum = 0;
        for (int k = 0; k < n_warp; k++)
            sum += part[k * (16 * MT * 8 * NT) + at];
        int64_t to = r * g.n_out + o0 + o;
        if (g.y)
            g.y[to] = to_bf16(sum);
        else
            g.y32[to] = sum;
    }
}

/* 16 exponents of headroom on both sides: the factor must be a normal BF16 number. */
bool hx_cu_gemv_takes(const struct hx_cuda_weight *w, int64_t group)
{
    bool fp8 = w->format == HX_FORMAT_FP8_ID;
    if (!fp8 && !(w->format == HX_FORMAT_DENSE_ID && w->is_bf16))
        return false;
    return w->n_in % CHUNK == 0 && w->n_out % 32 == 0 && group % 32 == 0;
}

template <bool FP8, int MT, int NT, int DEPTH>
static void start(cudaStream_t s, const gemv &g, int n_warp, unsigned y)
{
    size_t shared = (size_t)n_warp * 16 * MT * 8 * NT * sizeof(float);
    if (shared > 48 * 1024)
        cudaFuncSetAttribute(gemv_kernel<FP8, MT, NT, DEPTH>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    gemv_kernel<FP8, MT, NT, DEPTH>
        <<<dim3((unsigned)(g.n_out / (16 * MT)), y), n_warp * 32, shared, s>>>(g);
}

template <bool FP8> static void launch(cudaStream_t s, const gemv &g)
{
    /* By the matrix alone. Up to 2,048 outputs the first loads are what takes time: all chunks of a
     * warp at once. Otherwise two at a time leave room for more warps, and above 8,192 outputs wide
     * tiles share their inputs. */
    bool small = g.n_out <= 2048, narrow = g.n_out <= 8192;
    int n_chunk = (int)(g.n_in / CHUNK), n_warp = narrow && !small ? 16 : 8;
    unsigned many = (unsigned)((g.n_row + 31) / 32);
    while (small && n_warp < 16 && n_warp * 5 < n_chunk)
        n_warp *= 2;
    while (n_warp > 1 && n_warp > n_chunk)
        n_warp /= 2;
    if (g.n_row <= 8 && small) {
        start<FP8, 1, 1, FP8 ? 5 : 3>(s, g, n_warp, 1);
        return;
    }
    if (g.n_row <= 8 && narrow)
        start<FP8, 1, 1, 2>(s, g, n_warp, 1);
    else if (g.n_row <= 8)
        start<FP8, 2, 1, 2>(s, g, n_warp, 1);
    else if (narrow)
        start<FP8, 1, 4, 2>(s, g, n_warp, many);
    else
        start<FP8, 2, 4, 1>(s, g, n_warp, many);
}

cudaError_t hx_cu_gemv(cudaStream_t s, const struct hx_cuda_weight *w, const uint16_t *x,
                       int64_t x_stride, int64_t group, int n_row, uint16_t *y, float *y32)
{
    gemv g = {(const uint8_t *)w->data,
              w->scale,
              w->scale_columns,
              w->n_out,
              w->n_in,
              x,
              x_stride,
              group,
              n_row,
              y,
              y32};
    if (w->format == HX_FORMAT_FP8_ID)
        launch<true>(s, g);
    else
        launch<false>(s, g);
    return cudaGetLastError();
}
