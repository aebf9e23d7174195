/* From logits to a token. Double precision, no allocation, no state between calls: the random
 * number is a function of (seed, choice, position), so a token does not depend on what else runs.
 */
#ifndef HX_RUN_SAMPLER_H
#define HX_RUN_SAMPLER_H

#include <hx/request.h>

struct hx_sampler; /* working memory of one thread */
int hx_sampler_new(int n_vocab, struct hx_sampler **out, struct hx_error *err) HX_MUST;
void hx_sampler_free(struct hx_sampler *s);

struct hx_sampling {
    const struct hx_request_params *params;
    int choice;
    int64_t position;      /* tokens generated so far */
    const int32_t *counts; /* [n_vocab] how often generated; NULL without penalties */
    const uint8_t *seen;   /* [n_vocab] 1: in the prompt or generated; NULL without penalties */
    int32_t forced;        /* the token to take; -1: sample */
};

struct hx_token_logprob {
    int32_t token;
    float logprob;
};

struct hx_sampled {
    int32_t token;
    float logprob; /* 0 if n_logprobs is -1 */
    int n_top;
    struct hx_token_logprob top[HX_MAX_TOP_LOGPROBS];
};

/* Order: log-probs of the logits as they are; repetition penalty (positive logits divided, others
 * multiplied), frequency and presence penalty; bias (-100 forbids, 100 leaves only such tokens);
 * forbidden tokens, and end and stop tokens before min_tokens; then greedy below a temperature of
 * 1e-5, else logits / temperature, min_p (p >= min_p * largest p), top_k, top_p (the smallest set
 * of best tokens that reaches it). Equal logits: the lower id is the better one.
 * -EDOM: a logit is NaN or +inf. -EINVAL: every token is forbidden. */
int hx_sampler_pick(struct hx_sampler *s, const float *logits, const struct hx_sampling *in,
                    struct hx_sampled *out, struct hx_error *err) HX_MUST;

/* Whether the token will be that of the largest logit, the lower id among equals, so that nobody
 * needs the others. */
bool hx_sampler_takes_best(const struct hx_sampling *in);

/* Uniform in [0, 1) by (seed, choice, position). */
double hx_sampler_uniform(uint64_t seed, int choice, int64_t position);

#endif
