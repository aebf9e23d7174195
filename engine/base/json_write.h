/* Streaming JSON writer into a bounded buffer. Two spellings: compact (",", ":") for the wire and
 * spaced (", ", ": ") for text that a model reads (chat.md 3.10). */
#ifndef HX_BASE_JSON_WRITE_H
#define HX_BASE_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json_read.h"

#define HX_JSON_WRITE_DEPTH 136

struct hx_json_writer {
    struct hx_buf *out;
    bool spaced;
    unsigned depth;
    bool after_key;
    bool has_item[HX_JSON_WRITE_DEPTH];
};

void hx_jw_init(struct hx_json_writer *w, struct hx_buf *out, bool spaced);
void hx_jw_object(struct hx_json_writer *w);
void hx_jw_end_object(struct hx_json_writer *w);
void hx_jw_array(struct hx_json_writer *w);
void hx_jw_end_array(struct hx_json_writer *w);
void hx_jw_key(struct hx_json_writer *w, const char *key);
void hx_jw_key_n(struct hx_json_writer *w, const char *key, size_t len);
void hx_jw_str(struct hx_json_writer *w, const char *s);
void hx_jw_str_n(struct hx_json_writer *w, const char *s, size_t len);
void hx_jw_int(struct hx_json_writer *w, int64_t v);
void hx_jw_uint(struct hx_json_writer *w, uint64_t v);
/* Shortest round-trip form in the spelling of chat.md 3.10 (1.0, 1e+20, 1e-07, NaN, Infinity). */
void hx_jw_double(struct hx_json_writer *w, double v);
/* A finite double; NaN and infinities become null (wire JSON). */
void hx_jw_finite(struct hx_json_writer *w, double v);
void hx_jw_bool(struct hx_json_writer *w, bool v);
void hx_jw_null(struct hx_json_writer *w);
/* Raw text that is one JSON value already. */
void hx_jw_raw(struct hx_json_writer *w, const char *s, size_t len);
/* A parsed value, by the rules of chat.md 3.10: key order kept (duplicate keys: position of the
 * first, value of the last), integers keep their digits, other numbers as hx_jw_double. */
void hx_jw_value(struct hx_json_writer *w, struct hx_jv v);
/* The inside of a JSON string (no quotes), by the escapes of chat.md 3.10. 0, -ENOMEM or -EMSGSIZE
 * as the buffer says. */
int hx_json_escape(struct hx_buf *out, const char *s, size_t len);

#endif
