/* Scenarios that put the system on a drive. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "image/rawdisk.h"
#include "image/scene.h"
#include "init/gpt.h"

/* Partition table of appliance.md 2.2; 0 MiB: the rest of the drive. */
static const struct {
    const char *label; /* up to '*', which stands for the version */
    const char *type;
    unsigned mib;
} wanted[] = {
    {"ESP", "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", 1024},
    {"root_*", "4f68bce3-e8cd-4db1-96e7-fbcaf984b709", 2048},
    {"rootv_*", "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5", 64},
    {"_empty", "4f68bce3-e8cd-4db1-96e7-fbcaf984b709", 2048},
    {"_empty", "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5", 64},
    {"state", "0fc63daf-8483-4772-8e79-3d69d8477de4", 16384},
    {"models", "0fc63daf-8483-4772-8e79-3d69d8477de4", 0},
};
#define N_WANTED (sizeof(wanted) / sizeof(wanted[0]))

static bool label_fits(const char *want, const char *label)
{
    size_t n = strcspn(want, "*");
    return !strncmp(want, label, n) && (want[n] == '*' ? label[n] != '\0' : label[n] == '\0');
}

/* The halves of the root hash are the GUIDs of root and hash tree. */
static int check_hash(const struct hx_scene *s, const struct hx_gpt *t, struct hx_error *err)
{
    char path[512], *hash;
    size_t len;
    snprintf(path, sizeof(path), "%s/image/work/out/root.hash", s->build);
    int r = hx_file_read(path, 4096, &hash, &len, err);
    if (r)
        return r;
    for (unsigned half = 0; half < 2 && !r; half++) {
        char guid[37], digits[33];
        unsigned n = 0;
        hx_gpt_guid_text(t->entries[1 + half].guid, guid);
        for (const char *p = guid; *p && n < 32; p++)
            if (*p != '-')
                digits[n++] = *p;
        digits[n] = '\0';
        if (len < 64 || strncmp(digits, hash + (size_t)half * 32, 32) != 0)
            r = hx_fail(err, -EBADMSG,
                        "partition %u has GUID %s, which is no half of the root hash", 2 + half,
                        guid);
    }
    free(hash);
    return r;
}

static int check_table(const struct hx_scene *s, const char *disk, struct hx_error *err)
{
    struct hx_gpt *t = NULL;
    int r = hx_rawdisk_table(disk, &t, err);
    if (!r && t->n_entries != N_WANTED)
        r = hx_fail(err, -EBADMSG, "%u partitions, expected %zu", t->n_entries, N_WANTED);
    for (size_t i = 0; !r && i < N_WANTED; i++) {
        const struct hx_gpt_entry *e = &t->entries[i];
        char type[37];
        hx_gpt_guid_text(e->type, type);
        uint64_t mib = (e->last - e->first + 1) >> 11;
        if (!label_fits(wanted[i].label, e->label) || strcmp(type, wanted[i].type) != 0 ||
            (wanted[i].mib && mib != wanted[i].mib) || mib < 64)
            r = hx_fail(err, -EBADMSG,
                        "partition %zu is '%s', type %s, %llu MiB; expected '%s', %s, %u MiB",
                        i + 1, e->label, type, (unsigned long long)mib, wanted[i].label,
                        wanted[i].type, wanted[i].mib);
    }
    if (!r)
        r = check_hash(s, t, err);
    free(t);
    return r;
}

/* I1, I2: stick and blank NVMe drive, answers by credential, nobody at the keyboard. */
int hx_scene_install(struct hx_scene *s, struct hx_error *err)
{
    char target[512];
    snprintf(target, sizeof(target), "%s/install.disk", s->work);
    unlink(s->installed);
    int r = hx_rawdisk_blank(target, HX_SCENE_TARGET_BYTES, err);
    if (!r)
        r = hx_scene_answers(s, HX_SCENE_UNATTENDED, err);
    if (!r)
        r = hx_scene_setup(s, "install", err);
    if (r)
        return r;
    struct hx_vm_disk *stick = hx_scene_add_disk(s, s->stick, HX_VM_USB);
    stick->snapshot = true;
    hx_scene_add_disk(s, target, HX_VM_NVME)->serial = HX_SCENE_SERIAL;
    s->setup.credentials[s->setup.n_credentials++] =
        (struct hx_vm_credential){"hx170.answers", s->answers};
    r = hx_vm_start(&s->vm, &s->setup, err);
    static const char *const markers[] = {"is installed on",
                                          "hx-setup: ", "hx-install: ", "cannot start: "};
    unsigned which = 0;
    if (!r)
        r = hx_vm_wait_any(&s->vm, markers, 4, &which, s->deadline, err);
    if (!r && which != 0) {
        struct hx_buf tail = HX_BUF_INIT(HX_SERIAL_MAX);
        /* The line is complete a moment after its beginning. */
        hx_child_sleep(1000, s->deadline);
        r = hx_serial_tail(&s->vm.serial, 3, &tail, err);
        if (!r)
            r = hx_fail(err, -EIO, "the installation failed: %.400s", hx_buf_cstr(&tail));
        hx_buf_done(&tail);
    }
    if (r)
        return r;
    hx_scene_target("unattended install", (double)hx_vm_age(&s->vm) / 1000, 180, "s");
    /* A power cut right behind the message: what it says has to be on the drive. */
    hx_vm_kill(&s->vm);
    r = check_table(s, target, err);
    if (!r && rename(target, s->installed) < 0)
        r = hx_fail_errno(err, errno, "%s", s->installed);
    return r;
}

/* I7: a byte of the root flipped on the stick. No disk may be written to. */
int hx_scene_damaged(struct hx_scene *s, struct hx_error *err)
{
    char stick[512], target[512], before[65], after[65];
    snprintf(stick, sizeof(stick), "%s/damaged.stick", s->work);
    snprintf(target, sizeof(target), "%s/damaged.disk", s->work);
    int r = hx_rawdisk_copy(s->stick, stick, err);
    struct hx_gpt *t = calloc(1, sizeof(*t));
    int fd = open(s->stick, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (!r && (!t || fd < 0 || fstat(fd, &st) < 0))
        r = hx_fail_errno(err, t ? errno : ENOMEM, "%s", s->stick);
    if (!r)
        r = hx_gpt_read(fd, (uint64_t)st.st_size, 512, t, err);
    if (!r && t->n_entries < 2)
        r = hx_fail(err, -EBADMSG, "%s: no root partition", s->stick);
    /* Behind the superblock and far from its end: the machine comes up and meets it later. */
    if (!r)
        r = hx_rawdisk_damage(
            stick, (t->entries[1].first + (t->entries[1].last - t->entries[1].first) / 2) * 512,
            err);
    if (fd >= 0)
        close(fd);
    free(t);
    if (!r)
        r = hx_rawdisk_blank(target, HX_SCENE_TARGET_BYTES / 8, err);
    if (!r)
        r = hx_rawdisk_hash(target, before, err);
    if (!r)
        r = hx_scene_answers(s, HX_SCENE_UNATTENDED, err);
    if (!r)
        r = hx_scene_setup(s, "damaged", err);
    if (r)
        return r;
    hx_scene_add_disk(s, stick, HX_VM_USB)->snapshot = true;
    hx_scene_add_disk(s, target, HX_VM_NVME)->serial = HX_SCENE_SERIAL;
    s->setup.credentials[s->setup.n_credentials++] =
        (struct hx_vm_credential){"hx170.answers", s->answers};
    r = hx_vm_start(&s->vm, &s->setup, err);
    static const char *const markers[] = {"is corrupted", "damaged", "is installed on"};
    unsigned which = 2;
    if (!r)
        r = hx_vm_wait_any(&s->vm, markers, 3, &which, s->deadline, err);
    if (!r && which == 2)
        r = hx_fail(err, -EBADMSG, "a damaged stick was installed");
    hx_vm_kill(&s->vm);
    if (!r)
        r = hx_rawdisk_hash(target, after, err);
    if (!r && strcmp(before, after) != 0)
        r = hx_fail(err, -EBADMSG, "a damaged stick wrote to the drive");
    unlink(stick);
    unlink(target);
    return r;
}
