/* LNK and BAR: links, the path above them, memory windows. */
#include "check.h"

#include <math.h>
#include <stdio.h>

enum hx_verdict hx_lnk_01(const struct hx_facts *f, struct hx_finding *out)
{
    int low = INT32_MAX, at = 0;
    char value[16];
    for (int i = 0; i < f->n_cards; i++) {
        int gen = f->card[i].link.gen;
        if (gen > 0 && gen < low) {
            low = gen;
            at = i;
        }
    }
    if (low == INT32_MAX)
        return hx_find(out, HX_SKIP, "", "no card tells its link speed");
    snprintf(value, sizeof(value), "%d", low);
    if (low < 2)
        return hx_find(out, HX_WARN, value, "card %d runs at 2.5 GT/s", at);
    return hx_find(out, HX_PASS, value, "every link runs at 5 GT/s or more");
}

enum hx_verdict hx_lnk_02(const struct hx_facts *f, struct hx_finding *out)
{
    int low = INT32_MAX, high = 0, at = 0;
    char value[16];
    for (int i = 0; i < f->n_cards; i++) {
        int width = f->card[i].link.width;
        if (width <= 0)
            continue;
        if (width < low) {
            low = width;
            at = i;
        }
        high = width > high ? width : high;
    }
    if (!high)
        return hx_find(out, HX_SKIP, "", "no card tells its link width");
    snprintf(value, sizeof(value), "%d", low);
    if (low == 1)
        return hx_find(out, HX_FAIL, value, "card %d has one lane", at);
    if (low < 16)
        return hx_find(out, HX_WARN, value, "card %d has %d of 16 lanes%s", at, low,
                       low != high ? ", others have more" : "");
    return hx_find(out, HX_PASS, value, "every link has 16 lanes");
}

/* Bandwidth in lanes of the first generation. */
static int lanes(struct hx_pci_link l)
{
    return l.gen > 0 && l.width > 0 ? l.width << (l.gen - 1) : 0;
}

enum hx_verdict hx_lnk_03(const struct hx_facts *f, struct hx_finding *out)
{
    bool any = false;
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_pci_gpu *g = f->card[i].pci;
        struct hx_pci_link card = f->card[i].link;
        for (int h = 0; h < g->n_hops; h++) {
            const struct hx_pci_hop *hop = &g->hop[h];
            any = true;
            /* The port at the card: it has fewer lanes than the card, and all of them are in use.
             * Further up: a link that carries less than the card's own. */
            bool narrow_port = h == 0 && hop->max.width > 0 && g->max.width > hop->max.width &&
                               card.width >= hop->max.width;
            bool narrow_hop = h > 0 && lanes(hop->now) > 0 && lanes(hop->now) < lanes(card);
            if (narrow_port || narrow_hop)
                return hx_find(out, HX_WARN, narrow_port ? "port" : "hop",
                               "the %s above card %d is x%d and limits it",
                               narrow_port ? "port" : "bridge", i,
                               narrow_port ? hop->max.width : hop->now.width);
        }
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "no bridge above the cards is visible");
    return hx_find(out, HX_PASS, "none", "no bridge limits a card");
}

enum hx_verdict hx_lnk_04(const struct hx_facts *f, struct hx_finding *out)
{
    double worst = INFINITY, rate = 0;
    int at = 0;
    char value[16];
    for (int i = 0; i < f->n_cards; i++) {
        if (f->card[i].measured < 0)
            continue;
        const struct hx_measured_device *d = &f->probe.device[f->card[i].measured];
        double expected = hx_expected_copy_gbps(f->card[i].link.gen, f->card[i].link.width);
        double got = fmin(d->h2d_gbps, d->d2h_gbps); /* a NaN loses against a number */
        if (expected <= 0 || isnan(got))
            continue;
        if (got / expected < worst) {
            worst = got / expected;
            rate = got;
            at = i;
        }
    }
    if (isinf(worst))
        return hx_find(out, HX_SKIP, "", "not measured");
    snprintf(value, sizeof(value), "%.2f", worst);
    return hx_find(out,
                   worst > hx_hw_limits.copy_pass   ? HX_PASS
                   : worst < hx_hw_limits.copy_fail ? HX_FAIL
                                                    : HX_WARN,
                   value, "slowest card (%d): %.2f GB/s, %.0f %% of what its link gives", at, rate,
                   100 * worst);
}

enum hx_verdict hx_lnk_05(const struct hx_facts *f, struct hx_finding *out)
{
    bool any = false, too_many = false;
    char value[32];
    double worst = 0;
    int at = 0;
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_card *c = &f->card[i];
        if (!c->aer.known)
            continue;
        any = true;
        if (c->aer.nonfatal || c->aer.fatal) {
            snprintf(value, sizeof(value), "%llu",
                     (unsigned long long)(c->aer.nonfatal + c->aer.fatal));
            return hx_find(out, HX_FAIL, value, "card %d: %llu uncorrectable link errors", i,
                           (unsigned long long)(c->aer.nonfatal + c->aer.fatal));
        }
        double errors = (double)c->aer_new / f->minutes;
        double replays = c->replays_new > 0 ? (double)c->replays_new / f->minutes : 0;
        too_many |=
            errors > hx_hw_limits.aer_correctable_per_min || replays > hx_hw_limits.replays_per_min;
        if (fmax(errors, replays) > worst) {
            worst = fmax(errors, replays);
            at = i;
        }
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "the kernel counts no link errors here");
    snprintf(value, sizeof(value), "%.0f", worst);
    if (too_many)
        return hx_find(out, HX_WARN, value, "card %d: %.0f link errors a minute", at, worst);
    return hx_find(out, HX_PASS, value, "no link errors to speak of");
}

enum hx_verdict hx_lnk_06(const struct hx_facts *f, struct hx_finding *out)
{
    bool all_gen2 = true;
    for (int i = 0; i < f->n_cards; i++)
        all_gen2 &= f->card[i].link.gen >= 2;
    if (f->klog.sign[HX_KLOG_GEN2_FAILED].count && all_gen2)
        return hx_find(out, HX_NOTE, "false alarm",
                       "the log says Gen2 failed, the links run at Gen2: known false alarm");
    return hx_find(out, HX_PASS, "agrees", "log and links agree");
}

enum hx_verdict hx_bar_01(const struct hx_facts *f, struct hx_finding *out)
{
    bool any = false, small = false;
    uint64_t least = UINT64_MAX;
    char value[32];
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_pci_gpu *g = f->card[i].pci;
        if (!g->bar1_known)
            continue;
        any = true;
        uint64_t mib = g->bar1.size >> 20;
        if (mib == 0)
            return hx_find(out, HX_FAIL, "0", "card %d got no memory window", i);
        least = mib < least ? mib : least;
        small |= mib < (uint64_t)hx_hw_limits.bar1_full_mib;
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "no card tells its windows");
    snprintf(value, sizeof(value), "%llu", (unsigned long long)least);
    if (small && f->wanted.p2p_kind == HX_P2P_BAR1)
        return hx_find(out, HX_FAIL, value, "window of %s MiB, this way of P2P needs %d", value,
                       hx_hw_limits.bar1_full_mib);
    if (small && f->wanted.p2p_kind == HX_P2P_KIND_UNKNOWN)
        return hx_find(out, HX_WARN, value, "window of %s MiB, enough for the mailbox way only",
                       value);
    return hx_find(out, HX_PASS, value, "windows of %s MiB or more", value);
}

enum hx_verdict hx_bar_02(const struct hx_facts *f, struct hx_finding *out)
{
    bool any = false;
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_card *c = &f->card[i];
        if (c->nvml < 0 || !c->pci->bar1_known || f->nvml.device[c->nvml].bar1_mib == HX_UNKNOWN)
            continue;
        any = true;
        uint64_t mib = c->pci->bar1.size >> 20;
        if (mib != (uint64_t)f->nvml.device[c->nvml].bar1_mib)
            return hx_find(out, HX_FAIL, "differ", "card %d: bus %llu MiB, driver %d MiB", i,
                           (unsigned long long)mib, f->nvml.device[c->nvml].bar1_mib);
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "no card tells both");
    return hx_find(out, HX_PASS, "equal", "bus and driver agree about the windows");
}

enum hx_verdict hx_bar_03(const struct hx_facts *f, struct hx_finding *out)
{
    bool low = false, any = false;
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_pci_range *a = &f->card[i].pci->bar1;
        if (!f->card[i].pci->bar1_known)
            continue;
        any = true;
        low |= a->size && a->start < (1ull << 32);
        for (int j = i + 1; j < f->n_cards; j++) {
            const struct hx_pci_range *b = &f->card[j].pci->bar1;
            if (a->size && b->size && a->start <= b->start + (b->size - 1) &&
                b->start <= a->start + (a->size - 1))
                return hx_find(out, HX_FAIL, "overlap", "cards %d and %d share a window", i, j);
        }
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "no card tells its windows");
    if (low)
        return hx_find(out, HX_NOTE, "low", "a window lies below 4 GiB");
    return hx_find(out, HX_PASS, "sane", "windows lie apart and above 4 GiB");
}

enum hx_verdict hx_bar_04(const struct hx_facts *f, struct hx_finding *out)
{
    char value[16];
    uint32_t n = f->klog.sign[HX_KLOG_BAR_ASSIGN].count;
    snprintf(value, sizeof(value), "%u", n);
    if (n)
        return hx_find(out, HX_FAIL, value, "the kernel could not place a card's window");
    return hx_find(out, HX_PASS, value, "the kernel placed every window");
}
