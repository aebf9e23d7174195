/* The calls into the NVIDIA management library. Its interface is stable C: the few types needed are
 * declared here, so that nothing of NVIDIA's is needed to build. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hw/nvml_impl.h"
#include "hw/variant.h"

#define OK                  0
#define NOT_SUPPORTED       3
#define DRIVER_NOT_LOADED   9
#define LIB_RM_MISMATCH     18
#define GPU_IS_LOST         15
#define FIELD_MEMORY_TEMP   82
#define FIELD_RECOVERY      230
#define CLOCK_SM            1
#define CLOCK_MEM           2
#define TEMPERATURE_GPU     0
#define THRESHOLD_SHUTDOWN  0
#define THRESHOLD_SLOWDOWN  1
#define P2P_INDEX_READ      0
#define P2P_INDEX_WRITE     1
#define MEMORY_V2           (sizeof(struct memory_v2) | 2u << 24)
#define VALUE_DOUBLE        0
#define VALUE_UNSIGNED      1
#define VALUE_UNSIGNED_LONG 2
#define VALUE_U64           3
#define VALUE_S64           4
#define VALUE_SIGNED        5
#define VALUE_UNSIGNED_16   6

typedef struct opaque_device *handle;

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
};
struct memory_v1 {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct bar1_memory {
    unsigned long long total, free, used;
};
struct utilization {
    unsigned gpu, memory;
};
struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, result;
    union {
        double d;
        unsigned u;
        unsigned long ul;
        unsigned long long ull;
        long long sll;
        int i;
        unsigned short us;
    } value;
};

struct hx_nvml_library {
    void *dl;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int);
    int (*driver_version)(char *, unsigned);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, handle *);
    int (*uuid)(handle, char *, unsigned);
    int (*name)(handle, char *, unsigned);
    int (*vbios)(handle, char *, unsigned);
    int (*pci)(handle, struct pci_info *);
    int (*memory2)(handle, struct memory_v2 *);
    int (*memory)(handle, struct memory_v1 *);
    int (*bar1)(handle, struct bar1_memory *);
    int (*ecc)(handle, unsigned *, unsigned *);
    int (*persistence)(handle, unsigned *);
    int (*set_persistence)(handle, unsigned);
    int (*power)(handle, unsigned *);
    int (*limit)(handle, unsigned *);
    int (*default_limit)(handle, unsigned *);
    int (*limits)(handle, unsigned *, unsigned *);
    int (*set_limit)(handle, unsigned);
    int (*temperature)(handle, int, unsigned *);
    int (*threshold)(handle, int, unsigned *);
    int (*fields)(handle, int, struct field_value *);
    int (*clock)(handle, int, unsigned *);
    int (*max_clock)(handle, int, unsigned *);
    int (*reasons)(handle, unsigned long long *);
    int (*link_gen)(handle, unsigned *);
    int (*link_gen_max)(handle, unsigned *);
    int (*link_width)(handle, unsigned *);
    int (*link_width_max)(handle, unsigned *);
    int (*replays)(handle, unsigned *);
    int (*util)(handle, struct utilization *);
    int (*p2p)(handle, handle, int, int *);
    int (*topology)(handle, handle, int *);
};

#define FN(member, symbol, fallback, required)                                                     \
    {                                                                                              \
        offsetof(struct hx_nvml_library, member), symbol, fallback, required                       \
    }
static const struct {
    size_t offset;
    const char *symbol, *fallback;
    bool required;
} functions[] = {
    FN(init, "nvmlInit_v2", NULL, true),
    FN(shutdown, "nvmlShutdown", NULL, true),
    FN(error_string, "nvmlErrorString", NULL, false),
    FN(driver_version, "nvmlSystemGetDriverVersion", NULL, true),
    FN(count, "nvmlDeviceGetCount_v2", NULL, true),
    FN(by_index, "nvmlDeviceGetHandleByIndex_v2", NULL, true),
    FN(uuid, "nvmlDeviceGetUUID", NULL, true),
    FN(name, "nvmlDeviceGetName", NULL, false),
    FN(vbios, "nvmlDeviceGetVbiosVersion", NULL, false),
    FN(pci, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", true),
    FN(memory2, "nvmlDeviceGetMemoryInfo_v2", NULL, false),
    FN(memory, "nvmlDeviceGetMemoryInfo", NULL, false),
    FN(bar1, "nvmlDeviceGetBAR1MemoryInfo", NULL, false),
    FN(ecc, "nvmlDeviceGetEccMode", NULL, false),
    FN(persistence, "nvmlDeviceGetPersistenceMode", NULL, false),
    FN(set_persistence, "nvmlDeviceSetPersistenceMode", NULL, false),
    FN(power, "nvmlDeviceGetPowerUsage", NULL, false),
    FN(limit, "nvmlDeviceGetEnforcedPowerLimit", NULL, false),
    FN(default_limit, "nvmlDeviceGetPowerManagementDefaultLimit", NULL, false),
    FN(limits, "nvmlDeviceGetPowerManagementLimitConstraints", NULL, false),
    FN(set_limit, "nvmlDeviceSetPowerManagementLimit", NULL, false),
    FN(temperature, "nvmlDeviceGetTemperature", NULL, false),
    FN(threshold, "nvmlDeviceGetTemperatureThreshold", NULL, false),
    FN(fields, "nvmlDeviceGetFieldValues", NULL, false),
    FN(clock, "nvmlDeviceGetClockInfo", NULL, false),
    FN(max_clock, "nvmlDeviceGetMaxClockInfo", NULL, false),
    FN(reasons, "nvmlDeviceGetCurrentClocksEventReasons",
       "nvmlDeviceGetCurrentClocksThrottleReasons", false),
    FN(link_gen, "nvmlDeviceGetCurrPcieLinkGeneration", NULL, false),
    FN(link_gen_max, "nvmlDeviceGetMaxPcieLinkGeneration", NULL, false),
    FN(link_width, "nvmlDeviceGetCurrPcieLinkWidth", NULL, false),
    FN(link_width_max, "nvmlDeviceGetMaxPcieLinkWidth", NULL, false),
    FN(replays, "nvmlDeviceGetPcieReplayCounter", NULL, false),
    FN(util, "nvmlDeviceGetUtilizationRates", NULL, false),
    FN(p2p, "nvmlDeviceGetP2PStatus", NULL, false),
    FN(topology, "nvmlDeviceGetTopologyCommonAncestor", NULL, false),
};

static int fail(int32_t *state, int32_t *code, char *text, size_t size, int32_t s, int32_t c,
                const char *message)
{
    *state = s;
    *code = c;
    snprintf(text, size, "%s", message);
    return -1;
}

const char *hx_nvml_library_error(struct hx_nvml_library *lib, int code)
{
    const char *text = lib->error_string ? lib->error_string(code) : NULL;
    return text ? text : "unknown error";
}

int hx_nvml_library_open(const char *path, struct hx_nvml_library **out, int32_t *state,
                         int32_t *code, char *text, size_t size)
{
    struct hx_nvml_library *lib = calloc(1, sizeof(*lib));
    if (!lib)
        return fail(state, code, text, size, HX_NVML_FAILED, 0, "out of memory");
    lib->dl = dlopen(path ? path : HX_NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib->dl) {
        const char *why = dlerror();
        free(lib);
        return fail(state, code, text, size, HX_NVML_NO_LIBRARY, 0, why ? why : "not found");
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *symbol = dlsym(lib->dl, functions[i].symbol);
        if (!symbol && functions[i].fallback)
            symbol = dlsym(lib->dl, functions[i].fallback);
        if (!symbol && functions[i].required) {
            dlclose(lib->dl);
            free(lib);
            return fail(state, code, text, size, HX_NVML_NO_LIBRARY, 0, functions[i].symbol);
        }
        memcpy((char *)lib + functions[i].offset, &symbol, sizeof(symbol));
    }
    int r = lib->init();
    if (r != OK) {
        int32_t s = r == DRIVER_NOT_LOADED ? HX_NVML_NO_DRIVER
                    : r == LIB_RM_MISMATCH ? HX_NVML_MISMATCH
                                           : HX_NVML_FAILED;
        fail(state, code, text, size, s, r, hx_nvml_library_error(lib, r));
        dlclose(lib->dl);
        free(lib);
        return -1;
    }
    *state = HX_NVML_OK;
    *code = 0;
    text[0] = '\0';
    *out = lib;
    return 0;
}

void hx_nvml_library_close(struct hx_nvml_library *lib)
{
    if (!lib)
        return;
    lib->shutdown();
    dlclose(lib->dl);
    free(lib);
}

static int32_t clamp(unsigned long long v)
{
    return v > INT32_MAX ? INT32_MAX : (int32_t)v;
}

/* One unsigned answer; HX_UNKNOWN if there is none. */
static int32_t ask(int (*get)(handle, unsigned *), handle h)
{
    unsigned v = 0;
    return get && get(h, &v) == OK ? clamp(v) : HX_UNKNOWN;
}

static int32_t ask_with(int (*get)(handle, int, unsigned *), handle h, int which)
{
    unsigned v = 0;
    return get && get(h, which, &v) == OK ? clamp(v) : HX_UNKNOWN;
}

static int32_t ask_field(struct hx_nvml_library *lib, handle h, unsigned field)
{
    struct field_value v = {.field = field};
    if (!lib->fields || lib->fields(h, 1, &v) != OK || v.result != OK)
        return HX_UNKNOWN;
    switch (v.type) {
    case VALUE_DOUBLE:
        return v.value.d >= 0 && v.value.d < INT32_MAX ? (int32_t)v.value.d : HX_UNKNOWN;
    case VALUE_UNSIGNED: return clamp(v.value.u);
    case VALUE_UNSIGNED_LONG: return clamp(v.value.ul);
    case VALUE_U64: return clamp(v.value.ull);
    case VALUE_S64: return v.value.sll >= 0 ? clamp((unsigned long long)v.value.sll) : HX_UNKNOWN;
    case VALUE_SIGNED: return v.value.i >= 0 ? v.value.i : HX_UNKNOWN;
    case VALUE_UNSIGNED_16: return v.value.us;
    default: return HX_UNKNOWN;
    }
}

static int64_t ask_reasons(struct hx_nvml_library *lib, handle h)
{
    unsigned long long v = 0;
    return lib->reasons && lib->reasons(h, &v) == OK ? (int64_t)(v & INT64_MAX) : -1;
}

static int32_t ask_util(struct hx_nvml_library *lib, handle h)
{
    struct utilization v = {0};
    return lib->util && lib->util(h, &v) == OK && v.gpu <= 100 ? (int32_t)v.gpu : HX_UNKNOWN;
}

static void ask_text(int (*get)(handle, char *, unsigned), handle h, char *out, unsigned size)
{
    if (!get || get(h, out, size) != OK)
        out[0] = '\0';
    out[size - 1] = '\0';
}

static void read_memory(struct hx_nvml_library *lib, handle h, struct hx_nvml_device *d)
{
    struct memory_v2 v2 = {.version = MEMORY_V2};
    struct memory_v1 v1 = {0};
    d->memory_total_mib = d->memory_used_mib = d->memory_reserved_mib = HX_UNKNOWN;
    if (lib->memory2 && lib->memory2(h, &v2) == OK) {
        d->memory_total_mib = clamp(v2.total >> 20);
        d->memory_used_mib = clamp(v2.used >> 20);
        d->memory_reserved_mib = clamp(v2.reserved >> 20);
    } else if (lib->memory && lib->memory(h, &v1) == OK) {
        d->memory_total_mib = clamp(v1.total >> 20);
        d->memory_used_mib = clamp(v1.used >> 20);
    }
    struct bar1_memory bar1 = {0};
    d->bar1_mib = lib->bar1 && lib->bar1(h, &bar1) == OK ? clamp(bar1.total >> 20) : HX_UNKNOWN;
}

static void read_device(struct hx_nvml_library *lib, handle h, struct hx_nvml_device *d)
{
    ask_text(lib->uuid, h, d->uuid, sizeof(d->uuid));
    ask_text(lib->name, h, d->name, sizeof(d->name));
    ask_text(lib->vbios, h, d->vbios, sizeof(d->vbios));
    struct pci_info pci = {0};
    int r = lib->pci(h, &pci);
    d->lost = r == GPU_IS_LOST;
    if (r == OK) {
        d->pci_device = pci.pci_device;
        d->pci_subsystem = pci.pci_subsystem;
        snprintf(d->bus_id, sizeof(d->bus_id), "%.31s", pci.bus_id);
    }
    read_memory(lib, h, d);
    unsigned now = 0, pending = 0;
    r = lib->ecc ? lib->ecc(h, &now, &pending) : NOT_SUPPORTED;
    d->ecc = r == OK ? now != 0 : r == NOT_SUPPORTED ? -1 : HX_UNKNOWN;
    d->persistence = ask(lib->persistence, h);
    d->recovery = ask_field(lib, h, FIELD_RECOVERY);
    d->power_mw = ask(lib->power, h);
    d->power_limit_mw = ask(lib->limit, h);
    d->power_default_mw = ask(lib->default_limit, h);
    unsigned low = 0, high = 0;
    bool bounds = lib->limits && lib->limits(h, &low, &high) == OK;
    d->power_min_mw = bounds ? clamp(low) : HX_UNKNOWN;
    d->power_max_mw = bounds ? clamp(high) : HX_UNKNOWN;
    d->core_c = ask_with(lib->temperature, h, TEMPERATURE_GPU);
    d->memory_c = ask_field(lib, h, FIELD_MEMORY_TEMP);
    d->slowdown_c = ask_with(lib->threshold, h, THRESHOLD_SLOWDOWN);
    d->shutdown_c = ask_with(lib->threshold, h, THRESHOLD_SHUTDOWN);
    d->sm_mhz = ask_with(lib->clock, h, CLOCK_SM);
    d->mem_mhz = ask_with(lib->clock, h, CLOCK_MEM);
    d->max_sm_mhz = ask_with(lib->max_clock, h, CLOCK_SM);
    d->reasons = ask_reasons(lib, h);
    d->link_gen = ask(lib->link_gen, h);
    d->link_gen_max = ask(lib->link_gen_max, h);
    d->link_width = ask(lib->link_width, h);
    d->link_width_max = ask(lib->link_width_max, h);
    int32_t replays = ask(lib->replays, h);
    d->replays = replays == HX_UNKNOWN ? -1 : replays;
    d->util_pct = ask_util(lib, h);
}

static int32_t device_count(struct hx_nvml_library *lib)
{
    unsigned n = 0;
    if (lib->count(&n) != OK)
        return 0;
    return n > HX_NVML_DEVICES ? HX_NVML_DEVICES : (int32_t)n;
}

void hx_nvml_library_read(struct hx_nvml_library *lib, struct hx_nvml_snapshot *out)
{
    if (lib->driver_version(out->driver, sizeof(out->driver)) != OK)
        out->driver[0] = '\0';
    out->driver[sizeof(out->driver) - 1] = '\0';
    int32_t n = device_count(lib);
    handle h[HX_NVML_DEVICES];
    int32_t used = 0;
    for (int32_t i = 0; i < n; i++) {
        if (lib->by_index((unsigned)i, &h[used]) != OK)
            continue;
        read_device(lib, h[used], &out->device[used]);
        used++;
    }
    for (int32_t a = 0; a < HX_NVML_DEVICES; a++) {
        for (int32_t b = 0; b < HX_NVML_DEVICES; b++) {
            int v = 0;
            bool pair = a < used && b < used && a != b;
            out->p2p_read[a][b] =
                pair && lib->p2p && lib->p2p(h[a], h[b], P2P_INDEX_READ, &v) == OK ? v : HX_UNKNOWN;
            out->p2p_write[a][b] =
                pair && lib->p2p && lib->p2p(h[a], h[b], P2P_INDEX_WRITE, &v) == OK ? v
                                                                                    : HX_UNKNOWN;
            out->topology[a][b] =
                pair && lib->topology && lib->topology(h[a], h[b], &v) == OK ? v : HX_UNKNOWN;
        }
    }
    out->n_devices = used;
}

void hx_nvml_load_init(struct hx_nvml_load *load)
{
    memset(load, 0, sizeof(*load));
    load->state = HX_NVML_HUNG; /* until the library has answered */
    for (int i = 0; i < HX_NVML_DEVICES; i++) {
        load->device[i].max_core_c = load->device[i].max_memory_c = HX_UNKNOWN;
        load->device[i].max_power_mw = load->device[i].min_sm_mhz = HX_UNKNOWN;
        load->device[i].max_link_gen = load->device[i].max_link_width = HX_UNKNOWN;
        load->device[i].reasons = -1;
    }
}

static void keep_max(int32_t *to, int32_t v)
{
    if (v != HX_UNKNOWN && (*to == HX_UNKNOWN || v > *to))
        *to = v;
}

void hx_nvml_library_sample(struct hx_nvml_library *lib, int32_t ms, struct hx_nvml_load *load)
{
    int32_t n = device_count(lib);
    int at = load->n_samples;
    if (at == HX_NVML_SAMPLES) {
        /* The oldest half goes: the window that matters is far shorter. */
        at = HX_NVML_SAMPLES / 2;
        size_t keep = HX_NVML_SAMPLES - (size_t)at;
        memmove(load->sample_ms, load->sample_ms + at, keep * sizeof(load->sample_ms[0]));
        memmove(load->util_pct, load->util_pct + at, keep * sizeof(load->util_pct[0]));
        memmove(load->power_mw, load->power_mw + at, keep * sizeof(load->power_mw[0]));
        at = (int)keep;
    }
    load->sample_ms[at] = ms;
    for (int32_t i = 0; i < n; i++) {
        handle h;
        load->util_pct[at][i] = -1;
        load->power_mw[at][i] = HX_UNKNOWN;
        if (lib->by_index((unsigned)i, &h) != OK)
            continue;
        int32_t util = ask_util(lib, h), power = ask(lib->power, h);
        load->util_pct[at][i] = util == HX_UNKNOWN ? -1 : (int16_t)util;
        load->power_mw[at][i] = power;
        keep_max(&load->device[i].max_power_mw, power);
        keep_max(&load->device[i].max_core_c, ask_with(lib->temperature, h, TEMPERATURE_GPU));
        int32_t memory = ask_field(lib, h, FIELD_MEMORY_TEMP);
        keep_max(&load->device[i].max_memory_c, memory);
        load->device[i].missing_memory_c += memory == HX_UNKNOWN;
        keep_max(&load->device[i].max_link_gen, ask(lib->link_gen, h));
        keep_max(&load->device[i].max_link_width, ask(lib->link_width, h));
        int32_t sm = ask_with(lib->clock, h, CLOCK_SM);
        int32_t *least = &load->device[i].min_sm_mhz;
        if (sm != HX_UNKNOWN && (*least == HX_UNKNOWN || sm < *least))
            *least = sm;
        int64_t reasons = ask_reasons(lib, h);
        if (reasons >= 0)
            load->device[i].reasons =
                (load->device[i].reasons < 0 ? 0 : load->device[i].reasons) | reasons;
    }
    load->n_devices = n;
    load->n_samples = at + 1;
    load->state = HX_NVML_OK;
}

static int find(struct hx_nvml_library *lib, const char *uuid, handle *out, uint32_t *pci_device)
{
    int32_t n = device_count(lib);
    for (int32_t i = 0; i < n; i++) {
        char text[64] = "";
        struct pci_info pci = {0};
        if (lib->by_index((unsigned)i, out) != OK || lib->uuid(*out, text, sizeof(text)) != OK ||
            strcmp(text, uuid) != 0)
            continue;
        int r = lib->pci(*out, &pci);
        if (r != OK)
            return r;
        *pci_device = pci.pci_device;
        return hx_variant_of_device((uint16_t)(pci.pci_device >> 16)) ? OK : HX_NVML_ERROR_FOREIGN;
    }
    return HX_NVML_ERROR_NOT_FOUND;
}

int hx_nvml_library_limit(struct hx_nvml_library *lib, const char *uuid, int watts,
                          uint32_t *pci_device, int32_t *min_mw, int32_t *max_mw)
{
    handle h;
    int r = find(lib, uuid, &h, pci_device);
    if (r != OK)
        return r;
    unsigned low = 0, high = 0;
    if (!lib->limits || !lib->set_limit)
        return NOT_SUPPORTED;
    r = lib->limits(h, &low, &high);
    if (r != OK)
        return r;
    *min_mw = clamp(low);
    *max_mw = clamp(high);
    if (watts * 1000 < *min_mw || watts * 1000 > *max_mw)
        return HX_NVML_ERROR_RANGE;
    return lib->set_limit(h, (unsigned)watts * 1000u);
}

int hx_nvml_library_persist(struct hx_nvml_library *lib, const char *uuid, bool on,
                            uint32_t *pci_device)
{
    handle h;
    int r = find(lib, uuid, &h, pci_device);
    if (r != OK)
        return r;
    return lib->set_persistence ? lib->set_persistence(h, on) : NOT_SUPPORTED;
}
