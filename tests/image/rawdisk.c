#include "image/rawdisk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"
#include "init/gpt.h"

#define BLOCK ((size_t)1 << 20)
#define PIECE 4096

int hx_rawdisk_blank(const char *path, uint64_t n_bytes, struct hx_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s", path);
    int r = ftruncate(fd, (off_t)n_bytes) ? hx_fail_errno(err, errno, "%s", path) : 0;
    close(fd);
    return r;
}

/* Data from *at on, up to BLOCK bytes; *n = 0 at the end of the file. */
static int next_data(int fd, const char *path, off_t end, off_t *at, size_t *n,
                     struct hx_error *err)
{
    off_t data = lseek(fd, *at, SEEK_DATA);
    if (data < 0 && errno == ENXIO)
        data = end;
    if (data < 0)
        return hx_fail_errno(err, errno, "%s", path);
    off_t hole = data < end ? lseek(fd, data, SEEK_HOLE) : end;
    if (hole < 0)
        return hx_fail_errno(err, errno, "%s", path);
    *at = data;
    *n = hole - data > (off_t)BLOCK ? BLOCK : (size_t)(hole - data);
    return 0;
}

int hx_rawdisk_copy(const char *from, const char *to, struct hx_error *err)
{
    char *block = malloc(BLOCK);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct stat st;
    int r = 0;
    if (!block)
        r = hx_fail(err, -ENOMEM, "out of memory");
    else if (in < 0 || out < 0 || fstat(in, &st) < 0 || ftruncate(out, st.st_size) < 0)
        r = hx_fail_errno(err, errno, "%s", in < 0 ? from : to);
    off_t at = 0;
    while (!r) {
        size_t n = 0;
        r = next_data(in, from, st.st_size, &at, &n, err);
        if (r || !n)
            break;
        r = hx_file_pread(in, from, block, n, (uint64_t)at, err);
        if (!r)
            r = hx_file_pwrite(out, to, block, n, (uint64_t)at, err);
        at += (off_t)n;
    }
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    free(block);
    return r;
}

int hx_rawdisk_hash(const char *path, char hex[65], struct hx_error *err)
{
    uint64_t size;
    return hx_sha256_file(path, hex, &size, err);
}

int hx_rawdisk_digest(const char *path, char hex[65], struct hx_error *err)
{
    static const uint8_t zeros[PIECE];
    uint8_t *block = malloc(BLOCK), digest[HX_SHA256_BYTES];
    struct hx_sha256 *h = NULL;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = block ? hx_sha256_new(&h, err) : hx_fail(err, -ENOMEM, "out of memory");
    if (!r && (fd < 0 || fstat(fd, &st) < 0))
        r = hx_fail_errno(err, errno, "%s", path);
    off_t at = 0;
    while (!r) {
        size_t n = 0;
        r = next_data(fd, path, st.st_size, &at, &n, err);
        if (r || !n)
            break;
        r = hx_file_pread(fd, path, block, n, (uint64_t)at, err);
        /* Pieces on both sides of a hole's border: zeros in the file and holes are the same. */
        for (size_t k = 0; !r && k < n;) {
            size_t step = PIECE - (size_t)((at + (off_t)k) % PIECE);
            step = step < n - k ? step : n - k;
            uint64_t place = (uint64_t)at + k;
            if (memcmp(block + k, zeros, step) != 0) {
                r = hx_sha256_update(h, &place, sizeof(place));
                if (!r)
                    r = hx_sha256_update(h, block + k, step);
            }
            k += step;
        }
        at += (off_t)n;
    }
    if (!r)
        r = hx_sha256_final(h, digest);
    if (!r)
        hx_sha256_to_hex(digest, hex);
    if (fd >= 0)
        close(fd);
    hx_sha256_free(h);
    free(block);
    return r;
}

int hx_rawdisk_write(const char *path, uint64_t at, const void *data, size_t n,
                     struct hx_error *err)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s", path);
    int r = hx_file_pwrite(fd, path, data, n, at, err);
    close(fd);
    return r;
}

int hx_rawdisk_damage(const char *path, uint64_t at, struct hx_error *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s", path);
    uint8_t byte;
    int r = hx_file_pread(fd, path, &byte, 1, at, err);
    byte ^= 0xff;
    if (!r)
        r = hx_file_pwrite(fd, path, &byte, 1, at, err);
    close(fd);
    return r;
}

int hx_rawdisk_table(const char *path, struct hx_gpt **out, struct hx_error *err)
{
    struct hx_gpt *t = calloc(1, sizeof(*t));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    int r = 0;
    if (!t || fd < 0 || fstat(fd, &st) < 0)
        r = hx_fail_errno(err, t ? errno : ENOMEM, "%s", path);
    if (!r)
        r = hx_gpt_read(fd, (uint64_t)st.st_size, 512, t, err);
    if (fd >= 0)
        close(fd);
    if (r)
        free(t);
    else
        *out = t;
    return r;
}
