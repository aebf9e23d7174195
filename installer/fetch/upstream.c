#include "fetch/upstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

#define SHOWN_NAMES 4

struct check {
    const struct hx_plan *plan;
    const struct hx_lock_source *source;
    bool *seen; /* of the plan's files */
    char changed[600];
    size_t n_changed;
};

static void note_change(struct check *c, const struct hx_lock_file *f, uint64_t size,
                        const uint8_t *sha256)
{
    size_t at = strlen(c->changed);
    char want[HX_SHA256_HEX] = "", have[HX_SHA256_HEX] = "";
    if (c->n_changed++ >= SHOWN_NAMES)
        return;
    if (size != f->size) {
        snprintf(c->changed + at, sizeof(c->changed) - at, "%s%.80s has %llu bytes, locked %llu",
                 at ? "; " : "", f->path, (unsigned long long)size, (unsigned long long)f->size);
        return;
    }
    hx_sha256_to_hex(f->sha256, want);
    hx_sha256_to_hex(sha256, have);
    snprintf(c->changed + at, sizeof(c->changed) - at,
             "%s%.80s has SHA-256 %.12s..., locked %.12s...", at ? "; " : "", f->path, have, want);
}

static int on_entry(void *ctx, const char *path, uint64_t size, const uint8_t *sha256)
{
    struct check *c = ctx;
    for (size_t i = 0; i < c->plan->n_files; i++) {
        const struct hx_plan_file *p = &c->plan->files[i];
        if (p->source != c->source || strcmp(p->lock->path, path) != 0)
            continue;
        c->seen[i] = true;
        if (size != p->lock->size ||
            (sha256 && p->lock->has_sha256 && memcmp(sha256, p->lock->sha256, 32) != 0))
            note_change(c, p->lock, size, sha256);
    }
    return 0;
}

static int check_missing(const struct check *c, struct hx_error *err)
{
    char names[400] = "";
    size_t n = 0, at = 0;
    for (size_t i = 0; i < c->plan->n_files; i++) {
        const struct hx_plan_file *p = &c->plan->files[i];
        if (p->source != c->source || c->seen[i])
            continue;
        if (n++ < SHOWN_NAMES)
            at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%.80s", at ? ", " : "",
                                   p->lock->path);
    }
    if (n == 0)
        return 0;
    return hx_fail(
        err, -ENOENT,
        "upstream changed since this release: %s at %.12s lacks %zu files: %s%s. Nothing "
        "was deleted; add a mirror to [fetch] endpoints, use hx-fetch import, or get a "
        "newer lock file",
        c->source->repo, c->source->commit, n, names, n > SHOWN_NAMES ? ", ..." : "");
}

/* Sources of which the plan has files only. */
static bool is_used(const struct hx_plan *plan, const struct hx_lock_source *source)
{
    for (size_t i = 0; i < plan->n_files; i++) {
        if (plan->files[i].source == source)
            return true;
    }
    return false;
}

static int check_source(struct hx_transfer *t, struct check *c, bool *checked, struct hx_error *err)
{
    const struct hx_lock_source *s = c->source;
    c->changed[0] = '\0';
    c->n_changed = 0;
    int r = hx_transfer_list(t, s->repo, s->commit, on_entry, c, err);
    if (r == -ENOTSUP) {
        *checked = false;
        return 0;
    }
    if (r == -ENOENT)
        return hx_wrap(err, r,
                       "%s has no commit %.12s any more (a mirror in [fetch] endpoints or hx-fetch "
                       "import may help)",
                       s->repo, s->commit);
    if (r < 0)
        return hx_wrap(err, r, "files of %s", s->repo);
    if (c->n_changed > 0)
        return hx_fail(
            err, -ESTALE,
            "upstream changed since this release: %s at %.12s: %s%s. Nothing was deleted; "
            "get a newer lock file or make one with hx-fetch lock",
            s->repo, s->commit, c->changed, c->n_changed > SHOWN_NAMES ? "; ..." : "");
    return check_missing(c, err);
}

int hx_fetch_check_upstream(struct hx_transfer *t, const struct hx_plan *plan, bool *checked,
                            struct hx_error *err)
{
    struct check c = {.plan = plan, .seen = calloc(plan->n_files, sizeof(*c.seen))};
    bool all = true;
    int r = c.seen ? 0 : hx_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < plan->lock->n_sources; i++) {
        c.source = &plan->lock->sources[i];
        if (is_used(plan, c.source))
            r = check_source(t, &c, &all, err);
    }
    free(c.seen);
    if (r == 0 && checked)
        *checked = all;
    return r;
}
