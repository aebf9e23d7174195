/* Card variants and the bounds of checks. */
#ifndef HX_HW_VARIANT_H
#define HX_HW_VARIANT_H

#include <stdbool.h>
#include <stdint.h>

#define HX_DEVICE_CMP_8GB  0x20c2
#define HX_DEVICE_CMP_10GB 0x2082

enum hx_memory_class {
    HX_MEMORY_STOCK,
    HX_MEMORY_UNLOCKED,
    HX_MEMORY_OVERSIZE, /* shows more than the card can have */
    HX_MEMORY_ODD,      /* between the bands */
};
const char *hx_memory_class_name(enum hx_memory_class c); /* "stock", ... */

struct hx_variant {
    uint16_t device, subsystem; /* PCI ids below vendor 10de */
    const char *name;           /* "8gb" */
    const char *title;          /* for people */
    bool usable;                /* can be one of the four cards */
    int32_t stock_min_mib, stock_max_mib;
    int32_t unlocked_min_mib, unlocked_max_mib; /* max 0: none */
    int32_t oversize_min_mib;                   /* 0: none */
};
/* NULL if it is not a CMP 170HX. */
const struct hx_variant *hx_variant_of_device(uint16_t device);
/* A100 samples that look similar and are not unlocked. */
bool hx_variant_is_lookalike(uint16_t device);
enum hx_memory_class hx_variant_memory_class(const struct hx_variant *v, int32_t total_mib);

/* Bounds of spec thresholds; observed figures behind them are in docs/hardware.md. */
struct hx_hw_limits {
    int memory_spread_mib;
    int sm_full, sm_min;
    double fp32_pass, fp32_fail, bf16_pass, bf16_fail; /* TFLOPS */
    double mma_pass, mma_fail;                         /* cycles */
    double hbm_pass, hbm_fail;                         /* GB/s */
    int hbm_mhz_normal, hbm_mhz_qualified;
    double spread_ratio;
    double copy_pass, copy_fail; /* of the host copy table */
    double peer_pass, peer_fail; /* of the peer table */
    double peer_of_staged;       /* below this share of the staged rate: fail */
    double bidir_pass, bidir_warn, pair_ratio;
    double flag_us_pass, flag_us_fail;
    double step_us_good, step_us_max; /* all-reduce of six rows */
    double bus_good, bus_min;         /* GB/s at the prefill size */
    int allreduces_per_step;
    double prefill_bytes_per_token, prefill_tokens_min;
    double arm_tie;
    int core_warn_c, core_fail_c, memory_warn_c, memory_fail_c, memory_idle_c, spread_warn_c;
    int cap_tolerance_w, hang_power_w, hang_util_pct, hang_seconds;
    int aer_correctable_per_min, replays_per_min;
    int bar1_full_mib;
    double ram_gib_warn, ram_gib_fail, shm_gib;
    double coverage_min;
    int tool_timeout_ms;
};
extern const struct hx_hw_limits hx_hw_limits;

/* GB/s to expect of a link; 0 where nothing is known. */
double hx_expected_copy_gbps(int gen, int width);
double hx_expected_peer_gbps(int gen, int width);

#endif
