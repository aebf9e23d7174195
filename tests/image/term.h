/* What a person sees on a serial line: a terminal of 80 columns and 24 lines that understands what
 * firmware, kernel, systemd and the wizard's windows send to a vt220. Frames become + - |. */
#ifndef HX_TESTS_IMAGE_TERM_H
#define HX_TESTS_IMAGE_TERM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define HX_TERM_ROWS 24
#define HX_TERM_COLS 80

struct hx_term {
    char cell[HX_TERM_ROWS][HX_TERM_COLS];
    int row, col;
    bool past_edge;  /* the last column was written: the next sign begins a line */
    bool drawing[2]; /* G0, G1: line drawing */
    int set;         /* the one in use */
    int saved_row, saved_col;
    int state; /* of the reader of sequences, see term.c */
    int number[8], n_numbers;
    bool is_private;    /* CSI ? */
    unsigned wide_sign; /* of UTF-8, so far */
    int wide_left;      /* bytes of it that are still to come */
};

void hx_term_init(struct hx_term *t);
void hx_term_feed(struct hx_term *t, const void *bytes, size_t n);
/* The picture, 24 lines without the space at their ends. -ENOMEM. */
int hx_term_picture(const struct hx_term *t, struct hx_buf *out);
/* The words of the picture with one space between them, without frames. If a note lies in front,
 * a window of the title "Note", only its words. -ENOMEM. */
int hx_term_words(const struct hx_term *t, struct hx_buf *out);
bool hx_term_has_note(const struct hx_term *t);

#endif
