/* Joins: what the ranks of a cut model exchange during a pass. Every rank calls the same joins in
 * the same order, and gets the same bits. A join may wait for the other ranks. */
#ifndef HX_COMM_COMM_H
#define HX_COMM_COMM_H

#include "backend/backend.h"

struct hx_comm;

#define DEV const struct hx_backend *be, struct hx_device *dev
struct hx_comm_ops {
    const char *name;
    /* y BF16: the partial sums `part` of all ranks added in float32 in rank order, rounded once
     * (decisions.md 26). part: BF16, y itself; F32 if the joins are wide. */
    int (*sum)(struct hx_comm *c, DEV, const struct hx_tensor *part, struct hx_tensor *y,
               struct hx_error *err);
    /* Columns side by side in rank order: mine F32 [T, N], all F32 [T, n_ranks N]. */
    int (*gather)(struct hx_comm *c, DEV, const struct hx_tensor *mine, struct hx_tensor *all,
                  struct hx_error *err);
    /* Column k + 1 of tokens (I32 [S, block + 1]) holds each rank's best token among its N columns
     * of row (s, k) of logits (F32 [S, block, N]); afterwards the best of all ranks, the lower id
     * among equals. */
    int (*best)(struct hx_comm *c, DEV, const struct hx_tensor *logits, int k,
                struct hx_tensor *tokens, struct hx_error *err);
    /* This rank failed: ranks that wait for it, or come to a join later, get -ECANCELED. */
    void (*stop)(struct hx_comm *c, const struct hx_error *why);
    void (*close)(struct hx_comm *c);
};
#undef DEV

struct hx_comm {
    const struct hx_comm_ops *ops;
    int rank, n_ranks;
    bool wide; /* partial sums leave a rank as float32 (tests) */
    /* Joins are queued on a device that records, without the host; a recording is good as long as
     * version stays. */
    bool recordable;
    int version;
};

static inline void hx_comm_close(struct hx_comm *c)
{
    if (c)
        c->ops->close(c);
}

/* ---- thread.c: ranks are threads of this process, messages are host memory ---- */

struct hx_comm_group;
/* timeout_ms: how long a join waits for the slowest rank; then it names it and fails for all with
 * -ETIMEDOUT. The group lives longer than its members. */
int hx_comm_group_open(int n_ranks, bool wide, int timeout_ms, struct hx_comm_group **out,
                       struct hx_error *err) HX_MUST;
void hx_comm_group_close(struct hx_comm_group *g);
int hx_comm_thread_open(struct hx_comm_group *g, int rank, struct hx_comm **out,
                        struct hx_error *err) HX_MUST;

/* ---- delay.c: one rank alone; a join keeps the partial values and takes the time of a link ----
 */

struct hx_comm_link {
    double fixed_us; /* every join takes this long; negative: by the next two */
    double phase_us; /* fixed cost of one exchange phase, t0 */
    double gb_s;     /* of a rank in one direction, B */
    double factor;   /* of that time, 0: none */
};
struct hx_comm_spent {
    int64_t n_joins, bytes; /* of the rank's own messages */
    double seconds;         /* modelled */
};
/* 2 t0 + 2 (n - 1) / n S / B for a message of S bytes (spec performance.md 4.2). */
double hx_comm_link_seconds(const struct hx_comm_link *l, int n_ranks, size_t bytes);
int hx_comm_delay_open(int rank, int n_ranks, const struct hx_comm_link *link, struct hx_comm **out,
                       struct hx_error *err) HX_MUST;
/* What it took since the last call. */
struct hx_comm_spent hx_comm_delay_spent(struct hx_comm *c);
void hx_comm_delay_set(struct hx_comm *c, const struct hx_comm_link *link);

#endif
