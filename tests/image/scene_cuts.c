/* Power cuts in virtual machines. A machine is stopped at moments that follow from a seed, and its
 * drive is judged as it lies; besides, every write and flush is logged, and every prefix of the log
 * that ends at a flush is judged. Some of the drives are really started. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk/bundle.h"
#include "image/drivelook.h"
#include "image/kit.h"
#include "image/rawdisk.h"
#include "image/writelog.h"

#define LOOK_MS   20
#define N_KNOWN   3
#define BEHIND_MS 2000
/* Without a write in that time none comes any more. */
#define QUIET_MS 120000
/* Of the twenty cuts, those whose drive is started afterwards. */
#define KEPT_FIRST 3
#define KEPT_EVERY 7

/* What a scenario of cuts goes through the drive with. */
struct judge {
    struct hx_drive_known known[N_KNOWN];
    unsigned n_known;
    struct hx_drive_memory memory;
    struct hx_drive_look look;
    unsigned n_blank, n_boots, n_two; /* two: boot entries */
};

static int know_image(struct hx_scene *s, struct judge *j, struct hx_error *err)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/image/work/out/uki.efi", s->build);
    struct hx_drive_known *k = &j->known[j->n_known++];
    int r = hx_rawdisk_hash(path, k->sha256, err);
    return r ? r : hx_kit_version(s, k->version, sizeof(k->version), err);
}

static int know_bundle(struct hx_scene *s, struct judge *j, const struct hx_kit_bundle *b,
                       struct hx_error *err)
{
    char key[512];
    struct hx_bundle *bundle = calloc(1, sizeof(*bundle));
    struct hx_drive_known *k = &j->known[j->n_known++];
    if (!bundle)
        return hx_fail(err, -ENOMEM, "out of memory");
    snprintf(key, sizeof(key), "%s/image/work/tree/usr/share/hx170/release.pem", s->build);
    int r = hx_bundle_open(b->path, key, bundle, err);
    if (!r) {
        snprintf(k->sha256, sizeof(k->sha256), "%s", bundle->sha256[HX_BUNDLE_UKI]);
        snprintf(k->version, sizeof(k->version), "%s", bundle->version);
    }
    hx_bundle_close(bundle);
    free(bundle);
    return r;
}

/* blank_is_fine: a drive that firmware starts nothing from is a good result, too. */
static int judge(struct judge *j, const char *disk, bool blank_is_fine, const char *when,
                 struct hx_error *err)
{
    int r = hx_drive_look(disk, 512, j->known, j->n_known, &j->memory, &j->look, err);
    if (r)
        return hx_wrap(err, r, "%s", when);
    j->n_blank += j->look.verdict == HX_DRIVE_BLANK;
    j->n_boots += j->look.verdict == HX_DRIVE_BOOTS;
    j->n_two += j->look.n_entries == 2;
    if (j->look.verdict == HX_DRIVE_BROKEN || (j->look.verdict == HX_DRIVE_BLANK && !blank_is_fine))
        return hx_fail(err, -EBADMSG, "%s: the drive %s: %s (entries:%s)", when,
                       j->look.verdict == HX_DRIVE_BLANK ? "starts nothing" : "does not come up",
                       j->look.why, j->look.versions);
    return 0;
}

/* The judge has to see damage, or its silence says nothing: one byte of the root in slot A. */
static int judge_sees_damage(struct judge *j, const char *disk, struct hx_error *err)
{
    uint64_t at, n;
    struct hx_drive_memory fresh = {0};
    struct hx_drive_look look;
    int r = hx_kit_partition(disk, 2, &at, &n, err);
    if (!r)
        r = hx_rawdisk_damage(disk, at + 5000000, err);
    if (!r)
        r = hx_drive_look(disk, 512, j->known, j->n_known, &fresh, &look, err);
    if (!r && look.verdict != HX_DRIVE_BROKEN)
        r = hx_fail(err, -EBADMSG, "the judge takes a damaged root for a good one");
    return r ? r : hx_rawdisk_damage(disk, at + 5000000, err);
}

static uint64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Until the log has that many bytes. False: it did not grow for QUIET_MS, or the machine ended.
 */
static bool wait_written(struct hx_scene *s, const char *log, uint64_t n_bytes)
{
    uint64_t seen = size_of(log);
    int64_t until = hx_child_within(s->deadline, QUIET_MS);
    while (seen < n_bytes && hx_child_alive(&s->vm.qemu) && hx_child_sleep(LOOK_MS, until)) {
        uint64_t now = size_of(log);
        if (now != seen)
            until = hx_child_within(s->deadline, QUIET_MS);
        seen = now;
    }
    return seen >= n_bytes;
}

/* Every prefix of the log that ends at a flush, on a copy of the drive as it was before. Prefixes
 * that changed nothing since the last one are not judged again. blank_first: nothing may start
 * before the last write, and something has to behind it. */
static int replay(struct judge *j, const char *log_path, const char *drive, bool blank_first,
                  struct hx_error *err)
{
    struct hx_writelog log;
    struct hx_writelog_entry e;
    unsigned n_flushes = 0, n_judged = 0, n_writes = 0;
    bool changed = true;
    int r = hx_writelog_open(&log, log_path, err);
    if (r)
        return r;
    int fd = open(drive, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        r = hx_fail_errno(err, errno, "%s", drive);
    j->memory = (struct hx_drive_memory){0};
    while (!r && (r = hx_writelog_next(&log, &e, err)) == 1) {
        char when[80];
        r = hx_writelog_apply(&log, &e, fd, err);
        if (e.n_bytes) {
            hx_drive_wrote(&j->memory, e.offset, e.n_bytes);
            changed = true;
            n_writes++;
        }
        if (r || !e.is_flush)
            continue;
        n_flushes++;
        if (!changed)
            continue;
        changed = false;
        n_judged++;
        snprintf(when, sizeof(when), "behind flush %u (entry %llu of the log)", n_flushes,
                 (unsigned long long)log.n_done);
        r = judge(j, drive, blank_first, when, err);
    }
    if (fd >= 0)
        close(fd);
    hx_writelog_close(&log);
    if (r < 0)
        return r;
    hx_scene_measure("writes", n_writes, "");
    hx_scene_measure("flushes", n_flushes, "");
    hx_scene_measure("prefixes judged", n_judged, "");
    if (n_flushes < 4)
        return hx_fail(err, -EBADMSG, "only %u flushes in the log", n_flushes);
    return judge(j, drive, false, "behind the last flush", err);
}

static int empty_file(const char *path, struct hx_error *err)
{
    return hx_rawdisk_blank(path, 0, err);
}

/* ---- update ---------------------------------------------------------------------------------- */

struct update_cuts {
    struct judge judge;
    struct hx_kit_bundle b[2];
    char log[512], drive[512];
    uint64_t random;
};

/* Between two cuts, on average: twenty of them spread over three updates. */
#define BETWEEN ((uint64_t)18 << 20)

/* Updates without end, in the machine: some are killed in the middle, as a crash would, and the
 * next one starts from what they left. */
static const char updating[] =
    "sudo systemd-run --quiet --unit=updates sh -c 'while :; do "
    "timeout -s KILL 45 hx-update install /dev/vda; timeout -s KILL 20 hx-update install /dev/vdb; "
    "hx-update install /dev/vda; done'";

static int cut_update(struct hx_scene *s, struct update_cuts *c, int i, struct hx_error *err)
{
    char when[80], path[512], name[32];
    uint64_t at = size_of(c->log) + hx_kit_random(&c->random) % (2 * BETWEEN);
    if (!wait_written(s, c->log, at))
        return hx_fail(err, -ETIMEDOUT, "the updates stopped writing after %llu bytes",
                       (unsigned long long)size_of(c->log));
    snprintf(when, sizeof(when), "cut %d, after %llu bytes", i,
             (unsigned long long)size_of(c->log));
    int r = hx_vm_monitor(&s->vm, "stop", NULL, err);
    if (!r) {
        c->judge.memory = (struct hx_drive_memory){0};
        r = judge(&c->judge, s->setup.disks[0].path, false, when, err);
    }
    if (!r && i % KEPT_EVERY == KEPT_FIRST) {
        snprintf(name, sizeof(name), "upd-cut%d", i);
        hx_kit_path(s, name, "disk", path, sizeof(path));
        r = hx_rawdisk_copy(s->setup.disks[0].path, path, err);
    }
    int go = hx_vm_monitor(&s->vm, "cont", NULL, r ? NULL : err);
    return r ? r : go;
}

/* One of the drives that were cut, started for good: the old version comes up, and says so. */
static int start_cut(struct hx_scene *s, int i, struct hx_error *err)
{
    char name[32], path[512], base[32], words[64];
    snprintf(name, sizeof(name), "upd-cut%d", i);
    hx_kit_path(s, name, "disk", path, sizeof(path));
    int r = hx_kit_version(s, base, sizeof(base), err);
    if (!r)
        r = hx_kit_machine(s, "upd-again", path, err);
    if (!r)
        r = hx_kit_boot(s, err);
    snprintf(words, sizeof(words), "running  %s", base);
    if (!r)
        r = hx_kit_expect(s, "sudo hx-update status", 0, words, err);
    hx_kit_cut(s);
    unlink(path);
    return r;
}

/* U5. */
int hx_scene_cuts_update(struct hx_scene *s, struct hx_error *err)
{
    struct update_cuts *c = calloc(1, sizeof(*c));
    char settled[512];
    if (!c)
        return hx_fail(err, -ENOMEM, "out of memory");
    c->random = HX_KIT_SEED;
    hx_kit_path(s, "settled", "disk", settled, sizeof(settled));
    hx_kit_path(s, "upd-cuts", "writes", c->log, sizeof(c->log));
    hx_kit_path(s, "upd-replay", "disk", c->drive, sizeof(c->drive));
    int r = hx_kit_bundle(s, HX_KIT_GOOD, &c->b[0], err);
    if (!r)
        r = hx_kit_bundle(s, HX_KIT_NEXT, &c->b[1], err);
    if (!r)
        r = know_image(s, &c->judge, err);
    for (int i = 0; i < 2 && !r; i++)
        r = know_bundle(s, &c->judge, &c->b[i], err);
    if (!r)
        r = hx_kit_machine(s, "upd-cuts", settled, err);
    if (!r)
        r = empty_file(c->log, err);
    if (!r) {
        s->setup.disks[0].write_log = c->log;
        for (int i = 0; i < 2; i++) {
            struct hx_vm_disk *d = hx_scene_add_disk(s, c->b[i].path, HX_VM_VIRTIO);
            d->read_only = true;
            d->boot = -1;
        }
        r = hx_kit_start(s, err);
    }
    if (!r)
        r = hx_kit_login(s, err);
    if (!r)
        r = hx_kit_settled(s, err);
    if (!r)
        r = hx_kit_expect(s, updating, 0, NULL, err);
    for (int i = 0; i < HX_KIT_CUTS && !r; i++)
        r = cut_update(s, c, i, err);
    hx_kit_cut(s);
    if (!r)
        r = hx_rawdisk_copy(settled, c->drive, err);
    if (!r)
        r = replay(&c->judge, c->log, c->drive, false, err);
    /* Updates came to their end, or this would say little. */
    if (!r && !c->judge.n_two)
        r = hx_fail(err, -EBADMSG, "no update came to its end");
    if (!r)
        r = judge_sees_damage(&c->judge, c->drive, err);
    unlink(c->log);
    unlink(c->drive);
    free(c);
    return r;
}

/* U5: the drives that the scenario above kept. */
int hx_scene_cuts_started(struct hx_scene *s, struct hx_error *err)
{
    int r = 0;
    for (int i = KEPT_FIRST; i < HX_KIT_CUTS && !r; i += KEPT_EVERY)
        r = start_cut(s, i, err);
    return r;
}

/* ---- install --------------------------------------------------------------------------------- */

static int describe_install(struct hx_scene *s, const char *name, const char *target,
                            struct hx_error *err)
{
    int r = hx_scene_answers(s, HX_SCENE_UNATTENDED, err);
    if (!r)
        r = hx_scene_setup(s, name, err);
    if (r)
        return r;
    hx_scene_add_disk(s, s->stick, HX_VM_USB)->snapshot = true;
    hx_scene_add_disk(s, target, HX_VM_NVME)->serial = HX_SCENE_SERIAL;
    s->setup.credentials[s->setup.n_credentials++] =
        (struct hx_vm_credential){"hx170.answers", s->answers};
    return 0;
}

/* Bytes that an installation writes, with some more. */
#define INSTALL_BYTES ((uint64_t)135 << 20)

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Stops at the moments and judges; the drive of one of them stays as the file `half`. */
static int cut_install(struct hx_scene *s, struct judge *j, const char *log, const char *target,
                       const char *half, struct hx_error *err)
{
    uint64_t random = HX_KIT_SEED, at[HX_KIT_CUTS];
    for (int i = 0; i < HX_KIT_CUTS; i++)
        at[i] = hx_kit_random(&random) % INSTALL_BYTES;
    qsort(at, HX_KIT_CUTS, sizeof(at[0]), by_size);
    int r = 0;
    for (int i = 0; i < HX_KIT_CUTS && !r; i++) {
        char when[80];
        /* Those behind the end of the installation are all alike. */
        bool reached = wait_written(s, log, at[i]);
        if (!reached && i < HX_KIT_CUTS / 2)
            return hx_fail(err, -ETIMEDOUT, "the installation stopped writing after %llu bytes",
                           (unsigned long long)size_of(log));
        snprintf(when, sizeof(when), "cut %d, after %llu bytes", i,
                 (unsigned long long)size_of(log));
        if (!hx_child_alive(&s->vm.qemu))
            break;
        r = hx_vm_monitor(&s->vm, "stop", NULL, err);
        if (!r) {
            j->memory = (struct hx_drive_memory){0};
            r = judge(j, target, true, when, err);
        }
        if (!r && i == HX_KIT_CUTS / 2)
            r = hx_rawdisk_copy(target, half, err);
        int go = hx_vm_monitor(&s->vm, "cont", NULL, r ? NULL : err);
        if (!r)
            r = go;
    }
    return r;
}

/* An installation onto a copy of the drive `from`, NULL: a blank one; then a second run over what a
 * cut in the middle left. */
static int cuts_install(struct hx_scene *s, struct judge *j, const char *name, const char *from,
                        struct hx_error *err)
{
    char target[512], log[512], half[512], drive[512], second[64], again[64];
    char *const fresh[] = {target, drive};
    snprintf(second, sizeof(second), "%s-half", name);
    snprintf(again, sizeof(again), "%s-replay", name);
    hx_kit_path(s, name, "disk", target, sizeof(target));
    hx_kit_path(s, name, "writes", log, sizeof(log));
    hx_kit_path(s, second, "disk", half, sizeof(half));
    hx_kit_path(s, again, "disk", drive, sizeof(drive));
    int r = know_image(s, j, err);
    for (int i = 0; i < 2 && !r; i++)
        r = from ? hx_rawdisk_copy(from, fresh[i], err)
                 : hx_rawdisk_blank(fresh[i], HX_SCENE_TARGET_BYTES, err);
    if (!r)
        r = empty_file(log, err);
    if (!r)
        r = describe_install(s, name, target, err);
    if (!r) {
        s->setup.disks[1].write_log = log;
        r = hx_vm_start(&s->vm, &s->setup, err);
    }
    if (!r)
        r = cut_install(s, j, log, target, half, err);
    if (!r)
        r = hx_vm_wait(&s->vm, "is installed on", s->deadline, err);
    hx_kit_cut(s);
    if (!r && j->n_blank < HX_KIT_CUTS / 2)
        r = hx_fail(err, -EBADMSG, "only %u moments fell into the installation", j->n_blank);
    if (!r)
        r = replay(j, log, drive, true, err);
    if (!r)
        r = judge_sees_damage(j, drive, err);
    if (!r)
        r = describe_install(s, second, half, err);
    if (!r) {
        hx_vm_close(&s->vm);
        r = hx_vm_start(&s->vm, &s->setup, err);
    }
    if (!r)
        r = hx_vm_wait(&s->vm, "is installed on", s->deadline, err);
    hx_kit_cut(s);
    j->memory = (struct hx_drive_memory){0};
    if (!r)
        r = judge(j, half, false, "the second run", err);
    if (!r && j->look.n_entries != 1)
        r = hx_fail(err, -EBADMSG, "the second run left entries of:%s", j->look.versions);
    unlink(log);
    unlink(target);
    unlink(drive);
    unlink(half);
    return r;
}

/* I5. */
int hx_scene_cuts_install(struct hx_scene *s, struct hx_error *err)
{
    struct judge j = {0};
    return cuts_install(s, &j, "inst-cuts", NULL, err);
}

/* I6: over a drive in use with two versions. No start may mix them with what is installed. */
int hx_scene_cuts_over(struct hx_scene *s, struct hx_error *err)
{
    struct judge j = {0};
    struct hx_kit_bundle b;
    char from[512];
    hx_kit_path(s, "updated", "disk", from, sizeof(from));
    if (access(from, R_OK) < 0)
        return hx_fail(err, HX_SCENE_SKIP, "%s is missing: scenario update makes it", from);
    int r = hx_kit_bundle(s, HX_KIT_GOOD, &b, err);
    if (!r)
        r = know_bundle(s, &j, &b, err);
    return r ? r : cuts_install(s, &j, "over-cuts", from, err);
}

/* ---- first start ----------------------------------------------------------------------------- */

/* F4: power gone at twenty moments of the first starts, one after the other; then it comes up
 * whole.
 */
int hx_scene_cuts_first(struct hx_scene *s, struct hx_error *err)
{
    uint64_t random = HX_KIT_SEED;
    int r = hx_kit_machine(s, "first-cuts", s->installed, err);
    for (int i = 0; i < HX_KIT_CUTS && !r; i++) {
        int64_t wait = BEHIND_MS + (int64_t)(hx_kit_random(&random) % 35000);
        r = hx_kit_start(s, err);
        if (!r && !hx_child_sleep(wait, s->deadline))
            r = hx_fail(err, -ETIMEDOUT, "no time left at cut %d", i);
        hx_kit_cut(s);
    }
    if (!r)
        r = hx_kit_boot(s, err);
    static const char *const checks[] = {"test \"$(hostname)\" = hx-test",
                                         "test -s /run/hx170/box.conf",
                                         "test \"$(findmnt -no FSTYPE /var)\" = ext4",
                                         "test \"$(findmnt -no FSTYPE /srv/models)\" = ext4"};
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]) && !r; i++)
        r = hx_kit_expect(s, checks[i], 0, NULL, err);
    return r;
}
