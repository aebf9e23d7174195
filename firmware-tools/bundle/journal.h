/* The journal of driver slots: which slot the next start loads and how far an install is. One JSON
 * file, replaced as a whole, so that a cut at any moment leaves the old or the new one. */
#ifndef HX_BUNDLE_JOURNAL_H
#define HX_BUNDLE_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define HX_JOURNAL_NAME "journal.json"
#define HX_JOURNAL_MAX  (64u << 10)

enum hx_slot { HX_SLOT_NONE = -1, HX_SLOT_A, HX_SLOT_B, HX_SLOT_MAX };

/* hardware.md 2.7. Up to SIGNED the candidate slot may be half written and is never loaded. */
enum hx_bundle_state {
    HX_BUNDLE_ABSENT,
    HX_BUNDLE_VERIFIED,
    HX_BUNDLE_STAGED,
    HX_BUNDLE_BUILT,
    HX_BUNDLE_SIGNED,
    HX_BUNDLE_ARMED,   /* the next start loads the candidate */
    HX_BUNDLE_PROBING, /* the candidate was loaded and is not confirmed yet */
    HX_BUNDLE_COMMITTED,
    HX_BUNDLE_FAILED,
    HX_BUNDLE_ROLLED_BACK, /* the active slot is what it was before, or the previous one */
    HX_BUNDLE_STATE_MAX,
};
const char *hx_bundle_state_name(enum hx_bundle_state s);
char hx_slot_letter(enum hx_slot s); /* 'a', 'b', '-' */

struct hx_journal {
    enum hx_bundle_state state;
    enum hx_slot active, previous, candidate;
    /* of the last install */
    char name[65], version[65], kernel[128], manifest_sha256[65];
    /* when the slot to load was decided, and how often it was loaded since */
    char armed_boot[48];
    int64_t armed_at;
    char probe_boot[48]; /* last start that loaded it */
    int starts;
    int64_t off_s;         /* power was off before that start; -1 not known */
    bool cold_wanted;      /* a power-off is due */
    char stopped_boot[48]; /* last clean stop */
    int64_t stopped_at;    /* seconds since 1970, 0 = none */
    char why[256];         /* of a failure or roll-back */
    int64_t changed_at;
};

void hx_journal_init(struct hx_journal *j);
/* Any bytes are fine; -EINVAL names what is wrong. */
int hx_journal_parse(const char *text, size_t len, struct hx_journal *out,
                     struct hx_error *err) HX_MUST;
/* The same as text. */
int hx_journal_format(const struct hx_journal *j, struct hx_buf *out);
/* What must hold between the fields; *why else. */
bool hx_journal_sound(const struct hx_journal *j, const char **why);
/* The slot that a start would load now. */
enum hx_slot hx_journal_next(const struct hx_journal *j);

#endif
