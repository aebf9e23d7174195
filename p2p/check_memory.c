/* MEM and CMP: size, truth and speed of memory, speed of computing. */
#include "check.h"

#include <math.h>
#include <stdio.h>

static const struct hx_nvml_device *nvml_of(const struct hx_facts *f, int card)
{
    return f->card[card].nvml < 0 ? NULL : &f->nvml.device[f->card[card].nvml];
}

enum hx_memory_class hx_card_memory(const struct hx_facts *f, const struct hx_card *card,
                                    bool *known)
{
    int32_t mib = card->nvml < 0 ? HX_UNKNOWN : f->nvml.device[card->nvml].memory_total_mib;
    *known = mib != HX_UNKNOWN;
    return *known ? hx_variant_memory_class(card->variant, mib) : HX_MEMORY_ODD;
}

enum hx_verdict hx_mem_01(const struct hx_facts *f, struct hx_finding *out)
{
    bool any = false, known;
    for (int i = 0; i < f->n_cards; i++) {
        enum hx_memory_class c = hx_card_memory(f, &f->card[i], &known);
        any |= known;
        if (!known || (c == HX_MEMORY_UNLOCKED && f->card[i].variant->usable))
            continue;
        if (c == HX_MEMORY_OVERSIZE)
            out->remedy = "R-ALIAS";
        else if (c == HX_MEMORY_ODD || f->wanted.bundle.present)
            out->remedy = "R-COLD";
        return hx_find(out, HX_FAIL, hx_memory_class_name(c), "card %d shows %d MiB (%s)", i,
                       f->nvml.device[f->card[i].nvml].memory_total_mib, hx_memory_class_name(c));
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "no card tells its memory");
    return hx_find(out, HX_PASS, "unlocked", "every card shows 64 GiB");
}

enum hx_verdict hx_mem_02(const struct hx_facts *f, struct hx_finding *out)
{
    int32_t low = INT32_MAX, high = -1;
    char value[32];
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_nvml_device *d = nvml_of(f, i);
        if (!d || d->memory_total_mib == HX_UNKNOWN)
            continue;
        low = d->memory_total_mib < low ? d->memory_total_mib : low;
        high = d->memory_total_mib > high ? d->memory_total_mib : high;
    }
    if (high < 0)
        return hx_find(out, HX_SKIP, "", "no card tells its memory");
    snprintf(value, sizeof(value), "%d", high - low);
    return hx_find(out, high - low > hx_hw_limits.memory_spread_mib ? HX_FAIL : HX_PASS, value,
                   "%d to %d MiB", low, high);
}

/* The worst of one memory test over the devices that could start work. */
static enum hx_verdict memory_test(const struct hx_facts *f, bool pattern, struct hx_finding *out)
{
    const char *what = pattern ? "pattern and load test" : "alias test";
    int n_run = 0, n_missing = 0;
    for (int i = 0; i < f->probe.n_devices; i++) {
        const struct hx_measured_device *d = &f->probe.device[i];
        const struct hx_measured_memory *m = pattern ? &d->pattern : &d->alias;
        if (d->context != HX_CONTEXT_OK)
            continue;
        if (m->outcome == HX_OUTCOME_NOT_RUN) {
            n_missing++;
            continue;
        }
        n_run++;
        if (m->outcome != HX_OUTCOME_OK && m->is_alias && m->distance >= 0)
            return hx_find(out, HX_FAIL, "alias",
                           "card %d: addresses %.0f GiB apart share the same cells", i,
                           m->distance / (1 << 30));
        if (m->outcome != HX_OUTCOME_OK)
            return hx_find(out, HX_FAIL,
                           m->outcome == HX_OUTCOME_CORRUPT ? "mismatch"
                                                            : hx_outcome_name(m->outcome),
                           "card %d: %s found %.0f wrong words", i, what,
                           isnan(m->mismatches) ? 0 : m->mismatches);
        if (m->coverage < hx_hw_limits.coverage_min)
            return hx_find(out, HX_FAIL, "coverage", "card %d: only %.0f %% of memory was tested",
                           i, 100 * m->coverage);
    }
    if (n_missing && n_run)
        return hx_find(out, HX_SKIP, "", "%s did not run on %d card(s)", what, n_missing);
    if (!n_run)
        return hx_find(out, HX_SKIP, "", "%s has not run since the last change of modules%s", what,
                       pattern ? ": p2p_check --full runs it" : "");
    return hx_find(out, HX_PASS, "0", "%s: no wrong word", what);
}

enum hx_verdict hx_mem_03(const struct hx_facts *f, struct hx_finding *out)
{
    return memory_test(f, false, out);
}

enum hx_verdict hx_mem_04(const struct hx_facts *f, struct hx_finding *out)
{
    return memory_test(f, true, out);
}

/* Smallest and greatest of one measured number. */
struct range {
    double low, high;
    int n, low_card, high_card;
};

enum member { FP32, BF16, HBM, MMA };

static double value_of(const struct hx_measured_device *d, enum member m)
{
    switch (m) {
    case FP32: return d->fp32_tflops;
    case BF16: return d->bf16_tflops;
    case HBM: return d->hbm_gbps;
    case MMA: break;
    }
    return d->mma_cycles;
}

static struct range range_of(const struct hx_facts *f, enum member m)
{
    struct range r = {INFINITY, -INFINITY, 0, 0, 0};
    for (int i = 0; i < f->probe.n_devices; i++) {
        double v = value_of(&f->probe.device[i], m);
        if (isnan(v) || f->probe.device[i].context != HX_CONTEXT_OK)
            continue;
        r.n++;
        if (v < r.low) {
            r.low = v;
            r.low_card = i;
        }
        if (v > r.high) {
            r.high = v;
            r.high_card = i;
        }
    }
    return r;
}

static enum hx_verdict at_least(struct range r, double pass, double fail, const char *unit,
                                struct hx_finding *out)
{
    char value[32];
    if (!r.n)
        return hx_find(out, HX_SKIP, "", "not measured");
    snprintf(value, sizeof(value), "%g", r.low);
    return hx_find(out,
                   r.low > pass   ? HX_PASS
                   : r.low < fail ? HX_FAIL
                                  : HX_WARN,
                   value, "slowest card (%d): %.4g %s", r.low_card, r.low, unit);
}

enum hx_verdict hx_mem_05(const struct hx_facts *f, struct hx_finding *out)
{
    return at_least(range_of(f, HBM), hx_hw_limits.hbm_pass, hx_hw_limits.hbm_fail, "GB/s", out);
}

static bool memory_clocks(const struct hx_facts *f, int32_t *low, int32_t *high)
{
    *low = INT32_MAX;
    *high = -1;
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_nvml_device *d = nvml_of(f, i);
        if (!d || d->mem_mhz == HX_UNKNOWN)
            continue;
        *low = d->mem_mhz < *low ? d->mem_mhz : *low;
        *high = d->mem_mhz > *high ? d->mem_mhz : *high;
    }
    return *high >= 0;
}

enum hx_verdict hx_mem_06(const struct hx_facts *f, struct hx_finding *out)
{
    int32_t low, high;
    char value[32];
    if (!memory_clocks(f, &low, &high))
        return hx_find(out, HX_SKIP, "", "no card tells its memory clock");
    snprintf(value, sizeof(value), "%d", high - low);
    return hx_find(out, low != high ? HX_NOTE : HX_PASS, value, "memory clocks %d to %d MHz", low,
                   high);
}

enum hx_verdict hx_mem_07(const struct hx_facts *f, struct hx_finding *out)
{
    int32_t low, high;
    char value[32];
    if (!memory_clocks(f, &low, &high))
        return hx_find(out, HX_SKIP, "", "no card tells its memory clock");
    snprintf(value, sizeof(value), "%d", high);
    return hx_find(out,
                   high > hx_hw_limits.hbm_mhz_qualified ? HX_FAIL
                   : high > hx_hw_limits.hbm_mhz_normal  ? HX_WARN
                                                         : HX_PASS,
                   value, "fastest memory clock %d MHz", high);
}

enum hx_verdict hx_mem_08(const struct hx_facts *f, struct hx_finding *out)
{
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_nvml_device *d = nvml_of(f, i);
        if (d && (d->ecc == 0 || d->ecc == 1))
            return hx_find(out, HX_NOTE, "supported",
                           "card %d offers error correction, which this card has not", i);
    }
    return hx_find(out, HX_PASS, "none", "no error correction, as usual on this card");
}

enum hx_verdict hx_cmp_01(const struct hx_facts *f, struct hx_finding *out)
{
    return at_least(range_of(f, FP32), hx_hw_limits.fp32_pass, hx_hw_limits.fp32_fail, "TFLOPS",
                    out);
}

enum hx_verdict hx_cmp_02(const struct hx_facts *f, struct hx_finding *out)
{
    return at_least(range_of(f, BF16), hx_hw_limits.bf16_pass, hx_hw_limits.bf16_fail, "TFLOPS",
                    out);
}

enum hx_verdict hx_cmp_03(const struct hx_facts *f, struct hx_finding *out)
{
    int low = INT32_MAX;
    char value[32];
    for (int i = 0; i < f->probe.n_devices; i++) {
        int n = f->probe.device[i].sm_count;
        if (f->probe.device[i].context == HX_CONTEXT_OK && n >= 0 && n < low)
            low = n;
    }
    if (low == INT32_MAX)
        return hx_find(out, HX_SKIP, "", "not measured");
    snprintf(value, sizeof(value), "%d", low);
    return hx_find(out,
                   low >= hx_hw_limits.sm_full  ? HX_PASS
                   : low >= hx_hw_limits.sm_min ? HX_NOTE
                                                : HX_FAIL,
                   value, "%d of %d compute units", low, hx_hw_limits.sm_full);
}

enum hx_verdict hx_cmp_04(const struct hx_facts *f, struct hx_finding *out)
{
    struct range r = range_of(f, MMA);
    char value[32];
    if (!r.n)
        return hx_find(out, HX_SKIP, "", "not measured");
    snprintf(value, sizeof(value), "%g", r.high);
    return hx_find(out,
                   r.high < hx_hw_limits.mma_pass   ? HX_PASS
                   : r.high > hx_hw_limits.mma_fail ? HX_FAIL
                                                    : HX_WARN,
                   value, "slowest card (%d): %g cycles", r.high_card, r.high);
}

enum hx_verdict hx_cmp_05(const struct hx_facts *f, struct hx_finding *out)
{
    static const char *const words[] = {"unknown", "ok", "timeout", "error"};
    for (int i = 0; i < f->probe.n_devices; i++) {
        enum hx_context c = f->probe.device[i].context;
        if (c == HX_CONTEXT_TIMEOUT || c == HX_CONTEXT_ERROR)
            return hx_find(out, HX_FAIL, words[c], "card %d: a fresh context gave %s", i,
                           c == HX_CONTEXT_TIMEOUT ? "no answer" : "an error");
        if (c == HX_CONTEXT_UNKNOWN)
            return hx_find(out, HX_SKIP, "", "not tried on card %d", i);
    }
    return hx_find(out, HX_PASS, "created", "every card can start work");
}

enum hx_verdict hx_cmp_06(const struct hx_facts *f, struct hx_finding *out)
{
    struct range t = range_of(f, BF16), m = range_of(f, HBM);
    char value[32];
    double ratio = 1;
    if (!t.n && !m.n)
        return hx_find(out, HX_SKIP, "", "not measured");
    if (t.n && t.low > 0)
        ratio = fmax(ratio, t.high / t.low);
    if (m.n && m.low > 0)
        ratio = fmax(ratio, m.high / m.low);
    snprintf(value, sizeof(value), "%.2f", ratio);
    return hx_find(out, ratio > hx_hw_limits.spread_ratio ? HX_WARN : HX_PASS, value,
                   "fastest to slowest card %.2f", ratio);
}
