/* Small arrays that a pass makes on the host and sends to the device in one piece: two buffers of
 * one layout. */
#ifndef HX_MODEL_ARRAYS_H
#define HX_MODEL_ARRAYS_H

#include "backend/backend.h"

#define HX_ARRAYS_ALIGN 64

struct hx_arrays {
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_buffer *host, *device;
    size_t size, used;
};

/* What an array of n bytes takes. */
static inline size_t hx_arrays_room(size_t n)
{
    return (n + HX_ARRAYS_ALIGN - 1) / HX_ARRAYS_ALIGN * HX_ARRAYS_ALIGN;
}

/* size: the sum of hx_arrays_room of the most that is ever taken. The caller calls hx_arrays_done
 * in any case. */
int hx_arrays_init(struct hx_arrays *a, const struct hx_backend *be, struct hx_device *dev,
                   size_t size, struct hx_error *err) HX_MUST;
void hx_arrays_done(struct hx_arrays *a);
void hx_arrays_reset(struct hx_arrays *a);
/* n bytes in both buffers: the host address, and the device address in *dev (a pointer of any
 * type). NULL: more than the size. */
void *hx_arrays_take(struct hx_arrays *a, size_t n, void *dev);
/* Host address of what was taken with this device address. */
const void *hx_arrays_host(const struct hx_arrays *a, const void *dev);
/* Everything taken since the reset, to the device. */
int hx_arrays_send(struct hx_arrays *a, struct hx_error *err) HX_MUST;

#endif
