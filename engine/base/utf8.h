/* UTF-8: strict validation, decoding, replacement by the WHATWG rule (one U+FFFD for each maximal
 * subpart of an ill-formed sequence). */
#ifndef HX_BASE_UTF8_H
#define HX_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Length of the valid prefix; equals len when all of it is valid. */
size_t hx_utf8_valid_prefix(const uint8_t *s, size_t len);
/* Decodes one character of valid UTF-8 at s; len >= 1. *n = bytes used. */
uint32_t hx_utf8_decode(const uint8_t *s, size_t len, unsigned *n);
/* Encodes a scalar value; returns 1-4 bytes written. Surrogates and > 0x10FFFF give U+FFFD. */
unsigned hx_utf8_encode(uint32_t cp, uint8_t out[4]);
/* Classifies the bytes at s: >0 = length of a complete valid character; 0 = a valid but
 * unfinished prefix (needs more bytes); <0 = minus the length of the maximal ill-formed subpart. */
int hx_utf8_next(const uint8_t *s, size_t len);
/* Appends s with ill-formed parts replaced by U+FFFD; returns the number of replacements or < 0. */
int hx_utf8_sanitize(const uint8_t *s, size_t len, struct hx_buf *out);

#endif
