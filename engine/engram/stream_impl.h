/* Inside of the streamer: what stream.c, plan.c, drive.c, files.c and staging.c share.
 *
 * A group of rows that is not in the cache flies: a flight has a job for each row, a job waits in
 * the queue of a drive, then in one of its slots. The drive's thread puts the row into the group's
 * entry; whoever brings the last row hands the group to all plans that wait for it. */
#ifndef HX_ENGRAM_STREAM_IMPL_H
#define HX_ENGRAM_STREAM_IMPL_H

#include <pthread.h>
#include <sys/stat.h>

#include "base/sha256.h"
#include "engram/cache.h"
#include "engram/io.h"
#include "engram/rows.h"
#include "engram/stream.h"

#define HX_ENGRAM_QUEUES     (2 * HX_ENGRAM_CLASSES) /* first table, further tables */
#define HX_ENGRAM_MAX_DRIVES (HX_ENGRAM_MAX_TABLES * HX_ENGRAM_MAX_COPIES)
#define HX_ENGRAM_STORM      16 /* read errors in a second that mean a lost drive */

enum hx_engram_job_state { HX_JOB_IDLE, HX_JOB_QUEUED, HX_JOB_ISSUED };

/* One row to read. */
struct hx_engram_job {
    struct hx_engram_flight *flight;
    struct hx_engram_job *next, *prev; /* queue of the drive, or its list of retries */
    struct hx_engram_drive *drive;
    int64_t row;
    double due; /* retry: not before */
    uint8_t at; /* row of the group */
    uint8_t state, queue;
    uint8_t n_reads, n_implausible;
    uint16_t n_soft; /* refusals that mean "later" */
    uint32_t tried;  /* drives that failed, by number */
};

struct hx_engram_waiter {
    struct hx_engram_plan *plan;
    struct hx_engram_flight *flight; /* NULL: has its rows */
    struct hx_engram_waiter *next, *prev;
    int32_t group;
    uint8_t table;
};

struct hx_engram_flight {
    struct hx_engram_flight *next_free;
    struct hx_engram_entry *entry;
    struct hx_engram_waiter *waiter;
    int n_rows, table, urgency;
    int n_issued;    /* jobs that left the queue at least once */
    atomic_int left; /* rows that have not arrived */
    int error;       /* first failure, else 0; negative errno */
    int native;      /* the drive's errno */
    int64_t error_row;
    const char *error_path, *error_what;
    struct hx_engram_job job[]; /* [n_heads] */
};

struct hx_engram_plan_table {
    int n_groups, n_rows; /* n_rows: of the last group it may be fewer than n_heads */
    int n_pending;
    atomic_uint flag;
    int32_t *group;                  /* [n_tok][n_sizes] */
    struct hx_engram_waiter *waiter; /* [n_groups] */
    uint8_t *codes, *scales;
    size_t staging_at, staging_bytes;
};

struct hx_engram_plan {
    struct hx_engram_stream *s;
    enum hx_engram_class urgency;
    int n_tok;
    double made;
    struct hx_engram_plan_table table[HX_ENGRAM_MAX_TABLES];
    struct hx_error error; /* of the first group that failed */
};

struct hx_engram_file {
    char *path;
    int table;
    int fd, plain_fd; /* fd: as the level reads; plain_fd: through the page cache */
    struct stat st;   /* as opened first */
    uint8_t header[HX_SHA256_BYTES];
};

struct hx_engram_slot {
    struct hx_engram_job *job; /* NULL: given up, its read is still on its way */
    /* What is needed when the row comes, so that nothing that other threads write is looked at. */
    struct hx_engram_flight *flight;
    uint8_t *codes_to, *scales_to; /* place in the group's entry; the scales are there already */
    double issued;
    uint64_t offset;
    uint32_t len, skip, got;
    uint8_t table;
    bool bulk, short_before;
};

struct hx_engram_job_list {
    struct hx_engram_job *first, *last;
};

struct hx_engram_drive {
    struct hx_engram_stream *s;
    int number;
    struct hx_engram_file file[HX_ENGRAM_IO_MAX_FILES];
    int n_files, file_of[HX_ENGRAM_MAX_TABLES]; /* -1: not on this drive */
    pthread_t thread;
    bool has_thread;

    /* the streamer's lock */
    struct hx_engram_job_list queue[HX_ENGRAM_QUEUES];
    int64_t n_queued;
    bool idle, online, started;
    int start_result;
    enum hx_engram_level level;
    int shown_align; /* as of the level */
    char why[256];   /* why not a better level; empty: it is the best */
    struct hx_error lost_reason;

    /* its thread */
    const struct hx_engram_io_ops *ops;
    struct hx_engram_io *io;
    int align, n_slots, cap;
    uint8_t *slots;
    size_t slot_bytes;
    struct hx_engram_slot *slot;
    uint32_t *free_slot;
    int n_free, n_bulk;
    struct hx_engram_job_list retry;
    double storm[HX_ENGRAM_STORM];
    int i_storm;
    double checked, reopened, cap_cut;

    pthread_mutex_t stats_mutex;
    struct hx_engram_table_stats stats[HX_ENGRAM_MAX_TABLES];
    uint64_t errors[HX_ENGRAM_ERR_KINDS];
    struct hx_engram_hist read_us;
    atomic_int in_flight;
};

struct hx_engram_stream {
    struct hx_engram_stream_options o;
    int n_heads, n_sizes, n_tables;
    struct hx_engram_table table[HX_ENGRAM_MAX_TABLES]; /* path: of the first copy */
    uint8_t *scales[HX_ENGRAM_MAX_TABLES];              /* [n_rows][scale_bytes] */
    struct hx_engram_plausible plausible;
    size_t flight_bytes;
    int n_flights;
    struct hx_engram_drive *drive[HX_ENGRAM_MAX_DRIVES];
    int n_drives;

    pthread_mutex_t lock; /* all below */
    pthread_cond_t done;  /* a plan's table is ready or failed; a drive has started */
    bool stopping;
    uint8_t *flights;
    struct hx_engram_flight *free_flight;
    int n_free_flights, n_reserved; /* reserved: by plans being made */
    struct hx_engram_cache *cache;
    uint8_t *staging, *staging_used; /* staging_used: a byte for each granule */
    size_t staging_granules;
    int n_plans, n_decode_plans;
    double last_decode, last_error;
    struct hx_error last_error_reason;
    struct hx_engram_stats stats; /* of planning */
};

double hx_engram_now(void); /* seconds, monotonic */

/* ---- files.c ---- */
int hx_engram_files_open(struct hx_engram_stream *s, struct hx_error *err) HX_MUST;
void hx_engram_files_close(struct hx_engram_stream *s);
int hx_engram_scales_load(struct hx_engram_stream *s, struct hx_error *err) HX_MUST;
void hx_engram_scales_free(struct hx_engram_stream *s);
/* The file is as it was opened: same size, time and place. -ESTALE says what changed. */
int hx_engram_file_check(const struct hx_engram_file *f, struct hx_error *err) HX_MUST;
/* Opens again what has the same size, time and header. */
int hx_engram_file_reopen(const struct hx_engram_stream *s, struct hx_engram_file *f,
                          struct hx_error *err) HX_MUST;
/* Descriptor for direct reads; -EINVAL: the file system has none. */
int hx_engram_file_direct(struct hx_engram_file *f, bool direct, struct hx_error *err) HX_MUST;
/* Smallest alignment of direct reads that the file system names, 512 to 4096; 4096 if it does not
 * say. */
int hx_engram_file_align(const struct hx_engram_file *f);

/* ---- level.c: choosing how to read ---- */
/* Opens io at the best level that works, from d's thread. */
int hx_engram_level_open(struct hx_engram_drive *d, struct hx_error *err) HX_MUST;
void hx_engram_level_close(struct hx_engram_drive *d);

/* ---- drive.c ---- */
int hx_engram_drive_start(struct hx_engram_drive *d, struct hx_error *err) HX_MUST;
void hx_engram_drive_stop(struct hx_engram_drive *d);
/* With the lock held: queues the jobs of a flight; a job whose table has no drive left fails. */
void hx_engram_flight_queue(struct hx_engram_stream *s, struct hx_engram_flight *f);
void hx_engram_job_queue(struct hx_engram_job *j, struct hx_engram_drive *d, int queue);
void hx_engram_job_unqueue(struct hx_engram_job *j);
/* With the lock held: wakes drives that wait and have something to do. */
void hx_engram_drives_kick(struct hx_engram_stream *s);

/* ---- plan.c ---- */
/* With the lock held: the last row of a flight is there (or has failed). */
void hx_engram_flight_done(struct hx_engram_stream *s, struct hx_engram_flight *f);

#define HX_ENGRAM_HOT_ENTRY 9 /* bytes: key, little-endian, then table * 8 + size */
/* Wants groups that nobody waits for into the cache; -EAGAIN: too much is wanted already. */
int hx_engram_plan_groups(struct hx_engram_stream *s, const uint8_t *entries, int n,
                          struct hx_error *err) HX_MUST;

/* ---- staging.c: with the lock held ---- */
int hx_engram_staging_open(struct hx_engram_stream *s, struct hx_error *err) HX_MUST;
void hx_engram_staging_close(struct hx_engram_stream *s);
bool hx_engram_staging_take(struct hx_engram_stream *s, size_t bytes, size_t *at);
void hx_engram_staging_give(struct hx_engram_stream *s, size_t at, size_t bytes);

#endif
