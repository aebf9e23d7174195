/* The result of a probe and its JSON form; fields as the judge reads them (docs/probe.md). */
#include "probe/probe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/json_write.h"

const uint64_t hx_probe_small_bytes[HX_PROBE_COUNTS] = {10240, 61440, 491520};

const char *hx_probe_outcome_name(enum hx_probe_outcome o)
{
    static const char *const names[HX_PROBE_OUTCOME_MAX] = {[HX_PROBE_NOT_RUN] = "not_run",
                                                            [HX_PROBE_OK] = "ok",
                                                            [HX_PROBE_MISMATCH] = "mismatch",
                                                            [HX_PROBE_FAULT] = "fault",
                                                            [HX_PROBE_CORRUPT] = "corrupt",
                                                            [HX_PROBE_ZERO] = "zero",
                                                            [HX_PROBE_HANG] = "hang",
                                                            [HX_PROBE_WRONG] = "wrong",
                                                            [HX_PROBE_NOT_OFFERED] = "not_offered"};
    return (unsigned)o < HX_PROBE_OUTCOME_MAX ? names[o] : "not_run";
}

static void matrix_clear(hx_probe_matrix m)
{
    for (int i = 0; i < HX_PROBE_RANKS; i++) {
        for (int j = 0; j < HX_PROBE_RANKS; j++)
            m[i][j] = NAN;
    }
}

static void arm_init(struct hx_probe_arm *a)
{
    for (int i = 0; i < HX_PROBE_COUNTS; i++)
        a->us[i] = NAN;
    a->busbw_gbps = NAN;
}

void hx_probe_result_init(struct hx_probe_result *r)
{
    memset(r, 0, sizeof(*r));
    for (int i = 0; i < HX_PROBE_DEVICES; i++) {
        struct hx_probe_device *d = &r->device[i];
        d->fp32_fma_tflops = d->bf16_tflops = d->mma_cycles = NAN;
        d->hbm_read_gbps = d->hbm_copy_gbps = d->h2d_gbps = d->d2h_gbps = NAN;
        d->alias.coverage = d->alias.seconds = NAN;
        d->pattern.coverage = d->pattern.seconds = NAN;
        d->pattern.max_core_c = d->pattern.max_memory_c = INT32_MIN;
    }
    struct hx_probe_p2p *p = &r->p2p;
    matrix_clear(p->staged_gbps);
    matrix_clear(p->peer_gbps);
    matrix_clear(p->bidir_gbps);
    matrix_clear(p->latency_us);
    for (int i = 0; i < HX_PROBE_RANKS; i++) {
        for (int j = 0; j < HX_PROBE_RANKS; j++)
            p->can_access[i][j] = -1;
    }
    p->flags.us = p->allpairs.ring_gbps = NAN;
    arm_init(&r->collectives.p2p);
    arm_init(&r->collectives.own_host);
    arm_init(&r->collectives.nccl_host);
    r->control.fill_s = r->control.check_s = NAN;
}

/* Four significant digits: more would be noise. */
static void put_number(struct hx_json_writer *w, double v)
{
    char text[32];
    if (!isfinite(v)) {
        hx_jw_null(w);
        return;
    }
    if (fabs(v) >= 1000 && fabs(v) < 1e15)
        snprintf(text, sizeof(text), "%.0f", v);
    else
        snprintf(text, sizeof(text), "%.4g", v);
    hx_jw_raw(w, text, strlen(text));
}

static void put_key_number(struct hx_json_writer *w, const char *key, double v)
{
    hx_jw_key(w, key);
    put_number(w, v);
}

static void put_key_measured(struct hx_json_writer *w, const char *key, double v)
{
    if (isfinite(v))
        put_key_number(w, key, v);
}

static void put_key_uint(struct hx_json_writer *w, const char *key, uint64_t v)
{
    hx_jw_key(w, key);
    hx_jw_uint(w, v);
}

static void put_outcome(struct hx_json_writer *w, enum hx_probe_outcome o)
{
    hx_jw_key(w, "outcome");
    hx_jw_str(w, hx_probe_outcome_name(o));
}

static void put_note(struct hx_json_writer *w, const char *note)
{
    if (note[0]) {
        hx_jw_key(w, "note");
        hx_jw_str(w, note);
    }
}

static void put_alias(struct hx_json_writer *w, const struct hx_probe_alias *a)
{
    hx_jw_key(w, "alias");
    hx_jw_object(w);
    put_outcome(w, a->outcome);
    if (a->outcome != HX_PROBE_NOT_RUN) {
        put_key_measured(w, "coverage", a->coverage);
        put_key_uint(w, "words_checked", a->words_checked);
        put_key_uint(w, "mismatches", a->mismatches);
        if (a->has_first) {
            put_key_uint(w, "first_low", a->first_low);
            put_key_uint(w, "first_high", a->first_high);
            put_key_uint(w, "delta_bytes", a->first_high - a->first_low);
            hx_jw_key(w, "kind");
            hx_jw_str(w, a->is_alias ? "alias" : "corruption");
        }
        put_key_measured(w, "seconds", a->seconds);
    }
    hx_jw_end_object(w);
}

static void put_celsius(struct hx_json_writer *w, const char *key, int c)
{
    hx_jw_key(w, key);
    if (c == INT32_MIN)
        hx_jw_null(w);
    else
        hx_jw_int(w, c);
}

static void put_pattern(struct hx_json_writer *w, const struct hx_probe_pattern *p)
{
    hx_jw_key(w, "pattern");
    hx_jw_object(w);
    put_outcome(w, p->outcome);
    if (p->outcome != HX_PROBE_NOT_RUN) {
        put_key_measured(w, "coverage", p->coverage);
        put_key_measured(w, "seconds", p->seconds);
        put_key_uint(w, "mismatches", p->mismatches);
        put_celsius(w, "max_core_c", p->max_core_c);
        put_celsius(w, "max_memory_c", p->max_memory_c);
        if (p->burst_bytes) {
            hx_jw_key(w, "first_bad");
            hx_jw_object(w);
            put_key_uint(w, "burst_bytes", p->burst_bytes);
            hx_jw_key(w, "kind");
            hx_jw_str(w, p->bit_flips ? "bit_flips" : "zeros_or_garbage");
            hx_jw_end_object(w);
            put_key_uint(w, "bad_blocks_2mib", p->bad_blocks);
            put_key_uint(w, "blocks_2mib", p->blocks);
        }
        if (p->stopped_hot) {
            hx_jw_key(w, "note");
            hx_jw_str(w, "ended early: the card reached its temperature limit");
        }
    }
    hx_jw_end_object(w);
}

static void put_device(struct hx_json_writer *w, const struct hx_probe_device *d, int index)
{
    static const char *const contexts[] = {"not_run", "ok", "timeout", "error"};
    hx_jw_object(w);
    hx_jw_key(w, "index");
    hx_jw_int(w, index);
    hx_jw_key(w, "context");
    hx_jw_str(w, contexts[d->context]);
    if (d->context == HX_PROBE_CONTEXT_ERROR)
        put_note(w, d->context_error);
    if (d->context == HX_PROBE_CONTEXT_OK) {
        hx_jw_key(w, "sm_count");
        hx_jw_int(w, d->sm_count);
        char cc[16];
        snprintf(cc, sizeof(cc), "%d.%d", d->cc_major, d->cc_minor);
        hx_jw_key(w, "compute_capability");
        hx_jw_str(w, cc);
        put_key_uint(w, "l2_kib", d->l2_kib);
        put_key_uint(w, "total_mib", d->total_mib);
        put_key_measured(w, "fp32_fma_tflops", d->fp32_fma_tflops);
        put_key_measured(w, "bf16_tflops", d->bf16_tflops);
        put_key_measured(w, "hbm_read_gbps", d->hbm_read_gbps);
        put_key_measured(w, "hbm_copy_gbps", d->hbm_copy_gbps);
        put_key_measured(w, "mma_cycles", d->mma_cycles);
        put_key_measured(w, "h2d_gbps", d->h2d_gbps);
        put_key_measured(w, "d2h_gbps", d->d2h_gbps);
        put_alias(w, &d->alias);
        put_pattern(w, &d->pattern);
    }
    hx_jw_end_object(w);
}

static void put_matrix(struct hx_json_writer *w, const char *key, const hx_probe_matrix m, int n,
                       bool offered)
{
    hx_jw_key(w, key);
    if (!offered) {
        hx_jw_null(w);
        return;
    }
    hx_jw_array(w);
    for (int i = 0; i < n; i++) {
        hx_jw_array(w);
        for (int j = 0; j < n; j++)
            put_number(w, i == j ? (double)NAN : m[i][j]);
        hx_jw_end_array(w);
    }
    hx_jw_end_array(w);
}

static void put_content(struct hx_json_writer *w, const char *key, const struct hx_probe_content *c,
                        bool offered)
{
    hx_jw_key(w, key);
    if (!offered) {
        hx_jw_null(w);
        return;
    }
    hx_jw_object(w);
    put_outcome(w, c->outcome);
    if (c->outcome != HX_PROBE_NOT_RUN) {
        hx_jw_key(w, "sizes");
        hx_jw_array(w);
        for (int i = 0; i < c->n_sizes; i++)
            hx_jw_uint(w, c->sizes[i]);
        hx_jw_end_array(w);
        hx_jw_key(w, "pairs");
        hx_jw_int(w, c->pairs);
        put_key_uint(w, "bad_bytes", c->bad_bytes);
    }
    put_note(w, c->note);
    hx_jw_end_object(w);
}

static void put_p2p(struct hx_json_writer *w, const struct hx_probe_p2p *p)
{
    hx_jw_object(w);
    hx_jw_key(w, "can_access");
    hx_jw_array(w);
    for (int i = 0; i < p->n_ranks; i++) {
        hx_jw_array(w);
        for (int j = 0; j < p->n_ranks; j++) {
            if (i == j || p->can_access[i][j] < 0)
                hx_jw_null(w);
            else
                hx_jw_int(w, p->can_access[i][j]);
        }
        hx_jw_end_array(w);
    }
    hx_jw_end_array(w);
    hx_jw_key(w, "enable");
    hx_jw_str(w, p->enable);
    put_matrix(w, "staged_gbps", p->staged_gbps, p->n_ranks, true);
    put_content(w, "copy", &p->copy, p->offered);
    put_content(w, "store", &p->store, p->offered);
    put_content(w, "load", &p->load, p->offered);
    put_content(w, "ipc", &p->ipc, p->offered);
    hx_jw_key(w, "flags");
    if (p->offered) {
        hx_jw_object(w);
        put_outcome(w, p->flags.outcome);
        if (p->flags.outcome != HX_PROBE_NOT_RUN) {
            put_key_uint(w, "turns", p->flags.turns);
            put_key_number(w, "us", p->flags.us);
        }
        hx_jw_end_object(w);
    } else {
        hx_jw_null(w);
    }
    hx_jw_key(w, "allpairs");
    if (p->offered) {
        hx_jw_object(w);
        put_outcome(w, p->allpairs.outcome);
        if (p->allpairs.outcome == HX_PROBE_OK)
            put_key_number(w, "ring_gbps", p->allpairs.ring_gbps);
        put_note(w, p->allpairs.note);
        hx_jw_end_object(w);
    } else {
        hx_jw_null(w);
    }
    put_matrix(w, "peer_gbps", p->peer_gbps, p->n_ranks, p->offered);
    put_matrix(w, "bidir_gbps", p->bidir_gbps, p->n_ranks, p->offered);
    put_matrix(w, "latency_us", p->latency_us, p->n_ranks, p->offered);
    put_content(w, "after_abnormal_exit", &p->after_abnormal_exit, p->offered);
    hx_jw_end_object(w);
}

static void put_arm(struct hx_json_writer *w, const char *key, const struct hx_probe_arm *a)
{
    hx_jw_key(w, key);
    hx_jw_object(w);
    put_outcome(w, a->outcome);
    if (a->outcome == HX_PROBE_OK) {
        hx_jw_key(w, "exact");
        hx_jw_bool(w, a->exact);
        hx_jw_key(w, "us");
        hx_jw_object(w);
        for (int i = 0; i < HX_PROBE_COUNTS; i++) {
            char bytes[24];
            snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)hx_probe_small_bytes[i]);
            put_key_measured(w, bytes, a->us[i]);
        }
        hx_jw_end_object(w);
        hx_jw_key(w, "busbw_gbps");
        hx_jw_object(w);
        char bytes[24];
        snprintf(bytes, sizeof(bytes), "%u", HX_PROBE_LARGE_BYTES);
        put_key_measured(w, bytes, a->busbw_gbps);
        hx_jw_end_object(w);
    }
    put_note(w, a->note);
    hx_jw_end_object(w);
}

/* The faster of own staging and NCCL with P2P off, if both are exact (six rows decide). */
static const struct hx_probe_arm *host_arm(const struct hx_probe_arm *own,
                                           const struct hx_probe_arm *nccl)
{
    const bool usable = nccl->outcome == HX_PROBE_OK && nccl->exact;
    if (usable && (own->outcome != HX_PROBE_OK || !own->exact || nccl->us[1] < own->us[1]))
        return nccl;
    return own;
}

int hx_probe_result_write(const struct hx_probe_result *r, struct hx_buf *out, struct hx_error *err)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "devices");
    hx_jw_array(&w);
    for (int i = 0; i < r->n_devices && i < HX_PROBE_DEVICES; i++)
        put_device(&w, &r->device[i], i);
    hx_jw_end_array(&w);
    hx_jw_key(&w, "p2p");
    if (r->p2p.run)
        put_p2p(&w, &r->p2p);
    else
        hx_jw_null(&w);
    hx_jw_key(&w, "collectives");
    if (r->collectives.run) {
        hx_jw_object(&w);
        hx_jw_key(&w, "ranks");
        hx_jw_int(&w, r->collectives.ranks);
        put_arm(&w, "p2p", &r->collectives.p2p);
        put_arm(&w, "host", host_arm(&r->collectives.own_host, &r->collectives.nccl_host));
        hx_jw_end_object(&w);
    } else {
        hx_jw_null(&w);
    }
    if (r->control.run) {
        hx_jw_key(&w, "memory_control");
        hx_jw_object(&w);
        put_key_uint(&w, "bytes_tagged", r->control.bytes_tagged);
        put_key_number(&w, "fill_s", r->control.fill_s);
        put_key_number(&w, "check_s", r->control.check_s);
        put_key_uint(&w, "injected_alias_words", r->control.injected_words);
        put_key_uint(&w, "detected_words", r->control.detected_words);
        hx_jw_end_object(&w);
    }
    hx_jw_end_object(&w);
    if (out->failed || hx_buf_putc(out, '\n') != 0)
        return hx_fail(err, out->len >= out->max ? -EMSGSIZE : -ENOMEM, "probe result: no room");
    return 0;
}
