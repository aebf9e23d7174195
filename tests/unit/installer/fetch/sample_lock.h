/* A small lock file: two whole files, one cut, one of the Engram. */
#ifndef HX_TEST_SAMPLE_LOCK_H
#define HX_TEST_SAMPLE_LOCK_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HASH_A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HASH_B "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
#define COMMIT "0123456789abcdef0123456789abcdef01234567"

/* The cut file's header has 1,000 bytes; its data area 101,000, of which tensors of 400, 800 and
 * 4,000 bytes are wanted. */
static const char sample_lock[] =
    "{\"format\":\"hybrid-lock-1\",\"model\":\"tiny-1\",\"created\":\"2026-01-02T03:04:05Z\","
    "\"made_here\":false,\"expect\":{\"expert_matrices\":2},"
    "\"sources\":[{\"id\":\"official\",\"repo\":\"owner/name\",\"commit\":\"" COMMIT "\","
    "\"licence\":\"MIT\",\"endpoints\":[\"default\"]},"
    "{\"id\":\"exl3\",\"repo\":\"other/pack\",\"commit\":\"" COMMIT "\",\"licence\":null,"
    "\"endpoints\":[\"one\",\"two\"]}],"
    "\"files\":["
    "{\"source\":\"official\",\"path\":\"config.json\",\"size\":100,\"sha256\":\"" HASH_A "\","
    "\"mode\":\"whole\",\"out\":\"config.json\",\"chunk\":4096},"
    "{\"source\":\"exl3\",\"path\":\"model-1.safetensors\",\"size\":10000,\"sha256\":\"" HASH_B
    "\","
    "\"header_sha256\":\"" HASH_A "\",\"mode\":\"whole\",\"out\":\"experts/00001.safetensors\","
    "\"chunk\":4096,\"chunk_sha256\":[\"" HASH_A "\",\"" HASH_B "\",\"" HASH_A "\"]},"
    "{\"source\":\"official\",\"path\":\"model-3.safetensors\",\"size\":102000,\"sha256\":\"" HASH_A
    "\",\"header_sha256\":\"" HASH_B "\",\"mode\":\"cut\",\"out\":\"dense/00003.safetensors\","
    "\"chunk\":4096,\"header_bytes\":1000,\"tensors\":["
    "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[10,10],\"begin\":0,\"end\":400,\"sha256\":"
    "\"" HASH_A "\"},"
    "{\"name\":\"b\",\"dtype\":\"BF16\",\"shape\":[400],\"begin\":400,\"end\":1200},"
    "{\"name\":\"c\",\"dtype\":\"F8_E4M3\",\"shape\":[40,100],\"begin\":90000,\"end\":94000}]},"
    "{\"source\":\"official\",\"path\":\"model-4.safetensors\",\"size\":5000,\"sha256\":\"" HASH_B
    "\","
    "\"mode\":\"whole\",\"out\":\"engram/layer1.safetensors\"}]}";

/* The sample with the n-th occurrence (from 0) of one text replaced; free()d by the caller. */
static inline char *sample_with(const char *from, const char *to, int nth)
{
    const char *at = strstr(sample_lock, from);
    while (at && nth-- > 0)
        at = strstr(at + 1, from);
    assert(at);
    size_t n = (size_t)(at - sample_lock), len = strlen(sample_lock) + strlen(to) + 1;
    char *out = malloc(len);
    assert(out);
    memcpy(out, sample_lock, n);
    memcpy(out + n, to, strlen(to));
    memcpy(out + n + strlen(to), at + strlen(from), strlen(at) - strlen(from) + 1);
    return out;
}

#endif
