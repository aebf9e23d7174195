#include "image/kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "image/rawdisk.h"
#include "init/gpt.h"

#define CONNECTS   10
#define CONNECT_MS 3000

static const struct {
    const char *name;  /* of the bundle's file */
    const char *fault; /* word for variant.sh */
    unsigned number;
} variants[HX_KIT_FAULTS] = {
    [HX_KIT_GOOD] = {"good", "good", 1}, [HX_KIT_HANG] = {"hang", "hang", 2},
    [HX_KIT_SICK] = {"sick", "sick", 3}, [HX_KIT_STUCK] = {"stuck", "stuck", 4},
    [HX_KIT_LOST] = {"lost", "lost", 5}, [HX_KIT_NEXT] = {"next", "good", 9},
};

void hx_kit_path(const struct hx_scene *s, const char *name, const char *suffix, char *out,
                 size_t size)
{
    snprintf(out, size, "%s/%s.%s", s->work, name, suffix);
}

/* The value of `key` in the built manifest. */
static int manifest(const struct hx_scene *s, const char *key, char *out, size_t size,
                    struct hx_error *err)
{
    char path[512], *text;
    size_t len;
    snprintf(path, sizeof(path), "%s/image/work/out/manifest", s->build);
    int r = hx_file_read(path, 1 << 16, &text, &len, err);
    if (r)
        return r;
    size_t n = strlen(key);
    r = hx_fail(err, -ENODATA, "%s: no line '%s'", path, key);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        if (!strncmp(line, key, n) && !strncmp(line + n, " = ", 3)) {
            snprintf(out, size, "%.*s", (int)strcspn(line + n + 3, "\n"), line + n + 3);
            r = 0;
            break;
        }
    free(text);
    return r;
}

int hx_kit_version(const struct hx_scene *s, char *out, size_t size, struct hx_error *err)
{
    return manifest(s, "version", out, size, err);
}

static int make_bundle(struct hx_scene *s, const char *fault, const struct hx_kit_bundle *b,
                       const char *key, struct hx_error *err)
{
    const char *const argv[] = {
        "tests/image/variant.sh", s->build, fault, b->version, key, b->path, NULL};
    struct hx_buf said = HX_BUF_INIT(1 << 20);
    int code = -1;
    int r = hx_child_run(argv, NULL, &said, &code, s->deadline, err);
    if (!r && code)
        r = hx_fail(err, -EIO, "variant.sh %s ends with %d: %.400s", fault, code,
                    hx_buf_cstr(&said));
    hx_buf_done(&said);
    return r;
}

int hx_kit_bundle(struct hx_scene *s, enum hx_kit_fault fault, struct hx_kit_bundle *out,
                  struct hx_error *err)
{
    char key[300], built[300], base[32], lock[300];
    struct stat image, have;
    snprintf(key, sizeof(key), "%s/image/throw-away.pem", s->build);
    snprintf(built, sizeof(built), "%s/image/work/out/root.hash", s->build);
    if (access(key, R_OK) < 0)
        return hx_fail(err, HX_SCENE_SKIP,
                       "%s is missing: the image was built with a key of its own", key);
    int r = hx_kit_version(s, base, sizeof(base), err);
    if (r)
        return r;
    snprintf(out->version, sizeof(out->version), "%s.%u", base, variants[fault].number);
    hx_kit_path(s, variants[fault].name, "bundle", out->path, sizeof(out->path));
    if (stat(built, &image) < 0)
        return hx_fail_errno(err, errno, "%s", built);
    /* Scenarios beside this one want them too. */
    hx_kit_path(s, "bundles", "lock", lock, sizeof(lock));
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        r = hx_fail_errno(err, errno, "%s", lock);
    if (!r && (stat(out->path, &have) < 0 || have.st_mtime <= image.st_mtime))
        r = make_bundle(s, variants[fault].fault, out, key, err);
    if (fd >= 0)
        close(fd);
    return r;
}

int hx_kit_machine(struct hx_scene *s, const char *name, const char *from, struct hx_error *err)
{
    static char copy[512];
    char old[512];
    if (access(from, R_OK) < 0)
        return hx_fail(err, HX_SCENE_SKIP, "%s is missing: another scenario makes it (see --list)",
                       from);
    hx_kit_path(s, name, "disk", copy, sizeof(copy));
    hx_kit_path(s, name, "vars", old, sizeof(old));
    unlink(old);
    int r = hx_rawdisk_copy(from, copy, err);
    if (!r)
        r = hx_scene_answers(s, "", err);
    if (!r)
        r = hx_scene_setup(s, name, err);
    if (r)
        return r;
    hx_scene_add_disk(s, copy, HX_VM_NVME)->serial = HX_SCENE_SERIAL;
    s->setup.credentials[s->setup.n_credentials++] =
        (struct hx_vm_credential){"hx170.answers", s->answers};
    return 0;
}

uint64_t hx_kit_random(uint64_t *state)
{
    /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

int hx_kit_start(struct hx_scene *s, struct hx_error *err)
{
    hx_vm_close(&s->vm);
    int r = hx_vm_start(&s->vm, &s->setup, err);
    if (!r)
        r = hx_vm_ssh_port(&s->vm, &s->ssh.port, err);
    return r ? r : hx_vm_wait(&s->vm, HX_KIT_STARTS, s->deadline, err);
}

int hx_kit_login(struct hx_scene *s, struct hx_error *err)
{
    s->ssh.user = "admin";
    return hx_ssh_wait(&s->ssh, s->deadline, err);
}

int hx_kit_boot(struct hx_scene *s, struct hx_error *err)
{
    int r = hx_kit_start(s, err);
    if (!r)
        r = hx_kit_login(s, err);
    return r ? r : hx_kit_settled(s, err);
}

void hx_kit_cut(struct hx_scene *s)
{
    hx_vm_kill(&s->vm);
}

int hx_kit_power_off(struct hx_scene *s, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    int code;
    s->ssh.user = "admin";
    /* The connection goes away with the machine: its status says nothing. */
    int r = hx_ssh_run(&s->ssh, "sudo systemctl poweroff", &out, &code, s->deadline, err);
    hx_buf_done(&out);
    return r ? r : hx_vm_wait_exit(&s->vm, s->deadline, err);
}

int hx_kit_snapshot(struct hx_scene *s, const char *to, struct hx_error *err)
{
    int r = hx_vm_monitor(&s->vm, "stop", NULL, err);
    if (!r)
        r = hx_rawdisk_copy(s->setup.disks[0].path, to, err);
    int go = hx_vm_monitor(&s->vm, "cont", NULL, r ? NULL : err);
    return r ? r : go;
}

int hx_kit_expect(struct hx_scene *s, const char *command, int status, const char *words,
                  struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(256 << 10);
    int code = -1;
    s->ssh.user = "admin";
    int r;
    /* 255 is the client's own: on a busy host a connection may not come about. */
    for (int i = 0; i < CONNECTS; i++) {
        r = hx_ssh_run(&s->ssh, command, &out, &code, s->deadline, err);
        if (r || code != 255 || !hx_child_sleep(CONNECT_MS, s->deadline))
            break;
    }
    const char *said = r ? NULL : hx_buf_cstr(&out);
    size_t len = out.len;
    if (!r && (code != status || (words && (!said || !strstr(said, words)))))
        r = hx_fail(err, -EBADMSG, "'%s' ends with %d, expected %d and '%s'; it said: %s", command,
                    code, status, words ? words : "", said + (len > 400 ? len - 400 : 0));
    hx_buf_done(&out);
    return r;
}

int hx_kit_ask(struct hx_scene *s, const char *command, char *out, size_t size,
               struct hx_error *err)
{
    struct hx_buf b = HX_BUF_INIT(256 << 10);
    int r;
    for (int i = 0; i < CONNECTS; i++) {
        r = hx_scene_admin(s, command, &b, err);
        if (r != -EIO || !hx_child_sleep(CONNECT_MS, s->deadline))
            break;
    }
    const char *said = r ? NULL : hx_buf_cstr(&b);
    if (!r)
        snprintf(out, size, "%.*s", said ? (int)strcspn(said, "\n") : 0, said ? said : "");
    hx_buf_done(&b);
    return r;
}

int hx_kit_settled(struct hx_scene *s, struct hx_error *err)
{
    /* The demo model takes minutes, and nothing here needs it; the engine waits for it. */
    return hx_kit_expect(s,
                         "jobs() { systemctl list-jobs --no-legend --plain | "
                         "grep -vE 'hx-demo|hx-engine|multi-user|No jobs'; }; "
                         "while jobs >/dev/null; do sleep 1; done; "
                         "systemctl --failed --no-legend --plain | grep . || echo settled",
                         0, "settled\n", err);
}

int hx_kit_host_key(struct hx_scene *s, const char *disk, char hex[HX_SHA256_HEX],
                    struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    uint8_t digest[HX_SHA256_BYTES];
    int r = hx_kit_debugfs(s, disk, 6, "cat /lib/hx170/ssh/ssh_host_ed25519_key.pub", &out, err);
    const char *said = r ? NULL : hx_buf_cstr(&out);
    const char *key = said ? strstr(said, "ssh-ed25519 ") : NULL;
    if (!r && !key)
        r = hx_fail(err, -ENODATA, "no host key on %s: %.200s", disk, said ? said : "");
    if (!r)
        r = hx_sha256_data(key, strlen(key), digest);
    if (!r)
        hx_sha256_to_hex(digest, hex);
    hx_buf_done(&out);
    return r;
}

int hx_kit_partition(const char *disk, unsigned number, uint64_t *at, uint64_t *n_bytes,
                     struct hx_error *err)
{
    struct hx_gpt *t = NULL;
    int r = hx_rawdisk_table(disk, &t, err);
    const struct hx_gpt_entry *found = NULL;
    for (unsigned i = 0; !r && i < t->n_entries; i++)
        if (t->entries[i].number == number)
            found = &t->entries[i];
    if (!r && !found)
        r = hx_fail(err, -ENODATA, "%s: no partition %u", disk, number);
    if (!r) {
        *at = found->first * 512;
        *n_bytes = (found->last - found->first + 1) * 512;
    }
    free(t);
    return r;
}

int hx_kit_debugfs(struct hx_scene *s, const char *disk, unsigned number, const char *command,
                   struct hx_buf *out, struct hx_error *err)
{
    uint64_t at, n;
    char image[600];
    int code = -1;
    int r = hx_kit_partition(disk, number, &at, &n, err);
    if (r)
        return r;
    snprintf(image, sizeof(image), "%s?offset=%llu", disk, (unsigned long long)at);
    const char *const argv[] = {"/usr/sbin/debugfs", "-w", "-R", command, image, NULL};
    r = hx_child_run(argv, NULL, out, &code, s->deadline, err);
    const char *said = r ? NULL : hx_buf_cstr(out);
    if (!r && code)
        r = hx_fail(err, -EIO, "debugfs '%s' ends with %d: %.300s", command, code,
                    said ? said : "");
    return r;
}
