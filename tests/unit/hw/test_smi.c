/* Output of nvidia-smi: captured and recorded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hw/smi.h"

#define VECTORS "tests/vectors/hardware/"

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

static struct hx_nvml_snapshot snapshot;
static hx_smi_cells cell;

static void test_captured_queries(void **state)
{
    (void)state;
    struct hx_error err;
    load(VECTORS "observed/captures/8gb-stock-query.csv");
    assert_int_equal(hx_smi_parse_query(text, len, &snapshot, &err), 0);
    assert_int_equal(snapshot.n_devices, 1);
    assert_string_equal(snapshot.device[0].name, "NVIDIA Graphics Device");
    assert_int_equal(snapshot.device[0].memory_total_mib, 8192);
    assert_int_equal(snapshot.device[0].pci_device, 0x20c210de);
    assert_int_equal(snapshot.device[0].pci_subsystem, 0x158510de);
    assert_string_equal(snapshot.device[0].vbios, "92.00.67.00.01");
    assert_int_equal(snapshot.device[0].core_c, HX_UNKNOWN);
    load(VECTORS "observed/captures/10gb-stock-query.csv");
    assert_int_equal(hx_smi_parse_query(text, len, &snapshot, &err), 0);
    assert_int_equal(snapshot.device[0].memory_total_mib, 10240);
    assert_int_equal(snapshot.device[0].pci_device, 0x208210de);
}

static void test_full_query(void **state)
{
    (void)state;
    struct hx_error err;
    load(VECTORS "cases/good-gen2-x16-mailbox/smi_query.csv");
    assert_int_equal(hx_smi_parse_query(text, len, &snapshot, &err), 0);
    assert_int_equal(snapshot.n_devices, 4);
    assert_string_equal(snapshot.driver, "610.43.03");
    for (int i = 0; i < 4; i++) {
        const struct hx_nvml_device *d = &snapshot.device[i];
        char uuid[64];
        snprintf(uuid, sizeof(uuid), "GPU-00000000-0000-0000-0000-00000000000%d", i + 1);
        assert_string_equal(d->uuid, uuid);
        assert_int_equal(d->memory_total_mib, 65536);
        assert_int_equal(d->link_gen, 2);
        assert_int_equal(d->link_width, 16);
        assert_int_equal(d->power_limit_mw, 180000);
        assert_int_equal(d->power_mw, 38000);
        assert_int_equal(d->core_c, 34);
        assert_int_equal(d->memory_c, 38);
        assert_int_equal(d->mem_mhz, 1458);
        assert_int_equal(d->persistence, 1);
        assert_int_equal(d->ecc, -1);
        assert_int_equal(d->recovery, HX_NVML_RECOVERY_NONE);
        assert_int_equal(d->reasons, 1);
        assert_int_equal(d->bar1_mib, HX_UNKNOWN);
    }
    assert_string_equal(snapshot.device[1].bus_id, "00000000:21:00.0");
    /* A real data-centre card: other values, error correction. */
    load(VECTORS "cases/other-gpu-h200x2/smi_query.csv");
    assert_int_equal(hx_smi_parse_query(text, len, &snapshot, &err), 0);
    assert_int_equal(snapshot.n_devices, 2);
    assert_int_equal(snapshot.device[0].ecc, 1);
}

static void test_broken_queries(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "\n", "No devices were found\n", "uuid, name\nGPU-1\n",
        "Failed to initialize NVML: Driver/library version mismatch\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct hx_error err = {0};
        assert_int_equal(hx_smi_parse_query(texts[i], strlen(texts[i]), &snapshot, &err), -EINVAL);
        assert_non_null(strstr(err.text, "nvidia-smi"));
    }
    static const char odd[] = "memory.total [MiB], name, power.draw [W]\n"
                              "99999999999 MiB, " /* more than fits */
                              "a very long name that does not fit into the field because it has "
                              "more than ninety-five characters in it, [N/A]\r\n";
    struct hx_error err;
    assert_int_equal(hx_smi_parse_query(odd, strlen(odd), &snapshot, &err), 0);
    assert_int_equal(snapshot.device[0].memory_total_mib, HX_UNKNOWN);
    assert_int_equal(snapshot.device[0].power_mw, HX_UNKNOWN);
    assert_int_equal(strlen(snapshot.device[0].name), 95);
}

static void test_matrices(void **state)
{
    (void)state;
    struct hx_error err;
    int n = 0;
    load(VECTORS "cases/good-gen2-x16-mailbox/topo_p2p_r.txt");
    assert_int_equal(hx_smi_parse_matrix(text, len, &n, cell, &err), 0);
    assert_int_equal(n, 4);
    assert_string_equal(cell[0][0], "X");
    assert_int_equal(hx_smi_p2p_of_word(cell[0][3]), HX_NVML_P2P_OK);
    load(VECTORS "cases/unlocked-gen2-x4-no-p2p/topo_p2p_w.txt");
    assert_int_equal(hx_smi_parse_matrix(text, len, &n, cell, &err), 0);
    assert_int_equal(hx_smi_p2p_of_word(cell[2][1]), HX_NVML_P2P_GNS);
    /* Columns of words behind the square, and escape codes around the heads. */
    load(VECTORS "cases/dual-socket-sys/topo_m.txt");
    assert_int_equal(hx_smi_parse_matrix(text, len, &n, cell, &err), 0);
    assert_int_equal(n, 4);
    assert_int_equal(hx_smi_topology_of_word(cell[0][2]), HX_NVML_TOPO_SYS);
    assert_int_equal(hx_smi_topology_of_word(cell[0][1]), HX_NVML_TOPO_NODE);
    load(VECTORS "cases/other-gpu-h200x2/topo_m.txt");
    assert_int_equal(hx_smi_parse_matrix(text, len, &n, cell, &err), 0);
    assert_int_equal(n, 2);
    assert_string_equal(cell[0][1], "NV18");
    assert_int_equal(hx_smi_topology_of_word(cell[0][1]), HX_UNKNOWN);
    static const char *const texts[] = {"", "\x1b[", "GPU0 GPU1\nGPU0 X\n",
                                        "GPU0 GPU1\nGPU0 X OK\n", "GPU0\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_int_equal(hx_smi_parse_matrix(texts[i], strlen(texts[i]), &n, cell, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captured_queries),
        cmocka_unit_test(test_full_query),
        cmocka_unit_test(test_broken_queries),
        cmocka_unit_test(test_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
