/* Loading the modules of a slot by path, with the options of its manifest. Only on the machine
 * itself; below a fake root the same list is written out. */
#ifndef HX_BUNDLE_LOAD_H
#define HX_BUNDLE_LOAD_H

#include "bundle/store.h"

#define HX_LOAD_MODULES 2 /* nvidia and nvidia-uvm are all that is needed */

struct hx_load_plan {
    int n;
    struct {
        char name[32];
        char path[512]; /* below the slot */
        char options[512];
    } module[HX_LOAD_MODULES];
    bool firmware; /* the slot brings card firmware */
};

int hx_load_plan_make(const struct hx_store *s, enum hx_slot slot, struct hx_load_plan *out,
                      struct hx_error *err) HX_MUST;
/* Loads them in order and makes the device nodes. A module that is loaded already is fine if it is
 * the one of the slot. */
int hx_load_run(const struct hx_store *s, enum hx_slot slot, const struct hx_load_plan *plan,
                struct hx_error *err) HX_MUST;

#endif
