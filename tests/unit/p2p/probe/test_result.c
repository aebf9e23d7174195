/* The JSON of the probe: what the judge reads, with nothing made up where nothing was measured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json_read.h"
#include "probe/probe.h"

static struct hx_probe_result *result;
static struct hx_json *doc;

static int setup(void **state)
{
    (void)state;
    result = malloc(sizeof(*result));
    if (!result)
        return -1;
    hx_probe_result_init(result);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hx_json_free(doc);
    doc = NULL;
    free(result);
    return 0;
}

static struct hx_jv written(void)
{
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    hx_json_free(doc);
    doc = NULL;
    assert_int_equal(hx_probe_result_write(result, &out, NULL), 0);
    assert_int_equal(out.data[out.len - 1], '\n');
    assert_int_equal(hx_json_parse((const char *)out.data, out.len, &limits, &doc, NULL), 0);
    hx_buf_done(&out);
    return hx_json_root(doc);
}

/* Path of keys and list positions: "devices.0.alias". */
static struct hx_jv at(struct hx_jv v, const char *path)
{
    while (*path) {
        const size_t len = strcspn(path, ".");
        if (path[0] >= '0' && path[0] <= '9' && hx_jv_type(v) == HX_JSON_ARRAY) {
            v = hx_jv_first(v);
            for (long n = strtol(path, NULL, 10); n > 0; n--)
                v = hx_jv_next(v);
        } else {
            v = hx_jv_get_n(v, path, len);
        }
        path += len + (path[len] == '.');
    }
    return v;
}

static void assert_number(struct hx_jv root, const char *path, double expected)
{
    double v = -1;
    if (!hx_jv_double(at(root, path), &v))
        fail_msg("%s is no number", path);
    if (v != expected)
        fail_msg("%s is %g, expected %g", path, v, expected);
}

static void assert_text(struct hx_jv root, const char *path, const char *expected)
{
    if (!hx_jv_str_is(at(root, path), expected))
        fail_msg("%s is not %s", path, expected);
}

static void assert_type(struct hx_jv root, const char *path, enum hx_json_type type)
{
    if (hx_jv_type(at(root, path)) != type)
        fail_msg("%s is %s", path, hx_json_type_name(hx_jv_type(at(root, path))));
}

static void nothing_measured(void **state)
{
    (void)state;
    struct hx_jv v = written();
    assert_number(v, "schema", 1);
    assert_int_equal(hx_jv_count(at(v, "devices")), 0);
    assert_type(v, "p2p", HX_JSON_NULL);
    assert_type(v, "collectives", HX_JSON_NULL);
    assert_int_equal(hx_jv_count(v), 4);
}

static void wedged_card_has_no_numbers(void **state)
{
    (void)state;
    result->n_devices = 2;
    result->device[0].context = HX_PROBE_CONTEXT_TIMEOUT;
    result->device[1].context = HX_PROBE_CONTEXT_OK;
    result->device[1].sm_count = 74;
    result->device[1].cc_major = 8;
    struct hx_jv v = written();
    assert_text(v, "devices.0.context", "timeout");
    assert_int_equal(hx_jv_count(at(v, "devices.0")), 2);
    assert_number(v, "devices.1.index", 1);
    assert_text(v, "devices.1.compute_capability", "8.0");
    assert_type(v, "devices.1.bf16_tflops", HX_JSON_NONE);
    assert_text(v, "devices.1.alias.outcome", "not_run");
    assert_text(v, "devices.1.pattern.outcome", "not_run");
}

static void alias_and_corruption(void **state)
{
    (void)state;
    result->n_devices = 2;
    for (int i = 0; i < 2; i++) {
        result->device[i].context = HX_PROBE_CONTEXT_OK;
        result->device[i].alias = (struct hx_probe_alias){.outcome = HX_PROBE_MISMATCH,
                                                          .coverage = 0.984,
                                                          .seconds = 0.11,
                                                          .words_checked = 8391229440u,
                                                          .mismatches = 4128768000u,
                                                          .is_alias = i == 0,
                                                          .has_first = true,
                                                          .first_high = 34359738368u};
    }
    result->device[1].alias.first_low = result->device[1].alias.first_high;
    struct hx_jv v = written();
    assert_text(v, "devices.0.alias.kind", "alias");
    assert_number(v, "devices.0.alias.first_low", 0);
    assert_number(v, "devices.0.alias.delta_bytes", 34359738368.0);
    assert_number(v, "devices.0.alias.mismatches", 4128768000.0);
    assert_number(v, "devices.0.alias.words_checked", 8391229440.0);
    assert_number(v, "devices.0.alias.coverage", 0.984);
    assert_text(v, "devices.1.alias.kind", "corruption");
    assert_number(v, "devices.1.alias.delta_bytes", 0);
}

static void bad_memory(void **state)
{
    (void)state;
    struct hx_probe_pattern *p = &result->device[0].pattern;
    result->n_devices = 1;
    result->device[0].context = HX_PROBE_CONTEXT_OK;
    p->outcome = HX_PROBE_MISMATCH;
    p->mismatches = 612000000;
    p->coverage = 0.97;
    p->seconds = 58;
    p->max_core_c = 63;
    p->burst_bytes = 128;
    p->bad_blocks = 7652;
    p->blocks = 31774;
    struct hx_jv v = written();
    assert_text(v, "devices.0.pattern.outcome", "mismatch");
    assert_number(v, "devices.0.pattern.first_bad.burst_bytes", 128);
    assert_text(v, "devices.0.pattern.first_bad.kind", "zeros_or_garbage");
    assert_number(v, "devices.0.pattern.bad_blocks_2mib", 7652);
    assert_number(v, "devices.0.pattern.max_core_c", 63);
    assert_type(v, "devices.0.pattern.max_memory_c", HX_JSON_NULL);
}

static void peers(int n, bool offered)
{
    struct hx_probe_p2p *p = &result->p2p;
    p->run = true;
    p->n_ranks = n;
    p->offered = offered;
    snprintf(p->enable, sizeof(p->enable), "%s",
             offered ? "ok" : "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            p->can_access[i][j] = offered;
            p->staged_gbps[i][j] = 5.88;
        }
    }
}

static void peers_not_offered(void **state)
{
    (void)state;
    peers(4, false);
    result->collectives.run = true;
    result->collectives.ranks = 4;
    result->collectives.p2p.outcome = HX_PROBE_NOT_OFFERED;
    struct hx_jv v = written();
    assert_number(v, "p2p.can_access.0.1", 0);
    assert_type(v, "p2p.can_access.2.2", HX_JSON_NULL);
    assert_number(v, "p2p.staged_gbps.3.0", 5.88);
    static const char *const absent[] = {"copy",      "store",      "load",
                                         "ipc",       "flags",      "allpairs",
                                         "peer_gbps", "bidir_gbps", "latency_us"};
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        assert_int_equal(hx_jv_type(hx_jv_get(at(v, "p2p"), absent[i])), HX_JSON_NULL);
    assert_text(v, "collectives.p2p.outcome", "not_offered");
    assert_int_equal(hx_jv_count(at(v, "collectives.p2p")), 1);
}

static void peers_that_lie(void **state)
{
    (void)state;
    struct hx_probe_p2p *p = &result->p2p;
    peers(2, true);
    p->copy = (struct hx_probe_content){.outcome = HX_PROBE_ZERO,
                                        .n_sizes = 1,
                                        .sizes = {131072},
                                        .pairs = 2,
                                        .bad_bytes = 262144,
                                        .note = "nothing came"};
    p->flags.outcome = HX_PROBE_HANG;
    p->allpairs.outcome = HX_PROBE_HANG;
    struct hx_jv v = written();
    assert_text(v, "p2p.copy.outcome", "zero");
    assert_number(v, "p2p.copy.sizes.0", 131072);
    assert_number(v, "p2p.copy.bad_bytes", 262144);
    assert_text(v, "p2p.copy.note", "nothing came");
    assert_text(v, "p2p.ipc.outcome", "not_run");
    assert_text(v, "p2p.flags.outcome", "hang");
    assert_number(v, "p2p.flags.turns", 0);
    assert_type(v, "p2p.flags.us", HX_JSON_NULL);
    assert_type(v, "p2p.peer_gbps.0.1", HX_JSON_NULL);
    assert_text(v, "p2p.after_abnormal_exit.outcome", "not_run");
}

/* The host arm is the faster exact one; a wrong or hanging NCCL never stands in for own staging. */
static void host_arm_is_the_faster(void **state)
{
    (void)state;
    struct hx_probe_arm *own = &result->collectives.own_host;
    struct hx_probe_arm *nccl = &result->collectives.nccl_host;
    result->collectives.run = true;
    result->collectives.ranks = 4;
    own->outcome = nccl->outcome = HX_PROBE_OK;
    own->exact = nccl->exact = true;
    own->us[1] = 38;
    own->busbw_gbps = 3.9;
    nccl->us[1] = 78.6;
    assert_number(written(), "collectives.host.us.61440", 38);
    nccl->us[1] = 30;
    struct hx_jv v = written();
    assert_number(v, "collectives.host.us.61440", 30);
    assert_type(v, "collectives.host.busbw_gbps.20971520", HX_JSON_NONE);
    nccl->outcome = HX_PROBE_WRONG;
    assert_number(written(), "collectives.host.busbw_gbps.20971520", 3.9);
    own->outcome = HX_PROBE_HANG;
    assert_text(written(), "collectives.host.outcome", "hang");
    nccl->outcome = HX_PROBE_OK;
    assert_text(written(), "collectives.host.outcome", "ok");
}

/* Everything that a recorded document has, ours has too, of the same type. */
static void assert_covers(struct hx_jv ours, struct hx_jv recorded, const char *path)
{
    const enum hx_json_type want = hx_jv_type(recorded), have = hx_jv_type(ours);
    char below[256];
    int i = 0;
    if (want != have)
        fail_msg("%s: %s here, %s in the recording", path, hx_json_type_name(have),
                 hx_json_type_name(want));
    if (want == HX_JSON_ARRAY && hx_jv_count(ours) != hx_jv_count(recorded))
        fail_msg("%s: %zu elements", path, hx_jv_count(ours));
    struct hx_jv other = hx_jv_first(ours);
    for (struct hx_jv v = hx_jv_first(recorded); v.doc; v = hx_jv_next(v), i++) {
        size_t len = 0;
        const char *key = hx_jv_str(hx_jv_key(v), &len);
        if (want == HX_JSON_ARRAY) {
            snprintf(below, sizeof(below), "%.200s[%d]", path, i);
            assert_covers(other, v, below);
            other = hx_jv_next(other);
        } else {
            snprintf(below, sizeof(below), "%.200s.%.*s", path, (int)len, key);
            assert_covers(hx_jv_get_n(ours, key, len), v, below);
        }
    }
}

static void fill_content(struct hx_probe_content *c)
{
    c->outcome = HX_PROBE_OK;
    c->n_sizes = HX_PROBE_SIZES;
    c->pairs = 12;
}

static void fill_arm(struct hx_probe_arm *a)
{
    a->outcome = HX_PROBE_OK;
    a->exact = true;
    a->us[0] = a->us[1] = a->us[2] = 9;
    a->busbw_gbps = 5.8;
}

static void fill(void)
{
    struct hx_probe_p2p *p = &result->p2p;
    result->n_devices = 4;
    for (int i = 0; i < 4; i++) {
        struct hx_probe_device *d = &result->device[i];
        d->context = HX_PROBE_CONTEXT_OK;
        d->fp32_fma_tflops = d->bf16_tflops = d->mma_cycles = d->hbm_read_gbps = 26;
        d->hbm_copy_gbps = d->h2d_gbps = d->d2h_gbps = 6.65;
        d->alias.outcome = d->pattern.outcome = HX_PROBE_OK;
        d->alias.coverage = d->pattern.coverage = 0.984;
        d->alias.seconds = d->pattern.seconds = 0.11;
        d->pattern.max_core_c = d->pattern.max_memory_c = 71;
    }
    peers(4, true);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++)
            p->peer_gbps[i][j] = p->bidir_gbps[i][j] = p->latency_us[i][j] = 6.46;
    }
    fill_content(&p->copy);
    fill_content(&p->store);
    fill_content(&p->load);
    fill_content(&p->ipc);
    p->flags.outcome = p->allpairs.outcome = HX_PROBE_OK;
    p->flags.us = 4.5;
    p->allpairs.ring_gbps = 6.5;
    result->collectives.run = true;
    result->collectives.ranks = 4;
    fill_arm(&result->collectives.p2p);
    fill_arm(&result->collectives.own_host);
}

static void compare_with(const char *name)
{
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    struct hx_json *recorded = NULL;
    char path[128], *text = NULL;
    size_t len = 0;
    snprintf(path, sizeof(path), "tests/vectors/hardware/cases/%s/probe.json", name);
    assert_int_equal(hx_file_read(path, 1 << 20, &text, &len, NULL), 0);
    assert_int_equal(hx_json_parse(text, len, &limits, &recorded, NULL), 0);
    free(text);
    assert_covers(written(), hx_json_root(recorded), name);
    hx_json_free(recorded);
}

static void all_fields_of_the_recordings(void **state)
{
    (void)state;
    fill();
    compare_with("good-gen2-x16-bar1-switches");
    result->device[1].alias.outcome = HX_PROBE_MISMATCH;
    result->device[1].alias.has_first = result->device[1].alias.is_alias = true;
    compare_with("single-rank-fake64");
    hx_probe_result_init(result);
    fill();
    result->device[2].pattern.outcome = HX_PROBE_MISMATCH;
    result->device[2].pattern.burst_bytes = 128;
    compare_with("bad-hbm-under-load");
    hx_probe_result_init(result);
    fill();
    result->device[1].context = HX_PROBE_CONTEXT_TIMEOUT;
    result->p2p.run = result->collectives.run = false;
    compare_with("context-wedge");
}

static void no_room_is_an_error(void **state)
{
    (void)state;
    struct hx_buf out = HX_BUF_INIT(20);
    struct hx_error err = {0};
    assert_int_equal(hx_probe_result_write(result, &out, &err), -EMSGSIZE);
    hx_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_measured, setup, teardown),
        cmocka_unit_test_setup_teardown(wedged_card_has_no_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(alias_and_corruption, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(peers_not_offered, setup, teardown),
        cmocka_unit_test_setup_teardown(peers_that_lie, setup, teardown),
        cmocka_unit_test_setup_teardown(host_arm_is_the_faster, setup, teardown),
        cmocka_unit_test_setup_teardown(all_fields_of_the_recordings, setup, teardown),
        cmocka_unit_test_setup_teardown(no_room_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
