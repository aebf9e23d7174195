/* Output of nvidia-smi, for machines where the management library itself is missing. */
#ifndef HX_HW_SMI_H
#define HX_HW_SMI_H

#include <stddef.h>

#include "hw/nvml.h"

/* The fields that hx_smi_parse_query knows. */
#define HX_SMI_FIELDS                                                                              \
    "index,uuid,pci.bus_id,pci.device_id,pci.sub_device_id,name,vbios_version,driver_version,"     \
    "memory.total,pcie.link.gen.gpucurrent,pcie.link.gen.max,pcie.link.width.current,"             \
    "power.limit,power.draw,temperature.gpu,temperature.memory,clocks.sm,clocks.mem,"              \
    "persistence_mode,ecc.mode.current,gpu_recovery_action,clocks_event_reasons.active"

/* Text of --query-gpu=... --format=csv, any of the fields in any order, other columns ignored. What
 * is missing or N/A is HX_UNKNOWN. -EINVAL if there is no header line or a row is cut. */
int hx_smi_parse_query(const char *text, size_t len, struct hx_nvml_snapshot *out,
                       struct hx_error *err) HX_MUST;
/* The square of words of `topo -m` or `topo -p2p r` (escape codes are skipped) for n devices, into
 * cell[from][to]: at most 7 bytes of each word. -EINVAL if the text has no such square. */
typedef char hx_smi_cells[HX_NVML_DEVICES][HX_NVML_DEVICES][8];
int hx_smi_parse_matrix(const char *text, size_t len, int *n, hx_smi_cells cell,
                        struct hx_error *err) HX_MUST;
int32_t hx_smi_p2p_of_word(const char *word);      /* enum hx_nvml_p2p */
int32_t hx_smi_topology_of_word(const char *word); /* enum hx_nvml_topology; HX_UNKNOWN: NV18 */

#endif
