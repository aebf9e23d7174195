/* PCI addresses, config space, resource texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "hw/pci.h"

static void test_addresses(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "01:00.0",
                                      "0000:01:00",
                                      "0000:01:20.0",
                                      "0000:01:00.8",
                                      "0000:01:00.0 ",
                                      "g000:01:00.0",
                                      "0000:001:00.0"};
    struct hx_pci_address a, b;
    char text[20];
    assert_true(hx_pci_address_parse("0000:e3:1f.7", &a));
    hx_pci_address_text(&a, text);
    assert_string_equal(text, "0000:e3:1f.7");
    assert_true(hx_pci_address_parse("00000000:E3:1F.7", &b));
    assert_true(hx_pci_address_equal(&a, &b));
    assert_true(hx_pci_address_parse("10000:01:00.0", &b));
    assert_int_equal(b.domain, 0x10000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(hx_pci_address_parse(bad[i], &a));
}

static void test_speeds(void **state)
{
    (void)state;
    assert_int_equal(hx_pci_gen_of_speed("2.5 GT/s PCIe"), 1);
    assert_int_equal(hx_pci_gen_of_speed("5.0 GT/s PCIe"), 2);
    assert_int_equal(hx_pci_gen_of_speed("5GT/s"), 2);
    assert_int_equal(hx_pci_gen_of_speed("32.0 GT/s PCIe"), 5);
    assert_int_equal(hx_pci_gen_of_speed("Unknown"), 0);
    assert_int_equal(hx_pci_gen_of_speed("7 GT/s"), 0);
    assert_int_equal(hx_pci_gen_of_speed(""), 0);
}

static void put32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

/* A card as shipped: hardware.md 1.4, raw LnkCap and LnkSta. */
static void fill_card(uint8_t d[4096])
{
    memset(d, 0, 4096);
    put32(d, 0x20c210de);
    put32(d + 4, 0x00100000);
    put32(d + 8, 0x030200a1);
    put32(d + 0x2c, 0x158510de);
    d[0x34] = 0x60;
    put32(d + 0x60, 0x00037801); /* power management, next 78 */
    put32(d + 0x78, 0x00020010); /* PCI Express endpoint, last */
    put32(d + 0x78 + 0x0c, 0x00456101);
    put32(d + 0x78 + 0x10, 0x10410000);
}

static void test_config_of_a_card(void **state)
{
    (void)state;
    uint8_t d[4096];
    struct hx_pci_config c;
    fill_card(d);
    hx_pci_config_decode(d, sizeof(d), &c);
    assert_true(c.alive);
    assert_int_equal(c.vendor, 0x10de);
    assert_int_equal(c.device, 0x20c2);
    assert_int_equal(c.subsystem_device, 0x1585);
    assert_int_equal(c.class_code, 0x030200);
    assert_int_equal(c.revision, 0xa1);
    assert_true(c.has_express);
    assert_int_equal(c.now.gen, 1);
    assert_int_equal(c.now.width, 4);
    assert_int_equal(c.cap.gen, 1);
    assert_int_equal(c.cap.width, 16);
    assert_false(c.has_acs);
    put32(d + 0x78 + 0x10, 0x11020000); /* Gen2 x16 */
    hx_pci_config_decode(d, sizeof(d), &c);
    assert_int_equal(c.now.gen, 2);
    assert_int_equal(c.now.width, 16);
}

static void test_config_of_a_bridge(void **state)
{
    (void)state;
    uint8_t d[4096];
    struct hx_pci_config c;
    fill_card(d);
    d[0x0e] = 1;
    put32(d + 0x100, 0x2a020001); /* AER, next 2a0 */
    put32(d + 0x104, 0x10);
    put32(d + 0x110, 0x40);
    put32(d + 0x2a0, 0x0001000d); /* ACS, last */
    put32(d + 0x2a4, 0x001d005f);
    hx_pci_config_decode(d, sizeof(d), &c);
    assert_true(c.has_aer);
    assert_int_equal(c.aer_uncorrectable, 0x10);
    assert_int_equal(c.aer_correctable, 0x40);
    assert_true(c.has_acs);
    assert_int_equal(c.acs_ctl, 0x001d);
    assert_true(c.acs_ctl & HX_ACS_REQUEST_REDIRECT);
    assert_int_equal(c.subsystem_device, 0);
    /* Without privileges the kernel gives 64 bytes. */
    hx_pci_config_decode(d, 64, &c);
    assert_true(c.alive);
    assert_false(c.has_express || c.has_acs);
}

static void test_config_broken(void **state)
{
    (void)state;
    uint8_t d[4096];
    struct hx_pci_config c;
    memset(d, 0xff, sizeof(d));
    hx_pci_config_decode(d, sizeof(d), &c);
    assert_false(c.alive);
    hx_pci_config_decode(d, 10, &c);
    assert_false(c.alive);
    fill_card(d);
    d[0x61] = 0x60;               /* a capability that names itself next */
    put32(d + 0x100, 0x10020001); /* and an extended one */
    hx_pci_config_decode(d, sizeof(d), &c);
    assert_true(c.alive);
    assert_false(c.has_express);
    put32(d + 0x100, 0xffd2000du); /* next beyond the space, ACS at its start */
    hx_pci_config_decode(d, sizeof(d), &c);
    assert_true(c.has_acs);
    d[0x34] = 0xfc; /* a list that starts at the very end */
    hx_pci_config_decode(d, sizeof(d), &c);
    assert_true(c.alive);
}

#define NONE "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"

static void test_windows(void **state)
{
    (void)state;
    struct hx_pci_range r;
    static const struct {
        const char *text;
        int status;
        uint64_t start, size;
    } rows[] = {
        /* BAR0 of 32 bits: line 1 */
        {"0x00000000e0000000 0x00000000e0ffffff 0x0000000000040200\n"
         "0x0000380000000000 0x0000380003ffffff 0x000000000014220c\n" NONE,
         0, 0x380000000000, 64 << 20},
        /* BAR0 of 64 bits: line 2, although line 0 is 64-bit and prefetchable too */
        {"0x0000104002000000 0x0000104002ffffff 0x000000000014220c\n" NONE
         "0x0000100000000000 0x0000103fffffffff 0x000000000014220c\n",
         0, 0x100000000000, 256ull << 30},
        /* No window was assigned; the 32 MiB of BAR3 are not it. */
        {"0x00000000e0000000 0x00000000e0ffffff 0x0000000000040200\n" NONE NONE
         "0x0000380004000000 0x0000380005ffffff 0x000000000014220c\n",
         0, 0, 0},
        {"", -EINVAL, 0, 0},
        {"nonsense\n", -EINVAL, 0, 0},
        {"0x2 0x1 0x200\n0x0 0x0 0x0\n", -EINVAL, 0, 0},
        {"0x1 0x2\n0x0 0x0 0x0\n", -EINVAL, 0, 0},
        {"0xfffffffffffffffff 0x2 0x200\n", -EINVAL, 0, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        memset(&r, 0, sizeof(r));
        assert_int_equal(hx_pci_bar1_of_resource(rows[i].text, strlen(rows[i].text), &r),
                         rows[i].status);
        assert_true(r.start == rows[i].start && r.size == rows[i].size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),        cmocka_unit_test(test_speeds),
        cmocka_unit_test(test_config_of_a_card), cmocka_unit_test(test_config_of_a_bridge),
        cmocka_unit_test(test_config_broken),    cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
