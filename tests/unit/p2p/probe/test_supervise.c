/* Children under the watchdog: what they found stays, however they end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probe/supervise.h"

static void nap(unsigned ms)
{
    nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

static hx_probe_fn finds, fails, crashes, sleeps, obeys, stubborn;

static int finds(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                 const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant, (void)err;
    if (device >= 0)
        sh->result.device[device].h2d_gbps = device + 1;
    else
        sh->result.n_devices = 3;
    return 0;
}

static int fails(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                 const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant;
    sh->result.device[device].h2d_gbps = 5;
    return hx_fail(err, -EIO, "the copy failed");
}

static int crashes(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                   const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant, (void)err;
    sh->result.device[device].d2h_gbps = 7;
    raise(SIGKILL);
    return 0;
}

/* A call that does not come back, until SIGTERM. */
static int sleeps(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                  const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant, (void)err;
    if (device == 1) {
        sh->result.device[1].bf16_tflops = 3;
        for (;;)
            pause();
    }
    sh->result.device[device].bf16_tflops = 4;
    return 0;
}

/* Long work that looks whether it should stop. */
static int obeys(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                 const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant, (void)err;
    while (!atomic_load(&sh->stop[hx_probe_slot(device)]))
        nap(2);
    sh->result.p2p.flags.turns = 77;
    return 0;
}

/* As a process in the driver that no signal ends. */
static int stubborn(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                    const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)o, (void)plant, (void)err;
    if (device != 1)
        return 0;
    signal(SIGTERM, SIG_IGN);
    sh->result.device[1].sm_count = (int)getpid();
    for (;;)
        pause();
}

static int n_marks, marked_device;
static enum hx_probe_end marked_end;
static char marked_text[200];

static void mark(struct hx_probe_result *r, int device, enum hx_probe_end end, const char *message)
{
    n_marks++;
    marked_device = device;
    marked_end = end;
    snprintf(marked_text, sizeof(marked_text), "%s", message);
    if (device >= 0 && end == HX_PROBE_END_LIMIT)
        r->device[device].context = HX_PROBE_CONTEXT_TIMEOUT;
}

struct fixture {
    struct hx_probe_shared *sh;
    struct hx_probe_options options;
    struct hx_probe_run run;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    if (!f || hx_probe_shared_new(&f->sh, NULL) != 0)
        return -1;
    f->run = (struct hx_probe_run){.options = &f->options, .grace_ms = 200};
    f->sh->result.n_devices = 3;
    n_marks = 0;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    hx_probe_shared_free(f->sh);
    free(f);
    return 0;
}

static void step(struct fixture *f, hx_probe_fn *fn, enum hx_probe_scope scope, unsigned limit_s)
{
    const struct hx_probe_step s = {"x", "test of x", scope, limit_s, fn, mark, false, false};
    assert_int_equal(hx_probe_run_step(&f->run, f->sh, &s, NULL), 0);
}

static void findings_come_back(void **state)
{
    struct fixture *f = *state;
    f->sh->result.n_devices = 0;
    step(f, finds, HX_PROBE_ONCE, 10);
    assert_int_equal(f->sh->result.n_devices, 3);
    step(f, finds, HX_PROBE_EACH, 10);
    for (int i = 0; i < 3; i++)
        assert_true(f->sh->result.device[i].h2d_gbps == i + 1);
    assert_true(isnan(f->sh->result.device[0].d2h_gbps));
    assert_int_equal(n_marks, 0);
    assert_int_equal(f->run.n_bad + f->run.n_limits, 0);
}

static void failure_is_named(void **state)
{
    struct fixture *f = *state;
    step(f, fails, HX_PROBE_EACH_ALL, 10);
    assert_int_equal(n_marks, 3);
    assert_int_equal(marked_end, HX_PROBE_END_ERROR);
    assert_string_equal(marked_text, "the copy failed");
    assert_int_equal(f->run.n_bad, 3);
    assert_true(f->sh->result.device[2].h2d_gbps == 5);
    assert_non_null(strstr(f->run.last_error, "test of x: the copy failed"));
}

static void crash_keeps_findings(void **state)
{
    struct fixture *f = *state;
    step(f, crashes, HX_PROBE_EACH, 10);
    assert_int_equal(n_marks, 3);
    assert_int_equal(marked_end, HX_PROBE_END_CRASH);
    assert_string_equal(marked_text, "ended by signal 9");
    assert_true(f->sh->result.device[1].d2h_gbps == 7);
}

static void hang_costs_one_card(void **state)
{
    struct fixture *f = *state;
    step(f, sleeps, HX_PROBE_EACH_ALL, 1);
    assert_int_equal(n_marks, 1);
    assert_int_equal(marked_device, 1);
    assert_int_equal(marked_end, HX_PROBE_END_LIMIT);
    assert_int_equal(f->run.n_limits, 1);
    assert_false(f->run.any_stuck);
    assert_true(f->sh->result.device[0].bf16_tflops == 4);
    assert_true(f->sh->result.device[1].bf16_tflops == 3);
    assert_true(f->sh->result.device[2].bf16_tflops == 4);
    /* The card without a context takes part in nothing, and pairs not at all. */
    step(f, finds, HX_PROBE_EACH, 10);
    assert_true(f->sh->result.device[0].h2d_gbps == 1);
    assert_true(isnan(f->sh->result.device[1].h2d_gbps));
    f->sh->result.n_devices = 3;
    step(f, obeys, HX_PROBE_PAIRS, 1);
    assert_int_equal(f->sh->result.p2p.flags.turns, 0);
}

static void asked_before_told(void **state)
{
    struct fixture *f = *state;
    f->sh->result.p2p.offered = true;
    step(f, obeys, HX_PROBE_PAIRS_PEER, 1);
    assert_int_equal(f->sh->result.p2p.flags.turns, 77);
    assert_int_equal(marked_end, HX_PROBE_END_LIMIT);
    assert_int_equal(f->run.n_limits, 1);
}

static void stuck_child_is_left_alone(void **state)
{
    struct fixture *f = *state;
    step(f, stubborn, HX_PROBE_EACH_ALL, 1);
    assert_true(f->run.any_stuck);
    assert_true(f->run.stuck[1]);
    assert_false(f->run.stuck[0]);
    const pid_t pid = f->sh->result.device[1].sm_count;
    assert_int_equal(kill(pid, 0), 0); /* still there */
    f->sh->result.device[1].context = HX_PROBE_CONTEXT_OK;
    step(f, finds, HX_PROBE_EACH, 10);
    assert_true(isnan(f->sh->result.device[1].h2d_gbps));
    assert_true(f->sh->result.device[2].h2d_gbps == 3);
    f->sh->result.p2p.offered = true;
    step(f, obeys, HX_PROBE_PAIRS_PEER, 1);
    assert_int_equal(f->sh->result.p2p.flags.turns, 0);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void pairs_need_peers_and_content(void **state)
{
    struct fixture *f = *state;
    step(f, obeys, HX_PROBE_PAIRS_PEER, 1); /* not offered */
    assert_int_equal(f->sh->result.p2p.flags.turns, 0);
    f->sh->result.p2p.offered = true;
    f->sh->result.p2p.copy.outcome = HX_PROBE_OK;
    f->sh->result.p2p.store.outcome = HX_PROBE_ZERO;
    step(f, obeys, HX_PROBE_PAIRS_SOUND, 1);
    assert_int_equal(f->sh->result.p2p.flags.turns, 0);
    f->sh->result.p2p.store.outcome = HX_PROBE_OK;
    step(f, obeys, HX_PROBE_PAIRS_SOUND, 1);
    assert_int_equal(f->sh->result.p2p.flags.turns, 77);
    f->sh->result.p2p.flags.turns = 0;
    f->sh->result.n_devices = 1; /* no pair */
    step(f, obeys, HX_PROBE_PAIRS, 1);
    assert_int_equal(f->sh->result.p2p.flags.turns, 0);
}

static int n_done;
static bool stop_soon(void *ctx, const struct hx_probe_shared *sh, const struct hx_probe_step *s,
                      int device, double seconds, bool done)
{
    (void)ctx, (void)sh, (void)s, (void)device;
    n_done += done;
    return seconds < 0.2;
}

static void stop_ends_all(void **state)
{
    struct fixture *f = *state;
    f->run.watch = stop_soon;
    n_done = 0;
    step(f, obeys, HX_PROBE_EACH_ALL, 60);
    assert_true(f->run.stopped);
    assert_int_equal(n_done, 3);
    assert_int_equal(n_marks, 0); /* ended on request is no finding */
    step(f, finds, HX_PROBE_EACH, 10);
    assert_true(isnan(f->sh->result.device[0].h2d_gbps));
}

static void full_only_when_asked(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_step s = {"x", "x", HX_PROBE_EACH, 10, finds, mark, false, true};
    assert_int_equal(hx_probe_run_step(&f->run, f->sh, &s, NULL), 0);
    assert_true(isnan(f->sh->result.device[0].h2d_gbps));
    f->options.full = true;
    assert_int_equal(hx_probe_run_step(&f->run, f->sh, &s, NULL), 0);
    assert_true(f->sh->result.device[0].h2d_gbps == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(findings_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(failure_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(crash_keeps_findings, setup, teardown),
        cmocka_unit_test_setup_teardown(hang_costs_one_card, setup, teardown),
        cmocka_unit_test_setup_teardown(asked_before_told, setup, teardown),
        cmocka_unit_test_setup_teardown(stuck_child_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(pairs_need_peers_and_content, setup, teardown),
        cmocka_unit_test_setup_teardown(stop_ends_all, setup, teardown),
        cmocka_unit_test_setup_teardown(full_only_when_asked, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
