/* What a drive was sent, in order: the log of QEMU's blklogwrites filter, which has the form of the
 * kernel's dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst). */
#ifndef HX_TESTS_IMAGE_WRITELOG_H
#define HX_TESTS_IMAGE_WRITELOG_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

struct hx_writelog {
    int fd; /* -1: closed */
    unsigned sector;
    uint64_t n_entries; /* that were complete at the last flush */
    uint64_t n_done;
    uint64_t at; /* byte of the next entry */
    uint64_t n_bytes;
};

struct hx_writelog_entry {
    uint64_t offset, n_bytes; /* on the drive */
    uint64_t data_at;         /* byte of its data in the log */
    bool is_flush;            /* all before it survives a power cut from here on */
    bool is_discard;          /* no data: the drive may hold anything there */
};

/* -EBADMSG: no such log, or cut off. */
int hx_writelog_open(struct hx_writelog *log, const char *path, struct hx_error *err) HX_MUST;
/* 1: *entry is the next one; 0: end. */
int hx_writelog_next(struct hx_writelog *log, struct hx_writelog_entry *entry,
                     struct hx_error *err) HX_MUST;
/* Does to the open drive what the entry says; a discard and a flush change nothing. */
int hx_writelog_apply(const struct hx_writelog *log, const struct hx_writelog_entry *entry, int to,
                      struct hx_error *err) HX_MUST;
void hx_writelog_close(struct hx_writelog *log);

#endif
