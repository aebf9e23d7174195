/* Somebody at the serial console: answers the wizard's windows by a table, looks at each picture,
 * and compares it with the one that is kept. */
#ifndef HX_TESTS_IMAGE_PLAY_H
#define HX_TESTS_IMAGE_PLAY_H

#include "image/scene.h"
#include "image/term.h"

enum hx_play_kind {
    HX_PLAY_TEXT, /* a line; what stood there is removed */
    HX_PLAY_PICK, /* an entry of a list: so many lines below the one that is marked */
    HX_PLAY_GO    /* Enter */
};

struct hx_play_question {
    const char *screen; /* part of the title, "Step 3 of 10." */
    const char *prompt; /* has to be in the window too */
    enum hx_play_kind kind;
    const char *wrong;  /* an answer that is refused, NULL: none can be given */
    const char *why;    /* part of the refusal */
    const char *answer; /* PICK: "0" to "9"; "@key": the test's public key; NULL: Esc, back */
};

struct hx_play {
    struct hx_scene *s;
    struct hx_term term;
    size_t n_read;                      /* bytes of the console, all starts */
    struct hx_buf words, picture, seen; /* seen: all pictures of this play, each behind its head */
    const char *kept;                   /* text of the file of pictures, "" if it is not there */
    unsigned n_seen, n_differ;
};

/* Begins with the machine that s->setup describes; it must not run yet. kept lives as long as p. */
int hx_play_start(struct hx_play *p, struct hx_scene *s, const char *kept,
                  struct hx_error *err) HX_MUST;
/* The same machine once more, after it was cut off or ended. */
int hx_play_again(struct hx_play *p, struct hx_error *err) HX_MUST;
/* Waits for the wizard's first window. If it came up at the other console this one takes it over;
 * *watched says so. */
int hx_play_find(struct hx_play *p, bool *watched, struct hx_error *err) HX_MUST;
int hx_play_see(struct hx_play *p, const char *screen, const char *prompt,
                struct hx_error *err) HX_MUST;
int hx_play_questions(struct hx_play *p, const struct hx_play_question *rows, size_t n,
                      struct hx_error *err) HX_MUST;
int hx_play_type(struct hx_play *p, const char *keys, struct hx_error *err) HX_MUST;
/* result: of the play so far, 0 or an error that is in err already. Then also whether all pictures
 * were those of `file`. What was seen is in SCENARIO.screens of the work folder. */
int hx_play_verdict(struct hx_play *p, const char *file, int result, struct hx_error *err);
void hx_play_done(struct hx_play *p);

#endif
