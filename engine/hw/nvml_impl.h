/* Inside of hw/nvml: what the child process does. */
#ifndef HX_HW_NVML_IMPL_H
#define HX_HW_NVML_IMPL_H

#include "hw/nvml.h"

struct hx_nvml_library;

/* Opens and initialises. On failure *state and text say why; nothing is left open. */
int hx_nvml_library_open(const char *path, struct hx_nvml_library **out, int32_t *state,
                         int32_t *code, char *text, size_t size);
void hx_nvml_library_close(struct hx_nvml_library *lib);
void hx_nvml_library_read(struct hx_nvml_library *lib, struct hx_nvml_snapshot *out);
/* Adds one sample at time ms. */
void hx_nvml_library_sample(struct hx_nvml_library *lib, int32_t ms, struct hx_nvml_load *load);
void hx_nvml_load_init(struct hx_nvml_load *load);
/* NVML's own codes: 0 is success. *pci_device of the card with this UUID. */
int hx_nvml_library_limit(struct hx_nvml_library *lib, const char *uuid, int watts,
                          uint32_t *pci_device, int32_t *min_mw, int32_t *max_mw);
int hx_nvml_library_persist(struct hx_nvml_library *lib, const char *uuid, bool on,
                            uint32_t *pci_device);
const char *hx_nvml_library_error(struct hx_nvml_library *lib, int code);

#define HX_NVML_ERROR_NOT_FOUND (-1001) /* no such card */
#define HX_NVML_ERROR_FOREIGN   (-1002) /* not a CMP 170HX */
#define HX_NVML_ERROR_RANGE     (-1003)

#endif
