/* The NVIDIA management library, opened at run time. A machine without it is a normal state.
 *
 * Calls into a driver that hangs block in the kernel and cannot be ended, so all of them are made
 * in a child process with a time limit; on a hang the child is told to end (SIGTERM) and left
 * alone. */
#ifndef HX_HW_NVML_H
#define HX_HW_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_NVML_DEVICES 16
#define HX_NVML_LIBRARY "libnvidia-ml.so.1"
#define HX_NVML_SAMPLES 512

enum hx_nvml_state {
    HX_NVML_OK,
    HX_NVML_NO_LIBRARY, /* not installed, or too old */
    HX_NVML_NO_DRIVER,  /* library there, module not loaded */
    HX_NVML_MISMATCH,   /* library and module of different versions */
    HX_NVML_FAILED,     /* another error; error_code says which */
    HX_NVML_HUNG,       /* no answer within the limit */
};
const char *hx_nvml_state_name(enum hx_nvml_state state); /* "ok", "no library", ... */

#define HX_UNKNOWN INT32_MIN /* a value that the device did not give */

enum hx_nvml_p2p { /* NVML_P2P_STATUS_*, in the order of nvml.h */
                   HX_NVML_P2P_OK,
                   HX_NVML_P2P_CNS,
                   HX_NVML_P2P_GNS,
                   HX_NVML_P2P_TNS,
                   HX_NVML_P2P_DISABLED, /* by registry key */
                   HX_NVML_P2P_NS,
                   HX_NVML_P2P_UNKNOWN,
};
enum hx_nvml_topology {
    HX_NVML_TOPO_INTERNAL = 0,
    HX_NVML_TOPO_PIX = 10,
    HX_NVML_TOPO_PXB = 20,
    HX_NVML_TOPO_PHB = 30,
    HX_NVML_TOPO_NODE = 40,
    HX_NVML_TOPO_SYS = 50,
};
enum hx_nvml_recovery { /* NVML_GPU_RECOVERY_ACTION_* */
                        HX_NVML_RECOVERY_NONE,
                        HX_NVML_RECOVERY_RESET,
                        HX_NVML_RECOVERY_REBOOT,
                        HX_NVML_RECOVERY_DRAIN,
                        HX_NVML_RECOVERY_DRAIN_RESET,
};

/* Bits of the clocks event reasons. */
#define HX_REASON_IDLE           0x01
#define HX_REASON_POWER_CAP      0x04
#define HX_REASON_HW_SLOWDOWN    0x08
#define HX_REASON_SW_THERMAL     0x20
#define HX_REASON_HW_THERMAL     0x40
#define HX_REASON_HW_POWER_BRAKE 0x80

/* Numbers are HX_UNKNOWN where the device answers "not supported". */
struct hx_nvml_device {
    bool lost; /* the calls answer "GPU is lost" */
    char uuid[64], name[96], vbios[32];
    char bus_id[32];                    /* hx_pci_address_parse reads it */
    uint32_t pci_device, pci_subsystem; /* device << 16 | vendor */
    int32_t memory_total_mib, memory_used_mib, memory_reserved_mib;
    int32_t bar1_mib;
    int32_t ecc;         /* -1 not supported, 0 off, 1 on */
    int32_t persistence; /* 0, 1 */
    int32_t recovery;    /* enum hx_nvml_recovery */
    int32_t power_mw, power_limit_mw, power_default_mw, power_min_mw, power_max_mw;
    int32_t core_c, memory_c;
    int32_t slowdown_c, shutdown_c;
    int32_t sm_mhz, mem_mhz, max_sm_mhz;
    int64_t reasons; /* bits; -1 unknown */
    int32_t link_gen, link_gen_max, link_width, link_width_max;
    int64_t replays; /* -1 unknown */
    int32_t util_pct;
};

struct hx_nvml_snapshot {
    int32_t state;      /* enum hx_nvml_state */
    int32_t error_code; /* of nvmlInit or of the call that failed */
    char error_text[160];
    char driver[96];
    int32_t n_devices;
    struct hx_nvml_device device[HX_NVML_DEVICES];
    int32_t p2p_read[HX_NVML_DEVICES][HX_NVML_DEVICES]; /* enum hx_nvml_p2p, HX_UNKNOWN */
    int32_t p2p_write[HX_NVML_DEVICES][HX_NVML_DEVICES];
    int32_t topology[HX_NVML_DEVICES][HX_NVML_DEVICES]; /* enum hx_nvml_topology, HX_UNKNOWN */
};

/* library NULL: HX_NVML_LIBRARY. 0 also when there is no library or no driver or no answer:
 * out->state says so. Negative only if no child could be started. */
int hx_nvml_snapshot(const char *library, int timeout_ms, struct hx_nvml_snapshot *out,
                     struct hx_error *err) HX_MUST;

/* Sets the limit of the one device with this UUID, which has to be a CMP 170HX (else -EPERM).
 * Watts outside the device's own limits are -ERANGE. */
int hx_nvml_set_power_limit(const char *library, const char *uuid, int watts, int timeout_ms,
                            struct hx_error *err) HX_MUST;
int hx_nvml_set_persistence(const char *library, const char *uuid, bool on, int timeout_ms,
                            struct hx_error *err) HX_MUST;

/* Readings while a load runs: a child samples all devices until it is told to stop. */
struct hx_nvml_load {
    int32_t state; /* enum hx_nvml_state */
    int32_t n_devices, n_samples;
    struct {
        int32_t max_core_c, max_memory_c; /* HX_UNKNOWN: never readable */
        int32_t missing_memory_c;         /* samples without it */
        int32_t max_power_mw, min_sm_mhz;
        int64_t reasons; /* all bits seen; -1 unknown */
        int32_t max_link_gen, max_link_width;
    } device[HX_NVML_DEVICES];
    int32_t sample_ms[HX_NVML_SAMPLES]; /* when, from the start; the last HX_NVML_SAMPLES stay */
    int16_t util_pct[HX_NVML_SAMPLES][HX_NVML_DEVICES];
    int32_t power_mw[HX_NVML_SAMPLES][HX_NVML_DEVICES];
};
struct hx_nvml_sampler;
int hx_nvml_sampler_start(const char *library, int interval_ms, struct hx_nvml_sampler **out,
                          struct hx_error *err) HX_MUST;
/* What was seen so far; safe at any time. */
void hx_nvml_sampler_look(const struct hx_nvml_sampler *s, struct hx_nvml_load *out);
/* Ends the child and frees s; NULL is fine. */
void hx_nvml_sampler_stop(struct hx_nvml_sampler *s, struct hx_nvml_load *out);
/* n samples at once on a made-up clock of step_ms, for judging recorded answers. */
int hx_nvml_replay(const char *library, int n, int step_ms, int timeout_ms,
                   struct hx_nvml_load *out, struct hx_error *err) HX_MUST;

#endif
