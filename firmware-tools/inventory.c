/* Facts of hw and p2p as an inventory. */
#include "inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "bundle/store.h"

#define RESULT_FILE "/var/lib/hx170/check/p2p.json"
#define RESULT_MAX  (8u << 20)
#define CARDS_CONF  "/etc/hx170/cards.conf"
#define CARDS_DIR   "/run/hx170/cards.conf.d"

static void copy_word(struct hx_jv v, char *to, size_t size)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    to[0] = '\0';
    if (s && len < size && !memchr(s, '\0', len)) {
        memcpy(to, s, len);
        to[len] = '\0';
    }
}

int hx_last_check_parse(const char *text, size_t len, const char *boot_id,
                        struct hx_last_check *out, struct hx_error *err)
{
    struct hx_json_limits limits = {RESULT_MAX, 100000, 16, 0};
    struct hx_last_check last = {.there = true};
    struct hx_json *doc;
    char word[64];
    int r = hx_json_parse(text, len, &limits, &doc, err);
    if (r < 0)
        return r;
    struct hx_jv root = hx_json_root(doc), axes = hx_jv_get(root, "axes");
    copy_word(hx_jv_get(root, "boot_id"), word, sizeof(word));
    last.this_boot = boot_id[0] && strcmp(word, boot_id) == 0;
    copy_word(hx_jv_get(axes, "compute"), last.compute, sizeof(last.compute));
    copy_word(hx_jv_get(axes, "p2p"), last.p2p, sizeof(last.p2p));
    copy_word(hx_jv_get(hx_jv_get(root, "layout"), "recommend"), last.layout, sizeof(last.layout));
    for (struct hx_jv e = hx_jv_first(hx_jv_get(axes, "sm")); e.doc; e = hx_jv_next(e)) {
        int64_t n;
        if (hx_jv_int64(e, &n) && n > 0 && n < 1024 && last.n_sm < HX_AXIS_VALUES)
            last.sm[last.n_sm++] = (int)n;
    }
    for (struct hx_jv e = hx_jv_first(hx_jv_get(root, "checks")); e.doc; e = hx_jv_next(e)) {
        last.n_checks++;
        if (!hx_jv_str_is(hx_jv_get(e, "status"), "fail") || last.n_failed >= 32)
            continue;
        copy_word(hx_jv_get(e, "id"), last.failed[last.n_failed], sizeof(last.failed[0]));
        last.n_failed++;
    }
    hx_json_free(doc);
    if (!last.n_checks)
        return hx_fail(err, -EINVAL, "has no checks, so it is not a result of p2p_check");
    *out = last;
    return 0;
}

/* Default results that are not there or not readable count as none; a named one has to be good. */
static int read_last(const struct hx_cards_options *o, struct hx_inventory *v, struct hx_error *err)
{
    char *text;
    size_t len;
    int r = o->checks ? hx_file_read(o->checks, RESULT_MAX, &text, &len, err)
                      : hx_root_read(o->root, RESULT_FILE, RESULT_MAX, &text, &len, NULL);
    if (r < 0)
        return o->checks ? r : 0;
    r = hx_last_check_parse(text, len, v->facts.platform.boot_id, &v->last, err);
    free(text);
    if (r < 0 && o->checks)
        return hx_wrap(err, r, "%s", o->checks);
    return r == -ENOMEM ? r : 0;
}

/* A path inside the root as a path of the machine, NULL if it is not there. */
static const char *inside(const struct hx_cards_options *o, const char *path, char *buf)
{
    return hx_root_outside(o->root, path, buf) == 0 ? buf : NULL;
}

int hx_inventory_read(const struct hx_cards_options *o, struct hx_inventory **out,
                      struct hx_error *err)
{
    char conf[HX_ROOT_PATH], conf_dir[HX_ROOT_PATH], active[HX_ROOT_PATH], path[HX_ROOT_PATH];
    snprintf(path, sizeof(path), "%s/active.json", o->state ? o->state : HX_STORE_DIR);
    bool is_json = o->config && strlen(o->config) > 5 &&
                   strcmp(o->config + strlen(o->config) - 5, ".json") == 0;
    struct hx_collect_options collect = {
        .root = o->root_dir,
        .config = is_json ? o->config : NULL,
        .nvml = o->nvml,
        .commands = o->commands,
        .kernel_log = o->kernel_log,
        .cards_conf = o->config && !is_json ? o->config : inside(o, CARDS_CONF, conf),
        .cards_conf_dir = o->config ? NULL : inside(o, CARDS_DIR, conf_dir),
        .active = inside(o, path, active),
        .tool_timeout_ms = o->tool_timeout_ms,
    };
    struct hx_inventory *v = calloc(1, sizeof(*v));
    if (!v)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_facts_collect(&collect, o->root, &v->facts, err);
    if (r == 0)
        r = read_last(o, v, err);
    if (r < 0) {
        free(v);
        return r;
    }
    snprintf(v->facts.unmeasured, sizeof(v->facts.unmeasured), "%s",
             "hx-cards measures nothing; p2p_check does");
    hx_judge(&v->facts, &v->judgement);
    *out = v;
    return 0;
}

const char *hx_card_state(const struct hx_inventory *v, const struct hx_card *c)
{
    bool known;
    if (!c->pci->alive)
        return "lost";
    if (c->nvml < 0)
        return "not seen by the driver";
    if (v->facts.nvml.device[c->nvml].lost)
        return "lost";
    enum hx_memory_class m = hx_card_memory(&v->facts, c, &known);
    bool full = strcmp(v->last.compute, "full") == 0;
    bool limited =
        strcmp(v->last.compute, "throttled") == 0 || strcmp(v->last.compute, "reduced") == 0;
    if (!known)
        return "unknown";
    switch (m) {
    case HX_MEMORY_STOCK: return full ? "partly unlocked" : "stock";
    case HX_MEMORY_UNLOCKED:
        return full ? "unlocked" : limited ? "partly unlocked" : "memory unlocked";
    case HX_MEMORY_OVERSIZE: return "more than it has";
    case HX_MEMORY_ODD: break;
    }
    return "odd";
}

void hx_kernel_words(const char *cmdline, char *out, size_t size)
{
    static const char *const wanted[] = {
        "iommu",   "intel_iommu",       "amd_iommu",           "pci=",      "pcie_",     "nvidia",
        "nouveau", "module_blacklist=", "modprobe.blacklist=", "hugepages", "hx.driver="};
    size_t n = 0;
    out[0] = '\0';
    for (const char *p = cmdline; *p;) {
        size_t len = strcspn(p, " \n");
        for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
            if (strncmp(p, wanted[i], strlen(wanted[i])) == 0 && n + len + 2 < size) {
                n += (size_t)snprintf(out + n, size - n, "%s%.*s", n ? " " : "", (int)len, p);
                break;
            }
        p += len + (p[len] != '\0');
    }
}

void hx_reason_words(int64_t reasons, char *out, size_t size)
{
    static const struct {
        int64_t bit;
        const char *word;
    } rows[] = {
        {HX_REASON_IDLE, "idle"},
        {HX_REASON_POWER_CAP, "power cap"},
        {HX_REASON_HW_SLOWDOWN, "hardware slowdown"},
        {HX_REASON_SW_THERMAL, "software thermal"},
        {HX_REASON_HW_THERMAL, "hardware thermal"},
        {HX_REASON_HW_POWER_BRAKE, "power brake"},
    };
    size_t n = 0;
    snprintf(out, size, "%s", reasons == 0 ? "none" : "");
    for (size_t i = 0; reasons > 0 && i < sizeof(rows) / sizeof(rows[0]); i++)
        if ((reasons & rows[i].bit) && n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", rows[i].word);
}
