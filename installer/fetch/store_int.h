/* Inside of the store: what its owner's side (store.c), its writers (store_write.c), its sync
 * thread (store_sync.c) and its checker (store_check.c) share. Everything is guarded by the store's
 * mutex unless said otherwise. */
#ifndef HX_FETCH_STORE_INT_H
#define HX_FETCH_STORE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sha256.h"
#include "fetch/journal.h"
#include "fetch/part.h"
#include "fetch/scan.h"
#include "fetch/store.h"

#define HX_STORE_BLOCK      (1u << 20) /* bytes; blocks do not cross a multiple of it in the output */
#define HX_STORE_MAX_SINKS  256
#define HX_STORE_MIN_BLOCKS 8
#define HX_STORE_MAX_BLOCKS 4096

struct hx_block {
    struct hx_block *next;
    uint64_t begin; /* in the output; the data lies at mem[begin % HX_STORE_BLOCK] */
    size_t n_bytes;
    uint8_t *mem;
};

/* A message for the owner. Embedded where it arises, so that none is lost for want of memory. */
struct hx_notice {
    struct hx_notice *next;
    bool queued;
    struct hx_store_event ev;
};

enum hx_chunk_state {
    HX_CHUNK_MISSING,
    HX_CHUNK_OPEN,    /* a sink receives it */
    HX_CHUNK_WRITTEN, /* waits for its sync */
    HX_CHUNK_DONE,    /* journalled */
};

struct hx_chunk {
    uint8_t state;
    uint8_t flags; /* HX_JOURNAL_SCANNED ... */
    uint8_t n_bad;
    uint8_t digest[HX_SHA256_BYTES]; /* of a written or done one */
};

enum hx_file_phase {
    HX_FILE_GROWING,
    HX_FILE_READY,     /* <incoming>/<model>/<out>, verified */
    HX_FILE_PUBLISHED, /* <models>/<model>/<out> */
    HX_FILE_STOPPED,
};

struct hx_store_file {
    const struct hx_plan_file *plan;
    size_t index;
    enum hx_file_phase phase;
    struct hx_part part;       /* used without the mutex */
    struct hx_journal journal; /* sync thread and checker take turns: journal_lock */
    pthread_mutex_t journal_lock;
    bool dirty; /* records were added since the last CLEAN */
    char *part_path, *ready_path, *final_path, *journal_path;
    struct hx_chunk *chunks;
    size_t n_done;         /* chunks in state DONE */
    size_t n_written;      /* in state WRITTEN */
    struct hx_sink *sinks; /* open, kept and finishing ones */

    /* Whole files: everything below `front` is in the running hash. NULL: there is
     * none, as for a cut or where the chunks vouch for the whole. */
    uint64_t front, hash_step;
    uint64_t front_limit; /* what was hashed from here on was lost; UINT64_MAX: nothing */
    struct hx_sha256 *front_hash;
    struct hx_sink *front_sink;     /* goes on with a copy of it */
    bool checking;                  /* the checker works on this file */
    struct hx_sha256_state *hashes; /* journalled states, ascending */
    size_t n_hashes;
    unsigned n_bad_hash; /* times that the whole file was wrong in this process */
    bool table_tried;
    size_t table_n_done;             /* n_done when the header was last looked for */
    struct hx_scan_table *table;     /* set once, then immutable */
    uint8_t sha256[HX_SHA256_BYTES]; /* of the output, when ready */
    struct hx_notice notice;
};

struct hx_sink {
    struct hx_store *store;
    struct hx_store_file *file;
    size_t chunk;
    const struct hx_plan_chunk *plan;
    struct hx_sink *next_of_file, *next_ready;

    /* The owner's side. */
    uint64_t src_pos; /* source bytes received, from 0 */
    uint64_t out_pos; /* output offset of the next wanted byte */
    uint32_t segment; /* within the chunk */
    struct hx_block *filling;

    /* Shared. */
    struct hx_block *head, *tail; /* waiting for a writer */
    bool queued, busy;            /* in the ready list; in a writer's hands */
    bool waiting;                 /* for the chunk before it, whose hash it goes on with */
    bool complete, kept, aborted;
    atomic_bool failed; /* its file was stopped */

    /* The writers' side, one at a time. */
    bool started;
    struct hx_sha256 *hash;
    bool hash_here;          /* on the owner's side, while copying: hash belongs to it */
    struct hx_sha256 *front; /* NULL: hashed later, by the checker, or not at all */
    struct hx_scan scan;
    bool scanned;
    bool insane; /* message in notice.ev */
    struct hx_notice notice;
};

struct hx_store {
    const struct hx_plan *plan;
    struct hx_store_options opt;
    char *incoming, *final; /* folders of the model */
    int lock_fd;
    struct hx_store_file *files;
    size_t n_files;
    size_t n_unreserved; /* parts without reserved space */

    pthread_mutex_t m;
    pthread_cond_t work;  /* writers */
    pthread_cond_t sync;  /* sync thread, and who waits for it */
    pthread_cond_t check; /* checker */
    pthread_cond_t idle;  /* a writer has put a sink down */
    pthread_cond_t room;  /* whoever waits for the disk */
    pthread_t *writers;
    unsigned n_writers;
    pthread_t sync_thread, check_thread;
    bool sync_running, check_running;
    bool stop;       /* threads end */
    bool stop_check; /* the checker ends before its next piece */

    uint8_t *arena;
    struct hx_block *blocks, *free_blocks;
    size_t n_blocks, n_free;
    bool want_room;     /* the owner was refused and waits for the event descriptor */
    size_t n_sinks;     /* that exist, until their event was taken */
    size_t n_open;      /* in the owner's hands */
    size_t n_finishing; /* complete, not yet in the list of written ones */

    struct hx_sink *ready_head, *ready_tail;
    struct hx_sink *written_head, *written_tail; /* wait for their sync */
    uint64_t written_bytes;
    uint64_t unsynced_bytes; /* written_bytes and what the sync thread has at hand */
    uint64_t written_since;  /* monotonic ms of the oldest */
    bool flush, syncing;

    /* Full or read-only target: writers and sync thread wait. */
    atomic_int blocked; /* 0, or the errno */
    struct hx_notice blocked_notice, resumed_notice;

    int event_fd;
    struct hx_notice *events, *events_tail;
    struct hx_notice notes[8];
    uint64_t bytes_done;
};

/* store.c */
void hx_store_notify(struct hx_store *s, struct hx_notice *n); /* mutex held */
void hx_store_note(struct hx_store *s, size_t file, const char *fmt, ...) HX_PRINTF(3, 4);
void hx_store_signal(struct hx_store *s); /* the event descriptor; mutex not needed */
uint64_t hx_store_now_ms(void);
/* Ends work on a file: all its sinks fail, FILE_STOPPED with the class r. Mutex held. */
void hx_store_stop_file(struct hx_store *s, struct hx_store_file *f, int r, const char *message);
/* Classifies a failed write or sync, mutex not held. Full or read-only: waits one period and
 * returns 0 (try again) or -ECANCELED (the store closes). Anything else is returned. */
int hx_store_wait_room(struct hx_store *s, int r, const char *message);
/* After a success that may end such a pause. */
void hx_store_room_again(struct hx_store *s);
void hx_sink_unlink(struct hx_sink *k); /* from its file; mutex held */
void hx_sink_free(struct hx_sink *k);
void hx_sink_drop_blocks(struct hx_store *s, struct hx_sink *k); /* mutex held */

/* store_write.c */
void *hx_store_writer(void *store);
void hx_sink_queue(struct hx_store *s, struct hx_sink *k); /* mutex held */
/* An end without a result; frees the sink, after its event if it was complete. Mutex held. */
void hx_sink_discard(struct hx_store *s, struct hx_sink *k);

/* store_sync.c */
void *hx_store_syncer(void *store);
int hx_file_append(struct hx_store_file *f, const struct hx_journal_entry *e, size_t n,
                   struct hx_error *err) HX_MUST;
/* Appends and syncs; waits on a full disk. Mutex not held. */
int hx_file_record(struct hx_store *s, struct hx_store_file *f, const struct hx_journal_entry *e,
                   size_t n, struct hx_error *err) HX_MUST;
/* Journals the running hash if that is due. Mutex held, let go in between. */
void hx_file_save_front(struct hx_store *s, struct hx_store_file *f);

/* store_check.c */
void *hx_store_checker(void *store);
/* Hash of a chunk of the part as it lies on the disk. buf: HX_STORE_BLOCK bytes, aligned. */
int hx_file_hash_chunk(struct hx_store_file *f, size_t chunk, struct hx_sha256 *h,
                       struct hx_sha256 *also, uint8_t *buf, struct hx_error *err) HX_MUST;
/* Front back to the last saved state at or below `limit`, as soon as nobody works with it. Mutex
 * held. */
void hx_file_front_reset(struct hx_store_file *f, uint64_t limit);
/* As above for a limit that was set meanwhile: true if there was one. */
bool hx_file_front_settle(struct hx_store_file *f);
/* The part takes its name. Mutex not needed. */
int hx_file_make_ready(struct hx_store_file *f, struct hx_error *err) HX_MUST;
bool hx_file_is_safetensors(const struct hx_store_file *f);

/* store_open.c */
int hx_store_open_files(struct hx_store *s, void (*progress)(void *, uint64_t, uint64_t), void *ctx,
                        struct hx_error *err) HX_MUST;
void hx_store_file_done(struct hx_store_file *f);

/* store_repair.c */
/* Identity of the chunk borders: records of other borders mean nothing. */
int hx_plan_layout(const struct hx_plan_file *p, uint8_t out[HX_SHA256_BYTES],
                   struct hx_error *err) HX_MUST;
/* The published file takes the part's place. */
int hx_file_take_back(struct hx_store_file *f, struct hx_error *err) HX_MUST;

#endif
