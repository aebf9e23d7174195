// Memory test kernels: fill and check index space, dense, 64-bit word by word.
#include "kernels/kernels.h"

namespace
{

constexpr int THREADS = 256, WORDS = 8; // words a thread, two at a time
constexpr uint64_t MIX_1 = 0xbf58476d1ce4e5b9ull, MIX_2 = 0x94d049bb133111ebull;
// Inverses modulo 2^64 of the two multipliers.
constexpr uint64_t UNMIX_1 = 0x96de1b173f119089ull, UNMIX_2 = 0x319642b2d24d8ec3ull;
static_assert(MIX_1 * UNMIX_1 == 1 && MIX_2 * UNMIX_2 == 1, "inverses");

// A bijection of 64-bit words, so that a wrong word tells which index it was written for.
__host__ __device__ __forceinline__ uint64_t tag(uint64_t index, uint64_t seed)
{
    uint64_t x = index + seed;
    x = (x ^ x >> 32) * MIX_1;
    x = (x ^ x >> 32) * MIX_2;
    return x ^ x >> 32;
}

__host__ __device__ __forceinline__ uint64_t untag(uint64_t x, uint64_t seed)
{
    x ^= x >> 32;
    x *= UNMIX_2;
    x ^= x >> 32;
    x *= UNMIX_1;
    x ^= x >> 32;
    return x - seed;
}

template <int KIND> __host__ __device__ __forceinline__ uint64_t word(uint64_t index, uint64_t seed)
{
    if (KIND == HX_PATTERN_TAG)
        return tag(index, seed);
    if (KIND == HX_PATTERN_CONSTANT)
        return seed;
    if (KIND == HX_PATTERN_ADDRESS)
        return ~index ^ seed;
    return 1ull << ((index + seed) & 63);
}

__device__ __forceinline__ uint64_t place(const hx_mem_map &m, uint64_t index)
{
    if (index < m.fold_from || index >= m.fold_to)
        return index;
    const uint64_t granule = m.granule ? (index - m.fold_from) / m.granule : index - m.fold_from;
    return m.every > 1 && granule % m.every != 0 ? index : index - m.fold_delta;
}

__device__ __forceinline__ uint64_t *at(uint64_t *const *segments, uint64_t place)
{
    return segments[place / HX_SEGMENT_WORDS] + place % HX_SEGMENT_WORDS;
}

template <int KIND>
__global__ void __launch_bounds__(THREADS)
    fill(uint64_t *const *segments, hx_mem_map map, uint64_t from, uint64_t to, uint64_t seed)
{
    const uint64_t base = from + (uint64_t)blockIdx.x * (THREADS * WORDS) + threadIdx.x * 2;
    const bool folds = map.fold_from < map.fold_to;
#pragma unroll
    for (int w = 0; w < WORDS; w += 2) {
        const uint64_t i = base + (uint64_t)w * THREADS;
        if (i >= to)
            return;
        if (!folds && i + 1 < to) {
            // from and the segment size are even, so pairs never straddle a segment.
            *(ulonglong2 *)at(segments, i) =
                make_ulonglong2(word<KIND>(i, seed), word<KIND>(i + 1, seed));
        } else {
            *at(segments, place(map, i)) = word<KIND>(i, seed);
            if (i + 1 < to)
                *at(segments, place(map, i + 1)) = word<KIND>(i + 1, seed);
        }
    }
}

template <int KIND>
__device__ __noinline__ void report(uint64_t i, uint64_t got, uint64_t seed, uint64_t n_words,
                                    hx_mem_count *count, uint8_t *blocks)
{
    atomicAdd(&count->mismatches, 1ull);
    atomicMin(&count->first_index, (unsigned long long)i);
    if (KIND == HX_PATTERN_TAG && untag(got, seed) < n_words) {
        atomicAdd(&count->aliases, 1ull);
        atomicMin(&count->first_alias, (unsigned long long)i);
    }
    if (blocks)
        blocks[i >> 18] = 1; // 2 MiB are 2^18 words
}

template <int KIND>
__global__ void __launch_bounds__(THREADS)
    check(uint64_t *const *segments, hx_mem_map map, uint64_t from, uint64_t to, uint64_t seed,
          uint64_t n_words, hx_mem_count *count, uint8_t *blocks)
{
    const uint64_t base = from + (uint64_t)blockIdx.x * (THREADS * WORDS) + threadIdx.x * 2;
    const bool folds = map.fold_from < map.fold_to;
    ulonglong2 v[WORDS / 2];
#pragma unroll
    for (int w = 0; w < WORDS; w += 2) {
        const uint64_t i = base + (uint64_t)w * THREADS;
        v[w / 2] = make_ulonglong2(0, 0);
        if (i >= to)
            continue;
        if (!folds && i + 1 < to) {
            v[w / 2] = __ldcs((const ulonglong2 *)at(segments, i));
        } else {
            v[w / 2].x = *at(segments, place(map, i));
            if (i + 1 < to)
                v[w / 2].y = *at(segments, place(map, i + 1));
        }
    }
#pragma unroll
    for (int w = 0; w < WORDS; w += 2) {
        const uint64_t i = base + (uint64_t)w * THREADS;
        if (i < to && v[w / 2].x != word<KIND>(i, seed))
            report<KIND>(i, v[w / 2].x, seed, n_words, count, blocks);
        if (i + 1 < to && v[w / 2].y != word<KIND>(i + 1, seed))
            report<KIND>(i + 1, v[w / 2].y, seed, n_words, count, blocks);
    }
}

__global__ void differ(const uint64_t *a, const uint64_t *b, size_t words,
                       unsigned long long *count)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    unsigned long long n = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
        n += a[i] != b[i];
    if (n)
        atomicAdd(count, n);
}

// A grid for [from, to); index space has at most 2^37 words (1 TiB), so the count fits.
unsigned grid(uint64_t from, uint64_t to)
{
    return (unsigned)((to - from + THREADS * WORDS - 1) / (THREADS * WORDS));
}

} // namespace

extern "C" uint64_t hx_pattern_word(struct hx_pattern p, uint64_t index)
{
    switch (p.kind) {
    case HX_PATTERN_TAG: return word<HX_PATTERN_TAG>(index, p.seed);
    case HX_PATTERN_CONSTANT: return word<HX_PATTERN_CONSTANT>(index, p.seed);
    case HX_PATTERN_ADDRESS: return word<HX_PATTERN_ADDRESS>(index, p.seed);
    default: return word<HX_PATTERN_WALK>(index, p.seed);
    }
}

extern "C" uint64_t hx_pattern_tag_index(uint64_t word, uint64_t seed)
{
    return untag(word, seed);
}

extern "C" cudaError_t hx_k_mem_fill(uint64_t *const *segments, const struct hx_mem_map *map,
                                     uint64_t from, uint64_t to, struct hx_pattern p,
                                     cudaStream_t s)
{
    if (from >= to || from % 2 != 0 || to > (uint64_t)1 << 37)
        return cudaErrorInvalidValue;
    const unsigned n = grid(from, to);
    switch (p.kind) {
    case HX_PATTERN_TAG:
        fill<HX_PATTERN_TAG><<<n, THREADS, 0, s>>>(segments, *map, from, to, p.seed);
        break;
    case HX_PATTERN_CONSTANT:
        fill<HX_PATTERN_CONSTANT><<<n, THREADS, 0, s>>>(segments, *map, from, to, p.seed);
        break;
    case HX_PATTERN_ADDRESS:
        fill<HX_PATTERN_ADDRESS><<<n, THREADS, 0, s>>>(segments, *map, from, to, p.seed);
        break;
    case HX_PATTERN_WALK:
        fill<HX_PATTERN_WALK><<<n, THREADS, 0, s>>>(segments, *map, from, to, p.seed);
        break;
    }
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_mem_check(uint64_t *const *segments, const struct hx_mem_map *map,
                                      uint64_t from, uint64_t to, struct hx_pattern p,
                                      uint64_t n_words, struct hx_mem_count *count, uint8_t *blocks,
                                      cudaStream_t s)
{
    if (from >= to || from % 2 != 0 || to > (uint64_t)1 << 37)
        return cudaErrorInvalidValue;
    const unsigned n = grid(from, to);
    switch (p.kind) {
    case HX_PATTERN_TAG:
        check<HX_PATTERN_TAG>
            <<<n, THREADS, 0, s>>>(segments, *map, from, to, p.seed, n_words, count, blocks);
        break;
    case HX_PATTERN_CONSTANT:
        check<HX_PATTERN_CONSTANT>
            <<<n, THREADS, 0, s>>>(segments, *map, from, to, p.seed, n_words, count, blocks);
        break;
    case HX_PATTERN_ADDRESS:
        check<HX_PATTERN_ADDRESS>
            <<<n, THREADS, 0, s>>>(segments, *map, from, to, p.seed, n_words, count, blocks);
        break;
    case HX_PATTERN_WALK:
        check<HX_PATTERN_WALK>
            <<<n, THREADS, 0, s>>>(segments, *map, from, to, p.seed, n_words, count, blocks);
        break;
    }
    return cudaGetLastError();
}

extern "C" cudaError_t hx_k_differ(const void *a, const void *b, size_t bytes,
                                   unsigned long long *count, cudaStream_t s)
{
    differ<<<512, 256, 0, s>>>((const uint64_t *)a, (const uint64_t *)b, bytes / 8, count);
    return cudaGetLastError();
}
