/* Row sets of a pass (spec model.md section 7, "Exact prefill short cut").
 *
 * The output of a layer is wanted at some last rows; its window rows are wanted for those queries
 * (window - 1 positions back) and for later passes (as far back as the ring reaches, so that a
 * sequence may be continued, truncated or kept as a snapshot afterwards). A KV source needs the
 * input of every row. Backwards from the head this gives the first position of each layer's input.
 */
#include "model/row_sets.h"

#include <stdlib.h>
#include <string.h>

static int last_source(const struct hx_hparams *hp, const struct hx_maps *maps)
{
    int last = 0;
    for (int il = 0; il < hp->n_layer; il++)
        last = maps->is_kv_source[il] ? il : last;
    return last;
}

static int max_sets(const struct hx_hparams *hp, const struct hx_maps *maps)
{
    return hp->n_layer - last_source(hp, maps) + 2;
}

/* Of what fill_set takes. */
static size_t set_bytes(size_t n_row, size_t n_seq)
{
    return 2 * hx_arrays_room(n_row * 4) + 2 * hx_arrays_room(n_row * 8) + hx_arrays_room(n_row) +
           hx_arrays_room(n_seq * 8) + hx_arrays_room(n_seq * 4);
}

size_t hx_row_sets_bytes(const struct hx_hparams *hp, const struct hx_maps *maps, int max_tok,
                         int max_seq)
{
    size_t n = (size_t)max_tok;
    return (size_t)max_sets(hp, maps) * set_bytes(n, (size_t)max_seq) + 2 * hx_arrays_room(n * 4) +
           2 * hx_arrays_room(n * 8) +
           hx_arrays_room((size_t)max_seq * 8); /* tokens, groups, views */
}

int hx_row_sets_init(struct hx_row_sets *s, const struct hx_hparams *hp, const struct hx_maps *maps,
                     const struct hx_backend *be, struct hx_device *dev, int max_tok, int max_seq,
                     struct hx_error *err)
{
    *s = (struct hx_row_sets){.be = be,
                              .dev = dev,
                              .n_layer = hp->n_layer,
                              .window = hp->window,
                              .max_tok = max_tok,
                              .max_seq = max_seq,
                              .last_source = last_source(hp, maps),
                              .max_set = max_sets(hp, maps)};
    s->view = calloc((size_t)max_seq, sizeof(*s->view));
    s->first = calloc((size_t)(hp->n_layer + 1) * (size_t)max_seq, sizeof(*s->first));
    int r = s->view && s->first ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_arrays_init(&s->arrays, be, dev, hx_row_sets_bytes(hp, maps, max_tok, max_seq), err);
    return r; /* the caller calls hx_row_sets_done in any case */
}

void hx_row_sets_done(struct hx_row_sets *s)
{
    hx_arrays_done(&s->arrays);
    free(s->view);
    free(s->first);
}

/* First position that enters each layer, for sequence i. */
static void first_positions(struct hx_row_sets *s, const struct hx_forward_in *in, int i)
{
    const struct hx_forward_seq *q = &in->seq[i];
    int64_t past = q->n_past, end = past + q->n_tok, ring = q->kv->window[0].ring;
    int64_t out = end - q->n_logits; /* wanted of the layer above */
    s->first[s->n_layer * s->max_seq + i] = out;
    for (int il = s->n_layer - 1; il >= 0; il--) {
        int64_t kept = ring ? end - ring : past;
        int64_t need = out - (s->window - 1) < kept ? out - (s->window - 1) : kept;
        if (il <= s->last_source || in->tap || need < past)
            need = past;
        s->first[il * s->max_seq + i] = need;
        out = need;
    }
}

static void fill_set(struct hx_row_sets *s, const struct hx_forward_in *in, const int64_t *first,
                     const struct hx_row_set *before, const int32_t *before_row)
{
    struct hx_row_set *set = &s->set[s->n_set];
    int n = 0;
    for (int i = 0; i < in->n_seq; i++)
        n += (int)(in->seq[i].n_past + in->seq[i].n_tok - first[i]);
    *set = (struct hx_row_set){.first_pos = first, .first_of_pass = s->first};
    set->batch = (struct hx_batch){
        .n_row = n, .n_seq = in->n_seq, .kv = s->view, .kv_device = s->view_device};
    int32_t *seq = hx_arrays_take(&s->arrays, (size_t)n * 4, &set->batch.seq);
    int64_t *pos = hx_arrays_take(&s->arrays, (size_t)n * 8, &set->batch.pos);
    uint8_t *dead = hx_arrays_take(&s->arrays, (size_t)n, &set->batch.dead);
    int64_t *window_row = hx_arrays_take(&s->arrays, (size_t)n * 8, &set->window_row);
    int64_t *first_pos = hx_arrays_take(&s->arrays, (size_t)in->n_seq * 8, &set->batch.first_pos);
    int32_t *first_row = hx_arrays_take(&s->arrays, (size_t)in->n_seq * 4, &set->batch.first_row);
    int32_t *keep = before ? hx_arrays_take(&s->arrays, (size_t)n * 4, &set->keep) : NULL;
    int at = 0, of_seq = 0;
    for (int i = 0; i < in->n_seq; i++) {
        const struct hx_forward_seq *q = &in->seq[i];
        int64_t end = q->n_past + q->n_tok, ring = q->kv->window[0].ring;
        first_pos[i] = first[i];
        first_row[i] = at;
        for (int64_t p = first[i]; p < end; p++, at++) {
            seq[at] = i;
            pos[at] = p;
            dead[at] = in->dead ? in->dead[of_seq + (p - q->n_past)] : 0;
            window_row[at] = ring && p < end - ring ? -1 : p;
            if (keep)
                keep[at] = before_row[i] + (int32_t)(p - before->first_pos[i]);
        }
        of_seq += q->n_tok;
    }
    s->n_set++;
}

/* Groups of two tokens whose second one is in this pass. */
static void fill_groups(struct hx_row_sets *s, const struct hx_forward_in *in)
{
    int n = 0;
    for (int i = 0; i < in->n_seq; i++)
        n += (int)((in->seq[i].n_past + in->seq[i].n_tok) / 2 - in->seq[i].n_past / 2);
    s->groups = (struct hx_batch){
        .n_row = n, .n_seq = in->n_seq, .kv = s->view, .kv_device = s->view_device};
    int32_t *seq = hx_arrays_take(&s->arrays, (size_t)n * 4, &s->groups.seq);
    int64_t *pos = hx_arrays_take(&s->arrays, (size_t)n * 8, &s->groups.pos);
    int64_t *row = hx_arrays_take(&s->arrays, (size_t)n * 8, &s->group_row);
    int at = 0;
    for (int i = 0; i < in->n_seq; i++) {
        int64_t end = (in->seq[i].n_past + in->seq[i].n_tok) / 2;
        for (int64_t j = in->seq[i].n_past / 2; j < end; j++, at++) {
            seq[at] = i;
            row[at] = j;
            pos[at] = 2 * j;
        }
    }
}

static bool same_rows(const int64_t *a, const int64_t *b, int n_seq)
{
    return memcmp(a, b, (size_t)n_seq * sizeof(*a)) == 0;
}

int hx_row_sets_build(struct hx_row_sets *s, const struct hx_forward_in *in, struct hx_error *err)
{
    int n_tok = 0;
    hx_arrays_reset(&s->arrays);
    s->n_set = 0;
    const struct hx_kv_view **view =
        hx_arrays_take(&s->arrays, (size_t)in->n_seq * 8, &s->view_device);
    for (int i = 0; i < in->n_seq; i++) {
        s->view[i] = in->seq[i].kv;
        view[i] = in->seq[i].kv->device;
        n_tok += in->seq[i].n_tok;
        first_positions(s, in, i);
    }
    int32_t *token = hx_arrays_take(&s->arrays, (size_t)n_tok * 4, &s->token);
    memcpy(token, in->token, (size_t)n_tok * 4);
    fill_groups(s, in);
    for (int il = 0; il <= s->n_layer; il++) {
        const int64_t *first = s->first + (int64_t)il * s->max_seq;
        struct hx_row_set *last = s->n_set ? &s->set[s->n_set - 1] : NULL;
        if (!last || !same_rows(first, last->first_pos, in->n_seq)) {
            const int32_t *row = NULL;
            if (last) /* the host copy of its first_row */
                row = hx_arrays_host(&s->arrays, last->batch.first_row);
            fill_set(s, in, first, last, row);
        }
        s->in[il] = s->n_set - 1;
    }
    return hx_arrays_send(&s->arrays, err);
}
