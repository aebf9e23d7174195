/* Updates in the machine: the good one, and what happens to those that are no good. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "image/kit.h"
#include "image/rawdisk.h"

#define RUNNING     "sudo hx-update status 2>/dev/null" /* a slow check shows how far it is */
#define BUNDLE_DISK "/dev/vda"
#define BLESS_MS    600000

/* "running  1.0  good" and the like, spaces as hx-update writes them left out. */
static int check_status(struct hx_scene *s, const char *running, const char *state,
                        const char *other, const char *other_state, struct hx_error *err)
{
    char have[512], want[512];
    int64_t until = hx_child_within(s->deadline, BLESS_MS);
    int r;
    snprintf(want, sizeof(want), "running %s %s,other %s %s", running, state, other, other_state);
    /* A start is blessed a while after the login is possible. */
    do {
        r = hx_kit_ask(s, RUNNING " | tr -s ' ' | head -2 | paste -sd,", have, sizeof(have), err);
    } while (!r && strcmp(have, want) != 0 && hx_child_sleep(2000, until));
    if (!r && strcmp(have, want) != 0)
        r = hx_fail(err, -EBADMSG, "hx-update status: expected '%s', got '%s'", want, have);
    return r;
}

/* The bundle as a bare drive: a tar file may lie on one. */
static void attach(struct hx_scene *s, const struct hx_kit_bundle *b)
{
    struct hx_vm_disk *d = hx_scene_add_disk(s, b->path, HX_VM_VIRTIO);
    d->read_only = true;
    d->boot = -1;
}

static int install(struct hx_scene *s, const struct hx_kit_bundle *b, const char *device,
                   struct hx_error *err)
{
    char command[200], words[100];
    snprintf(command, sizeof(command), "sudo hx-update install %s", device);
    snprintf(words, sizeof(words), "hx170 %s is installed beside", b->version);
    int64_t start = hx_child_clock();
    int r = hx_kit_expect(s, command, 0, words, err);
    if (!r)
        hx_scene_measure("update written", (double)(hx_child_clock() - start) / 1000, "s");
    return r;
}

/* U1, first half: an update of a box that is in use. The drive stays as a power cut right behind
 * the message would leave it. */
int hx_scene_update(struct hx_scene *s, struct hx_error *err)
{
    struct hx_kit_bundle b;
    char path[512];
    hx_kit_path(s, "settled", "disk", path, sizeof(path));
    int r = hx_kit_bundle(s, HX_KIT_GOOD, &b, err);
    if (!r)
        r = hx_kit_machine(s, "update", path, err);
    if (r)
        return r;
    attach(s, &b);
    r = hx_kit_start(s, err);
    if (!r)
        r = hx_kit_login(s, err);
    if (!r)
        r = install(s, &b, BUNDLE_DISK, err);
    hx_kit_path(s, "updated", "disk", path, sizeof(path));
    if (!r)
        r = hx_kit_snapshot(s, path, err);
    return r ? r : hx_kit_entries(s, path, &b, 2, err);
}

/* U1, F3, second half: the new version starts, is blessed, and finds what the box had before. */
int hx_scene_updated(struct hx_scene *s, struct hx_error *err)
{
    struct hx_kit_bundle b;
    char base[32], path[512], before[HX_SHA256_HEX];
    hx_kit_path(s, "updated", "disk", path, sizeof(path));
    int r = hx_kit_version(s, base, sizeof(base), err);
    if (!r)
        r = hx_kit_bundle(s, HX_KIT_GOOD, &b, err);
    if (!r)
        r = hx_kit_machine(s, "updated-start", path, err);
    s->setup.n_credentials = 0;
    if (!r)
        r = hx_kit_host_key(s, path, before, err);
    if (!r)
        r = hx_kit_start(s, err);
    if (!r)
        r = hx_kit_login(s, err);
    if (!r)
        r = check_status(s, b.version, "good", base, "good", err);
    /* One journal for both versions: the machine's id is the same. */
    if (!r)
        r = hx_kit_expect(s,
                          "test \"$(ls /var/log/journal)\" = \"$(cat /etc/machine-id)\" && "
                          "test \"$(hostname)\" = hx-test && test -s /run/hx170/box.conf && "
                          "sha256sum </var/lib/hx170/ssh/ssh_host_ed25519_key.pub",
                          0, before, err);
    return r ? r : hx_kit_settled(s, err);
}

/* U2: one byte of the new root is wrong on the drive. Every attempt stops the kernel. */
int hx_scene_corrupt(struct hx_scene *s, struct hx_error *err)
{
    struct hx_kit_bundle b;
    char base[32], path[512];
    uint64_t at, n;
    hx_kit_path(s, "updated", "disk", path, sizeof(path));
    int r = hx_kit_version(s, base, sizeof(base), err);
    if (!r)
        r = hx_kit_bundle(s, HX_KIT_GOOD, &b, err);
    if (!r)
        r = hx_kit_machine(s, "corrupt", path, err);
    hx_kit_path(s, "corrupt", "disk", path, sizeof(path));
    if (!r)
        r = hx_kit_partition(path, 4, &at, &n, err);
    /* In the superblock of the file system, which no start does without. */
    if (!r)
        r = hx_rawdisk_damage(path, at + 1024 + 16, err);
    if (!r)
        r = hx_kit_start(s, err);
    for (int i = 0; i < 3 && !r; i++)
        r = hx_vm_wait(&s->vm, "Kernel panic", s->deadline, err);
    if (!r)
        r = hx_kit_login(s, err);
    if (!r)
        r = hx_kit_settled(s, err);
    if (!r)
        r = check_status(s, base, "good", b.version, "failed", err);
    if (!r)
        r = hx_kit_expect(s, RUNNING, 0, "is damaged", err);
    return r;
}

/* Every kind of a broken update onto a copy of one and the same drive, in one start of it. */
int hx_scene_standby(struct hx_scene *s, struct hx_error *err)
{
    static const struct {
        enum hx_kit_fault fault;
        const char *device, *disk;
    } rows[] = {{HX_KIT_HANG, "/dev/vda", "with-hang"},
                {HX_KIT_SICK, "/dev/vdb", "with-sick"},
                {HX_KIT_STUCK, "/dev/vdc", "with-stuck"},
                {HX_KIT_LOST, "/dev/vdd", "with-lost"}};
    const size_t n_rows = sizeof(rows) / sizeof(rows[0]);
    struct hx_kit_bundle b[sizeof(rows) / sizeof(rows[0])];
    char path[512];
    hx_kit_path(s, "settled", "disk", path, sizeof(path));
    int r = hx_kit_machine(s, "standby", path, err);
    for (size_t i = 0; i < n_rows && !r; i++) {
        r = hx_kit_bundle(s, rows[i].fault, &b[i], err);
        if (!r)
            attach(s, &b[i]);
    }
    if (!r)
        r = hx_kit_start(s, err);
    if (!r)
        r = hx_kit_login(s, err);
    for (size_t i = 0; i < n_rows && !r; i++) {
        hx_kit_path(s, rows[i].disk, "disk", path, sizeof(path));
        r = install(s, &b[i], rows[i].device, err);
        if (!r)
            r = hx_kit_snapshot(s, path, err);
    }
    return r;
}

/* Three starts of a broken version, each of which ends by itself, then the one before. The marker
 * comes once in each of them. */
static int falls_back(struct hx_scene *s, enum hx_kit_fault fault, const char *name,
                      const char *marker, const char *why, bool waits, struct hx_error *err)
{
    struct hx_kit_bundle b;
    char base[32], path[512], from[64];
    snprintf(from, sizeof(from), "with-%s", name);
    hx_kit_path(s, from, "disk", path, sizeof(path));
    int r = hx_kit_version(s, base, sizeof(base), err);
    if (!r)
        r = hx_kit_bundle(s, fault, &b, err);
    if (!r)
        r = hx_kit_machine(s, name, path, err);
    if (r)
        return r;
    s->setup.watchdog = true;
    /* Waiting passes at once then, but the network does not work: the fourth start is left for a
     * login, with the clock of the host. */
    s->setup.skip_waiting = waits;
    r = hx_kit_start(s, err);
    for (int i = 0; i < 3 && !r; i++)
        r = hx_vm_wait(&s->vm, marker, s->deadline, err);
    if (!r)
        r = hx_vm_wait(&s->vm, HX_KIT_STARTS, s->deadline, err);
    if (!r && waits) {
        hx_kit_cut(s);
        s->setup.skip_waiting = false;
        r = hx_kit_start(s, err);
    }
    if (!r)
        r = hx_kit_login(s, err);
    if (!r)
        r = hx_kit_settled(s, err);
    if (!r)
        r = check_status(s, base, "good", b.version, "failed", err);
    if (!r)
        r = hx_kit_expect(s, RUNNING, 0, why, err);
    return r;
}

/* U3: process 1 hangs; the hardware watchdog resets the machine. */
int hx_scene_hang(struct hx_scene *s, struct hx_error *err)
{
    return falls_back(s, HX_KIT_HANG, "hang", "test-hang: process 1 stops", "never got as far",
                      false, err);
}

/* The kernel's last words before an orderly restart. */
#define RESTARTS "reboot: Restarting system"

/* U4: it starts, but nobody can log in. */
int hx_scene_sick(struct hx_scene *s, struct hx_error *err)
{
    return falls_back(s, HX_KIT_SICK, "sick", RESTARTS, "SSH does not listen", true, err);
}

/* U3: something before boot-complete never ends; the timer restarts the machine. */
int hx_scene_stuck(struct hx_scene *s, struct hx_error *err)
{
    return falls_back(s, HX_KIT_STUCK, "stuck", RESTARTS, "did not come to its end", true, err);
}

/* U4: /var cannot be mounted, the start ends in the recovery screen. Nothing can be kept there. */
int hx_scene_lost(struct hx_scene *s, struct hx_error *err)
{
    return falls_back(s, HX_KIT_LOST, "lost", RESTARTS, "never got as far", true, err);
}
