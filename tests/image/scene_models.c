/* A box with a second drive, which its answers give to the models. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "image/rawdisk.h"
#include "image/scene.h"

#define MODELS_SERIAL "HXMODELS0001"
#define MODELS_BYTES  ((uint64_t)40 << 30)
#define TRY_MS        60000
#define SERIAL_OF                                                                                  \
    "cat /sys/class/block/$(basename $(readlink -f /dev/hx170/models))/../device/serial"

/* The box restarts by itself somewhere in between: a login that fails is tried again. */
static int await_drive(struct hx_scene *s, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(64 << 10);
    struct hx_error why = {0};
    int code = 0;
    for (;;) {
        int r =
            hx_ssh_run(&s->ssh, SERIAL_OF, &out, &code, hx_child_within(s->deadline, TRY_MS), &why);
        const char *said = r ? NULL : hx_buf_cstr(&out);
        if (said && !code && strstr(said, MODELS_SERIAL))
            break;
        if (!hx_child_sleep(2000, s->deadline)) {
            r = hx_fail(err, -ETIMEDOUT, "the models did not move to the second drive: %.200s",
                        r      ? why.text
                        : said ? said
                               : "");
            hx_buf_done(&out);
            return r;
        }
    }
    hx_buf_done(&out);
    return 0;
}

int hx_scene_models_drive(struct hx_scene *s, struct hx_error *err)
{
    static const struct hx_check rows[] = {
        {"file system", "findmnt -no FSTYPE /srv/models", "ext4\n"},
        {"the order is done", "hx root grep models_disk /var/lib/hx170/config/box.conf",
         "models_disk = \nerase_models_disk = \n"},
        {"the list of drives",
         "hx root hx-install drives --json --seconds 1 | tr '{' '\\n' | grep '\"current\":true' | "
         "grep -c '\"serial\":\"" MODELS_SERIAL "\".*\"bytes_per_second\":[1-9]'",
         "1\n"},
        {"end of the start", "systemctl is-system-running --wait", "running\n"},
        {"the demo model goes there",
         "timeout 300 sh -c 'until test -e /srv/models/current; do sleep 1; done'; "
         "readlink /srv/models/current; " SERIAL_OF " | tr -d ' '",
         "hx-demo\n" MODELS_SERIAL "\n"},
    };
    char drive[512];
    int r = hx_scene_prepare(
        s, "models", "models_disk = " MODELS_SERIAL "\nerase_models_disk = " MODELS_SERIAL "\n",
        err);
    if (r)
        return r;
    snprintf(drive, sizeof(drive), "%s/models-second.disk", s->work);
    r = hx_rawdisk_blank(drive, MODELS_BYTES, err);
    if (r)
        return r;
    hx_scene_add_disk(s, drive, HX_VM_NVME)->serial = MODELS_SERIAL;
    r = hx_scene_power_on(s, err);
    if (!r)
        r = await_drive(s, err);
    if (!r)
        r = hx_scene_checks(s, rows, sizeof(rows) / sizeof(rows[0]), err);
    hx_vm_close(&s->vm);
    unlink(drive);
    return r;
}
