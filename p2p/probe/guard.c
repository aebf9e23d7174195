/* The management library numbers cards in its own way, so they are matched by UUID. */
#include "probe/guard.h"

#include <stdlib.h>
#include <string.h>

#include "hw/nvml.h"

#define SNAPSHOT_MS 20000
#define INTERVAL_MS 500

struct hx_probe_guard {
    struct hx_nvml_sampler *sampler;
    int card[HX_NVML_DEVICES]; /* probe's number of the library's device, -1: none */
};

int hx_probe_guard_start(const char *library, const struct hx_probe_shared *sh,
                         struct hx_probe_guard **out, struct hx_error *err)
{
    struct hx_nvml_snapshot *seen = malloc(sizeof(*seen));
    struct hx_probe_guard *g = calloc(1, sizeof(*g));
    int r = seen && g ? 0 : hx_fail(err, -ENOMEM, "temperature guard: out of memory");
    if (r == 0)
        r = hx_nvml_snapshot(library, SNAPSHOT_MS, seen, err);
    /* A library that hangs once is not asked again. */
    if (r == 0 && seen->state == HX_NVML_OK)
        r = hx_nvml_sampler_start(library, INTERVAL_MS, &g->sampler, err);
    for (int i = 0; r == 0 && i < HX_NVML_DEVICES; i++) {
        g->card[i] = -1;
        for (int d = 0; i < seen->n_devices && d < sh->result.n_devices; d++) {
            if (strcmp(seen->device[i].uuid, sh->result.device[d].uuid) == 0)
                g->card[i] = d;
        }
    }
    free(seen);
    if (r != 0)
        free(g);
    else
        *out = g;
    return r;
}

static int higher(int known, int32_t seen)
{
    return seen != HX_UNKNOWN && seen > known ? seen : known;
}

static void note(const struct hx_probe_guard *g, const struct hx_nvml_load *load,
                 struct hx_probe_shared *sh)
{
    for (int i = 0; i < load->n_devices && i < HX_NVML_DEVICES; i++) {
        if (g->card[i] < 0)
            continue;
        struct hx_probe_pattern *p = &sh->result.device[g->card[i]].pattern;
        p->max_core_c = higher(p->max_core_c, load->device[i].max_core_c);
        p->max_memory_c = higher(p->max_memory_c, load->device[i].max_memory_c);
        if (p->max_core_c >= HX_GUARD_CORE_C || p->max_memory_c >= HX_GUARD_MEMORY_C)
            atomic_store(&sh->hot[g->card[i]], 1);
    }
}

void hx_probe_guard_look(const struct hx_probe_guard *g, struct hx_probe_shared *sh)
{
    struct hx_nvml_load load;
    if (!g || !g->sampler)
        return;
    hx_nvml_sampler_look(g->sampler, &load);
    note(g, &load, sh);
}

void hx_probe_guard_stop(struct hx_probe_guard *g, struct hx_probe_shared *sh)
{
    struct hx_nvml_load load;
    if (!g)
        return;
    if (g->sampler) {
        hx_nvml_sampler_stop(g->sampler, &load);
        note(g, &load, sh);
    }
    free(g);
}
