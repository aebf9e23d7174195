/* Allocations that fail on demand, for one test program: the n-th one from alloc_fail_at(n) on, and
 * a count of what is still held. Not under the sanitizers, which bring their own allocator. */
#ifndef HX_TEST_ALLOC_H
#define HX_TEST_ALLOC_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HX_TEST_ALLOC 0
#else
#define HX_TEST_ALLOC 1

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static atomic_long alloc_left = -1; /* successful allocations until the failing one; -1: never */
static atomic_long alloc_held;
static atomic_bool alloc_failed;

static bool alloc_refuse(void)
{
    if (alloc_left < 0)
        return false;
    if (alloc_left > 0) {
        alloc_left--;
        return false;
    }
    alloc_failed = true; /* this one and all that follow */
    errno = ENOMEM;
    return true;
}

static void *alloc_count(void *p)
{
    alloc_held += p != NULL;
    return p;
}

void *malloc(size_t n)
{
    return alloc_refuse() ? NULL : alloc_count(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
    return alloc_refuse() ? NULL : alloc_count(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
    if (alloc_refuse())
        return NULL;
    void *q = __libc_realloc(p, n);
    alloc_held += !p && q;
    return q;
}

void *aligned_alloc(size_t align, size_t n)
{
    return alloc_refuse() ? NULL : alloc_count(__libc_memalign(align, n));
}

int posix_memalign(void **out, size_t align, size_t n)
{
    *out = alloc_refuse() ? NULL : alloc_count(__libc_memalign(align, n));
    return *out ? 0 : ENOMEM;
}

void free(void *p)
{
    alloc_held -= p != NULL;
    __libc_free(p);
}

static void alloc_fail_at(long n)
{
    alloc_failed = false;
    alloc_left = n;
}

/* Ends the failing; whether any allocation failed. */
static bool alloc_fail_end(void)
{
    alloc_left = -1;
    return alloc_failed;
}
#endif

#endif
