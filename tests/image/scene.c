#include "image/scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image/rawdisk.h"

/* Between two looks whether a machine still comes up. */
#define BANNER_MS 15000

#define FIRMWARE      "/usr/share/OVMF/OVMF_CODE_4M.fd"
#define FIRMWARE_VARS "/usr/share/OVMF/OVMF_VARS_4M.fd"

int hx_scene_answers(struct hx_scene *s, const char *more, struct hx_error *err)
{
    if (!s->ssh.public_key[0]) {
        int r = hx_ssh_make_key(&s->ssh, s->work, err);
        if (r)
            return r;
    }
    int n = snprintf(s->answers, sizeof(s->answers),
                     "schema = 1\nhostname = hx-test\nadmin_key = %s\nnetwork = dhcp\n"
                     "ntp = later\n%s%s",
                     s->ssh.public_key, strstr(more, "model = ") ? "" : "model = none\n", more);
    if (n < 0 || (size_t)n >= sizeof(s->answers))
        return hx_fail(err, -EMSGSIZE, "answers are too long");
    return 0;
}

int hx_scene_setup(struct hx_scene *s, const char *name, struct hx_error *err)
{
    if (access(FIRMWARE, R_OK) < 0 || access(FIRMWARE_VARS, R_OK) < 0)
        return hx_fail(err, HX_SCENE_SKIP, "%s is missing: install the package ovmf", FIRMWARE);
    s->setup = (struct hx_vm_setup){
        .name = name,
        .folder = s->work,
        .firmware = FIRMWARE,
        .firmware_vars = FIRMWARE_VARS,
        .memory_mib = 1024,
        .cpus = 2,
        .network = true,
    };
    return 0;
}

struct hx_vm_disk *hx_scene_add_disk(struct hx_scene *s, const char *path, enum hx_vm_bus bus)
{
    struct hx_vm_disk *d = &s->setup.disks[s->setup.n_disks];
    *d = (struct hx_vm_disk){.path = path, .bus = bus, .boot = (int)s->setup.n_disks};
    s->setup.n_disks++;
    return d;
}

int hx_scene_prepare(struct hx_scene *s, const char *name, const char *more, struct hx_error *err)
{
    if (access(s->installed, R_OK) < 0)
        return hx_fail(err, HX_SCENE_SKIP, "no installed drive: scenario install comes first");
    snprintf(s->disk, sizeof(s->disk), "%s/%s.disk", s->work, name);
    int r = hx_rawdisk_copy(s->installed, s->disk, err);
    if (!r)
        r = hx_scene_answers(s, more, err);
    if (!r)
        r = hx_scene_setup(s, name, err);
    if (r)
        return r;
    hx_scene_add_disk(s, s->disk, HX_VM_NVME)->serial = HX_SCENE_SERIAL;
    s->setup.credentials[s->setup.n_credentials++] =
        (struct hx_vm_credential){"hx170.answers", s->answers};
    return 0;
}

int hx_scene_prepare_served(struct hx_scene *s, const char *name, struct hx_error *err)
{
    if (access(s->served, R_OK) < 0)
        return hx_fail(err, HX_SCENE_SKIP, "no drive with a model: scenario model comes first");
    s->ssh.share = true;
    snprintf(s->disk, sizeof(s->disk), "%s/%s.disk", s->work, name);
    int r = hx_rawdisk_copy(s->served, s->disk, err);
    if (!r)
        r = hx_ssh_make_key(&s->ssh, s->work, err);
    if (!r)
        r = hx_scene_setup(s, name, err);
    if (!r)
        hx_scene_add_disk(s, s->disk, HX_VM_NVME)->serial = HX_SCENE_SERIAL;
    return r;
}

/* A machine that will never be ready: QEMU has ended, or the screen of last resort stands there. */
static int check_start(struct hx_scene *s, struct hx_error *err)
{
    static const char *const markers[] = {"could not start completely", "cannot start: "};
    unsigned which;
    int r = hx_vm_wait_any(&s->vm, markers, 2, &which, hx_child_clock(), err);
    if (r == -ETIMEDOUT)
        return 0;
    return r ? r : hx_fail(err, -EIO, "machine %s: '%s'", s->setup.name, markers[which]);
}

int hx_scene_power_on(struct hx_scene *s, struct hx_error *err)
{
    hx_ssh_close(&s->ssh);
    int r = hx_vm_start(&s->vm, &s->setup, err);
    if (!r)
        r = hx_vm_ssh_port(&s->vm, &s->ssh.port, err);
    if (r)
        return r;
    s->ssh.user = "admin";
    do {
        r = hx_ssh_wait_banner(&s->ssh, hx_child_within(s->deadline, BANNER_MS), err);
        if (r == -ETIMEDOUT && hx_child_clock() < s->deadline && check_start(s, err))
            return -EIO;
    } while (r == -ETIMEDOUT && hx_child_clock() < s->deadline);
    if (!r)
        hx_scene_target("power-on to SSH", (double)hx_vm_age(&s->vm) / 1000, 45, "s");
    return r ? r : hx_ssh_wait(&s->ssh, s->deadline, err);
}

int hx_scene_power_off(struct hx_scene *s, struct hx_error *err)
{
    int r = hx_vm_monitor(&s->vm, "system_powerdown", NULL, err);
    if (!r)
        r = hx_vm_wait_exit(&s->vm, s->deadline, err);
    hx_vm_close(&s->vm);
    return r;
}

int hx_scene_boot_installed(struct hx_scene *s, const char *name, struct hx_error *err)
{
    int r = hx_scene_prepare(s, name, "", err);
    return r ? r : hx_scene_power_on(s, err);
}

int hx_scene_admin(struct hx_scene *s, const char *command, struct hx_buf *out,
                   struct hx_error *err)
{
    int code = -1;
    s->ssh.user = "admin";
    int r = hx_ssh_run(&s->ssh, command, out, &code, s->deadline, err);
    if (r)
        return r;
    const char *said = hx_buf_cstr(out);
    if (!said)
        return hx_fail(err, -ENOMEM, "out of memory");
    if (code)
        return hx_fail(err, -EIO, "'%s' in the machine ends with %d: %.300s", command, code, said);
    return 0;
}

int hx_scene_checks(struct hx_scene *s, const struct hx_check *rows, size_t n, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(256 << 10);
    int r = 0;
    for (size_t i = 0; i < n && !r; i++) {
        r = hx_scene_admin(s, rows[i].command, &out, err);
        if (!r && rows[i].output && strcmp((const char *)out.data, rows[i].output) != 0)
            r = hx_fail(err, -EBADMSG, "%s: expected '%s', got '%.400s'", rows[i].what,
                        rows[i].output, (const char *)out.data);
        else if (r)
            r = hx_wrap(err, r, "%s", rows[i].what);
    }
    hx_buf_done(&out);
    return r;
}

void hx_scene_measure(const char *what, double value, const char *unit)
{
    printf("# %s: %.1f %s\n", what, value, unit);
    fflush(stdout);
}

/* In memory that scenarios share with the process that prints them. */
static struct target {
    char what[64];
    double value, limit;
    const char *unit;
} * targets; /* the first one without unit is the end */
static bool targets_count = true;
#define N_TARGETS 32

bool hx_scene_share_targets(void)
{
    targets = mmap(NULL, (N_TARGETS + 1) * sizeof(*targets), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (targets == MAP_FAILED)
        targets = NULL;
    return targets != NULL;
}

void hx_scene_count_targets(bool count)
{
    targets_count = count;
}

void hx_scene_target(const char *what, double value, double limit, const char *unit)
{
    struct target *t = targets;
    hx_scene_measure(what, value, unit);
    if (!t || !targets_count)
        return;
    while (t->unit)
        t++;
    if (t == targets + N_TARGETS)
        return;
    snprintf(t->what, sizeof(t->what), "%s", what);
    t->value = value;
    t->limit = limit;
    t->unit = unit;
}

void hx_scene_targets(void)
{
    double load[1] = {0};
    if (!targets || !targets->unit)
        return;
    (void)!getloadavg(load, 1);
    printf("targets (load of this host %.1f):\n", load[0]);
    for (const struct target *t = targets; t->unit; t++)
        printf("  %-32s %8.1f %-3s limit %6.1f  %s\n", t->what, t->value, t->unit, t->limit,
               t->value <= t->limit ? "met" : "MISSED");
}
