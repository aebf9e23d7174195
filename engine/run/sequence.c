/* One choice of a request: its tokens, its sampling state, its stream. */
#include <stdlib.h>
#include <string.h>

#include "run/engine_impl.h"

#define STREAM_TOK 128

int hx_sequence_init(struct hx_sequence *s, struct hx_request *r, int choice, int n_vocab,
                     struct hx_error *err)
{
    const struct hx_request_params *p = &r->params;
    bool penalties =
        p->presence_penalty != 0 || p->frequency_penalty != 0 || p->repetition_penalty != 1;
    s->req = r;
    s->choice = choice;
    s->state = choice == 0 ? HX_SEQ_WAITING : HX_SEQ_FOLLOWS;
    s->i_forced = p->n_forced > 0 && p->force_after < 0 ? 0 : -1;
    s->n_tok = (int64_t)p->n_prompt;
    s->tokens = malloc((p->n_prompt + (size_t)r->max_tokens) * sizeof(*s->tokens));
    if (penalties) {
        s->counts = calloc((size_t)n_vocab, sizeof(*s->counts));
        s->seen = calloc((size_t)n_vocab, 1);
    }
    if (!s->tokens || (penalties && (!s->counts || !s->seen)))
        return hx_fail(err, -ENOMEM, "out of memory for a request of %zu tokens", p->n_prompt);
    memcpy(s->tokens, p->prompt, p->n_prompt * sizeof(*s->tokens));
    for (size_t i = 0; s->seen && i < p->n_prompt; i++)
        s->seen[p->prompt[i]] = 1;
    return hx_stream_init(&s->stream, STREAM_TOK, p->n_logprobs, err);
}

void hx_sequence_done(struct hx_sequence *s)
{
    free(s->tokens);
    free(s->counts);
    free(s->seen);
    hx_stream_done(&s->stream);
}

int64_t hx_sequence_prefill_left(const struct hx_sequence *s)
{
    return s->n_tok - 1 - hx_kv_seq_len(s->kv);
}

int64_t hx_sequence_draft_room(struct hx_sequence *s)
{
    const struct hx_request_params *p = &s->req->params;
    int64_t left = (int64_t)p->n_prompt + s->req->max_tokens - s->n_tok - 1;
    int64_t stream = (int64_t)hx_stream_room(&s->stream) - 1;
    if (s->i_forced >= 0 && s->i_forced < (int64_t)p->n_forced)
        return 0; /* what comes is known already */
    return left < stream ? left : stream;
}

struct hx_usage hx_sequence_usage(const struct hx_sequence *s)
{
    int64_t n_prompt = (int64_t)s->req->params.n_prompt;
    return (struct hx_usage){n_prompt, s->cached_tok, s->n_tok - n_prompt};
}

static bool among(const int32_t *list, size_t n, int32_t token)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i] == token)
            return true;
    }
    return false;
}

static struct hx_sampling next_sampling(const struct hx_sequence *s)
{
    const struct hx_request_params *p = &s->req->params;
    bool forcing = s->i_forced >= 0 && s->i_forced < (int64_t)p->n_forced;
    return (struct hx_sampling){.params = p,
                                .choice = s->choice,
                                .position = s->n_tok - (int64_t)p->n_prompt,
                                .counts = s->counts,
                                .seen = s->seen,
                                .forced = forcing ? p->forced[s->i_forced] : -1};
}

bool hx_sequence_takes_best(const struct hx_sequence *s)
{
    struct hx_sampling in = next_sampling(s);
    return hx_sampler_takes_best(&in);
}

int hx_sequence_advance(struct hx_sequence *s, struct hx_sampler *sampler, const float *logits,
                        int32_t best, bool *last, enum hx_end_reason *reason, struct hx_error *err)
{
    const struct hx_request_params *p = &s->req->params;
    const struct hx_sampling in = next_sampling(s);
    const bool forcing = in.forced >= 0;
    int64_t n_generated = in.position;
    struct hx_sampled got = {.token = forcing ? in.forced : best};
    int r = logits ? hx_sampler_pick(sampler, logits, &in, &got, err) : 0;
    if (r < 0)
        return r;
    if (forcing)
        s->i_forced++;
    else if (s->i_forced < 0 && p->n_forced > 0 && got.token == p->force_after)
        s->i_forced = 0;
    s->tokens[s->n_tok++] = got.token;
    if (s->counts) {
        s->counts[got.token]++;
        s->seen[got.token] = 1;
    }
    n_generated++;
    if ((!p->ignore_end_tokens && among(p->end_tokens, p->n_end_tokens, got.token)) ||
        among(p->stop_tokens, p->n_stop_tokens, got.token)) {
        s->end.token = got.token;
        s->end.logprob = got.logprob;
        s->end.n_top = got.n_top;
        for (int i = 0; i < got.n_top; i++) {
            s->end.top[i].token = got.top[i].token;
            s->end.top[i].logprob = got.top[i].logprob;
        }
        *reason = HX_END_TOKEN;
        *last = true;
        return 0;
    }
    hx_stream_push(&s->stream, &got, n_generated);
    *last = n_generated == s->req->max_tokens;
    if (*last)
        *reason = HX_END_LENGTH;
    return 0;
}
