/* A loaded model that serves requests. Thread-safe unless noted. */
#ifndef HX_ENGINE_H
#define HX_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

struct hx_engine;

enum hx_mode {
    HX_MODE_W8A16,     /* what the product runs: exact weights, bf16 activations */
    HX_MODE_REFERENCE, /* activation quantisation and bf16 index scores of the official code */
};

#define HX_MAX_DRAFTS 7

struct hx_engine_options {
    const char *model_dir;
    const char *backend; /* "cpu" */
    enum hx_mode mode;
    int max_sequences;   /* sequences that run at once, 1-64 */
    int64_t max_context; /* tokens of one sequence; 0 or more than that: the model's own limit */
    int64_t kv_tokens;   /* tokens that all sequences may hold together; 0: max_sequences x
                            max_context,   at most what [engine] memory allows */
    int prefill_chunk;   /* tokens of one sequence in one step */
    int drafts;  /* tokens drafted ahead of each sequence, at most HX_MAX_DRAFTS and the model's own
                    block; 0: none. They change speed, never a token. */
    double gate; /* drafts are verified while the product of their confidences is at least this */
    int queue;   /* requests that may wait; one more fails with -EAGAIN */
    const char *engram_paths; /* folders with copies of the Engram shards, one for each drive, ':'
                                 between; NULL or empty: the model folder */
    bool engram_buffered;     /* read them through the page cache */
    const char *engram_hot;   /* file that keeps their keys over a restart; NULL or empty: none */
    int engram_slow_ms;       /* a read slower than this is an error; 0: 2000 */
    int64_t engram_cache;     /* bytes for n-grams that return; 0: none, negative: automatic */
    /* Load progress 0..1 with a stage name, called from hx_engine_open. May be NULL. */
    void (*progress)(void *user, const char *stage, double fraction);
    /* Called by the step thread after it delivered events, once a step. May be NULL. */
    void (*wake)(void *user);
    void *user;
};

struct hx_engine_info {
    int32_t n_vocab;
    int64_t max_context;
    int64_t trained_context;
    int max_sequences;
    int n_layer;
    double default_temperature; /* generation_config.json, else 1.0 */
    double default_top_p;       /* same, else 0.95 */
    char fingerprint[64];       /* build and layout */
    char layout[16];            /* "cpu" */
    char lock_id[80];           /* checkpoint lock file id, empty if none */
    char verification[32];      /* of the model's files, in words for people */
    bool demo;                  /* a synthetic model of hx-inspect tiny */
};

/* Histogram of seconds or tokens with the bucket bounds of hx_histogram_bounds. */
#define HX_HISTOGRAM_MAX 24
struct hx_histogram {
    uint64_t bucket[HX_HISTOGRAM_MAX]; /* not cumulative; one more than there are bounds */
    uint64_t count;
    double sum;
};
extern const double hx_histogram_bounds_seconds[]; /* 1 ms .. 3600 s */
extern const int hx_histogram_n_seconds;
extern const double hx_histogram_bounds_tokens[]; /* 1 .. 1 M */
extern const int hx_histogram_n_tokens;
void hx_histogram_add(struct hx_histogram *h, const double *bounds, int n_bounds, double v);

enum hx_cancel_phase { HX_CANCEL_QUEUED, HX_CANCEL_PREFILL, HX_CANCEL_DECODE, HX_CANCEL_MAX };

#define HX_ENGRAM_TABLES 4
enum hx_engram_fault { /* kinds of read errors */
                       HX_ENGRAM_FAULT_IO,
                       HX_ENGRAM_FAULT_GONE,
                       HX_ENGRAM_FAULT_SHORT,
                       HX_ENGRAM_FAULT_SLOW,
                       HX_ENGRAM_FAULT_IMPLAUSIBLE,
                       HX_ENGRAM_FAULT_OTHER,
                       HX_ENGRAM_FAULT_MAX
};
enum hx_engram_wait { /* what waited for rows */
                      HX_ENGRAM_WAIT_DECODE,
                      HX_ENGRAM_WAIT_CHUNK,
                      HX_ENGRAM_WAIT_MAX
};

/* Engram tables and their drives (spec engram.md 8). n_tables 0: rows are not streamed. */
struct hx_engram_counters {
    int n_tables;
    struct {
        uint64_t rows_requested, rows_unique, groups_requested, groups_unique;
        uint64_t cache_hits, attached_waits; /* groups */
        uint64_t reads_submitted, reads_completed, bytes_read, straddling_reads;
        uint64_t retries, implausible_rows, online;
    } table[HX_ENGRAM_TABLES];
    uint64_t errors[HX_ENGRAM_FAULT_MAX];
    uint64_t busy_rejections, cancelled_plans, rejected_draft_rows, late_decode_waits;
    uint64_t cache_bytes, scale_bytes, cache_rows, in_flight, queued_rows;
    int level, align; /* 0: io_uring with registered buffers ... 3: threads, page cache; bytes */
    struct hx_histogram read, wait[HX_ENGRAM_WAIT_MAX]; /* seconds, bounds of _fine */
};
extern const double hx_histogram_bounds_fine[]; /* 10 us .. 10 s */
extern const int hx_histogram_n_fine;

struct hx_engine_stats {
    int running, waiting;
    double kv_usage; /* 0-1 */
    uint64_t prefix_query_tok, prefix_hit_tok;
    uint64_t prompt_tok, generated_tok;
    uint64_t preemptions;
    uint64_t finished_stop, finished_length, finished_abort;
    uint64_t cancelled[HX_CANCEL_MAX];
    uint64_t drafts, draft_tok, accepted_tok; /* blocks verified, their tokens, those that stayed */
    uint64_t accepted_per_pos[HX_MAX_DRAFTS];
    struct hx_histogram ttft, itl, e2e, queue_time, prefill_time, decode_time; /* seconds */
    struct hx_histogram prompt_len, generated_len;                             /* tokens */
    double retry_after; /* seconds, estimate for a full queue, 1-60 */
    struct hx_engram_counters engram;
};

enum hx_engine_health { HX_HEALTH_OK, HX_HEALTH_DEGRADED, HX_HEALTH_FAILED };

/* Loads the model and starts the step thread. */
int hx_engine_open(const struct hx_engine_options *opt, struct hx_engine **out,
                   struct hx_error *err) HX_MUST;
/* Cancels what is left, joins the threads, frees. All requests must have been freed before. */
void hx_engine_close(struct hx_engine *e);
void hx_engine_info(const struct hx_engine *e, struct hx_engine_info *out);
void hx_engine_stats(struct hx_engine *e, struct hx_engine_stats *out);
/* reason: set for DEGRADED and FAILED. */
enum hx_engine_health hx_engine_health(struct hx_engine *e, struct hx_error *reason);

#endif
