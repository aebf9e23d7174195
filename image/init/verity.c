/* dm-verity: superblock, table. Formats: the kernel's documentation of the verity target. */
#include "init/verity.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static uint64_t le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

static void guid_text(const char *hex, char out[37])
{
    snprintf(out, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

int hx_verity_guids(const char *root_hash, uint8_t data[HX_GPT_GUID], uint8_t hash[HX_GPT_GUID],
                    struct hx_error *err)
{
    if (strlen(root_hash) != HX_VERITY_HASH_HEX ||
        strspn(root_hash, "0123456789abcdef") != HX_VERITY_HASH_HEX)
        return hx_fail(err, -EINVAL, "roothash= is not %d digits of 0-9a-f", HX_VERITY_HASH_HEX);
    char text[37];
    guid_text(root_hash, text);
    int r = hx_gpt_guid_parse(text, data);
    guid_text(root_hash + HX_VERITY_HASH_HEX / 2, text);
    if (r == 0)
        r = hx_gpt_guid_parse(text, hash);
    return r ? hx_fail(err, r, "roothash= cannot be made into partition ids") : 0;
}

static bool is_block_size(uint64_t n)
{
    return n >= 512 && n <= 65536 && (n & (n - 1)) == 0;
}

int hx_verity_parse(const uint8_t raw[HX_VERITY_SUPERBLOCK], uint64_t data_bytes,
                    uint64_t hash_bytes, struct hx_verity *out, struct hx_error *err)
{
    if (memcmp(raw, "verity\0\0", 8) != 0)
        return hx_fail(err, -EBADMSG, "hash partition does not begin with a verity header");
    if (le(raw + 8, 4) != 1 || le(raw + 12, 4) != 1)
        return hx_fail(err, -EBADMSG, "verity version %u, hash type %u; only 1 and 1 are known",
                       (unsigned)le(raw + 8, 4), (unsigned)le(raw + 12, 4));
    if (memcmp(raw + 32, "sha256", 7) != 0)
        return hx_fail(err, -EBADMSG, "verity header names another hash than sha256");
    uint64_t data_block = le(raw + 64, 4), hash_block = le(raw + 68, 4);
    uint64_t n_blocks = le(raw + 72, 8), n_salt = le(raw + 80, 2);
    if (!is_block_size(data_block) || !is_block_size(hash_block))
        return hx_fail(err, -EBADMSG, "verity blocks of %u and %u bytes", (unsigned)data_block,
                       (unsigned)hash_block);
    if (n_salt > HX_VERITY_SALT_MAX)
        return hx_fail(err, -EBADMSG, "verity salt of %u bytes; at most %d", (unsigned)n_salt,
                       HX_VERITY_SALT_MAX);
    if (n_blocks == 0 || n_blocks > data_bytes / data_block)
        return hx_fail(err, -EBADMSG, "%llu verified blocks, the partition holds %llu",
                       (unsigned long long)n_blocks, (unsigned long long)(data_bytes / data_block));
    if (hash_bytes < 2 * hash_block)
        return hx_fail(err, -EBADMSG, "hash partition of %llu bytes is too small",
                       (unsigned long long)hash_bytes);
    *out = (struct hx_verity){.data_block = (unsigned)data_block,
                              .hash_block = (unsigned)hash_block,
                              .n_data_blocks = n_blocks,
                              .n_salt = (unsigned)n_salt};
    memcpy(out->salt, raw + 88, n_salt);
    return 0;
}

int hx_verity_table(const struct hx_verity *v, const char *root_hash, const char *data,
                    const char *hash, char *out, size_t size, struct hx_error *err)
{
    char salt[2 * HX_VERITY_SALT_MAX + 2] = "-";
    for (unsigned i = 0; i < v->n_salt; i++)
        snprintf(salt + (size_t)2 * i, 3, "%02x", v->salt[i]);
    /* The tree begins in the block after the header. */
    int n = snprintf(out, size, "1 %s %s %u %u %llu 1 sha256 %s %s 1 panic_on_corruption", data,
                     hash, v->data_block, v->hash_block, (unsigned long long)v->n_data_blocks,
                     root_hash, salt);
    if (n < 0 || (size_t)n >= size)
        return hx_fail(err, -EMSGSIZE, "device-mapper table is longer than %zu bytes", size);
    return 0;
}
