/* NVIDIA display functions in sysfs and the bridges above them. */
#include "hw/pci.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES "/sys/bus/pci/devices"

static int number_of(const struct hx_root *root, const char *dir, const char *file, int64_t max,
                     int64_t *out)
{
    char path[HX_ROOT_PATH];
    int64_t v;
    if (snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    int r = hx_root_number(root, path, &v);
    if (r < 0)
        return r;
    if (v < -1 || v > max)
        return -ERANGE;
    *out = v;
    return 0;
}

static int text_of(const struct hx_root *root, const char *dir, const char *file, char *out,
                   size_t size)
{
    char path[HX_ROOT_PATH];
    out[0] = '\0';
    if (snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    return hx_root_text(root, path, out, size);
}

static int config_of(const struct hx_root *root, const char *dir, struct hx_pci_config *out)
{
    char path[HX_ROOT_PATH], *data;
    size_t len;
    if (snprintf(path, sizeof(path), "%s/config", dir) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    int r = hx_root_read(root, path, HX_PCI_CONFIG_MAX, &data, &len, NULL);
    if (r < 0)
        return r;
    hx_pci_config_decode((const uint8_t *)data, len, out);
    free(data);
    return 0;
}

static void link_of(const struct hx_root *root, const char *dir, const char *which,
                    struct hx_pci_link *out)
{
    char name[32], text[64];
    int64_t width;
    snprintf(name, sizeof(name), "%s_link_speed", which);
    if (text_of(root, dir, name, text, sizeof(text)) == 0)
        out->gen = hx_pci_gen_of_speed(text);
    snprintf(name, sizeof(name), "%s_link_width", which);
    if (number_of(root, dir, name, 32, &width) == 0 && width > 0)
        out->width = (int)width;
}

/* The last line of an aer_dev_* file is "TOTAL_ERR_x n"; older kernels have only the parts. */
static bool aer_total(const char *text, uint64_t *out)
{
    uint64_t sum = 0, total = 0;
    bool any = false, has_total = false;
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, "\n");
        const char *space = memchr(s, ' ', n);
        uint64_t v;
        if (space && hx_parse_u64(space + 1, (size_t)(s + n - space - 1), INT64_MAX, &v)) {
            any = true;
            if (!strncmp(s, "TOTAL", 5)) {
                has_total = true;
                total = v;
            } else {
                sum = sum + v < sum ? UINT64_MAX : sum + v;
            }
        }
        s += n;
        s += *s == '\n';
    }
    *out = has_total ? total : sum;
    return any;
}

int hx_pci_read_aer(const struct hx_root *root, const char *dir, struct hx_pci_aer *out)
{
    static const char *const names[3] = {"aer_dev_correctable", "aer_dev_nonfatal",
                                         "aer_dev_fatal"};
    uint64_t v[3] = {0};
    *out = (struct hx_pci_aer){0};
    for (int i = 0; i < 3; i++) {
        char text[2048];
        int r = text_of(root, dir, names[i], text, sizeof(text));
        if (r < 0)
            return r;
        if (!aer_total(text, &v[i]))
            return -EINVAL;
    }
    *out = (struct hx_pci_aer){true, v[0], v[1], v[2]};
    return 0;
}

/* Every component of the resolved path that is an address, from the card upwards. */
static void read_hops(const struct hx_root *root, struct hx_pci_gpu *gpu)
{
    char dir[sizeof(gpu->path)];
    snprintf(dir, sizeof(dir), "%s", gpu->path);
    for (char *slash; gpu->n_hops < HX_PCI_HOPS && (slash = strrchr(dir, '/')) && slash != dir;) {
        *slash = '\0';
        const char *last = strrchr(dir, '/');
        struct hx_pci_hop hop = {0};
        if (!last || !hx_pci_address_parse(last + 1, &hop.address))
            return;
        link_of(root, dir, "current", &hop.now);
        link_of(root, dir, "max", &hop.max);
        struct hx_pci_config config;
        if (config_of(root, dir, &config) == 0 && config.alive) {
            hop.acs_known = true;
            hop.acs_ctl = config.has_acs ? config.acs_ctl : 0;
            if (!hop.now.gen && config.has_express)
                hop.now = config.now;
        }
        gpu->hop[gpu->n_hops++] = hop;
    }
}

static void base_name(const struct hx_root *root, const char *dir, const char *link, char *out,
                      size_t size)
{
    char path[HX_ROOT_PATH], target[HX_ROOT_PATH];
    out[0] = '\0';
    if (snprintf(path, sizeof(path), "%s/%s", dir, link) >= (int)sizeof(path) ||
        hx_root_resolve(root, path, target) < 0)
        return;
    const char *slash = strrchr(target, '/');
    snprintf(out, size, "%s", slash ? slash + 1 : target);
}

/* The group's type. A made-up root may have the groups' device links only. */
static void read_iommu(const struct hx_root *root, struct hx_pci_gpu *gpu)
{
    char address[20], path[HX_ROOT_PATH];
    hx_pci_address_text(&gpu->address, address);
    char group[32];
    base_name(root, gpu->path, "iommu_group", group, sizeof(group));
    if (group[0]) {
        snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%s/type", group);
        hx_root_text(root, path, gpu->iommu, sizeof(gpu->iommu));
        return;
    }
    struct hx_names groups;
    if (hx_root_list(root, "/sys/kernel/iommu_groups", &groups, NULL) < 0)
        return;
    for (size_t i = 0; i < groups.n; i++) {
        snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%.200s/devices/%s", groups.name[i],
                 address);
        if (!hx_root_exists(root, path))
            continue;
        snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%.200s/type", groups.name[i]);
        hx_root_text(root, path, gpu->iommu, sizeof(gpu->iommu));
        break;
    }
    hx_names_done(&groups);
}

/* The board's name of a slot: /sys/bus/pci/slots/NAME/address holds "0000:01:00". */
static void read_slots(const struct hx_root *root, struct hx_pci_scan *scan)
{
    struct hx_names slots;
    if (hx_root_list(root, "/sys/bus/pci/slots", &slots, NULL) < 0)
        return;
    for (size_t i = 0; i < slots.n; i++) {
        char path[HX_ROOT_PATH], text[32];
        snprintf(path, sizeof(path), "/sys/bus/pci/slots/%.200s/address", slots.name[i]);
        if (hx_root_text(root, path, text, sizeof(text)) < 0)
            continue;
        for (int g = 0; g < scan->n; g++) {
            char address[20];
            hx_pci_address_text(&scan->gpu[g].address, address);
            size_t n = strlen(text);
            if (n >= 7 && !strncmp(address, text, n) && address[n] == '.')
                snprintf(scan->gpu[g].slot, sizeof(scan->gpu[g].slot), "%s", slots.name[i]);
        }
    }
    hx_names_done(&slots);
}

static void read_gpu(const struct hx_root *root, struct hx_pci_gpu *gpu)
{
    int64_t v;
    if (number_of(root, gpu->path, "device", 0xffff, &v) == 0)
        gpu->device = (uint16_t)v;
    if (number_of(root, gpu->path, "subsystem_vendor", 0xffff, &v) == 0)
        gpu->subsystem_vendor = (uint16_t)v;
    if (number_of(root, gpu->path, "subsystem_device", 0xffff, &v) == 0)
        gpu->subsystem_device = (uint16_t)v;
    if (number_of(root, gpu->path, "revision", 0xff, &v) == 0)
        gpu->revision = (uint8_t)v;
    gpu->numa_node = -1;
    if (number_of(root, gpu->path, "numa_node", 4096, &v) == 0)
        gpu->numa_node = (int)v;
    link_of(root, gpu->path, "current", &gpu->now);
    link_of(root, gpu->path, "max", &gpu->max);
    struct hx_pci_config config;
    gpu->alive = true;
    if (config_of(root, gpu->path, &config) == 0) {
        gpu->config_read = true;
        gpu->alive = config.alive;
        if ((!gpu->now.gen || !gpu->now.width) && config.has_express)
            gpu->now = config.now;
    }
    char path[HX_ROOT_PATH], *text;
    size_t len;
    snprintf(path, sizeof(path), "%s/resource", gpu->path);
    if (hx_root_read(root, path, 65536, &text, &len, NULL) == 0) {
        gpu->bar1_known = hx_pci_bar1_of_resource(text, len, &gpu->bar1) == 0;
        free(text);
    }
    (void)hx_pci_read_aer(root, gpu->path, &gpu->aer);
    base_name(root, gpu->path, "driver", gpu->driver, sizeof(gpu->driver));
    read_iommu(root, gpu);
    read_hops(root, gpu);
}

int hx_pci_scan(const struct hx_root *root, struct hx_pci_scan *out, struct hx_error *err)
{
    memset(out, 0, sizeof(*out));
    struct hx_names names;
    int r = hx_root_list(root, DEVICES, &names, err);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return hx_wrap(err, r, "listing PCI devices");
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        char path[HX_ROOT_PATH], dir[HX_ROOT_PATH];
        struct hx_pci_address address;
        int64_t vendor = 0, class_code = 0;
        if (!hx_pci_address_parse(names.name[i], &address))
            continue;
        snprintf(path, sizeof(path), DEVICES "/%s", names.name[i]);
        if (hx_root_resolve(root, path, dir) < 0 ||
            number_of(root, dir, "vendor", 0xffff, &vendor) < 0 || vendor != HX_PCI_VENDOR_NVIDIA ||
            number_of(root, dir, "class", 0xffffff, &class_code) < 0 || class_code >> 16 != 0x03)
            continue;
        if (out->n == HX_PCI_GPUS) {
            r = hx_fail(err, -E2BIG, "more than %d NVIDIA display functions on the PCI bus",
                        HX_PCI_GPUS);
            break;
        }
        struct hx_pci_gpu *gpu = &out->gpu[out->n];
        if (snprintf(gpu->path, sizeof(gpu->path), "%s", dir) >= (int)sizeof(gpu->path))
            continue;
        gpu->address = address;
        gpu->class_code = (uint32_t)class_code;
        read_gpu(root, gpu);
        out->n++;
    }
    hx_names_done(&names);
    if (r == 0)
        read_slots(root, out);
    return r;
}

void hx_pci_read_link(const struct hx_root *root, const struct hx_pci_gpu *gpu,
                      struct hx_pci_link *out)
{
    *out = (struct hx_pci_link){0};
    link_of(root, gpu->path, "current", out);
}
