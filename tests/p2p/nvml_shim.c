/* A stand-in for the NVIDIA management library: answers from nvml.json beside itself. A copy whose
 * file name contains "load" answers what the cards say under load. "HANG" as result of
 * initialisation never returns. Settings are written to nvml-set.txt beside it and read back. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"

#define EXPORT __attribute__((visibility("default")))

#define OK            0
#define INVALID       2
#define NOT_SUPPORTED 3
#define NOT_FOUND     6
#define N_DEVICES     16

typedef struct shim_device *handle;

struct shim_device {
    struct hx_jv json, load;
    unsigned index;
    unsigned n_util; /* calls so far: index into recorded samples */
};

static struct hx_json *doc;
static struct shim_device devices[N_DEVICES];
static unsigned n_devices;
static bool under_load;
static char folder[1024];

static const struct {
    const char *name;
    int code;
} codes[] = {
    {"NVML_SUCCESS", 0},
    {"NVML_ERROR_NOT_SUPPORTED", 3},
    {"NVML_ERROR_NO_PERMISSION", 4},
    {"NVML_ERROR_DRIVER_NOT_LOADED", 9},
    {"NVML_ERROR_TIMEOUT", 10},
    {"NVML_ERROR_GPU_IS_LOST", 15},
    {"NVML_ERROR_LIB_RM_VERSION_MISMATCH", 18},
    {"NVML_ERROR_UNKNOWN", 999},
};

static int code_of(struct hx_jv v)
{
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (hx_jv_str_is(v, codes[i].name))
            return codes[i].code;
    return 999;
}

static struct hx_jv get2(struct hx_jv v, const char *a, const char *b)
{
    return hx_jv_get(hx_jv_get(v, a), b);
}

static struct hx_jv at(struct hx_jv list, unsigned i)
{
    struct hx_jv v = hx_jv_first(list);
    while (v.doc && i--)
        v = hx_jv_next(v);
    return v;
}

/* A number times scale; NOT_SUPPORTED if it is null or absent. */
static int number(struct hx_jv v, double scale, unsigned *out)
{
    double d;
    if (!hx_jv_double(v, &d) || d < 0)
        return NOT_SUPPORTED;
    *out = (unsigned)(d * scale + 0.5);
    return OK;
}

static int text(struct hx_jv v, char *out, unsigned size)
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    if (!s)
        return NOT_SUPPORTED;
    snprintf(out, size, "%.*s", (int)n, s);
    return OK;
}

static bool open_json(void)
{
    Dl_info info;
    char path[1100], *data;
    size_t len;
    if (!dladdr((void *)&open_json, &info) || !info.dli_fname)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    const char *name = slash ? slash + 1 : info.dli_fname;
    under_load = strstr(name, "load") != NULL;
    snprintf(folder, sizeof(folder), "%.*s", (int)(name - info.dli_fname), info.dli_fname);
    snprintf(path, sizeof(path), "%snvml.json", folder);
    if (hx_file_read(path, 1 << 20, &data, &len, NULL) < 0)
        return false;
    struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    int r = hx_json_parse(data, len, &limits, &doc, NULL);
    free(data);
    return r == 0;
}

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlInit_v2(void)
{
    if (!open_json())
        return 999;
    struct hx_jv root = hx_json_root(doc), init = get2(root, "system", "init");
    if (hx_jv_str_is(init, "HANG"))
        for (;;)
            pause();
    int code = code_of(init);
    if (code != OK)
        return code;
    for (struct hx_jv d = hx_jv_first(hx_jv_get(root, "devices")); d.doc && n_devices < N_DEVICES;
         d = hx_jv_next(d)) {
        devices[n_devices] = (struct shim_device){
            d, under_load ? hx_jv_get(d, "under_load") : HX_JV_NONE, n_devices, 0};
        n_devices++;
    }
    return OK;
}

EXPORT int nvmlShutdown(void);
EXPORT int nvmlShutdown(void)
{
    hx_json_free(doc);
    doc = NULL;
    n_devices = 0;
    return OK;
}

EXPORT const char *nvmlErrorString(int code);
EXPORT const char *nvmlErrorString(int code)
{
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (codes[i].code == code)
            return codes[i].name;
    return "unlisted";
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size);
EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    return text(get2(hx_json_root(doc), "system", "driver"), out, size);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out);
EXPORT int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = n_devices;
    return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, handle *out);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, handle *out)
{
    if (i >= n_devices)
        return INVALID;
    *out = &devices[i];
    return OK;
}

#define TEXT_CALL(symbol, key)                                                                     \
    EXPORT int symbol(handle h, char *out, unsigned size);                                         \
    EXPORT int symbol(handle h, char *out, unsigned size)                                          \
    {                                                                                              \
        return text(hx_jv_get(h->json, key), out, size);                                           \
    }
TEXT_CALL(nvmlDeviceGetUUID, "uuid")
TEXT_CALL(nvmlDeviceGetName, "name")
TEXT_CALL(nvmlDeviceGetVbiosVersion, "vbios")

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
};

static unsigned hex_of(struct hx_jv v)
{
    char word[32] = "";
    (void)text(v, word, sizeof(word));
    return (unsigned)strtoul(word, NULL, 16);
}

EXPORT int nvmlDeviceGetPciInfo_v3(handle h, struct pci_info *out);
EXPORT int nvmlDeviceGetPciInfo_v3(handle h, struct pci_info *out)
{
    struct hx_jv pci = hx_jv_get(h->json, "pci");
    memset(out, 0, sizeof(*out));
    out->pci_device = hex_of(hx_jv_get(pci, "pciDeviceId"));
    out->pci_subsystem = hex_of(hx_jv_get(pci, "pciSubSystemId"));
    return text(hx_jv_get(pci, "busId"), out->bus_id, sizeof(out->bus_id));
}

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(handle h, struct memory_v2 *out);
EXPORT int nvmlDeviceGetMemoryInfo_v2(handle h, struct memory_v2 *out)
{
    struct hx_jv m = hx_jv_get(h->json, "memory_mib");
    unsigned total = 0, reserved = 0, used = 0;
    if (out->version != (sizeof(*out) | 2u << 24))
        return INVALID;
    if (number(hx_jv_get(m, "total"), 1, &total) != OK)
        return NOT_SUPPORTED;
    (void)number(hx_jv_get(m, "reserved"), 1, &reserved);
    (void)number(hx_jv_get(m, "used"), 1, &used);
    out->total = (unsigned long long)total << 20;
    out->reserved = (unsigned long long)reserved << 20;
    out->used = (unsigned long long)used << 20;
    out->free = out->total - out->reserved - out->used;
    return OK;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(handle h, unsigned long long out[3]);
EXPORT int nvmlDeviceGetBAR1MemoryInfo(handle h, unsigned long long out[3])
{
    unsigned v = 0;
    int r = number(hx_jv_get(h->json, "bar1_mib"), 1, &v);
    out[0] = out[1] = (unsigned long long)v << 20;
    out[2] = 0;
    return r;
}

EXPORT int nvmlDeviceGetEccMode(handle h, unsigned *now, unsigned *pending);
EXPORT int nvmlDeviceGetEccMode(handle h, unsigned *now, unsigned *pending)
{
    struct hx_jv v = hx_jv_get(h->json, "ecc");
    if (!hx_jv_str_is(v, "enabled") && !hx_jv_str_is(v, "disabled"))
        return code_of(v);
    *now = *pending = hx_jv_str_is(v, "enabled");
    return OK;
}

#define NUMBER_CALL(symbol, where, scale)                                                          \
    EXPORT int symbol(handle h, unsigned *out);                                                    \
    EXPORT int symbol(handle h, unsigned *out)                                                     \
    {                                                                                              \
        return number(where, scale, out);                                                          \
    }
NUMBER_CALL(nvmlDeviceGetPersistenceMode, hx_jv_get(h->json, "persistence"), 1)
NUMBER_CALL(nvmlDeviceGetPowerManagementDefaultLimit, get2(h->json, "power_w", "default"), 1000)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkGeneration, get2(h->json, "pcie", "gen"), 1)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, get2(h->json, "pcie", "gen_max"), 1)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkWidth, get2(h->json, "pcie", "width"), 1)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, get2(h->json, "pcie", "width_max"), 1)
NUMBER_CALL(nvmlDeviceGetPcieReplayCounter, get2(h->json, "pcie", "replay"), 1)

/* Recorded samples of a stuck all-reduce, by device. */
static struct hx_jv hang_of(handle h)
{
    struct hx_jv list = get2(hx_json_root(doc), "hang_samples", "devices");
    return under_load ? at(list, h->index) : HX_JV_NONE;
}

EXPORT int nvmlDeviceGetUtilizationRates(handle h, unsigned out[2]);
EXPORT int nvmlDeviceGetUtilizationRates(handle h, unsigned out[2])
{
    struct hx_jv recorded = at(hx_jv_get(hang_of(h), "util_pct"), h->n_util++);
    out[1] = 0;
    return number(recorded.doc ? recorded : hx_jv_get(h->json, "util_pct"), 1, &out[0]);
}

EXPORT int nvmlDeviceGetPowerUsage(handle h, unsigned *out);
EXPORT int nvmlDeviceGetPowerUsage(handle h, unsigned *out)
{
    struct hx_jv recorded =
        h->n_util ? at(hx_jv_get(hang_of(h), "power_w"), h->n_util - 1) : HX_JV_NONE;
    struct hx_jv load = hx_jv_get(h->load, "power");
    return number(recorded.doc ? recorded
                  : load.doc   ? load
                               : get2(h->json, "power_w", "usage"),
                  1000, out);
}

static bool setting(handle h, const char *what, unsigned *out)
{
    char path[1100], line[256], uuid[64] = "", word[32], whose[64];
    unsigned v;
    bool found = false;
    snprintf(path, sizeof(path), "%snvml-set.txt", folder);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    (void)text(hx_jv_get(h->json, "uuid"), uuid, sizeof(uuid));
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "%31s %63s %u", word, whose, &v) == 3 && !strcmp(word, what) &&
            !strcmp(whose, uuid)) {
            *out = v;
            found = true;
        }
    fclose(f);
    return found;
}

static int write_setting(handle h, const char *what, unsigned v)
{
    char path[1100], uuid[64] = "";
    snprintf(path, sizeof(path), "%snvml-set.txt", folder);
    (void)text(hx_jv_get(h->json, "uuid"), uuid, sizeof(uuid));
    FILE *f = fopen(path, "a");
    if (!f)
        return 4;
    fprintf(f, "%s %s %u\n", what, uuid, v);
    fclose(f);
    return OK;
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(handle h, unsigned *out);
EXPORT int nvmlDeviceGetEnforcedPowerLimit(handle h, unsigned *out)
{
    return setting(h, "limit", out) ? OK : number(get2(h->json, "power_w", "enforced"), 1000, out);
}

EXPORT int nvmlDeviceSetPowerManagementLimit(handle h, unsigned mw);
EXPORT int nvmlDeviceSetPowerManagementLimit(handle h, unsigned mw)
{
    return write_setting(h, "limit", mw);
}

EXPORT int nvmlDeviceSetPersistenceMode(handle h, unsigned on);
EXPORT int nvmlDeviceSetPersistenceMode(handle h, unsigned on)
{
    return write_setting(h, "persistence", on);
}

EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(handle h, unsigned *low, unsigned *high);
EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(handle h, unsigned *low, unsigned *high)
{
    int r = number(get2(h->json, "power_w", "min"), 1000, low);
    return r != OK ? r : number(get2(h->json, "power_w", "max"), 1000, high);
}

EXPORT int nvmlDeviceGetTemperature(handle h, int sensor, unsigned *out);
EXPORT int nvmlDeviceGetTemperature(handle h, int sensor, unsigned *out)
{
    struct hx_jv load = hx_jv_get(h->load, "core");
    if (sensor != 0)
        return INVALID;
    return number(load.doc ? load : get2(h->json, "temp_c", "core"), 1, out);
}

EXPORT int nvmlDeviceGetTemperatureThreshold(handle h, int which, unsigned *out);
EXPORT int nvmlDeviceGetTemperatureThreshold(handle h, int which, unsigned *out)
{
    if (which != 0 && which != 1)
        return INVALID;
    return number(get2(h->json, "temp_c", which == 0 ? "shutdown" : "slowdown"), 1, out);
}

EXPORT int nvmlDeviceGetClockInfo(handle h, int which, unsigned *out);
EXPORT int nvmlDeviceGetClockInfo(handle h, int which, unsigned *out)
{
    struct hx_jv load = hx_jv_get(h->load, "sm_mhz");
    if (which == 2)
        return number(get2(h->json, "clocks_mhz", "mem"), 1, out);
    return which != 1 ? INVALID
                      : number(load.doc ? load : get2(h->json, "clocks_mhz", "sm"), 1, out);
}

EXPORT int nvmlDeviceGetMaxClockInfo(handle h, int which, unsigned *out);
EXPORT int nvmlDeviceGetMaxClockInfo(handle h, int which, unsigned *out)
{
    return which != 1 ? NOT_SUPPORTED : number(get2(h->json, "clocks_mhz", "max_sm"), 1, out);
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(handle h, unsigned long long *out);
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(handle h, unsigned long long *out)
{
    struct hx_jv load = hx_jv_get(h->load, "event_reasons");
    *out = hex_of(load.doc ? load : hx_jv_get(h->json, "event_reasons"));
    return OK;
}

struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, result;
    union {
        unsigned u;
        unsigned long long ull;
    } value;
};

EXPORT int nvmlDeviceGetFieldValues(handle h, int n, struct field_value *v);
EXPORT int nvmlDeviceGetFieldValues(handle h, int n, struct field_value *v)
{
    static const char *const actions[] = {"None", "Reset", "Reboot", "Drain", "Drain and Reset"};
    for (int i = 0; i < n; i++) {
        v[i].type = 1;
        v[i].result = NOT_SUPPORTED;
        if (v[i].field == 82) {
            struct hx_jv load = hx_jv_get(h->load, "memory");
            v[i].result =
                number(load.doc ? load : get2(h->json, "temp_c", "memory"), 1, &v[i].value.u);
        } else if (v[i].field == 230) {
            for (unsigned a = 0; a < 5; a++) {
                if (hx_jv_str_is(hx_jv_get(h->json, "recovery_action"), actions[a])) {
                    v[i].value.u = a;
                    v[i].result = OK;
                }
            }
        }
    }
    return OK;
}

static struct hx_jv cell(struct hx_jv matrix, handle a, handle b)
{
    return at(at(matrix, a->index), b->index);
}

EXPORT int nvmlDeviceGetP2PStatus(handle a, handle b, int index, int *out);
EXPORT int nvmlDeviceGetP2PStatus(handle a, handle b, int index, int *out)
{
    static const char *const kinds[] = {"read", "write", "nvlink", "atomics", "prop"};
    static const char *const states[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"};
    if (index < 0 || index > 4)
        return INVALID;
    struct hx_jv v = cell(get2(hx_json_root(doc), "p2p_status", kinds[index]), a, b);
    for (int i = 0; i < 7; i++) {
        if (hx_jv_str_is(v, states[i])) {
            *out = i;
            return OK;
        }
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(handle a, handle b, int *out);
EXPORT int nvmlDeviceGetTopologyCommonAncestor(handle a, handle b, int *out)
{
    static const struct {
        const char *name;
        int level;
    } levels[] = {{"PIX", 10}, {"PXB", 20}, {"PHB", 30}, {"NODE", 40}, {"SYS", 50}};
    struct hx_jv v = cell(hx_jv_get(hx_json_root(doc), "topology"), a, b);
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (hx_jv_str_is(v, levels[i].name)) {
            *out = levels[i].level;
            return OK;
        }
    }
    return NOT_FOUND;
}
