/* hx-bench engram --kinds bare: the kernel's share. Blocks of the same files with as many reads in
 * flight, by the shortest loop that io_uring allows: nothing is checked, copied or waited for. */
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rand.h"
#include "cli/bench_engram.h"

#define SQ_SIZE 128
#define REAP    64 /* completions taken at a time, as by the streamer */
#define PART    8  /* of the reads in flight is waited for */
#define WAIT_US 300

struct bare {
    struct io_uring ring;
    bool has_ring;
    int fd[HX_ENGRAM_MAX_TABLES], n_files, depth;
    uint64_t n_blocks[HX_ENGRAM_MAX_TABLES];
    uint32_t block;
    uint8_t *memory;
    double *issued; /* [depth] */
    struct hx_rng rng;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void cpu_now(double *user, double *kernel)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    *user = (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec * 1e-6;
    *kernel = (double)u.ru_stime.tv_sec + (double)u.ru_stime.tv_usec * 1e-6;
}

static int open_files(struct bare *x, const struct hx_engram_stream_options *o,
                      struct hx_error *err)
{
    for (int t = 0; t < o->n_tables; t++) {
        const char *path = o->table[t][0].path;
        struct stat st;
        int fd = open(path, O_RDONLY | O_CLOEXEC | (o->buffered ? 0 : O_DIRECT));
        if (fd < 0)
            return hx_fail_errno(err, errno, "%s", path);
        x->fd[x->n_files++] = fd;
        if (fstat(fd, &st) < 0)
            return hx_fail_errno(err, errno, "%s", path);
        x->n_blocks[t] = (uint64_t)st.st_size / x->block;
        if (x->n_blocks[t] == 0)
            return hx_fail(err, -EINVAL, "%s: less than a block of %u bytes", path, x->block);
    }
    return 0;
}

static int open_ring(struct bare *x, struct hx_error *err)
{
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                     IORING_SETUP_COOP_TASKRUN, 0};
    int r = -EINVAL;
    for (int i = 0; r == -EINVAL && i < 3; i++) {
        struct io_uring_params p = {.flags = flags[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
                                    .cq_entries = 2 * (unsigned)x->depth};
        r = io_uring_queue_init_params(SQ_SIZE, &x->ring, &p);
    }
    x->has_ring = r == 0;
    struct iovec all = {x->memory, (size_t)x->depth * x->block};
    if (r == 0)
        r = io_uring_register_buffers(&x->ring, &all, 1);
    if (r == 0)
        r = io_uring_register_files(&x->ring, x->fd, (unsigned)x->n_files);
    return r < 0 ? hx_fail_errno(err, -r, "io_uring") : 0;
}

static int queue(struct bare *x, unsigned slot, double t)
{
    struct io_uring_sqe *e = io_uring_get_sqe(&x->ring);
    if (!e) {
        io_uring_submit(&x->ring);
        if (!(e = io_uring_get_sqe(&x->ring)))
            return -EAGAIN;
    }
    uint64_t v = hx_rng_next(&x->rng);
    int file = (int)(v % (unsigned)x->n_files);
    uint64_t at = (v >> 8) % x->n_blocks[file] * x->block;
    io_uring_prep_read_fixed(e, file, x->memory + (size_t)slot * x->block, x->block, at, 0);
    e->flags |= IOSQE_FIXED_FILE;
    e->user_data = slot;
    x->issued[slot] = t;
    return 0;
}

/* Takes what has completed and queues as many reads again. Returns how many, or a negative errno.
 */
static int turn(struct bare *x, struct hx_engram_hist *h, struct hx_error *err)
{
    struct __kernel_timespec most = {0, WAIT_US * 1000L};
    struct io_uring_cqe *cqe;
    unsigned head, slot[REAP], few = (unsigned)(x->depth + PART - 1) / PART;
    int n = 0;
    int r = io_uring_submit_and_wait_timeout(&x->ring, &cqe, few < 16 ? few : 16, &most, NULL);
    if (r < 0 && r != -ETIME && r != -EINTR)
        return hx_fail_errno(err, -r, "io_uring");
    double t = now();
    io_uring_for_each_cqe(&x->ring, head, cqe)
    {
        if (n == REAP)
            break;
        if (cqe->res != (int)x->block)
            return hx_fail_errno(err, cqe->res < 0 ? -cqe->res : EIO, "a read of %u bytes",
                                 x->block);
        slot[n] = (unsigned)cqe->user_data;
        hx_engram_hist_add(h, (t - x->issued[slot[n++]]) * 1e6);
    }
    io_uring_cq_advance(&x->ring, (unsigned)n);
    for (int i = 0; i < n; i++) {
        if (queue(x, slot[i], t) < 0)
            return hx_fail(err, -EAGAIN, "io_uring takes no more reads");
    }
    return n;
}

static int measure(struct bare *x, double seconds, struct hx_bench_rate *out, struct hx_error *err)
{
    struct hx_engram_hist *h = calloc(1, sizeof(*h));
    double begin = now(), warm = begin + seconds / 10, end = warm + seconds, user = 0, kernel = 0;
    double start = 0;
    int r = h ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    for (int i = 0; r == 0 && i < x->depth; i++)
        r = queue(x, (unsigned)i, begin);
    while (r >= 0 && now() < end) {
        r = turn(x, h, err);
        if (start == 0 && now() >= warm) {
            memset(h, 0, sizeof(*h));
            cpu_now(&user, &kernel);
            start = now();
        }
    }
    if (r >= 0) {
        double took = now() - start, u, k, n = (double)h->count * 1e-6;
        cpu_now(&u, &k);
        *out = (struct hx_bench_rate){.rows_per_s = (double)h->count / took,
                                      .p50 = hx_engram_hist_quantile(h, 0.5),
                                      .p95 = hx_engram_hist_quantile(h, 0.95),
                                      .p99 = hx_engram_hist_quantile(h, 0.99),
                                      .p999 = hx_engram_hist_quantile(h, 0.999),
                                      .cpu = n > 0 ? (u - user + k - kernel) / n : 0,
                                      .user = n > 0 ? (u - user) / n : 0};
    }
    free(h);
    return r < 0 ? r : 0;
}

int hx_bench_engram_bare(const struct hx_bench_engram *b, int depth, struct hx_bench_rate *out,
                         struct hx_error *err)
{
    struct bare x = {.depth = depth, .block = b->so.align ? (uint32_t)b->so.align : 4096};
    size_t bytes = (size_t)depth * x.block;
    hx_rng_seed(&x.rng, 5);
    x.issued = calloc((size_t)depth, sizeof(*x.issued));
    x.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int r = x.issued && x.memory != MAP_FAILED ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = open_files(&x, &b->so, err);
    if (r == 0)
        r = open_ring(&x, err);
    if (r == 0)
        r = measure(&x, (double)b->seconds, out, err);
    if (x.has_ring)
        io_uring_queue_exit(&x.ring); /* waits for what is on its way */
    for (int i = 0; i < x.n_files; i++)
        close(x.fd[i]);
    if (x.memory != MAP_FAILED)
        munmap(x.memory, bytes);
    free(x.issued);
    return r;
}
