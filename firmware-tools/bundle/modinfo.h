/* Facts that a kernel module carries (section .modinfo of its ELF file). */
#ifndef HX_BUNDLE_MODINFO_H
#define HX_BUNDLE_MODINFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_MODULE_MAX (512u << 20) /* bytes of a module */

struct hx_modinfo {
    char name[64], vermagic[160], depends[256], srcversion[64], version[64];
    bool is_signed; /* a signature is appended */
};

/* Any bytes are fine. -EINVAL: not a 64-bit x86 module with a .modinfo section. */
int hx_modinfo_parse(const uint8_t *data, size_t len, struct hx_modinfo *out,
                     struct hx_error *err) HX_MUST;
/* Of an open file. */
int hx_modinfo_read(int fd, const char *path, struct hx_modinfo *out, struct hx_error *err) HX_MUST;
/* Whether the module was made for this kernel release. */
bool hx_modinfo_fits(const struct hx_modinfo *info, const char *release);

#endif
