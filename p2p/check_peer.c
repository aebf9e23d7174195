/* P2P and COL: copies between cards, and all-reduce over them. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hx_peer_access(const struct hx_facts *f, struct hx_peer_state *out)
{
    *out = (struct hx_peer_state){0};
    for (int i = 0; i < f->probe.n_peers; i++) {
        for (int j = 0; j < f->probe.n_peers; j++) {
            if (i == j)
                continue;
            out->n_pairs++;
            out->n_access += f->probe.can_access[i][j] > 0; /* NaN: no */
        }
    }
    out->all = out->n_pairs > 0 && out->n_access == out->n_pairs;
    out->none = out->n_access == 0;
}

enum hx_verdict hx_p2p_01(const struct hx_facts *f, struct hx_finding *out)
{
    struct hx_peer_state s;
    char value[32];
    hx_peer_access(f, &s);
    snprintf(value, sizeof(value), "%d/%d", s.n_access, s.n_pairs);
    if (s.none)
        return hx_find(out, HX_NOTE, value, "the driver offers no direct access");
    return hx_find(out, s.all ? HX_PASS : HX_FAIL, value, "direct access is offered on %s pairs",
                   value);
}

enum hx_verdict hx_p2p_02(const struct hx_facts *f, struct hx_finding *out)
{
    int ok = 0, other = 0;
    struct hx_peer_state s;
    hx_peer_access(f, &s);
    for (int i = 0; i < f->n_cards; i++) {
        for (int j = 0; j < f->n_cards; j++) {
            int a = f->card[i].nvml, b = f->card[j].nvml;
            if (i == j || a < 0 || b < 0)
                continue;
            const int32_t status[2] = {f->nvml.p2p_read[a][b], f->nvml.p2p_write[a][b]};
            for (int k = 0; k < 2; k++) {
                ok += status[k] == HX_NVML_P2P_OK;
                other += status[k] != HX_NVML_P2P_OK && status[k] != HX_UNKNOWN;
            }
        }
    }
    if (!ok && !other)
        return hx_find(out, HX_SKIP, "", "the management library does not tell it");
    if (ok && other)
        return hx_find(out, HX_FAIL, "mixture", "the driver reports direct access on some pairs");
    if (ok && !s.all)
        return hx_find(out, HX_FAIL, "disagree",
                       "the management library reports access on all pairs, CUDA on %d of %d",
                       s.n_access, s.n_pairs);
    if (other && !s.none)
        return hx_find(out, HX_FAIL, "disagree",
                       "the management library reports no access, CUDA %d of %d pairs", s.n_access,
                       s.n_pairs);
    if (other)
        return hx_find(out, HX_NOTE, "none", "the driver reports no direct access");
    return hx_find(out, HX_PASS, "OK", "the driver reports direct access on all pairs");
}

enum hx_verdict hx_p2p_03(const struct hx_facts *f, struct hx_finding *out)
{
    const char *e = f->probe.enable;
    struct hx_peer_state s;
    hx_peer_access(f, &s);
    if (s.none)
        return hx_find(out, HX_NOTE, "not offered", "direct access is not offered");
    if (!e[0])
        return hx_find(out, HX_SKIP, "", "not tried");
    if (strcmp(e, "ok") == 0 || strstr(e, "ALREADY_ENABLED") || strstr(e, "AlreadyEnabled"))
        return hx_find(out, HX_PASS, "ok", "direct access can be switched on");
    return hx_find(out, HX_FAIL, e, "switching direct access on failed: %s", e);
}

static enum hx_verdict content(const struct hx_measured_content *c, const char *what,
                               struct hx_finding *out)
{
    switch (c->outcome) {
    case HX_OUTCOME_OK: return hx_find(out, HX_PASS, "exact", "%s: every byte is right", what);
    case HX_OUTCOME_NOT_RUN:
    case HX_OUTCOME_NOT_OFFERED: return hx_find(out, HX_SKIP, "", "%s: not run", what);
    case HX_OUTCOME_ZERO:
        return hx_find(out, HX_FAIL, "zero",
                       "%s: every call succeeded and the target did not change", what);
    case HX_OUTCOME_HANG: return hx_find(out, HX_FAIL, "hang", "%s: did not end", what);
    default: break;
    }
    return hx_find(out, HX_FAIL, hx_outcome_name(c->outcome), "%s: %.0f wrong bytes", what,
                   isnan(c->bad_bytes) ? 0 : c->bad_bytes);
}

enum hx_verdict hx_p2p_04(const struct hx_facts *f, struct hx_finding *out)
{
    return content(&f->probe.copy, "copies", out);
}

enum hx_verdict hx_p2p_05(const struct hx_facts *f, struct hx_finding *out)
{
    return content(&f->probe.store, "direct stores", out);
}

enum hx_verdict hx_p2p_06(const struct hx_facts *f, struct hx_finding *out)
{
    return content(&f->probe.load, "direct loads", out);
}

enum hx_verdict hx_p2p_07(const struct hx_facts *f, struct hx_finding *out)
{
    return content(&f->probe.ipc, "copies from a second process", out);
}

enum hx_verdict hx_p2p_08(const struct hx_facts *f, struct hx_finding *out)
{
    const struct hx_measured_content *c = &f->probe.flags;
    char value[32];
    if (c->outcome == HX_OUTCOME_NOT_RUN || c->outcome == HX_OUTCOME_NOT_OFFERED)
        return hx_find(out, HX_SKIP, "", "flags: not run");
    if (c->outcome != HX_OUTCOME_OK || isnan(c->us))
        return hx_find(out, HX_FAIL, hx_outcome_name(c->outcome),
                       "flags from the other card never arrive");
    snprintf(value, sizeof(value), "%g", c->us);
    return hx_find(out,
                   c->us <= hx_hw_limits.flag_us_pass   ? HX_PASS
                   : c->us <= hx_hw_limits.flag_us_fail ? HX_WARN
                                                        : HX_FAIL,
                   value, "a flag and its answer take %s us", value);
}

static const struct hx_card *card_of_measured(const struct hx_facts *f, int device)
{
    for (int i = 0; i < f->n_cards; i++)
        if (f->card[i].measured == device)
            return &f->card[i];
    return NULL;
}

static double speed(struct hx_pci_link l)
{
    return l.gen > 0 && l.width > 0 ? (double)(l.width << (l.gen - 1)) : 0;
}

struct hx_pci_link hx_pair_link(const struct hx_facts *f, int from, int to)
{
    const struct hx_card *a = card_of_measured(f, from), *b = card_of_measured(f, to);
    if (!a || !b)
        return (struct hx_pci_link){0};
    return speed(a->link) < speed(b->link) ? a->link : b->link;
}

enum hx_verdict hx_p2p_09(const struct hx_facts *f, struct hx_finding *out)
{
    double worst = INFINITY, rate = 0;
    bool below_staged = false;
    int from = 0, to = 0;
    char value[32];
    if (!f->probe.has_peer)
        return hx_find(out, HX_SKIP, "", "direct copies: not measured");
    for (int i = 0; i < f->probe.n_peers; i++) {
        for (int j = 0; j < f->probe.n_peers; j++) {
            double peer = f->probe.peer[i][j], staged = f->probe.staged[i][j];
            if (i == j || isnan(peer))
                continue;
            below_staged |= peer < hx_hw_limits.peer_of_staged * staged;
            struct hx_pci_link l = hx_pair_link(f, i, j);
            double expected = hx_expected_peer_gbps(l.gen, l.width);
            double ratio = expected > 0 ? peer / expected : staged > 0 ? peer / staged : INFINITY;
            if (ratio < worst) {
                worst = ratio;
                rate = peer;
                from = i;
                to = j;
            }
        }
    }
    if (isinf(worst))
        return hx_find(out, HX_SKIP, "", "no rate to compare with for these links");
    snprintf(value, sizeof(value), "%g", rate);
    enum hx_verdict v = worst < hx_hw_limits.peer_fail || below_staged ? HX_FAIL
                        : worst > hx_hw_limits.peer_pass               ? HX_PASS
                                                                       : HX_WARN;
    return hx_find(out, v, value, "slowest pair (%d to %d): %.2f GB/s, %.0f %% of the link%s", from,
                   to, rate, 100 * worst, below_staged ? ", slower than through the host" : "");
}

enum hx_verdict hx_p2p_10(const struct hx_facts *f, struct hx_finding *out)
{
    double worst = INFINITY;
    char value[32];
    if (!f->probe.has_peer || !f->probe.has_bidir)
        return hx_find(out, HX_SKIP, "", "both directions: not measured");
    for (int i = 0; i < f->probe.n_peers; i++) {
        for (int j = 0; j < f->probe.n_peers; j++) {
            double ratio = i == j ? NAN : f->probe.bidir[i][j] / f->probe.peer[i][j];
            if (ratio < worst)
                worst = ratio;
        }
    }
    if (isinf(worst))
        return hx_find(out, HX_SKIP, "", "both directions: not measured");
    snprintf(value, sizeof(value), "%.2f", worst);
    return hx_find(out,
                   worst > hx_hw_limits.bidir_pass   ? HX_PASS
                   : worst < hx_hw_limits.bidir_warn ? HX_FAIL
                                                     : HX_WARN,
                   value, "both directions at once: %s times one", value);
}

enum hx_verdict hx_p2p_11(const struct hx_facts *f, struct hx_finding *out)
{
    double least = INFINITY;
    char value[32];
    if (!f->probe.has_latency)
        return hx_find(out, HX_SKIP, "", "latency: not measured");
    for (int i = 0; i < f->probe.n_peers; i++)
        for (int j = 0; j < f->probe.n_peers; j++)
            if (f->probe.latency[i][j] < least)
                least = f->probe.latency[i][j];
    snprintf(value, sizeof(value), "%g", least);
    return hx_find(out, HX_PASS, value, "4 bytes take %s us; says nothing about health", value);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median rate of the pairs whose slower link is l. */
static double class_median(const struct hx_facts *f, struct hx_pci_link l)
{
    double v[HX_MEASURED_DEVICES * HX_MEASURED_DEVICES];
    size_t n = 0;
    for (int i = 0; i < f->probe.n_peers; i++) {
        for (int j = 0; j < f->probe.n_peers; j++) {
            struct hx_pci_link p = hx_pair_link(f, i, j);
            if (i != j && !isnan(f->probe.peer[i][j]) && p.gen == l.gen && p.width == l.width)
                v[n++] = f->probe.peer[i][j];
        }
    }
    if (!n)
        return 0;
    qsort(v, n, sizeof(v[0]), by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

enum hx_verdict hx_p2p_12(const struct hx_facts *f, struct hx_finding *out)
{
    double worst = INFINITY;
    int from = 0, to = 0;
    char value[32];
    if (!f->probe.has_peer)
        return hx_find(out, HX_SKIP, "", "direct copies: not measured");
    for (int i = 0; i < f->probe.n_peers; i++) {
        for (int j = 0; j < f->probe.n_peers; j++) {
            if (i == j || isnan(f->probe.peer[i][j]))
                continue;
            double median = class_median(f, hx_pair_link(f, i, j));
            if (median > 0 && f->probe.peer[i][j] / median < worst) {
                worst = f->probe.peer[i][j] / median;
                from = i;
                to = j;
            }
        }
    }
    if (isinf(worst))
        return hx_find(out, HX_SKIP, "", "direct copies: not measured");
    snprintf(value, sizeof(value), "%.2f", worst);
    return hx_find(out, worst > hx_hw_limits.pair_ratio ? HX_PASS : HX_WARN, value,
                   "pair %d to %d runs at %s of its like", from, to, value);
}

enum hx_verdict hx_p2p_13(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->probe.allpairs.outcome == HX_OUTCOME_HANG)
        out->remedy = "R-P2PHANG";
    return content(&f->probe.allpairs, "all pairs at once", out);
}

enum hx_verdict hx_p2p_14(const struct hx_facts *f, struct hx_finding *out)
{
    return content(&f->probe.after_exit, "after an aborted process", out);
}

static bool usable(const struct hx_measured_arm *arm)
{
    return arm->outcome == HX_OUTCOME_OK && arm->exact;
}

bool hx_p2p_eligible(const struct hx_facts *f)
{
    static hx_check_fn *const must_pass[] = {hx_p2p_01, hx_p2p_03, hx_p2p_04, hx_p2p_05,
                                             hx_p2p_06, hx_p2p_07, hx_p2p_13};
    struct hx_finding scratch;
    if (!f->measured || !f->probe.has_p2p || f->p2p_lock[0])
        return false;
    for (size_t i = 0; i < sizeof(must_pass) / sizeof(must_pass[0]); i++)
        if (must_pass[i](f, &scratch) != HX_PASS)
            return false;
    enum hx_verdict flags = hx_p2p_08(f, &scratch);
    return (flags == HX_PASS || flags == HX_WARN) && hx_p2p_09(f, &scratch) != HX_FAIL &&
           hx_p2p_14(f, &scratch) != HX_FAIL;
}

const struct hx_measured_arm *hx_best_arm(const struct hx_facts *f, bool *is_p2p)
{
    *is_p2p = false;
    if (!f->measured || !f->probe.has_collectives)
        return NULL;
    const struct hx_measured_arm *host = &f->probe.host, *p2p = &f->probe.p2p;
    bool has_host = usable(host) && !isnan(host->us_six);
    bool has_p2p = usable(p2p) && !isnan(p2p->us_six) && hx_p2p_eligible(f);
    if (has_p2p && (!has_host || p2p->us_six <= (1 - hx_hw_limits.arm_tie) * host->us_six)) {
        *is_p2p = true;
        return p2p;
    }
    return has_host ? host : NULL;
}

enum hx_verdict hx_col_01(const struct hx_facts *f, struct hx_finding *out)
{
    const struct hx_measured_arm *host = &f->probe.host, *p2p = &f->probe.p2p;
    if (host->outcome == HX_OUTCOME_NOT_RUN)
        return hx_find(out, HX_SKIP, "", "all-reduce through the host: not run");
    if (!usable(host))
        return hx_find(out, HX_FAIL,
                       host->outcome == HX_OUTCOME_OK ? "inexact" : hx_outcome_name(host->outcome),
                       "all-reduce through the host is not right");
    if (usable(p2p))
        return hx_find(out, HX_PASS, "exact", "all-reduce is right both ways");
    if (p2p->outcome == HX_OUTCOME_NOT_OFFERED || p2p->outcome == HX_OUTCOME_NOT_RUN)
        return hx_find(out, HX_NOTE, "host", "all-reduce is right through the host; direct: %s",
                       p2p->outcome == HX_OUTCOME_NOT_RUN ? "not run" : "not offered");
    return hx_find(out, HX_WARN, "host", "all-reduce is right through the host only (direct: %s)",
                   hx_outcome_name(p2p->outcome));
}

enum hx_verdict hx_col_02(const struct hx_facts *f, struct hx_finding *out)
{
    bool is_p2p;
    char value[32];
    const struct hx_measured_arm *arm = hx_best_arm(f, &is_p2p);
    if (!arm)
        return hx_find(out, HX_SKIP, "", "no usable all-reduce was measured");
    snprintf(value, sizeof(value), "%g", arm->us_six);
    return hx_find(out,
                   arm->us_six <= hx_hw_limits.step_us_good  ? HX_PASS
                   : arm->us_six <= hx_hw_limits.step_us_max ? HX_WARN
                                                             : HX_FAIL,
                   value, "six rows take %s us (%s)", value,
                   is_p2p ? "direct" : "through the host");
}

enum hx_verdict hx_col_03(const struct hx_facts *f, struct hx_finding *out)
{
    bool is_p2p;
    char value[32];
    const struct hx_measured_arm *arm = hx_best_arm(f, &is_p2p);
    if (!arm || isnan(arm->bus_gbps))
        return hx_find(out, HX_SKIP, "", "no usable all-reduce was measured at this size");
    snprintf(value, sizeof(value), "%g", arm->bus_gbps);
    return hx_find(out,
                   arm->bus_gbps > hx_hw_limits.bus_good  ? HX_PASS
                   : arm->bus_gbps < hx_hw_limits.bus_min ? HX_FAIL
                                                          : HX_WARN,
                   value, "a prefill chunk runs at %s GB/s (%s)", value,
                   is_p2p ? "direct" : "through the host");
}
