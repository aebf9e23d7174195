/* Request fields of /chat/completions and /completions: one row a field gives name, type, range and
 * error. */
#ifndef HX_SERVER_PARAMS_H
#define HX_SERVER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/request.h>

#include "base/json_read.h"

#define HX_MAX_STOPS 16
#define HX_MAX_BIAS  1024

enum hx_endpoint { HX_ENDPOINT_CHAT = 1, HX_ENDPOINT_COMPLETION = 2 };

struct hx_stop {
    char *text; /* not NUL-terminated */
    size_t len;
};

struct hx_params {
    bool stream, include_usage, continuous_usage;
    int64_t max_completion_tokens, max_tokens; /* 0: the rest of the context */
    int64_t min_tokens, n, top_k, top_logprobs;
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    uint64_t seed;
    bool has_seed, logprobs, include_stop, ignore_eos, skip_special, parse_special;
    struct hx_stop stop[HX_MAX_STOPS];
    int n_stops;
    int32_t stop_id[HX_MAX_STOPS];
    int n_stop_ids;
    struct hx_logit_bias *bias;
    size_t n_bias;
    int64_t n_unknown; /* fields that no row names */
};

/* What the loaded model says. */
struct hx_params_limits {
    int32_t n_vocab;
    int max_sequences;
    double temperature, top_p;
};

/* Errors: -EINVAL with param and slug (api.md sections 2 and 3); -ENOMEM. */
int hx_params_read(struct hx_jv request, enum hx_endpoint endpoint,
                   const struct hx_params_limits *limits, struct hx_params *out,
                   struct hx_error *err) HX_MUST;
void hx_params_done(struct hx_params *p);

#endif
