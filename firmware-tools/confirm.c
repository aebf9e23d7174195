/* Commit or roll back. */
#include "confirm.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_write.h"
#include "bundle/start.h"
#include "bundle/tree.h"
#include "hw/klog.h"

/* Checks of p2p_check that decide about a slot; the others are about machine and links. */
static const char *const deciding[] = {"DRV-",   "INV-",   "ERR-",   "MEM-01", "MEM-02",
                                       "MEM-03", "CMP-01", "CMP-02", "CMP-05"};

static void add(char list[][160], int *n, const char *fmt, va_list ap)
{
    if (*n < HX_CONFIRM_REASONS)
        vsnprintf(list[(*n)++], 160, fmt, ap);
}

static void reason(struct hx_confirm_result *out, const char *fmt, ...) HX_PRINTF(2, 3);
static void reason(struct hx_confirm_result *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add(out->reason, &out->n_reasons, fmt, ap);
    va_end(ap);
}

static void note(struct hx_confirm_result *out, const char *fmt, ...) HX_PRINTF(2, 3);
static void note(struct hx_confirm_result *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add(out->note, &out->n_notes, fmt, ap);
    va_end(ap);
}

static void judge_driver(const struct hx_manifest *m, const struct hx_confirm_facts *f,
                         struct hx_confirm_result *out)
{
    const struct hx_facts *facts = &f->inventory->facts;
    const struct hx_driver_facts *d = &facts->driver;
    if (!d->loaded) {
        reason(out, "the driver is not loaded");
        return;
    }
    if (strcmp(d->srcversion, f->srcversion) != 0)
        reason(out, "the running module is not the slot's (srcversion %s, the slot has %s)",
               d->srcversion[0] ? d->srcversion : "unknown", f->srcversion);
    if (strcmp(d->proc.version, m->driver_version) != 0)
        reason(out, "driver version %s, the bundle is for %s", d->proc.version, m->driver_version);
    if (facts->nvml.state != HX_NVML_OK)
        reason(out, "the management library says: %s",
               hx_nvml_state_name((enum hx_nvml_state)facts->nvml.state));
    if (f->marker[0] && m->marker_accepted.n && !hx_strings_has(&m->marker_accepted, f->marker))
        reason(out, "the safety marker %.40s is not an accepted one", f->marker);
    if (!f->marker[0] && m->marker_accepted.n)
        note(out, "the modules carry no safety marker");
    if (f->unsafe_layout)
        reason(out, "the kernel log shows an unsafe memory layout");
}

static void judge_card(const struct hx_manifest *m, const struct hx_facts *f, int i,
                       struct hx_confirm_result *out)
{
    const struct hx_card *c = &f->card[i];
    char id[8];
    snprintf(id, sizeof(id), "%04x", c->pci->device);
    if (!c->pci->alive) {
        reason(out, "card %d does not answer on the bus", i);
        return;
    }
    if (!hx_strings_has(&m->device_ids, id)) {
        note(out, "card %d (%s) is none that the bundle is for", i, id);
        return;
    }
    if (c->nvml < 0) {
        if (f->nvml.state == HX_NVML_OK)
            reason(out, "the driver does not see card %d", i);
        return;
    }
    const struct hx_nvml_device *d = &f->nvml.device[c->nvml];
    for (size_t k = 0; k < m->memory_mib.n; k++) {
        const struct hx_bundle_range *r = &m->memory_mib.item[k];
        if (strcmp(r->id, id) == 0 &&
            (d->memory_total_mib == HX_UNKNOWN || d->memory_total_mib < r->min ||
             d->memory_total_mib > r->max))
            reason(out, "card %d shows %d MiB, expected %lld to %lld", i,
                   d->memory_total_mib == HX_UNKNOWN ? 0 : d->memory_total_mib, (long long)r->min,
                   (long long)r->max);
    }
    if (m->product_name && strcmp(m->product_name, d->name) != 0)
        reason(out, "card %d calls itself '%.60s', expected '%.60s'", i, d->name, m->product_name);
    int64_t bar1 = c->pci->bar1_known ? (int64_t)(c->pci->bar1.size >> 20) : d->bar1_mib;
    if (m->bar1_mib_min && bar1 < m->bar1_mib_min)
        reason(out, "card %d has a BAR1 window of %lld MiB, expected at least %lld", i,
               (long long)(bar1 < 0 ? 0 : bar1), (long long)m->bar1_mib_min);
    if (m->link_gen && c->link.gen && c->link.gen < m->link_gen)
        note(out, "card %d: the link is at Gen%d, the bundle promises Gen%lld", i, c->link.gen,
             (long long)m->link_gen);
}

static void judge_log(const struct hx_manifest *m, const char *klog, struct hx_confirm_result *out)
{
    if (!klog) {
        if (m->log_required.n || m->log_forbidden.n)
            note(out, "the kernel log cannot be read");
        return;
    }
    for (size_t i = 0; i < m->log_required.n; i++)
        if (!strstr(klog, m->log_required.item[i]))
            reason(out, "the kernel log lacks '%.100s'", m->log_required.item[i]);
    for (size_t i = 0; i < m->log_forbidden.n; i++)
        if (strstr(klog, m->log_forbidden.item[i]))
            reason(out, "the kernel log has '%.100s'", m->log_forbidden.item[i]);
}

static void judge_measured(const struct hx_manifest *m, const struct hx_last_check *last,
                           struct hx_confirm_result *out)
{
    if (!last->there || !last->this_boot) {
        reason(out, "p2p_check has not run at this start");
        return;
    }
    for (int i = 0; i < last->n_failed; i++)
        for (size_t k = 0; k < sizeof(deciding) / sizeof(deciding[0]); k++)
            if (strncmp(last->failed[i], deciding[k], strlen(deciding[k])) == 0)
                reason(out, "check %s failed", last->failed[i]);
    for (int i = 0; i < last->n_sm; i++)
        if (m->sm_min && last->sm[i] < m->sm_min)
            reason(out, "a card has %d SMs, expected at least %lld", last->sm[i],
                   (long long)m->sm_min);
}

void hx_confirm_judge(const struct hx_manifest *m, const struct hx_confirm_facts *f,
                      struct hx_confirm_result *out)
{
    const struct hx_facts *facts = &f->inventory->facts;
    memset(out, 0, sizeof(*out));
    judge_driver(m, f, out);
    if (facts->n_cards == 0)
        reason(out, "no CMP 170HX was found");
    for (int i = 0; i < facts->n_cards; i++)
        judge_card(m, facts, i, out);
    enum hx_iommu_mode iommu = facts->platform.iommu;
    const char *mode = iommu == HX_IOMMU_NONE       ? "off"
                       : iommu == HX_IOMMU_IDENTITY ? "identity"
                                                    : "translated";
    if (m->iommu_accepted.n && !hx_strings_has(&m->iommu_accepted, mode))
        note(out, "the IOMMU is %s, which the bundle does not accept for direct copies", mode);
    judge_log(m, f->klog, out);
    judge_measured(m, &f->inventory->last, out);
    out->pass = out->n_reasons == 0;
}

/* First line of the slot's safety marker file. */
static void read_marker(const struct hx_store *s, enum hx_slot slot, const char *module_dir,
                        const char *file, char *out, size_t size)
{
    char path[512];
    int dir, fd;
    out[0] = '\0';
    if (!file || hx_slot_open(s, slot, &dir, NULL) < 0)
        return;
    snprintf(path, sizeof(path), "%s/%s", module_dir, file);
    if (hx_tree_open(dir, path, &fd, NULL) == 0) {
        ssize_t n = read(fd, out, size - 1);
        out[n > 0 ? n : 0] = '\0';
        out[strcspn(out, "\r\n")] = '\0';
        close(fd);
    }
    close(dir);
}

static int print(const struct hx_cards_options *o, const struct hx_confirm_result *r)
{
    if (!o->json) {
        puts(r->pass
                 ? "confirmed: the slot is active from now on"
                 : "not confirmed: the old slot is loaded at the next start, after a power-off");
        for (int i = 0; i < r->n_reasons; i++)
            printf("  %s\n", r->reason[i]);
        for (int i = 0; i < r->n_notes; i++)
            printf("  note: %s\n", r->note[i]);
        return 0;
    }
    struct hx_buf out = HX_BUF_INIT(1u << 16);
    struct hx_json_writer w;
    hx_jw_init(&w, &out, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "confirmed");
    hx_jw_bool(&w, r->pass);
    hx_jw_key(&w, "reasons");
    hx_jw_array(&w);
    for (int i = 0; i < r->n_reasons; i++)
        hx_jw_str(&w, r->reason[i]);
    hx_jw_end_array(&w);
    hx_jw_key(&w, "notes");
    hx_jw_array(&w);
    for (int i = 0; i < r->n_notes; i++)
        hx_jw_str(&w, r->note[i]);
    hx_jw_end_array(&w);
    hx_jw_end_object(&w);
    hx_buf_putc(&out, '\n');
    bool bad = out.failed || fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0;
    hx_buf_done(&out);
    return bad ? -EIO : 0;
}

/* Everything that the judgement needs about the candidate. */
static int judge_slot(const struct hx_cards_options *o, struct hx_store *s,
                      const struct hx_inventory *v, struct hx_confirm_result *result,
                      struct hx_error *err)
{
    enum hx_slot slot = s->j.candidate;
    struct hx_slot_facts facts;
    struct hx_manifest *m = NULL;
    struct hx_klog_facts *signs = calloc(1, sizeof(*signs));
    char marker[128], *klog = NULL;
    size_t len = 0;
    int r = signs ? hx_slot_check(s, slot, &facts, err) : hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_slot_manifest(s, slot, &m, err);
    if (r < 0)
        goto out;
    read_marker(s, slot, facts.module_dir, m->marker_file, marker, sizeof(marker));
    bool readable = o->kernel_log || !hx_root_is_fake(o->root);
    if (readable && hx_klog_read(o->kernel_log, &klog, &len, err) < 0) {
        r = o->kernel_log ? -EIO : 0;
        klog = NULL;
    }
    if (r == 0 && klog)
        r = hx_klog_scan(klog, len, NULL, 0, signs, err);
    if (r < 0)
        goto out;
    struct hx_confirm_facts f = {v, klog, marker, facts.srcversion,
                                 signs->sign[HX_KLOG_UNSAFE_LAYOUT].count > 0};
    hx_confirm_judge(m, &f, result);
    if (!facts.intact && result->n_reasons < HX_CONFIRM_REASONS) {
        snprintf(result->reason[result->n_reasons++], 160, "the slot is damaged: %.120s",
                 facts.damage);
        result->pass = false;
    }
out:
    hx_manifest_free(m);
    free(signs);
    free(klog);
    return r;
}

int hx_cards_confirm(const struct hx_cards_options *o)
{
    struct hx_store s;
    struct hx_error err = {0};
    struct hx_inventory *v = NULL;
    struct hx_confirm_result *result = calloc(1, sizeof(*result));
    int code = HX_EXIT_READY, r = result ? 0 : hx_fail(&err, -ENOMEM, "out of memory");
    s.dir = s.lock = -1;
    if (r == 0)
        r = hx_store_open(o->root, o->state ? o->state : HX_STORE_DIR, HX_STORE_WRITE, o->now, &s,
                          &err);
    if (r == 0 && s.j.state != HX_BUNDLE_PROBING) {
        fputs("hx-cards: there is no slot on trial\n", stderr);
        code = HX_EXIT_UNSUPPORTED;
        goto out;
    }
    if (r == 0)
        r = hx_inventory_read(o, &v, &err);
    if (r == 0)
        r = judge_slot(o, &s, v, result, &err);
    if (r == 0)
        r = result->pass ? hx_start_commit(&s, &err) : hx_start_fail(&s, result->reason[0], &err);
    if (r < 0)
        code = hx_cards_error(HX_EXIT_INTERNAL, &err);
    else if (print(o, result) < 0)
        code = HX_EXIT_INTERNAL;
    else
        code = result->pass ? HX_EXIT_READY : HX_EXIT_NOT_READY;
out:
    hx_store_close(&s);
    free(v);
    free(result);
    return code;
}
