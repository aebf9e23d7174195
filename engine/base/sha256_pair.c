/* SHA-256 (FIPS 180-4) with the processor's SHA instructions, where that saves more than libcrypto
 * can. Two states over the same blocks: the message schedule is computed once, and the rounds of
 * one state fill the waits of the other, so two hashes cost little more than one. A state over
 * blocks that are copied: the copy fits into the waits and costs nothing. */
#include "base/sha256_pair.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

static const uint32_t k256[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* A state in the order that the instructions want: a b e f and c d g h, highest word first. */
struct halves {
    __m128i abef, cdgh;
};

__attribute__((target("sha,sse4.1"))) static struct halves load(const uint32_t s[8])
{
    return (struct halves){
        _mm_set_epi32((int)s[0], (int)s[1], (int)s[4], (int)s[5]),
        _mm_set_epi32((int)s[2], (int)s[3], (int)s[6], (int)s[7]),
    };
}

__attribute__((target("sha,sse4.1"))) static void store(uint32_t s[8], struct halves h)
{
    uint32_t x[4], y[4];
    _mm_storeu_si128((__m128i *)(void *)x, h.abef);
    _mm_storeu_si128((__m128i *)(void *)y, h.cdgh);
    s[0] = x[3];
    s[1] = x[2];
    s[2] = y[3];
    s[3] = y[2];
    s[4] = x[1];
    s[5] = x[0];
    s[6] = y[1];
    s[7] = y[0];
}

__attribute__((target("sha,sse4.1"))) static void blocks(uint32_t a[8], uint32_t b[8],
                                                         const uint8_t *data, size_t n_blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    struct halves x = load(a), y = load(b);
    for (; n_blocks > 0; n_blocks--, data += 64) {
        const struct halves x0 = x, y0 = y;
        __m128i m[4];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i < 4) {
                const void *p = data + 16 * i;
                m[i] = _mm_shuffle_epi8(_mm_loadu_si128(p), swap);
            }
            const void *k = k256 + 4 * i;
            __m128i w = _mm_add_epi32(m[i & 3], _mm_load_si128(k));
            x.cdgh = _mm_sha256rnds2_epu32(x.cdgh, x.abef, w);
            y.cdgh = _mm_sha256rnds2_epu32(y.cdgh, y.abef, w);
            w = _mm_shuffle_epi32(w, 0x0e);
            x.abef = _mm_sha256rnds2_epu32(x.abef, x.cdgh, w);
            y.abef = _mm_sha256rnds2_epu32(y.abef, y.cdgh, w);
            if (i >= 3 && i < 15) {
                __m128i t = _mm_alignr_epi8(m[i & 3], m[(i + 3) & 3], 4);
                __m128i v = _mm_sha256msg1_epu32(m[(i + 1) & 3], m[(i + 2) & 3]);
                m[(i + 1) & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(v, t), m[i & 3]);
            }
        }
        x.abef = _mm_add_epi32(x.abef, x0.abef);
        x.cdgh = _mm_add_epi32(x.cdgh, x0.cdgh);
        y.abef = _mm_add_epi32(y.abef, y0.abef);
        y.cdgh = _mm_add_epi32(y.cdgh, y0.cdgh);
    }
    store(a, x);
    store(b, y);
}

__attribute__((target("sha,sse4.1"))) static void copy_blocks(uint32_t s[8], uint8_t *to,
                                                              const uint8_t *from, size_t n_blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    struct halves x = load(s);
    for (; n_blocks > 0; n_blocks--, from += 64, to += 64) {
        const struct halves x0 = x;
        __m128i m[4];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i < 4) {
                const void *p = from + 16 * i;
                void *q = to + 16 * i;
                m[i] = _mm_loadu_si128(p);
                _mm_stream_si128(q, m[i]);
                m[i] = _mm_shuffle_epi8(m[i], swap);
            }
            const void *k = k256 + 4 * i;
            __m128i w = _mm_add_epi32(m[i & 3], _mm_load_si128(k));
            x.cdgh = _mm_sha256rnds2_epu32(x.cdgh, x.abef, w);
            x.abef = _mm_sha256rnds2_epu32(x.abef, x.cdgh, _mm_shuffle_epi32(w, 0x0e));
            if (i >= 3 && i < 15) {
                __m128i t = _mm_alignr_epi8(m[i & 3], m[(i + 3) & 3], 4);
                __m128i v = _mm_sha256msg1_epu32(m[(i + 1) & 3], m[(i + 2) & 3]);
                m[(i + 1) & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(v, t), m[i & 3]);
            }
        }
        x.abef = _mm_add_epi32(x.abef, x0.abef);
        x.cdgh = _mm_add_epi32(x.cdgh, x0.cdgh);
    }
    _mm_sfence(); /* another thread takes it over */
    store(s, x);
}

static bool ask_processor(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1) || !(c & bit_SSSE3))
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}

bool hx_sha256_has_instructions(void)
{
    static int known; /* 0: not asked yet, 1: yes, -1: no; every thread finds the same */
    int k = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (k == 0) {
        k = ask_processor() ? 1 : -1;
        __atomic_store_n(&known, k, __ATOMIC_RELAXED);
    }
    return k > 0;
}

bool hx_sha256_blocks_pair(uint32_t a[8], uint32_t b[8], const uint8_t *data, size_t n_blocks)
{
    if (!hx_sha256_has_instructions())
        return false;
    blocks(a, b, data, n_blocks);
    return true;
}

bool hx_sha256_blocks_copy(uint32_t s[8], uint8_t *to, const uint8_t *from, size_t n_blocks)
{
    if (!hx_sha256_has_instructions())
        return false;
    copy_blocks(s, to, from, n_blocks);
    return true;
}

#else

bool hx_sha256_has_instructions(void)
{
    return false;
}

bool hx_sha256_blocks_pair(uint32_t a[8], uint32_t b[8], const uint8_t *data, size_t n_blocks)
{
    (void)a;
    (void)b;
    (void)data;
    (void)n_blocks;
    return false;
}

bool hx_sha256_blocks_copy(uint32_t s[8], uint8_t *to, const uint8_t *from, size_t n_blocks)
{
    (void)s;
    (void)to;
    (void)from;
    (void)n_blocks;
    return false;
}

#endif
