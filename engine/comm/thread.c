/* Joins between threads of one process. Each rank puts its message into a buffer of its own and
 * waits until all have; buffers alternate, so that one wait a join is enough: nobody writes a
 * buffer again before everybody has left the join that read it. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/numerics.h"
#include "comm/comm.h"

struct message {
    uint8_t *data;
    size_t size, room;
};

struct hx_comm_group {
    int n_ranks, timeout_ms;
    bool wide;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint64_t n_joins;        /* complete */
    uint64_t *come;          /* [n_ranks] joins that each rank came to */
    struct message *message; /* [n_ranks][2] */
    struct hx_error failed;  /* code 0: no */
};

struct member {
    struct hx_comm comm;
    struct hx_comm_group *g;
    uint64_t n; /* joins so far */
    uint8_t *result;
    size_t room;
};

int hx_comm_group_open(int n_ranks, bool wide, int timeout_ms, struct hx_comm_group **out,
                       struct hx_error *err)
{
    if (n_ranks < 1 || n_ranks > 64 || timeout_ms < 1)
        return hx_fail(err, -EINVAL, "%d ranks, timeout %d ms: expected 1 to 64, 1 or more",
                       n_ranks, timeout_ms);
    struct hx_comm_group *g = calloc(1, sizeof(*g));
    if (!g)
        return hx_fail(err, -ENOMEM, "out of memory");
    g->n_ranks = n_ranks;
    g->timeout_ms = timeout_ms;
    g->wide = wide;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->cond, &attr);
    pthread_condattr_destroy(&attr);
    g->come = calloc((size_t)n_ranks, sizeof(*g->come));
    g->message = calloc((size_t)n_ranks * 2, sizeof(*g->message));
    if (!g->come || !g->message) {
        hx_comm_group_close(g);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    *out = g;
    return 0;
}

void hx_comm_group_close(struct hx_comm_group *g)
{
    if (!g)
        return;
    for (int i = 0; g->message && i < g->n_ranks * 2; i++)
        free(g->message[i].data);
    free(g->message);
    free(g->come);
    pthread_cond_destroy(&g->cond);
    pthread_mutex_destroy(&g->mutex);
    free(g);
}

static int grow(uint8_t **data, size_t *room, size_t size, struct hx_error *err)
{
    if (size <= *room)
        return 0;
    uint8_t *p = realloc(*data, size);
    if (!p)
        return hx_fail(err, -ENOMEM, "out of memory for a message of %zu bytes", size);
    *data = p;
    *room = size;
    return 0;
}

/* The message that this rank gives at its next join. */
static struct message *mine(struct member *m)
{
    return &m->g->message[m->comm.rank * 2 + (int)(m->n % 2)];
}

static int late(struct hx_comm_group *g)
{
    for (int r = 0; r < g->n_ranks; r++) {
        if (g->come[r] <= g->n_joins)
            return r;
    }
    return -1;
}

/* Waits until every rank's message is there. */
static int meet(struct member *m, struct hx_error *err)
{
    struct hx_comm_group *g = m->g;
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += g->timeout_ms / 1000;
    end.tv_nsec += (long)(g->timeout_ms % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&g->mutex);
    g->come[m->comm.rank] = ++m->n;
    if (g->failed.code == 0 && late(g) < 0) {
        g->n_joins++;
        pthread_cond_broadcast(&g->cond);
    }
    while (g->n_joins < m->n && g->failed.code == 0) {
        if (pthread_cond_timedwait(&g->cond, &g->mutex, &end) != ETIMEDOUT || g->n_joins >= m->n ||
            g->failed.code != 0)
            continue;
        hx_fail(&g->failed, -ETIMEDOUT, "rank %d did not come to join %llu within %d ms", late(g),
                (unsigned long long)m->n, g->timeout_ms);
        pthread_cond_broadcast(&g->cond);
    }
    int r = 0;
    if (g->n_joins < m->n) {
        r = g->failed.code;
        if (err)
            *err = g->failed;
    }
    pthread_mutex_unlock(&g->mutex);
    return r;
}

static const struct message *message_of(const struct member *m, int rank)
{
    return &m->g->message[rank * 2 + (int)((m->n + 1) % 2)];
}

/* A rank that is at another place of the model would give a message of another size. */
static int same_size(const struct member *m, size_t size, struct hx_error *err)
{
    for (int r = 0; r < m->comm.n_ranks; r++) {
        if (message_of(m, r)->size != size)
            return hx_fail(err, -EPROTO, "join %llu: rank %d gives %zu bytes, rank %d %zu",
                           (unsigned long long)m->n, r, message_of(m, r)->size, m->comm.rank, size);
    }
    return 0;
}

/* Bytes from the device to all ranks. */
static int exchange(struct member *m, const struct hx_backend *be, struct hx_device *dev,
                    const void *data, size_t size, struct hx_error *err)
{
    struct message *to = mine(m);
    int r = grow(&to->data, &to->room, size, err);
    to->size = size;
    if (r == 0 && size > 0)
        r = be->download(dev, to->data, data, size, err);
    if (r == 0)
        r = be->sync(dev, err);
    if (r == 0)
        r = meet(m, err);
    return r < 0 ? r : same_size(m, size, err);
}

static int thread_sum(struct hx_comm *c, const struct hx_backend *be, struct hx_device *dev,
                      const struct hx_tensor *part, struct hx_tensor *y, struct hx_error *err)
{
    struct member *m = (struct member *)c;
    size_t n = 1;
    for (int i = 0; i < y->n_dims; i++)
        n *= (size_t)y->ne[i];
    int r = exchange(m, be, dev, part->data, n * hx_dtype_size(part->dtype), err);
    if (r == 0)
        r = grow(&m->result, &m->room, n * 2, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        float sum = 0, x;
        uint16_t v;
        for (int k = 0; k < c->n_ranks; k++) {
            if (part->dtype == HX_DTYPE_F32) {
                memcpy(&x, message_of(m, k)->data + 4 * i, 4);
            } else {
                memcpy(&v, message_of(m, k)->data + 2 * i, 2);
                x = hx_bf16_value(v);
            }
            sum = k == 0 ? x : sum + x;
        }
        v = hx_bf16(sum);
        memcpy(m->result + 2 * i, &v, 2);
    }
    return be->upload(dev, y->data, m->result, n * 2, err);
}

static int thread_gather(struct hx_comm *c, const struct hx_backend *be, struct hx_device *dev,
                         const struct hx_tensor *one, struct hx_tensor *all, struct hx_error *err)
{
    struct member *m = (struct member *)c;
    size_t rows = (size_t)one->ne[0], width = (size_t)one->ne[1] * 4, n = (size_t)c->n_ranks;
    int r = exchange(m, be, dev, one->data, rows * width, err);
    if (r == 0)
        r = grow(&m->result, &m->room, rows * width * n, err);
    if (r < 0)
        return r;
    for (size_t t = 0; t < rows; t++) {
        for (size_t k = 0; k < n; k++)
            memcpy(m->result + (t * n + k) * width, message_of(m, (int)k)->data + t * width, width);
    }
    return be->upload(dev, all->data, m->result, rows * width * n, err);
}

struct candidate {
    float value;
    int32_t token;
};

static int thread_best(struct hx_comm *c, const struct hx_backend *be, struct hx_device *dev,
                       const struct hx_tensor *logits, int k, struct hx_tensor *tokens,
                       struct hx_error *err)
{
    struct member *m = (struct member *)c;
    size_t n = (size_t)logits->ne[0], block = (size_t)logits->ne[1], width = (size_t)logits->ne[2];
    struct message *to = mine(m);
    int r = grow(&to->data, &to->room, n * sizeof(struct candidate), err);
    to->size = n * sizeof(struct candidate);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct candidate x;
        r = be->download(dev, &x.token, (int32_t *)tokens->data + i * (block + 1) + (size_t)k + 1,
                         sizeof(x.token), err);
        if (r == 0)
            r = be->sync(dev, err);
        if (r == 0 && (x.token < 0 || (size_t)x.token >= width))
            r = hx_fail(err, -ERANGE, "token %d of %zu columns", x.token, width);
        if (r == 0)
            r = be->download(dev, &x.value,
                             (const float *)logits->data + (i * block + (size_t)k) * width +
                                 (size_t)x.token,
                             sizeof(x.value), err);
        if (r == 0)
            r = be->sync(dev, err);
        x.token += (int32_t)width * c->rank;
        memcpy(to->data + i * sizeof(x), &x, sizeof(x));
    }
    if (r == 0)
        r = meet(m, err);
    if (r == 0)
        r = same_size(m, n * sizeof(struct candidate), err);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct candidate best, x;
        memcpy(&best, message_of(m, 0)->data + i * sizeof(x), sizeof(x));
        for (int q = 1; q < c->n_ranks; q++) { /* ids rise with the rank */
            memcpy(&x, message_of(m, q)->data + i * sizeof(x), sizeof(x));
            if (x.value > best.value)
                best = x;
        }
        r = be->upload(dev, (int32_t *)tokens->data + i * (block + 1) + (size_t)k + 1, &best.token,
                       sizeof(best.token), err);
        if (r == 0)
            r = be->sync(dev, err);
    }
    return r;
}

static void thread_stop(struct hx_comm *c, const struct hx_error *why)
{
    struct hx_comm_group *g = ((struct member *)c)->g;
    pthread_mutex_lock(&g->mutex);
    if (g->failed.code == 0)
        hx_fail(&g->failed, -ECANCELED, "rank %d stopped: %s", c->rank, why ? why->text : "?");
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->mutex);
}

static void thread_close(struct hx_comm *c)
{
    struct member *m = (struct member *)c;
    free(m->result);
    free(m);
}

static const struct hx_comm_ops ops = {
    .name = "thread",
    .sum = thread_sum,
    .gather = thread_gather,
    .best = thread_best,
    .stop = thread_stop,
    .close = thread_close,
};

int hx_comm_thread_open(struct hx_comm_group *g, int rank, struct hx_comm **out,
                        struct hx_error *err)
{
    if (rank < 0 || rank >= g->n_ranks)
        return hx_fail(err, -EINVAL, "rank %d of %d: expected 0 to %d", rank, g->n_ranks,
                       g->n_ranks - 1);
    struct member *m = calloc(1, sizeof(*m));
    if (!m)
        return hx_fail(err, -ENOMEM, "out of memory");
    m->comm = (struct hx_comm){.ops = &ops, .rank = rank, .n_ranks = g->n_ranks, .wide = g->wide};
    m->g = g;
    *out = &m->comm;
    return 0;
}
