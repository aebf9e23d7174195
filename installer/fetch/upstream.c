#include "fetch/upstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define MAX_NAMES 5u /* in the message */

struct listing {
    const struct hx_plan *plan;
    const struct hx_lock_source *source;
    bool *seen; /* by file of the plan */
    struct hx_buf faults;
    unsigned n_faults;
};

static void fault(struct listing *l, const char *path, const char *what)
{
    if (l->n_faults++ < MAX_NAMES)
        hx_buf_printf(&l->faults, "%s%.200s (%s)", l->n_faults > 1 ? ", " : "", path, what);
}

static int on_entry(void *ctx, const char *path, uint64_t size, const uint8_t *sha256)
{
    struct listing *l = ctx;
    char what[96];
    for (size_t i = 0; i < l->plan->n_files; i++) {
        const struct hx_plan_file *f = &l->plan->files[i];
        if (f->source != l->source || l->seen[i] || strcmp(f->lock->path, path) != 0)
            continue;
        l->seen[i] = true;
        if (size != f->lock->size) {
            snprintf(what, sizeof(what), "%llu bytes, pinned are %llu", (unsigned long long)size,
                     (unsigned long long)f->lock->size);
            fault(l, path, what);
        } else if (sha256 && f->lock->has_sha256 && memcmp(sha256, f->lock->sha256, 32) != 0) {
            fault(l, path, "another SHA-256");
        }
    }
    return 0;
}

static int check_source(struct hx_transfer *t, struct listing *l,
                        void (*say)(void *ctx, const char *text), void *ctx, struct hx_error *err)
{
    struct hx_error e = {0};
    int r = hx_transfer_list(t, l->source->repo, l->source->commit, on_entry, l, &e);
    if (r == -EINTR)
        return hx_fail(err, r, "interrupted; run again to go on");
    if (r < 0) {
        char text[1100];
        snprintf(text, sizeof(text), "files are not compared with upstream in advance: %.900s",
                 e.text);
        say(ctx, text);
        return r == -ENOMEM ? hx_fail(err, r, "out of memory") : 0;
    }
    for (size_t i = 0; i < l->plan->n_files; i++) {
        if (l->plan->files[i].source == l->source && !l->seen[i])
            fault(l, l->plan->files[i].lock->path, "missing");
    }
    if (l->n_faults == 0)
        return 0;
    const char *names = hx_buf_cstr(&l->faults);
    return hx_fail(err, -ESTALE,
                   "upstream changed since this release: %s at %.12s: %u files differ: %s%s; "
                   "nothing is deleted; get the lock file of a newer release, or make one with "
                   "'hx-fetch lock'",
                   l->source->repo, l->source->commit, l->n_faults, names ? names : "",
                   l->n_faults > MAX_NAMES ? ", ..." : "");
}

int hx_upstream_check(struct hx_transfer *t, const struct hx_plan *plan,
                      void (*say)(void *ctx, const char *text), void *ctx, struct hx_error *err)
{
    int r = 0;
    for (size_t s = 0; r == 0 && s < plan->lock->n_sources; s++) {
        struct listing l = {.plan = plan,
                            .source = &plan->lock->sources[s],
                            .faults = HX_BUF_INIT(8192),
                            .seen = calloc(plan->n_files + 1, sizeof(bool))};
        if (!l.seen)
            return hx_fail(err, -ENOMEM, "out of memory");
        bool used = false;
        for (size_t i = 0; i < plan->n_files; i++)
            used |= plan->files[i].source == l.source;
        if (used)
            r = check_source(t, &l, say, ctx, err);
        hx_buf_done(&l.faults);
        free(l.seen);
    }
    return r;
}
