/* The Engram streamer on a real driver: an NVMe drive that cannot read a sector, gets slow, and is
 * pulled. The machine has the image's kernel and the drivers of its initrd; guest/drive.c is its
 * only program. */
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "image/drive.h"
#include "image/scene.h"

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

struct files {
    char guest[512], made[480], drive[512], errors[512], initrd[512], kernel[512];
};

/* The guest's program lies beside the one that runs. */
static int name_files(const struct hx_scene *s, struct files *f, struct hx_error *err)
{
    char self[480];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n < 0)
        return hx_fail_errno(err, errno, "/proc/self/exe");
    self[n] = '\0';
    snprintf(f->guest, sizeof(f->guest), "%.480s/image-drive", dirname(self));
    snprintf(f->made, sizeof(f->made), "%.460s/drive", s->work);
    snprintf(f->drive, sizeof(f->drive), "%s.ext4", f->made);
    snprintf(f->errors, sizeof(f->errors), "%s.errors", f->made);
    snprintf(f->initrd, sizeof(f->initrd), "%s.initrd", f->made);
    snprintf(f->kernel, sizeof(f->kernel), "%.460s/image/work/vmlinuz", s->build);
    return 0;
}

static int make_files(struct hx_scene *s, const struct files *f, struct hx_error *err)
{
    char image[512];
    snprintf(image, sizeof(image), "%.480s/image", s->build);
    const char *const argv[] = {
        "tests/image/drive_disk.py", image, f->guest, f->made, TEXT(DRIVE_ROWS), TEXT(DRIVE_OFFSET),
        TEXT(DRIVE_BAD_ROW),         NULL};
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    int code = 0, r = hx_child_run(argv, NULL, &out, &code, s->deadline, err);
    if (!r && code)
        r = hx_fail(err, -EIO, "%s ends with %d: %.400s", argv[0], code, hx_buf_cstr(&out));
    hx_buf_done(&out);
    return r;
}

/* The program's next line with this; what it complains about if that comes first. */
static int wait_line(struct hx_scene *s, const char *marker, struct hx_error *err)
{
    const char *const either[] = {marker, DRIVE_FAILED};
    unsigned which;
    int r = hx_vm_wait_any(&s->vm, either, 2, &which, s->deadline, err);
    if (r || which == 0)
        return r;
    struct hx_buf b = HX_BUF_INIT(1 << 16);
    r = hx_vm_wait_exit(&s->vm, s->deadline, err);
    if (!r)
        r = hx_serial_tail(&s->vm.serial, 3, &b, err);
    if (!r)
        r = hx_fail(err, -EBADMSG, "in the machine: %.400s", hx_buf_cstr(&b));
    hx_buf_done(&b);
    return r;
}

static int do_when(struct hx_scene *s, const char *wants, const char *command, struct hx_error *err)
{
    struct hx_buf said = HX_BUF_INIT(1 << 16);
    int r = wait_line(s, wants, err);
    if (!r)
        r = hx_vm_monitor(&s->vm, command, &said, err);
    if (!r && said.len > 0)
        r = hx_fail(err, -EIO, "QEMU answers '%s' with: %.300s", command, hx_buf_cstr(&said));
    if (!r)
        r = hx_vm_type(&s->vm, "\n", err);
    hx_buf_done(&said);
    return r;
}

int hx_scene_drive(struct hx_scene *s, struct hx_error *err)
{
    static struct files f;
    int r = name_files(s, &f, err);
    if (!r && access(f.guest, R_OK) < 0)
        r = hx_fail(err, HX_SCENE_SKIP, "%s is missing: make image-test", f.guest);
    if (!r)
        r = make_files(s, &f, err);
    if (r)
        return r;
    s->setup = (struct hx_vm_setup){
        .name = "drive",
        .folder = s->work,
        .kernel = f.kernel,
        .initrd = f.initrd,
        .cmdline = "console=ttyS0,115200 quiet loglevel=1 panic=10",
        .memory_mib = 512,
        .cpus = 2,
        .stop_at_reboot = true,
    };
    struct hx_vm_disk *d = hx_scene_add_disk(s, f.drive, HX_VM_NVME);
    d->serial = "HXENGRAM0001";
    d->errors = f.errors;
    d->removable = true;
    d->boot = -1;
    r = hx_vm_start(&s->vm, &s->setup, err);
    /* Level 0: io_uring with registered files and buffers, direct reads. */
    if (!r)
        r = wait_line(s, DRIVE_SAYS "level 0, alignment 512", err);
    if (!r)
        r = wait_line(s,
                      DRIVE_SAYS "-5: Engram read error: " DRIVE_MOUNT
                                 "/table0: row 12345 at offset 3160984: "
                                 "the drive cannot read this sector",
                      err);
    if (!r)
        r = wait_line(s,
                      DRIVE_SAYS "degraded: Engram read error: " DRIVE_MOUNT
                                 "/table0: the drive cannot read this sector",
                      err);
    if (!r)
        r = do_when(s, DRIVE_WANTS "slow drive", "block_set_io_throttle disk0 0 0 0 0 1 0", err);
    if (!r)
        r = wait_line(s, ": a read took too long", err);
    if (!r)
        r = do_when(s, DRIVE_WANTS "fast drive", "block_set_io_throttle disk0 0 0 0 0 0 0", err);
    if (!r)
        r = do_when(s, DRIVE_WANTS "drive less", "device_del drive0", err);
    if (!r)
        r = wait_line(s, DRIVE_SAYS "offline: Engram drive lost: " DRIVE_MOUNT "/table", err);
    if (!r)
        r = wait_line(s, DRIVE_PASSED, err);
    return r ? r : hx_vm_wait_exit(&s->vm, s->deadline, err);
}
