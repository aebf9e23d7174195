/* Health of the cards while they work (hardware.md 2.8). The judgement is pure: readings and a
 * clock in, events and wishes out. It never resets a card, reloads a module or kills a process. */
#ifndef HX_CARDS_WATCH_H
#define HX_CARDS_WATCH_H

#include "hw/klog.h"
#include "hw/nvml.h"
#include "hw/pci.h"
#include "hw/variant.h"

#define HX_WATCH_INTERVAL_S  5
#define HX_WATCH_SLOW_S      60 /* error counters and config space */
#define HX_WATCH_CAP_STEP_W  10
#define HX_WATCH_CAP_FLOOR_W 120
#define HX_WATCH_COOL_C      5 /* so far below a threshold counts as cool again */
#define HX_WATCH_SENSOR_S    30
#define HX_WATCH_CARDS       16
#define HX_WATCH_EVENTS      32

enum hx_watch_level { HX_WATCH_INFO, HX_WATCH_WARN, HX_WATCH_STOP }; /* STOP: the engine must end */

struct hx_watch_event {
    const char *id; /* "cap", "hot", "sensor", "hang", "lost", "xid", "recovery", "aer", "stuck" */
    enum hx_watch_level level;
    int card; /* -1: all or none */
    char text[200];
};

struct hx_watch_card {
    struct hx_pci_address address;
    bool ours;  /* a CMP 170HX; others are not touched */
    bool alive; /* config space answers */
    char slot[48];
    struct hx_pci_aer aer;
};

/* One round of readings. What was not read this time is marked so. */
struct hx_watch_look {
    int64_t now_s;
    const struct hx_nvml_snapshot *nvml; /* NULL: not asked */
    const struct hx_klog_facts *klog;    /* NULL: not readable */
    bool slow;                           /* cards[] was read anew */
    struct hx_watch_card card[HX_WATCH_CARDS];
    int n_cards;
};

struct hx_watch {
    int cap_w; /* configured; 0: not watched */
    /* what went before */
    struct {
        int wanted_w; /* cap that this card should have now */
        bool cap_told, hot, lost, recovery_told, aer_told;
        int64_t sensor_since; /* 0: readable */
        bool sensor_told;
        struct hx_pci_aer aer;
        int64_t aer_at;
    } card[HX_WATCH_CARDS];
    bool xid_seen[HX_XID_LIMIT];
    int64_t busy_since;
    bool hang_told, stuck;
    /* results of the last look */
    struct hx_watch_event event[HX_WATCH_EVENTS];
    int n_events;
    int set_w[HX_WATCH_CARDS]; /* limit to set, 0: leave it */
    bool stop_engine, mark_hang;
};

void hx_watch_init(struct hx_watch *w, int cap_w);
/* Xids that are in the log when watching begins belong to the past. */
void hx_watch_forget_log(struct hx_watch *w, const struct hx_klog_facts *klog);
void hx_watch_judge(struct hx_watch *w, const struct hx_watch_look *look);
/* Index in the snapshot of the card with this address, -1: the driver does not see it. */
int hx_watch_device(const struct hx_nvml_snapshot *s, const struct hx_pci_address *a);

#endif
