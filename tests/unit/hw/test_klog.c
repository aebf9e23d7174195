/* Lines of the kernel log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/klog.h"

static struct hx_klog_facts scan(const char *text)
{
    struct hx_klog_facts f;
    struct hx_error err;
    struct hx_pci_address cards[2] = {{0, 1, 0, 0}, {0, 0x21, 0, 0}};
    assert_int_equal(hx_klog_scan(text, strlen(text), cards, 2, &f, &err), 0);
    return f;
}

static void test_signs(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        enum hx_klog_sign sign;
    } rows[] = {
        {"NVRM: RmInitAdapter failed! (0x62:0x40:2028)", HX_KLOG_GSP_FATAL},
        {"NVRM: RmInitAdapter failed! (0x62:0xffff:2119)", HX_KLOG_GSP_FATAL},
        {"NVRM: Max GSP-RM boot attempts exceeded", HX_KLOG_GSP_FATAL},
        {"NVRM: unexpected WPR2 already up, cannot proceed", HX_KLOG_GSP_FATAL},
        {"NVRM: Booter failed with non-zero error code: 0x15", HX_KLOG_GSP_FATAL},
        {"NVRM: Xid (PCI:0000:01:00): 119, pid=1", HX_KLOG_GSP_FATAL},
        {"NVRM: Booter failed with non-zero error code: 0x31", HX_KLOG_GSP_BENIGN},
        {"[drm] Cannot find any crtc or sizes", HX_KLOG_GSP_BENIGN},
        {"NVRM: GPU0 SEC2_DEBUG: late PMA extension status=0x0", HX_KLOG_UNSAFE_LAYOUT},
        {"NVRM: cmpunlocker-safety-v4: status safe", HX_KLOG_SAFE_LAYOUT},
        {"NVRM: Assertion failed: ((base & RM_PAGE_MASK) == 0) @ kern_bus.c", HX_KLOG_P2P_ASSERT},
        {"nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x10",
         HX_KLOG_IOMMU_FAULT},
        {"DMAR: [DMA Read NO_PASID] Request device [21:00.0] fault addr 0x0", HX_KLOG_IOMMU_FAULT},
        {"pci 0000:21:00.0: BAR 1 [mem size 0x1]: can't assign; no space", HX_KLOG_BAR_ASSIGN},
        {"nvidia 0000:01:00.0: CMP Gen2: PCIe retrain completed without Gen2 link (status=0x1102)",
         HX_KLOG_GEN2_FAILED},
        {"NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", HX_KLOG_GPU_LOST},
        {"Loading of unsigned module is rejected", HX_KLOG_UNSIGNED},
        {"get_swap_device: Bad swap file entry 3fff", HX_KLOG_MM_CORRUPT},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_klog_facts f = scan(rows[i].line);
        for (int s = 0; s < HX_KLOG_N_SIGNS; s++)
            assert_int_equal(f.sign[s].count, s == (int)rows[i].sign);
    }
}

static void test_near_misses(void **state)
{
    (void)state;
    struct hx_klog_facts f =
        scan("NVRM: Booter failed with non-zero error code: 0x150\n"
             "NVRM: Xid (PCI:0000:01:00): 1190, pid=1\n"
             "NVRM: cmpunlocker-safety-v4: status unsafe\n"
             "DMAR: [DMA Read NO_PASID] Request device [05:00.0] fault addr 0x0\n"
             "pci 0000:03:00.0: BAR 1: failed to assign\n");
    for (int s = 0; s < HX_KLOG_N_SIGNS; s++)
        assert_int_equal(f.sign[s].count, 0);
    assert_int_equal(f.n_xids, 0); /* 1190 is no Xid */
}

static void test_gen2_status(void **state)
{
    (void)state;
    struct hx_klog_facts f = scan("CMP Gen2: retrain completed without Gen2 link (status=0x1041)");
    assert_int_equal(f.sign[HX_KLOG_GEN2_FAILED].count, 1);
    assert_int_equal(f.sign[HX_KLOG_GEN2_REAL].count, 1);
    f = scan("CMP Gen2: retrain completed without Gen2 link (status=0x1102)");
    assert_int_equal(f.sign[HX_KLOG_GEN2_REAL].count, 0);
}

static void test_xids(void **state)
{
    (void)state;
    struct hx_klog_facts f = scan("a Xid (PCI:0000:01:00): 154, x\nb Xid (PCI:0000:01:00): 31, y\n"
                                  "Xid (PCI:0000:01:00): 31, z\nXid (PCI\nXid (x): \nXid (x): q\n"
                                  "Xid (x): 99999999999999999999\n");
    assert_int_equal(f.n_xids, 2);
    assert_int_equal(f.xid[0].number, 31);
    assert_string_equal(f.xid[0].first, "b Xid (PCI:0000:01:00): 31, y");
    assert_int_equal(f.xid[1].number, 154);
    assert_int_equal(hx_xid_severity(154), HX_XID_FAIL);
    assert_int_equal(hx_xid_severity(43), HX_XID_WARN);
    assert_int_equal(hx_xid_severity(7), HX_XID_NOTE);
    assert_non_null(strstr(hx_xid_meaning(79), "bus"));
    assert_non_null(hx_xid_meaning(7));
}

static void test_many_xids_and_odd_bytes(void **state)
{
    (void)state;
    char text[16384];
    size_t n = 0;
    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "Xid (x): %d,\n", 300 - i);
    struct hx_klog_facts f = scan(text);
    assert_int_equal(f.n_xids, HX_KLOG_XIDS);
    static const char odd[] = "\x00\x01\xff Xid (x): 79, \xc3\x28\n\n\n no end";
    struct hx_error err;
    assert_int_equal(hx_klog_scan(odd, sizeof(odd) - 1, NULL, 0, &f, &err), 0);
    assert_int_equal(f.n_xids, 1);
    assert_string_equal(f.xid[0].first, "??? Xid (x): 79, ?(");
}

static void test_read(void **state)
{
    (void)state;
    char path[] = "/tmp/hx-test-klog-XXXXXX", *text;
    size_t len;
    struct hx_error err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "one\ntwo\n", 8), 8);
    close(fd);
    assert_int_equal(hx_klog_read(path, &text, &len, &err), 0);
    assert_int_equal(len, 8);
    assert_string_equal(text, "one\ntwo\n");
    free(text);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hx_klog_read(path, &text, &len, &err), -ENOENT);
    assert_non_null(strstr(err.text, "--kernel-log"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signs),
        cmocka_unit_test(test_near_misses),
        cmocka_unit_test(test_gen2_status),
        cmocka_unit_test(test_xids),
        cmocka_unit_test(test_many_xids_and_odd_bytes),
        cmocka_unit_test(test_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
