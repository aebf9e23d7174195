/* The stick: which drive it takes, which it refuses, damaged ones, larger ones, other sectors. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "image/drivelook.h"
#include "image/fatview.h"
#include "image/kit.h"
#include "image/rawdisk.h"

#define OTHER_SERIAL "HXTARGET0002"
#define SMALL_SERIAL "HXSMALL00001"
#define SMALL_BYTES  ((uint64_t)4 << 30)
#define STICK_BYTES  ((uint64_t)8 << 30)
#define WORDS        "kept through a reinstallation\n"

/* Answers that name a drive twice; `more` may be "". */
static int describe(struct hx_scene *s, const char *name, const char *stick, const char *mode,
                    const char *serial, const char *more, struct hx_error *err)
{
    char lines[400];
    snprintf(lines, sizeof(lines), "mode = %s\ntarget_serial = %s\nconfirm_erase_serial = %s\n%s",
             mode, serial, serial, more);
    char vars[512];
    hx_kit_path(s, name, "vars", vars, sizeof(vars));
    unlink(vars);
    int r = hx_scene_answers(s, lines, err);
    if (!r)
        r = hx_scene_setup(s, name, err);
    if (r)
        return r;
    hx_scene_add_disk(s, stick, HX_VM_USB)->snapshot = true;
    s->setup.credentials[s->setup.n_credentials++] =
        (struct hx_vm_credential){"hx170.answers", s->answers};
    return 0;
}

static struct hx_vm_disk *add_target(struct hx_scene *s, const char *path, const char *serial)
{
    struct hx_vm_disk *d = hx_scene_add_disk(s, path, HX_VM_NVME);
    d->serial = serial;
    return d;
}

/* Until the drive is installed; the power is cut then. */
static int run_install(struct hx_scene *s, struct hx_error *err)
{
    static const char *const markers[] = {"is installed on",
                                          "hx-setup: ", "hx-install: ", "cannot start: "};
    unsigned which = 0;
    hx_vm_close(&s->vm);
    int r = hx_vm_start(&s->vm, &s->setup, err);
    if (!r)
        r = hx_vm_wait_any(&s->vm, markers, 4, &which, s->deadline, err);
    if (!r && which) {
        struct hx_buf tail = HX_BUF_INIT(HX_SERIAL_MAX);
        hx_child_sleep(1000, s->deadline);
        r = hx_serial_tail(&s->vm.serial, 3, &tail, err);
        if (!r)
            r = hx_fail(err, -EIO, "the installation failed: %.400s", hx_buf_cstr(&tail));
        hx_buf_done(&tail);
    }
    hx_kit_cut(s);
    return r;
}

static int boots(struct hx_scene *s, const char *disk, unsigned sector, struct hx_error *err)
{
    struct hx_drive_known known = {.version = ""};
    struct hx_drive_memory memory = {0};
    struct hx_drive_look look;
    char path[512];
    snprintf(path, sizeof(path), "%s/image/work/out/uki.efi", s->build);
    int r = hx_rawdisk_hash(path, known.sha256, err);
    if (!r)
        r = hx_drive_look(disk, sector, &known, 1, &memory, &look, err);
    if (!r && (look.verdict != HX_DRIVE_BOOTS || look.n_entries != 1))
        r = hx_fail(err, -EBADMSG, "%s does not boot: %s (entries:%s)", disk, look.why,
                    look.versions);
    return r;
}

/* A blank drive with something on it. */
static int used_drive(struct hx_scene *s, const char *name, uint64_t n_bytes, char *path,
                      size_t size, struct hx_error *err)
{
    static const char text[] = "somebody's data";
    hx_kit_path(s, name, "disk", path, size);
    int r = hx_rawdisk_blank(path, n_bytes, err);
    return r ? r : hx_rawdisk_write(path, 700 << 20, text, sizeof(text), err);
}

/* I3, I10: two drives, answers name the second; the stick is larger than its image, so that the
 * second partition table is not at its end. The second stays as other.disk: another installation of
 * the same system. */
int hx_scene_two_drives(struct hx_scene *s, struct hx_error *err)
{
    char stick[512], first[512], second[512], before[65], after[65];
    hx_kit_path(s, "large", "stick", stick, sizeof(stick));
    int r = hx_rawdisk_copy(s->stick, stick, err);
    if (!r && truncate(stick, (off_t)STICK_BYTES) < 0)
        r = hx_fail_errno(err, errno, "%s", stick);
    if (!r)
        r = used_drive(s, "two-first", HX_SCENE_TARGET_BYTES, first, sizeof(first), err);
    if (!r)
        r = used_drive(s, "other", HX_SCENE_TARGET_BYTES, second, sizeof(second), err);
    if (!r)
        r = hx_rawdisk_digest(first, before, err);
    if (!r)
        r = describe(s, "two-drives", stick, "install", OTHER_SERIAL, "", err);
    if (r)
        return r;
    add_target(s, first, HX_SCENE_SERIAL);
    add_target(s, second, OTHER_SERIAL);
    r = run_install(s, err);
    if (!r)
        r = hx_rawdisk_digest(first, after, err);
    if (!r && strcmp(before, after) != 0)
        r = hx_fail(err, -EBADMSG, "the first drive was written to");
    if (!r)
        r = boots(s, second, 512, err);
    unlink(stick);
    unlink(first);
    if (r)
        unlink(second);
    return r;
}

/* I4: no such drive; one that is too small. Nothing is written to any. */
int hx_scene_wrong_drive(struct hx_scene *s, struct hx_error *err)
{
    static const char *const serials[] = {"HXNOTTHERE01", SMALL_SERIAL};
    static const char *const markers[] = {"is not on offer here", "is installed on"};
    char small[512], large[512], before[2][65], after[2][65];
    int r = used_drive(s, "wrong-large", HX_SCENE_TARGET_BYTES, large, sizeof(large), err);
    if (!r)
        r = used_drive(s, "wrong-small", SMALL_BYTES, small, sizeof(small), err);
    if (!r)
        r = hx_rawdisk_digest(large, before[0], err);
    if (!r)
        r = hx_rawdisk_digest(small, before[1], err);
    for (size_t i = 0; i < sizeof(serials) / sizeof(serials[0]) && !r; i++) {
        unsigned which = 1;
        r = describe(s, "wrong-drive", s->stick, "install", serials[i], "", err);
        if (r)
            break;
        add_target(s, large, HX_SCENE_SERIAL);
        add_target(s, small, SMALL_SERIAL);
        hx_vm_close(&s->vm);
        r = hx_vm_start(&s->vm, &s->setup, err);
        if (!r)
            r = hx_vm_wait_any(&s->vm, markers, 2, &which, s->deadline, err);
        if (!r && which)
            r = hx_fail(err, -EBADMSG, "'%s' was installed to", serials[i]);
        hx_kit_cut(s);
    }
    if (!r)
        r = hx_rawdisk_digest(large, after[0], err);
    if (!r)
        r = hx_rawdisk_digest(small, after[1], err);
    if (!r && (strcmp(before[0], after[0]) != 0 || strcmp(before[1], after[1]) != 0))
        r = hx_fail(err, -EBADMSG, "a drive was written to");
    unlink(large);
    unlink(small);
    return r;
}

/* Byte on the stick in the middle of a file of its ESP. */
static int middle_of(const char *stick, const char *file, uint64_t *at, struct hx_error *err)
{
    struct hx_fatview v;
    struct hx_fatview_file f;
    uint64_t esp, n;
    int r = hx_kit_partition(stick, 1, &esp, &n, err);
    int fd = r ? -1 : open(stick, O_RDONLY | O_CLOEXEC);
    if (!r && fd < 0)
        r = hx_fail_errno(err, errno, "%s", stick);
    if (!r)
        r = hx_fatview_open(&v, fd, esp, n, err);
    if (!r)
        r = hx_fatview_find(&v, file, &f, err);
    /* Files of a fresh stick lie in one piece. */
    if (!r)
        *at = v.data + (uint64_t)(f.first - 2) * v.cluster + f.n_bytes / 2;
    if (fd >= 0)
        close(fd);
    return r;
}

/* I7: hash tree, kernel image, a file of the ESP. Whatever notices it, nothing is installed. */
int hx_scene_damaged_sticks(struct hx_scene *s, struct hx_error *err)
{
    char stick[512], target[512], kernel[64], version[32], before[65], after[65];
    hx_kit_path(s, "damaged", "stick", stick, sizeof(stick));
    int r = hx_kit_version(s, version, sizeof(version), err);
    snprintf(kernel, sizeof(kernel), "EFI/Linux/hx170_%s.efi", version);
    const struct {
        const char *what, *file;
        const char *words[3];
    } rows[] = {
        {"hash tree", NULL, {"is corrupted", "damaged", "Kernel panic"}},
        {"kernel image", kernel, {"corrupt", "damaged", "Kernel panic"}},
        {"a boot loader",
         "EFI/systemd/systemd-bootx64.efi",
         {"EFI/systemd/systemd-bootx64.efi", "damaged", "damaged"}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !r; i++) {
        const char *const markers[] = {rows[i].words[0], rows[i].words[1], rows[i].words[2],
                                       "is installed on"};
        unsigned which = 3;
        uint64_t at = 0, n;
        r = hx_rawdisk_copy(s->stick, stick, err);
        if (!r)
            r = rows[i].file ? middle_of(stick, rows[i].file, &at, err)
                             : hx_kit_partition(stick, 3, &at, &n, err);
        if (!r)
            r = hx_rawdisk_damage(stick, rows[i].file ? at : at + 4096 * 20, err);
        if (!r)
            r = used_drive(s, "damaged-target", HX_SCENE_TARGET_BYTES, target, sizeof(target), err);
        if (!r)
            r = hx_rawdisk_digest(target, before, err);
        if (!r)
            r = describe(s, "damaged-stick", stick, "install", HX_SCENE_SERIAL, "", err);
        if (r)
            break;
        add_target(s, target, HX_SCENE_SERIAL);
        hx_vm_close(&s->vm);
        r = hx_vm_start(&s->vm, &s->setup, err);
        if (!r)
            r = hx_vm_wait_any(&s->vm, markers, 4, &which, s->deadline, err);
        if (!r && which == 3)
            r = hx_fail(err, -EBADMSG, "a stick with damage to %s was installed", rows[i].what);
        hx_kit_cut(s);
        if (!r)
            r = hx_rawdisk_digest(target, after, err);
        if (!r && strcmp(before, after) != 0)
            r = hx_fail(err, -EBADMSG, "a stick with damage to %s wrote to the drive",
                        rows[i].what);
        if (r)
            r = hx_wrap(err, r, "%s", rows[i].what);
    }
    unlink(stick);
    unlink(target);
    return r;
}

/* I8: again onto an installed drive: models stay, the state is new. */
int hx_scene_reinstall(struct hx_scene *s, struct hx_error *err)
{
    char from[512], disk[512], file[512], command[600];
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    hx_kit_path(s, "settled", "disk", from, sizeof(from));
    hx_kit_path(s, "reinstall", "disk", disk, sizeof(disk));
    hx_kit_path(s, "models", "txt", file, sizeof(file));
    int r = hx_file_replace(file, WORDS, strlen(WORDS), err);
    if (!r && access(from, R_OK) < 0)
        r = hx_fail(err, HX_SCENE_SKIP, "%s is missing: scenario firstboot makes it", from);
    if (!r)
        r = hx_rawdisk_copy(from, disk, err);
    snprintf(command, sizeof(command), "write %s models.txt", file);
    if (!r)
        r = hx_kit_debugfs(s, disk, 7, command, &out, err);
    if (!r)
        r = describe(s, "reinstall", s->stick, "reinstall", HX_SCENE_SERIAL, "keep_models = yes\n",
                     err);
    if (!r) {
        add_target(s, disk, HX_SCENE_SERIAL);
        r = run_install(s, err);
    }
    if (!r)
        r = boots(s, disk, 512, err);
    if (!r)
        r = hx_kit_debugfs(s, disk, 7, "cat models.txt", &out, err);
    const char *said = r ? NULL : hx_buf_cstr(&out);
    if (!r && (!said || !strstr(said, WORDS)))
        r = hx_fail(err, -EBADMSG, "the models are gone: %.200s", said ? said : "");
    uint64_t at = 0, n;
    if (!r)
        r = hx_kit_partition(disk, 6, &at, &n, err);
    uint8_t head[2048];
    int fd = r ? -1 : open(disk, O_RDONLY | O_CLOEXEC);
    if (!r)
        r = hx_file_pread(fd, disk, head, sizeof(head), at, err);
    if (fd >= 0)
        close(fd);
    if (!r && (head[1080] || head[1081]))
        r = hx_fail(err, -EBADMSG, "the old state is still there");
    hx_buf_done(&out);
    unlink(disk);
    return r;
}

/* F3: what makes a machine is not what another one has that was installed from the same image. */
static int is_another(struct hx_scene *s, struct hx_error *err)
{
    char other[512], key[HX_SHA256_HEX], command[300];
    hx_kit_path(s, "settled", "disk", other, sizeof(other));
    if (access(other, R_OK) < 0)
        return hx_fail(err, HX_SCENE_SKIP, "%s is missing: scenario firstboot makes it", other);
    int r = hx_kit_host_key(s, other, key, err);
    snprintf(command, sizeof(command),
             "k=$(sha256sum </var/lib/hx170/ssh/ssh_host_ed25519_key.pub); echo \"$k\"; "
             "case $k in %s*) exit 1;; esac",
             key);
    return r ? r : hx_kit_expect(s, command, 0, "  -", err);
}

/* I9, F3: sectors of 4096 bytes; installed, then started. */
int hx_scene_large_sectors(struct hx_scene *s, struct hx_error *err)
{
    char target[512];
    int r = used_drive(s, "sectors", HX_SCENE_TARGET_BYTES, target, sizeof(target), err);
    if (!r)
        r = describe(s, "sectors", s->stick, "install", HX_SCENE_SERIAL, "", err);
    if (!r) {
        add_target(s, target, HX_SCENE_SERIAL)->sector = 4096;
        r = run_install(s, err);
    }
    if (!r)
        r = boots(s, target, 4096, err);
    if (!r)
        r = hx_scene_answers(s, "", err);
    if (!r)
        r = hx_scene_setup(s, "sectors", err);
    if (!r) {
        add_target(s, target, HX_SCENE_SERIAL)->sector = 4096;
        s->setup.credentials[s->setup.n_credentials++] =
            (struct hx_vm_credential){"hx170.answers", s->answers};
        r = hx_kit_start(s, err);
    }
    if (!r)
        r = hx_kit_login(s, err);
    if (!r)
        r = hx_kit_settled(s, err);
    if (!r)
        r = is_another(s, err);
    unlink(target);
    return r;
}
