/* Reading for a while: bytes and seconds are those that were spent, and what cannot be measured
 * says so. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "disk/io.h"
#include "disk/speed.h"

static void test_file(void **state)
{
    char path[] = "/tmp/hx-speed-XXXXXX";
    struct hx_speed s;
    struct hx_error err;
    struct timespec a, b;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(63 * HX_DISK_MIB)), 0);
    assert_int_equal(hx_speed_measure(path, 0.2, &s, &err), -EINVAL);
    assert_non_null(strstr(err.text, "too small"));
    assert_int_equal(ftruncate(fd, (off_t)(257 * HX_DISK_MIB + 512)), 0);
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(hx_speed_measure(path, 0.2, &s, &err), 0);
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true(s.n_bytes > 0 && s.n_bytes % (8 * HX_DISK_MIB) == 0);
    assert_true(s.n_bytes >= 8 * HX_DISK_GIB || s.seconds >= 0.2);
    assert_true(s.seconds <=
                (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec));
    close(fd);
    unlink(path);
    assert_true(hx_speed_measure(path, 0.2, &s, &err) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
