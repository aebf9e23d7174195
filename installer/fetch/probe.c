#include "fetch/probe.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rand.h"
#include "fetch/token.h"

#define BLOCK ((size_t)8 << 20)
#define RANGE ((uint64_t)1 << 20)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- disk ------------------------------------------------------------------------------------ */

/* A file that is gone as soon as it is closed. */
static int open_nameless(const char *models, struct hx_error *err)
{
    char dir[1024];
    snprintf(dir, sizeof(dir), "%s", models);
    for (;;) {
        int fd = open(dir, O_TMPFILE | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
        if (fd < 0 && errno == EINVAL)
            fd = open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
        char *slash = strrchr(dir, '/');
        if (fd >= 0 || errno != ENOENT || !slash || slash == dir)
            return fd >= 0 ? fd : hx_fail_errno(err, errno, "cannot write to %s", dir);
        *slash = '\0';
    }
}

int hx_probe_disk(const char *models, uint64_t n_bytes, double *rate, struct hx_error *err)
{
    int fd = open_nameless(models, err), r = 0;
    if (fd < 0)
        return fd;
    void *block = NULL;
    if (posix_memalign(&block, 4096, BLOCK) != 0) {
        close(fd);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    /* Drives may be quicker with data that shrinks. */
    struct hx_rng rng;
    hx_rng_seed(&rng, 1);
    for (size_t i = 0; i < BLOCK / 8; i++)
        ((uint64_t *)block)[i] = hx_rng_next(&rng);
    double start = now();
    uint64_t at = 0;
    for (; r == 0 && at < n_bytes; at += BLOCK) {
        ssize_t n = pwrite(fd, block, BLOCK, (off_t)at);
        if (n != (ssize_t)BLOCK)
            r = hx_fail_errno(err, n < 0 ? errno : EIO, "cannot write to %s", models);
    }
    if (r == 0 && fdatasync(fd) < 0)
        r = hx_fail_errno(err, errno, "cannot sync to %s", models);
    if (r == 0)
        *rate = (double)at / (now() - start);
    free(block);
    close(fd);
    return r;
}

/* ---- sources --------------------------------------------------------------------------------- */

static int probe_source(struct hx_transfer *t, const struct hx_fetch_conf *conf,
                        const struct hx_plan *plan, struct hx_probe_source *s, struct hx_error *err)
{
    const struct hx_plan_file *largest = NULL;
    uint64_t bytes = 0;
    uint8_t *data = NULL;
    size_t n = 0;
    for (size_t i = 0; i < plan->n_files; i++) {
        const struct hx_plan_file *p = &plan->files[i];
        if (p->source != s->source)
            continue;
        bytes += p->fetched_bytes;
        if (!largest || p->lock->size > largest->lock->size)
            largest = p;
    }
    if (!largest)
        return 0;
    double start = now();
    int r = hx_transfer_get(t, s->source->repo, s->source->commit, largest->lock->path, 0, RANGE,
                            NULL, &data, &n, err);
    free(data);
    if (r < 0)
        return hx_wrap(err, r, "probe of %s", s->source->repo);
    double connections = (double)conf->connections;
    s->rate = (double)n / (now() - start);
    double all = s->rate * connections;
    if (conf->rate > 0 && all > (double)conf->rate)
        all = (double)conf->rate;
    s->hours = (double)bytes / all / 3600;
    return 0;
}

int hx_probe_sources(const struct hx_fetch_conf *conf, const struct hx_plan *plan,
                     struct hx_probe *out, struct hx_error *err)
{
    struct hx_fetch_endpoints endpoints = {0};
    struct hx_transfer_options options;
    struct hx_transfer *t = NULL;
    char *token = NULL;
    int r = hx_fetch_endpoints_parse(conf->endpoints, &endpoints, err);
    if (r == 0)
        r = hx_fetch_token_read(conf->token_file, &token, err);
    if (r == 0) {
        hx_fetch_transfer_options(conf, &endpoints, &options);
        options.token = token;
        options.tries = 3;
        r = hx_transfer_open(&options, &t, err);
    }
    out->n_sources = 0;
    for (size_t i = 0; r == 0 && i < plan->lock->n_sources; i++) {
        struct hx_probe_source *s = &out->source[out->n_sources];
        *s = (struct hx_probe_source){.source = &plan->lock->sources[i]};
        r = probe_source(t, conf, plan, s, err);
        out->n_sources += r == 0 && s->rate > 0;
    }
    hx_transfer_close(t);
    hx_fetch_token_free(token);
    hx_fetch_endpoints_done(&endpoints);
    return r;
}
