/* Bytes of an archive file: as they are, or unpacked from gzip or xz. The only file that knows
 * zlib and liblzma. */
#include <fcntl.h>
#include <lzma.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "bundle/source.h"

#define IN_BYTES  65536
#define XZ_MEMORY (512ull << 20) /* enough for every preset */

enum packing { PLAIN, GZIP, XZ };

struct hx_unpack {
    int fd;
    char *path;
    enum packing packing;
    bool end, open_z;
    z_stream z;
    lzma_stream xz;
    size_t have, at;
    uint8_t in[IN_BYTES];
};

static int fill(struct hx_unpack *u, struct hx_error *err)
{
    for (;;) {
        ssize_t n = read(u->fd, u->in, sizeof(u->in));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hx_fail_errno(err, errno, "%s: cannot read", u->path);
        u->have = (size_t)n;
        u->at = 0;
        return 0;
    }
}

int hx_unpack_open(const char *path, struct hx_unpack **out, struct hx_error *err)
{
    static const uint8_t xz_magic[6] = {0xfd, '7', 'z', 'X', 'Z', 0};
    int r = -ENOMEM;
    struct hx_unpack *u = calloc(1, sizeof(*u));
    if (!u)
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    u->fd = -1;
    u->path = strdup(path);
    if (!u->path)
        goto memory;
    u->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (u->fd < 0) {
        r = hx_fail_errno(err, errno, "%s: cannot open", path);
        goto out;
    }
    r = fill(u, err);
    if (r < 0)
        goto out;
    if (u->have >= 2 && u->in[0] == 0x1f && u->in[1] == 0x8b) {
        u->packing = GZIP;
        r = -ENOMEM;
        if (inflateInit2(&u->z, 16 + MAX_WBITS) != Z_OK)
            goto memory;
    } else if (u->have >= 6 && memcmp(u->in, xz_magic, 6) == 0) {
        u->packing = XZ;
        r = -ENOMEM;
        if (lzma_stream_decoder(&u->xz, XZ_MEMORY, LZMA_CONCATENATED) != LZMA_OK)
            goto memory;
    }
    u->open_z = u->packing != PLAIN;
    *out = u;
    return 0;
memory:
    hx_fail(err, -ENOMEM, "%s: out of memory", path);
out:
    hx_unpack_close(u);
    return r;
}

static int damaged(struct hx_unpack *u, struct hx_error *err)
{
    return hx_fail(err, -EINVAL, "%s: the packed archive is damaged or cut short", u->path);
}

static int read_gzip(struct hx_unpack *u, void *buf, size_t len, size_t *n, struct hx_error *err)
{
    u->z.next_out = buf;
    u->z.avail_out = (uInt)len;
    while (u->z.avail_out == len && !u->end) {
        if (u->at == u->have) {
            int r = fill(u, err);
            if (r < 0)
                return r;
            if (u->have == 0)
                return damaged(u, err);
        }
        u->z.next_in = u->in + u->at;
        u->z.avail_in = (uInt)(u->have - u->at);
        int z = inflate(&u->z, Z_NO_FLUSH);
        u->at = u->have - u->z.avail_in;
        if (z == Z_STREAM_END)
            u->end = true;
        else if (z == Z_MEM_ERROR)
            return hx_fail(err, -ENOMEM, "%s: out of memory", u->path);
        else if (z != Z_OK && z != Z_BUF_ERROR)
            return damaged(u, err);
    }
    *n = len - u->z.avail_out;
    return 0;
}

static int read_xz(struct hx_unpack *u, void *buf, size_t len, size_t *n, struct hx_error *err)
{
    u->xz.next_out = buf;
    u->xz.avail_out = len;
    while (u->xz.avail_out == len && !u->end) {
        if (u->at == u->have) {
            int r = fill(u, err);
            if (r < 0)
                return r;
        }
        u->xz.next_in = u->in + u->at;
        u->xz.avail_in = u->have - u->at;
        lzma_ret z = lzma_code(&u->xz, u->have == 0 ? LZMA_FINISH : LZMA_RUN);
        u->at = u->have - u->xz.avail_in;
        if (z == LZMA_STREAM_END)
            u->end = true;
        else if (z == LZMA_MEM_ERROR || z == LZMA_MEMLIMIT_ERROR)
            return hx_fail(err, -ENOMEM, "%s: unpacking needs more than %llu MiB of memory",
                           u->path, XZ_MEMORY >> 20);
        else if (z != LZMA_OK)
            return damaged(u, err);
    }
    *n = len - u->xz.avail_out;
    return 0;
}

int hx_unpack_read(void *unpack, void *buf, size_t len, size_t *n, struct hx_error *err)
{
    struct hx_unpack *u = unpack;
    *n = 0;
    if (len == 0)
        return 0;
    if (len > 1u << 20)
        len = 1u << 20;
    if (u->packing == GZIP)
        return read_gzip(u, buf, len, n, err);
    if (u->packing == XZ)
        return read_xz(u, buf, len, n, err);
    if (u->at == u->have) {
        int r = fill(u, err);
        if (r < 0)
            return r;
    }
    *n = u->have - u->at < len ? u->have - u->at : len;
    memcpy(buf, u->in + u->at, *n);
    u->at += *n;
    return 0;
}

void hx_unpack_close(struct hx_unpack *u)
{
    if (!u)
        return;
    if (u->open_z && u->packing == GZIP)
        inflateEnd(&u->z);
    if (u->open_z && u->packing == XZ)
        lzma_end(&u->xz);
    if (u->fd >= 0)
        close(u->fd);
    free(u->path);
    free(u);
}
