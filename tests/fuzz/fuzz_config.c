/* config.json: refused, or consistent enough for the layer maps and the tensor table. */
#include "fuzz.h"

#include "model/desc.h"

struct count {
    int64_t n;
};

static int each(void *user, const struct hx_tensor_need *need)
{
    struct count *c = user;
    EXPECT(need->n_out > 0 && need->n_in > 0);
    EXPECT(need->name[0] != '\0' && memchr(need->name, 0, sizeof(need->name)));
    return ++c->n >= 20000; /* enough of a huge configuration */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hx_hparams hp;
    static struct hx_maps maps;
    struct hx_error err = {0};
    int r = hx_hparams_parse((const char *)data, size, &hp, &err);
    if (r == 0)
        r = hx_maps_derive(&hp, &maps, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return 0;
    }
    for (int l = 0; l < hp.n_layer; l++)
        EXPECT(maps.kv_source[l] >= -1 && maps.kv_source[l] <= l && maps.topk_source[l] >= -1 &&
               maps.topk_source[l] <= l);
    struct count c = {0};
    hx_tensors_each(&hp, &maps, each, &c);
    EXPECT(c.n > 0);
    return 0;
}
