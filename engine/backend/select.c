/* The one place that knows which back ends this build has. */
#include <string.h>

#include "backend/backend.h"

extern const struct hx_backend hx_backend_cpu;

static const struct hx_backend *const backends[] = {&hx_backend_cpu};

const struct hx_backend *hx_backend_select(const char *name, struct hx_error *err)
{
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    }
    hx_fail(err, -ENODEV, "backend '%s' is not in this build (there is: cpu)", name);
    return NULL;
}
