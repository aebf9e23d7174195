/* Media on USB: found in sysfs, never a disk of the machine itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "setup/media.h"

static char root[64];

static void put(const char *path, const char *text)
{
    struct hx_setup s = {.root_dir = root};
    struct hx_error err;
    assert_int_equal(hx_setup_put(&s, path, text, strlen(text), 0644, &err), 0);
}

static void block(const char *name, const char *device, bool partition)
{
    char path[300], link[300];
    snprintf(path, sizeof(path), "%s/size", device);
    put(path, "1000\n");
    if (partition) {
        snprintf(path, sizeof(path), "%s/partition", device);
        put(path, "1\n");
    }
    put("/sys/class/block/x", "");
    snprintf(path, sizeof(path), "%s/sys/class/block/%s", root, name);
    snprintf(link, sizeof(link), "../../..%s", device);
    assert_int_equal(symlink(link, path), 0);
}

static void test_media(void **state)
{
    struct hx_setup s;
    struct hx_error err;
    char names[HX_MEDIA_MAX][64], found[HX_ROOT_PATH];
    (void)state;
    snprintf(root, sizeof(root), "/tmp/hx-media-XXXXXX");
    assert_non_null(mkdtemp(root));
    block("nvme0n1", "/sys/devices/pci0/nvme/nvme0n1", false);
    block("nvme0n1p1", "/sys/devices/pci0/nvme/nvme0n1/nvme0n1p1", true);
    block("sda", "/sys/devices/pci0/usb1/1-1/sda", false);
    block("sda1", "/sys/devices/pci0/usb1/1-1/sda/sda1", true);
    block("sda2", "/sys/devices/pci0/usb1/1-1/sda/sda2", true);
    block("sdb", "/sys/devices/pci0/usb1/1-2/sdb", false);
    block("sdc1", "/sys/devices/pci0/ata1/sdc/sdc1", true);
    assert_int_equal(hx_setup_open(&s, root, NULL, &err), 0);
    assert_int_equal(hx_media_list(s.root, names), 3);
    assert_string_equal(names[0], "sda1");
    assert_string_equal(names[1], "sda2");
    assert_string_equal(names[2], "sdb");

    put(HX_MEDIA "/sda1/hx170-0.7.kit", "");
    hx_media_find_kit(&s, found);
    assert_string_equal(found, ""); /* the version is not known */
    put("/usr/share/hx170/version", "0.8\n");
    hx_media_find_kit(&s, found);
    assert_string_equal(found, "");
    put(HX_MEDIA "/sda2/hx170-0.8.kit", "");
    hx_media_find_kit(&s, found);
    assert_string_equal(found, HX_MEDIA "/sda2/hx170-0.8.kit");
    hx_media_find(&s, "authorized_keys", found);
    assert_string_equal(found, "");
    put(HX_MEDIA "/sda1/other", "");
    put(HX_MEDIA "/sda2/authorized_keys", "");
    hx_media_find(&s, "authorized_keys", found);
    assert_string_equal(found, HX_MEDIA "/sda2/authorized_keys");
    put("/efi/authorized_keys", "");
    hx_media_find(&s, "authorized_keys", found);
    assert_string_equal(found, "/efi/authorized_keys");
    hx_media_mount(&s); /* nothing on a recorded machine */
    hx_setup_close(&s);
    const char *argv[] = {"rm", "-r", root, NULL};
    struct hx_commands *tools;
    struct hx_command_result result;
    assert_int_equal(hx_commands_real(&tools, &err), 0);
    assert_int_equal(hx_command_run(tools, argv, 10000, &result, &err), 0);
    hx_command_result_done(&result);
    hx_commands_free(tools);
    assert_int_equal(access(root, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_media)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
