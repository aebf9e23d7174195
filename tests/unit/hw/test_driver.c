/* Texts of the driver, captured from real machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hw/driver.h"

#define CAPTURE "tests/vectors/hardware/observed/captures/10gb-610.43.02-proc/"

static char *text;
static size_t len;

static void load(const char *name)
{
    struct hx_error err;
    free(text);
    text = NULL;
    assert_int_equal(hx_file_read(name, 1 << 20, &text, &len, &err), 0);
}

static int teardown(void **state)
{
    (void)state;
    free(text);
    return 0;
}

static void test_version(void **state)
{
    (void)state;
    struct hx_driver_version v;
    load(CAPTURE "version.txt");
    assert_true(hx_driver_version_parse(text, len, &v));
    assert_true(v.open_module);
    assert_string_equal(v.version, "610.43.02");
    assert_string_equal(v.builder, "root@example");
    static const char closed[] =
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module for x86_64  610.43.03  Release Build\n";
    assert_true(hx_driver_version_parse(closed, strlen(closed), &v));
    assert_false(v.open_module);
    assert_string_equal(v.version, "610.43.03");
    assert_string_equal(v.builder, "");
    static const char *const bad[] = {"", "NVRM version: none\n", "something else 1.2.3\n",
                                      "NVRM version: 12345678901234567890123456789012345.1\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(hx_driver_version_parse(bad[i], strlen(bad[i]), &v));
}

static void test_params(void **state)
{
    (void)state;
    char value[64];
    load(CAPTURE "params.txt");
    assert_true(hx_driver_param(text, len, "EnableGpuFirmware", value, sizeof(value)));
    assert_string_equal(value, "18");
    assert_true(hx_driver_param(text, len, "RegistryDwords", value, sizeof(value)));
    assert_string_equal(value, "RmForceEnableGen2=1;RMPcieLinkSpeed=0x1");
    assert_true(hx_driver_param(text, len, "RegistryDwordsPerDevice", value, sizeof(value)));
    assert_string_equal(value, "");
    assert_false(hx_driver_param(text, len, "Registry", value, sizeof(value)));
    assert_true(hx_driver_param(text, len, "RegistryDwords", value, 5));
    assert_string_equal(value, "RmFo");
    load(CAPTURE "information.txt");
    assert_true(hx_driver_param(text, len, "GPU Firmware", value, sizeof(value)));
    assert_string_equal(value, "610.43.02");
    assert_true(hx_driver_param(text, len, "Bus Location", value, sizeof(value)));
    assert_string_equal(value, "0000:01:00.0");
}

static void test_registry(void **state)
{
    (void)state;
    char missing[64];
    static const char have[] = "RmForceEnableGen2=1;RMPcieLinkSpeed=0x1";
    assert_true(hx_registry_has(have, "", missing, sizeof(missing)));
    assert_true(hx_registry_has(have, "RMPcieLinkSpeed=0x1", missing, sizeof(missing)));
    assert_true(hx_registry_has(have, have, missing, sizeof(missing)));
    assert_false(
        hx_registry_has(have, "RMPcieLinkSpeed=0x2;ForceP2P=0x11", missing, sizeof(missing)));
    assert_string_equal(missing, "RMPcieLinkSpeed=0x2;ForceP2P=0x11");
    assert_false(hx_registry_has("", "A=1", missing, sizeof(missing)));
    assert_string_equal(missing, "A=1");
    assert_false(hx_registry_has("AA=1", "A=1", missing, sizeof(missing)));
    assert_false(hx_registry_has("", "A=1;BBBB=2", missing, 6));
    assert_string_equal(missing, "A=1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_registry),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
