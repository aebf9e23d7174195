/* safetensors headers as they come from a server: a block of memory that may be anything. */
#ifndef HX_FETCH_STHDR_H
#define HX_FETCH_STHDR_H

#include <stddef.h>
#include <stdint.h>

#include "model/safetensors.h"

/* Bytes that decide what a file is: the length field and the start of the header. */
#define HX_STHDR_PROBE 64

/* Bytes in front of the data area (8 + header length), from the file's first n bytes: at least
 * HX_STHDR_PROBE of them unless the file is shorter. What is no safetensors file is named: zeros, a
 * web page, a pointer of large-file storage. -EINVAL. */
int hx_sthdr_length(const char *label, const uint8_t *data, size_t n, uint64_t file_size,
                    uint64_t *header_bytes, struct hx_error *err) HX_MUST;

/* The whole header, data[0 .. n) with n = what hx_sthdr_length said, by the rules of spec
 * checkpoint.md 6. Offsets of the tensors are absolute. */
int hx_sthdr_parse(const char *label, const uint8_t *data, size_t n, uint64_t file_size,
                   struct hx_st_file **out, struct hx_error *err) HX_MUST;

#endif
