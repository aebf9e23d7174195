/* Device-mapper ioctls: create, load, resume. Layout: linux/dm-ioctl.h. */
#include "init/dm.h"

#include <linux/dm-ioctl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#define SECTOR 512

/* The kernel reads and writes the header and what follows it in one block. */
struct request {
    struct dm_ioctl head;
    struct dm_target_spec target;
    char params[2048];
};

static void start(struct request *r, const char *name, unsigned flags)
{
    memset(r, 0, sizeof(*r));
    r->head.version[0] = DM_VERSION_MAJOR;
    r->head.data_size = sizeof(*r);
    r->head.data_start = sizeof(r->head);
    r->head.flags = flags;
    snprintf(r->head.name, sizeof(r->head.name), "%s", name);
}

int hx_dm_create(int control, const char *name, const char *target, const char *params,
                 uint64_t n_bytes, unsigned *major_out, unsigned *minor_out, struct hx_error *err)
{
    struct request r;
    if (strlen(params) >= sizeof(r.params))
        return hx_fail(err, -EMSGSIZE, "device-mapper table is too long");
    start(&r, name, DM_READONLY_FLAG);
    if (ioctl(control, DM_DEV_CREATE, &r) < 0)
        return hx_fail_errno(err, errno, "device-mapper cannot create '%s'", name);
    unsigned major_n = major(r.head.dev), minor_n = minor(r.head.dev);

    start(&r, name, DM_READONLY_FLAG);
    r.head.target_count = 1;
    r.target.length = n_bytes / SECTOR;
    snprintf(r.target.target_type, sizeof(r.target.target_type), "%s", target);
    snprintf(r.params, sizeof(r.params), "%s", params);
    int e = ioctl(control, DM_TABLE_LOAD, &r) < 0 ? errno : 0;
    if (e == 0) {
        start(&r, name, 0); /* without DM_SUSPEND_FLAG: resume */
        e = ioctl(control, DM_DEV_SUSPEND, &r) < 0 ? errno : 0;
    }
    if (e) {
        start(&r, name, 0);
        ioctl(control, DM_DEV_REMOVE, &r);
        return hx_fail_errno(err, e, "device-mapper refuses the %s table of '%s'", target, name);
    }
    *major_out = major_n;
    *minor_out = minor_n;
    return 0;
}
