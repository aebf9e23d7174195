/* Rules of the watch, one function for each row of the table. */
#include "watch.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void hx_watch_init(struct hx_watch *w, int cap_w)
{
    memset(w, 0, sizeof(*w));
    w->cap_w = cap_w;
    for (int i = 0; i < HX_WATCH_CARDS; i++)
        w->card[i].wanted_w = cap_w;
}

void hx_watch_forget_log(struct hx_watch *w, const struct hx_klog_facts *klog)
{
    for (int i = 0; i < klog->n_xids; i++)
        if (klog->xid[i].number < HX_XID_LIMIT)
            w->xid_seen[klog->xid[i].number] = true;
}

int hx_watch_device(const struct hx_nvml_snapshot *s, const struct hx_pci_address *a)
{
    for (int i = 0; i < s->n_devices; i++) {
        struct hx_pci_address b;
        if (hx_pci_address_parse(s->device[i].bus_id, &b) && hx_pci_address_equal(a, &b))
            return i;
    }
    return -1;
}

static void tell(struct hx_watch *w, const char *id, enum hx_watch_level level, int card,
                 const char *fmt, ...) HX_PRINTF(5, 6);
static void tell(struct hx_watch *w, const char *id, enum hx_watch_level level, int card,
                 const char *fmt, ...)
{
    if (level == HX_WATCH_STOP)
        w->stop_engine = true;
    if (w->n_events == HX_WATCH_EVENTS)
        return;
    struct hx_watch_event *e = &w->event[w->n_events++];
    e->id = id;
    e->level = level;
    e->card = card;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
}

/* Heat first: it decides which limit the card should have. */
static void judge_heat(struct hx_watch *w, int i, const struct hx_nvml_device *d)
{
    const struct hx_hw_limits *l = &hx_hw_limits;
    bool known_core = d->core_c != HX_UNKNOWN, known_memory = d->memory_c != HX_UNKNOWN;
    bool fatal = (known_core && d->core_c >= l->core_fail_c) ||
                 (known_memory && d->memory_c >= l->memory_fail_c);
    bool hot = (known_core && d->core_c >= l->core_warn_c) ||
               (known_memory && d->memory_c >= l->memory_warn_c);
    bool cool = (!known_core || d->core_c < l->core_warn_c - HX_WATCH_COOL_C) &&
                (!known_memory || d->memory_c < l->memory_warn_c - HX_WATCH_COOL_C);
    if (fatal)
        tell(w, "hot", HX_WATCH_STOP, i, "card %d: core %d C, memory %d C; the engine is stopped",
             i, known_core ? d->core_c : 0, known_memory ? d->memory_c : 0);
    else if (hot && !w->card[i].hot)
        tell(w, "hot", HX_WATCH_WARN, i,
             "card %d: core %d C, memory %d C; the power limit is lowered while it lasts", i,
             known_core ? d->core_c : 0, known_memory ? d->memory_c : 0);
    if (hot) {
        w->card[i].hot = true;
        int from = w->card[i].wanted_w               ? w->card[i].wanted_w
                   : d->power_limit_mw != HX_UNKNOWN ? d->power_limit_mw / 1000
                                                     : 0;
        if (from > HX_WATCH_CAP_FLOOR_W)
            from -= HX_WATCH_CAP_STEP_W;
        w->card[i].wanted_w = from && from < HX_WATCH_CAP_FLOOR_W ? HX_WATCH_CAP_FLOOR_W : from;
    } else if (cool && w->card[i].hot) {
        tell(w, "hot", HX_WATCH_INFO, i, "card %d has cooled down", i);
        w->card[i].hot = false;
        w->card[i].wanted_w = w->cap_w;
    }
}

static void judge_cap(struct hx_watch *w, int i, const struct hx_nvml_device *d)
{
    int wanted = w->card[i].wanted_w;
    if (!wanted || d->power_limit_mw == HX_UNKNOWN)
        return;
    if (d->power_min_mw != HX_UNKNOWN && wanted < d->power_min_mw / 1000)
        wanted = d->power_min_mw / 1000;
    if (d->power_max_mw != HX_UNKNOWN && wanted > d->power_max_mw / 1000)
        wanted = d->power_max_mw / 1000;
    int off = d->power_limit_mw - wanted * 1000;
    int most = hx_hw_limits.cap_tolerance_w * 1000;
    if (off <= most && off >= -most) {
        w->card[i].cap_told = false;
        return;
    }
    w->set_w[i] = wanted;
    if (!w->card[i].cap_told && !w->card[i].hot)
        tell(w, "cap", HX_WATCH_INFO, i, "card %d: the power limit is %d W, set to %d W again", i,
             d->power_limit_mw / 1000, wanted);
    w->card[i].cap_told = true;
}

/* A memory sensor that is gone while the card works. */
static void judge_sensor(struct hx_watch *w, int i, const struct hx_nvml_device *d, int64_t now)
{
    bool load = d->power_mw != HX_UNKNOWN && d->power_mw > hx_hw_limits.hang_power_w * 1000;
    if (d->memory_c != HX_UNKNOWN || !load) {
        w->card[i].sensor_since = 0;
        w->card[i].sensor_told = false;
        return;
    }
    if (!w->card[i].sensor_since)
        w->card[i].sensor_since = now;
    if (now - w->card[i].sensor_since >= HX_WATCH_SENSOR_S && !w->card[i].sensor_told) {
        w->card[i].sensor_told = true;
        tell(w, "sensor", HX_WATCH_STOP, i,
             "card %d: memory temperature cannot be read for %d s under load; the engine is "
             "stopped",
             i, HX_WATCH_SENSOR_S);
    }
}

static void judge_recovery(struct hx_watch *w, int i, const struct hx_nvml_device *d)
{
    bool wants = d->recovery != HX_UNKNOWN && d->recovery != HX_NVML_RECOVERY_NONE;
    if (wants && !w->card[i].recovery_told)
        tell(w, "recovery", HX_WATCH_STOP, i,
             "card %d: the driver asks for a reset or a restart. The engine is stopped; start cold",
             i);
    w->card[i].recovery_told = wants;
}

static void judge_lost(struct hx_watch *w, int i, bool lost, const char *slot)
{
    if (lost && !w->card[i].lost)
        tell(w, "lost", HX_WATCH_STOP, i,
             "card %d%s%s fell off the bus. Power the machine off; a restart does not bring it "
             "back",
             i, slot[0] ? ", slot " : "", slot);
    w->card[i].lost = w->card[i].lost || lost;
}

static void judge_aer(struct hx_watch *w, int i, const struct hx_watch_card *c, int64_t now)
{
    if (!c->aer.known)
        return;
    if (w->card[i].aer.known && now > w->card[i].aer_at) {
        uint64_t before = w->card[i].aer.correctable;
        uint64_t more = c->aer.correctable > before ? c->aer.correctable - before : 0;
        double per_minute = (double)more * 60 / (double)(now - w->card[i].aer_at);
        bool fatal =
            c->aer.nonfatal > w->card[i].aer.nonfatal || c->aer.fatal > w->card[i].aer.fatal;
        bool bad = fatal || per_minute > hx_hw_limits.aer_correctable_per_min;
        if (bad && !w->card[i].aer_told)
            tell(w, "aer", HX_WATCH_WARN, i, "card %d%s%s: the link reports %s (%.0f a minute)", i,
                 c->slot[0] ? ", slot " : "", c->slot,
                 fatal ? "errors that were not corrected" : "corrected errors", per_minute);
        w->card[i].aer_told = bad;
    }
    w->card[i].aer = c->aer;
    w->card[i].aer_at = now;
}

/* Every card busy at idle power: they wait for each other. */
static void judge_hang(struct hx_watch *w, const struct hx_watch_look *look)
{
    int n = 0, waiting = 0;
    for (int i = 0; i < look->n_cards; i++) {
        int k = look->card[i].ours ? hx_watch_device(look->nvml, &look->card[i].address) : -1;
        if (k < 0)
            continue;
        const struct hx_nvml_device *d = &look->nvml->device[k];
        n++;
        waiting += d->util_pct != HX_UNKNOWN && d->util_pct >= hx_hw_limits.hang_util_pct &&
                   d->power_mw != HX_UNKNOWN && d->power_mw <= hx_hw_limits.hang_power_w * 1000;
    }
    if (n < 2 || waiting < n) {
        w->busy_since = 0;
        w->hang_told = false;
        return;
    }
    if (!w->busy_since)
        w->busy_since = look->now_s;
    if (look->now_s - w->busy_since >= hx_hw_limits.hang_seconds && !w->hang_told) {
        w->hang_told = w->mark_hang = true;
        tell(w, "hang", HX_WATCH_STOP, -1,
             "all cards are busy at idle power for %d s: a stuck all-reduce. The engine is "
             "stopped, P2P is marked unusable",
             hx_hw_limits.hang_seconds);
    }
}

static void judge_log(struct hx_watch *w, const struct hx_klog_facts *klog)
{
    for (int i = 0; i < klog->n_xids; i++) {
        int number = klog->xid[i].number;
        if (number >= HX_XID_LIMIT || w->xid_seen[number])
            continue;
        w->xid_seen[number] = true;
        bool stop = hx_xid_severity(number) == HX_XID_FAIL;
        tell(w, "xid", stop ? HX_WATCH_STOP : HX_WATCH_WARN, -1, "Xid %d: %s%s", number,
             hx_xid_meaning(number), stop ? "; the engine is stopped" : "");
    }
}

void hx_watch_judge(struct hx_watch *w, const struct hx_watch_look *look)
{
    w->n_events = 0;
    w->stop_engine = w->mark_hang = false;
    memset(w->set_w, 0, sizeof(w->set_w));
    const struct hx_nvml_snapshot *s = look->nvml;
    if (s && s->state == HX_NVML_HUNG) {
        if (!w->stuck)
            tell(w, "stuck", HX_WATCH_WARN, -1,
                 "the driver did not answer in %d s. It is not asked again; shut down and start "
                 "cold",
                 hx_hw_limits.tool_timeout_ms / 1000);
        w->stuck = true;
        s = NULL;
    }
    for (int i = 0; i < look->n_cards && i < HX_WATCH_CARDS; i++) {
        const struct hx_watch_card *c = &look->card[i];
        if (!c->ours)
            continue;
        int k = s && s->state == HX_NVML_OK ? hx_watch_device(s, &c->address) : -1;
        judge_lost(w, i, !c->alive || (k >= 0 && s->device[k].lost), c->slot);
        if (look->slow)
            judge_aer(w, i, c, look->now_s);
        if (k < 0 || w->card[i].lost)
            continue;
        judge_heat(w, i, &s->device[k]);
        judge_cap(w, i, &s->device[k]);
        judge_sensor(w, i, &s->device[k], look->now_s);
        judge_recovery(w, i, &s->device[k]);
    }
    if (s && s->state == HX_NVML_OK)
        judge_hang(w, look);
    if (look->klog)
        judge_log(w, look->klog);
}
