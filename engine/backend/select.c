/* The one place that knows which back ends this build has. */
#include <string.h>

#include "backend/backend.h"

extern const struct hx_backend hx_backend_cpu, hx_backend_cuda, hx_backend_cuda_exact;

#ifdef HX_HAVE_CUDA
#define NAMES "cpu, cuda, cuda-exact"
static const struct hx_backend *const backends[] = {&hx_backend_cpu, &hx_backend_cuda,
                                                    &hx_backend_cuda_exact};
#else
#define NAMES "cpu"
static const struct hx_backend *const backends[] = {&hx_backend_cpu};
#endif

const struct hx_backend *hx_backend_select(const char *name, struct hx_error *err)
{
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    }
    hx_fail(err, -ENODEV, "backend '%s' is not in this build (there is: " NAMES ")", name);
    return NULL;
}
