/* Transitions of the journal at and after a start. */
#include "bundle/start.h"

#include <stdio.h>
#include <string.h>

#include "bundle/tree.h"

/* Seconds that power was off before this start: from the last clean stop of another start to its
 * beginning; -1 not known. */
static int64_t off_seconds(const struct hx_store *s, int confirmed)
{
    const struct hx_journal *j = &s->j;
    if (confirmed >= 0)
        return confirmed ? HX_COLD_SECONDS : 0;
    if (!j->stopped_at || !s->boot_time || strcmp(j->stopped_boot, s->boot_id) == 0 ||
        j->stopped_at < j->armed_at || s->boot_time < j->stopped_at)
        return -1;
    return s->boot_time - j->stopped_at;
}

static int save_and_publish(struct hx_store *s, struct hx_error *err)
{
    int r = hx_store_save(s, err);
    return r < 0 ? r : hx_store_publish(s, err);
}

int hx_start_fail(struct hx_store *s, const char *why, struct hx_error *err)
{
    struct hx_journal *j = &s->j;
    if (j->state != HX_BUNDLE_ARMED && j->state != HX_BUNDLE_PROBING)
        return hx_fail(err, -EINVAL, "there is no slot that waits for its confirmation");
    /* A slot that failed is wiped by the next install; until then it can be looked at. */
    j->cold_wanted = j->state == HX_BUNDLE_PROBING;
    j->state = HX_BUNDLE_ROLLED_BACK;
    j->candidate = HX_SLOT_NONE;
    j->armed_boot[0] = '\0';
    if (j->cold_wanted)
        snprintf(j->armed_boot, sizeof(j->armed_boot), "%s", s->boot_id);
    j->armed_at = s->now;
    snprintf(j->why, sizeof(j->why), "%s", why);
    return save_and_publish(s, err);
}

/* Whether a slot may be loaded on this kernel; why else. */
static int judge_slot(struct hx_store *s, enum hx_slot slot, const char *kernel, bool *fits,
                      bool *other_kernel, char *why, size_t size, struct hx_error *err)
{
    struct hx_slot_facts f;
    int r = hx_slot_check(s, slot, &f, err);
    if (r < 0)
        return r;
    *fits = *other_kernel = false;
    if (!f.present)
        snprintf(why, size, "slot %c is absent", hx_slot_letter(slot));
    else if (!f.intact)
        snprintf(why, size, "slot %c is damaged: %s", hx_slot_letter(slot), f.damage);
    else if (strcmp(f.kernel, kernel) != 0)
        *other_kernel = snprintf(why, size, "slot %c is for kernel %.100s, %.100s is running",
                                 hx_slot_letter(slot), f.kernel, kernel) > 0;
    else
        *fits = true;
    return 0;
}

static int try_candidate(struct hx_store *s, const char *kernel, int confirmed_off,
                         struct hx_start_plan *plan, bool *give_up, struct hx_error *err)
{
    struct hx_journal *j = &s->j;
    bool again = j->state == HX_BUNDLE_PROBING && strcmp(j->probe_boot, s->boot_id) == 0;
    bool fits, other_kernel;
    char why[256];
    *give_up = false;
    if (!again && j->state == HX_BUNDLE_PROBING && j->starts >= HX_MAX_STARTS) {
        snprintf(plan->why, sizeof(plan->why), "slot %c was loaded at %d starts and not confirmed",
                 hx_slot_letter(j->candidate), j->starts);
        *give_up = true;
        return 0;
    }
    int r = judge_slot(s, j->candidate, kernel, &fits, &other_kernel, why, sizeof(why), err);
    if (r < 0)
        return r;
    if (!fits) {
        snprintf(plan->why, sizeof(plan->why), "%s", why);
        /* Armed for a kernel that has not been started yet: it waits. */
        *give_up = !(other_kernel && j->state == HX_BUNDLE_ARMED);
        return 0;
    }
    plan->action = HX_START_LOAD;
    plan->slot = j->candidate;
    snprintf(plan->why, sizeof(plan->why), "slot %c (%s %s) is on trial, start %d of %d",
             hx_slot_letter(j->candidate), j->name, j->version, again ? j->starts : j->starts + 1,
             HX_MAX_STARTS);
    if (again)
        return 0;
    j->state = HX_BUNDLE_PROBING;
    j->starts++;
    j->off_s = off_seconds(s, confirmed_off);
    snprintf(j->probe_boot, sizeof(j->probe_boot), "%s", s->boot_id);
    /* Recorded before anything is loaded: a driver that takes the machine down counts. */
    return save_and_publish(s, err);
}

int hx_start_decide(struct hx_store *s, const char *kernel, int confirmed_off,
                    struct hx_start_plan *plan, struct hx_error *err)
{
    struct hx_journal *j = &s->j;
    bool give_up = false, fits, other_kernel;
    int r = 0;
    memset(plan, 0, sizeof(*plan));
    plan->slot = HX_SLOT_NONE;
    bool armed_now = j->state == HX_BUNDLE_ARMED && strcmp(j->armed_boot, s->boot_id) == 0;
    if ((j->state == HX_BUNDLE_ARMED && !armed_now) || j->state == HX_BUNDLE_PROBING) {
        r = try_candidate(s, kernel, confirmed_off, plan, &give_up, err);
        if (r == 0 && give_up) {
            char why[sizeof(plan->why)];
            memcpy(why, plan->why, sizeof(why));
            plan->rolled_back = true;
            j->state = HX_BUNDLE_PROBING; /* whatever it was, it had its chance */
            r = hx_start_fail(s, why, err);
        }
        if (r < 0 || plan->action == HX_START_LOAD)
            return r;
    }
    if (j->active == HX_SLOT_NONE) {
        if (!plan->why[0])
            snprintf(plan->why, sizeof(plan->why), "%s",
                     armed_now ? "the new slot is loaded at the next start, after a power-off"
                               : "no driver bundle is active");
        return 0;
    }
    char why[256] = "";
    r = judge_slot(s, j->active, kernel, &fits, &other_kernel, why, sizeof(why), err);
    if (r < 0)
        return r;
    plan->action = fits ? HX_START_LOAD : HX_START_REFUSE;
    plan->slot = j->active;
    char before[sizeof(plan->why)];
    memcpy(before, plan->why, sizeof(before));
    snprintf(plan->why, sizeof(plan->why), "%.200s%sslot %c%s%.100s", before, before[0] ? "; " : "",
             hx_slot_letter(j->active), fits ? " is active" : ": ", why);
    /* Power has been off since a roll-back or an exchange of slots. */
    if (fits && j->cold_wanted && strcmp(j->armed_boot, s->boot_id) != 0) {
        j->off_s = off_seconds(s, confirmed_off);
        if (j->off_s < 0 || j->off_s >= HX_COLD_SECONDS) {
            j->cold_wanted = false;
            r = save_and_publish(s, err);
        }
    }
    return r;
}

int hx_start_stopped(struct hx_store *s, struct hx_error *err)
{
    snprintf(s->j.stopped_boot, sizeof(s->j.stopped_boot), "%s", s->boot_id);
    s->j.stopped_at = s->now;
    return hx_store_save(s, err);
}

int hx_start_commit(struct hx_store *s, struct hx_error *err)
{
    struct hx_journal *j = &s->j;
    if (j->state != HX_BUNDLE_PROBING)
        return hx_fail(err, -EINVAL, "there is no slot that waits for its confirmation");
    j->state = HX_BUNDLE_COMMITTED;
    j->previous = j->active;
    j->active = j->candidate;
    j->candidate = HX_SLOT_NONE;
    j->cold_wanted = false;
    j->why[0] = '\0';
    return save_and_publish(s, err);
}

int hx_bundle_rollback(struct hx_store *s, struct hx_error *err)
{
    struct hx_journal *j = &s->j;
    struct hx_slot_facts f;
    if (j->state == HX_BUNDLE_ARMED || j->state == HX_BUNDLE_PROBING)
        return hx_start_fail(s, "the owner rolled it back", err);
    if (j->previous == HX_SLOT_NONE)
        return hx_fail(err, -ENOENT, "there is no previous slot to go back to");
    int r = hx_slot_check(s, j->previous, &f, err);
    if (r < 0)
        return r;
    if (!f.intact)
        return hx_fail(err, -ENOENT, "the previous slot %c cannot be used: %s",
                       hx_slot_letter(j->previous), f.present ? f.damage : "it is absent");
    enum hx_slot was = j->active;
    j->active = j->previous;
    j->previous = was;
    j->candidate = HX_SLOT_NONE; /* what an interrupted install left */
    j->state = HX_BUNDLE_ROLLED_BACK;
    j->cold_wanted = true;
    j->armed_at = s->now;
    snprintf(j->armed_boot, sizeof(j->armed_boot), "%s", s->boot_id);
    snprintf(j->name, sizeof(j->name), "%s", f.name);
    snprintf(j->version, sizeof(j->version), "%s", f.version);
    snprintf(j->kernel, sizeof(j->kernel), "%s", f.kernel);
    snprintf(j->why, sizeof(j->why), "the owner rolled it back");
    return save_and_publish(s, err);
}

int hx_bundle_remove(struct hx_store *s, bool all, struct hx_error *err)
{
    struct hx_journal *j = &s->j;
    enum hx_slot keep = all ? HX_SLOT_NONE : j->active;
    if (j->state == HX_BUNDLE_PROBING && !all)
        return hx_fail(err, -EBUSY, "slot %c is loaded and not confirmed; roll it back first",
                       hx_slot_letter(j->candidate));
    j->candidate = j->previous = HX_SLOT_NONE;
    j->active = keep;
    j->state = keep == HX_SLOT_NONE ? HX_BUNDLE_ABSENT : HX_BUNDLE_COMMITTED;
    if (all)
        j->cold_wanted = true;
    /* The journal first: nothing that it names is taken away. */
    int r = save_and_publish(s, err);
    for (int slot = 0; r == 0 && slot < HX_SLOT_MAX; slot++)
        if (slot != (int)keep)
            r = hx_tree_remove(s->dir, hx_slot_name((enum hx_slot)slot), err);
    if (r == 0)
        r = hx_tree_remove(s->dir, "scratch", err);
    if (r == 0 && all)
        r = hx_tree_remove(s->dir, "build.log", err);
    return r;
}
