/* Sampler: see sampler.h for the order of the steps. */
#include "run/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"

#define GREEDY_BELOW 1e-5
#define BIAS_LIMIT   100.0f
#define MAX_BIAS     1024

struct hx_sampler {
    int n_vocab;
    double *score;  /* [n_vocab] */
    double *weight; /* [n_vocab] by rank in `order` */
    int32_t *order; /* [n_vocab] candidates; in front of it the chosen ones, best first */
    double kept[MAX_BIAS];
};

int hx_sampler_new(int n_vocab, struct hx_sampler **out, struct hx_error *err)
{
    struct hx_sampler *s = calloc(1, sizeof(*s));
    if (s) {
        s->n_vocab = n_vocab;
        s->score = calloc((size_t)n_vocab, sizeof(*s->score));
        s->weight = calloc((size_t)n_vocab, sizeof(*s->weight));
        s->order = calloc((size_t)n_vocab, sizeof(*s->order));
    }
    if (!s || !s->score || !s->weight || !s->order) {
        hx_sampler_free(s);
        return hx_fail(err, -ENOMEM, "out of memory for a sampler of %d tokens", n_vocab);
    }
    *out = s;
    return 0;
}

void hx_sampler_free(struct hx_sampler *s)
{
    if (!s)
        return;
    free(s->score);
    free(s->weight);
    free(s->order);
    free(s);
}

double hx_sampler_uniform(uint64_t seed, int choice, int64_t position)
{
    uint64_t x = hx_mix64(hx_mix64(hx_mix64(seed) + (uint64_t)choice) + (uint64_t)position);
    return (double)(x >> 11) * 0x1p-53;
}

/* ---- log-probabilities ---- */

/* The n best of logits into top, best first: one pass with a short sorted list. */
static int best_tokens(const float *logits, int n_vocab, int n, struct hx_token_logprob *top)
{
    int found = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (found == n && !(logits[i] > top[n - 1].logprob))
            continue;
        int at = found < n ? found++ : n - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct hx_token_logprob){i, logits[i]};
    }
    return found;
}

static double log_sum_exp(const float *logits, int n_vocab, double max)
{
    double sum = 0;
    for (int i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum);
}

/* ---- scores ---- */

static bool has_repetition(const struct hx_sampling *in)
{
    return in->seen && in->params->repetition_penalty != 1;
}

static bool has_counts(const struct hx_sampling *in)
{
    return in->counts && (in->params->frequency_penalty != 0 || in->params->presence_penalty != 0);
}

static void apply_penalties(struct hx_sampler *s, const struct hx_sampling *in)
{
    const struct hx_request_params *p = in->params;
    double repetition = p->repetition_penalty;
    const int n_repeated = has_repetition(in) ? s->n_vocab : 0;
    for (int i = 0; i < n_repeated; i++) {
        if (in->seen[i])
            s->score[i] = s->score[i] > 0 ? s->score[i] / repetition : s->score[i] * repetition;
    }
    if (!has_counts(in))
        return;
    for (int i = 0; i < s->n_vocab; i++) {
        if (in->counts[i] > 0)
            s->score[i] -= (double)p->frequency_penalty * in->counts[i] + p->presence_penalty;
    }
}

static void apply_bias(struct hx_sampler *s, const struct hx_request_params *p)
{
    bool force = false;
    size_t n = p->n_bias < MAX_BIAS ? p->n_bias : MAX_BIAS;
    for (size_t i = 0; i < n; i++) {
        const struct hx_logit_bias *b = &p->bias[i];
        s->score[b->token] += b->bias <= -BIAS_LIMIT ? -INFINITY : (double)b->bias;
        force = force || b->bias >= BIAS_LIMIT;
    }
    if (!force)
        return;
    for (size_t i = 0; i < n; i++)
        s->kept[i] = s->score[p->bias[i].token];
    for (int i = 0; i < s->n_vocab; i++)
        s->score[i] = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (p->bias[i].bias >= BIAS_LIMIT)
            s->score[p->bias[i].token] = s->kept[i];
    }
}

static void forbid(struct hx_sampler *s, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s->score[tokens[i]] = -INFINITY;
}

/* ---- candidates ---- */

static bool better(const struct hx_sampler *s, int32_t a, int32_t b)
{
    return s->score[a] > s->score[b] || (s->score[a] == s->score[b] && a < b);
}

/* order[0..n) as a heap whose root is the best. */
static void sift_down(struct hx_sampler *s, int n, int at)
{
    int32_t moving = s->order[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && better(s, s->order[child + 1], s->order[child]))
            child++;
        if (!better(s, s->order[child], moving))
            break;
        s->order[at] = s->order[child];
        at = child;
    }
    s->order[at] = moving;
}

static int32_t pop_best(struct hx_sampler *s, int n)
{
    int32_t best = s->order[0];
    s->order[0] = s->order[n - 1];
    sift_down(s, n - 1, 0);
    s->order[n - 1] = best; /* sorted ones collect at the end */
    return best;
}

/* Draws among n_kept weights by rank; weight r belongs to order[first - r * step]. */
static int32_t draw(const struct hx_sampler *s, int n_kept, int first, int step, double u)
{
    double total = 0, sum = 0;
    for (int r = 0; r < n_kept; r++)
        total += s->weight[r];
    int last = 0;
    for (int r = 0; r < n_kept; r++) {
        if (s->weight[r] <= 0)
            continue;
        sum += s->weight[r];
        last = r;
        if (u * total < sum)
            break;
    }
    return s->order[first - last * step];
}

static int32_t sample(struct hx_sampler *s, const struct hx_request_params *p, double max, double u)
{
    double t = p->temperature, floor = p->min_p > 0 ? max + t * log(p->min_p) : -INFINITY;
    int n = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (s->score[i] >= floor && s->score[i] > -INFINITY)
            s->order[n++] = i;
    }
    bool cut_k = p->top_k > 0 && p->top_k < n, cut_p = p->top_p < 1;
    if (!cut_k && !cut_p) {
        for (int r = 0; r < n; r++)
            s->weight[r] = exp((s->score[s->order[r]] - max) / t);
        return draw(s, n, 0, -1, u);
    }
    /* Only as many are sorted as are kept. */
    double total = 0;
    for (int i = 0; !cut_k && i < n; i++)
        total += exp((s->score[s->order[i]] - max) / t);
    for (int i = n / 2 - 1; i >= 0; i--)
        sift_down(s, n, i);
    int want = cut_k ? p->top_k : n, kept = 0;
    double sum = 0;
    while (kept < want) {
        double w = exp((s->score[pop_best(s, n - kept)] - max) / t);
        s->weight[kept++] = w;
        sum += w;
        if (!cut_k && cut_p && sum >= p->top_p * total)
            break;
    }
    if (cut_k && cut_p) {
        double limit = p->top_p * sum;
        sum = 0;
        for (want = kept, kept = 0; kept < want && (kept == 0 || sum < limit); kept++)
            sum += s->weight[kept];
    }
    return draw(s, kept, n - 1, 1, u);
}

bool hx_sampler_takes_best(const struct hx_sampling *in)
{
    const struct hx_request_params *p = in->params;
    return p->temperature < GREEDY_BELOW && p->n_logprobs < 0 && !has_repetition(in) &&
           !has_counts(in) && p->n_bias == 0 && p->n_forbidden == 0 &&
           in->position >= p->min_tokens;
}

int hx_sampler_pick(struct hx_sampler *s, const float *logits, const struct hx_sampling *in,
                    struct hx_sampled *out, struct hx_error *err)
{
    const struct hx_request_params *p = in->params;
    struct hx_sampled r = {.token = in->forced};
    double max = -INFINITY;
    for (int i = 0; i < s->n_vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return hx_fail(err, -EDOM, "the model's logit of token %d is %s", i,
                           isnan(logits[i]) ? "not a number" : "infinite");
        s->score[i] = logits[i];
        max = logits[i] > max ? logits[i] : max;
    }
    if (r.token < 0) {
        apply_penalties(s, in);
        apply_bias(s, p);
        forbid(s, p->forbidden, p->n_forbidden);
        if (in->position < p->min_tokens) {
            if (!p->ignore_end_tokens)
                forbid(s, p->end_tokens, p->n_end_tokens);
            forbid(s, p->stop_tokens, p->n_stop_tokens);
        }
        int32_t best = 0;
        for (int32_t i = 1; i < s->n_vocab; i++)
            best = s->score[i] > s->score[best] ? i : best;
        if (s->score[best] == -INFINITY)
            return hx_fail(err, -EINVAL, "logit_bias and forbidden tokens leave no token to take");
        r.token = p->temperature < GREEDY_BELOW
                      ? best
                      : sample(s, p, s->score[best],
                               hx_sampler_uniform(p->seed, in->choice, in->position));
    }
    if (p->n_logprobs >= 0) {
        double norm = log_sum_exp(logits, s->n_vocab, max);
        r.logprob = (float)((double)logits[r.token] - norm);
        r.n_top = p->n_logprobs > 0 ? best_tokens(logits, s->n_vocab, p->n_logprobs, r.top) : 0;
        for (int i = 0; i < r.n_top; i++)
            r.top[i].logprob = (float)((double)r.top[i].logprob - norm);
    }
    *out = r;
    return 0;
}
