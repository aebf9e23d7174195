/* Test vectors by name. */
#ifndef TESTS_UNIT_BACKEND_VECTORS_H
#define TESTS_UNIT_BACKEND_VECTORS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "model/safetensors.h"

#define UNUSED __attribute__((unused))

static UNUSED struct hx_st_file *vectors_open(const char *path)
{
    struct hx_st_file *f = NULL;
    struct hx_error err = {0};
    if (hx_st_open(path, &f, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

/* Description of an array; data in *data (free it). NULL: no such array. */
static UNUSED const struct hx_st_tensor *vector(const struct hx_st_file *f, void *data,
                                                const char *fmt, ...)
{
    char name[160];
    struct hx_error err = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    const struct hx_st_tensor *t = hx_st_find(f, name);
    if (!t)
        return NULL;
    void *p = malloc(t->size ? t->size : 1);
    assert_non_null(p);
    if (hx_st_read(f, t, p, &err) < 0)
        fail_msg("%s", err.text);
    memcpy(data, &p, sizeof(p));
    return t;
}

static UNUSED struct hx_tensor tensor(enum hx_dtype dtype, void *data, int n_dims, int64_t a,
                                      int64_t b, int64_t c)
{
    return (struct hx_tensor){.dtype = dtype,
                              .n_dims = n_dims,
                              .ne = {a, n_dims > 1 ? b : 1, n_dims > 2 ? c : 1, 1},
                              .data = data};
}

static UNUSED struct hx_device *device_open(void)
{
    struct hx_device *dev = NULL;
    struct hx_error err = {0};
    const struct hx_backend *be = hx_backend_select("cpu", &err);
    assert_non_null(be);
    assert_int_equal(be->open(0, &dev, &err), 0);
    return dev;
}

static UNUSED void device_close(struct hx_device *dev)
{
    hx_backend_select("cpu", NULL)->close(dev);
}

/* Small deterministic numbers for shapes without a vector. */
static UNUSED uint32_t next_random(uint32_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 17;
    *s ^= *s << 5;
    return *s;
}

#endif
