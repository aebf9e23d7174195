/* Everything that the checks look at, collected once. */
#ifndef HX_P2P_FACTS_H
#define HX_P2P_FACTS_H

#include "hw/driver.h"
#include "hw/klog.h"
#include "hw/nvml.h"
#include "hw/variant.h"
#include "hw/wanted.h"
#include "measured.h"

#define HX_CARDS HX_MEASURED_DEVICES

struct hx_card { /* a CMP 170HX on the bus */
    const struct hx_pci_gpu *pci;
    const struct hx_variant *variant;
    int nvml;                /* index in the snapshot, -1: the driver does not see it */
    int measured;            /* index in the probe's devices, -1: not measured */
    struct hx_pci_link link; /* best seen, under load where there was one */
    struct hx_pci_aer aer;   /* since the boot */
    uint64_t aer_new;        /* correctable errors while measuring */
    int64_t replays_new;     /* -1 not known */
};

struct hx_facts {
    struct hx_wanted wanted;
    struct hx_pci_scan scan;
    struct hx_driver_facts driver;
    struct hx_platform_facts platform;
    struct hx_nvml_snapshot nvml;
    bool has_load;
    struct hx_nvml_load load;
    bool has_klog;
    struct hx_klog_facts klog;
    bool measured; /* the probe ran, or its result was read */
    struct hx_measured probe;
    double minutes;       /* that error counters were watched, at least 1 */
    bool busy;            /* the cards are in use: nothing was measured */
    char unmeasured[160]; /* why there are no measurements, "" if there are */

    char p2p_lock[16]; /* an earlier run with the same key: "corrupt", "hang", or "" */

    struct hx_card card[HX_CARDS];
    int n_cards;   /* CMP 170HX on the bus */
    int n_foreign; /* other NVIDIA display functions */

    /* Answers of tools. */
    int smi_rc; /* of the query, 127 not installed, -1 timed out */
    bool smi_mismatch;
    bool stuck_process;       /* a process in state D has a card open */
    bool resolve_known;       /* modprobe -n could be asked */
    char resolved[512];       /* module that modprobe would load */
    bool bundle_module_known; /* modinfo could be asked */
    char bundle_srcversion[64];
    bool bundle_has_module; /* nvidia.ko* in the bundle's folder for the running kernel */
    char bundle_module[64]; /* its file name, "nvidia.ko" if there is none */
    char safety_marker[64];
};

struct hx_collect_options {
    const char *root, *config, *nvml, *nvml_load, *commands, *kernel_log;
    const char *cards_conf, *cards_conf_dir, *active;
    int tool_timeout_ms; /* for the driver's answers, 0: the standard 20 s */
};

/* The read-only part: seconds, no CUDA. Nothing that is absent is an error. */
int hx_facts_collect(const struct hx_collect_options *o, struct hx_root *root, struct hx_facts *out,
                     struct hx_error *err) HX_MUST;
/* Pairs cards with the snapshot's and the probe's devices; call again after measuring. */
void hx_facts_pair(struct hx_facts *f);
/* Re-reads error counters and kernel log after measuring. */
int hx_facts_refresh(const struct hx_collect_options *o, struct hx_root *root, struct hx_facts *f,
                     struct hx_error *err) HX_MUST;

#endif
