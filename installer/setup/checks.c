#include "setup/checks.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "check.h"
#include "setup/setup.h"

static void copy(struct hx_jv v, char *out, size_t size)
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    out[0] = '\0';
    if (s)
        snprintf(out, size, "%.*s", n > size ? (int)size : (int)n, s);
}

static void take_problems(struct hx_jv checks, struct hx_checks_summary *out)
{
    for (struct hx_jv c = hx_jv_first(checks); c.doc; c = hx_jv_next(c)) {
        bool failed = hx_jv_str_is(hx_jv_get(c, "status"), "fail"), gate = false;
        if ((!failed && !hx_jv_str_is(hx_jv_get(c, "status"), "warn")) ||
            hx_jv_get(c, "explained_by").doc)
            continue;
        if (out->n_problems < HX_CHECKS_SHOWN) {
            struct hx_checks_problem *p = &out->problem[out->n_problems];
            p->failed = failed;
            p->gate = hx_jv_bool(hx_jv_get(c, "gate"), &gate) && gate;
            copy(hx_jv_get(c, "title"), p->title, sizeof(p->title));
            copy(hx_jv_get(c, "detail"), p->detail, sizeof(p->detail));
            copy(hx_jv_get(c, "remedy"), p->remedy, sizeof(p->remedy));
        }
        out->n_problems++;
    }
}

static bool is_known(const char *overall)
{
    static const char *const words[] = {"ready", "degraded", "not_ready", "unsupported"};
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(words[i], overall) == 0)
            return true;
    }
    return false;
}

int hx_checks_read(const struct hx_root *root, struct hx_checks_summary *out, struct hx_error *err)
{
    static const struct hx_json_limits limits = {8u << 20, 1u << 20, 32, 0};
    struct hx_checks_summary c = {0};
    struct hx_json *doc = NULL;
    char *text = NULL, boot[64], now[64];
    size_t n;
    int r = hx_root_read(root, HX_SETUP_CHECK, 8u << 20, &text, &n, err);
    if (r == -ENOENT) {
        *out = c;
        return 0;
    }
    if (r == 0)
        r = hx_json_parse(text, n, &limits, &doc, err);
    free(text);
    if (r < 0)
        return hx_wrap(err, r, "result of the hardware check");
    struct hx_jv root_value = hx_json_root(doc), layout = hx_jv_get(root_value, "layout");
    copy(hx_jv_get(root_value, "overall"), c.overall, sizeof(c.overall));
    copy(hx_jv_get(layout, "recommend"), c.layout, sizeof(c.layout));
    copy(hx_jv_get(layout, "reason"), c.reason, sizeof(c.reason));
    copy(hx_jv_get(root_value, "boot_id"), boot, sizeof(boot));
    size_t cards = hx_jv_count(hx_jv_get(root_value, "cards"));
    c.n_cards = cards > 64 ? 64 : (int)cards;
    take_problems(hx_jv_get(root_value, "checks"), &c);
    hx_json_free(doc);
    if (!is_known(c.overall))
        return hx_fail(err, -EINVAL, "%s is not a result of p2p_check; run p2p_check again",
                       HX_SETUP_CHECK);
    c.there = true;
    c.this_boot = hx_root_text(root, "/proc/sys/kernel/random/boot_id", now, sizeof(now)) == 0 &&
                  strcmp(boot, now) == 0;
    *out = c;
    return 0;
}

static void put_verdict(const struct hx_checks_summary *c, struct hx_buf *out)
{
    if (strcmp(c->overall, "unsupported") == 0)
        hx_buf_puts(out, "No CMP 170HX card was found. The large model cannot run here; the demo "
                         "model runs on the processor, to try everything out.\n");
    else if (strcmp(c->overall, "not_ready") == 0)
        hx_buf_printf(out, "%d card%s found. Something has to be fixed before the model can run:\n",
                      c->n_cards, c->n_cards == 1 ? " was" : "s were");
    else if (strcmp(c->overall, "degraded") == 0)
        hx_buf_printf(out, "%d cards were found and work. These points could be better:\n",
                      c->n_cards);
    else
        hx_buf_printf(out, "%d cards were found, and everything is in order.\n", c->n_cards);
}

static const char *layout_words(const char *layout)
{
    static const struct {
        const char *name, *words;
    } rows[] = {
        {"TP4_P2P", "all four cards work on every word together, copying directly (TP4)"},
        {"TP4_HOST", "all four cards work on every word together, copying through memory (TP4)"},
        {"PP4", "each card holds a quarter of the layers, one after the other (PP4)"},
    };
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(rows[i].name, layout) == 0)
            return rows[i].words;
    }
    return NULL;
}

void hx_checks_words(const struct hx_checks_summary *c, struct hx_buf *out)
{
    if (!c->there) {
        hx_buf_puts(out, "The hardware has not been checked yet.");
        return;
    }
    put_verdict(c, out);
    bool none = strcmp(c->overall, "unsupported") == 0;
    for (int i = 0; !none && i < c->n_problems && i < HX_CHECKS_SHOWN; i++) {
        const struct hx_checks_problem *p = &c->problem[i];
        const char *remedy = hx_remedy_text(p->remedy);
        hx_buf_printf(out, "  %s: %s%s%s\n", p->failed ? "Fault" : "Note", p->title,
                      *p->detail ? ": " : "", p->detail);
        if (remedy)
            hx_buf_printf(out, "    %s\n", remedy);
    }
    if (!none && c->n_problems > HX_CHECKS_SHOWN)
        hx_buf_printf(out, "  and %d more: p2p_check --show\n", c->n_problems - HX_CHECKS_SHOWN);
    const char *words = layout_words(c->layout);
    if (words)
        hx_buf_printf(out, "Proposed layout: %s.%s%s\n", words, *c->reason ? " Reason: " : "",
                      c->reason);
    if (!c->this_boot)
        hx_buf_puts(out, "This result is from an earlier start of the machine.\n");
}
