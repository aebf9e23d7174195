/* The build kit that an owner brings on a stick: only the one that came with this system is used.
 */
#ifndef HX_SETUP_KIT_H
#define HX_SETUP_KIT_H

#include <hx/error.h>

#include "hw/root.h"

/* kit: a path on the machine; beside it lie KIT.manifest and KIT.manifest.sig. The signature is the
 * release key's, product and version are right, and the kit has the manifest's size and hash; it is
 * read whole. -ENOENT: one of the files is missing. */
int hx_kit_check(const struct hx_root *root, const char *kit, const char *version,
                 struct hx_error *err) HX_MUST;

#endif
