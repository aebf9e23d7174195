/* What is in the machine: cards, driver, kernel words (hx-cards list and state). Read only. */
#ifndef HX_CARDS_INVENTORY_H
#define HX_CARDS_INVENTORY_H

#include "base/buf.h"
#include "facts.h"
#include "options.h"
#include "verdict.h"

/* What p2p_check measured last (p2p.json), as far as it belongs to this machine's cards. */
struct hx_last_check {
    bool there, this_boot;
    char compute[16]; /* axis: "throttled", "reduced", "full", "unknown" */
    int sm[HX_AXIS_VALUES], n_sm;
    char p2p[16], layout[16];
    /* Checks of the result that failed, as far as names fit. */
    char failed[32][8];
    int n_failed;
    int n_checks;
};

struct hx_inventory {
    struct hx_facts facts;
    struct hx_judgement judgement; /* of the read-only part */
    struct hx_last_check last;
};

/* Reads everything. Absent driver, cards or results are no errors. Free with free(). */
int hx_inventory_read(const struct hx_cards_options *o, struct hx_inventory **out,
                      struct hx_error *err) HX_MUST;
/* "stock", "unlocked", "partly unlocked", "memory unlocked", "more than it has", "odd",
 * "lost", "not seen by the driver". "memory unlocked": compute was not measured. */
const char *hx_card_state(const struct hx_inventory *v, const struct hx_card *c);
/* Words of the kernel command line that matter to cards, separated by spaces. */
void hx_kernel_words(const char *cmdline, char *out, size_t size);
/* Throttle reasons as words, "none" if no bit is set, "" if unknown. */
void hx_reason_words(int64_t reasons, char *out, size_t size);
/* redact: UUIDs and bus addresses become card-0, card-1, ...; the builder's name is left out. */
int hx_inventory_json(const struct hx_inventory *v, bool redact, struct hx_buf *out);
void hx_inventory_text(const struct hx_inventory *v);
int hx_last_check_parse(const char *text, size_t len, const char *boot_id,
                        struct hx_last_check *out, struct hx_error *err) HX_MUST;

#endif
