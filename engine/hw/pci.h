/* PCI functions from sysfs and config space. */
#ifndef HX_HW_PCI_H
#define HX_HW_PCI_H

#include "hw/root.h"

#define HX_PCI_VENDOR_NVIDIA 0x10de
#define HX_PCI_CONFIG_MAX    4096
#define HX_PCI_HOPS          8
#define HX_PCI_GPUS          32

struct hx_pci_address {
    uint32_t domain;
    uint8_t bus, device, function;
};

/* "0000:01:00.0", also with 8 digits of domain and in capitals; the whole text. */
bool hx_pci_address_parse(const char *text, struct hx_pci_address *out);
void hx_pci_address_text(const struct hx_pci_address *a, char out[20]);
bool hx_pci_address_equal(const struct hx_pci_address *a, const struct hx_pci_address *b);

/* A link: generation 1 to 6 and lanes; 0 = not known. */
struct hx_pci_link {
    int gen, width;
};
/* Generation of "5.0 GT/s PCIe" (sysfs) or "5GT/s" (lspci); 0 if the text is no speed. */
int hx_pci_gen_of_speed(const char *text);

#define HX_ACS_REQUEST_REDIRECT    0x0004
#define HX_ACS_COMPLETION_REDIRECT 0x0008

/* What the first 64 to 4096 bytes of config space say (PCI Local Bus 3.0 and PCI Express base
 * specification, little endian). A card that left the bus reads as all ones: alive is false and
 * nothing else is set. Capability lists are walked with a limit; a broken one ends the walk. */
struct hx_pci_config {
    bool alive;
    uint16_t vendor, device, subsystem_vendor, subsystem_device; /* subsystem: header type 0 */
    uint32_t class_code;                                         /* 24 bits */
    uint8_t revision, header_type;
    bool has_express;
    uint8_t port_type;           /* 0 endpoint, 4 root port, 5 upstream, 6 downstream */
    struct hx_pci_link now, cap; /* LnkSta, LnkCap */
    bool has_acs;
    uint16_t acs_cap, acs_ctl;
    bool has_aer;
    uint32_t aer_uncorrectable, aer_correctable; /* status words */
};
void hx_pci_config_decode(const uint8_t *data, size_t len, struct hx_pci_config *out);

struct hx_pci_range {
    uint64_t start, size; /* size 0: not there */
};
/* BAR1 from the text of sysfs `resource`: line 1, or line 2 if BAR0 is 64 bits wide (and so takes
 * two lines). -EINVAL if the text has no such lines. */
int hx_pci_bar1_of_resource(const char *text, size_t len, struct hx_pci_range *out);

/* AER counters of sysfs (aer_dev_*); known is false where the kernel has none. */
struct hx_pci_aer {
    bool known;
    uint64_t correctable, nonfatal, fatal;
};

struct hx_pci_hop { /* a bridge between a card and the root */
    struct hx_pci_address address;
    struct hx_pci_link now, max;
    bool acs_known;
    uint16_t acs_ctl;
};

struct hx_pci_gpu {
    struct hx_pci_address address;
    char path[256]; /* resolved, /sys/devices/... */
    uint16_t device, subsystem_vendor, subsystem_device;
    uint32_t class_code;
    uint8_t revision;
    bool config_read, alive; /* alive: config space is not all ones (or was not readable) */
    struct hx_pci_link now;  /* sysfs, else config space; not current without a load */
    struct hx_pci_link max;  /* not to be trusted (hardware.md 1.4) */
    bool bar1_known;
    struct hx_pci_range bar1;
    int numa_node; /* -1: none */
    struct hx_pci_aer aer;
    char driver[32];                    /* "" = none bound */
    char slot[48];                      /* board's name of the slot, "" = not told */
    char iommu[16];                     /* group type: identity, DMA, DMA-FQ; "" = no group */
    struct hx_pci_hop hop[HX_PCI_HOPS]; /* from the card upwards */
    int n_hops;
};

struct hx_pci_scan {
    struct hx_pci_gpu gpu[HX_PCI_GPUS]; /* NVIDIA display functions (class 03) in address order */
    int n;
};

/* A machine without /sys/bus/pci has none; more than HX_PCI_GPUS is -E2BIG. */
int hx_pci_scan(const struct hx_root *root, struct hx_pci_scan *out, struct hx_error *err) HX_MUST;
/* The link as it is now, for readings under load. */
void hx_pci_read_link(const struct hx_root *root, const struct hx_pci_gpu *gpu,
                      struct hx_pci_link *out);
int hx_pci_read_aer(const struct hx_root *root, const char *device_path, struct hx_pci_aer *out);

#endif
