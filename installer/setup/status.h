/* "Is it working, and if not, what now": from state files and unit states, for `hx status`, the
 * wizard's last screen and the console. Reads only. */
#ifndef HX_SETUP_STATUS_H
#define HX_SETUP_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/buf.h"
#include "hw/command.h"
#include "hw/root.h"
#include "setup/box.h"
#include "setup/checks.h"

enum hx_status_level { HX_STATUS_OK, HX_STATUS_WORKING, HX_STATUS_TODO, HX_STATUS_FAULT };

struct hx_status_unit {
    const char *name; /* without .service */
    char active[24];  /* active, activating, inactive, failed, ...; "" not known */
    char result[24];  /* success, exit-code, ... */
    char text[160];   /* what the service says about itself */
};

#define HX_STATUS_UNITS 7

struct hx_status {
    bool configured, box_broken;
    char box_error[256];
    struct hx_box box;    /* if configured */
    char address[64];     /* "" none */
    char fingerprint[80]; /* of the host key, "" none */
    struct hx_checks_summary checks;
    char checks_error[200];
    struct {
        bool there;
        char phase[16], waiting[192], model[65];
        double percent; /* 0-100 */
        int64_t eta_s;  /* < 0: not known */
        int64_t rate;   /* bytes per second */
    } fetch;
    struct hx_status_unit unit[HX_STATUS_UNITS];
    bool any_model; /* /srv/models/current is there */
};

int hx_status_read(const struct hx_root *root, const struct hx_commands *tools,
                   struct hx_status *out, struct hx_error *err) HX_MUST;
void hx_status_done(struct hx_status *s);

/* One sentence each; what is "" when there is nothing to do. */
enum hx_status_level hx_status_verdict(const struct hx_status *s, char *head, size_t head_size,
                                       char *what, size_t what_size);
int hx_status_text(const struct hx_status *s, struct hx_buf *out);
int hx_status_json(const struct hx_status *s, struct hx_buf *out);

/* First address of the machine that others can reach, "" if there is none. */
void hx_status_address(const struct hx_commands *tools, char *out, size_t size);

#endif
