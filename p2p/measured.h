/* What the CUDA probe measured: its JSON (docs/probe.md), bounded and in
 * plain numbers. Written by hx-probe, judged here; the two are separate programs. */
#ifndef HX_P2P_MEASURED_H
#define HX_P2P_MEASURED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_MEASURED_DEVICES 16
#define HX_MEASURED_MAX     (4u << 20) /* bytes of JSON */

enum hx_outcome {
    HX_OUTCOME_NOT_RUN, /* also: not in the document */
    HX_OUTCOME_OK,
    HX_OUTCOME_CORRUPT, /* content wrong; memory: mismatch */
    HX_OUTCOME_ZERO,    /* target unchanged or zero although every call succeeded */
    HX_OUTCOME_HANG,
    HX_OUTCOME_FAULT, /* memory test: the device faulted */
    HX_OUTCOME_WRONG, /* all-reduce: wrong sum */
    HX_OUTCOME_NOT_OFFERED,
};
const char *hx_outcome_name(enum hx_outcome o);

enum hx_context { HX_CONTEXT_UNKNOWN, HX_CONTEXT_OK, HX_CONTEXT_TIMEOUT, HX_CONTEXT_ERROR };

/* Numbers that were not measured are NaN (reals) or -1 (integers). */
struct hx_measured_memory {
    enum hx_outcome outcome;
    double coverage; /* 0 to 1 */
    double seconds;
    double mismatches;
    bool is_alias;                          /* alias test: wrong words decode to other addresses */
    double first_low, first_high, distance; /* bytes */
};

struct hx_measured_device {
    enum hx_context context;
    int sm_count, total_mib;
    double fp32_tflops, bf16_tflops, hbm_gbps, mma_cycles, h2d_gbps, d2h_gbps;
    struct hx_measured_memory alias, pattern;
};

struct hx_measured_content {
    enum hx_outcome outcome;
    double bad_bytes;
    double us; /* flags: microseconds a turn */
};

struct hx_measured_arm {
    enum hx_outcome outcome;
    bool exact;
    double us_one, us_six, us_many; /* 10,240, 61,440 and 491,520 bytes */
    double bus_gbps;                /* 20,971,520 bytes */
};

typedef double hx_measured_matrix[HX_MEASURED_DEVICES][HX_MEASURED_DEVICES]; /* [from][to] */

struct hx_measured {
    int n_devices;
    struct hx_measured_device device[HX_MEASURED_DEVICES];
    bool has_p2p;
    int n_peers;     /* side of the matrices */
    char enable[64]; /* "ok" or the error's name */
    hx_measured_matrix can_access, staged, peer, bidir, latency;
    bool has_staged, has_peer, has_bidir, has_latency;
    struct hx_measured_content copy, store, load, ipc, flags, allpairs, after_exit;
    bool has_collectives;
    struct hx_measured_arm p2p, host;
};

/* Any document that is not of this form, with values out of range or matrices that are not square
 * is -EINVAL and names the place. Members that are not known are ignored. */
int hx_measured_parse(const char *text, size_t len, const char *name, struct hx_measured *out,
                      struct hx_error *err) HX_MUST;
int hx_measured_read(const char *path, struct hx_measured *out, struct hx_error *err) HX_MUST;
/* Nothing measured. */
void hx_measured_init(struct hx_measured *out);

#endif
