#include "disk/speed.h"

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "disk/io.h"

#define BLOCK  ((size_t)8 << 20) /* one read */
#define PLACES 64                /* all over the drive: outer and inner parts, written and not */
#define RUN    4                 /* blocks one behind the other at each place */
#define MOST   (8 * HX_DISK_GIB)
#define ALIGN  4096

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int read_places(int fd, const char *path, uint64_t n_bytes, void *block, double seconds,
                       struct hx_speed *out, struct hx_error *err)
{
    struct hx_speed s = {0};
    double start = now_s();
    for (unsigned i = 0; s.n_bytes < MOST && s.seconds < seconds; i++) {
        uint64_t place = (n_bytes - RUN * BLOCK) / PLACES * (i / RUN % PLACES) / ALIGN * ALIGN;
        ssize_t n = pread(fd, block, BLOCK, (off_t)(place + i % RUN * BLOCK));
        if (n != (ssize_t)BLOCK)
            return hx_fail(err, -EIO, "%s: %s", path,
                           n < 0 ? "cannot be read" : "ends before its end");
        s.n_bytes += BLOCK;
        s.seconds = now_s() - start;
    }
    *out = s;
    return 0;
}

int hx_speed_measure(const char *path, double seconds, struct hx_speed *out, struct hx_error *err)
{
    struct hx_disk d;
    void *block = NULL;
    int r = hx_disk_open(path, HX_DISK_READ, 0, &d, err);
    if (r < 0)
        return r;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0 && errno == EINVAL)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        r = hx_fail_errno(err, errno, "%s", path);
    else if (d.n_bytes < 64 * HX_DISK_MIB)
        r = hx_fail(err, -EINVAL, "%s: too small to be measured", path);
    else if (posix_memalign(&block, ALIGN, BLOCK) != 0)
        r = hx_fail(err, -ENOMEM, "out of memory");
    else
        r = read_places(fd, path, d.n_bytes, block, seconds, out, err);
    free(block);
    if (fd >= 0)
        close(fd);
    hx_disk_close(&d);
    return r;
}
