/* Temperatures from a recorded machine with one badly cooled card, through the stand-in for the
 * management library (tests/p2p/nvml_shim.c), copied beside the recording. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "probe/guard.h"
#include "probe/supervise.h"

#define RECORDING "tests/vectors/hardware/cases/hot-hbm/nvml.json"

struct fixture {
    struct hx_probe_shared *sh;
    char folder[64], library[96], json[96];
};

static void copy(const char *from, const char *to)
{
    char *data = NULL;
    size_t len = 0;
    assert_int_equal(hx_file_read(from, 16 << 20, &data, &len, NULL), 0);
    assert_int_equal(hx_file_replace(to, data, len, NULL), 0);
    free(data);
}

/* The stand-in was built two folders above this program. */
static void shim_path(char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 32);
    assert_true(n > 0);
    path[n] = '\0';
    for (int i = 0; i < 3; i++)
        *strrchr(path, '/') = '\0';
    strncat(path, "/libnvml-shim.so", 31);
}

static int setup(void **state)
{
    static char shim[PATH_MAX];
    struct fixture *f = calloc(1, sizeof(*f));
    if (!f || hx_probe_shared_new(&f->sh, NULL) != 0)
        return -1;
    snprintf(f->folder, sizeof(f->folder), "/tmp/hx-guard-XXXXXX");
    if (!mkdtemp(f->folder))
        return -1;
    /* The name says that it answers what the cards say under load. */
    snprintf(f->library, sizeof(f->library), "%s/libnvml-load.so", f->folder);
    snprintf(f->json, sizeof(f->json), "%s/nvml.json", f->folder);
    shim_path(shim);
    copy(shim, f->library);
    copy(RECORDING, f->json);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    unlink(f->library);
    unlink(f->json);
    rmdir(f->folder);
    hx_probe_shared_free(f->sh);
    free(f);
    return 0;
}

/* UUIDs of the recording, in another order than there. */
static void cards(struct fixture *f, const int *order, int n)
{
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(hx_file_read(f->json, 16 << 20, &text, &len, NULL), 0);
    for (int i = 0; i < n; i++) {
        const char *at = text;
        for (int k = 0; k <= order[i]; k++) {
            at = strstr(at, "\"GPU-");
            assert_non_null(at);
            at++;
        }
        snprintf(f->sh->result.device[i].uuid, sizeof(f->sh->result.device[i].uuid), "%.*s",
                 (int)strcspn(at, "\""), at);
    }
    f->sh->result.n_devices = n;
    free(text);
}

static void wait_for_readings(struct hx_probe_guard *g, struct hx_probe_shared *sh, int card)
{
    for (int i = 0; i < 500 && sh->result.device[card].pattern.max_core_c == INT32_MIN; i++) {
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        hx_probe_guard_look(g, sh);
    }
}

static void the_hot_card_ends_its_test(void **state)
{
    struct fixture *f = *state;
    const struct hx_probe_device *d = f->sh->result.device;
    static const int order[] = {3, 2, 1, 0};
    struct hx_probe_guard *g = NULL;
    cards(f, order, 4);
    assert_int_equal(hx_probe_guard_start(f->library, f->sh, &g, NULL), 0);
    wait_for_readings(g, f->sh, 0);
    hx_probe_guard_stop(g, f->sh);
    int n_hot = 0;
    for (int i = 0; i < 4; i++) {
        const bool limit = d[i].pattern.max_core_c >= 80 || d[i].pattern.max_memory_c >= 85;
        assert_true(d[i].pattern.max_core_c > 0 && d[i].pattern.max_core_c < 120);
        assert_int_equal(atomic_load(&f->sh->hot[i]), limit);
        n_hot += limit;
    }
    /* The recording's hot card is the library's last, here the first. */
    assert_int_equal(n_hot, 1);
    assert_int_equal(atomic_load(&f->sh->hot[0]), 1);
    assert_int_equal(d[0].pattern.max_core_c, 91);
    assert_int_equal(d[0].pattern.max_memory_c, 97);
}

static void a_card_of_another_program_is_not_ours(void **state)
{
    struct fixture *f = *state;
    static const int order[] = {0};
    struct hx_probe_guard *g = NULL;
    cards(f, order, 1);
    assert_int_equal(hx_probe_guard_start(f->library, f->sh, &g, NULL), 0);
    wait_for_readings(g, f->sh, 0);
    hx_probe_guard_stop(g, f->sh);
    assert_int_equal(atomic_load(&f->sh->hot[0]), 0);
    assert_int_equal(f->sh->result.device[1].pattern.max_core_c, INT32_MIN);
}

static void no_library_is_no_error(void **state)
{
    struct fixture *f = *state;
    struct hx_probe_guard *g = NULL;
    f->sh->result.n_devices = 1;
    assert_int_equal(hx_probe_guard_start("/nonexistent/libnvml.so", f->sh, &g, NULL), 0);
    hx_probe_guard_look(g, f->sh);
    hx_probe_guard_stop(g, f->sh);
    assert_int_equal(f->sh->result.device[0].pattern.max_core_c, INT32_MIN);
    assert_int_equal(atomic_load(&f->sh->hot[0]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_hot_card_ends_its_test, setup, teardown),
        cmocka_unit_test_setup_teardown(a_card_of_another_program_is_not_ours, setup, teardown),
        cmocka_unit_test_setup_teardown(no_library_is_no_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
