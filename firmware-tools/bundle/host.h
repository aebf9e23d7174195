/* Facts of the machine that a bundle is judged by, from files below the root and the build kit. */
#ifndef HX_BUNDLE_HOST_H
#define HX_BUNDLE_HOST_H

#include "bundle/check.h"
#include "bundle/store.h"

struct hx_host_query {
    const struct hx_root *root;
    const struct hx_commands *commands;
    const struct hx_store *store; /* whose active slot may hold the user-space driver */
    const char *kit;              /* folder of the machine */
    struct hx_root *kit_root;
    const char *kernel; /* release; NULL: the running one */
    struct hx_strings accepted;
    char headers[HX_ROOT_PATH]; /* out: inside the kit, "" = none */
    char release[128];          /* out */
};

/* Finds kernel release and headers. */
int hx_host_query_init(struct hx_host_query *q, struct hx_error *err) HX_MUST;
/* hx_bundle_host_fn; ctx is a struct hx_host_query. */
int hx_host_read(void *ctx, const struct hx_manifest *m, struct hx_bundle_host *h,
                 struct hx_error *err);
/* Version in a name like "libcuda.so.610.43.03"; false if it has none. */
bool hx_library_version(const char *name, char *out, size_t size);

#endif
