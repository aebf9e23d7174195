/* hx-cards watch: reads, judges, acts, tells. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/log.h"
#include "inventory.h"
#include "watch.h"

#define STATUS_FILE "/run/hx170/watch.json"
#define MARK_FILE   "/var/lib/hx170/check/watch.json"
#define RESULT_FILE "/var/lib/hx170/check/p2p.json"
#define STOP_MS     10000

static volatile sig_atomic_t ended;

static void on_signal(int sig)
{
    (void)sig;
    ended = 1;
}

struct job {
    const struct hx_cards_options *o;
    struct hx_watch watch;
    struct hx_watch_look look;
    struct hx_nvml_snapshot nvml;
    struct hx_klog_facts klog;
    struct hx_pci_scan scan;
    int64_t slow_at;
    bool cards_read, log_read;
};

static int64_t clock_s(const struct hx_cards_options *o)
{
    struct timespec t;
    if (o->now)
        return o->now;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/* Cards keep their numbers from the first look on; one that is gone from the bus stays, as lost. */
static int read_cards(struct job *j, struct hx_error *err)
{
    int r = hx_pci_scan(j->o->root, &j->scan, err);
    if (r < 0)
        return r;
    for (int i = 0; i < j->look.n_cards; i++)
        j->look.card[i].alive = false;
    for (int i = 0; i < j->scan.n; i++) {
        const struct hx_pci_gpu *g = &j->scan.gpu[i];
        if (!hx_variant_of_device(g->device))
            continue;
        int at = 0;
        while (at < j->look.n_cards &&
               !hx_pci_address_equal(&j->look.card[at].address, &g->address))
            at++;
        if (at == j->look.n_cards && (j->cards_read || at == HX_WATCH_CARDS))
            continue;
        if (at == j->look.n_cards)
            j->look.n_cards++;
        struct hx_watch_card *c = &j->look.card[at];
        *c = (struct hx_watch_card){
            .address = g->address, .ours = true, .alive = g->alive, .aer = g->aer};
        snprintf(c->slot, sizeof(c->slot), "%s", g->slot);
    }
    j->cards_read = true;
    return 0;
}

static int look_once(struct job *j, struct hx_error *err)
{
    const struct hx_cards_options *o = j->o;
    int limit = o->tool_timeout_ms > 0 ? o->tool_timeout_ms : hx_hw_limits.tool_timeout_ms, r = 0;
    j->look.now_s = clock_s(o);
    j->look.slow = !j->cards_read || j->look.now_s - j->slow_at >= HX_WATCH_SLOW_S;
    if (j->look.slow) {
        r = read_cards(j, err);
        j->slow_at = j->look.now_s;
    }
    j->look.nvml = NULL;
    /* A driver that hung once is not asked again: helpers would pile up in the kernel. */
    if (r == 0 && !j->watch.stuck && j->look.n_cards) {
        r = hx_nvml_snapshot(o->nvml, limit, &j->nvml, err);
        j->look.nvml = &j->nvml;
    }
    j->look.klog = NULL;
    char *text = NULL;
    size_t len;
    bool has_log = o->kernel_log || !hx_root_is_fake(o->root);
    if (r == 0 && has_log && hx_klog_read(o->kernel_log, &text, &len, NULL) == 0) {
        struct hx_pci_address cards[HX_WATCH_CARDS];
        for (int i = 0; i < j->look.n_cards; i++)
            cards[i] = j->look.card[i].address;
        r = hx_klog_scan(text, len, cards, j->look.n_cards, &j->klog, err);
        j->look.klog = &j->klog;
        free(text);
        /* What the check at the start of the machine has judged is not news. */
        if (r == 0 && !o->once && !j->log_read)
            hx_watch_forget_log(&j->watch, &j->klog);
        j->log_read = true;
    }
    if (r == 0)
        hx_watch_judge(&j->watch, &j->look);
    return r;
}

static void log_events(const struct hx_watch *w)
{
    static const enum hx_log_level levels[] = {HX_LOG_NOTICE, HX_LOG_WARN, HX_LOG_ERROR};
    for (int i = 0; i < w->n_events; i++)
        hx_log(levels[w->event[i].level], "watch", "%s: %s", w->event[i].id, w->event[i].text);
}

static int put_file(const struct hx_cards_options *o, const char *path, struct hx_buf *out)
{
    char where[HX_ROOT_PATH];
    struct hx_error err = {0};
    int r = hx_root_outside(o->root, path, where);
    if (r == 0 && !out->failed)
        r = hx_file_replace(where, out->data, out->len, &err);
    return r;
}

static int write_status(const struct job *j)
{
    struct hx_buf out = HX_BUF_INIT(1u << 18);
    struct hx_json_writer w;
    const struct hx_watch *v = &j->watch;
    static const char *const levels[] = {"info", "warn", "stop"};
    hx_jw_init(&w, &out, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "driver");
    hx_jw_str(&w, v->stuck       ? "no answer"
                  : j->look.nvml ? hx_nvml_state_name((enum hx_nvml_state)j->nvml.state)
                                 : "not asked");
    hx_jw_key(&w, "stop_engine");
    hx_jw_bool(&w, v->stop_engine);
    hx_jw_key(&w, "cards");
    hx_jw_array(&w);
    for (int i = 0; i < j->look.n_cards; i++) {
        int k = j->look.nvml ? hx_watch_device(&j->nvml, &j->look.card[i].address) : -1;
        hx_jw_object(&w);
        hx_jw_key(&w, "card");
        hx_jw_int(&w, i);
        hx_jw_key(&w, "lost");
        hx_jw_bool(&w, v->card[i].lost);
        const struct {
            const char *key;
            int32_t value;
        } rows[] = {{"core_c", k < 0 ? HX_UNKNOWN : j->nvml.device[k].core_c},
                    {"memory_c", k < 0 ? HX_UNKNOWN : j->nvml.device[k].memory_c},
                    {"power_mw", k < 0 ? HX_UNKNOWN : j->nvml.device[k].power_mw},
                    {"limit_mw", k < 0 ? HX_UNKNOWN : j->nvml.device[k].power_limit_mw}};
        for (size_t q = 0; q < sizeof(rows) / sizeof(rows[0]); q++) {
            hx_jw_key(&w, rows[q].key);
            if (rows[q].value == HX_UNKNOWN)
                hx_jw_null(&w);
            else
                hx_jw_int(&w, rows[q].value);
        }
        hx_jw_key(&w, "set_limit_w");
        hx_jw_int(&w, v->set_w[i]);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    hx_jw_key(&w, "events");
    hx_jw_array(&w);
    for (int i = 0; i < v->n_events; i++) {
        hx_jw_object(&w);
        hx_jw_key(&w, "id");
        hx_jw_str(&w, v->event[i].id);
        hx_jw_key(&w, "level");
        hx_jw_str(&w, levels[v->event[i].level]);
        hx_jw_key(&w, "card");
        hx_jw_int(&w, v->event[i].card);
        hx_jw_key(&w, "text");
        hx_jw_str(&w, v->event[i].text);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    hx_jw_end_object(&w);
    hx_buf_putc(&out, '\n');
    int r = 0;
    if (j->o->once && j->o->json)
        r = !out.failed && fwrite(out.data, 1, out.len, stdout) == out.len ? 0 : -EIO;
    else if (!j->o->once)
        (void)put_file(j->o, STATUS_FILE, &out);
    hx_buf_done(&out);
    return r;
}

/* Which verdict the hang belongs to: the key of the last check. */
static void mark_hang(const struct job *j)
{
    struct hx_json_limits limits = {8u << 20, 100000, 16, 0};
    struct hx_buf out = HX_BUF_INIT(4096);
    struct hx_json_writer w;
    struct hx_json *doc = NULL;
    char *text;
    size_t len, n = 0;
    const char *key = NULL;
    if (hx_root_read(j->o->root, RESULT_FILE, 8u << 20, &text, &len, NULL) == 0) {
        if (hx_json_parse(text, len, &limits, &doc, NULL) == 0)
            key = hx_jv_str(hx_jv_get(hx_json_root(doc), "key"), &n);
        free(text);
    }
    hx_jw_init(&w, &out, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "key");
    if (key)
        hx_jw_str_n(&w, key, n);
    else
        hx_jw_null(&w);
    hx_jw_key(&w, "p2p");
    hx_jw_str(&w, "hang");
    hx_jw_end_object(&w);
    hx_buf_putc(&out, '\n');
    (void)put_file(j->o, MARK_FILE, &out);
    hx_json_free(doc);
    hx_buf_done(&out);
}

static void set_limits(const struct job *j)
{
    for (int i = 0; i < j->look.n_cards; i++) {
        struct hx_error err = {0};
        int k = j->watch.set_w[i] ? hx_watch_device(&j->nvml, &j->look.card[i].address) : -1;
        if (k >= 0 && hx_nvml_set_power_limit(j->o->nvml, j->nvml.device[k].uuid, j->watch.set_w[i],
                                              hx_hw_limits.tool_timeout_ms, &err) < 0)
            hx_log(HX_LOG_WARN, "watch", "card %d: %s", i, err.text);
    }
}

static void stop_engine(const struct job *j)
{
    static const char *const argv[] = {"systemctl", "stop", "--no-block", "hx-engine.service",
                                       NULL};
    struct hx_command_result result;
    struct hx_error err = {0};
    if (hx_command_run(j->o->tools, argv, STOP_MS, &result, &err) < 0) {
        hx_log(HX_LOG_ERROR, "watch", "the engine cannot be asked to stop: %s", err.text);
        return;
    }
    if (result.rc != 0)
        hx_log(HX_LOG_ERROR, "watch", "the engine cannot be asked to stop: systemctl ended with %d",
               result.rc);
    hx_command_result_done(&result);
}

static void act(const struct job *j)
{
    set_limits(j);
    if (j->watch.mark_hang)
        mark_hang(j);
    if (j->watch.stop_engine)
        stop_engine(j);
}

static int worst(const struct hx_watch *w)
{
    int code = HX_EXIT_READY;
    for (int i = 0; i < w->n_events; i++) {
        int c = w->event[i].level == HX_WATCH_STOP   ? HX_EXIT_NOT_READY
                : w->event[i].level == HX_WATCH_WARN ? HX_EXIT_DEGRADED
                                                     : HX_EXIT_READY;
        code = c > code ? c : code;
    }
    return code;
}

static int read_cap(const struct hx_cards_options *o, int *cap_w, struct hx_error *err)
{
    struct hx_inventory *v;
    int r = hx_inventory_read(o, &v, err);
    if (r == 0) {
        *cap_w = v->facts.wanted.power_cap_w;
        free(v);
    }
    return r;
}

/* One look: says what it would do and does nothing. */
static int once(struct job *j, struct hx_error *err)
{
    if (look_once(j, err) < 0)
        return hx_cards_error(HX_EXIT_INTERNAL, err);
    if (j->look.n_cards == 0) {
        puts("No CMP 170HX was found in this machine; there is nothing to watch.");
        return HX_EXIT_UNSUPPORTED;
    }
    if (write_status(j) < 0)
        return HX_EXIT_INTERNAL;
    for (int i = 0; i < j->watch.n_events && !j->o->json; i++)
        printf("%s\n", j->watch.event[i].text);
    if (!j->watch.n_events && !j->o->json)
        printf("%d cards, nothing to report\n", j->look.n_cards);
    return worst(&j->watch);
}

int hx_cards_watch(const struct hx_cards_options *o)
{
    struct hx_error err = {0};
    struct sigaction sa = {.sa_handler = on_signal};
    struct job *j = calloc(1, sizeof(*j));
    int cap = 0, code = HX_EXIT_READY;
    if (!j)
        return hx_cards_error(HX_EXIT_INTERNAL, &(struct hx_error){.text = "out of memory"});
    j->o = o;
    if (read_cap(o, &cap, &err) < 0) {
        free(j);
        return hx_cards_error(HX_EXIT_INTERNAL, &err);
    }
    hx_watch_init(&j->watch, cap);
    if (o->once) {
        code = once(j, &err);
        free(j);
        return code;
    }
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    for (bool first = true; !ended; first = false) {
        if (look_once(j, &err) < 0) {
            code = hx_cards_error(HX_EXIT_INTERNAL, &err);
            break;
        }
        if (first && j->look.n_cards == 0) {
            hx_log(HX_LOG_NOTICE, "watch", "no CMP 170HX in this machine; nothing to watch");
            code = HX_EXIT_UNSUPPORTED;
            break;
        }
        log_events(&j->watch);
        act(j);
        (void)write_status(j);
        for (int s = 0; s < HX_WATCH_INTERVAL_S * 10 && !ended; s++)
            usleep(100000);
    }
    free(j);
    return code;
}
