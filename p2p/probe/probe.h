/* The CUDA probe: measures what only a CUDA context can tell and judges nothing. Judge (p2p_check)
 * and probe (hx-probe) are separate programs; a card that hangs takes the probe along at most.
 *
 * The supervisor never touches CUDA. Each step runs in a forked child with its own time limit and
 * writes its findings into a result in shared memory as it goes, so that a hang or a crash costs
 * only what was not yet measured. Fields and spelling of the JSON: docs/probe.md. */
#ifndef HX_PROBE_H
#define HX_PROBE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

struct hx_buf;

#define HX_PROBE_DEVICES 16
#define HX_PROBE_RANKS   8 /* cards that take part in pair tests */
#define HX_PROBE_SIZES   9
#define HX_PROBE_COUNTS  3

/* What a test found, in the words of the JSON. */
enum hx_probe_outcome {
    HX_PROBE_NOT_RUN,
    HX_PROBE_OK,
    HX_PROBE_MISMATCH, /* memory test: wrong words */
    HX_PROBE_FAULT,    /* memory test: the device faulted */
    HX_PROBE_CORRUPT,  /* content test: some bytes wrong */
    HX_PROBE_ZERO,     /* content test: nothing arrived although every call succeeded */
    HX_PROBE_HANG,     /* somebody waited beyond the limit */
    HX_PROBE_WRONG,    /* all-reduce: wrong sums */
    HX_PROBE_NOT_OFFERED,
    HX_PROBE_OUTCOME_MAX
};
const char *hx_probe_outcome_name(enum hx_probe_outcome o);

enum hx_probe_context {
    HX_PROBE_CONTEXT_UNKNOWN,
    HX_PROBE_CONTEXT_OK,
    HX_PROBE_CONTEXT_TIMEOUT,
    HX_PROBE_CONTEXT_ERROR
};

/* A number that was not measured is NaN and becomes null or stays out. */
struct hx_probe_alias {
    enum hx_probe_outcome outcome;
    double coverage, seconds;
    uint64_t words_checked, mismatches;
    bool is_alias; /* else the words found are no tags of this run */
    bool has_first;
    uint64_t first_low, first_high; /* byte offsets; equal if no alias */
};

struct hx_probe_pattern {
    enum hx_probe_outcome outcome;
    double coverage, seconds;
    uint64_t mismatches;
    int max_core_c, max_memory_c; /* INT32_MIN: unknown */
    bool bit_flips;               /* first bad burst: single bits wrong, else zeros or garbage */
    uint32_t burst_bytes;         /* length of the first bad burst, 0 if none */
    uint32_t bad_blocks, blocks;  /* of 2 MiB */
    bool stopped_hot;
};

struct hx_probe_device {
    enum hx_probe_context context;
    char context_error[96];
    char uuid[48]; /* as the management library spells it; never written out */
    int sm_count, cc_major, cc_minor;
    uint32_t l2_kib, total_mib;
    double fp32_fma_tflops, bf16_tflops, mma_cycles;
    double hbm_read_gbps, hbm_copy_gbps; /* copy: bytes read plus bytes written */
    double h2d_gbps, d2h_gbps;
    struct hx_probe_alias alias;
    struct hx_probe_pattern pattern;
};

struct hx_probe_content {
    enum hx_probe_outcome outcome;
    int n_sizes;
    uint64_t sizes[HX_PROBE_SIZES];
    int pairs;
    uint64_t bad_bytes;
    char note[160];
};

typedef double hx_probe_matrix[HX_PROBE_RANKS][HX_PROBE_RANKS]; /* [source][target] */

struct hx_probe_p2p {
    bool run; /* else the JSON says null */
    int n_ranks;
    int can_access[HX_PROBE_RANKS][HX_PROBE_RANKS]; /* -1 unknown */
    char enable[64];                                /* "ok" or the error's name */
    bool offered;                                   /* peer access is enabled on every pair */
    hx_probe_matrix staged_gbps, peer_gbps, bidir_gbps, latency_us;
    struct hx_probe_content copy, store, load, ipc, after_abnormal_exit;
    struct {
        enum hx_probe_outcome outcome;
        uint32_t turns;
        double us;
    } flags;
    struct {
        enum hx_probe_outcome outcome;
        double ring_gbps;
        char note[160];
    } allpairs;
};

struct hx_probe_arm {
    enum hx_probe_outcome outcome;
    bool exact;
    double us[HX_PROBE_COUNTS]; /* at hx_probe_small_bytes */
    double busbw_gbps;          /* at HX_PROBE_LARGE_BYTES */
    char note[160];
};
/* 1, 6 and 48 rows of 5120 bf16, and a prefill chunk of 2,048 rows. */
extern const uint64_t hx_probe_small_bytes[HX_PROBE_COUNTS];
#define HX_PROBE_LARGE_BYTES 20971520u

struct hx_probe_result {
    int n_devices;
    struct hx_probe_device device[HX_PROBE_DEVICES];
    struct hx_probe_p2p p2p;
    struct {
        bool run;
        int ranks;
        struct hx_probe_arm p2p, own_host, nccl_host; /* host arm: the faster exact one */
    } collectives;
    struct {
        bool run;
        uint64_t bytes_tagged, injected_words, detected_words;
        double fill_s, check_s;
    } control;
};

/* All memory of the result as "nothing measured". */
void hx_probe_result_init(struct hx_probe_result *r);
/* The JSON document into out. 0, -ENOMEM, -EMSGSIZE. */
int hx_probe_result_write(const struct hx_probe_result *r, struct hx_buf *out,
                          struct hx_error *err) HX_MUST;

struct hx_probe_options {
    bool full;             /* all sizes, the abnormal exit; else three sizes */
    bool one_device;       /* self-test: ranks are streams and buffers of device 0 */
    int n_ranks;           /* with one_device: how many ranks, 2..HX_PROBE_RANKS */
    unsigned pattern_s;    /* 0: the quick patterns once; else the standard rounds for so long */
    uint64_t memory_bytes; /* most memory the memory tests take, 0: all but the reserve */
    unsigned flags_limit_ms, collective_limit_ms; /* waits inside kernels */
    const char *nccl;                             /* library name, NULL: without NCCL */
};

/* Shared between supervisor and children. */
struct hx_probe_shared {
    /* A slot for each device and one, the last, for steps of all devices. */
    atomic_int stop[HX_PROBE_DEVICES + 1];      /* end at the next look */
    atomic_int hot[HX_PROBE_DEVICES + 1];       /* this card is too hot: end its memory test */
    atomic_uint permille[HX_PROBE_DEVICES + 1]; /* progress */
    char message[HX_PROBE_DEVICES + 1][256];    /* of a child that failed */
    struct hx_probe_result result;
};
/* The slot of a device, of -1 for all of them. */
static inline int hx_probe_slot(int device)
{
    return device < 0 || device >= HX_PROBE_DEVICES ? HX_PROBE_DEVICES : device;
}

/* What the device tests of a test program plant; every member may be NULL, and the product passes
 * NULL for the whole struct. Called with the work queued or done as the name says. */
struct hx_probe_plant {
    void *ctx;
    /* The target of a content test before it is compared; test is "copy", "store", "load", "ipc",
     * "allpairs". Called with the target's device current, all work complete. */
    void (*content)(void *ctx, const char *test, int from, int to, void *target, size_t bytes);
    /* Inside the timed part of a peer copy: work queued here is counted. stream: cudaStream_t. */
    void (*slow)(void *ctx, int from, int to, void *stream);
    /* True: this rank's side of the named test ("flags", "all_reduce", "allpairs") never starts. */
    bool (*mute)(void *ctx, const char *test, int rank);
    /* The result of an all-reduce on one rank before it is compared. */
    void (*sums)(void *ctx, int rank, void *x, size_t bytes);
    /* After a memory fill: segments [n] on the host, each HX_SEGMENT_BYTES of device memory. */
    void (*memory)(void *ctx, void *const *segments, size_t n);
    /* Address folding of the alias test, struct hx_mem_map. */
    const void *fold;
};

/* One step: runs in a child, on one device or on all. Returns 0 or a negative errno with the
 * message; what a card does wrong is a finding in the result and no error. */
typedef int hx_probe_fn(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                        const struct hx_probe_plant *plant, int device, struct hx_error *err);

enum hx_probe_scope {
    HX_PROBE_ONCE,       /* no device yet */
    HX_PROBE_EACH,       /* every sound device, one after the other */
    HX_PROBE_EACH_ALL,   /* every device at the same time */
    HX_PROBE_PAIRS,      /* all devices, needs two ranks */
    HX_PROBE_PAIRS_PEER, /* and peer access enabled */
    HX_PROBE_PAIRS_SOUND /* and the content of copies and stores was right */
};

/* How a child's life ended other than well. */
enum hx_probe_end { HX_PROBE_END_OK, HX_PROBE_END_ERROR, HX_PROBE_END_CRASH, HX_PROBE_END_LIMIT };

struct hx_probe_step {
    const char *name;  /* for --steps and progress */
    const char *title; /* what the owner reads */
    enum hx_probe_scope scope;
    unsigned limit_s;
    hx_probe_fn *run;
    /* Marks the result after a bad end; message is one line. */
    void (*mark)(struct hx_probe_result *r, int device, enum hx_probe_end end, const char *message);
    bool own_limit; /* limit_s is added to options.pattern_s */
    bool only_full;
};

/* The steps of this build, in order; empty without CUDA. */
extern const struct hx_probe_step hx_probe_steps[];
extern const size_t hx_probe_n_steps;
/* "" or why there are no steps. */
extern const char *const hx_probe_without;

#endif
