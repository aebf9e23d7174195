/* Disk images of the tests. */
#ifndef HX_TESTS_IMAGE_RAWDISK_H
#define HX_TESTS_IMAGE_RAWDISK_H

#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

/* A sparse file of that many bytes, all zero; replaces what is there. */
int hx_rawdisk_blank(const char *path, uint64_t n_bytes, struct hx_error *err) HX_MUST;
/* Copies the parts that hold data; holes stay holes. Replaces `to`. */
int hx_rawdisk_copy(const char *from, const char *to, struct hx_error *err) HX_MUST;
/* SHA-256 of the whole content, 64 hexadecimal digits. */
int hx_rawdisk_hash(const char *path, char hex[65], struct hx_error *err) HX_MUST;
/* SHA-256 of what is not zero, with its place: fast on a sparse file. 64 hexadecimal digits. */
int hx_rawdisk_digest(const char *path, char hex[65], struct hx_error *err) HX_MUST;
int hx_rawdisk_write(const char *path, uint64_t at, const void *data, size_t n,
                     struct hx_error *err) HX_MUST;
/* Flips the bits of one byte. */
int hx_rawdisk_damage(const char *path, uint64_t at, struct hx_error *err) HX_MUST;

/* The partition table of a disk image with sectors of 512 bytes; free() it. */
struct hx_gpt;
int hx_rawdisk_table(const char *path, struct hx_gpt **out, struct hx_error *err) HX_MUST;

#endif
