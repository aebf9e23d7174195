/* The growing files: parts, journals, hashing writers, publication. Knows nothing of HTTP; `import`
 * feeds it from a disk in the same way as a download does.
 *
 * One owner thread calls everything here. Hashing and writing happen on the store's own writer
 * threads; results come back as events. Order of every chunk: data written, data synced (batched),
 * journal record, journal synced; only then HX_STORE_CHUNK_DONE. */
#ifndef HX_FETCH_STORE_H
#define HX_FETCH_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "fetch/plan.h"

struct hx_store;
struct hx_sink; /* one chunk being received */

struct hx_store_options {
    const char *models; /* /srv/models: incoming/<model> and <model> lie below it */
    unsigned retry_ms;  /* full or read-only target: time between tries, 0 = 1,000 */
    bool
        direct; /* O_DIRECT where the file system allows it, else write-behind with dropped pages */
    unsigned n_writers;  /* threads, 0 = 2 */
    size_t buffer_bytes; /* memory for data between socket and disk, 0 = 64 MiB */
    uint64_t sync_bytes; /* data per sync batch, 0 = 256 MiB; twice as much is never unsynced
                            but for chunks that are open */
    unsigned most_wrong; /* times that a whole file may be wrong until it is stopped, 0 = 2 */
    unsigned sync_ms;    /* longest time that a finished chunk waits for its sync, 0 = 500 */
};

enum hx_store_event_type {
    HX_STORE_CHUNK_DONE, /* journalled; counts as verified if its hash was known */
    HX_STORE_CHUNK_BAD,  /* hash differs: fetch again, from another host; message shows both hashes
                          */
    HX_STORE_CHUNK_LOST, /* not written (aborted, or its file stopped): fetch again */
    HX_STORE_FILE_READY, /* all chunks there, whole-file hash and header checked, renamed within
                            incoming */
    HX_STORE_FILE_BAD, /* whole-file hash or a tensor's hash differs, chunks marked for a new fetch;
                          message */
    HX_STORE_FILE_STOPPED, /* EIO or the like: file, offset and device in message */
    HX_STORE_FULL,         /* ENOSPC: everything kept; feed nothing until HX_STORE_RESUMED */
    HX_STORE_READ_ONLY,    /* target remounted read-only or gone: as above */
    HX_STORE_RESUMED,
    HX_STORE_NOTE, /* worth a line in the log: dropped records, a changed plan, no preallocation */
};

struct hx_store_event {
    enum hx_store_event_type type;
    int error; /* FILE_STOPPED: its class, negative */
    size_t file, chunk;
    uint64_t n_bytes;
    char message[512];
};

/* Takes the downloader's lock (-EBUSY names the holder's process), opens or makes the parts,
 * replays the journals, re-hashes the last records after an unclean end. Progress of the re-hash
 * through `progress` if not NULL. */
int hx_store_open(const struct hx_store_options *opt, const struct hx_plan *plan,
                  void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx,
                  struct hx_store **out, struct hx_error *err);

/* Syncs and journals what is complete; never removes anything. */
void hx_store_close(struct hx_store *store);

bool hx_store_chunk_done(const struct hx_store *store, size_t file, size_t chunk);
bool hx_store_file_ready(const struct hx_store *store, size_t file);
uint64_t
hx_store_bytes_done(const struct hx_store *store); /* journalled output bytes of all files */

/* A chunk begins. skip > 0: the first `skip` source bytes arrived earlier in this process
 * (hx_sink_end kept them). */
int hx_store_begin(struct hx_store *store, size_t file, size_t chunk, uint64_t *skip,
                   struct hx_sink **out, struct hx_error *err);

/* Source bytes in order, gap bytes included. All or nothing: -EAGAIN when the writers are behind
 * (pause the source until the event descriptor is readable), -EFBIG when more than the chunk
 * arrives. */
int hx_sink_write(struct hx_sink *sink, const void *data, size_t n);

/* Ends the sink, which is gone afterwards. Incomplete: keep_prefix keeps what has arrived for a
 * continuation in this process (if it is at least 1 MiB), otherwise it is forgotten; no event
 * follows. Complete: one event about the chunk follows. */
void hx_sink_end(struct hx_sink *sink, bool keep_prefix);

/* Readable when events wait or writers have room again. */
int hx_store_event_fd(const struct hx_store *store);
bool hx_store_next(struct hx_store *store, struct hx_store_event *ev);

/* Takes a whole file from a folder of the same file system without copying (a reflink, else a hard
 * link), then hashes it. 1: all of it is good, FILE_READY follows; 0: not possible or not the right
 * bytes, nothing changed; negative: an error. */
int hx_store_adopt(struct hx_store *store, size_t file, int fd, struct hx_error *err);

/* Syncs what is complete now and waits for it: before a planned stop. */
int hx_store_flush(struct hx_store *store, struct hx_error *err);

/* A published file becomes a part again, to be repaired by the next run: writes its journal with
 * the chunks that are not bad. state.json has to say "not complete" before. identity: of the file
 * in state.json; digest: of every chunk, of good ones at least. The caller holds the downloads'
 * lock.
 */
int hx_store_hand_back(const char *models, const struct hx_plan *plan, size_t file,
                       const uint8_t identity[32], const bool *bad, const uint8_t (*digest)[32],
                       struct hx_error *err);

/* The lock that only one downloader has: *fd is to be closed. -EBUSY names the holder's process. */
int hx_store_lock(const char *models, int *fd, struct hx_error *err);

/* All files ready: moved to <models>/<model> under a state.json that is not complete, token map
 * made, cross checks (every tensor of the configuration, "expect"), lock.json with the hashes
 * filled in, state.json complete, link `current` set. Can be repeated after a cut at any point. */
int hx_store_publish(struct hx_store *store, struct hx_error *err);

#endif
