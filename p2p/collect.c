/* Collects the facts of the read-only part. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facts.h"
#include "hw/smi.h"

static void find_cards(struct hx_facts *f)
{
    f->n_cards = f->n_foreign = 0;
    for (int i = 0; i < f->scan.n; i++) {
        const struct hx_variant *v = hx_variant_of_device(f->scan.gpu[i].device);
        if (!v) {
            f->n_foreign++;
        } else if (f->n_cards < HX_CARDS) {
            struct hx_card *c = &f->card[f->n_cards++];
            *c = (struct hx_card){.pci = &f->scan.gpu[i],
                                  .variant = v,
                                  .nvml = -1,
                                  .measured = -1,
                                  .link = f->scan.gpu[i].now,
                                  .aer = f->scan.gpu[i].aer,
                                  .replays_new = -1};
        }
    }
}

void hx_facts_pair(struct hx_facts *f)
{
    int next = 0;
    for (int i = 0; i < f->n_cards; i++) {
        struct hx_card *c = &f->card[i];
        c->nvml = c->measured = -1;
        for (int d = 0; d < f->nvml.n_devices; d++) {
            struct hx_pci_address a;
            if (hx_pci_address_parse(f->nvml.device[d].bus_id, &a) &&
                hx_pci_address_equal(&a, &c->pci->address))
                c->nvml = d;
        }
        /* The probe sees the cards that the driver sees, in bus order. */
        bool visible = f->nvml.n_devices ? c->nvml >= 0 : c->pci->alive;
        if (visible && f->measured && next < f->probe.n_devices)
            c->measured = next++;
    }
}

/* Words like "insmod /lib/modules/.../nvidia.ko " of modprobe -n -v: the last line counts. */
static void take_resolved(const char *text, char *out, size_t size)
{
    out[0] = '\0';
    for (const char *s = text; (s = strstr(s, "insmod ")); s++) {
        const char *path = s + 7;
        snprintf(out, size, "%.*s", (int)strcspn(path, " \n"), path);
    }
}

static int ask_modules(const struct hx_commands *commands, int timeout_ms, struct hx_facts *f,
                       struct hx_error *err)
{
    static const char *const resolve[] = {"modprobe", "-n", "-v", "nvidia", NULL};
    struct hx_command_result result;
    int r = hx_command_run(commands, resolve, timeout_ms, &result, err);
    if (r < 0)
        return r;
    f->resolve_known = result.rc == 0;
    if (f->resolve_known)
        take_resolved(result.out, f->resolved, sizeof(f->resolved));
    hx_command_result_done(&result);

    if (f->wanted.bundle.srcversion[0]) {
        f->bundle_module_known = true;
        snprintf(f->bundle_srcversion, sizeof(f->bundle_srcversion), "%s",
                 f->wanted.bundle.srcversion);
        return 0;
    }
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", f->wanted.bundle.module_dir, f->bundle_module);
    const char *const srcversion[] = {"modinfo", "-F", "srcversion", path, NULL};
    r = hx_command_run(commands, srcversion, timeout_ms, &result, err);
    if (r < 0)
        return r;
    f->bundle_module_known = result.rc == 0;
    if (f->bundle_module_known)
        snprintf(f->bundle_srcversion, sizeof(f->bundle_srcversion), "%.*s",
                 (int)strcspn(result.out, " \n"), result.out);
    hx_command_result_done(&result);
    return 0;
}

static int ask_matrix(const struct hx_commands *commands, int timeout_ms, const char *a,
                      const char *b, hx_smi_cells cell, struct hx_error *err)
{
    const char *const argv[] = {"nvidia-smi", "topo", a, b, NULL};
    struct hx_command_result result;
    int n = 0;
    int r = hx_command_run(commands, argv, timeout_ms, &result, err);
    if (r < 0)
        return r;
    if (result.rc != 0 || hx_smi_parse_matrix(result.out, result.out_len, &n, cell, NULL) < 0)
        n = 0;
    hx_command_result_done(&result);
    return n;
}

/* Without the management library the tool's text stands in for it. */
static int fall_back(const struct hx_commands *commands, int timeout_ms,
                     const struct hx_command_result *query, struct hx_facts *f,
                     struct hx_error *err)
{
    struct hx_nvml_snapshot *s = calloc(1, sizeof(*s));
    hx_smi_cells *cell = calloc(1, sizeof(*cell));
    int r = s && cell ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    /* A text that cannot be read leaves "no library". */
    if (r == 0 && hx_smi_parse_query(query->out, query->out_len, s, NULL) == 0) {
        static const struct {
            const char *a, *b;
        } ask[3] = {{"-p2p", "r"}, {"-p2p", "w"}, {"-m", NULL}};
        for (int k = 0; k < 3 && r >= 0; k++) {
            r = ask_matrix(commands, timeout_ms, ask[k].a, ask[k].b, *cell, err);
            for (int i = 0; i < r && i < s->n_devices; i++) {
                for (int j = 0; j < r && j < s->n_devices; j++) {
                    const char *word = (*cell)[i][j];
                    if (k == 0)
                        s->p2p_read[i][j] = hx_smi_p2p_of_word(word);
                    else if (k == 1)
                        s->p2p_write[i][j] = hx_smi_p2p_of_word(word);
                    else
                        s->topology[i][j] = hx_smi_topology_of_word(word);
                }
            }
        }
        if (r >= 0)
            f->nvml = *s;
    }
    free(s);
    free(cell);
    return r < 0 ? r : 0;
}

static int ask_smi(const struct hx_commands *commands, int timeout_ms, struct hx_facts *f,
                   struct hx_error *err)
{
    static const char *const query[] = {"nvidia-smi", "--query-gpu=" HX_SMI_FIELDS, "--format=csv",
                                        NULL};
    struct hx_command_result result;
    f->smi_rc = HX_COMMAND_MISSING;
    /* A driver that hangs gets no second helper. */
    if (f->nvml.state == HX_NVML_HUNG || (!f->driver.loaded && !f->scan.n))
        return 0;
    int r = hx_command_run(commands, query, timeout_ms, &result, err);
    if (r < 0)
        return r;
    f->smi_rc = result.rc;
    f->smi_mismatch = strstr(result.err_text, "Driver/library version mismatch") ||
                      strstr(result.out, "Driver/library version mismatch");
    if (f->nvml.state == HX_NVML_NO_LIBRARY && result.rc == 0)
        r = fall_back(commands, timeout_ms, &result, f, err);
    hx_command_result_done(&result);
    return r;
}

static void read_bundle_files(const struct hx_root *root, struct hx_facts *f)
{
    const char *dir = f->wanted.bundle.module_dir;
    char path[HX_ROOT_PATH], here[160];
    struct hx_names names;
    snprintf(f->bundle_module, sizeof(f->bundle_module), "nvidia.ko");
    if (!f->wanted.bundle.present || !dir[0])
        return;
    /* A folder below /lib/modules has to be the running kernel's. */
    snprintf(here, sizeof(here), "/lib/modules/%s/", f->driver.kernel);
    bool other_kernel = strncmp(dir, "/lib/modules/", 13) == 0 && f->driver.kernel[0] &&
                        strncmp(dir, here, strlen(here)) != 0;
    if (!other_kernel && hx_root_list(root, dir, &names, NULL) == 0) {
        for (size_t i = 0; i < names.n && !f->bundle_has_module; i++) {
            if (strncmp(names.name[i], "nvidia.ko", 9) != 0)
                continue;
            f->bundle_has_module = true;
            snprintf(f->bundle_module, sizeof(f->bundle_module), "%s", names.name[i]);
        }
        hx_names_done(&names);
    }
    snprintf(path, sizeof(path), "%s/safety_revision", dir);
    hx_root_text(root, path, f->safety_marker, sizeof(f->safety_marker));
}

/* A process in state D with /dev/nvidia* open waits inside the driver for ever. */
static bool find_stuck(const struct hx_root *root)
{
    struct hx_names pids;
    bool found = false;
    if (hx_root_list(root, "/proc", &pids, NULL) < 0)
        return false;
    for (size_t i = 0; i < pids.n && !found; i++) {
        char path[HX_ROOT_PATH], stat[512], target[HX_ROOT_PATH];
        if (!isdigit((unsigned char)pids.name[i][0]))
            continue;
        snprintf(path, sizeof(path), "/proc/%.20s/stat", pids.name[i]);
        hx_root_text(root, path, stat, sizeof(stat));
        const char *name_end = strrchr(stat, ')');
        if (!name_end || name_end[1] != ' ' || name_end[2] != 'D')
            continue;
        snprintf(path, sizeof(path), "/proc/%.20s/fd", pids.name[i]);
        struct hx_names fds;
        if (hx_root_list(root, path, &fds, NULL) < 0)
            continue;
        for (size_t k = 0; k < fds.n && !found; k++) {
            snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", pids.name[i], fds.name[k]);
            found =
                hx_root_resolve(root, path, target) == 0 && strncmp(target, "/dev/nvidia", 11) == 0;
        }
        hx_names_done(&fds);
    }
    hx_names_done(&pids);
    return found;
}

static int read_klog(const struct hx_collect_options *o, const struct hx_root *root,
                     struct hx_facts *f, struct hx_error *err)
{
    char *text;
    size_t len;
    f->has_klog = false;
    if (!o->kernel_log && hx_root_is_fake(root))
        return 0;
    int r = hx_klog_read(o->kernel_log, &text, &len, err);
    if (r < 0)
        return o->kernel_log || r == -ENOMEM ? r : 0;
    struct hx_pci_address cards[HX_CARDS];
    for (int i = 0; i < f->n_cards; i++)
        cards[i] = f->card[i].pci->address;
    r = hx_klog_scan(text, len, cards, f->n_cards, &f->klog, err);
    free(text);
    f->has_klog = r == 0;
    return r;
}

static int read_wanted(const struct hx_collect_options *o, struct hx_facts *f, struct hx_error *err)
{
    hx_wanted_defaults(&f->wanted);
    if (o->config)
        return hx_wanted_read(o->config, &f->wanted, err);
    int r = hx_wanted_conf(o->cards_conf, o->cards_conf_dir, &f->wanted, err);
    if (r == 0 && o->active) {
        r = hx_wanted_read(o->active, &f->wanted, err);
        r = r == -ENOENT ? 0 : r;
    }
    return r;
}

int hx_facts_collect(const struct hx_collect_options *o, struct hx_root *root, struct hx_facts *f,
                     struct hx_error *err)
{
    memset(f, 0, sizeof(*f));
    f->minutes = 1;
    const int timeout_ms =
        o->tool_timeout_ms > 0 ? o->tool_timeout_ms : hx_hw_limits.tool_timeout_ms;
    struct hx_commands *commands = NULL;
    int r = read_wanted(o, f, err);
    r = r < 0 ? r : hx_pci_scan(root, &f->scan, err);
    if (r == 0)
        find_cards(f);
    r = r < 0 ? r : hx_driver_read(root, &f->driver, err);
    if (r == 0)
        r = o->commands || hx_root_is_fake(root) ? hx_commands_table(o->commands, &commands, err)
                                                 : hx_commands_real(&commands, err);
    r = r < 0 ? r : hx_platform_read(root, commands, &f->scan, &f->platform, err);
    /* Without a card on the bus the library has nothing to say. */
    if (r == 0 && (f->scan.n || f->driver.loaded))
        r = hx_nvml_snapshot(o->nvml, timeout_ms, &f->nvml, err);
    else
        f->nvml.state = HX_NVML_NO_DRIVER;
    r = r < 0 ? r : ask_smi(commands, timeout_ms, f, err);
    if (r == 0)
        read_bundle_files(root, f);
    if (r == 0 && f->wanted.bundle.present)
        r = ask_modules(commands, timeout_ms, f, err);
    r = r < 0 ? r : read_klog(o, root, f, err);
    if (r == 0) {
        f->stuck_process = find_stuck(root);
        hx_facts_pair(f);
    }
    hx_commands_free(commands);
    return r;
}

int hx_facts_refresh(const struct hx_collect_options *o, struct hx_root *root, struct hx_facts *f,
                     struct hx_error *err)
{
    for (int i = 0; i < f->n_cards; i++) {
        struct hx_card *c = &f->card[i];
        struct hx_pci_aer now;
        if (hx_pci_read_aer(root, c->pci->path, &now) < 0)
            continue;
        c->aer_new = c->aer.known && now.correctable > c->aer.correctable
                         ? now.correctable - c->aer.correctable
                         : 0;
        c->aer = now;
    }
    return read_klog(o, root, f, err);
}
