/* The Engram streamer: token ids in, rows out, from drives, ahead of time.
 *
 * A plan is what one sequence wants next: some positions, all tables. It is hashed, de-duplicated
 * by n-gram, served from the cache where possible and read where not; the rows of a table land in
 * the plan's part of the staging memory, and then its flag changes. Planning never waits for a
 * drive. Any thread may call; a plan belongs to one thread at a time. */
#ifndef HX_ENGRAM_STREAM_H
#define HX_ENGRAM_STREAM_H

#include <stdatomic.h>

#include "engram/engram.h"

#define HX_ENGRAM_MAX_TABLES 4
#define HX_ENGRAM_MAX_COPIES 4

/* The urgent first. Two classes of reads each: first table, further tables. */
enum hx_engram_class {
    HX_ENGRAM_DECODE, /* a token whose step comes next, or a draft */
    HX_ENGRAM_CHUNK,  /* prompt chunk whose step comes next */
    HX_ENGRAM_AHEAD,  /* later chunk */
    HX_ENGRAM_IDLE,   /* reload of the cache */
    HX_ENGRAM_CLASSES
};

/* How rows are read, best first (spec engram.md 6.12). */
enum hx_engram_level {
    HX_ENGRAM_URING_REGISTERED,
    HX_ENGRAM_URING,
    HX_ENGRAM_THREADS_DIRECT,
    HX_ENGRAM_THREADS_BUFFERED,
    HX_ENGRAM_LEVELS
};

struct hx_engram_stream_options {
    const struct hx_engram_hash *hash; /* borrowed; NULL: rows by id only */
    int n_tables;
    /* The same table on up to four drives: [0] is the file whose header was read, the others are
     * byte-equal copies. Fields but the path must agree. */
    struct hx_engram_table table[HX_ENGRAM_MAX_TABLES][HX_ENGRAM_MAX_COPIES];
    int n_copies[HX_ENGRAM_MAX_TABLES];
    int n_heads;               /* rows of a group; with a hash: its own */
    double max_abs;            /* plausible values, 0: any finite */
    bool buffered;             /* through the page cache instead of O_DIRECT */
    enum hx_engram_level best; /* levels above it are not tried */
    int align;                 /* of direct reads: 512 or 4096; 0: what the file says */
    bool iopoll, sqpoll;
    bool any_file_system;   /* also network file systems */
    int depth;              /* reads in flight on a drive; 0: 512 */
    int n_threads;          /* of the thread levels; 0: 32 */
    uint64_t cache_bytes;   /* all tables together; 0: no cache */
    int max_rows;           /* rows that may wait or be on their way; 0: 262144 */
    uint64_t staging_bytes; /* of plans that are not released; 0: 96 MiB */
    /* Staging memory from a back end (pinned); NULL: locked pages if the limits allow. */
    void *(*staging_alloc)(void *user, size_t bytes);
    void (*staging_free)(void *user, void *p, size_t bytes);
    void *user;
    int slow_ms, lost_ms; /* a read slower than this is an error (2000); a drive is lost (10000) */
    int check_ms, reopen_ms; /* files looked at again (60000); lost ones tried again (30000) */
};

struct hx_engram_stream;
struct hx_engram_plan;

/* Opens and checks the files, loads the scales, starts a thread for each drive.
 * -EINVAL names file and field; -EIO, -ENOMEM. */
int hx_engram_stream_open(const struct hx_engram_stream_options *o, struct hx_engram_stream **out,
                          struct hx_error *err) HX_MUST;
/* All plans must have been released. Waits up to 2 s for reads on their way. */
void hx_engram_stream_close(struct hx_engram_stream *s);

/* Positions first..first+n-1 of a sequence, tokens and dead by absolute position (dead NULL: none),
 * with the n_gram - 1 before first. -EAGAIN: too much is wanted already, try later (plans not
 * released hold staging memory); -EINVAL: a token outside the vocabulary; -EHOSTDOWN: the drive of
 * a table is lost. */
int hx_engram_plan(struct hx_engram_stream *s, enum hx_engram_class urgency, const int32_t *tokens,
                   const uint8_t *dead, int64_t first, int n, struct hx_engram_plan **out,
                   struct hx_error *err) HX_MUST;
/* Rows of one table by id, not cached (tests, benchmarks, the plain reader interface). */
int hx_engram_plan_rows(struct hx_engram_stream *s, enum hx_engram_class urgency, int table,
                        const int64_t *rows, int64_t n, struct hx_engram_plan **out,
                        struct hx_error *err) HX_MUST;
/* More urgent from now on (an AHEAD plan whose chunk comes next). */
void hx_engram_plan_raise(struct hx_engram_plan *p, enum hx_engram_class urgency);
/* 0: not yet, 1: rows are there, 2: failed (hx_engram_wait says why). For a device that polls. */
const atomic_uint *hx_engram_plan_flag(const struct hx_engram_plan *p, int table);
/* 0: rows are there. -ETIMEDOUT after timeout_us (negative: none); -EIO "Engram read error", names
 * file, row and offset; -EILSEQ a row that cannot be one; -EHOSTDOWN its drive is lost. */
int hx_engram_wait(struct hx_engram_plan *p, int table, int64_t timeout_us,
                   struct hx_error *err) HX_MUST;

/* Rows of a table that are there: unique ones, and which of them each token needs. */
struct hx_engram_block {
    const uint8_t *codes;  /* [n_rows][row_bytes], in staging memory */
    const uint8_t *scales; /* [n_rows][scale_bytes] */
    int n_rows;            /* groups x heads */
    int n_tok, n_sizes, n_heads;
    const int32_t *group; /* [n_tok][n_sizes]: rows group * n_heads + head */
};
void hx_engram_plan_block(const struct hx_engram_plan *p, int table, struct hx_engram_block *out);
/* Spread out: tokens first..first+n-1 of the plan -> codes [n][cols][row_bytes], scales. */
void hx_engram_plan_gather(const struct hx_engram_plan *p, int table, int first, int n,
                           uint8_t *codes, uint8_t *scales);
/* Gives everything back; reads that nobody else waits for and that were not issued are dropped.
 * Accepts NULL. rejected: drafted tokens that were not accepted, for the count. */
void hx_engram_release(struct hx_engram_plan *p);
void hx_engram_count_rejected(struct hx_engram_stream *s, int n_tok);

/* ---- what it did ---- */

#define HX_ENGRAM_HIST 1024 /* 32 buckets for each doubling of microseconds */
struct hx_engram_hist {
    uint64_t bucket[HX_ENGRAM_HIST], count;
    double sum_us, max_us;
};
void hx_engram_hist_add(struct hx_engram_hist *h, double us);
void hx_engram_hist_sum(struct hx_engram_hist *to, const struct hx_engram_hist *from);
double hx_engram_hist_bound(int bucket); /* upper bound, us */
/* Upper bound of the bucket that holds that part (0-1) of all. */
double hx_engram_hist_quantile(const struct hx_engram_hist *h, double part);

struct hx_engram_table_stats {
    uint64_t rows_requested, rows_unique, groups_requested, groups_unique;
    uint64_t cache_hits, attached_waits, reads_submitted, reads_completed, bytes_read;
    uint64_t straddling_reads, retries, implausible_rows;
};
/* Errors by kind; the last one: all others. */
enum hx_engram_error_kind {
    HX_ENGRAM_ERR_IO,
    HX_ENGRAM_ERR_GONE, /* ENODEV, ENXIO */
    HX_ENGRAM_ERR_SHORT,
    HX_ENGRAM_ERR_SLOW,
    HX_ENGRAM_ERR_IMPLAUSIBLE,
    HX_ENGRAM_ERR_OTHER,
    HX_ENGRAM_ERR_KINDS
};
extern const char *const hx_engram_error_names[HX_ENGRAM_ERR_KINDS];

struct hx_engram_stats {
    struct hx_engram_table_stats table[HX_ENGRAM_MAX_TABLES];
    uint64_t errors[HX_ENGRAM_ERR_KINDS];
    uint64_t busy_rejections, cancelled_plans, rejected_draft_rows, late_decode_waits;
    uint64_t cache_bytes, scale_bytes, staging_bytes;
    int64_t cache_rows, in_flight, queued_rows, plans;
    int n_tables, n_drives, n_drives_online;
    enum hx_engram_level level; /* the worst of the drives */
    bool buffered;
    int align;
    bool table_online[HX_ENGRAM_MAX_TABLES];
    struct hx_engram_hist read_us, hash_us, plan_wait_us[HX_ENGRAM_CLASSES];
};
void hx_engram_stream_stats(struct hx_engram_stream *s, struct hx_engram_stats *out);

enum hx_engram_health { HX_ENGRAM_OK, HX_ENGRAM_DEGRADED, HX_ENGRAM_OFFLINE };
/* DEGRADED: errors within the last minute, or a copy is lost; OFFLINE: a table has no drive.
 * reason names the drive's file. */
enum hx_engram_health hx_engram_stream_health(struct hx_engram_stream *s, struct hx_error *reason);
/* Names of levels for logs and pages; one line about how rows are read and why not better. */
const char *hx_engram_level_name(enum hx_engram_level level);
void hx_engram_stream_describe(struct hx_engram_stream *s, char *text, size_t size);

/* ---- hot groups over a restart ---- */
/* Writes the keys (not the rows) of the cached groups, at most 64 MiB. */
int hx_engram_hot_save(struct hx_engram_stream *s, const char *path, struct hx_error *err) HX_MUST;
/* Reads them again, less urgent than all else; a damaged file or one of other tables is -EINVAL.
 * Returns when all are wanted or *stop (may be NULL) is set; n_groups: how many were. */
int hx_engram_hot_load(struct hx_engram_stream *s, const char *path, const atomic_bool *stop,
                       uint64_t *n_groups, struct hx_error *err) HX_MUST;

/* ---- the plain interface ---- */
/* A reader over the streamer, which it owns. */
int hx_engram_stream_reader(struct hx_engram_stream *s, struct hx_engram_reader **out,
                            struct hx_error *err) HX_MUST;

#endif
