/* Preloaded into hx-cards by the tests: the process ends at its n-th call that changes the disk
 * (CUT_AT), as in a power cut at that moment. CUT_COUNT names a file that gets the number of calls
 * of an undisturbed run. Children of a fork (the build) are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static long calls;
static pid_t owner;

static void __attribute__((constructor)) begin(void)
{
    owner = getpid();
}

static void __attribute__((destructor)) end(void)
{
    const char *path = getenv("CUT_COUNT");
    FILE *f = path && getpid() == owner ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%ld\n", calls);
        fclose(f);
    }
}

static void step(void)
{
    const char *at = getenv("CUT_AT");
    if (getpid() != owner)
        return;
    calls++;
    if (at && calls == strtol(at, NULL, 10))
        _exit(137);
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

int rename(const char *from, const char *to)
{
    step();
    return REAL("rename", int (*)(const char *, const char *))(from, to);
}

int renameat(int a, const char *from, int b, const char *to)
{
    step();
    return REAL("renameat", int (*)(int, const char *, int, const char *))(a, from, b, to);
}

int fsync(int fd)
{
    step();
    return REAL("fsync", int (*)(int))(fd);
}

int fdatasync(int fd)
{
    step();
    return REAL("fdatasync", int (*)(int))(fd);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    step();
    return REAL("mkdirat", int (*)(int, const char *, mode_t))(dir, path, mode);
}

int unlinkat(int dir, const char *path, int flags)
{
    step();
    return REAL("unlinkat", int (*)(int, const char *, int))(dir, path, flags);
}

int fchmod(int fd, mode_t mode)
{
    step();
    return REAL("fchmod", int (*)(int, mode_t))(fd, mode);
}

ssize_t write(int fd, const void *data, size_t len)
{
    if (fd > 2)
        step();
    return REAL("write", ssize_t(*)(int, const void *, size_t))(fd, data, len);
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at)
{
    step();
    return REAL("pwrite", ssize_t(*)(int, const void *, size_t, off_t))(fd, data, len, at);
}
