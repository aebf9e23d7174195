/* Journal: rows of fields, read strictly and written in the same order. */
#include "bundle/journal.h"

#include <stddef.h>
#include <string.h>

#include "base/json_read.h"
#include "base/json_write.h"

static const char *const state_names[HX_BUNDLE_STATE_MAX] = {
    "absent", "verified", "staged",    "built",  "signed",
    "armed",  "probing",  "committed", "failed", "rolled_back",
};

enum row_kind { TEXT, NUMBER, COUNT, FLAG, SLOT, STATE };

static const struct {
    const char *name;
    enum row_kind kind;
    size_t offset, size;
} rows[] = {
#define J(field) offsetof(struct hx_journal, field), sizeof(((struct hx_journal *)0)->field)
    {"state", STATE, J(state)},
    {"active", SLOT, J(active)},
    {"previous", SLOT, J(previous)},
    {"candidate", SLOT, J(candidate)},
    {"name", TEXT, J(name)},
    {"version", TEXT, J(version)},
    {"kernel", TEXT, J(kernel)},
    {"manifest_sha256", TEXT, J(manifest_sha256)},
    {"armed_boot", TEXT, J(armed_boot)},
    {"armed_at", NUMBER, J(armed_at)},
    {"probe_boot", TEXT, J(probe_boot)},
    {"starts", COUNT, J(starts)},
    {"off_s", NUMBER, J(off_s)},
    {"cold_wanted", FLAG, J(cold_wanted)},
    {"stopped_boot", TEXT, J(stopped_boot)},
    {"stopped_at", NUMBER, J(stopped_at)},
    {"why", TEXT, J(why)},
    {"changed_at", NUMBER, J(changed_at)},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

const char *hx_bundle_state_name(enum hx_bundle_state s)
{
    return state_names[s];
}

char hx_slot_letter(enum hx_slot s)
{
    return s == HX_SLOT_A ? 'a' : s == HX_SLOT_B ? 'b' : '-';
}

void hx_journal_init(struct hx_journal *j)
{
    memset(j, 0, sizeof(*j));
    j->active = j->previous = j->candidate = HX_SLOT_NONE;
    j->off_s = -1;
}

static bool read_text(struct hx_jv v, char *to, size_t size)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    if (!s || len >= size || memchr(s, '\0', len))
        return false;
    memcpy(to, s, len);
    to[len] = '\0';
    return true;
}

static bool read_row(struct hx_jv v, size_t row, struct hx_journal *j)
{
    void *to = (char *)j + rows[row].offset;
    int64_t n;
    bool ok = true;
    switch (rows[row].kind) {
    case TEXT: return read_text(v, to, rows[row].size);
    case NUMBER:
        ok = hx_jv_int64(v, &n) && n >= -1;
        if (ok)
            *(int64_t *)to = n;
        return ok;
    case COUNT:
        ok = hx_jv_int64(v, &n) && n >= 0 && n <= 1000000;
        if (ok)
            *(int *)to = (int)n;
        return ok;
    case FLAG: return hx_jv_bool(v, to);
    case SLOT:
        *(enum hx_slot *)to = hx_jv_str_is(v, "a")   ? HX_SLOT_A
                              : hx_jv_str_is(v, "b") ? HX_SLOT_B
                                                     : HX_SLOT_NONE;
        return *(enum hx_slot *)to != HX_SLOT_NONE || hx_jv_type(v) == HX_JSON_NULL;
    case STATE:
        for (int s = 0; s < HX_BUNDLE_STATE_MAX; s++)
            if (hx_jv_str_is(v, state_names[s])) {
                *(enum hx_bundle_state *)to = (enum hx_bundle_state)s;
                return true;
            }
        return false;
    }
    return false;
}

bool hx_journal_sound(const struct hx_journal *j, const char **why)
{
    bool pending = j->state >= HX_BUNDLE_VERIFIED && j->state <= HX_BUNDLE_PROBING;
    *why = NULL;
    if (j->active != HX_SLOT_NONE && (j->active == j->previous || j->active == j->candidate))
        *why = "one slot has two uses";
    else if (j->candidate != HX_SLOT_NONE && j->candidate == j->previous)
        *why = "one slot has two uses";
    else if (pending != (j->candidate != HX_SLOT_NONE))
        *why = "state and candidate do not fit";
    else if (j->state == HX_BUNDLE_COMMITTED && j->active == HX_SLOT_NONE)
        *why = "nothing is active after a commit";
    else if (j->state == HX_BUNDLE_ABSENT &&
             (j->active != HX_SLOT_NONE || j->previous != HX_SLOT_NONE))
        *why = "absent, but a slot is in use";
    return !*why;
}

int hx_journal_parse(const char *text, size_t len, struct hx_journal *out, struct hx_error *err)
{
    struct hx_json_limits limits = {HX_JOURNAL_MAX, 200, 4, 0};
    struct hx_json *doc;
    struct hx_journal j;
    int64_t schema;
    const char *why;
    hx_journal_init(&j);
    int r = hx_json_parse(text, len, &limits, &doc, err);
    if (r < 0)
        return hx_wrap(err, r, HX_JOURNAL_NAME);
    struct hx_jv root = hx_json_root(doc);
    if (!hx_jv_int64(hx_jv_get(root, "schema"), &schema) || schema != 1)
        r = hx_fail(err, -EINVAL, HX_JOURNAL_NAME ": schema is not 1");
    for (size_t i = 0; r == 0 && i < N_ROWS; i++)
        if (!read_row(hx_jv_get(root, rows[i].name), i, &j))
            r = hx_fail(err, -EINVAL, HX_JOURNAL_NAME ": %s is missing or not usable",
                        rows[i].name);
    if (r == 0 && !hx_journal_sound(&j, &why))
        r = hx_fail(err, -EINVAL, HX_JOURNAL_NAME ": %s", why);
    hx_json_free(doc);
    if (r == 0)
        *out = j;
    return r;
}

int hx_journal_format(const struct hx_journal *j, struct hx_buf *out)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    for (size_t i = 0; i < N_ROWS; i++) {
        const void *from = (const char *)j + rows[i].offset;
        hx_jw_key(&w, rows[i].name);
        switch (rows[i].kind) {
        case TEXT: hx_jw_str(&w, from); break;
        case NUMBER: hx_jw_int(&w, *(const int64_t *)from); break;
        case COUNT: hx_jw_int(&w, *(const int *)from); break;
        case FLAG: hx_jw_bool(&w, *(const bool *)from); break;
        case SLOT:
            if (*(const enum hx_slot *)from == HX_SLOT_NONE)
                hx_jw_null(&w);
            else
                hx_jw_str(&w, *(const enum hx_slot *)from == HX_SLOT_A ? "a" : "b");
            break;
        case STATE: hx_jw_str(&w, state_names[*(const enum hx_bundle_state *)from]); break;
        }
    }
    hx_jw_end_object(&w);
    hx_buf_putc(out, '\n');
    return out->failed ? -ENOMEM : 0;
}

enum hx_slot hx_journal_next(const struct hx_journal *j)
{
    bool candidate = j->state == HX_BUNDLE_ARMED || j->state == HX_BUNDLE_PROBING;
    return candidate ? j->candidate : j->active;
}
