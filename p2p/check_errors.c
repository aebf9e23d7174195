/* ERR: what went wrong since the machine started. */
#include "check.h"

#include <stdio.h>
#include <string.h>

enum hx_verdict hx_err_01(const struct hx_facts *f, struct hx_finding *out)
{
    char value[96] = "";
    enum hx_xid_severity worst = HX_XID_NOTE;
    int at = -1;
    size_t used = 0;
    for (int i = 0; i < f->klog.n_xids; i++) {
        int number = f->klog.xid[i].number;
        enum hx_xid_severity s = hx_xid_severity(number);
        if (at < 0 || s > worst) {
            worst = s;
            at = i;
        }
        int n = snprintf(value + used, sizeof(value) - used, "%s%d", used ? "," : "", number);
        used += n > 0 && used + (size_t)n < sizeof(value) ? (size_t)n : 0;
    }
    if (at < 0)
        return hx_find(out, HX_PASS, "none", "no GPU fault since the start");
    int number = f->klog.xid[at].number;
    return hx_find(out,
                   worst == HX_XID_FAIL   ? HX_FAIL
                   : worst == HX_XID_WARN ? HX_WARN
                                          : HX_NOTE,
                   value, "Xid %d: %s", number, hx_xid_meaning(number));
}

enum hx_verdict hx_err_02(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->klog.sign[HX_KLOG_GSP_FATAL].count)
        return hx_find(out, HX_FAIL, "fatal", "a card's firmware did not start");
    return hx_find(out, HX_PASS, f->klog.sign[HX_KLOG_GSP_BENIGN].count ? "benign" : "none",
                   "card firmware started");
}

enum hx_verdict hx_err_03(const struct hx_facts *f, struct hx_finding *out)
{
    static const char *const names[] = {"None", "Reset", "Reboot", "Drain", "Drain and reset"};
    bool any = false;
    for (int i = 0; i < f->n_cards; i++) {
        if (f->card[i].nvml < 0)
            continue;
        int32_t v = f->nvml.device[f->card[i].nvml].recovery;
        if (v == HX_UNKNOWN)
            continue;
        any = true;
        if (v != HX_NVML_RECOVERY_NONE)
            return hx_find(out, HX_FAIL, v > 0 && v < 5 ? names[v] : "other",
                           "the driver wants card %d to be recovered: %s", i,
                           v > 0 && v < 5 ? names[v] : "other action");
    }
    if (!any)
        return hx_find(out, HX_SKIP, "", "this driver does not tell it");
    return hx_find(out, HX_PASS, "None", "no card needs to be recovered");
}

enum hx_verdict hx_err_04(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->stuck_process)
        return hx_find(out, HX_FAIL, "stuck", "a process is stuck inside the driver");
    if (f->nvml.state == HX_NVML_HUNG || f->smi_rc < 0)
        return hx_find(out, HX_FAIL, "timeout", "the driver did not answer within %d s",
                       hx_hw_limits.tool_timeout_ms / 1000);
    return hx_find(out, HX_PASS, "in time", "the driver answers in time");
}

static enum hx_verdict absent(const struct hx_facts *f, enum hx_klog_sign sign, const char *what,
                              struct hx_finding *out)
{
    char value[16];
    uint32_t n = f->klog.sign[sign].count;
    snprintf(value, sizeof(value), "%u", n);
    return hx_find(out, n ? HX_FAIL : HX_PASS, value, "%s in the kernel log: %u", what, n);
}

enum hx_verdict hx_err_05(const struct hx_facts *f, struct hx_finding *out)
{
    return absent(f, HX_KLOG_P2P_ASSERT, "failed peer mappings", out);
}

enum hx_verdict hx_err_06(const struct hx_facts *f, struct hx_finding *out)
{
    return absent(f, HX_KLOG_IOMMU_FAULT, "IOMMU faults of a card", out);
}
