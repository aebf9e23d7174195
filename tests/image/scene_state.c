/* The data partitions: full, broken, reset; and clocks that are wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "image/kit.h"
#include "image/rawdisk.h"

#define STATE  6u
#define MODELS 7u
#define MARKER "test-marker"
#define WORDS  "kept through everything\n"

/* Takes the credential away: the next starts get no answers. */
static void without_answers(struct hx_scene *s)
{
    s->setup.n_credentials = 0;
}

static int describe(struct hx_scene *s, const char *name, char *disk, size_t size,
                    struct hx_error *err)
{
    char from[512];
    hx_kit_path(s, "settled", "disk", from, sizeof(from));
    hx_kit_path(s, name, "disk", disk, size);
    int r = hx_kit_machine(s, name, from, err);
    if (!r)
        without_answers(s);
    return r;
}

/* A file among the models, which nothing here may lose. */
static int put_marker(struct hx_scene *s, const char *disk, struct hx_error *err)
{
    char file[512], command[600];
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    hx_kit_path(s, "marker", "txt", file, sizeof(file));
    int r = hx_file_replace(file, WORDS, strlen(WORDS), err);
    snprintf(command, sizeof(command), "write %s " MARKER, file);
    if (!r)
        r = hx_kit_debugfs(s, disk, MODELS, command, &out, err);
    hx_buf_done(&out);
    return r;
}

static int find_marker(struct hx_scene *s, const char *disk, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    int r = hx_kit_debugfs(s, disk, MODELS, "cat " MARKER, &out, err);
    const char *said = r ? NULL : hx_buf_cstr(&out);
    if (!r && (!said || !strstr(said, WORDS)))
        r = hx_fail(err, -EBADMSG, "the file among the models is gone: %.200s", said ? said : "");
    hx_buf_done(&out);
    return r;
}

/* S1: not one free block on the state partition, the reserve for root included. */
int hx_scene_full_state(struct hx_scene *s, struct hx_error *err)
{
    char disk[512];
    int r = describe(s, "full-state", disk, sizeof(disk), err);
    if (!r)
        r = hx_kit_start(s, err);
    if (!r)
        r = hx_kit_login(s, err);
    if (!r)
        r = hx_kit_expect(s,
                          "sudo sh -c 'n=$(df --output=avail -B1M /var | tail -1); fallocate -l "
                          "$((n))M /var/fill; cat /dev/zero >/var/fill2; df -k /var | tail -1; "
                          "sync'; true",
                          0, "100%", err);
    if (!r)
        r = hx_kit_power_off(s, err);
    /* A start with no place at all. */
    if (!r)
        r = hx_kit_start(s, err);
    if (!r)
        r = hx_kit_login(s, err);
    static const struct {
        const char *command;
        int status;
        const char *words;
    } rows[] = {
        {"hx status; test $? -lt 64 && echo said", 0, "said"},
        {"sudo hx-update status", 0, "good"},
        /* The journal makes room for itself or writes nothing; it does not grow. */
        {"journalctl --disk-usage >/dev/null && echo readable", 0, "readable"},
        {"h=$(sha256sum </run/hx170/box.conf); sudo hx-setup name --answers /dev/null "
         ">/dev/null 2>&1; test \"$h\" = \"$(sha256sum </run/hx170/box.conf)\" && echo same",
         0, "same"},
        {"sudo rm /var/fill /var/fill2 && echo freed", 0, "freed"},
        {"sudo sh -c 'echo x >/var/lib/hx170/check/test && rm /var/lib/hx170/check/test' && echo "
         "writable",
         0, "writable"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !r; i++)
        r = hx_kit_expect(s, rows[i].command, rows[i].status, rows[i].words, err);
    return r;
}

/* S2: the superblock of the state partition is gone. */
int hx_scene_lost_state(struct hx_scene *s, struct hx_error *err)
{
    char disk[512];
    uint64_t at, n;
    static const uint8_t zeros[1024];
    int r = describe(s, "lost-state", disk, sizeof(disk), err);
    if (!r)
        r = put_marker(s, disk, err);
    if (!r)
        r = hx_kit_partition(disk, STATE, &at, &n, err);
    if (!r)
        r = hx_rawdisk_write(disk, at + 1024, zeros, sizeof(zeros), err);
    if (!r)
        r = hx_kit_start(s, err);
    if (!r)
        r = hx_vm_wait(&s->vm, "this system could not start completely", s->deadline, err);
    if (!r)
        r = hx_vm_wait(&s->vm, "neither empty nor ext4", s->deadline, err);
    if (!r)
        r = hx_vm_wait(&s->vm, "Number:", s->deadline, err);
    if (!r)
        r = hx_vm_type(&s->vm, "3\r", err);
    if (!r)
        r = hx_vm_wait(&s->vm, "Type erase to go on", s->deadline, err);
    if (!r)
        r = hx_vm_type(&s->vm, "erase\r", err);
    if (!r)
        r = hx_vm_wait(&s->vm, "The machine starts again", s->deadline, err);
    if (!r)
        r = hx_vm_wait(&s->vm, HX_KIT_STARTS, s->deadline, err);
    /* The wizard, as on a new box. */
    if (!r)
        r = hx_vm_wait(&s->vm, "Step 1 of", s->deadline, err);
    hx_kit_cut(s);
    return r ? r : find_marker(s, disk, err);
}

/* S3: a reset of the state, its start cut off twice. */
int hx_scene_reset(struct hx_scene *s, struct hx_error *err)
{
    static const int64_t cuts[] = {9000, 14000};
    char disk[512], before[128];
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    int code = 0;
    int r = describe(s, "reset", disk, sizeof(disk), err);
    if (!r)
        r = put_marker(s, disk, err);
    if (!r)
        r = hx_kit_start(s, err);
    if (!r)
        r = hx_kit_login(s, err);
    if (!r)
        r = hx_kit_ask(s, "cat /etc/machine-id", before, sizeof(before), err);
    if (!r)
        r = hx_kit_expect(s, "sudo hx-update reset state --yes", 0, "at the next start", err);
    if (!r)
        r = hx_kit_power_off(s, err);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]) && !r; i++) {
        r = hx_kit_start(s, err);
        if (!r && !hx_child_sleep(cuts[i], s->deadline))
            r = hx_fail(err, -ETIMEDOUT, "no time left");
        hx_kit_cut(s);
    }
    if (!r)
        r = hx_kit_start(s, err);
    if (!r)
        r = hx_vm_wait(&s->vm, "Step 1 of", s->deadline, err);
    /* The server runs by then, or has no key to let anybody in: the old one must not do. */
    int64_t until = hx_child_within(s->deadline, 60000);
    s->ssh.user = "admin";
    while (!r && code != 255 && hx_child_sleep(500, until))
        r = hx_ssh_run(&s->ssh, "true", &out, &code, until, err);
    const char *said = r ? NULL : hx_buf_cstr(&out);
    if (!r && code != 255)
        r = hx_fail(err, -EBADMSG, "the old key still opens the box: %.200s", said ? said : "");
    hx_kit_cut(s);
    hx_buf_done(&out);
    return r ? r : find_marker(s, disk, err);
}

/* S4: clocks of boards without a battery, and of the far future. */
int hx_scene_clock(struct hx_scene *s, struct hx_error *err)
{
    static const struct {
        const char *clock, *check;
    } rows[] = {
        /* Never before the system was made. */
        {"1970-01-01T00:00:00", "test $(date +%Y) -ge 2024"},
        {"2040-06-01T00:00:00", "test $(date +%Y) -eq 2040"},
    };
    char disk[512];
    int r = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !r; i++) {
        r = describe(s, "clock", disk, sizeof(disk), err);
        s->setup.clock = rows[i].clock;
        if (!r)
            r = hx_kit_boot(s, err);
        if (!r)
            r = hx_kit_expect(s, rows[i].check, 0, NULL, err);
        if (!r)
            r = hx_kit_expect(s, "hx status; test $? -lt 64", 0, NULL, err);
        hx_kit_cut(s);
    }
    return r;
}
