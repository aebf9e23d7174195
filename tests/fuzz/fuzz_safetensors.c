/* safetensors header: what is accepted lies inside the file, ordered, without overlap. The first
 * four bytes are the size of the data area. */
#include "fuzz.h"

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    uint32_t area;
    struct hx_st_file *f = NULL;
    struct hx_error err = {0};
    memcpy(&area, data, 4);
    size_t len = size - 4;
    uint64_t begin = 8 + len, end = begin + area;
    int r = hx_st_parse("fuzz.safetensors", data + 4, len, end, &f, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        EXPECT(!f);
        return 0;
    }
    EXPECT(hx_st_fd(f) == -1);
    uint64_t at = begin;
    for (size_t i = 0; i < hx_st_count(f); i++) {
        const struct hx_st_tensor *t = hx_st_at(f, i);
        uint64_t n = hx_dtype_size(t->dtype);
        EXPECT(t->n_dims >= 0 && t->n_dims <= HX_ST_MAX_DIMS);
        for (int d = 0; d < t->n_dims; d++)
            n *= (uint64_t)t->ne[d];
        EXPECT(n == t->size && t->offset >= at && t->offset <= end && t->size <= end - t->offset);
        EXPECT(hx_st_find(f, t->name) == t);
        at = t->offset + t->size;
    }
    hx_st_close(f);
    return 0;
}
