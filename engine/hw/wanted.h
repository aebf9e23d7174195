/* What the box is meant to be: settings of the owner and the active driver bundle. */
#ifndef HX_HW_WANTED_H
#define HX_HW_WANTED_H

#include <stdbool.h>
#include <stddef.h>

#include <hx/error.h>

enum hx_p2p_kind { HX_P2P_NONE, HX_P2P_MAILBOX, HX_P2P_BAR1, HX_P2P_KIND_UNKNOWN };

enum hx_cold_start { HX_COLD_NOT_RECORDED, HX_COLD_YES, HX_COLD_UNKNOWN, HX_COLD_WARM };
enum hx_way_back { HX_BACK_NOT_RECORDED, HX_BACK_YES, HX_BACK_FIRST, HX_BACK_NO };

struct hx_wanted_bundle {
    bool present;
    char name[64], driver_version[32];
    char module_dir[256];    /* folder of nvidia.ko for the running kernel */
    char registry_keys[512]; /* "A=1;B=0x2" */
    char srcversion[64];     /* of nvidia.ko as installed; "" = not recorded */
    bool safety_marker_required, signed_by_trusted;
    bool state_ok;                 /* installed files match the record */
    bool by_path;                  /* the appliance loads modules by path (hardware.md 2.7) */
    enum hx_cold_start cold_start; /* "cold_start": "yes", "unknown" or "warm" */
    enum hx_way_back way_back;     /* "way_back": "yes", "first" or "no" */
};

struct hx_wanted {
    int cards;       /* 1 to 16 */
    int power_cap_w; /* 0: none set */
    enum hx_p2p_kind p2p_kind;
    char control_interface[32]; /* "" = not set */
    bool has_default_entry, default_entry_has_modules;
    bool has_boot_image, boot_image_modules, boot_image_options;
    struct hx_wanted_bundle bundle;
};

/* Four cards, 180 W, no P2P, loopback, no bundle. */
void hx_wanted_defaults(struct hx_wanted *w);
/* JSON in the form of tests/vectors/hardware/cases/NAME/config.json; hx-cards writes the active
 * bundle's part in the same form to /var/lib/hx170/driver/active.json ("bundle": {...} with
 * "by_path": true, and no boot_image). Keys that are absent keep what w holds; a key of the wrong
 * type or size is -EINVAL and names it. */
int hx_wanted_read(const char *path, struct hx_wanted *w, struct hx_error *err) HX_MUST;
int hx_wanted_parse(const char *text, size_t len, const char *name, struct hx_wanted *w,
                    struct hx_error *err) HX_MUST;
/* cards.conf (decisions.md 21): [cards] count, power_cap, p2p_kind; a missing file is fine. */
int hx_wanted_conf(const char *file, const char *folder, struct hx_wanted *w,
                   struct hx_error *err) HX_MUST;

#endif
