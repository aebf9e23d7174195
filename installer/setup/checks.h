/* What the hardware check left behind (p2p.json), as far as the wizard and `hx status` show it. */
#ifndef HX_SETUP_CHECKS_H
#define HX_SETUP_CHECKS_H

#include <stdbool.h>
#include <stddef.h>

#include <hx/error.h>

#include "base/buf.h"
#include "hw/root.h"

#define HX_CHECKS_SHOWN 12

struct hx_checks_problem {
    bool gate, failed; /* else a warning */
    char title[80], detail[160], remedy[16];
};

struct hx_checks_summary {
    bool there, this_boot;
    char overall[16]; /* ready, degraded, not_ready, unsupported */
    int n_cards;
    char layout[16]; /* TP4_P2P, TP4_HOST, PP4, NONE */
    char reason[240];
    struct hx_checks_problem problem[HX_CHECKS_SHOWN]; /* not explained by another one */
    int n_problems;                                    /* as many as there are, may be more */
};

/* A missing file is no error (there = false); a broken one is, and names it. */
int hx_checks_read(const struct hx_root *root, struct hx_checks_summary *out,
                   struct hx_error *err) HX_MUST;
/* The result in plain words: verdict, problems with what to do, layout. */
void hx_checks_words(const struct hx_checks_summary *c, struct hx_buf *out);

#endif
