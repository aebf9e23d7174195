/* Speculative decoding. A draft stays when the sampler, given the target's logits, picks the same
 * token: sampling draws one random number by position, so the text is the undrafted one, greedy or
 * not. This is the rule of spec dspark.md section 3 for a drafter that always takes its best token.
 */
#include "run/draft.h"

#include <math.h>
#include <string.h>

#include "run/engine_impl.h"

int hx_draft_gate(const float *z, int n, double gate)
{
    double all = 1;
    for (int i = 0; i < n; i++) {
        all *= (double)(1.0f / (1.0f + expf(-z[i])));
        if (!(all >= gate))
            return i;
    }
    return n;
}

/* Drafts that the step may verify for a sequence; 0: it is in its prompt, or there is no room. */
static int draft_room(const struct hx_engine *e, struct hx_sequence *s)
{
    int64_t room = e->opt.drafts < e->draft_block ? e->opt.drafts : e->draft_block;
    int64_t here = hx_sequence_draft_room(s), len = hx_kv_seq_len(s->kv);
    if (hx_sequence_prefill_left(s) > 0)
        return 0;
    room = here < room ? here : room;
    room = e->seq_limit - len - 1 < room ? e->seq_limit - len - 1 : room;
    return room > 0 ? (int)room : 0;
}

int hx_engine_draft(struct hx_engine *e, struct hx_sequence *const *batch, int n, int *n_tok,
                    int *n_draft, struct hx_error *err)
{
    struct hx_kv_seq *kv[HX_MAX_SEQUENCES];
    int32_t anchor[HX_MAX_SEQUENCES];
    int room[HX_MAX_SEQUENCES], at[HX_MAX_SEQUENCES], m = 0;
    for (int i = 0; i < n; i++) {
        n_draft[i] = 0;
        room[m] = draft_room(e, batch[i]);
        if (room[m] == 0)
            continue;
        kv[m] = batch[i]->kv;
        anchor[m] = batch[i]->tokens[batch[i]->n_tok - 1];
        at[m++] = i;
    }
    if (m == 0)
        return 0;
    int r = hx_rank_draft(e->rank, kv, anchor, m, e->draft, e->draft_z, NULL, NULL, err);
    for (int k = 0; r == 0 && k < m; k++) {
        struct hx_sequence *s = batch[at[k]];
        const float *z = e->draft_z + (int64_t)k * e->draft_block;
        int keep = hx_draft_gate(z, room[k], e->opt.gate);
        struct hx_error full;
        /* Drafts are not worth another sequence's blocks. */
        if (keep == 0 || hx_kv_seq_reserve(s->kv, hx_kv_seq_len(s->kv) + 1 + keep, &full) < 0)
            continue;
        memcpy(s->tokens + s->n_tok, e->draft + (int64_t)k * e->draft_block,
               (size_t)keep * sizeof(*s->tokens));
        n_draft[at[k]] = keep;
        n_tok[at[k]] += keep;
    }
    return r;
}
