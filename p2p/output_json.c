/* The result file (hardware.md 4). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "output.h"

static void text(struct hx_json_writer *w, const char *key, const char *value)
{
    hx_jw_key(w, key);
    hx_jw_str(w, value);
}

static void integer(struct hx_json_writer *w, const char *key, int64_t value)
{
    hx_jw_key(w, key);
    hx_jw_int(w, value);
}

/* Not measured is null. */
static void real(struct hx_json_writer *w, const char *key, double value)
{
    hx_jw_key(w, key);
    if (isnan(value))
        hx_jw_null(w);
    else
        hx_jw_finite(w, round(value * 1e4) / 1e4);
}

static void numbers(struct hx_json_writer *w, const char *key, const int *v, int n)
{
    hx_jw_key(w, key);
    hx_jw_array(w);
    for (int i = 0; i < n; i++)
        hx_jw_int(w, v[i]);
    hx_jw_end_array(w);
}

static void names(struct hx_json_writer *w, const char *key, const char *const *v, int n)
{
    hx_jw_key(w, key);
    hx_jw_array(w);
    for (int i = 0; i < n; i++)
        hx_jw_str(w, v[i]);
    hx_jw_end_array(w);
}

static void write_axes(struct hx_json_writer *w, const struct hx_axes *a)
{
    hx_jw_key(w, "axes");
    hx_jw_object(w);
    text(w, "memory", a->memory);
    text(w, "compute", a->compute);
    numbers(w, "sm", a->sm, a->n_sm);
    numbers(w, "link_gen", a->link_gen, a->n_link_gen);
    numbers(w, "link_width", a->link_width, a->n_link_width);
    numbers(w, "bar1_mib", a->bar1_mib, a->n_bar1_mib);
    text(w, "p2p", a->p2p);
    text(w, "module", a->module);
    hx_jw_end_object(w);
}

static void write_layout(struct hx_json_writer *w, const struct hx_layout *l)
{
    hx_jw_key(w, "layout");
    hx_jw_object(w);
    text(w, "recommend", l->recommend);
    text(w, "reason", l->reason);
    hx_jw_key(w, "advice");
    if (l->advice)
        hx_jw_str(w, l->advice);
    else
        hx_jw_null(w);
    if (l->predicted) {
        hx_jw_key(w, "predicted");
        hx_jw_object(w);
        real(w, "allreduce_ms_per_step", l->allreduce_ms_per_step);
        integer(w, "tp_prefill_ceiling_tok_s", (int64_t)l->prefill_ceiling);
        hx_jw_end_object(w);
    }
    hx_jw_end_object(w);
}

static void write_checks(struct hx_json_writer *w, const struct hx_judgement *j)
{
    hx_jw_key(w, "checks");
    hx_jw_array(w);
    for (int i = 0; i < hx_n_checks; i++) {
        const struct hx_check *c = &hx_checks[i];
        const struct hx_finding *f = &j->finding[i];
        const char *bound = f->verdict == HX_FAIL   ? c->fail
                            : f->verdict == HX_WARN ? c->warn
                            : f->verdict == HX_NOTE ? c->warn
                                                    : c->pass;
        hx_jw_object(w);
        text(w, "id", c->id);
        text(w, "title", c->title);
        text(w, "status", hx_verdict_name(f->verdict));
        hx_jw_key(w, "gate");
        hx_jw_bool(w, c->gate);
        text(w, "value", f->value);
        text(w, "bound", bound);
        text(w, "detail", f->detail);
        if (f->verdict == HX_FAIL || f->verdict == HX_WARN) {
            const char *explained = hx_judge_explained(j, c);
            text(w, "remedy", f->remedy);
            if (explained)
                text(w, "explained_by", explained);
        }
        hx_jw_end_object(w);
    }
    hx_jw_end_array(w);
}

static const char *card_state(const struct hx_facts *f, const struct hx_card *c)
{
    bool known;
    if (!c->pci->alive)
        return "lost";
    if (c->nvml < 0)
        return "not seen by the driver";
    enum hx_memory_class m = hx_card_memory(f, c, &known);
    return known ? hx_memory_class_name(m) : "unknown";
}

static void write_card(struct hx_json_writer *w, const struct hx_facts *f, int i, bool redact)
{
    const struct hx_card *c = &f->card[i];
    const struct hx_nvml_device *d = c->nvml < 0 ? NULL : &f->nvml.device[c->nvml];
    char word[32];
    hx_jw_object(w);
    integer(w, "card", i);
    if (redact) {
        snprintf(word, sizeof(word), "card-%d", i);
        text(w, "uuid", word);
        text(w, "address", word);
    } else {
        text(w, "uuid", d ? d->uuid : "");
        hx_pci_address_text(&c->pci->address, word);
        text(w, "address", word);
    }
    text(w, "slot", c->pci->slot);
    snprintf(word, sizeof(word), "%04x", c->pci->device);
    text(w, "device", word);
    snprintf(word, sizeof(word), "%04x", c->pci->subsystem_device);
    text(w, "subsystem", word);
    text(w, "variant", c->variant->name);
    text(w, "firmware", d ? d->vbios : "");
    text(w, "state", card_state(f, c));
    integer(w, "link_gen", c->link.gen);
    integer(w, "link_width", c->link.width);
    if (d && d->memory_total_mib != HX_UNKNOWN)
        integer(w, "memory_mib", d->memory_total_mib);
    if (c->measured >= 0) {
        const struct hx_measured_device *m = &f->probe.device[c->measured];
        real(w, "fp32_tflops", m->fp32_tflops);
        real(w, "bf16_tflops", m->bf16_tflops);
        real(w, "hbm_read_gbps", m->hbm_gbps);
        real(w, "mma_cycles", m->mma_cycles);
        real(w, "h2d_gbps", m->h2d_gbps);
        real(w, "d2h_gbps", m->d2h_gbps);
    }
    hx_jw_end_object(w);
}

/* A pair: wrong and hang are found by tests over all pairs, slow by its own rate. */
static const char *pair_verdict(const struct hx_facts *f, const struct hx_judgement *j, int a,
                                int b)
{
    const char *axis = j->axes.p2p;
    if (!(f->probe.can_access[a][b] > 0))
        return "not applicable";
    if (strcmp(axis, "corrupt") == 0)
        return "wrong";
    if (strcmp(axis, "hang") == 0 || strcmp(axis, "unverified") == 0)
        return axis;
    double rate = f->probe.peer[a][b];
    struct hx_pci_link l = hx_pair_link(f, a, b);
    double expected = hx_expected_peer_gbps(l.gen, l.width);
    if (rate < hx_hw_limits.peer_of_staged * f->probe.staged[a][b] ||
        rate < hx_hw_limits.peer_pass * expected)
        return "slow";
    return "pass";
}

static void write_pairs(struct hx_json_writer *w, const struct hx_facts *f,
                        const struct hx_judgement *j)
{
    hx_jw_key(w, "pairs");
    hx_jw_array(w);
    for (int a = 0; f->measured && f->probe.has_p2p && a < f->probe.n_peers; a++) {
        for (int b = 0; b < f->probe.n_peers; b++) {
            if (a == b)
                continue;
            hx_jw_object(w);
            integer(w, "from", a);
            integer(w, "to", b);
            hx_jw_key(w, "can_access");
            hx_jw_bool(w, f->probe.can_access[a][b] > 0);
            text(w, "content", hx_outcome_name(f->probe.copy.outcome));
            real(w, "gbps", f->probe.peer[a][b]);
            real(w, "staged_gbps", f->probe.staged[a][b]);
            real(w, "bidir_gbps", f->probe.bidir[a][b]);
            real(w, "us", f->probe.latency[a][b]);
            text(w, "verdict", pair_verdict(f, j, a, b));
            hx_jw_end_object(w);
        }
    }
    hx_jw_end_array(w);
}

static void write_arm(struct hx_json_writer *w, const char *key, const struct hx_measured_arm *a)
{
    hx_jw_key(w, key);
    hx_jw_object(w);
    text(w, "outcome", hx_outcome_name(a->outcome));
    hx_jw_key(w, "exact");
    hx_jw_bool(w, a->exact);
    hx_jw_key(w, "us");
    hx_jw_object(w);
    real(w, "10240", a->us_one);
    real(w, "61440", a->us_six);
    real(w, "491520", a->us_many);
    hx_jw_end_object(w);
    hx_jw_key(w, "busbw_gbps");
    hx_jw_object(w);
    real(w, "20971520", a->bus_gbps);
    hx_jw_end_object(w);
    hx_jw_end_object(w);
}

int hx_output_json(const struct hx_facts *f, const struct hx_judgement *j,
                   const struct hx_run_facts *run, bool redact, struct hx_buf *out,
                   struct hx_error *err)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, false);
    hx_jw_object(&w);
    integer(&w, "schema", 1);
    text(&w, "key", run->key);
    text(&w, "boot_id", redact ? "" : f->platform.boot_id);
    text(&w, "mode", run->mode);
    text(&w, "started", run->started);
    text(&w, "finished", run->finished);
    hx_jw_key(&w, "busy");
    hx_jw_bool(&w, f->busy);
    text(&w, "not_measured", f->unmeasured);
    text(&w, "probe", run->probe_note);
    text(&w, "overall", hx_overall_name(j->overall));
    write_axes(&w, &j->axes);
    hx_jw_key(&w, "p2p_locked");
    hx_jw_bool(&w, run->locked);
    write_layout(&w, &j->layout);
    names(&w, "unjudged", j->unjudged, j->n_unjudged);
    names(&w, "remedies", j->remedy, j->n_remedies);
    names(&w, "hints", j->hint, j->n_hints);
    write_checks(&w, j);
    hx_jw_key(&w, "cards");
    hx_jw_array(&w);
    for (int i = 0; i < f->n_cards; i++)
        write_card(&w, f, i, redact);
    hx_jw_end_array(&w);
    write_pairs(&w, f, j);
    hx_jw_key(&w, "arms");
    hx_jw_object(&w);
    if (f->measured && f->probe.has_collectives) {
        write_arm(&w, "p2p", &f->probe.p2p);
        write_arm(&w, "host", &f->probe.host);
    }
    hx_jw_end_object(&w);
    hx_jw_end_object(&w);
    hx_buf_putc(out, '\n');
    return out->failed ? hx_fail(err, -ENOMEM, "out of memory for the result") : 0;
}
