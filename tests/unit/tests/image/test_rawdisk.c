/* Disk images: sparse copies are the same bytes and stay sparse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "image/rawdisk.h"

static char folder[64], from[96], to[96];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/hx-raw-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(from, sizeof(from), "%s/from", folder);
    snprintf(to, sizeof(to), "%s/to", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(from);
    unlink(to);
    return rmdir(folder);
}

static void put(const char *path, uint64_t at, const char *text)
{
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(hx_file_pwrite(fd, path, text, strlen(text), at, NULL), 0);
    close(fd);
}

static void test_copy(void **state)
{
    (void)state;
    const uint64_t n = (uint64_t)64 << 20;
    struct stat st;
    char a[65], b[65];
    assert_int_equal(hx_rawdisk_blank(from, n, NULL), 0);
    put(from, 0, "first");
    put(from, (uint64_t)33 << 20, "middle");
    put(from, n - 4, "last");
    put(from, 0, "First");
    assert_int_equal(hx_rawdisk_copy(from, to, NULL), 0);
    assert_int_equal(hx_rawdisk_hash(from, a, NULL), 0);
    assert_int_equal(hx_rawdisk_hash(to, b, NULL), 0);
    assert_string_equal(a, b);
    assert_int_equal(stat(to, &st), 0);
    assert_int_equal(st.st_size, n);
    assert_true(st.st_blocks * 512 < (8 << 20));
    /* One changed byte shows, and changed back it is gone. */
    assert_int_equal(hx_rawdisk_damage(to, (uint64_t)50 << 20, NULL), 0);
    assert_int_equal(hx_rawdisk_hash(to, b, NULL), 0);
    assert_string_not_equal(a, b);
    assert_int_equal(hx_rawdisk_damage(to, (uint64_t)50 << 20, NULL), 0);
    assert_int_equal(hx_rawdisk_hash(to, b, NULL), 0);
    assert_string_equal(a, b);
}

static void test_blank_copy(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(hx_rawdisk_blank(from, 1 << 20, NULL), 0);
    assert_int_equal(hx_rawdisk_copy(from, to, NULL), 0);
    assert_int_equal(stat(to, &st), 0);
    assert_int_equal(st.st_size, 1 << 20);
    assert_int_equal(st.st_blocks, 0);
    /* A bigger file that was there before leaves nothing. */
    assert_int_equal(hx_rawdisk_blank(from, 4096, NULL), 0);
    assert_int_equal(hx_rawdisk_copy(from, to, NULL), 0);
    assert_int_equal(stat(to, &st), 0);
    assert_int_equal(st.st_size, 4096);
}

static void test_missing(void **state)
{
    (void)state;
    struct hx_error err;
    char hex[65];
    assert_int_equal(hx_rawdisk_copy(from, to, &err), -ENOENT);
    assert_non_null(strstr(err.text, from));
    assert_int_equal(access(to, F_OK), -1);
    assert_int_not_equal(hx_rawdisk_hash(from, hex, &err), 0);
    assert_int_not_equal(hx_rawdisk_damage(from, 0, &err), 0);
    assert_int_equal(hx_rawdisk_blank(from, 100, NULL), 0);
    assert_int_equal(hx_rawdisk_damage(from, 100, &err), -EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_copy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_blank_copy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_missing, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
