/* Reads the probe's JSON. */
#include "measured.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"

struct reader {
    const char *name;
    struct hx_error *err;
};

static const struct {
    const char *name;
    enum hx_outcome outcome;
} outcomes[] = {
    {"not_run", HX_OUTCOME_NOT_RUN},
    {"ok", HX_OUTCOME_OK},
    {"corrupt", HX_OUTCOME_CORRUPT},
    {"mismatch", HX_OUTCOME_CORRUPT},
    {"zero", HX_OUTCOME_ZERO},
    {"hang", HX_OUTCOME_HANG},
    {"fault", HX_OUTCOME_FAULT},
    {"wrong", HX_OUTCOME_WRONG},
    {"not_offered", HX_OUTCOME_NOT_OFFERED},
};

const char *hx_outcome_name(enum hx_outcome o)
{
    for (size_t i = 0; i < sizeof(outcomes) / sizeof(outcomes[0]); i++)
        if (outcomes[i].outcome == o)
            return outcomes[i].name;
    return "unknown";
}

static int wrong(const struct reader *in, const char *where, struct hx_jv v, const char *expected)
{
    return hx_fail(in->err, -EINVAL, "%s: %s: found %s, expected %s", in->name, where,
                   hx_json_type_name(hx_jv_type(v)), expected);
}

/* A finite number of 0 to max; absent and null are NaN. */
static int take_real(const struct reader *in, struct hx_jv from, const char *key, double max,
                     double *out)
{
    struct hx_jv v = hx_jv_get(from, key);
    double d;
    *out = NAN;
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    if (!hx_jv_double(v, &d))
        return wrong(in, key, v, "a number");
    if (!(d >= 0 && d <= max))
        return hx_fail(in->err, -EINVAL, "%s: %s: found %g, expected 0 to %g", in->name, key, d,
                       max);
    *out = d;
    return 0;
}

static int take_count(const struct reader *in, struct hx_jv from, const char *key, int max,
                      int *out)
{
    double d;
    int r = take_real(in, from, key, max, &d);
    *out = r < 0 || isnan(d) ? -1 : (int)d;
    return r;
}

static int take_outcome(const struct reader *in, const char *where, struct hx_jv from,
                        enum hx_outcome *out)
{
    struct hx_jv v = hx_jv_get(from, "outcome");
    *out = HX_OUTCOME_NOT_RUN;
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    for (size_t i = 0; i < sizeof(outcomes) / sizeof(outcomes[0]); i++) {
        if (hx_jv_str_is(v, outcomes[i].name)) {
            *out = outcomes[i].outcome;
            return 0;
        }
    }
    return hx_fail(in->err, -EINVAL, "%s: %s.outcome: not one of ok, corrupt, zero, hang, ...",
                   in->name, where);
}

static int take_memory(const struct reader *in, struct hx_jv from, const char *key,
                       struct hx_measured_memory *out)
{
    struct hx_jv v = hx_jv_get(from, key);
    out->coverage = out->seconds = out->mismatches = NAN;
    out->first_low = out->first_high = out->distance = NAN;
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return wrong(in, key, v, "an object");
    out->is_alias = hx_jv_str_is(hx_jv_get(v, "kind"), "alias");
    int r = take_outcome(in, key, v, &out->outcome);
    r = r < 0 ? r : take_real(in, v, "coverage", 1, &out->coverage);
    r = r < 0 ? r : take_real(in, v, "seconds", 1e7, &out->seconds);
    r = r < 0 ? r : take_real(in, v, "mismatches", 1e18, &out->mismatches);
    r = r < 0 ? r : take_real(in, v, "first_low", 1e15, &out->first_low);
    r = r < 0 ? r : take_real(in, v, "first_high", 1e15, &out->first_high);
    return r < 0 ? r : take_real(in, v, "delta_bytes", 1e15, &out->distance);
}

static int take_device(const struct reader *in, struct hx_jv v, struct hx_measured_device *out)
{
    static const struct {
        const char *name;
        enum hx_context context;
    } contexts[] = {
        {"ok", HX_CONTEXT_OK}, {"timeout", HX_CONTEXT_TIMEOUT}, {"error", HX_CONTEXT_ERROR}};
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return wrong(in, "devices", v, "objects");
    *out = (struct hx_measured_device){0};
    struct hx_jv context = hx_jv_get(v, "context");
    for (size_t i = 0; i < 3; i++)
        if (hx_jv_str_is(context, contexts[i].name))
            out->context = contexts[i].context;
    if (hx_jv_type(context) == HX_JSON_STRING && out->context == HX_CONTEXT_UNKNOWN)
        out->context = HX_CONTEXT_ERROR;
    int r = take_count(in, v, "sm_count", 4096, &out->sm_count);
    r = r < 0 ? r : take_count(in, v, "total_mib", 1 << 24, &out->total_mib);
    r = r < 0 ? r : take_real(in, v, "fp32_fma_tflops", 1e6, &out->fp32_tflops);
    r = r < 0 ? r : take_real(in, v, "bf16_tflops", 1e6, &out->bf16_tflops);
    r = r < 0 ? r : take_real(in, v, "hbm_read_gbps", 1e6, &out->hbm_gbps);
    r = r < 0 ? r : take_real(in, v, "mma_cycles", 1e6, &out->mma_cycles);
    r = r < 0 ? r : take_real(in, v, "h2d_gbps", 1e6, &out->h2d_gbps);
    r = r < 0 ? r : take_real(in, v, "d2h_gbps", 1e6, &out->d2h_gbps);
    r = r < 0 ? r : take_memory(in, v, "alias", &out->alias);
    return r < 0 ? r : take_memory(in, v, "pattern", &out->pattern);
}

/* A square matrix of numbers, anything on the diagonal; null or absent: *has is false. */
static int take_matrix(const struct reader *in, struct hx_jv from, const char *key, int side,
                       hx_measured_matrix out, bool *has)
{
    struct hx_jv m = hx_jv_get(from, key);
    for (int i = 0; i < HX_MEASURED_DEVICES; i++)
        for (int j = 0; j < HX_MEASURED_DEVICES; j++)
            out[i][j] = NAN;
    *has = false;
    if (!m.doc || hx_jv_type(m) == HX_JSON_NULL)
        return 0;
    if (hx_jv_type(m) != HX_JSON_ARRAY)
        return wrong(in, key, m, "a list of lists");
    if (hx_jv_count(m) != (size_t)side)
        return hx_fail(in->err, -EINVAL, "%s: %s: found %zu rows, expected %d", in->name, key,
                       hx_jv_count(m), side);
    int i = 0;
    for (struct hx_jv row = hx_jv_first(m); row.doc; row = hx_jv_next(row), i++) {
        if (hx_jv_type(row) != HX_JSON_ARRAY || hx_jv_count(row) != (size_t)side)
            return hx_fail(in->err, -EINVAL, "%s: %s: row %d has not %d values", in->name, key, i,
                           side);
        int j = 0;
        for (struct hx_jv c = hx_jv_first(row); c.doc; c = hx_jv_next(c), j++) {
            double d;
            if (i == j || hx_jv_type(c) == HX_JSON_NULL)
                continue;
            if (!hx_jv_double(c, &d) || !(d >= 0 && d <= 1e9))
                return hx_fail(in->err, -EINVAL, "%s: %s[%d][%d]: not a number from 0 to 1e9",
                               in->name, key, i, j);
            out[i][j] = d;
            *has = true;
        }
    }
    return 0;
}

static int take_content(const struct reader *in, struct hx_jv from, const char *key,
                        struct hx_measured_content *out)
{
    struct hx_jv v = hx_jv_get(from, key);
    out->bad_bytes = out->us = NAN;
    out->outcome = HX_OUTCOME_NOT_RUN;
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return wrong(in, key, v, "an object");
    int r = take_outcome(in, key, v, &out->outcome);
    r = r < 0 ? r : take_real(in, v, "bad_bytes", 1e18, &out->bad_bytes);
    return r < 0 ? r : take_real(in, v, "us", 1e9, &out->us);
}

static int take_p2p(const struct reader *in, struct hx_jv v, struct hx_measured *out)
{
    size_t side = hx_jv_count(hx_jv_get(v, "can_access")), len;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return wrong(in, "p2p", v, "an object or null");
    if (side > HX_MEASURED_DEVICES)
        return hx_fail(in->err, -E2BIG, "%s: can_access: %zu cards, at most %d are possible",
                       in->name, side, HX_MEASURED_DEVICES);
    out->n_peers = (int)side;
    bool has;
    int r = take_matrix(in, v, "can_access", (int)side, out->can_access, &has);
    out->has_p2p = has;
    const char *enable = hx_jv_str(hx_jv_get(v, "enable"), &len);
    if (enable)
        snprintf(out->enable, sizeof(out->enable), "%.*s", (int)(len < 63 ? len : 63), enable);
    r = r < 0 ? r : take_matrix(in, v, "staged_gbps", (int)side, out->staged, &out->has_staged);
    r = r < 0 ? r : take_matrix(in, v, "peer_gbps", (int)side, out->peer, &out->has_peer);
    r = r < 0 ? r : take_matrix(in, v, "bidir_gbps", (int)side, out->bidir, &out->has_bidir);
    r = r < 0 ? r : take_matrix(in, v, "latency_us", (int)side, out->latency, &out->has_latency);
    r = r < 0 ? r : take_content(in, v, "copy", &out->copy);
    r = r < 0 ? r : take_content(in, v, "store", &out->store);
    r = r < 0 ? r : take_content(in, v, "load", &out->load);
    r = r < 0 ? r : take_content(in, v, "ipc", &out->ipc);
    r = r < 0 ? r : take_content(in, v, "flags", &out->flags);
    r = r < 0 ? r : take_content(in, v, "allpairs", &out->allpairs);
    return r < 0 ? r : take_content(in, v, "after_abnormal_exit", &out->after_exit);
}

static int take_arm(const struct reader *in, struct hx_jv from, const char *key,
                    struct hx_measured_arm *out)
{
    struct hx_jv v = hx_jv_get(from, key), us = hx_jv_get(v, "us");
    out->us_one = out->us_six = out->us_many = out->bus_gbps = NAN;
    out->outcome = HX_OUTCOME_NOT_RUN;
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return wrong(in, key, v, "an object");
    int r = take_outcome(in, key, v, &out->outcome);
    struct hx_jv exact = hx_jv_get(v, "exact");
    if (r == 0 && exact.doc && !hx_jv_bool(exact, &out->exact))
        r = wrong(in, "exact", exact, "true or false");
    r = r < 0 ? r : take_real(in, us, "10240", 1e9, &out->us_one);
    r = r < 0 ? r : take_real(in, us, "61440", 1e9, &out->us_six);
    r = r < 0 ? r : take_real(in, us, "491520", 1e9, &out->us_many);
    return r < 0 ? r : take_real(in, hx_jv_get(v, "busbw_gbps"), "20971520", 1e6, &out->bus_gbps);
}

void hx_measured_init(struct hx_measured *out)
{
    memset(out, 0, sizeof(*out));
}

static int take_all(const struct reader *in, struct hx_jv root, struct hx_measured *out)
{
    hx_measured_init(out);
    int64_t schema;
    if (hx_jv_type(root) != HX_JSON_OBJECT)
        return wrong(in, "the document", root, "an object");
    if (!hx_jv_int64(hx_jv_get(root, "schema"), &schema) || schema != 1)
        return hx_fail(in->err, -EINVAL, "%s: schema: expected 1", in->name);
    struct hx_jv devices = hx_jv_get(root, "devices");
    if (hx_jv_type(devices) != HX_JSON_ARRAY)
        return wrong(in, "devices", devices, "a list");
    int r = 0;
    for (struct hx_jv d = hx_jv_first(devices); r == 0 && d.doc; d = hx_jv_next(d)) {
        if (out->n_devices == HX_MEASURED_DEVICES)
            return hx_fail(in->err, -E2BIG, "%s: devices: more than %d", in->name,
                           HX_MEASURED_DEVICES);
        r = take_device(in, d, &out->device[out->n_devices++]);
    }
    struct hx_jv p2p = hx_jv_get(root, "p2p"), collectives = hx_jv_get(root, "collectives");
    if (r == 0 && p2p.doc && hx_jv_type(p2p) != HX_JSON_NULL)
        r = take_p2p(in, p2p, out);
    if (r == 0 && collectives.doc && hx_jv_type(collectives) != HX_JSON_NULL) {
        if (hx_jv_type(collectives) != HX_JSON_OBJECT)
            return wrong(in, "collectives", collectives, "an object or null");
        out->has_collectives = true;
        r = take_arm(in, collectives, "p2p", &out->p2p);
        r = r < 0 ? r : take_arm(in, collectives, "host", &out->host);
    }
    return r;
}

int hx_measured_parse(const char *text, size_t len, const char *name, struct hx_measured *out,
                      struct hx_error *err)
{
    struct hx_json_limits limits = {HX_MEASURED_MAX, 100000, 16, 0};
    struct hx_json *doc;
    int r = hx_json_parse(text, len, &limits, &doc, err);
    if (r < 0)
        return hx_wrap(err, r, "%s", name);
    struct reader in = {name, err};
    struct hx_measured *next = calloc(1, sizeof(*next));
    r = next ? take_all(&in, hx_json_root(doc), next) : hx_fail(err, -ENOMEM, "out of memory");
    hx_json_free(doc);
    if (r == 0)
        *out = *next;
    free(next);
    return r;
}

int hx_measured_read(const char *path, struct hx_measured *out, struct hx_error *err)
{
    char *text;
    size_t len;
    int r = hx_file_read(path, HX_MEASURED_MAX, &text, &len, err);
    if (r < 0)
        return r;
    r = hx_measured_parse(text, len, path, out, err);
    free(text);
    return r;
}
