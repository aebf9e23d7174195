/* The verified root: its hash, the partitions that carry it, the device-mapper table for it. */
#ifndef HX_INIT_VERITY_H
#define HX_INIT_VERITY_H

#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "init/gpt.h"

#define HX_VERITY_HASH_HEX   64  /* digits of a SHA-256 root hash */
#define HX_VERITY_SALT_MAX   256 /* bytes */
#define HX_VERITY_SUPERBLOCK 512 /* bytes at the start of the hash partition */
#define HX_VERITY_TABLE_MAX  1024

struct hx_verity {
    unsigned data_block, hash_block; /* bytes */
    uint64_t n_data_blocks;
    unsigned n_salt;
    uint8_t salt[HX_VERITY_SALT_MAX];
};

/* GUIDs of the data and the hash partition: first and last 128 bits of the root hash
 * (appliance.md 2.1). -EINVAL: not 64 hexadecimal digits in lower case. */
int hx_verity_guids(const char *root_hash, uint8_t data[HX_GPT_GUID], uint8_t hash[HX_GPT_GUID],
                    struct hx_error *err) HX_MUST;

/* Checks the superblock against both partitions' sizes. SHA-256, format 1, nothing else. */
int hx_verity_parse(const uint8_t raw[HX_VERITY_SUPERBLOCK], uint64_t data_bytes,
                    uint64_t hash_bytes, struct hx_verity *out, struct hx_error *err) HX_MUST;

/* Parameters of the dm-verity target; a bad block stops the kernel. data, hash: device nodes. */
int hx_verity_table(const struct hx_verity *v, const char *root_hash, const char *data,
                    const char *hash, char *out, size_t size, struct hx_error *err) HX_MUST;

#endif
