/* hx-install: the list of disks, the check of the stick, the installation. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include <hx/build_facts.h>

#include "base/buf.h"
#include "base/json_write.h"
#include "disk/cli.h"
#include "disk/drives.h"
#include "disk/efi_boot.h"
#include "disk/install.h"
#include "disk/models.h"
#include "disk/prepare.h"
#include "disk/speed.h"
#include "disk/targets.h"
#include "disk/twins.h"

struct options {
    const char *root, *esp, *serial, *confirm, *answers, *seconds;
    bool json, keep_models, no_entry, own;
};

static void help(FILE *to)
{
    fprintf(
        to,
        "usage: hx-install list [--json]\n"
        "       hx-install check\n"
        "       hx-install run --disk SERIAL --confirm SERIAL [--keep-models] [--answers FILE]\n"
        "       hx-install models --disk SERIAL --confirm SERIAL [--keep-models]\n"
        "       hx-install models --own\n"
        "       hx-install drives [--seconds N] [--json]\n"
        "       hx-install speed [--seconds N] [--json]\n"
        "       hx-install esp\n"
        "       hx-install prepare [--config]\n"
        "       hx-install reset config|state|everything [--yes|--cancel]\n\n"
        "  list     disks, what is on them, and why one cannot be used\n"
        "  check    reads the whole stick and compares it with the root hash it was started with\n"
        "  run      writes this system to the disk with the serial number; everything on it is "
        "lost\n"
        "  models   a drive of its own for the models, from the next start; everything on it is "
        "lost.\n"
        "           --own: back to the system disk's partition\n"
        "  drives   drives that can hold the models: room, and with --seconds speed\n"
        "  speed    how fast the drive of the models reads\n"
        "  esp      before the boot partition is mounted: of two names of one kernel image, as a\n"
        "           power cut can leave them, one goes\n"
        "  prepare  at each start: a requested reset, file systems that are not there yet; with\n"
        "           --config the reset of the configuration, once /var is mounted\n"
        "  reset    asks the next start for a reset\n\n"
        "  --disk SERIAL      the disk, as `list` shows it\n"
        "  --confirm SERIAL   the same once more, or its last four characters: it may be erased\n"
        "  --keep-models      what is there stays: the models of an hx170 system, or of a drive\n"
        "                     that had them before\n"
        "  --seconds N        of reading, 1 to 60 (10)\n"
        "  --answers FILE     for the wizard of the first start\n"
        "  --no-boot-entry    leave the firmware's boot menu alone\n"
        "  --esp DIR          where this system's ESP is mounted (ROOT/efi)\n"
        "  --root DIR         a recorded machine instead of this one\n"
        "  --json             for machines\n"
        "  --help, --version\n\n"
        "Exit status: 0, or one of sysexits.h: 64 usage, 65 the stick is damaged or the target "
        "unfit,\n"
        "69 no such disk, 71 system, 74 input or output, 75 the disk is in use, 77 the disk is not "
        "confirmed or\n"
        "must not be written to.\n");
}

static void print_json(const struct hx_targets *list)
{
    struct hx_buf b = HX_BUF_INIT(1u << 20);
    struct hx_json_writer w;
    hx_jw_init(&w, &b, false);
    hx_jw_array(&w);
    for (int i = 0; i < list->n; i++) {
        const struct hx_target *t = &list->disk[i];
        hx_jw_object(&w);
        hx_jw_key(&w, "name");
        hx_jw_str(&w, t->name);
        hx_jw_key(&w, "model");
        hx_jw_str(&w, t->model);
        hx_jw_key(&w, "serial");
        hx_jw_str(&w, t->serial);
        hx_jw_key(&w, "bus");
        hx_jw_str(&w, t->bus);
        hx_jw_key(&w, "bytes");
        hx_jw_uint(&w, t->n_bytes);
        hx_jw_key(&w, "sector");
        hx_jw_uint(&w, t->sector);
        hx_jw_key(&w, "content");
        hx_jw_str(&w, t->content_text);
        hx_jw_key(&w, "models_can_be_kept");
        hx_jw_bool(&w, t->models_kept);
        hx_jw_key(&w, "usable");
        hx_jw_bool(&w, t->verdict == HX_TARGET_FINE);
        hx_jw_key(&w, "reason");
        hx_jw_str(&w, t->verdict == HX_TARGET_FINE ? "" : hx_target_reason(t->verdict));
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    printf("%.*s\n", (int)b.len, (const char *)b.data);
    hx_buf_done(&b);
}

static void print_list(const struct hx_targets *list)
{
    for (int i = 0; i < list->n; i++) {
        const struct hx_target *t = &list->disk[i];
        printf("%-10s %7.1f GB  %-6s  %-30s  serial %s\n", t->name, (double)t->n_bytes / 1e9,
               t->bus, t->model[0] ? t->model : "-", t->serial[0] ? t->serial : "-");
        if (t->verdict == HX_TARGET_FINE)
            printf("           %s\n", t->content_text);
        else
            printf("           not usable: %s\n", hx_target_reason(t->verdict));
    }
    if (list->n == 0)
        printf("no disks\n");
}

static int cmd_list(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    struct hx_targets *list = calloc(1, sizeof(*list));
    if (!list)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_targets_list(root, list, err);
    if (r == 0 && opt->json)
        print_json(list);
    else if (r == 0)
        print_list(list);
    free(list);
    return r;
}

/* "serial" or its last four characters. */
static bool confirmed(const char *serial, const char *typed)
{
    size_t n = strlen(serial);
    if (!typed)
        return false;
    return strcmp(typed, serial) == 0 || (n > 4 && strcmp(typed, serial + n - 4) == 0);
}

static int choose(const struct options *opt, const struct hx_root *root, struct hx_target *out,
                  struct hx_error *err)
{
    struct hx_targets *list = calloc(1, sizeof(*list));
    const struct hx_target *t;
    if (!list)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_targets_list(root, list, err);
    if (r == 0)
        r = hx_targets_find(list, opt->serial, &t, err);
    if (r == 0 && !confirmed(t->serial, opt->confirm))
        r = hx_fail(err, -EPERM,
                    "%s (%s, %s) is erased by this: repeat its serial number in --confirm", t->name,
                    t->model, t->content_text);
    if (r == 0)
        *out = *t;
    free(list);
    return r;
}

static void add_boot_entry(const struct hx_root *root, const struct hx_disk *target)
{
    struct hx_table *t = calloc(1, sizeof(*t));
    struct hx_error err;
    char vars[HX_ROOT_PATH];
    int r = t ? hx_table_read(target, t, NULL, &err) : hx_fail(&err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_root_outside(root, "/sys/firmware/efi/efivars", vars);
    if (r == 0)
        r = hx_efi_boot_entry(vars, t, HX_PART_ESP + 1, &err);
    else
        hx_fail(&err, r, "no firmware variables");
    if (r < 0)
        fprintf(stderr,
                "hx-install: warning: no entry in the firmware's boot menu (%s); the disk boots by "
                "the default path\n",
                err.text);
    free(t);
}

static int cmd_run(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    struct hx_target chosen;
    struct hx_disk source = {.fd = -1}, target = {.fd = -1};
    struct hx_system *from = calloc(1, sizeof(*from));
    struct hx_cli_progress shown = {.json = opt->json};
    char esp[HX_ROOT_PATH];
    if (!from)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = choose(opt, root, &chosen, err);
    if (r == 0)
        r = hx_system_read(root, 0, from, err);
    if (r == 0)
        r = hx_disk_open(from->path, HX_DISK_READ, 0, &source, err);
    if (r == 0)
        r = hx_disk_open(chosen.path, HX_DISK_ALONE, chosen.sector, &target, err);
    if (r == 0)
        r = hx_cli_esp(root, opt->esp, esp, err);
    struct hx_install_job job = {
        from, &source, esp, opt->answers, opt->keep_models, hx_cli_progress, &shown};
    if (r == 0)
        r = hx_install_check_stick(&job, err);
    if (r == 0)
        r = hx_install_write(&job, &target, err);
    hx_cli_progress_end(&shown);
    if (r == 0 && !opt->no_entry)
        add_boot_entry(root, &target);
    if (r == 0)
        printf("hx170 %s is installed on %s; remove the stick and start again\n", from->version,
               chosen.name);
    hx_disk_close(&source);
    hx_disk_close(&target);
    free(from);
    return r;
}

static int use_drive(const struct options *opt, const struct hx_root *root, struct hx_system *here,
                     struct hx_disk *boot, struct hx_error *err)
{
    struct hx_target chosen;
    struct hx_disk target = {.fd = -1};
    int r = choose(opt, root, &chosen, err);
    if (r == 0)
        r = hx_disk_open(chosen.path, HX_DISK_ALONE, chosen.sector, &target, err);
    if (r == 0)
        r = hx_models_move(boot, &here->table, &target, opt->keep_models, err);
    if (r == 0)
        hx_disk_reread(&target);
    if (r == 0)
        printf("%s holds the models from the next start on\n", chosen.name);
    hx_disk_close(&target);
    return r;
}

static int cmd_models(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    struct hx_disk boot = {.fd = -1};
    struct hx_system *here = calloc(1, sizeof(*here));
    if (!here)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_system_read(root, 0, here, err);
    if (r == 0 && !here->installed)
        r = hx_fail(err, -EPERM, "this system runs from a stick: install it first");
    if (r == 0)
        r = hx_disk_open(here->path, HX_DISK_SHARED, here->table.sector, &boot, err);
    if (r == 0 && !opt->own)
        r = use_drive(opt, root, here, &boot, err);
    else if (r == 0)
        r = hx_models_own(&boot, &here->table, err);
    if (r == 0 && opt->own)
        printf("the system disk holds the models from the next start on\n");
    hx_disk_close(&boot);
    free(here);
    return r;
}

static void print_drives_json(const struct hx_drives *list)
{
    struct hx_buf b = HX_BUF_INIT(1u << 20);
    struct hx_json_writer w;
    hx_jw_init(&w, &b, false);
    hx_jw_array(&w);
    for (int i = 0; i < list->n; i++) {
        const struct hx_drive *d = &list->drive[i];
        const struct {
            const char *key, *value;
        } words[] = {{"name", d->disk.name},
                     {"model", d->disk.model},
                     {"serial", d->disk.serial},
                     {"bus", d->disk.bus},
                     {"content", d->disk.content_text},
                     {"reason", d->usable ? "" : hx_target_reason(d->disk.verdict)}};
        const struct {
            const char *key;
            bool value;
        } facts[] = {{"own", d->own},
                     {"current", d->current},
                     {"usable", d->usable},
                     {"models_can_be_kept", d->keepable}};
        hx_jw_object(&w);
        for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++) {
            hx_jw_key(&w, words[k].key);
            hx_jw_str(&w, words[k].value);
        }
        for (size_t k = 0; k < sizeof(facts) / sizeof(facts[0]); k++) {
            hx_jw_key(&w, facts[k].key);
            hx_jw_bool(&w, facts[k].value);
        }
        hx_jw_key(&w, "bytes");
        hx_jw_uint(&w, d->disk.n_bytes);
        hx_jw_key(&w, "room");
        hx_jw_uint(&w, d->room);
        hx_jw_key(&w, "bytes_per_second");
        hx_jw_uint(&w, (uint64_t)d->rate);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    printf("%.*s\n", (int)b.len, (const char *)b.data);
    hx_buf_done(&b);
}

static void print_drives(const struct hx_drives *list)
{
    for (int i = 0; i < list->n; i++) {
        const struct hx_drive *d = &list->drive[i];
        printf("%-10s %7.1f GB  %-6s  %-30s  serial %s\n", d->disk.name,
               (double)d->disk.n_bytes / 1e9, d->disk.bus, d->disk.model[0] ? d->disk.model : "-",
               d->disk.serial[0] ? d->disk.serial : "-");
        if (!d->usable) {
            printf("           not usable: %s\n", hx_target_reason(d->disk.verdict));
            continue;
        }
        printf("           %s%.1f GB for models%s", d->current ? "holds the models, " : "",
               (double)d->room / 1e9, d->keepable && !d->current ? ", has models" : "");
        if (d->rate > 0)
            printf(", reads %.2f GB/s", d->rate / 1e9);
        printf("\n");
    }
}

static int read_seconds(const struct options *opt, uint64_t *seconds, struct hx_error *err)
{
    if (opt->seconds &&
        (!hx_parse_u64(opt->seconds, strlen(opt->seconds), 60, seconds) || !*seconds))
        return hx_fail(err, -EINVAL, "--seconds: '%.20s' is no number from 1 to 60", opt->seconds);
    return 0;
}

static int cmd_drives(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    struct hx_drives *list = calloc(1, sizeof(*list));
    struct hx_system *here = calloc(1, sizeof(*here));
    uint64_t seconds = 0;
    int r = list && here ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = read_seconds(opt, &seconds, err);
    if (r == 0)
        r = hx_system_read(root, 0, here, err);
    if (r == 0)
        r = hx_drives_list(root, here, (double)seconds, list, err);
    if (r == 0 && opt->json)
        print_drives_json(list);
    else if (r == 0)
        print_drives(list);
    free(list);
    free(here);
    return r;
}

static int cmd_speed(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    char path[HX_ROOT_PATH];
    struct hx_speed s;
    uint64_t seconds = 10;
    int r = read_seconds(opt, &seconds, err);
    if (r < 0)
        return r;
    r = hx_root_resolve(root, "/dev/hx170/models", path);
    if (r == 0)
        r = hx_root_outside(root, "/dev/hx170/models", path);
    if (r < 0)
        return hx_fail(err, r, "/dev/hx170/models: no such partition");
    r = hx_speed_measure(path, (double)seconds, &s, err);
    if (r < 0)
        return r;
    double rate = (double)s.n_bytes / s.seconds;
    if (opt->json)
        printf("{\"schema\":1,\"bytes\":%llu,\"seconds\":%.3f,\"bytes_per_second\":%.0f}\n",
               (unsigned long long)s.n_bytes, s.seconds, rate);
    else
        printf("reads %.2f GB/s (%.1f GB in %.1f s)\n", rate / 1e9, (double)s.n_bytes / 1e9,
               s.seconds);
    return 0;
}

static int cmd_esp(const struct hx_root *root, struct hx_error *err)
{
    char path[HX_ROOT_PATH];
    struct hx_disk d;
    struct hx_twins twins;
    int r = hx_root_resolve(root, "/dev/hx170/esp", path);
    if (r == 0)
        r = hx_root_outside(root, "/dev/hx170/esp", path);
    if (r < 0)
        return hx_fail(err, r, "/dev/hx170/esp: no such partition");
    r = hx_disk_open(path, HX_DISK_ALONE, 0, &d, err);
    if (r < 0)
        return r;
    r = hx_twins_remove(&d, 0, &twins, err);
    hx_disk_close(&d);
    if (r == 0 && twins.n)
        printf("a power cut had left two names of one file: '%s' is gone, '%s' stays\n",
               twins.last[0], twins.last[1]);
    return r;
}

static int cmd_check(const struct options *opt, const struct hx_root *root, struct hx_error *err)
{
    struct hx_disk source = {.fd = -1};
    struct hx_system *from = calloc(1, sizeof(*from));
    struct hx_cli_progress shown = {.json = opt->json};
    char esp[HX_ROOT_PATH];
    if (!from)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_system_read(root, 0, from, err);
    if (r == 0)
        r = hx_disk_open(from->path, HX_DISK_READ, 0, &source, err);
    if (r == 0)
        r = hx_cli_esp(root, opt->esp, esp, err);
    struct hx_install_job job = {
        .from = from, .source = &source, .esp = esp, .progress = hx_cli_progress, .ctx = &shown};
    if (r == 0)
        r = hx_install_check_stick(&job, err);
    hx_cli_progress_end(&shown);
    if (r == 0)
        printf("this stick is in order: hx170 %s\n", from->version);
    hx_disk_close(&source);
    free(from);
    return r;
}

static int usage(const char *what, const char *arg)
{
    fprintf(stderr, "hx-install: %s%s%s; see --help\n", what, arg ? ": " : "", arg ? arg : "");
    return EX_USAGE;
}

int main(int argc, char **argv)
{
    struct options opt = {0};
    struct hx_error err = {0};
    struct hx_root *root;
    const char *command = NULL;
    bool config = false;
    const struct hx_cli_option rows[] = {
        {"--root", &opt.root, NULL},
        {"--esp", &opt.esp, NULL},
        {"--disk", &opt.serial, NULL},
        {"--confirm", &opt.confirm, NULL},
        {"--answers", &opt.answers, NULL},
        {"--json", NULL, &opt.json},
        {"--keep-models", NULL, &opt.keep_models},
        {"--no-boot-entry", NULL, &opt.no_entry},
        {"--seconds", &opt.seconds, NULL},
        {"--own", NULL, &opt.own},
        {"--config", NULL, &config},
        {0},
    };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            help(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("hx-install %s\n", HX_BUILD_VERSION);
            return 0;
        }
        int r = hx_cli_take(rows, argc, argv, &i);
        if (r < 0)
            return usage(r == -EINVAL ? "a value is missing for" : "unknown option", argv[i]);
        if (r == 0 && command)
            return usage("too many words", argv[i]);
        if (r == 0)
            command = argv[i];
    }
    if (!command)
        return usage("a command is missing", NULL);
    int r = hx_root_open(opt.root, &root, &err);
    if (r < 0)
        return hx_cli_report("hx-install", r, &err);
    if (strcmp(command, "list") == 0) {
        r = cmd_list(&opt, root, &err);
    } else if (strcmp(command, "check") == 0) {
        r = cmd_check(&opt, root, &err);
    } else if (strcmp(command, "run") == 0) {
        if (!opt.serial) {
            hx_root_close(root);
            return usage("run needs --disk", NULL);
        }
        r = cmd_run(&opt, root, &err);
    } else if (strcmp(command, "models") == 0) {
        if (!opt.serial == !opt.own) {
            hx_root_close(root);
            return usage("models needs either --disk or --own", NULL);
        }
        r = cmd_models(&opt, root, &err);
    } else if (strcmp(command, "esp") == 0) {
        r = cmd_esp(root, &err);
    } else if (strcmp(command, "drives") == 0) {
        r = cmd_drives(&opt, root, &err);
    } else if (strcmp(command, "speed") == 0) {
        r = cmd_speed(&opt, root, &err);
    } else if (strcmp(command, "prepare") == 0) {
        r = config ? hx_prepare_config(root, &err) : hx_prepare_run(root, &err);
    } else {
        hx_root_close(root);
        return usage("unknown command", command);
    }
    hx_root_close(root);
    return r < 0 ? hx_cli_report("hx-install", r, &err) : 0;
}
