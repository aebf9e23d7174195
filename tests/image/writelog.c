#include "image/writelog.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define MAGIC      0x6a736677736872ull
#define VERSION    1
#define FLUSH      1u
#define DISCARD    4u
#define NAME       "write log"
#define BLOCK      ((size_t)1 << 20)
#define DRIVE_MAX  ((uint64_t)1 << 44)
#define ENTRY_SIZE 32

static uint64_t le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

int hx_writelog_open(struct hx_writelog *log, const char *path, struct hx_error *err)
{
    uint8_t head[28];
    struct stat st;
    *log = (struct hx_writelog){.fd = open(path, O_RDONLY | O_CLOEXEC)};
    int r = 0;
    if (log->fd < 0 || fstat(log->fd, &st) < 0)
        r = hx_fail_errno(err, errno, "%s", path);
    else if (st.st_size < (off_t)sizeof(head))
        r = hx_fail(err, -EBADMSG, "%s: too short for a write log", path);
    if (!r)
        r = hx_file_pread(log->fd, path, head, sizeof(head), 0, err);
    if (!r && (le(head, 8) != MAGIC || le(head + 8, 8) != VERSION))
        r = hx_fail(err, -EBADMSG, "%s: no write log", path);
    if (!r) {
        log->n_bytes = (uint64_t)st.st_size;
        log->n_entries = le(head + 16, 8);
        log->sector = (unsigned)le(head + 24, 4);
        log->at = log->sector;
        if (log->sector != 512 && log->sector != 4096)
            r = hx_fail(err, -EBADMSG, "%s: sectors of %u bytes", path, log->sector);
    }
    if (r)
        hx_writelog_close(log);
    return r;
}

int hx_writelog_next(struct hx_writelog *log, struct hx_writelog_entry *entry, struct hx_error *err)
{
    uint8_t raw[ENTRY_SIZE];
    if (log->n_done == log->n_entries)
        return 0;
    if (log->at + log->sector > log->n_bytes)
        return hx_fail(err, -EBADMSG, NAME ": cut off at entry %llu of %llu",
                       (unsigned long long)log->n_done, (unsigned long long)log->n_entries);
    int r = hx_file_pread(log->fd, NAME, raw, sizeof(raw), log->at, err);
    if (r)
        return r;
    uint64_t first = le(raw, 8), n = le(raw + 8, 8), flags = le(raw + 16, 8);
    if (first > DRIVE_MAX / log->sector || n > DRIVE_MAX / log->sector)
        return hx_fail(err, -EBADMSG, NAME ": entry %llu is damaged",
                       (unsigned long long)log->n_done);
    *entry = (struct hx_writelog_entry){.offset = first * log->sector,
                                        .n_bytes = n * log->sector,
                                        .data_at = log->at + log->sector,
                                        .is_flush = (flags & FLUSH) != 0,
                                        .is_discard = (flags & DISCARD) != 0};
    uint64_t data = entry->is_discard ? 0 : entry->n_bytes;
    if (data > log->n_bytes - entry->data_at)
        return hx_fail(err, -EBADMSG, NAME ": the data of entry %llu is cut off",
                       (unsigned long long)log->n_done);
    log->at = entry->data_at + data;
    log->n_done++;
    return 1;
}

int hx_writelog_apply(const struct hx_writelog *log, const struct hx_writelog_entry *entry, int to,
                      struct hx_error *err)
{
    if (entry->is_discard || !entry->n_bytes)
        return 0;
    uint8_t *block = malloc(BLOCK);
    int r = block ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    for (uint64_t at = 0; !r && at < entry->n_bytes; at += BLOCK) {
        size_t n = entry->n_bytes - at < BLOCK ? (size_t)(entry->n_bytes - at) : BLOCK;
        r = hx_file_pread(log->fd, NAME, block, n, entry->data_at + at, err);
        if (!r)
            r = hx_file_pwrite(to, "drive", block, n, entry->offset + at, err);
    }
    free(block);
    return r;
}

void hx_writelog_close(struct hx_writelog *log)
{
    if (log->fd >= 0)
        close(log->fd);
    log->fd = -1;
}
