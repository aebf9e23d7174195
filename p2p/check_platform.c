/* PLT, PWR and THM: the machine around the cards, power and heat. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum hx_verdict hx_plt_01(const struct hx_facts *f, struct hx_finding *out)
{
    enum hx_p2p_kind kind = f->wanted.p2p_kind;
    switch (f->platform.iommu) {
    case HX_IOMMU_NONE: return hx_find(out, HX_PASS, "off", "no IOMMU is active");
    case HX_IOMMU_IDENTITY:
        if (kind == HX_P2P_MAILBOX)
            return hx_find(out, HX_WARN, "identity",
                           "IOMMU in passthrough: not known to be enough for the mailbox way");
        return hx_find(out, HX_PASS, "identity", "IOMMU in passthrough");
    case HX_IOMMU_TRANSLATED: break;
    }
    return hx_find(out, kind == HX_P2P_NONE ? HX_WARN : HX_FAIL, "translated",
                   "the IOMMU translates the cards' traffic");
}

enum hx_verdict hx_plt_02(const struct hx_facts *f, struct hx_finding *out)
{
    int known = 0, redirect = 0;
    char value[16];
    for (int i = 0; i < f->n_cards; i++) {
        for (int h = 0; h < f->card[i].pci->n_hops; h++) {
            const struct hx_pci_hop *hop = &f->card[i].pci->hop[h];
            known += hop->acs_known;
            redirect += hop->acs_known &&
                        (hop->acs_ctl & (HX_ACS_REQUEST_REDIRECT | HX_ACS_COMPLETION_REDIRECT));
        }
    }
    if (!known)
        return hx_find(out, HX_SKIP, "", "no bridge's config space can be read (run as root)");
    snprintf(value, sizeof(value), "%d", redirect);
    if (redirect)
        return hx_find(out, HX_WARN, value, "%d bridge(s) send card traffic up to the processor",
                       redirect);
    return hx_find(out, HX_PASS, value, "no bridge redirects card traffic");
}

enum hx_verdict hx_plt_03(const struct hx_facts *f, struct hx_finding *out)
{
    bool any = false, sys = false;
    for (int i = 0; i < f->n_cards; i++) {
        for (int j = 0; j < f->n_cards; j++) {
            if (i == j || f->card[i].nvml < 0 || f->card[j].nvml < 0)
                continue;
            int32_t t = f->nvml.topology[f->card[i].nvml][f->card[j].nvml];
            any |= t != HX_UNKNOWN;
            sys |= t >= HX_NVML_TOPO_SYS;
        }
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "the driver tells no topology");
    return hx_find(out, sys ? HX_WARN : HX_PASS, sys ? "SYS" : "near",
                   sys ? "some cards hang off different processors"
                       : "all cards hang off one processor");
}

enum hx_verdict hx_plt_04(const struct hx_facts *f, struct hx_finding *out)
{
    int first = -1;
    for (int i = 0; i < f->n_cards; i++) {
        int node = f->card[i].pci->numa_node;
        if (node < 0)
            continue;
        if (first < 0)
            first = node;
        if (node != first)
            return hx_find(out, HX_WARN, "several", "cards lie on several memory nodes");
    }
    return hx_find(out, HX_PASS, "one", "cards lie on one memory node");
}

enum hx_verdict hx_plt_05(const struct hx_facts *f, struct hx_finding *out)
{
    static const char *const vendors[] = {"QEMU", "VMware", "Xen", "innotek", "Bochs"};
    bool vm = f->platform.hypervisor;
    for (size_t i = 0; i < sizeof(vendors) / sizeof(vendors[0]); i++)
        vm |= strncmp(f->platform.dmi_vendor, vendors[i], strlen(vendors[i])) == 0;
    return hx_find(out, vm ? HX_WARN : HX_PASS, vm ? "VM" : "bare metal",
                   vm ? "this is a virtual machine" : "bare metal");
}

enum hx_verdict hx_plt_06(const struct hx_facts *f, struct hx_finding *out)
{
    const struct hx_platform_facts *p = &f->platform;
    char value[32];
    if (p->ram_kib < 0)
        return hx_find(out, HX_SKIP, "", "the amount of memory cannot be read");
    double gib = (double)p->ram_kib / (1 << 20);
    snprintf(value, sizeof(value), "%.0f GiB", gib);
    if (gib < hx_hw_limits.ram_gib_fail)
        return hx_find(out, HX_FAIL, value, "%s of memory, %.0f are needed", value,
                       hx_hw_limits.ram_gib_warn);
    if (gib < hx_hw_limits.ram_gib_warn)
        return hx_find(out, HX_WARN, value, "%s of memory, %.0f are advised", value,
                       hx_hw_limits.ram_gib_warn);
    if (p->shm_bytes >= 0 && (double)p->shm_bytes < hx_hw_limits.shm_gib * (1u << 30))
        return hx_find(out, HX_WARN, value, "/dev/shm is smaller than %.0f GiB",
                       hx_hw_limits.shm_gib);
    if (p->memlock_bytes >= 0)
        return hx_find(out, HX_WARN, value, "locked memory is limited");
    return hx_find(out, HX_PASS, value, "%s of memory", value);
}

enum hx_verdict hx_plt_07(const struct hx_facts *f, struct hx_finding *out)
{
    const char *name = f->wanted.control_interface;
    if (strcmp(name, "lo") == 0)
        return hx_find(out, HX_PASS, "lo", "control messages stay on loopback");
    return hx_find(out, HX_WARN, name[0] ? name : "unset", "control messages use %s",
                   name[0] ? name : "whatever interface is found first");
}

enum hx_verdict hx_pwr_01(const struct hx_facts *f, struct hx_finding *out)
{
    int cap = f->wanted.power_cap_w;
    bool any = false;
    char value[32];
    if (!cap)
        return hx_find(out, HX_SKIP, "", "no power limit is configured");
    for (int i = 0; i < f->n_cards; i++) {
        if (f->card[i].nvml < 0)
            continue;
        int32_t mw = f->nvml.device[f->card[i].nvml].power_limit_mw;
        if (mw == HX_UNKNOWN)
            continue;
        any = true;
        snprintf(value, sizeof(value), "%g", mw / 1000.0);
        if (fabs(mw / 1000.0 - cap) > hx_hw_limits.cap_tolerance_w)
            return hx_find(out, HX_WARN, value, "card %d: limit %s W, %d W are configured", i,
                           value, cap);
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "no card tells its power limit");
    return hx_find(out, HX_PASS, value, "every card has its limit of %d W", cap);
}

/* Bits seen under load on any card; false if none told them. */
static bool load_reasons(const struct hx_facts *f, int64_t *bits)
{
    bool any = false;
    *bits = 0;
    for (int i = 0; i < f->n_cards; i++) {
        int n = f->card[i].nvml;
        if (n < 0 || n >= f->load.n_devices || f->load.device[n].reasons < 0)
            continue;
        any = true;
        *bits |= f->load.device[n].reasons;
    }
    return any;
}

enum hx_verdict hx_pwr_02(const struct hx_facts *f, struct hx_finding *out)
{
    int64_t bits;
    if (!load_reasons(f, &bits))
        return hx_find(out, HX_SKIP, "", "no card tells its clock reasons");
    bool set = bits & HX_REASON_HW_POWER_BRAKE;
    return hx_find(out, set ? HX_FAIL : HX_PASS, set ? "set" : "clear",
                   set ? "the board asserts the power-brake pin" : "no power brake");
}

enum hx_verdict hx_pwr_03(const struct hx_facts *f, struct hx_finding *out)
{
    int64_t bits;
    if (!load_reasons(f, &bits))
        return hx_find(out, HX_SKIP, "", "no card tells its clock reasons");
    if (bits & HX_REASON_HW_THERMAL)
        return hx_find(out, HX_FAIL, "hardware", "a card slowed itself down because of heat");
    if (bits & HX_REASON_SW_THERMAL)
        return hx_find(out, HX_WARN, "software", "the driver slowed a card down because of heat");
    return hx_find(out, HX_PASS, "clear", "no slowdown because of heat");
}

/* Two or more cards busy at idle power in one sample. */
static bool stuck_sample(const struct hx_facts *f, int s)
{
    int n = 0;
    for (int i = 0; i < f->n_cards; i++) {
        int d = f->card[i].nvml;
        if (d < 0 || d >= f->load.n_devices)
            continue;
        int32_t mw = f->load.power_mw[s][d];
        n += f->load.util_pct[s][d] >= hx_hw_limits.hang_util_pct && mw != HX_UNKNOWN &&
             mw <= hx_hw_limits.hang_power_w * 1000;
    }
    return n >= 2;
}

enum hx_verdict hx_pwr_04(const struct hx_facts *f, struct hx_finding *out)
{
    int from = -1;
    for (int s = 0; s < f->load.n_samples; s++) {
        if (!stuck_sample(f, s)) {
            from = -1;
            continue;
        }
        if (from < 0)
            from = s;
        if (f->load.sample_ms[s] - f->load.sample_ms[from] >= hx_hw_limits.hang_seconds * 1000)
            return hx_find(out, HX_FAIL, "seen",
                           "cards were fully busy at idle power for %d s: they wait for each other",
                           hx_hw_limits.hang_seconds);
    }
    return hx_find(out, HX_PASS, "not seen", "no card was busy without work");
}

/* Hottest reading of a card, under load where there was one. */
static int32_t hottest(const struct hx_facts *f, int card, bool memory)
{
    int n = f->card[card].nvml;
    if (n < 0)
        return HX_UNKNOWN;
    int32_t v = memory ? f->nvml.device[n].memory_c : f->nvml.device[n].core_c;
    if (f->has_load && n < f->load.n_devices) {
        int32_t load = memory ? f->load.device[n].max_memory_c : f->load.device[n].max_core_c;
        if (load != HX_UNKNOWN && (v == HX_UNKNOWN || load > v))
            v = load;
    }
    return v;
}

static enum hx_verdict temperature(const struct hx_facts *f, bool memory, int warn, int fail,
                                   struct hx_finding *out)
{
    int32_t high = HX_UNKNOWN;
    int at = 0;
    char value[16];
    for (int i = 0; i < f->n_cards; i++) {
        int32_t v = hottest(f, i, memory);
        if (v != HX_UNKNOWN && (high == HX_UNKNOWN || v > high)) {
            high = v;
            at = i;
        }
    }
    if (high == HX_UNKNOWN)
        return hx_find(out, HX_SKIP, "", "no sensor answers");
    snprintf(value, sizeof(value), "%d", high);
    return hx_find(out,
                   high >= fail   ? HX_FAIL
                   : high >= warn ? HX_WARN
                                  : HX_PASS,
                   value, "hottest %s: %d degrees on card %d", memory ? "memory" : "core", high,
                   at);
}

enum hx_verdict hx_thm_01(const struct hx_facts *f, struct hx_finding *out)
{
    return temperature(f, false, hx_hw_limits.core_warn_c, hx_hw_limits.core_fail_c, out);
}

enum hx_verdict hx_thm_02(const struct hx_facts *f, struct hx_finding *out)
{
    enum hx_verdict v =
        temperature(f, true, hx_hw_limits.memory_warn_c, hx_hw_limits.memory_fail_c, out);
    /* Memory that is warm without work will not stay cool with it. */
    for (int i = 0; v == HX_PASS && i < f->n_cards; i++) {
        const struct hx_nvml_device *d =
            f->card[i].nvml < 0 ? NULL : &f->nvml.device[f->card[i].nvml];
        char value[16];
        if (!d || d->reasons < 0 || !(d->reasons & HX_REASON_IDLE) || d->memory_c == HX_UNKNOWN ||
            d->memory_c <= hx_hw_limits.memory_idle_c)
            continue;
        snprintf(value, sizeof(value), "%d", d->memory_c);
        return hx_find(out, HX_WARN, value, "memory of card %d is at %d degrees while idle", i,
                       d->memory_c);
    }
    return v;
}

enum hx_verdict hx_thm_03(const struct hx_facts *f, struct hx_finding *out)
{
    int missing = 0;
    char value[16];
    for (int i = 0; i < f->n_cards; i++) {
        int n = f->card[i].nvml;
        if (n < 0)
            continue;
        missing += f->nvml.device[n].memory_c == HX_UNKNOWN ||
                   (f->has_load && n < f->load.n_devices && f->load.device[n].missing_memory_c);
    }
    snprintf(value, sizeof(value), "%d", missing);
    return hx_find(out, missing ? HX_WARN : HX_PASS, value,
                   missing ? "memory temperature is missing on %d card(s)"
                           : "every memory sensor answers (%d missing)",
                   missing);
}

enum hx_verdict hx_thm_04(const struct hx_facts *f, struct hx_finding *out)
{
    int32_t low = INT32_MAX, high = -1;
    char value[16];
    for (int i = 0; i < f->n_cards; i++) {
        int32_t v = hottest(f, i, false);
        if (v == HX_UNKNOWN)
            continue;
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    if (high < 0)
        return hx_find(out, HX_SKIP, "", "no sensor answers");
    snprintf(value, sizeof(value), "%d", high - low);
    return hx_find(out, high - low >= hx_hw_limits.spread_warn_c ? HX_WARN : HX_PASS, value,
                   "cores at %d to %d degrees", low, high);
}
