/* The steps of a build with CUDA, in order, and what a bad end of each means. */
#include <stdio.h>

#include "probe/cuda.h"

static void mark_context(struct hx_probe_result *r, int device, enum hx_probe_end end,
                         const char *message)
{
    struct hx_probe_device *d = &r->device[device];
    d->context = end == HX_PROBE_END_LIMIT ? HX_PROBE_CONTEXT_TIMEOUT : HX_PROBE_CONTEXT_ERROR;
    snprintf(d->context_error, sizeof(d->context_error), "%s", message);
}

static void mark_alias(struct hx_probe_result *r, int device, enum hx_probe_end end,
                       const char *message)
{
    (void)end, (void)message;
    r->device[device].alias.outcome = HX_PROBE_FAULT;
}

static void mark_pattern(struct hx_probe_result *r, int device, enum hx_probe_end end,
                         const char *message)
{
    (void)end, (void)message;
    /* Wrong words found before the fault are the better word. */
    if (r->device[device].pattern.outcome != HX_PROBE_MISMATCH)
        r->device[device].pattern.outcome = HX_PROBE_FAULT;
}

/* A call that does not come back is a hang; one that fails is as bad as wrong content. */
static void content_bad(struct hx_probe_content *c, enum hx_probe_end end, const char *message)
{
    c->outcome = end == HX_PROBE_END_LIMIT ? HX_PROBE_HANG : HX_PROBE_CORRUPT;
    snprintf(c->note, sizeof(c->note), "%s", message);
}

static void mark_access(struct hx_probe_result *r, int device, enum hx_probe_end end,
                        const char *message)
{
    (void)device, (void)end;
    r->p2p.offered = false;
    snprintf(r->p2p.enable, sizeof(r->p2p.enable), "%s", message);
}

/* The step tests copies, stores and loads in this order: the first without a verdict is the one. */
static void mark_content(struct hx_probe_result *r, int device, enum hx_probe_end end,
                         const char *message)
{
    (void)device;
    struct hx_probe_content *const tests[] = {&r->p2p.copy, &r->p2p.store, &r->p2p.load};
    int last = 0;
    for (int i = 0; i < 3; i++) {
        if (tests[i]->n_sizes)
            last = i;
    }
    content_bad(tests[last], end, message);
}

static void mark_ipc(struct hx_probe_result *r, int device, enum hx_probe_end end,
                     const char *message)
{
    (void)device;
    content_bad(&r->p2p.ipc, end, message);
}

static void mark_abnormal(struct hx_probe_result *r, int device, enum hx_probe_end end,
                          const char *message)
{
    (void)device;
    content_bad(&r->p2p.after_abnormal_exit, end, message);
}

static void mark_flags(struct hx_probe_result *r, int device, enum hx_probe_end end,
                       const char *message)
{
    (void)device, (void)end, (void)message;
    r->p2p.flags.outcome = HX_PROBE_HANG;
}

static void mark_allpairs(struct hx_probe_result *r, int device, enum hx_probe_end end,
                          const char *message)
{
    (void)device;
    r->p2p.allpairs.outcome = end == HX_PROBE_END_LIMIT ? HX_PROBE_HANG : HX_PROBE_CORRUPT;
    snprintf(r->p2p.allpairs.note, sizeof(r->p2p.allpairs.note), "%s", message);
}

static void arm_bad(struct hx_probe_arm *a, enum hx_probe_end end, const char *message)
{
    a->outcome = end == HX_PROBE_END_LIMIT ? HX_PROBE_HANG : HX_PROBE_WRONG;
    snprintf(a->note, sizeof(a->note), "%s", message);
}

static void mark_reduce_peer(struct hx_probe_result *r, int device, enum hx_probe_end end,
                             const char *message)
{
    (void)device;
    arm_bad(&r->collectives.p2p, end, message);
}

static void mark_reduce_host(struct hx_probe_result *r, int device, enum hx_probe_end end,
                             const char *message)
{
    (void)device;
    arm_bad(&r->collectives.own_host, end, message);
}

static void mark_reduce_nccl(struct hx_probe_result *r, int device, enum hx_probe_end end,
                             const char *message)
{
    (void)device;
    arm_bad(&r->collectives.nccl_host, end, message);
}

/* Limits: those of spec hardware.md 3.6 and 5.2 with room for the slowest link (x1, 0.2 GB/s) in
 * the copies. Steps of pairs share two minutes where the link is one that can be used. */
const struct hx_probe_step hx_probe_steps[] = {
    {"enumerate", "looking for cards", HX_PROBE_ONCE, 30, hx_step_enumerate, NULL, false, false},
    {"context", "new context", HX_PROBE_EACH_ALL, 30, hx_step_context, mark_context, false, false},
    {"rates", "arithmetic and memory rates", HX_PROBE_EACH, 30, hx_step_rates, NULL, false, false},
    {"link", "host link", HX_PROBE_EACH, 45, hx_step_link, NULL, false, false},
    {"alias", "alias test", HX_PROBE_EACH_ALL, 60, hx_step_alias, mark_alias, false, false},
    {"pattern", "pattern test", HX_PROBE_EACH_ALL, 60, hx_step_pattern, mark_pattern, true, false},
    {"access", "peer access", HX_PROBE_PAIRS, 30, hx_step_access, mark_access, false, false},
    {"staged", "copies through the host", HX_PROBE_PAIRS, 60, hx_step_staged, NULL, false, false},
    {"content", "content of peer copies", HX_PROBE_PAIRS_PEER, 90, hx_step_content, mark_content,
     false, false},
    {"ipc", "content in a second process", HX_PROBE_PAIRS_SOUND, 60, hx_step_ipc, mark_ipc, false,
     false},
    {"flags", "flags between cards", HX_PROBE_PAIRS_SOUND, 45, hx_step_flags, mark_flags, false,
     false},
    {"peer", "peer rates", HX_PROBE_PAIRS_PEER, 60, hx_step_peer_rates, NULL, false, false},
    {"allpairs", "all cards at once", HX_PROBE_PAIRS_SOUND, 30, hx_step_allpairs, mark_allpairs,
     false, false},
    {"reduce-peer", "all-reduce over peer memory", HX_PROBE_PAIRS, 30, hx_step_reduce_peer,
     mark_reduce_peer, false, false},
    {"reduce-host", "all-reduce through the host", HX_PROBE_PAIRS, 30, hx_step_reduce_host,
     mark_reduce_host, false, false},
    {"reduce-nccl", "all-reduce by NCCL", HX_PROBE_PAIRS, 45, hx_step_reduce_nccl, mark_reduce_nccl,
     false, false},
    {"abnormal", "after an abnormal exit", HX_PROBE_PAIRS_SOUND, 45, hx_step_abnormal,
     mark_abnormal, false, true},
};
const size_t hx_probe_n_steps = sizeof(hx_probe_steps) / sizeof(hx_probe_steps[0]);
const char *const hx_probe_without = "";
