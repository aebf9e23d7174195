/* Is there room, and is it the right kind of disk: asked before the first byte. */
#ifndef HX_FETCH_DISK_H
#define HX_FETCH_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "fetch/plan.h"

#define HX_DISK_MAX_PLACES 8

/* One file system that gets files of the plan. */
struct hx_disk_place {
    char dir[512]; /* where its files go; need not exist yet */
    char kind[24]; /* "ext4", "nfs", or the number of an unknown one */
    uint64_t n_files;
    uint64_t data;    /* bytes that are not there and not reserved yet */
    uint64_t need;    /* data + 1 % + up to 2 GiB for journals and small files */
    uint64_t free;    /* to us */
    uint64_t reserve; /* that stays free */
    bool engram;      /* the tables that are read while the model runs lie here */
    bool known_slow;  /* its drive is not an NVMe drive */
};

struct hx_disk_report {
    struct hx_disk_place place[HX_DISK_MAX_PLACES];
    size_t n_places;
    char warning[8][256];
    size_t n_warnings;
};

struct hx_disk_options {
    const char *models;
    uint64_t reserve; /* bytes that stay free; 5 % of the file system if that is more; 0: none */
    bool network;     /* a network file system will do */
};

/* Looks at every file system that the plan writes to. -ENOSPC: needed, free and missing bytes for
 * each folder; -EOPNOTSUPP: a file system that cannot hold the files. The report is filled in both
 * cases. */
int hx_disk_check(const struct hx_disk_options *opt, const struct hx_plan *plan,
                  struct hx_disk_report *report, struct hx_error *err) HX_MUST;

/* Space for n bytes on a file system of total bytes: what must be free. */
uint64_t hx_disk_need(uint64_t data);
uint64_t hx_disk_reserve(uint64_t total, uint64_t reserve);

#endif
