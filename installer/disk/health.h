/* Whether this start is good enough to keep: the gate in front of boot-complete.target. A system
 * has to be at least as good as the last good one on this box: cards that are missing everywhere
 * and an engine that never answered are no reason to go back. */
#ifndef HX_DISK_HEALTH_H
#define HX_DISK_HEALTH_H

#include "hw/root.h"

struct hx_health {
    bool state;  /* /var is mounted from a disk */
    bool ssh;    /* something listens on port 22 */
    bool config; /* what the wizard kept was rendered; true on a box that has no answers yet */
    int n_cards; /* that the driver shows */
    bool engine; /* its health endpoint says 200 */
};

struct hx_health_record { /* of the last good start */
    int n_cards;
    bool engine;
};

/* port: of the engine on the loopback address. Never fails: what cannot be read is not good. */
void hx_health_look(const struct hx_root *root, unsigned port, struct hx_health *out);
/* A missing record asks for nothing. */
int hx_health_record_read(const struct hx_root *root, struct hx_health_record *out,
                          struct hx_error *err) HX_MUST;
int hx_health_record_write(const struct hx_root *root, const struct hx_health *now,
                           struct hx_error *err) HX_MUST;
/* Why a start on trial was ended, kept for the version that comes after it. */
int hx_health_give_up(const struct hx_root *root, const char *version, const char *reason,
                      struct hx_error *err) HX_MUST;
/* The reason that was kept for this version; false: none. */
bool hx_health_given_up(const struct hx_root *root, const char *version, char *reason, size_t size);
/* NULL: good; else what is missing. */
const char *hx_health_missing(const struct hx_health *now, const struct hx_health_record *before);

#endif
