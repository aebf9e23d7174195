/* Driver and platform facts from files and a few tools. */
#ifndef HX_HW_DRIVER_H
#define HX_HW_DRIVER_H

#include "hw/command.h"
#include "hw/pci.h"
#include "hw/root.h"

#define HX_DRIVER_COPIES 16

enum hx_tristate { HX_NO, HX_YES, HX_NOT_KNOWN };

/* /proc/driver/nvidia/version */
struct hx_driver_version {
    bool open_module;
    char version[32]; /* "610.43.03" */
    char builder[64]; /* "root@appliance" */
};
bool hx_driver_version_parse(const char *text, size_t len, struct hx_driver_version *out);
/* Value of "Key: value" in the texts of /proc/driver/nvidia (params, information); quotes are
 * taken off. false: no such line. Cut at size - 1. */
bool hx_driver_param(const char *text, size_t len, const char *key, char *out, size_t size);
/* "A=1;B=0x2": is every key=value of want in have? Missing ones are listed in out ("B=0x2"). */
bool hx_registry_has(const char *have, const char *want, char *missing, size_t size);

struct hx_driver_facts {
    bool loaded; /* /proc/driver/nvidia/version is there */
    struct hx_driver_version proc;
    char module_version[32], srcversion[64]; /* /sys/module/nvidia; "" if not loaded */
    bool has_params;
    int gpu_firmware; /* EnableGpuFirmware, -1 not told */
    char registry[512];
    struct {
        struct hx_pci_address address;
        char firmware[48]; /* "610.43.03", "N/A", "" */
    } gpu[HX_PCI_GPUS];
    int n_gpus;
    char competing[32]; /* nouveau or nova among /proc/modules, else "" */
    char kernel[128];   /* release */
    /* nvidia.ko* below /lib/modules/<kernel>, paths inside the root */
    char copy[HX_DRIVER_COPIES][256];
    int n_copies;
};
int hx_driver_read(const struct hx_root *root, struct hx_driver_facts *out,
                   struct hx_error *err) HX_MUST;

enum hx_iommu_mode { HX_IOMMU_NONE, HX_IOMMU_IDENTITY, HX_IOMMU_TRANSLATED };

struct hx_platform_facts {
    char cmdline[2048], boot_id[48];
    enum hx_tristate secure_boot; /* EFI variable; HX_NO without EFI */
    bool has_efi_state;           /* the variable or mokutil told it */
    bool lockdown;                /* integrity or confidentiality */
    enum hx_tristate sig_enforce;
    enum hx_iommu_mode iommu; /* the strictest mode of the cards' groups */
    bool hypervisor;          /* cpuinfo flag */
    char dmi_vendor[64];
    int64_t ram_kib, shm_bytes; /* -1 not told */
    int64_t memlock_bytes;      /* -1 unlimited, -2 not told */
};
/* shm and memlock of the machine are read only where the root is the machine. */
int hx_platform_read(const struct hx_root *root, const struct hx_commands *commands,
                     const struct hx_pci_scan *scan, struct hx_platform_facts *out,
                     struct hx_error *err) HX_MUST;

#endif
