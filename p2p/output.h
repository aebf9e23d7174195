/* Results as JSON, and as text rendered from that JSON alone. */
#ifndef HX_P2P_OUTPUT_H
#define HX_P2P_OUTPUT_H

#include <stdio.h>

#include "base/buf.h"
#include "verdict.h"

struct hx_run_facts {               /* about the run itself */
    const char *mode;               /* quick, full, judge */
    char started[32], finished[32]; /* 2026-01-31T12:34:56Z */
    char key[72];                   /* hash of what a verdict depends on (hardware.md 3.6) */
    const char *probe_note;         /* what the probe said at its end, "" if nothing */
    bool locked;                    /* an earlier run with this key found P2P unusable */
};

/* redact: UUIDs and bus addresses become card-0, card-1, ... and the boot id is left out. */
int hx_output_json(const struct hx_facts *f, const struct hx_judgement *j,
                   const struct hx_run_facts *run, bool redact, struct hx_buf *out,
                   struct hx_error *err) HX_MUST;
/* Renders a document of hx_output_json. -EINVAL if it is not one. */
int hx_output_text(const char *json, size_t len, bool all, FILE *to, struct hx_error *err) HX_MUST;
/* Everything about one check or remedy; false if there is none of this name. */
bool hx_output_explain(const char *id, FILE *to);

#endif
