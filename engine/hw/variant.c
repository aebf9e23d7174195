/* Card variants and bounds. Sources: hardware.md 1.1, 1.4, 1.5, 3.3 and 4. */
#include "hw/variant.h"

#include <stddef.h>

static const struct hx_variant variants[] = {
    {HX_DEVICE_CMP_8GB, 0x1585, "8gb", "CMP 170HX, 8 GB", true, 7680, 8704, 60000, 0, 0},
    {HX_DEVICE_CMP_10GB, 0x1557, "10gb", "CMP 170HX, 10 GB", false, 9728, 10752, 35000, 59999,
     60000},
};

const struct hx_variant *hx_variant_of_device(uint16_t device)
{
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
        if (variants[i].device == device)
            return &variants[i];
    return NULL;
}

bool hx_variant_is_lookalike(uint16_t device)
{
    return device == 0x20b0 || device == 0x20bb;
}

const char *hx_memory_class_name(enum hx_memory_class c)
{
    static const char *const names[] = {"stock", "unlocked", "oversize", "odd"};
    return names[c];
}

enum hx_memory_class hx_variant_memory_class(const struct hx_variant *v, int32_t mib)
{
    if (v->oversize_min_mib && mib >= v->oversize_min_mib)
        return HX_MEMORY_OVERSIZE;
    if (mib >= v->unlocked_min_mib && (!v->unlocked_max_mib || mib <= v->unlocked_max_mib))
        return HX_MEMORY_UNLOCKED;
    if (mib >= v->stock_min_mib && mib <= v->stock_max_mib)
        return HX_MEMORY_STOCK;
    return HX_MEMORY_ODD;
}

const struct hx_hw_limits hx_hw_limits = {
    .memory_spread_mib = 64,
    .sm_full = 74,
    .sm_min = 70,
    .fp32_pass = 10,
    .fp32_fail = 1,
    .bf16_pass = 70,
    .bf16_fail = 30,
    .mma_pass = 40,
    .mma_fail = 200,
    .hbm_pass = 1200,
    .hbm_fail = 900,
    .hbm_mhz_normal = 1728,
    .hbm_mhz_qualified = 1890,
    .spread_ratio = 1.1,
    .copy_pass = 0.85,
    .copy_fail = 0.6,
    .peer_pass = 0.8,
    .peer_fail = 0.5,
    .peer_of_staged = 0.7,
    .bidir_pass = 1.6,
    .bidir_warn = 1.2,
    .pair_ratio = 0.8,
    .flag_us_pass = 10,
    .flag_us_fail = 1000,
    .step_us_good = 80,
    .step_us_max = 130,
    .bus_good = 3,
    .bus_min = 1,
    .allreduces_per_step = 86,
    .prefill_bytes_per_token = 1228800,
    .prefill_tokens_min = 1400,
    .arm_tie = 0.05,
    .core_warn_c = 80,
    .core_fail_c = 90,
    .memory_warn_c = 85,
    .memory_fail_c = 95,
    .memory_idle_c = 60,
    .spread_warn_c = 15,
    .cap_tolerance_w = 1,
    .hang_power_w = 75,
    .hang_util_pct = 95,
    .hang_seconds = 20,
    .aer_correctable_per_min = 10,
    .replays_per_min = 10,
    .bar1_full_mib = 65536,
    .ram_gib_warn = 62,
    .ram_gib_fail = 32,
    .shm_gib = 8,
    .coverage_min = 0.95,
    .tool_timeout_ms = 20000,
};

static const struct {
    int gen, width;
    double copy, peer; /* GB/s; 0: not known */
} links[] = {
    {1, 1, 0.2, 0},     {1, 4, 0.8, 0.8},   {1, 8, 1.62, 0},   {1, 16, 2.88, 2.9},
    {2, 1, 0.41, 0.41}, {2, 4, 1.65, 1.68}, {2, 8, 3.24, 3.2}, {2, 16, 6.6, 6.5},
};

double hx_expected_copy_gbps(int gen, int width)
{
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
        if (links[i].gen == gen && links[i].width == width)
            return links[i].copy;
    return 0;
}

double hx_expected_peer_gbps(int gen, int width)
{
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
        if (links[i].gen == gen && links[i].width == width)
            return links[i].peer;
    return 0;
}
