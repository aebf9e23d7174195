/* hx-cards list, state and --explain. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "inventory.h"
#include "output.h"

#define RESULT_MAX (8u << 20)

static void stamp(char out[32])
{
    time_t now = time(NULL);
    struct tm tm;
    if (!gmtime_r(&now, &tm) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
        out[0] = '\0';
}

static int print(const struct hx_buf *b)
{
    return !b->failed && fwrite(b->data, 1, b->len, stdout) == b->len && putchar('\n') != EOF &&
                   fflush(stdout) == 0
               ? 0
               : -EIO;
}

/* What is wrong in the read-only part, and what to do. */
static void print_remedies(const struct hx_judgement *j)
{
    for (int i = 0; i < j->n_remedies; i++)
        printf("[%s] %s\n", j->remedy[i], hx_remedy_text(j->remedy[i]));
    for (int i = 0; i < j->n_hints; i++)
        printf("hint [%s] %s\n", j->hint[i], hx_remedy_text(j->hint[i]));
}

int hx_cards_list(const struct hx_cards_options *o)
{
    struct hx_inventory *v;
    struct hx_error err = {0};
    if (hx_inventory_read(o, &v, &err) < 0)
        return hx_cards_error(HX_EXIT_INTERNAL, &err);
    int code = (int)v->judgement.overall;
    if (o->json) {
        struct hx_buf out = HX_BUF_INIT(RESULT_MAX);
        if (hx_inventory_json(v, o->redact, &out) < 0 || print(&out) < 0)
            code = HX_EXIT_INTERNAL;
        hx_buf_done(&out);
    } else {
        hx_inventory_text(v);
        print_remedies(&v->judgement);
    }
    free(v);
    return code;
}

/* The checks that need no measurement, in the form of p2p.json; --output keeps it as cards.json. */
int hx_cards_state(const struct hx_cards_options *o)
{
    struct hx_inventory *v;
    struct hx_error err = {0};
    struct hx_buf out = HX_BUF_INIT(RESULT_MAX);
    struct hx_run_facts run = {.mode = "inventory", .probe_note = ""};
    stamp(run.started);
    if (hx_inventory_read(o, &v, &err) < 0)
        return hx_cards_error(HX_EXIT_INTERNAL, &err);
    stamp(run.finished);
    int code = (int)v->judgement.overall;
    int r = hx_output_json(&v->facts, &v->judgement, &run, o->redact, &out, &err);
    if (r == 0 && o->output)
        r = hx_file_replace(o->output, out.data, out.len, &err);
    if (r == 0 && o->json)
        r = print(&out) < 0 ? hx_fail(&err, -EIO, "standard output: cannot write") : 0;
    else if (r == 0)
        r = hx_output_text((const char *)out.data, out.len, o->all, stdout, &err);
    hx_buf_done(&out);
    free(v);
    return r < 0 ? hx_cards_error(HX_EXIT_INTERNAL, &err) : code;
}

int hx_cards_explain(const char *id)
{
    if (hx_output_explain(id, stdout))
        return HX_EXIT_READY;
    fprintf(stderr,
            "hx-cards: --explain: found '%s', expected a check like INV-01 or a remedy like "
            "R-SEAT (p2p_check --list)\n",
            id);
    return HX_EXIT_USAGE;
}
