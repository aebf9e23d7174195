/* Joins of one rank that runs alone: no partner, but the time of a link. The values are those of
 * the rank's own share, so they mean nothing; what a step costs is measured. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm.h"

struct delay {
    struct hx_comm comm;
    struct hx_comm_link link;
    struct hx_comm_spent spent;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double hx_comm_link_seconds(const struct hx_comm_link *l, int n_ranks, size_t bytes)
{
    double n = n_ranks;
    if (n_ranks < 2)
        return 0;
    if (l->fixed_us >= 0)
        return l->factor * l->fixed_us * 1e-6;
    return l->factor * (2 * l->phase_us * 1e-6 + 2 * (n - 1) / n * (double)bytes / (l->gb_s * 1e9));
}

static int pass_time(struct delay *d, const struct hx_backend *be, struct hx_device *dev,
                     size_t bytes, struct hx_error *err)
{
    double t = hx_comm_link_seconds(&d->link, d->comm.n_ranks, bytes);
    int r = be->spin ? be->spin(dev, t, err) : be->sync(dev, err);
    for (double end = now() + t; r == 0 && !be->spin && now() < end;)
        ;
    d->spent.n_joins++;
    d->spent.bytes += (int64_t)bytes;
    d->spent.seconds += t;
    return r;
}

static int delay_sum(struct hx_comm *c, const struct hx_backend *be, struct hx_device *dev,
                     const struct hx_tensor *part, struct hx_tensor *y, struct hx_error *err)
{
    (void)part;
    size_t bytes = 2;
    for (int i = 0; i < y->n_dims; i++)
        bytes *= (size_t)y->ne[i];
    return pass_time((struct delay *)c, be, dev, bytes, err);
}

static int delay_gather(struct hx_comm *c, const struct hx_backend *be, struct hx_device *dev,
                        const struct hx_tensor *one, struct hx_tensor *all, struct hx_error *err)
{
    size_t rows = (size_t)one->ne[0], width = (size_t)one->ne[1] * 4, n = (size_t)c->n_ranks;
    int r = 0;
    /* Its own columns stand for all; queued copies are few, whatever row they end up in. */
    for (size_t k = 0; r == 0 && be->spin && k < n; k++)
        r = be->copy(dev, (uint8_t *)all->data + k * rows * width, one->data, rows * width, err);
    for (size_t t = 0; r == 0 && !be->spin && t < rows; t++)
        for (size_t k = 0; r == 0 && k < n; k++)
            r = be->copy(dev, (uint8_t *)all->data + (t * n + k) * width,
                         (const uint8_t *)one->data + t * width, width, err);
    return r < 0 ? r : pass_time((struct delay *)c, be, dev, rows * width, err);
}

static int delay_best(struct hx_comm *c, const struct hx_backend *be, struct hx_device *dev,
                      const struct hx_tensor *logits, int k, struct hx_tensor *tokens,
                      struct hx_error *err)
{
    (void)k;
    (void)tokens;
    return pass_time((struct delay *)c, be, dev, (size_t)logits->ne[0] * 8, err);
}

static void delay_stop(struct hx_comm *c, const struct hx_error *why)
{
    (void)c;
    (void)why;
}

static void delay_close(struct hx_comm *c)
{
    free(c);
}

static const struct hx_comm_ops ops = {
    .name = "delay",
    .sum = delay_sum,
    .gather = delay_gather,
    .best = delay_best,
    .stop = delay_stop,
    .close = delay_close,
};

int hx_comm_delay_open(int rank, int n_ranks, const struct hx_comm_link *link, struct hx_comm **out,
                       struct hx_error *err)
{
    if (rank < 0 || rank >= n_ranks || link->factor < 0 ||
        (link->fixed_us < 0 && (link->phase_us < 0 || link->gb_s <= 0)))
        return hx_fail(err, -EINVAL, "link model of rank %d of %d: a time or rate is negative",
                       rank, n_ranks);
    struct delay *d = calloc(1, sizeof(*d));
    if (!d)
        return hx_fail(err, -ENOMEM, "out of memory");
    d->comm = (struct hx_comm){.ops = &ops, .rank = rank, .n_ranks = n_ranks, .recordable = true};
    d->link = *link;
    *out = &d->comm;
    return 0;
}

struct hx_comm_spent hx_comm_delay_spent(struct hx_comm *c)
{
    struct delay *d = (struct delay *)c;
    struct hx_comm_spent s = d->spent;
    d->spent = (struct hx_comm_spent){0};
    return s;
}

void hx_comm_delay_set(struct hx_comm *c, const struct hx_comm_link *link)
{
    ((struct delay *)c)->link = *link;
    c->version++;
}
