/* What the loaded driver says about itself in /proc and /sys. */
#include "hw/driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROC "/proc/driver/nvidia"

#define MODULE_TREE_DEPTH 6
#define MODULE_TREE_NAMES 200000

bool hx_driver_version_parse(const char *text, size_t len, struct hx_driver_version *out)
{
    memset(out, 0, sizeof(*out));
    static const char head[] = "NVRM version:";
    char line[512];
    size_t n = 0;
    while (n < len && text[n] != '\n' && text[n] && n < sizeof(line) - 1) {
        line[n] = text[n];
        n++;
    }
    line[n] = '\0';
    if (strncmp(line, head, sizeof(head) - 1) != 0)
        return false;
    out->open_module = strstr(line, "Open Kernel Module") != NULL;
    /* The first word of the form 610.43.03 behind the text. */
    for (const char *s = line; *s; s++) {
        if (!isdigit((unsigned char)*s) || (s > line && s[-1] != ' '))
            continue;
        size_t w = strspn(s, "0123456789.");
        if ((s[w] == ' ' || !s[w]) && memchr(s, '.', w) && w < sizeof(out->version)) {
            memcpy(out->version, s, w);
            break;
        }
    }
    const char *open = strchr(line, '('), *close = open ? strchr(open, ')') : NULL;
    if (close)
        snprintf(out->builder, sizeof(out->builder), "%.*s", (int)(close - open - 1), open + 1);
    return out->version[0] != '\0';
}

bool hx_driver_param(const char *text, size_t len, const char *key, char *out, size_t size)
{
    size_t klen = strlen(key);
    out[0] = '\0';
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        const char *line = text + at;
        at += n + 1;
        if (n <= klen || strncmp(line, key, klen) != 0 || line[klen] != ':')
            continue;
        const char *v = line + klen + 1, *stop = line + n;
        while (v < stop && isspace((unsigned char)*v))
            v++;
        while (stop > v && isspace((unsigned char)stop[-1]))
            stop--;
        if (stop - v >= 2 && *v == '"' && stop[-1] == '"') {
            v++;
            stop--;
        }
        size_t take = (size_t)(stop - v) < size - 1 ? (size_t)(stop - v) : size - 1;
        memcpy(out, v, take);
        out[take] = '\0';
        return true;
    }
    return false;
}

static bool has_word(const char *list, const char *word, size_t len)
{
    for (const char *s = list; *s;) {
        size_t n = strcspn(s, ";");
        if (n == len && strncmp(s, word, len) == 0)
            return true;
        s += n;
        s += *s == ';';
    }
    return false;
}

bool hx_registry_has(const char *have, const char *want, char *missing, size_t size)
{
    size_t used = 0;
    bool all = true;
    missing[0] = '\0';
    for (const char *s = want; *s;) {
        size_t n = strcspn(s, ";");
        if (n && !has_word(have, s, n)) {
            all = false;
            if (used + n + 2 < size) {
                int w = snprintf(missing + used, size - used, "%s%.*s", used ? ";" : "", (int)n, s);
                used += w > 0 ? (size_t)w : 0;
            }
        }
        s += n;
        s += *s == ';';
    }
    return all;
}

static void read_params(const struct hx_root *root, struct hx_driver_facts *out)
{
    char *text;
    size_t len;
    out->gpu_firmware = -1;
    if (hx_root_read(root, PROC "/params", 65536, &text, &len, NULL) < 0)
        return;
    out->has_params = true;
    char value[32];
    uint64_t v;
    if (hx_driver_param(text, len, "EnableGpuFirmware", value, sizeof(value)) &&
        hx_parse_u64(value, strlen(value), 1 << 20, &v))
        out->gpu_firmware = (int)v;
    (void)hx_driver_param(text, len, "RegistryDwords", out->registry, sizeof(out->registry));
    free(text);
}

static int read_gpus(const struct hx_root *root, struct hx_driver_facts *out, struct hx_error *err)
{
    struct hx_names names;
    int r = hx_root_list(root, PROC "/gpus", &names, err);
    if (r == -ENOENT || r == -ENOTDIR)
        return 0;
    if (r < 0)
        return r;
    for (size_t i = 0; i < names.n && out->n_gpus < HX_PCI_GPUS; i++) {
        char path[HX_ROOT_PATH], *text;
        size_t len;
        if (!hx_pci_address_parse(names.name[i], &out->gpu[out->n_gpus].address))
            continue;
        snprintf(path, sizeof(path), PROC "/gpus/%s/information", names.name[i]);
        if (hx_root_read(root, path, 65536, &text, &len, NULL) == 0) {
            (void)hx_driver_param(text, len, "GPU Firmware", out->gpu[out->n_gpus].firmware,
                                  sizeof(out->gpu[0].firmware));
            free(text);
        }
        out->n_gpus++;
    }
    hx_names_done(&names);
    return 0;
}

static void read_competing(const struct hx_root *root, struct hx_driver_facts *out)
{
    static const char *const rivals[] = {"nouveau", "nova_core", "nova_drm", "nova"};
    char *text;
    size_t len;
    if (hx_root_read(root, "/proc/modules", 1 << 20, &text, &len, NULL) < 0)
        return;
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, " \n");
        for (size_t i = 0; i < sizeof(rivals) / sizeof(rivals[0]); i++)
            if (n == strlen(rivals[i]) && strncmp(s, rivals[i], n) == 0)
                snprintf(out->competing, sizeof(out->competing), "%s", rivals[i]);
        s += strcspn(s, "\n");
        s += *s == '\n';
    }
    free(text);
}

/* nvidia.ko, nvidia.ko.zst, ... anywhere below the folder of one kernel. Links of the build tree
 * are not followed. */
static int find_copies(const struct hx_root *root, const char *dir, int depth, int *budget,
                       struct hx_driver_facts *out, struct hx_error *err)
{
    struct hx_names names;
    int r = hx_root_list(root, dir, &names, err);
    if (r == -ENOENT || r == -ENOTDIR || r == -EACCES)
        return 0;
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < names.n && (*budget)-- > 0; i++) {
        const char *name = names.name[i];
        char path[HX_ROOT_PATH];
        if (!strcmp(name, "build") || !strcmp(name, "source") ||
            snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
            continue;
        if (strncmp(name, "nvidia.ko", 9) == 0) {
            if (out->n_copies < HX_DRIVER_COPIES)
                snprintf(out->copy[out->n_copies++], sizeof(out->copy[0]), "%s", path);
        } else if (depth < MODULE_TREE_DEPTH && hx_root_is_folder(root, path)) {
            r = find_copies(root, path, depth + 1, budget, out, err);
        }
    }
    hx_names_done(&names);
    return r;
}

int hx_driver_read(const struct hx_root *root, struct hx_driver_facts *out, struct hx_error *err)
{
    memset(out, 0, sizeof(*out));
    char *text;
    size_t len;
    if (hx_root_read(root, PROC "/version", 65536, &text, &len, NULL) == 0) {
        out->loaded = true;
        (void)hx_driver_version_parse(text, len, &out->proc);
        free(text);
    }
    hx_root_text(root, "/sys/module/nvidia/version", out->module_version,
                 sizeof(out->module_version));
    hx_root_text(root, "/sys/module/nvidia/srcversion", out->srcversion, sizeof(out->srcversion));
    read_params(root, out);
    int r = read_gpus(root, out, err);
    if (r < 0)
        return hx_wrap(err, r, "reading the driver's card list");
    read_competing(root, out);
    hx_root_text(root, "/proc/sys/kernel/osrelease", out->kernel, sizeof(out->kernel));
    if (out->kernel[0] && !strchr(out->kernel, '/')) {
        char dir[HX_ROOT_PATH];
        int budget = MODULE_TREE_NAMES;
        snprintf(dir, sizeof(dir), "/lib/modules/%s", out->kernel);
        r = find_copies(root, dir, 0, &budget, out, err);
        if (r < 0)
            return hx_wrap(err, r, "looking for kernel modules");
    }
    return 0;
}
