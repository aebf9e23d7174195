/* What the machine around the cards is like. */
#include "hw/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "hw/variant.h"

#define SECURE_BOOT "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

/* The variable has four bytes of attributes and then 0 or 1. Without EFI there is no Secure Boot;
 * with EFI but without a readable variable a tool is asked. */
static int read_secure_boot(const struct hx_root *root, const struct hx_commands *commands,
                            struct hx_platform_facts *out, struct hx_error *err)
{
    char *data;
    size_t len;
    if (hx_root_read(root, SECURE_BOOT, 64, &data, &len, NULL) == 0) {
        out->has_efi_state = len == 5 && (uint8_t)data[4] <= 1;
        out->secure_boot = !out->has_efi_state ? HX_NOT_KNOWN : data[4] ? HX_YES : HX_NO;
        free(data);
    } else {
        out->secure_boot = hx_root_exists(root, "/sys/firmware/efi") ? HX_NOT_KNOWN : HX_NO;
        out->has_efi_state = out->secure_boot == HX_NO;
    }
    if (out->secure_boot != HX_NOT_KNOWN)
        return 0;
    static const char *const argv[] = {"mokutil", "--sb-state", NULL};
    struct hx_command_result result;
    int r = hx_command_run(commands, argv, hx_hw_limits.tool_timeout_ms, &result, err);
    if (r < 0)
        return r;
    if (result.rc == 0 && strstr(result.out, "SecureBoot enabled"))
        out->secure_boot = HX_YES;
    else if (result.rc == 0 && strstr(result.out, "SecureBoot disabled"))
        out->secure_boot = HX_NO;
    out->has_efi_state = out->secure_boot != HX_NOT_KNOWN;
    hx_command_result_done(&result);
    return 0;
}

/* A word of /proc/cpuinfo's first flags line. */
static bool cpu_flag(const struct hx_root *root, const char *flag)
{
    char *text;
    size_t len, n = strlen(flag);
    bool found = false;
    if (hx_root_read(root, "/proc/cpuinfo", 4 << 20, &text, &len, NULL) < 0)
        return false;
    const char *s = strstr(text, "\nflags");
    s = s ? strchr(s, ':') : NULL;
    while (s && *s && *s != '\n') {
        s++;
        size_t w = strcspn(s, " \n");
        if (w == n && strncmp(s, flag, n) == 0)
            found = true;
        s += w;
    }
    free(text);
    return found;
}

/* An IOMMU that is off has no entry in /sys/class/iommu. */
static void read_iommu(const struct hx_root *root, const struct hx_pci_scan *scan,
                       struct hx_platform_facts *out)
{
    struct hx_names names;
    out->iommu = HX_IOMMU_NONE;
    if (hx_root_list(root, "/sys/class/iommu", &names, NULL) < 0)
        return;
    bool any = names.n > 0;
    hx_names_done(&names);
    if (!any)
        return;
    /* Groups that could not be read count by the kernel's words. */
    bool identity = strstr(out->cmdline, "iommu=pt") || strstr(out->cmdline, "iommu.passthrough=1");
    bool told = false, translated = false;
    for (int i = 0; i < scan->n; i++) {
        if (!scan->gpu[i].iommu[0])
            continue;
        told = true;
        translated |= strncmp(scan->gpu[i].iommu, "DMA", 3) == 0;
    }
    if (!told) {
        char text[32];
        struct hx_names groups;
        if (hx_root_list(root, "/sys/kernel/iommu_groups", &groups, NULL) == 0) {
            for (size_t i = 0; i < groups.n; i++) {
                char path[HX_ROOT_PATH];
                snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%.200s/type",
                         groups.name[i]);
                if (hx_root_text(root, path, text, sizeof(text)) < 0)
                    continue;
                told = true;
                translated |= strncmp(text, "DMA", 3) == 0;
            }
            hx_names_done(&groups);
        }
    }
    if (!told)
        translated = !identity;
    out->iommu = translated ? HX_IOMMU_TRANSLATED : HX_IOMMU_IDENTITY;
}

static int64_t meminfo_kib(const struct hx_root *root, const char *key)
{
    char *text, value[64];
    size_t len;
    uint64_t v;
    if (hx_root_read(root, "/proc/meminfo", 65536, &text, &len, NULL) < 0)
        return -1;
    bool found = hx_driver_param(text, len, key, value, sizeof(value));
    free(text);
    if (!found || !hx_parse_u64(value, strspn(value, "0123456789"), INT64_MAX, &v))
        return -1;
    return (int64_t)v;
}

int hx_platform_read(const struct hx_root *root, const struct hx_commands *commands,
                     const struct hx_pci_scan *scan, struct hx_platform_facts *out,
                     struct hx_error *err)
{
    memset(out, 0, sizeof(*out));
    char text[64];
    hx_root_text(root, "/proc/cmdline", out->cmdline, sizeof(out->cmdline));
    hx_root_text(root, "/proc/sys/kernel/random/boot_id", out->boot_id, sizeof(out->boot_id));
    int r = read_secure_boot(root, commands, out, err);
    if (r < 0)
        return r;
    if (hx_root_text(root, "/sys/kernel/security/lockdown", text, sizeof(text)) == 0)
        out->lockdown = strstr(text, "[integrity]") || strstr(text, "[confidentiality]");
    out->sig_enforce = HX_NOT_KNOWN;
    if (hx_root_text(root, "/sys/module/module/parameters/sig_enforce", text, sizeof(text)) == 0)
        out->sig_enforce = text[0] == 'Y' ? HX_YES : HX_NO;
    read_iommu(root, scan, out);
    out->hypervisor = cpu_flag(root, "hypervisor");
    hx_root_text(root, "/sys/class/dmi/id/sys_vendor", out->dmi_vendor, sizeof(out->dmi_vendor));
    out->ram_kib = meminfo_kib(root, "MemTotal");
    out->shm_bytes = -1;
    out->memlock_bytes = -2;
    if (!hx_root_is_fake(root)) {
        struct statvfs fs;
        struct rlimit limit;
        if (statvfs("/dev/shm", &fs) == 0)
            out->shm_bytes = (int64_t)fs.f_blocks * (int64_t)fs.f_frsize;
        if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
            out->memlock_bytes = limit.rlim_cur == RLIM_INFINITY ? -1 : (int64_t)limit.rlim_cur;
    }
    return 0;
}
