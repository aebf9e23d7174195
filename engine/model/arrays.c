/* Arrays of a pass, host and device side. */
#include "model/arrays.h"

#include <string.h>

int hx_arrays_init(struct hx_arrays *a, const struct hx_backend *be, struct hx_device *dev,
                   size_t size, struct hx_error *err)
{
    *a = (struct hx_arrays){.be = be, .dev = dev, .size = size};
    int r = be->alloc(dev, HX_MEM_PINNED, size, &a->host, err);
    return r < 0 ? r : be->alloc(dev, HX_MEM_DEVICE, size, &a->device, err);
}

void hx_arrays_done(struct hx_arrays *a)
{
    if (a->host)
        a->be->free(a->host);
    if (a->device)
        a->be->free(a->device);
    memset(a, 0, sizeof(*a));
}

void hx_arrays_reset(struct hx_arrays *a)
{
    a->used = 0;
}

void *hx_arrays_take(struct hx_arrays *a, size_t n, void *dev)
{
    if (n > a->size || hx_arrays_room(n) > a->size - a->used)
        return NULL;
    uint8_t *at = (uint8_t *)a->be->address(a->device) + a->used;
    void *host = (uint8_t *)a->be->address(a->host) + a->used;
    memcpy(dev, &at, sizeof(at));
    a->used += hx_arrays_room(n);
    return host;
}

const void *hx_arrays_host(const struct hx_arrays *a, const void *dev)
{
    size_t at = (size_t)((const uint8_t *)dev - (const uint8_t *)a->be->address(a->device));
    return (const uint8_t *)a->be->address(a->host) + at;
}

int hx_arrays_send(struct hx_arrays *a, struct hx_error *err)
{
    return a->be->upload(a->dev, a->be->address(a->device), a->be->address(a->host), a->used, err);
}
