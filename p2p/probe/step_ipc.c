/* Peer mappings of a second process: right content, and what is left after it dies.
 *
 * The helper is forked before this process makes its first CUDA call. It does what it is asked over
 * a socket pair: map the owner's buffer, store content there, load it back and look. */
#include "probe/content.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kernels.h"

#define ANSWER_MS 20000
#define BUSY_MS   100

enum order { ORDER_STORE, ORDER_LOAD, ORDER_BUSY };

struct request {
    enum order order;
    int device; /* of the helper's side */
    cudaIpcMemHandle_t handle;
    uint64_t bytes, seed;
};
struct answer {
    int failed; /* cudaError_t */
    struct hx_content_verdict verdict;
};

struct helper {
    pid_t pid;
    int fd;
};

/* --- the helper's side ---------------------------------------------------------------------- */

static cudaError_t serve(const struct request *q, struct answer *a)
{
    uint8_t *mapped = NULL, *own = NULL, *host = NULL;
    cudaError_t e = cudaSetDevice(q->device);
    if (e == cudaSuccess)
        e = cudaIpcOpenMemHandle((void **)&mapped, q->handle, cudaIpcMemLazyEnablePeerAccess);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&own, q->bytes + HX_CONTENT_GUARD);
    if (e == cudaSuccess && q->order == ORDER_STORE) {
        e = hx_k_content_fill(own, q->bytes, q->seed, NULL);
        if (e == cudaSuccess)
            e = hx_k_copy(mapped, own, q->bytes, NULL);
        if (e == cudaSuccess)
            e = cudaDeviceSynchronize();
    } else if (e == cudaSuccess && q->order == ORDER_LOAD) {
        host = malloc(q->bytes + HX_CONTENT_GUARD);
        e = host ? cudaMemset(own, HX_POISON_BYTE, q->bytes + HX_CONTENT_GUARD)
                 : cudaErrorMemoryAllocation;
        if (e == cudaSuccess)
            e = hx_k_copy(own, mapped, q->bytes, NULL);
        if (e == cudaSuccess)
            e = cudaMemcpy(host, own, q->bytes + HX_CONTENT_GUARD, cudaMemcpyDeviceToHost);
        if (e == cudaSuccess)
            hx_content_compare(host, q->bytes, q->seed, &a->verdict);
    } else if (e == cudaSuccess) {
        /* Work in flight for the moment of the abnormal exit. */
        for (int i = 0; i < 64 && e == cudaSuccess; i++)
            e = hx_k_copy(mapped, own, q->bytes, NULL);
        return e;
    }
    free(host);
    cudaFree(own);
    if (mapped)
        cudaIpcCloseMemHandle(mapped);
    return e;
}

static void helper_main(int fd)
{
    struct request q;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    while (recv(fd, &q, sizeof(q), MSG_WAITALL) == (ssize_t)sizeof(q)) {
        struct answer a = {0};
        a.failed = (int)serve(&q, &a);
        if (send(fd, &a, sizeof(a), MSG_NOSIGNAL) != (ssize_t)sizeof(a))
            break;
    }
    _exit(0);
}

/* --- the owner's side ----------------------------------------------------------------------- */

static int helper_start(struct helper *h, struct hx_error *err)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return hx_fail_errno(err, errno, "second process: socket pair");
    h->pid = fork();
    if (h->pid < 0) {
        const int e = errno;
        close(fds[0]);
        close(fds[1]);
        return hx_fail_errno(err, e, "second process");
    }
    if (h->pid == 0) {
        close(fds[0]);
        helper_main(fds[1]);
    }
    close(fds[1]);
    h->fd = fds[0];
    return 0;
}

/* Ends it by closing the socket; one that does not answer is told once and left alone. */
static void helper_stop(struct helper *h)
{
    if (h->pid <= 0)
        return;
    close(h->fd);
    for (int i = 0; i < 200; i++) {
        if (waitpid(h->pid, NULL, WNOHANG) == h->pid)
            return;
        if (i == 100)
            kill(h->pid, SIGTERM);
        poll(NULL, 0, 20);
    }
}

/* -ETIMEDOUT: no answer in time. */
static int helper_ask(struct helper *h, const struct request *q, struct answer *a,
                      struct hx_error *err)
{
    struct pollfd p = {.fd = h->fd, .events = POLLIN};
    if (send(h->fd, q, sizeof(*q), MSG_NOSIGNAL) != (ssize_t)sizeof(*q))
        return hx_fail_errno(err, errno, "second process: request");
    if (poll(&p, 1, ANSWER_MS) != 1)
        return hx_fail(err, -ETIMEDOUT, "second process: no answer in %d s", ANSWER_MS / 1000);
    if (recv(h->fd, a, sizeof(*a), MSG_WAITALL) != (ssize_t)sizeof(*a))
        return hx_fail(err, -EIO, "second process ended");
    return 0;
}

struct ipc_test {
    const struct hx_probe_plant *plant;
    struct helper helper;
    struct hx_ranks ranks;
    uint8_t *buffer[HX_PROBE_RANKS];
    uint8_t *host;
};

static void ipc_close(struct ipc_test *t)
{
    helper_stop(&t->helper);
    for (int i = 0; i < t->ranks.n; i++)
        cudaFree(t->buffer[i]);
    free(t->host);
    hx_ranks_close(&t->ranks);
}

static int ipc_open(struct ipc_test *t, struct hx_probe_shared *sh,
                    const struct hx_probe_options *o, const struct hx_probe_plant *plant,
                    size_t bytes, struct hx_error *err)
{
    memset(t, 0, sizeof(*t));
    t->plant = plant;
    int r = helper_start(&t->helper, err);
    if (r == 0)
        r = hx_ranks_open(&t->ranks, sh, o, true, err);
    if (r != 0)
        return r;
    t->host = malloc(bytes + HX_CONTENT_GUARD);
    if (!t->host)
        return hx_fail(err, -ENOMEM, "second process: out of host memory");
    for (int i = 0; i < t->ranks.n; i++) {
        HX_CU(cudaSetDevice(t->ranks.rank[i].device));
        HX_CU(cudaMalloc((void **)&t->buffer[i], bytes + HX_CONTENT_GUARD));
    }
out:
    return r;
}

/* The helper, on rank from, stores into and loads from the buffer of rank to. */
static int ipc_pair(struct ipc_test *t, int from, int to, size_t bytes, struct hx_probe_content *c,
                    struct hx_error *err)
{
    struct request q = {
        .device = t->ranks.rank[from].device, .bytes = bytes, .seed = hx_probe_seed()};
    struct answer a = {0};
    struct hx_content_verdict v;
    int r = 0;
    HX_CU(cudaSetDevice(t->ranks.rank[to].device));
    HX_CU(cudaIpcGetMemHandle(&q.handle, t->buffer[to]));
    HX_CU(cudaMemset(t->buffer[to], HX_POISON_BYTE, bytes + HX_CONTENT_GUARD));
    HX_CU(cudaDeviceSynchronize());
    q.order = ORDER_STORE;
    if ((r = helper_ask(&t->helper, &q, &a, err)) != 0)
        goto out;
    HX_CU((cudaError_t)a.failed);
    if (t->plant && t->plant->content)
        t->plant->content(t->plant->ctx, "ipc", from, to, t->buffer[to], bytes);
    HX_CU(cudaMemcpy(t->host, t->buffer[to], bytes + HX_CONTENT_GUARD, cudaMemcpyDeviceToHost));
    hx_content_compare(t->host, bytes, q.seed, &v);
    hx_content_note(c, &v, from, to);

    q.order = ORDER_LOAD;
    q.seed = hx_probe_seed();
    HX_CU(hx_k_content_fill(t->buffer[to], bytes, q.seed, NULL));
    HX_CU(cudaDeviceSynchronize());
    if ((r = helper_ask(&t->helper, &q, &a, err)) != 0)
        goto out;
    HX_CU((cudaError_t)a.failed);
    hx_content_note(c, &a.verdict, to, from);
out:
    return r;
}

int hx_step_ipc(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    struct hx_probe_content found = {.n_sizes = 0}, *c = &found;
    struct ipc_test t;
    const int n_sizes = hx_content_sizes(o, c->sizes);
    const uint64_t *sizes = c->sizes;
    int r = ipc_open(&t, sh, o, plant, HX_CONTENT_MAX, err);
    c->n_sizes = n_sizes;
    for (int from = 0; r == 0 && from < t.ranks.n; from++) {
        for (int to = 0; r == 0 && to < t.ranks.n; to++) {
            if (from == to)
                continue;
            for (int i = 0; r == 0 && i < n_sizes; i++)
                r = hx_probe_stopped(sh, -1) ? hx_fail(err, -ECANCELED, "second process: ended")
                                             : ipc_pair(&t, from, to, (size_t)sizes[i], c, err);
            c->pairs++;
        }
        hx_probe_progress(sh, -1, (from + 1.0) / t.ranks.n);
    }
    ipc_close(&t);
    if (r == -ETIMEDOUT) {
        c->outcome = HX_PROBE_HANG;
        snprintf(c->note, sizeof(c->note), "%.150s", err ? err->text : "no answer");
        r = 0;
    }
    if (r == 0 || (c->outcome != HX_PROBE_OK && c->outcome != HX_PROBE_NOT_RUN))
        sh->result.p2p.ipc = *c;
    return r;
}

/* A process dies hard while it copies through a peer mapping; after that, small copies between all
 * pairs have to be right as before. On these cards the death itself is a risk, so this runs only
 * when it is asked for. */
int hx_step_abnormal(struct hx_probe_shared *sh, const struct hx_probe_options *o,
                     const struct hx_probe_plant *plant, int device, struct hx_error *err)
{
    (void)device;
    static const uint64_t sizes[] = {4, 131073, 1048577};
    const size_t n_sizes = sizeof(sizes) / sizeof(sizes[0]);
    struct hx_probe_content *c = &sh->result.p2p.after_abnormal_exit;
    struct ipc_test t;
    struct request q = {.order = ORDER_BUSY, .bytes = 1 << 20};
    int r = ipc_open(&t, sh, o, plant, 4 << 20, err);
    if (r != 0)
        goto out;
    HX_CU(cudaSetDevice(t.ranks.rank[1].device));
    HX_CU(cudaIpcGetMemHandle(&q.handle, t.buffer[1]));
    q.device = t.ranks.rank[0].device;
    struct answer a = {0};
    if ((r = helper_ask(&t.helper, &q, &a, err)) != 0)
        goto out;
    HX_CU((cudaError_t)a.failed);
    poll(NULL, 0, BUSY_MS);
    kill(t.helper.pid, SIGKILL);
    waitpid(t.helper.pid, NULL, 0);
    close(t.helper.fd);
    t.helper.pid = 0;
    c->n_sizes = (int)n_sizes;
    memcpy(c->sizes, sizes, sizeof(sizes));
    for (int from = 0; from < t.ranks.n; from++) {
        for (int to = 0; to < t.ranks.n; to++) {
            if (from == to)
                continue;
            for (size_t i = 0; i < n_sizes; i++) {
                const size_t bytes = (size_t)sizes[i];
                const uint64_t seed = hx_probe_seed();
                const struct hx_rank *k = &t.ranks.rank[from], *b = &t.ranks.rank[to];
                struct hx_content_verdict v;
                HX_CU(cudaSetDevice(b->device));
                HX_CU(cudaMemset(t.buffer[to], HX_POISON_BYTE, bytes + HX_CONTENT_GUARD));
                HX_CU(cudaDeviceSynchronize());
                HX_CU(cudaSetDevice(k->device));
                HX_CU(hx_k_content_fill(t.buffer[from], bytes, seed, k->stream));
                HX_CU(cudaMemcpyPeerAsync(t.buffer[to], b->device, t.buffer[from], k->device, bytes,
                                          k->stream));
                HX_CU(cudaStreamSynchronize(k->stream));
                HX_CU(cudaMemcpy(t.host, t.buffer[to], bytes + HX_CONTENT_GUARD,
                                 cudaMemcpyDeviceToHost));
                hx_content_compare(t.host, bytes, seed, &v);
                hx_content_note(c, &v, from, to);
            }
            c->pairs++;
        }
    }
out:
    ipc_close(&t);
    return r;
}
