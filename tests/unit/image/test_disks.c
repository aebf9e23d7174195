/* Search over a folder that looks like sysfs and /dev. */
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
#include <sys/wait.h>

#include "disk.h"
#include "init/disks.h"

#define DATA    "11111111-2222-3333-4444-555555555555"
#define HASH    "aabbccdd-eeff-0011-2233-445566778899"
#define STATE   "5a5a5a5a-1234-5678-9abc-def012345678"
#define MODELS  "5a5a5a5a-1234-5678-9abc-def012345670"
#define ESP     "0e0e0e0e-0000-0000-0000-000000000001"
#define ESP_2   "0e0e0e0e-0000-0000-0000-000000000002"
#define FOREIGN "77777777-7777-7777-7777-777777777777"

static char root[64];
static const char *label_of_state = "state";

static int set_up(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/hx-init-disks-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void put_in(const char *disk, const char *file, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "sys/class/block/%s/%s", disk, file);
    put(path, text);
}

/* A disk with ESP, data and hash partitions as 1, 3 and 5 (disk.h leaves gaps). */
static void add_disk(const char *name, const char *number, unsigned sector, const char *esp,
                     const char *data, const char *hash)
{
    const struct disk_part parts[] = {{esp, 34, 63, "ESP"},
                                      {data, 64, 127, "root_1"},
                                      {hash, 128, 135, "rootv_1"},
                                      {STATE, 200, 300, label_of_state},
                                      {MODELS, 301, 400, "models"}};
    char path[512], text[32];
    snprintf(path, sizeof(path), "dev/%s", name);
    put(path, "");
    snprintf(path, sizeof(path), "%s/dev/%s", root, name);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    disk_make(fd, sector, 1024, parts, 5);
    close(fd);
    snprintf(text, sizeof(text), "%u\n", 1024 * sector / 512);
    put_in(name, "size", text);
    snprintf(text, sizeof(text), "%u\n", sector);
    put_in(name, "queue/logical_block_size", text);
    put_in(name, "dev", number);
    for (int i = 1; i <= 9; i += 2) {
        snprintf(path, sizeof(path), "%s%s%d/partition", name,
                 name[strlen(name) - 1] <= '9' ? "p" : "", i);
        snprintf(text, sizeof(text), "%d\n", i);
        put_in(name, path, text);
    }
}

static int tear_down(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/rm", "rm", "-r", "--", root, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    return pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

static struct hx_init_wanted wanted(const char *loader)
{
    struct hx_init_wanted w = {.has_loader = loader != NULL};
    assert_int_equal(hx_gpt_guid_parse(DATA, w.data), 0);
    assert_int_equal(hx_gpt_guid_parse(HASH, w.hash), 0);
    if (loader)
        assert_int_equal(hx_gpt_guid_parse(loader, w.loader), 0);
    return w;
}

static void test_found(void **state)
{
    (void)state;
    struct hx_init_found f;
    struct hx_error err;
    struct hx_init_wanted w = wanted(ESP);
    add_disk("nvme0n1", "259:0\n", 4096, ESP, DATA, HASH);
    assert_int_equal(hx_init_find(root, &w, &f, &err), 0);
    assert_string_equal(f.disk, "nvme0n1");
    assert_string_equal(f.data, "nvme0n1p3");
    assert_string_equal(f.hash, "nvme0n1p5");
    assert_string_equal(f.disk_number, "259:0");
    assert_int_equal(f.data_bytes, 64 * 4096);
    assert_int_equal(f.hash_bytes, 8 * 4096);
    assert_true(f.is_boot_disk);
    assert_string_equal(f.state_guid, STATE);
    assert_string_equal(f.models_guid, MODELS);
    label_of_state = "State"; /* the stick has none */
    add_disk("nvme0n1", "259:0\n", 4096, ESP, DATA, HASH);
    label_of_state = "state";
    assert_int_equal(hx_init_find(root, &w, &f, &err), 0);
    assert_string_equal(f.state_guid, "");
}

/* Stick and disk after an installation: both carry the same root. */
static void test_boot_disk_wins(void **state)
{
    (void)state;
    struct hx_init_found f;
    struct hx_error err;
    struct hx_init_wanted w = wanted(ESP_2);
    add_disk("sda", "8:0\n", 512, ESP, DATA, HASH);
    add_disk("sdb", "8:16\n", 512, ESP_2, DATA, HASH);
    assert_int_equal(hx_init_find(root, &w, &f, &err), 0);
    assert_string_equal(f.data, "sdb3");
    assert_true(f.is_boot_disk);
    w = wanted(NULL);
    assert_int_equal(hx_init_find(root, &w, &f, &err), 0);
    assert_string_equal(f.data, "sda3");
    assert_false(f.is_boot_disk);
    /* The disk booted from has not come up yet. */
    w = wanted(FOREIGN);
    assert_int_equal(hx_init_find(root, &w, &f, &err), 0);
    assert_false(f.is_boot_disk);
}

static void test_missing(void **state)
{
    (void)state;
    struct hx_init_found f;
    struct hx_error err;
    struct hx_init_wanted w = wanted(ESP);
    assert_int_equal(hx_init_find(root, &w, &f, &err), -ENOENT); /* no sysfs */
    add_disk("sda", "8:0\n", 512, ESP, DATA, FOREIGN);           /* wrong hash tree */
    assert_int_equal(hx_init_find(root, &w, &f, &err), -ENODEV);
    add_disk("sdb", "8:16\n", 512, ESP, FOREIGN, HASH);
    assert_int_equal(hx_init_find(root, &w, &f, &err), -ENODEV);
    /* The table is there, the kernel's partitions are not yet: late USB. */
    add_disk("sdc", "8:32\n", 512, ESP, DATA, HASH);
    char path[512];
    snprintf(path, sizeof(path), "%s/sys/class/block/sdc/sdc5/partition", root);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hx_init_find(root, &w, &f, &err), -ENODEV);
    put_in("sdc", "sdc5/partition", "5\n");
    assert_int_equal(hx_init_find(root, &w, &f, &err), 0);
    assert_string_equal(f.disk, "sdc");
}

/* Empty drives, unreadable nodes, nonsense in sysfs: passed over. */
static void test_odd_devices(void **state)
{
    (void)state;
    struct hx_init_found f;
    struct hx_error err;
    struct hx_init_wanted w = wanted(ESP);
    put_in("sr0", "size", "0\n");
    put_in("sr0", "queue/logical_block_size", "2048\n");
    put_in("sr0", "dev", "11:0\n");
    put_in("sda", "size", "2048\n"); /* no node in /dev */
    put_in("sda", "queue/logical_block_size", "512\n");
    put_in("sda", "dev", "8:0\n");
    put_in("sdb", "size", "many\n");
    put_in("sdc", "size", "99999999999999999999\n");
    put_in("sdd1", "partition", "1\n");
    add_disk("sde", "8:64\n", 512, ESP, DATA, HASH);
    put_in("sde", "queue/logical_block_size", "-512\n");
    assert_int_equal(hx_init_find(root, &w, &f, &err), -ENODEV);
    put_in("sde", "queue/logical_block_size", "512\n");
    assert_int_equal(hx_init_find(root, &w, &f, &err), 0);
    assert_string_equal(f.disk, "sde");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_boot_disk_wins, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_odd_devices, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
