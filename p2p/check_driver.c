/* DRV and BND: the driver's parts belong together and are the bundle's. */
#include "check.h"

#include <stdio.h>
#include <string.h>

enum hx_verdict hx_drv_01(const struct hx_facts *f, struct hx_finding *out)
{
    const char *want = f->driver.proc.version;
    const struct {
        const char *version, *who;
    } others[] = {
        {f->driver.module_version, "module"},
        {f->nvml.state == HX_NVML_OK ? f->nvml.driver : "", "management library"},
        {f->wanted.bundle.present ? f->wanted.bundle.driver_version : "", "bundle"},
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (others[i].version[0] && strcmp(others[i].version, want) != 0)
            return hx_find(out, HX_FAIL, want, "loaded driver %s, %s %s", want[0] ? want : "?",
                           others[i].who, others[i].version);
    return hx_find(out, HX_PASS, want, "driver %s throughout", want);
}

enum hx_verdict hx_drv_02(const struct hx_facts *f, struct hx_finding *out)
{
    if (!f->driver.proc.open_module)
        return hx_find(out, HX_FAIL, "closed", "the closed kernel module is loaded");
    return hx_find(out, HX_PASS, "open", "the open kernel module is loaded");
}

static bool other_srcversion(const struct hx_facts *f)
{
    return f->bundle_module_known && f->bundle_srcversion[0] && f->driver.srcversion[0] &&
           strcmp(f->bundle_srcversion, f->driver.srcversion) != 0;
}

static bool resolves_elsewhere(const struct hx_facts *f)
{
    size_t n = strlen(f->wanted.bundle.module_dir);
    return !f->wanted.bundle.by_path && f->resolve_known && f->resolved[0] && n &&
           (strncmp(f->resolved, f->wanted.bundle.module_dir, n) != 0 || f->resolved[n] != '/');
}

bool hx_module_shadowed(const struct hx_facts *f)
{
    return f->wanted.bundle.present && f->driver.loaded &&
           (other_srcversion(f) || resolves_elsewhere(f));
}

enum hx_verdict hx_drv_03(const struct hx_facts *f, struct hx_finding *out)
{
    if (!f->bundle_module_known || !f->bundle_srcversion[0])
        return hx_find(out, HX_SKIP, "", "the bundle's module cannot be read (is kmod installed?)");
    if (!f->driver.srcversion[0])
        return hx_find(out, HX_SKIP, "", "the running module tells no srcversion");
    if (other_srcversion(f))
        return hx_find(out, HX_FAIL, "differs", "the running module is not the bundle's");
    return hx_find(out, HX_PASS, "equal", "the running module is the bundle's");
}

enum hx_verdict hx_drv_04(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->wanted.bundle.by_path)
        return hx_find(out, HX_SKIP, "", "modules are loaded by path here");
    if (!f->resolve_known || !f->resolved[0])
        return hx_find(out, HX_SKIP, "", "modprobe does not tell which module it would load");
    if (resolves_elsewhere(f))
        return hx_find(out, HX_FAIL, "elsewhere", "modprobe finds %s, which is not the bundle's",
                       f->resolved);
    return hx_find(out, HX_PASS, "bundle", "modprobe finds the bundle's module");
}

enum hx_verdict hx_drv_05(const struct hx_facts *f, struct hx_finding *out)
{
    char value[16];
    snprintf(value, sizeof(value), "%d", f->driver.n_copies);
    if (!f->driver.n_copies)
        return hx_find(out, HX_SKIP, value, "no nvidia module below the running kernel's folder");
    if (f->driver.n_copies == 1)
        return hx_find(out, HX_PASS, value, "one nvidia module");
    if (f->wanted.bundle.present && resolves_elsewhere(f))
        return hx_find(out, HX_FAIL, value, "%d nvidia modules, and another than the bundle's wins",
                       f->driver.n_copies);
    return hx_find(out, HX_NOTE, value, "%d nvidia modules, the right one wins",
                   f->driver.n_copies);
}

enum hx_verdict hx_drv_06(const struct hx_facts *f, struct hx_finding *out)
{
    if (!f->driver.has_params)
        return hx_find(out, HX_SKIP, "", "the driver tells no parameters");
    if (f->driver.gpu_firmware == 0)
        return hx_find(out, HX_FAIL, "off", "GPU firmware is switched off");
    for (int i = 0; i < f->n_cards; i++) {
        for (int g = 0; g < f->driver.n_gpus; g++) {
            const char *firmware = f->driver.gpu[g].firmware;
            /* A card that never started says N/A whatever the setting: ERR-02 and INV-03 tell. */
            if (!firmware[0] || f->card[i].nvml < 0 ||
                !hx_pci_address_equal(&f->driver.gpu[g].address, &f->card[i].pci->address))
                continue;
            if (strcmp(firmware, f->driver.proc.version) != 0)
                return hx_find(out, HX_FAIL, firmware, "card %d: GPU firmware %s, driver %s", i,
                               firmware, f->driver.proc.version);
        }
    }
    return hx_find(out, HX_PASS, "on", "GPU firmware is on and of the driver's version");
}

enum hx_verdict hx_drv_07(const struct hx_facts *f, struct hx_finding *out)
{
    char missing[96];
    if (!f->driver.has_params)
        return hx_find(out, HX_SKIP, "", "the driver tells no parameters");
    if (!hx_registry_has(f->driver.registry, f->wanted.bundle.registry_keys, missing,
                         sizeof(missing)))
        return hx_find(out, HX_FAIL, "missing", "the driver did not get %s", missing);
    return hx_find(out, HX_PASS, "all", "all of the bundle's options reached the driver");
}

/* Markers of builds that keep the reserved memory to themselves (hardware.md 2.3). */
static bool marker_accepted(const struct hx_facts *f)
{
    return strcmp(f->safety_marker, "wpr-safe-r3") == 0 ||
           f->klog.sign[HX_KLOG_SAFE_LAYOUT].count > 0;
}

enum hx_verdict hx_drv_08(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->klog.sign[HX_KLOG_UNSAFE_LAYOUT].count)
        return hx_find(out, HX_FAIL, "unsafe", "the build hands out memory the card reserves");
    if (marker_accepted(f))
        return hx_find(out, HX_PASS, f->safety_marker, "the build has a safety marker");
    if (!f->wanted.bundle.safety_marker_required)
        return hx_find(out, HX_PASS, "", "the bundle needs no safety marker");
    return hx_find(out, HX_WARN, "absent", "the build has no accepted safety marker");
}

enum hx_verdict hx_drv_09(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->nvml.state == HX_NVML_MISMATCH || f->smi_mismatch)
        return hx_find(out, HX_FAIL, "mismatch",
                       "user-space driver and kernel module are of different versions");
    if (f->nvml.state == HX_NVML_HUNG || f->nvml.state == HX_NVML_NO_LIBRARY)
        return hx_find(out, HX_SKIP, "", "management library: %s",
                       hx_nvml_state_name((enum hx_nvml_state)f->nvml.state));
    return hx_find(out, HX_PASS, "ok", "user-space driver and kernel module fit");
}

enum hx_verdict hx_drv_10(const struct hx_facts *f, struct hx_finding *out)
{
    if (!f->bundle_has_module)
        return hx_find(out, HX_FAIL, "none", "the running kernel %s has no bundle modules",
                       f->driver.kernel);
    if (f->wanted.has_default_entry && !f->wanted.default_entry_has_modules)
        return hx_find(out, HX_WARN, "running only",
                       "the default boot entry has no bundle modules");
    return hx_find(out, HX_PASS, "both", "the kernel has the bundle's modules");
}

enum hx_verdict hx_drv_11(const struct hx_facts *f, struct hx_finding *out)
{
    const struct hx_platform_facts *p = &f->platform;
    bool enforced = p->secure_boot == HX_YES || p->lockdown || p->sig_enforce == HX_YES;
    bool accepted = f->driver.loaded || f->wanted.bundle.signed_by_trusted;
    if (f->klog.sign[HX_KLOG_UNSIGNED].count && !f->driver.loaded)
        return hx_find(out, HX_FAIL, "refused", "the kernel refused an unsigned module");
    if (enforced && f->wanted.bundle.present && !accepted)
        return hx_find(out, HX_FAIL, "on",
                       "Secure Boot is on and the bundle's modules are unsigned");
    if (!enforced && p->secure_boot == HX_NOT_KNOWN)
        return hx_find(out, HX_WARN, "unknown", "the state of Secure Boot cannot be read");
    return hx_find(out, HX_PASS, enforced ? "on" : "off",
                   enforced ? "modules are accepted under Secure Boot" : "Secure Boot is off");
}

enum hx_verdict hx_drv_12(const struct hx_facts *f, struct hx_finding *out)
{
    int off = 0, known = 0;
    for (int i = 0; i < f->n_cards; i++) {
        if (f->card[i].nvml < 0)
            continue;
        int32_t v = f->nvml.device[f->card[i].nvml].persistence;
        known += v != HX_UNKNOWN;
        off += v == 0;
    }
    if (!known)
        return hx_find(out, HX_SKIP, "", "no card tells it");
    return hx_find(out, off ? HX_WARN : HX_PASS, off ? "off" : "on",
                   off ? "persistence is off on %d card(s)" : "persistence is on (%d off)", off);
}

enum hx_verdict hx_drv_13(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->driver.competing[0])
        return hx_find(out, HX_FAIL, f->driver.competing, "%s is loaded", f->driver.competing);
    return hx_find(out, HX_PASS, "none", "no competing driver");
}

enum hx_verdict hx_bnd_06(const struct hx_facts *f, struct hx_finding *out)
{
    if (!f->wanted.bundle.state_ok)
        return hx_find(out, HX_FAIL, "drift", "an installed file differs from the record");
    return hx_find(out, HX_PASS, "match", "installed files match the record");
}

enum hx_verdict hx_bnd_07(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->wanted.bundle.by_path)
        return hx_find(out, HX_SKIP, "", "modules are loaded by path here");
    if (!f->wanted.has_boot_image)
        return hx_find(out, HX_WARN, "unknown", "the boot image cannot be inspected");
    if (!f->wanted.boot_image_modules || !f->wanted.boot_image_options)
        return hx_find(out, HX_FAIL, "no", "the boot image lacks the bundle's %s",
                       f->wanted.boot_image_modules ? "options" : "modules");
    return hx_find(out, HX_PASS, "yes", "the boot image holds the bundle's modules and options");
}

enum hx_verdict hx_bnd_08(const struct hx_facts *f, struct hx_finding *out)
{
    switch (f->wanted.bundle.cold_start) {
    case HX_COLD_YES: return hx_find(out, HX_PASS, "yes", "power was off after the installation");
    case HX_COLD_UNKNOWN:
        return hx_find(out, HX_WARN, "unknown", "whether power was off since the installation");
    case HX_COLD_WARM: return hx_find(out, HX_FAIL, "warm", "only a warm restart since then");
    case HX_COLD_NOT_RECORDED: break;
    }
    return hx_find(out, HX_SKIP, "", "no installation is recorded");
}

enum hx_verdict hx_bnd_09(const struct hx_facts *f, struct hx_finding *out)
{
    switch (f->wanted.bundle.way_back) {
    case HX_BACK_YES: return hx_find(out, HX_PASS, "yes", "the previous bundle can be started");
    case HX_BACK_FIRST: return hx_find(out, HX_WARN, "first", "this is the first bundle");
    case HX_BACK_NO: return hx_find(out, HX_FAIL, "no", "the previous bundle cannot be started");
    case HX_BACK_NOT_RECORDED: break;
    }
    return hx_find(out, HX_SKIP, "", "no installation is recorded");
}
