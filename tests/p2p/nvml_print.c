/* Prints what the management library says, one value a line, for comparison with nvidia-smi, or
 * sets a value of one card. nvml_print [LIBRARY [limit|persistence UUID NUMBER]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hw/nvml.h"

static int set(char **argv)
{
    struct hx_error err = {0};
    int value = (int)strtol(argv[4], NULL, 10);
    int r = strcmp(argv[2], "limit") == 0
                ? hx_nvml_set_power_limit(argv[1], argv[3], value, 5000, &err)
                : hx_nvml_set_persistence(argv[1], argv[3], value != 0, 5000, &err);
    if (r < 0)
        fprintf(stderr, "nvml_print: %d: %s\n", r, err.text);
    return r < 0;
}

int main(int argc, char **argv)
{
    if (argc == 5)
        return set(argv);
    struct hx_nvml_snapshot *s = calloc(1, sizeof(*s));
    struct hx_nvml_load *load = calloc(1, sizeof(*load));
    struct hx_error err = {0};
    const char *library = argc > 1 ? argv[1] : NULL;
    if (!s || !load || hx_nvml_snapshot(library, 20000, s, &err) < 0 ||
        hx_nvml_replay(library, 2, 100, 20000, load, &err) < 0) {
        fprintf(stderr, "nvml_print: %s\n", err.text);
        return 1;
    }
    printf("state %s\ndriver %s\ndevices %d\n", hx_nvml_state_name((enum hx_nvml_state)s->state),
           s->driver, s->n_devices);
    for (int i = 0; i < s->n_devices; i++) {
        const struct hx_nvml_device *d = &s->device[i];
        printf("%d uuid %s\n%d name %s\n%d vbios %s\n%d bus %s\n", i, d->uuid, i, d->name, i,
               d->vbios, i, d->bus_id);
        printf("%d ids %08x %08x\n%d memory %d %d %d\n%d bar1 %d\n", i, d->pci_device,
               d->pci_subsystem, i, d->memory_total_mib, d->memory_used_mib, d->memory_reserved_mib,
               i, d->bar1_mib);
        printf("%d ecc %d\n%d persistence %d\n%d recovery %d\n", i, d->ecc, i, d->persistence, i,
               d->recovery);
        printf("%d power %d %d %d %d %d\n", i, d->power_mw, d->power_limit_mw, d->power_default_mw,
               d->power_min_mw, d->power_max_mw);
        printf("%d heat %d %d %d %d\n", i, d->core_c, d->memory_c, d->slowdown_c, d->shutdown_c);
        printf("%d clocks %d %d %d\n%d reasons %lld\n", i, d->sm_mhz, d->mem_mhz, d->max_sm_mhz, i,
               (long long)d->reasons);
        printf("%d link %d %d %d %d\n%d replays %lld\n%d util %d\n", i, d->link_gen,
               d->link_gen_max, d->link_width, d->link_width_max, i, (long long)d->replays, i,
               d->util_pct);
        for (int j = 0; j < s->n_devices; j++)
            if (i != j)
                printf("%d to %d: %d %d %d\n", i, j, s->p2p_read[i][j], s->p2p_write[i][j],
                       s->topology[i][j]);
        printf("%d load %d %d %d\n", i, load->device[i].max_core_c, load->device[i].max_memory_c,
               load->device[i].max_power_mw);
    }
    free(s);
    free(load);
    return 0;
}
