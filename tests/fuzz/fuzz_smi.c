/* Texts of tools and of the driver: nvidia-smi's table and squares, the bandwidth tool's log,
 * /proc/driver/nvidia. The first byte chooses. */
#include "fuzz.h"

#include "bench_log.h"
#include "hw/driver.h"
#include "hw/smi.h"

static void query(const char *s, size_t size)
{
    static struct hx_nvml_snapshot snapshot;
    struct hx_error err = {0};
    int r = hx_smi_parse_query(s, size, &snapshot, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return;
    }
    EXPECT(snapshot.n_devices >= 0 && snapshot.n_devices <= HX_NVML_DEVICES);
    for (int i = 0; i < snapshot.n_devices; i++) {
        const struct hx_nvml_device *d = &snapshot.device[i];
        EXPECT(memchr(d->uuid, 0, sizeof(d->uuid)) && memchr(d->name, 0, sizeof(d->name)));
        EXPECT(d->memory_total_mib == HX_UNKNOWN || d->memory_total_mib >= 0);
        EXPECT(d->ecc == HX_UNKNOWN || (d->ecc >= -1 && d->ecc <= 1));
    }
}

static void square(const char *s, size_t size)
{
    static hx_smi_cells cell;
    struct hx_error err = {0};
    int n = -1, r = hx_smi_parse_matrix(s, size, &n, cell, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return;
    }
    EXPECT(n >= 1 && n <= HX_NVML_DEVICES);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            EXPECT(cell[i][j][0] && memchr(cell[i][j], 0, sizeof(cell[i][j])));
}

static void log_of_rates(const char *s, size_t size)
{
    static struct hx_bench_log log;
    struct hx_error err = {0};
    int r = hx_bench_log_parse(s, size, &log, &err);
    if (r < 0)
        expect_refusal(r, &err);
    else
        EXPECT(log.n >= 2 && log.n <= HX_BENCH_CARDS && log.min_on >= 0 && log.ratio_on_off >= 0);
}

static void driver(const char *s, size_t size)
{
    struct hx_driver_version v;
    char value[16], missing[24];
    bool good = hx_driver_version_parse(s, size, &v);
    EXPECT(good == (v.version[0] != '\0'));
    (void)hx_driver_param(s, size, "RegistryDwords", value, sizeof(value));
    EXPECT(strlen(value) < sizeof(value));
    bool all = hx_registry_has("A=1;B=0x2", s, missing, sizeof(missing));
    EXPECT(!all || !missing[0]);
    EXPECT(strlen(missing) < sizeof(missing));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[4])(const char *, size_t) = {query, square, log_of_rates, driver};
    if (size == 0)
        return 0;
    char *s = malloc(size);
    EXPECT(s);
    memcpy(s, data + 1, size - 1);
    s[size - 1] = '\0';
    kinds[data[0] & 3](s, size - 1);
    free(s);
    return 0;
}
