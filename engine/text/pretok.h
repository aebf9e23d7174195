/* Splits text into the pieces that are merged separately (docs/tokenizer.md), without a regex
 * engine: one forward scan over code point classes. */
#ifndef HX_TEXT_PRETOK_H
#define HX_TEXT_PRETOK_H

#include <stddef.h>
#include <stdint.h>

enum hx_class {
    HX_CLASS_D, /* everything else: controls, format, unassigned, private use */
    HX_CLASS_A, /* letter or mark */
    HX_CLASS_N, /* number */
    HX_CLASS_C, /* punctuation or symbol */
    HX_CLASS_W, /* white space other than CR and LF */
    HX_CLASS_R, /* CR, LF */
    HX_CLASS_K, /* the CJK and kana ranges of the second pattern */
};

struct hx_class_range {
    uint32_t first, last;
    uint8_t cls;
};
extern const struct hx_class_range hx_class_ranges[];
extern const int hx_n_class_ranges;

#define HX_CLASS_TABLE 0x110000

/* Fills a table of HX_CLASS_TABLE classes. */
void hx_pretok_classes(uint8_t *table);
/* End of the piece that begins at `at` (at < len). s: valid UTF-8 between added tokens. */
size_t hx_pretok_next(const uint8_t *table, const uint8_t *s, size_t len, size_t at);

#endif
