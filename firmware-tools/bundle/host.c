/* The machine as bundles see it. */
#include "bundle/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include "hw/pci.h"

int hx_host_query_init(struct hx_host_query *q, struct hx_error *err)
{
    char path[256];
    if (q->kernel)
        snprintf(q->release, sizeof(q->release), "%s", q->kernel);
    else
        hx_root_text(q->root, "/proc/sys/kernel/osrelease", q->release, sizeof(q->release));
    if (!q->release[0] || strchr(q->release, '/') || q->release[0] == '.')
        return hx_fail(err, -EINVAL, "kernel release: found '%s'; name one with --kernel",
                       q->release);
    q->headers[0] = '\0';
    for (size_t i = 0; i < 2 && !q->headers[0]; i++) {
        char makefile[300], symvers[300];
        snprintf(path, sizeof(path), i == 0 ? "/lib/modules/%s/build" : "/usr/src/linux-headers-%s",
                 q->release);
        snprintf(makefile, sizeof(makefile), "%s/Makefile", path);
        snprintf(symvers, sizeof(symvers), "%s/Module.symvers", path);
        if (hx_root_exists(q->kit_root, makefile) && hx_root_exists(q->kit_root, symvers))
            hx_root_resolve(q->kit_root, path, q->headers);
    }
    return 0;
}

bool hx_library_version(const char *name, char *out, size_t size)
{
    static const char *const stems[] = {"libcuda.so.", "libnvidia-ml.so."};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(stems[i]);
        const char *v = name + n;
        if (strncmp(name, stems[i], n) == 0 && strchr(v, '.') &&
            strspn(v, "0123456789.") == strlen(v) && strlen(v) < size) {
            snprintf(out, size, "%s", v);
            return true;
        }
    }
    return false;
}

static bool find_library(const struct hx_root *root, const char *folder, char *out, size_t size)
{
    struct hx_names names;
    bool found = false;
    if (hx_root_list(root, folder, &names, NULL) < 0)
        return false;
    for (size_t i = 0; i < names.n && !found; i++)
        found = hx_library_version(names.name[i], out, size);
    hx_names_done(&names);
    return found;
}

static void read_userspace(const struct hx_host_query *q, char *out, size_t size)
{
    static const char *const folders[] = {"/usr/lib/x86_64-linux-gnu",
                                          "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib64",
                                          "/usr/lib", "/usr/local/lib"};
    enum hx_slot slot = q->store ? q->store->j.active : HX_SLOT_NONE;
    struct hx_manifest *m = NULL;
    out[0] = '\0';
    if (slot != HX_SLOT_NONE && hx_slot_manifest(q->store, slot, &m, NULL) == 0 &&
        hx_manifest_has_userspace(m))
        snprintf(out, size, "%s", m->driver_version);
    hx_manifest_free(m);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && !out[0]; i++)
        find_library(q->root, folders[i], out, size);
}

static bool has_tool(const struct hx_root *kit, const char *name)
{
    static const char *const folders[] = {"/usr/bin", "/bin", "/usr/sbin", "/sbin"};
    for (size_t i = 0; i < 4; i++) {
        char path[128], real[HX_ROOT_PATH];
        snprintf(path, sizeof(path), "%s/%s", folders[i], name);
        if (hx_root_resolve(kit, path, real) == 0)
            return true;
    }
    return false;
}

/* Of the folder, or of the nearest one above it that exists. */
static int64_t free_mib(const char *folder)
{
    char path[HX_ROOT_PATH];
    struct statvfs st;
    snprintf(path, sizeof(path), "%s", folder);
    for (;;) {
        if (statvfs(path[0] ? path : "/", &st) == 0)
            return (int64_t)((uint64_t)st.f_bavail * st.f_frsize >> 20);
        char *slash = strrchr(path, '/');
        if (!slash)
            return 0;
        *slash = '\0';
    }
}

static enum hx_tristate secure_boot(const struct hx_platform_facts *p)
{
    if (p->secure_boot == HX_YES || p->lockdown || p->sig_enforce == HX_YES)
        return HX_YES;
    return p->secure_boot;
}

int hx_host_read(void *ctx, const struct hx_manifest *m, struct hx_bundle_host *h,
                 struct hx_error *err)
{
    struct hx_host_query *q = ctx;
    struct hx_platform_facts platform;
    struct utsname uts;
    struct hx_pci_scan *scan = malloc(sizeof(*scan));
    if (!scan)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_pci_scan(q->root, scan, err);
    if (r == 0)
        r = hx_platform_read(q->root, q->commands, scan, &platform, err);
    for (int i = 0; r == 0 && i < scan->n && h->n_device_ids < HX_BUNDLE_IDS; i++)
        snprintf(h->device_id[h->n_device_ids++], sizeof(h->device_id[0]), "%04x",
                 scan->gpu[i].device);
    free(scan);
    if (r < 0)
        return r;
    snprintf(h->kernel, sizeof(h->kernel), "%s", q->release);
    snprintf(h->arch, sizeof(h->arch), "%s", uname(&uts) == 0 ? uts.machine : "");
    read_userspace(q, h->userspace_driver, sizeof(h->userspace_driver));
    h->headers = q->headers[0] != '\0';
    for (size_t i = 0; i < m->needs.n && !h->missing_tool[0]; i++) {
        const char *need = m->needs.item[i];
        if (strcmp(need, "linux-headers") != 0 && !has_tool(q->kit_root, need))
            snprintf(h->missing_tool, sizeof(h->missing_tool), "%s", need);
    }
    h->secure_boot = secure_boot(&platform);
    h->free_mib = free_mib(q->store->path);
    h->accepted = q->accepted;
    return 0;
}
