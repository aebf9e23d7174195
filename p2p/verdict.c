/* Overall word, axes, layout and remedies (hardware.md 2.3, 3.7 and 4). */
#include "verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *hx_overall_name(enum hx_overall o)
{
    static const char *const names[] = {"ready", "degraded", "not_ready", "unsupported"};
    return names[o];
}

static int index_of(const char *id)
{
    const struct hx_check *c = hx_check_find(id);
    return c ? (int)(c - hx_checks) : -1;
}

static enum hx_verdict verdict_of(const struct hx_judgement *j, const char *id)
{
    int i = index_of(id);
    return i < 0 ? HX_SKIP : j->finding[i].verdict;
}

const char *hx_judge_explained(const struct hx_judgement *j, const struct hx_check *check)
{
    for (int i = 0; i < HX_CHECK_EXPLAINED && check->explained_by[i]; i++)
        if (verdict_of(j, check->explained_by[i]) == HX_FAIL)
            return check->explained_by[i];
    return NULL;
}

static void run_checks(const struct hx_facts *f, struct hx_judgement *j)
{
    for (int i = 0; i < hx_n_checks; i++) {
        const struct hx_check *c = &hx_checks[i];
        struct hx_finding *out = &j->finding[i];
        const char *missing = c->run ? hx_check_missing(c, f) : c->elsewhere;
        if (missing[0]) {
            out->verdict = hx_find(out, HX_SKIP, "", "%s", missing);
            continue;
        }
        out->verdict = c->run(f, out);
        if (!out->remedy)
            out->remedy = c->remedy;
    }
}

static bool has(const char *const list[], int n, const char *id)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i], id) == 0)
            return true;
    return false;
}

static void take_remedies(struct hx_judgement *j)
{
    for (int gate = 1; gate >= 0; gate--) {
        for (int i = 0; i < hx_n_checks; i++) {
            const char *id = j->finding[i].remedy;
            if (hx_checks[i].gate != (gate == 1) || j->finding[i].verdict != HX_FAIL ||
                hx_judge_explained(j, &hx_checks[i]) || has(j->remedy, j->n_remedies, id))
                continue;
            j->remedy[j->n_remedies++] = id;
        }
    }
    if (j->overall == HX_UNSUPPORTED)
        return; /* nothing here is worth improving */
    for (int i = 0; i < hx_n_checks; i++) {
        const char *id = j->finding[i].remedy;
        if (j->finding[i].verdict != HX_WARN || hx_judge_explained(j, &hx_checks[i]) ||
            has(j->remedy, j->n_remedies, id) || has(j->hint, j->n_hints, id))
            continue;
        j->hint[j->n_hints++] = id;
    }
}

/* A gate that could not be judged has not been passed. */
static void find_unjudged(const struct hx_facts *f, struct hx_judgement *j)
{
    for (int i = 0; f->n_cards && i < hx_n_checks; i++) {
        const struct hx_check *c = &hx_checks[i];
        if (c->gate && (c->applies & (HX_NEEDS_PROBE | HX_NEEDS_SUMS | HX_NEEDS_KLOG)) &&
            !(c->applies & HX_MAY_BE_LATER) && j->finding[i].verdict == HX_SKIP)
            j->unjudged[j->n_unjudged++] = c->id;
    }
}

static enum hx_overall overall_of(const struct hx_facts *f, const struct hx_judgement *j)
{
    enum hx_overall o = j->n_unjudged ? HX_DEGRADED : HX_READY;
    if (!f->n_cards)
        return HX_UNSUPPORTED;
    for (int i = 0; i < hx_n_checks; i++) {
        enum hx_verdict v = j->finding[i].verdict;
        if (v == HX_FAIL && hx_checks[i].gate)
            return HX_NOT_READY;
        if (v == HX_FAIL || v == HX_WARN)
            o = HX_DEGRADED;
    }
    return o;
}

static void add_value(int v, int list[HX_AXIS_VALUES], int *n)
{
    int at = 0;
    while (at < *n && list[at] < v)
        at++;
    if ((at < *n && list[at] == v) || *n == HX_AXIS_VALUES)
        return;
    memmove(&list[at + 1], &list[at], (size_t)(*n - at) * sizeof(list[0]));
    list[at] = v;
    (*n)++;
}

static const char *memory_axis(const struct hx_facts *f)
{
    /* The worst card gives the word. */
    static const enum hx_memory_class worst_first[] = {HX_MEMORY_OVERSIZE, HX_MEMORY_ODD,
                                                       HX_MEMORY_STOCK, HX_MEMORY_UNLOCKED};
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < f->n_cards; i++) {
            bool known;
            enum hx_memory_class c = hx_card_memory(f, &f->card[i], &known);
            if (known && c == worst_first[k])
                return hx_memory_class_name(c);
        }
    }
    return "absent";
}

static const char *compute_axis(const struct hx_judgement *j)
{
    enum hx_verdict a = verdict_of(j, "CMP-01"), b = verdict_of(j, "CMP-02");
    if (a == HX_SKIP && b == HX_SKIP)
        return "unknown";
    if (a == HX_FAIL || b == HX_FAIL)
        return "throttled";
    return a == HX_WARN || b == HX_WARN ? "reduced" : "full";
}

static const char *p2p_axis(const struct hx_facts *f, const struct hx_judgement *j)
{
    static const char *const content[] = {"P2P-04", "P2P-05", "P2P-06",
                                          "P2P-07", "P2P-13", "P2P-14"};
    struct hx_peer_state s;
    if (!f->n_cards || !f->measured || !f->probe.has_p2p)
        return "none";
    hx_peer_access(f, &s);
    if (s.none)
        return "none";
    bool hang = verdict_of(j, "P2P-08") == HX_FAIL;
    for (size_t i = 0; i < sizeof(content) / sizeof(content[0]); i++) {
        int at = index_of(content[i]);
        if (j->finding[at].verdict != HX_FAIL)
            continue;
        if (strcmp(j->finding[at].value, "hang") != 0)
            return "corrupt";
        hang = true;
    }
    if (hang)
        return "hang";
    if (f->p2p_lock[0])
        return f->p2p_lock;
    if (verdict_of(j, "P2P-09") == HX_FAIL)
        return "slow";
    return hx_p2p_eligible(f) ? "verified" : "unverified";
}

static void find_axes(const struct hx_facts *f, struct hx_judgement *j)
{
    struct hx_axes *a = &j->axes;
    a->module = !f->driver.loaded           ? "absent"
                : !f->wanted.bundle.present ? "stock"
                : hx_module_shadowed(f)     ? "shadowed"
                                            : "bundle";
    a->memory = memory_axis(f);
    a->compute = compute_axis(j);
    a->p2p = p2p_axis(f, j);
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_card *c = &f->card[i];
        if (c->link.gen > 0)
            add_value(c->link.gen, a->link_gen, &a->n_link_gen);
        if (c->link.width > 0)
            add_value(c->link.width, a->link_width, &a->n_link_width);
        if (c->nvml >= 0 && f->nvml.device[c->nvml].bar1_mib != HX_UNKNOWN)
            add_value(f->nvml.device[c->nvml].bar1_mib, a->bar1_mib, &a->n_bar1_mib);
        if (c->measured >= 0 && f->probe.device[c->measured].sm_count >= 0)
            add_value(f->probe.device[c->measured].sm_count, a->sm, &a->n_sm);
    }
}

/* Lanes of the narrowest link, 0 if none is known. */
static int narrowest(const struct hx_judgement *j)
{
    return j->axes.n_link_width ? j->axes.link_width[0] : 0;
}

static void layout_without_sums(const struct hx_judgement *j, struct hx_layout *l)
{
    bool verified = strcmp(j->axes.p2p, "verified") == 0;
    int width = narrowest(j);
    l->reason = "no all-reduce was measured";
    if (width >= 16)
        l->recommend = verified ? "TP4_P2P" : "TP4_HOST";
    else if (width >= 8)
        l->recommend = "TP4_HOST";
    else if (width >= 4 && verified) {
        l->recommend = "TP4_P2P";
        l->advice = "PP4_FOR_LONG_PROMPTS";
    } else {
        l->recommend = "PP4";
    }
}

static void find_layout(const struct hx_facts *f, struct hx_judgement *j)
{
    struct hx_layout *l = &j->layout;
    if (j->overall == HX_UNSUPPORTED || j->overall == HX_NOT_READY) {
        l->recommend = "NONE";
        l->reason = !f->n_cards && f->n_foreign ? "no CMP 170HX present" : "gating check failed";
        return;
    }
    bool is_p2p;
    const struct hx_measured_arm *arm = hx_best_arm(f, &is_p2p);
    if (!arm) {
        layout_without_sums(j, l);
        return;
    }
    double t = arm->us_six, bus = isnan(arm->bus_gbps) ? 0 : arm->bus_gbps;
    double ceiling = bus * 1e9 / hx_hw_limits.prefill_bytes_per_token;
    l->predicted = true;
    l->allreduce_ms_per_step = round(hx_hw_limits.allreduces_per_step * t / 100) / 10;
    l->prefill_ceiling = 10 * round(ceiling / 10);
    if (narrowest(j) == 1) {
        l->recommend = "PP4";
        l->reason = "a link has one lane";
    } else if (t > hx_hw_limits.step_us_max) {
        l->recommend = "PP4";
        l->reason = "all-reduce too slow for decode";
    } else {
        l->recommend = is_p2p ? "TP4_P2P" : "TP4_HOST";
        l->reason = "fastest usable arm";
        if (ceiling < hx_hw_limits.prefill_tokens_min)
            l->advice = "PP4_FOR_LONG_PROMPTS";
        else if (t > hx_hw_limits.step_us_good || bus < hx_hw_limits.bus_good)
            l->advice = "COMPARE_WITH_PP4";
    }
}

void hx_judge(const struct hx_facts *f, struct hx_judgement *out)
{
    memset(out, 0, sizeof(*out));
    run_checks(f, out);
    find_unjudged(f, out);
    out->overall = overall_of(f, out);
    find_axes(f, out);
    find_layout(f, out);
    take_remedies(out);
}
