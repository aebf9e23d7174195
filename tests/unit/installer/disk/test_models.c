/* A drive of its own for the models: what is written on both drives, and what a cut at any write
 * leaves. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "disk/models.h"

static char folder[] = "/tmp/hx-models-XXXXXX";
static char system_path[64], drive_path[64];

static void blank(const char *path, off_t n_bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, n_bytes), 0);
    close(fd);
}

static int setup(void **state)
{
    struct hx_disk d;
    struct hx_table *t = calloc(1, sizeof(*t));
    struct hx_error err;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(system_path, sizeof(system_path), "%s/system", folder);
    snprintf(drive_path, sizeof(drive_path), "%s/drive", folder);
    blank(system_path, (off_t)32 << 30);
    blank(drive_path, (off_t)64 << 20);
    assert_int_equal(hx_disk_open(system_path, HX_DISK_ALONE, 512, &d, &err), 0);
    assert_int_equal(hx_layout_make(&d, NULL, t, &err), 0);
    assert_int_equal(hx_table_write(t, &d, true, &err), 0);
    hx_disk_close(&d);
    free(t);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(system_path);
    unlink(drive_path);
    rmdir(folder);
    memcpy(folder + strlen(folder) - 6, "XXXXXX", 6);
    return 0;
}

struct pair {
    struct hx_disk boot, drive;
    struct hx_table own, other;
};

static struct pair *open_pair(unsigned sector)
{
    struct pair *p = calloc(1, sizeof(*p));
    struct hx_error err;
    assert_non_null(p);
    assert_int_equal(hx_disk_open(system_path, HX_DISK_SHARED, 512, &p->boot, &err), 0);
    assert_int_equal(hx_disk_open(drive_path, HX_DISK_ALONE, sector, &p->drive, &err), 0);
    assert_int_equal(hx_table_read(&p->boot, &p->own, NULL, &err), 0);
    return p;
}

static void close_pair(struct pair *p)
{
    hx_disk_close(&p->boot);
    hx_disk_close(&p->drive);
    free(p);
}

/* What the tables on both drives say; the label is the pair's common word. */
static void check_moved(struct pair *p)
{
    char label[HX_GPT_LABEL];
    struct hx_error err;
    assert_int_equal(hx_table_read(&p->boot, &p->own, NULL, &err), 0);
    assert_int_equal(hx_table_read(&p->drive, &p->other, NULL, &err), 0);
    assert_true(hx_layout_is_installed(&p->own));
    assert_true(p->own.part[HX_PART_MODELS].attributes == HX_GPT_NO_AUTO);
    hx_models_label(&p->own.part[HX_PART_MODELS], label);
    assert_int_equal(strlen(label), 7 + 24);
    assert_int_equal(hx_table_find(&p->other, label), 0);
    assert_false(hx_part_used(&p->other.part[1]));
}

static void move_and_back(unsigned sector)
{
    struct pair *p = open_pair(sector);
    struct hx_error err;
    uint8_t noise[4096], found[4096];
    memset(noise, 0x5a, sizeof(noise));
    assert_int_equal(hx_disk_write(&p->drive, noise, sizeof(noise), HX_DISK_MIB, &err), 0);
    assert_int_equal(hx_models_move(&p->boot, &p->own, &p->drive, false, &err), 0);
    check_moved(p);
    /* The first start makes a file system where the partition begins with zeros. */
    uint64_t at = p->other.part[0].first * sector;
    assert_int_equal(at % HX_DISK_MIB, 0);
    assert_int_equal(hx_disk_read(&p->drive, found, sizeof(found), at, &err), 0);
    for (size_t i = 0; i < sizeof(found); i++)
        assert_int_equal(found[i], 0);
    assert_true((p->other.part[0].first + p->other.part[0].n_sectors) * sector < p->drive.n_bytes);

    assert_int_equal(hx_models_own(&p->boot, &p->own, &err), 0);
    assert_int_equal(hx_table_read(&p->boot, &p->own, NULL, &err), 0);
    assert_true(p->own.part[HX_PART_MODELS].attributes == 0);

    /* Taken again with what is on it. */
    assert_int_equal(hx_disk_write(&p->drive, noise, sizeof(noise), at, &err), 0);
    assert_int_equal(hx_guid_random(p->own.part[HX_PART_MODELS].guid, &err), 0);
    assert_int_equal(hx_models_move(&p->boot, &p->own, &p->drive, true, &err), 0);
    check_moved(p);
    assert_int_equal(hx_disk_read(&p->drive, found, sizeof(found), at, &err), 0);
    assert_memory_equal(found, noise, sizeof(noise));
    close_pair(p);
}

static void test_move(void **state)
{
    (void)state;
    move_and_back(512);
}

static void test_large_sectors(void **state)
{
    (void)state;
    move_and_back(4096);
}

static void test_refused(void **state)
{
    struct pair *p = open_pair(512);
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_models_move(&p->boot, &p->own, &p->drive, true, &err), -ENODATA);
    /* A drive with a system: not to be torn out of it. */
    assert_int_equal(hx_models_move(&p->drive, &p->own, &p->boot, true, &err), -EEXIST);
    assert_non_null(strstr(err.text, "whole system"));
    assert_int_equal(hx_table_init(&p->own, &p->boot, &err), 0);
    assert_int_equal(hx_models_move(&p->boot, &p->own, &p->drive, false, &err), -ENODEV);
    assert_int_equal(hx_models_own(&p->boot, &p->own, &err), -ENODEV);
    assert_int_equal(hx_table_read(&p->drive, &p->other, NULL, &err), -ENODATA);
    close_pair(p);
}

struct cut {
    int left;
};

static int before(void *ctx, const struct hx_disk_event *event, struct hx_error *err)
{
    struct cut *c = ctx;
    (void)event;
    return c->left-- > 0 ? 0 : hx_fail(err, -EIO, "cut off");
}

/* A box that is cut off at any write has its own partition unmarked until the drive is whole. */
static void test_cuts(void **state)
{
    struct hx_error err;
    int at = 0, r;
    (void)state;
    do {
        struct pair *p = open_pair(512);
        struct cut cut = {at++};
        struct hx_disk_watch watch = {&cut, before};
        p->boot.watch = p->drive.watch = &watch;
        r = hx_models_move(&p->boot, &p->own, &p->drive, false, &err);
        p->boot.watch = p->drive.watch = NULL;
        assert_int_equal(hx_table_read(&p->boot, &p->own, NULL, &err), 0);
        assert_true(hx_layout_is_installed(&p->own));
        if (p->own.part[HX_PART_MODELS].attributes)
            check_moved(p);
        assert_int_equal(hx_models_own(&p->boot, &p->own, &err), 0);
        close_pair(p);
    } while (r < 0 && at < 100);
    assert_int_equal(r, 0);
    assert_true(at > 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_move, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_sectors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cuts, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
