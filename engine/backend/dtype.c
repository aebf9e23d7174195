/* Element types: sizes and the names that safetensors headers use. */
#include "backend/backend.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[HX_DTYPE_MAX] = {
    [HX_DTYPE_F32] = {"F32", 4},         [HX_DTYPE_BF16] = {"BF16", 2},
    [HX_DTYPE_F16] = {"F16", 2},         [HX_DTYPE_F8_E4M3] = {"F8_E4M3", 1},
    [HX_DTYPE_F8_E8M0] = {"F8_E8M0", 1}, [HX_DTYPE_I8] = {"I8", 1},
    [HX_DTYPE_U8] = {"U8", 1},           [HX_DTYPE_I16] = {"I16", 2},
    [HX_DTYPE_I32] = {"I32", 4},         [HX_DTYPE_I64] = {"I64", 8},
};

size_t hx_dtype_size(enum hx_dtype t)
{
    return t < HX_DTYPE_MAX ? dtypes[t].size : 0;
}

const char *hx_dtype_name(enum hx_dtype t)
{
    return t < HX_DTYPE_MAX ? dtypes[t].name : "unknown";
}

enum hx_dtype hx_dtype_parse(const char *s, size_t len)
{
    for (int t = 0; t < HX_DTYPE_MAX; t++) {
        if (strlen(dtypes[t].name) == len && memcmp(dtypes[t].name, s, len) == 0)
            return (enum hx_dtype)t;
    }
    /* The unsigned 16-bit words of test data and packed codes are read as I16. */
    if (len == 3 && memcmp(s, "U16", 3) == 0)
        return HX_DTYPE_I16;
    return HX_DTYPE_MAX;
}
