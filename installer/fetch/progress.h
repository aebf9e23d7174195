/* How far it is, in three forms with the same numbers: for a person at a terminal (one line that is
 * drawn anew) or in a log (a line now and then), as JSON lines on standard output, and as a status
 * file for other programs. The service manager gets the terminal's line. */
#ifndef HX_FETCH_PROGRESS_H
#define HX_FETCH_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "fetch/transfer.h"

struct hx_progress_file {
    const char *name;  /* below the model folder */
    const char *state; /* "waiting", "download", "ready", "stopped" */
    uint64_t wanted, verified;
};

/* Everything that is shown. Bytes are of the files to be made. */
struct hx_progress_view {
    const char *phase;   /* "check", "download", "publish", "complete", "stopped", "failed" */
    uint64_t wanted;     /* of all files, what is there already included */
    uint64_t verified;   /* written, synced and recorded; only a dropped piece lowers it */
    uint64_t fetched;    /* body bytes received by this process */
    uint64_t wasted;     /* of them: gaps, and what had to be thrown away */
    bool all_known;      /* the lock file knows every hash: verified independently */
    const char *waiting; /* why nothing moves, "" */
    double waiting_s;    /* seconds left of it, 0 not known */
    struct hx_transfer_stats net;
    const struct hx_progress_file *files;
    size_t n_files;
};

struct hx_progress;

struct hx_progress_options {
    const char *model;
    const char *status_path; /* NULL or "": no file */
    bool json;
    unsigned log_s; /* seconds between lines in a log, 0 = 30 */
};

/* A status file that cannot be written gets a note, and the work goes on. */
int hx_progress_open(const struct hx_progress_options *opt, struct hx_progress **out,
                     struct hx_error *err);
void hx_progress_close(struct hx_progress *p);

/* Call as often as you like; shows at most once per second, and at once when the phase or the
 * reason of waiting changed. now: monotonic seconds. */
void hx_progress_show(struct hx_progress *p, const struct hx_progress_view *v, double now);

/* A line of the log beside the progress. */
void hx_progress_note(struct hx_progress *p, bool urgent, const char *text);
/* A file's state changed; message may be NULL. */
void hx_progress_file_event(struct hx_progress *p, const char *name, const char *state,
                            const char *message);

/* The line of a person: "34.5 %, 112 MB/s, 1 h 2 min left, 8 connections". rates in bytes per
 * second; eta < 0: not known. */
void hx_progress_line(const struct hx_progress_view *v, double rate, double eta, char *out,
                      size_t n);

/* Mean over the last 10 s and 5 min of bytes that only grow. */
struct hx_meter {
    double at[301];
    uint64_t bytes[301];
    unsigned n, next;
};
void hx_meter_add(struct hx_meter *m, double now, uint64_t bytes); /* once per second */
double hx_meter_rate(const struct hx_meter *m, double span);

#endif
