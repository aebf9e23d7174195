/* Modules into the kernel. */
#include "bundle/load.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "bundle/modinfo.h"
#include "bundle/tree.h"
#include "hw/pci.h"

#define NVIDIA_MAJOR 195
#define CONTROL_NODE 255

int hx_load_plan_make(const struct hx_store *s, enum hx_slot slot, struct hx_load_plan *out,
                      struct hx_error *err)
{
    static const char *const wanted[HX_LOAD_MODULES] = {"nvidia", "nvidia-uvm"};
    struct hx_slot_facts f;
    struct hx_manifest *m = NULL;
    struct hx_load_plan plan = {.n = 0};
    int r = hx_slot_check(s, slot, &f, err);
    if (r == 0)
        r = hx_slot_manifest(s, slot, &m, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < HX_LOAD_MODULES; i++) {
        if (!hx_strings_has(&m->module_names, wanted[i]))
            continue;
        snprintf(plan.module[plan.n].name, sizeof(plan.module[0].name), "%s", wanted[i]);
        snprintf(plan.module[plan.n].path, sizeof(plan.module[0].path), "%s/%s.ko", f.module_dir,
                 wanted[i]);
        for (size_t k = 0; k < m->modprobe_options.n; k++)
            if (strcmp(m->modprobe_options.item[k].key, wanted[i]) == 0)
                snprintf(plan.module[plan.n].options, sizeof(plan.module[0].options), "%s",
                         m->modprobe_options.item[k].value);
        plan.n++;
    }
    for (size_t i = 0; i < m->files.n; i++)
        plan.firmware = plan.firmware || strcmp(m->files.item[i].role, "gpu-firmware") == 0;
    hx_manifest_free(m);
    if (plan.n == 0)
        return hx_fail(err, -ENOENT, "slot %c has no module nvidia", hx_slot_letter(slot));
    *out = plan;
    return 0;
}

/* The module is there already: is it the one of the slot? */
static int judge_loaded(const struct hx_store *s, int fd, const char *name, struct hx_error *err)
{
    struct hx_modinfo info;
    char path[128], running[64];
    int r = hx_modinfo_read(fd, name, &info, err);
    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "/sys/module/%s/srcversion", name);
    for (char *p = path + 12; *p; p++)
        if (*p == '-')
            *p = '_';
    hx_root_text(s->root, path, running, sizeof(running));
    if (strcmp(running, info.srcversion) == 0)
        return 0;
    return hx_fail(err, -EEXIST,
                   "another module %s is loaded (srcversion %s, the slot has %s); remove it from "
                   "the system and power off",
                   name, running[0] ? running : "unknown", info.srcversion);
}

static int load_one(const struct hx_store *s, int dir, const char *name, const char *path,
                    const char *options, struct hx_error *err)
{
    int fd, r = hx_tree_open(dir, path, &fd, err);
    if (r < 0)
        return r;
    if (syscall(SYS_finit_module, fd, options, 0) < 0) {
        int e = errno;
        if (e == EEXIST)
            r = judge_loaded(s, fd, name, err);
        else if (e == EKEYREJECTED || e == ENOKEY || e == EPERM)
            r = hx_fail_errno(err, e,
                              "%s: the kernel refuses it (Secure Boot and a module without a "
                              "trusted signature, or loading is locked)",
                              name);
        else
            r = hx_fail_errno(err, e, "%s: cannot load", name);
    }
    close(fd);
    return r;
}

static int make_node(const char *path, unsigned major_number, unsigned minor_number,
                     struct hx_error *err)
{
    struct stat st;
    dev_t dev = makedev(major_number, minor_number);
    if (stat(path, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == dev)
        return 0;
    (void)unlink(path);
    if (mknod(path, S_IFCHR | 0666, dev) < 0 || chmod(path, 0666) < 0)
        return hx_fail_errno(err, errno, "%s: cannot make the device node", path);
    return 0;
}

/* Major number of a driver in /proc/devices, 0 = none. */
static unsigned major_of(const struct hx_root *root, const char *name)
{
    char *text, *save = NULL;
    size_t len;
    unsigned found = 0;
    if (hx_root_read(root, "/proc/devices", 1 << 16, &text, &len, NULL) < 0)
        return 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char driver[64];
        unsigned n;
        if (sscanf(line, "%u %63s", &n, driver) == 2 && strcmp(driver, name) == 0)
            found = n;
    }
    free(text);
    return found;
}

static int make_nodes(const struct hx_store *s, struct hx_error *err)
{
    struct hx_pci_scan *scan = malloc(sizeof(*scan));
    unsigned uvm = major_of(s->root, "nvidia-uvm");
    int r = scan ? hx_pci_scan(s->root, scan, err) : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = make_node("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_NODE, err);
    for (int i = 0; r == 0 && i < scan->n; i++) {
        char path[32];
        snprintf(path, sizeof(path), "/dev/nvidia%d", i);
        r = make_node(path, NVIDIA_MAJOR, (unsigned)i, err);
    }
    if (r == 0 && uvm)
        r = make_node("/dev/nvidia-uvm", uvm, 0, err);
    if (r == 0 && uvm)
        r = make_node("/dev/nvidia-uvm-tools", uvm, 1, err);
    free(scan);
    return r;
}

/* The kernel looks for firmware below the slot too. */
static int point_firmware(const struct hx_store *s, enum hx_slot slot, struct hx_error *err)
{
    char path[HX_ROOT_PATH + 32];
    const char *parameter = "/sys/module/firmware_class/parameters/path";
    int n = snprintf(path, sizeof(path), "%s/%s/firmware", s->path, hx_slot_name(slot));
    int fd = open(parameter, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", parameter);
    int r = 0;
    if (write(fd, path, (size_t)n) != n)
        r = hx_fail_errno(err, errno, "%s: cannot set it to %s", parameter, path);
    close(fd);
    return r;
}

int hx_load_run(const struct hx_store *s, enum hx_slot slot, const struct hx_load_plan *plan,
                struct hx_error *err)
{
    int dir, r = hx_slot_open(s, slot, &dir, err);
    if (r < 0)
        return r;
    if (plan->firmware)
        r = point_firmware(s, slot, err);
    for (int i = 0; r == 0 && i < plan->n; i++)
        r = load_one(s, dir, plan->module[i].name, plan->module[i].path, plan->module[i].options,
                     err);
    close(dir);
    return r < 0 ? r : make_nodes(s, err);
}
