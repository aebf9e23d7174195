/* Room on the disk: the numbers of the specification, what is there already, what is refused. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "fetch/disk.h"
#include "sample_lock.h"

#define GIB (1ull << 30)

static struct hx_lock *lock_of(const char *text)
{
    struct hx_lock *lock = NULL;
    struct hx_error err = {0};
    if (hx_lock_parse(text, strlen(text), "test.json", &lock, &err) != 0)
        fail_msg("%s", err.text);
    return lock;
}

static struct hx_plan *plan_of(const struct hx_lock *lock)
{
    struct hx_plan *plan = NULL;
    struct hx_error err = {0};
    if (hx_plan_make(lock, NULL, &plan, &err) != 0)
        fail_msg("%s", err.text);
    return plan;
}

/* 388.9 GiB of data want about 405 GiB on a small file system, 402.4 about 419. */
static void test_numbers(void **state)
{
    (void)state;
    double cut = (double)(hx_disk_need((uint64_t)(388.9 * (double)GIB)) +
                          hx_disk_reserve(100 * GIB, 10 * GIB)) /
                 (double)GIB;
    double whole = (double)(hx_disk_need((uint64_t)(402.4 * (double)GIB)) +
                            hx_disk_reserve(100 * GIB, 10 * GIB)) /
                   (double)GIB;
    assert_true(cut > 404.5 && cut < 405.5);
    assert_true(whole > 418 && whole < 419);
    assert_int_equal(hx_disk_reserve(1000 * GIB, 10 * GIB), 50 * GIB);
    assert_int_equal(hx_disk_reserve(1000 * GIB, 60 * GIB), 60 * GIB);
    assert_int_equal(hx_disk_reserve(1000 * GIB, 0), 0);
    assert_true(hx_disk_need(0) < 2u << 20);
}

static void test_room(void **state)
{
    (void)state;
    char dir[] = "/tmp/hx-disk-XXXXXX", path[128];
    struct statfs fs;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(statfs(dir, &fs), 0);
    struct hx_lock *lock = lock_of(sample_lock);
    struct hx_plan *plan = plan_of(lock);
    struct hx_disk_report report;
    struct hx_error err = {0};
    struct hx_disk_options opt = {.models = dir};
    if (hx_disk_check(&opt, plan, &report, &err) != 0)
        fail_msg("%s", err.text);
    uint64_t all = 100 + 10000 + 5000 + 5200 + 4096;
    assert_int_equal(report.n_places, 1);
    assert_int_equal(report.place[0].n_files, 4);
    assert_int_equal(report.place[0].data, all);
    assert_string_equal(report.place[0].dir, dir);
    assert_true(report.place[0].engram);
    /* What lies there, even as a growing file, is not needed again. */
    snprintf(path, sizeof(path), "%s/incoming", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof(path), "%s/incoming/tiny-1", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof(path), "%s/incoming/tiny-1/config.json.part", dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, dir, sizeof(dir), 0), (ssize_t)sizeof(dir));
    assert_int_equal(fsync(fd), 0);
    close(fd);
    assert_int_equal(hx_disk_check(&opt, plan, &report, &err), 0);
    assert_int_equal(report.place[0].data, all - 100);
    unlink(path);
    /* More than there is. */
    opt.reserve = INT64_MAX;
    assert_int_equal(hx_disk_check(&opt, plan, &report, &err), -ENOSPC);
    assert_non_null(strstr(err.text, dir));
    assert_non_null(strstr(err.text, "needed"));
    assert_non_null(strstr(err.text, "missing"));
    snprintf(path, sizeof(path), "%s/incoming/tiny-1", dir);
    rmdir(path);
    snprintf(path, sizeof(path), "%s/incoming", dir);
    rmdir(path);
    rmdir(dir);
    hx_plan_free(plan);
    hx_lock_free(lock);
}

static void test_far_too_large(void **state)
{
    (void)state;
    char *text = sample_with("\"size\":5000", "\"size\":35184372088832", 0);
    struct hx_lock *lock = lock_of(text);
    struct hx_plan *plan = plan_of(lock);
    struct hx_disk_report report;
    struct hx_error err = {0};
    struct hx_disk_options opt = {.models = "/tmp/no/such/folder/yet", .reserve = GIB};
    assert_int_equal(hx_disk_check(&opt, plan, &report, &err), -ENOSPC);
    assert_string_equal(report.place[0].dir, "/tmp");
    assert_non_null(strstr(err.text, "/tmp: needed 33"));
    hx_plan_free(plan);
    hx_lock_free(lock);
    free(text);
}

static void test_memory_disk(void **state)
{
    (void)state;
    struct statfs fs;
    if (statfs("/dev/shm", &fs) < 0 || fs.f_type != 0x01021994)
        skip();
    struct hx_lock *lock = lock_of(sample_lock);
    struct hx_plan *plan = plan_of(lock);
    struct hx_disk_report report;
    struct hx_error err = {0};
    struct hx_disk_options opt = {.models = "/dev/shm"};
    assert_int_equal(hx_disk_check(&opt, plan, &report, &err), 0);
    assert_string_equal(report.place[0].kind, "tmpfs");
    assert_int_equal(report.n_warnings, 1);
    assert_non_null(strstr(report.warning[0], "lies in memory"));
    hx_plan_free(plan);
    hx_lock_free(lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_far_too_large),
        cmocka_unit_test(test_memory_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
