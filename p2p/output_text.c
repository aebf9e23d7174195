/* Text for people, from the result file alone. */
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "output.h"

#define WRAP 96

static void put(FILE *to, struct hx_jv v)
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    if (!s)
        s = hx_jv_number_text(v, &n);
    for (size_t i = 0; s && i < n; i++)
        fputc((unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i], to);
}

/* Words of a text, broken at WRAP columns with an indent. */
static void paragraph(FILE *to, const char *s, int indent)
{
    int column = indent;
    for (int i = 0; i < indent; i++)
        fputc(' ', to);
    while (*s) {
        size_t n = strcspn(s, " ");
        if (column > indent && column + 1 + (int)n > WRAP) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", (int)n, s);
        column += (int)n;
        s += n;
        s += strspn(s, " ");
    }
    fputc('\n', to);
}

static void list(FILE *to, const char *title, struct hx_jv v)
{
    fprintf(to, "  %-10s", title);
    if (!hx_jv_count(v))
        fputs("-", to);
    bool first = true;
    for (struct hx_jv x = hx_jv_first(v); x.doc; x = hx_jv_next(x)) {
        fputs(first ? "" : ", ", to);
        put(to, x);
        first = false;
    }
    fputc('\n', to);
}

static void line(FILE *to, const char *title, struct hx_jv v)
{
    fprintf(to, "  %-10s", title);
    put(to, v);
    fputc('\n', to);
}

static const char *overall_sentence(struct hx_jv v)
{
    static const char *const words[][2] = {
        {"ready", "Ready: everything that was checked is sound."},
        {"degraded", "Usable, with limits: see below."},
        {"not_ready", "Not ready: a check that gates serving failed."},
        {"unsupported", "No CMP 170HX was found in this machine."},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (hx_jv_str_is(v, words[i][0]))
            return words[i][1];
    return "Unknown result.";
}

static const char *layout_sentence(struct hx_jv v)
{
    static const char *const words[][2] = {
        {"TP4_P2P", "tensor parallel over four cards, direct copies (TP4 with P2P)"},
        {"TP4_HOST", "tensor parallel over four cards, copies through the host (TP4 without P2P)"},
        {"PP4", "pipeline over four cards (PP4)"},
        {"NONE", "none: the model cannot be served on these cards now"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (hx_jv_str_is(v, words[i][0]))
            return words[i][1];
    return "unknown";
}

static void write_layout(FILE *to, struct hx_jv l)
{
    struct hx_jv p = hx_jv_get(l, "predicted");
    fprintf(to, "\nLayout: %s", layout_sentence(hx_jv_get(l, "recommend")));
    fputs("\n  because ", to);
    put(to, hx_jv_get(l, "reason"));
    fputc('\n', to);
    if (hx_jv_type(p) == HX_JSON_OBJECT) {
        fputs("  expected: all-reduce ", to);
        put(to, hx_jv_get(p, "allreduce_ms_per_step"));
        fputs(" ms a step, prefill at most ", to);
        put(to, hx_jv_get(p, "tp_prefill_ceiling_tok_s"));
        fputs(" tokens/s with tensor parallel\n", to);
    }
    if (hx_jv_str_is(hx_jv_get(l, "advice"), "PP4_FOR_LONG_PROMPTS"))
        fputs("  for long prompts a pipeline (PP4) is faster\n", to);
    else if (hx_jv_str_is(hx_jv_get(l, "advice"), "COMPARE_WITH_PP4"))
        fputs("  compare with a pipeline (PP4): it may be as fast\n", to);
}

static void write_checks(FILE *to, struct hx_jv checks, const char *status, const char *title)
{
    bool any = false;
    for (struct hx_jv c = hx_jv_first(checks); c.doc; c = hx_jv_next(c)) {
        if (!hx_jv_str_is(hx_jv_get(c, "status"), status))
            continue;
        if (!any)
            fprintf(to, "\n%s\n", title);
        any = true;
        bool gate = false;
        (void)hx_jv_bool(hx_jv_get(c, "gate"), &gate);
        fputs("  ", to);
        put(to, hx_jv_get(c, "id"));
        fputs(gate && strcmp(status, "fail") == 0 ? " (gate) " : " ", to);
        put(to, hx_jv_get(c, "title"));
        fputs(": ", to);
        put(to, hx_jv_get(c, "detail"));
        if (hx_jv_get(c, "explained_by").doc) {
            fputs(" [follows from ", to);
            put(to, hx_jv_get(c, "explained_by"));
            fputc(']', to);
        }
        fputc('\n', to);
    }
}

static void write_remedies(FILE *to, const char *title, struct hx_jv ids)
{
    int n = 0;
    for (struct hx_jv v = hx_jv_first(ids); v.doc; v = hx_jv_next(v)) {
        char id[32] = "";
        size_t len;
        const char *s = hx_jv_str(v, &len);
        if (s && len < sizeof(id))
            memcpy(id, s, len);
        const char *words = hx_remedy_text(id);
        if (n++ == 0)
            fprintf(to, "\n%s\n", title);
        fprintf(to, "  %d. [%s]\n", n, id);
        paragraph(to, words ? words : "(not in this version's table)", 5);
    }
}

int hx_output_text(const char *json, size_t len, bool all, FILE *to, struct hx_error *err)
{
    struct hx_json_limits limits = {4u << 20, 200000, 16, 0};
    struct hx_json *doc;
    int64_t schema;
    int r = hx_json_parse(json, len, &limits, &doc, err);
    if (r < 0)
        return hx_wrap(err, r, "result");
    struct hx_jv root = hx_json_root(doc), axes = hx_jv_get(root, "axes");
    struct hx_jv checks = hx_jv_get(root, "checks");
    if (!hx_jv_int64(hx_jv_get(root, "schema"), &schema) || schema != 1 ||
        hx_jv_type(checks) != HX_JSON_ARRAY || hx_jv_type(axes) != HX_JSON_OBJECT) {
        hx_json_free(doc);
        return hx_fail(err, -EINVAL, "result: not a result of p2p_check (schema 1)");
    }
    bool busy = false, locked = false;
    (void)hx_jv_bool(hx_jv_get(root, "busy"), &busy);
    (void)hx_jv_bool(hx_jv_get(root, "p2p_locked"), &locked);
    fprintf(to, "%s\n", overall_sentence(hx_jv_get(root, "overall")));
    if (busy)
        fputs("The cards are in use: only what can be read beside a running engine was checked.\n",
              to);
    struct hx_jv unjudged = hx_jv_get(root, "unjudged");
    if (hx_jv_count(unjudged)) {
        fputs("Gates that could not be judged:", to);
        for (struct hx_jv v = hx_jv_first(unjudged); v.doc; v = hx_jv_next(v)) {
            fputc(' ', to);
            put(to, v);
        }
        size_t n;
        if (hx_jv_str(hx_jv_get(root, "not_measured"), &n) && n) {
            fputs(" (", to);
            put(to, hx_jv_get(root, "not_measured"));
            fputc(')', to);
        }
        fputc('\n', to);
    }
    if (locked)
        fputs("Direct copies failed an earlier test on this configuration and stay off until "
              "p2p_check --full passes.\n",
              to);
    fprintf(to, "\n  %zu card(s)\n", hx_jv_count(hx_jv_get(root, "cards")));
    line(to, "module", hx_jv_get(axes, "module"));
    line(to, "memory", hx_jv_get(axes, "memory"));
    line(to, "compute", hx_jv_get(axes, "compute"));
    list(to, "units", hx_jv_get(axes, "sm"));
    list(to, "link gen", hx_jv_get(axes, "link_gen"));
    list(to, "lanes", hx_jv_get(axes, "link_width"));
    line(to, "p2p", hx_jv_get(axes, "p2p"));
    write_layout(to, hx_jv_get(root, "layout"));
    write_checks(to, checks, "fail", "Failed");
    write_checks(to, checks, "warn", "Warnings");
    write_checks(to, checks, "note", "Notes");
    if (all) {
        write_checks(to, checks, "pass", "Passed");
        write_checks(to, checks, "skip", "Skipped");
    }
    write_remedies(to, "What to do", hx_jv_get(root, "remedies"));
    write_remedies(to, "Worth doing", hx_jv_get(root, "hints"));
    hx_json_free(doc);
    return 0;
}

static bool explain_remedy(const char *id, FILE *to)
{
    const char *words = hx_remedy_text(id);
    if (!words)
        return false;
    fprintf(to, "%s\n", id);
    paragraph(to, words, 2);
    fputs("  Comes from:", to);
    for (int i = 0; i < hx_n_checks; i++)
        if (strcmp(hx_checks[i].remedy, id) == 0)
            fprintf(to, " %s", hx_checks[i].id);
    fputc('\n', to);
    return true;
}

bool hx_output_explain(const char *id, FILE *to)
{
    const struct hx_check *c = hx_check_find(id);
    if (!c)
        return explain_remedy(id, to);
    fprintf(to, "%s  %s%s\n", c->id, c->title, c->gate ? "  (gates serving)" : "");
    fprintf(to, "  reads   %s\n", c->reads);
    fprintf(to, "  pass    %s\n  warn    %s\n  fail    %s\n", c->pass, c->warn, c->fail);
    if (!c->run)
        fprintf(to, "  here    skipped: %s\n", c->elsewhere);
    for (int i = 0; i < HX_CHECK_EXPLAINED && c->explained_by[i]; i++)
        fprintf(to, "%s%s", i ? ", " : "  brings no remedy of its own when one of these failed: ",
                c->explained_by[i]);
    if (c->explained_by[0])
        fputc('\n', to);
    fprintf(to, "  remedy  %s\n", c->remedy);
    const char *words = hx_remedy_text(c->remedy);
    paragraph(to, words ? words : "", 10);
    return true;
}
