/* Config space and sysfs texts. The first byte chooses: config space, resource, address, speed. */
#include "fuzz.h"

#include "hw/pci.h"

static void config(const uint8_t *data, size_t size)
{
    struct hx_pci_config c;
    /* A copy of exact size, so that a read beyond it is seen. */
    uint8_t *copy = malloc(size ? size : 1);
    EXPECT(copy);
    if (size)
        memcpy(copy, data, size);
    hx_pci_config_decode(copy, size, &c);
    EXPECT(c.now.gen >= 0 && c.now.gen <= 6 && c.now.width >= 0 && c.now.width <= 32);
    EXPECT(c.alive || (!c.has_express && !c.has_acs && !c.has_aer && c.vendor == 0));
    EXPECT(c.class_code <= 0xffffff);
    free(copy);
}

static void text(const uint8_t *data, size_t size, int kind)
{
    char *s = malloc(size + 1);
    EXPECT(s);
    if (size)
        memcpy(s, data, size);
    s[size] = '\0';
    if (kind == 1) {
        struct hx_pci_range r = {0};
        int e = hx_pci_bar1_of_resource(s, size, &r);
        EXPECT(e == 0 || e == -EINVAL);
        EXPECT(r.size == 0 || r.start + (r.size - 1) >= r.start);
    } else if (kind == 2) {
        struct hx_pci_address a, b;
        char again[20];
        if (hx_pci_address_parse(s, &a)) {
            hx_pci_address_text(&a, again);
            EXPECT(hx_pci_address_parse(again, &b) && hx_pci_address_equal(&a, &b));
        }
    } else {
        int gen = hx_pci_gen_of_speed(s);
        EXPECT(gen >= 0 && gen <= 6);
    }
    free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    int kind = data[0] & 3;
    if (kind == 0)
        config(data + 1, size - 1 < HX_PCI_CONFIG_MAX ? size - 1 : HX_PCI_CONFIG_MAX);
    else
        text(data + 1, size - 1, kind);
    return 0;
}
