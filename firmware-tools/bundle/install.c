/* The steps of an install. Every step is recorded before the next begins; what a cut leaves behind
 * is never loaded and is wiped by the next install. */
#include "bundle/install.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bundle/build.h"
#include "bundle/modinfo.h"
#include "bundle/sign.h"
#include "bundle/tree.h"

#define SCRATCH "scratch"
#define MODULES 8

struct work {
    struct hx_store *s;
    const struct hx_install *in;
    const struct hx_manifest *m; /* of the staged copy */
    bool sign;
    int slot;         /* folder of the slot */
    int modules;      /* where built modules lie: scratch/out or the staged bundle's folder; -1 */
    char target[256]; /* module folder below the slot */
};

static void tell(const struct work *w, const char *step)
{
    if (w->in->step)
        w->in->step(step);
}

static int record(struct hx_store *s, enum hx_bundle_state state, struct hx_error *err)
{
    s->j.state = state;
    return hx_store_save(s, err);
}

/* Takes the free slot: from here on it holds nothing that counts. */
static int claim(struct hx_store *s, const struct hx_manifest *m, const char *kernel,
                 struct hx_error *err)
{
    struct hx_journal *j = &s->j;
    enum hx_slot slot = j->active == HX_SLOT_A ? HX_SLOT_B : HX_SLOT_A;
    if (j->previous == slot)
        j->previous = HX_SLOT_NONE;
    j->candidate = slot;
    snprintf(j->name, sizeof(j->name), "%s", m->name);
    snprintf(j->version, sizeof(j->version), "%s", m->version);
    snprintf(j->kernel, sizeof(j->kernel), "%s", kernel);
    j->manifest_sha256[0] = j->armed_boot[0] = j->probe_boot[0] = j->why[0] = '\0';
    j->armed_at = j->starts = 0;
    j->off_s = -1;
    int r = record(s, HX_BUNDLE_VERIFIED, err);
    if (r == 0)
        r = hx_tree_remove(s->dir, hx_slot_name(slot), err);
    if (r == 0)
        r = hx_tree_remove(s->dir, SCRATCH, err);
    return r;
}

/* Copies the bundle into the slot and verifies the copy, from which all later steps read. */
static int stage(struct work *w, struct hx_manifest **staged, struct hx_error *err)
{
    struct hx_store *s = w->s;
    struct hx_bundle_verdict v = {.accept = false};
    struct hx_bundle_host host = {.n_device_ids = 0};
    struct hx_bundle_fault fault;
    struct hx_source *copy = NULL;
    char path[HX_ROOT_PATH + 64];
    uint64_t size;
    int fd = -1, r = hx_tree_folder(w->slot, "bundle", &fd, err);
    if (r == 0)
        r = hx_bundle_content(w->in->source, w->m, fd, &fault, err);
    if (fd >= 0)
        close(fd);
    if (r == 0 && fault.check[0])
        r = hx_fail(err, -EINVAL, "%s: %s (the bundle changed while it was copied)", fault.where,
                    fault.why);
    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "%s/%s/bundle", s->path, hx_slot_name(s->j.candidate));
    r = hx_source_open(path, &copy, err);
    if (r == 0)
        r = hx_bundle_load(copy, staged, &fault, err);
    if (r == 0)
        r = hx_bundle_content(copy, *staged, -1, &fault, err);
    hx_source_close(copy);
    if (r == 0 && fault.check[0])
        r = hx_fail(err, -EIO, "the staged copy is not what was written: %s: %s", fault.where,
                    fault.why);
    /* The manifest may be another one by now; what is free has been judged before the copy. */
    if (r == 0)
        r = w->in->host(w->in->ctx, *staged, &host, err);
    if (r == 0) {
        host.free_mib = INT64_MAX;
        hx_bundle_judge(*staged, &host, &v);
        w->sign = v.sign;
        if (!v.accept)
            r = hx_fail(err, -EINVAL, "the staged copy is not accepted: %s: %s", v.fault[0].where,
                        v.fault[0].why);
    }
    if (r == 0)
        r = hx_tree_open(w->slot, "bundle/" HX_MANIFEST_NAME, &fd, err);
    if (r < 0)
        return r;
    r = hx_tree_hash(fd, HX_MANIFEST_NAME, s->j.manifest_sha256, &size, err);
    close(fd);
    if (r == 0)
        r = hx_tree_sync(s->dir, hx_slot_name(s->j.candidate), err);
    return r < 0 ? r : record(s, HX_BUNDLE_STAGED, err);
}

static int build(struct work *w, struct hx_error *err)
{
    struct hx_store *s = w->s;
    char bundle[HX_ROOT_PATH + 64], scratch[HX_ROOT_PATH + 16], log[HX_ROOT_PATH + 16];
    int fd, r;
    snprintf(bundle, sizeof(bundle), "%s/%s/bundle", s->path, hx_slot_name(s->j.candidate));
    snprintf(scratch, sizeof(scratch), "%s/" SCRATCH, s->path);
    snprintf(log, sizeof(log), "%s/build.log", s->path);
    r = hx_tree_folder(s->dir, SCRATCH, &fd, err);
    if (r < 0)
        return r;
    close(fd);
    struct hx_build b = {w->m,    w->in->kit, w->in->headers,      w->in->kernel, bundle,
                         scratch, log,        (int)w->m->timeout_s};
    r = hx_build_run(&b, err);
    if (r == 0)
        r = hx_tree_folder(s->dir, SCRATCH "/out", &w->modules, err);
    return r < 0 ? r : record(s, HX_BUNDLE_BUILT, err);
}

/* The output that is this module's file. */
static void module_source(const struct work *w, const char *name, char *out, size_t size)
{
    char file[80];
    snprintf(file, sizeof(file), "%s.ko", name);
    if (!w->m->has_build) {
        snprintf(out, size, "bundle/modules/%s/%s", w->in->kernel, file);
        return;
    }
    for (size_t i = 0; i < w->m->outputs.n; i++) {
        const char *slash = strrchr(w->m->outputs.item[i], '/');
        if (strcmp(slash ? slash + 1 : w->m->outputs.item[i], file) == 0) {
            snprintf(out, size, "%s", w->m->outputs.item[i]);
            return;
        }
    }
    snprintf(out, size, "%s", file);
}

static bool same_module(const char *file, const char *name)
{
    for (; *file && *name; file++, name++)
        if (*file != *name && !(*file == '-' && *name == '_'))
            return false;
    return *file == *name;
}

static int place_module(struct work *w, const char *name, struct hx_modinfo *info,
                        struct hx_error *err)
{
    char from[HX_BUNDLE_PATH_MAX + 160], to[512];
    int fd, base = w->m->has_build ? w->modules : w->slot;
    module_source(w, name, from, sizeof(from));
    int r = hx_tree_open(base, from, &fd, err);
    if (r < 0)
        return r;
    r = hx_modinfo_read(fd, from, info, err);
    close(fd);
    if (r == 0 && !hx_modinfo_fits(info, w->in->kernel))
        r = hx_fail(err, -EINVAL, "%s: made for kernel \"%s\", this is %s", from, info->vermagic,
                    w->in->kernel);
    if (r == 0 && info->name[0] && !same_module(name, info->name))
        r = hx_fail(err, -EINVAL, "%s: is the module %s", from, info->name);
    if (r < 0)
        return r;
    snprintf(to, sizeof(to), "%s/%s.ko", w->target, name);
    r = hx_tree_copy(base, from, w->slot, to, 0644, NULL, NULL, err);
    if (r == 0 && w->sign)
        r = hx_sign_module(w->s, w->slot, to, err);
    return r;
}

/* modules.dep beside the module folder, so that modinfo and modprobe -n can look at the slot. */
static int write_dependencies(struct work *w, const struct hx_modinfo *info, struct hx_error *err)
{
    const struct hx_strings *names = &w->m->module_names;
    struct hx_buf text = HX_BUF_INIT(16384);
    char path[512];
    for (size_t i = 0; i < names->n; i++) {
        bool needed[MODULES] = {false};
        needed[i] = true;
        for (bool grew = true; grew;) {
            grew = false;
            for (size_t k = 0; k < names->n; k++)
                for (const char *d = info[k].depends; needed[k] && *d;) {
                    char name[64];
                    size_t len = strcspn(d, ",");
                    snprintf(name, sizeof(name), "%.*s", (int)len, d);
                    d += len + (d[len] == ',');
                    for (size_t q = 0; q < names->n; q++)
                        if (!needed[q] && same_module(names->item[q], name))
                            grew = needed[q] = true;
                }
        }
        hx_buf_printf(&text, "%s/%s.ko:", w->m->module_dir, names->item[i]);
        for (size_t q = 0; q < names->n; q++)
            if (q != i && needed[q])
                hx_buf_printf(&text, " %s/%s.ko", w->m->module_dir, names->item[q]);
        hx_buf_putc(&text, '\n');
    }
    snprintf(path, sizeof(path), "lib/modules/%s/modules.dep", w->in->kernel);
    int r = text.failed ? hx_fail(err, -ENOMEM, "%s: out of memory", path)
                        : hx_tree_put(w->slot, path, text.data, text.len, err);
    hx_buf_done(&text);
    return r;
}

static int place_modules(struct work *w, struct hx_error *err)
{
    struct hx_modinfo info[MODULES];
    int r = 0;
    if (w->m->module_names.n > MODULES)
        return hx_fail(err, -EINVAL, "install.modules.names: more than %d", MODULES);
    for (size_t i = 0; r == 0 && i < w->m->module_names.n; i++)
        r = place_module(w, w->m->module_names.item[i], &info[i], err);
    if (r == 0 && w->sign)
        r = record(w->s, HX_BUNDLE_SIGNED, err);
    return r < 0 ? r : write_dependencies(w, info, err);
}

/* Small text files that a build leaves beside its modules; one that is not there is not an error
 * here (a missing safety marker shows in the checks). */
static int place_metadata(struct work *w, struct hx_error *err)
{
    for (size_t i = 0; i < w->m->metadata.n; i++) {
        char from[HX_BUNDLE_PATH_MAX + 160], to[512];
        int fd, base = w->m->has_build ? w->modules : w->slot;
        if (w->m->has_build)
            snprintf(from, sizeof(from), "%s", w->m->metadata.item[i]);
        else
            snprintf(from, sizeof(from), "bundle/modules/%s/%s", w->in->kernel,
                     w->m->metadata.item[i]);
        if (hx_tree_open(base, from, &fd, NULL) < 0)
            continue;
        close(fd);
        snprintf(to, sizeof(to), "%s/%s", w->target, w->m->metadata.item[i]);
        int r = hx_tree_copy(base, from, w->slot, to, 0644, NULL, NULL, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* User-space driver below userspace/, card firmware below firmware/nvidia/VERSION/. */
static int place_userspace(struct work *w, struct hx_error *err)
{
    const char *top = w->m->userspace_root ? w->m->userspace_root : "";
    size_t skip = strlen(top);
    for (size_t i = 0; i < w->m->files.n; i++) {
        const struct hx_bundle_file *f = &w->m->files.item[i];
        char from[HX_BUNDLE_PATH_MAX + 16], to[HX_BUNDLE_PATH_MAX + 64];
        const char *rest = f->path, *slash = strrchr(f->path, '/');
        snprintf(from, sizeof(from), "bundle/%s", f->path);
        if (strcmp(f->role, "gpu-firmware") == 0) {
            snprintf(to, sizeof(to), "firmware/nvidia/%s/%s", w->m->driver_version,
                     slash ? slash + 1 : f->path);
        } else if (strcmp(f->role, "userspace") == 0) {
            if (skip && strncmp(rest, top, skip) == 0 && rest[skip] == '/')
                rest += skip + 1;
            snprintf(to, sizeof(to), "userspace/%s", rest);
        } else {
            continue;
        }
        mode_t mode = f->mode && strcmp(f->mode, "0755") == 0 ? 0755 : 0644;
        int r = hx_tree_copy(w->slot, from, w->slot, to, mode, NULL, NULL, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* From here on the next start loads the slot. The published words come first: a cut between the
 * two leaves the old slot with words that the next publication takes back. */
static int arm(struct hx_store *s, const struct hx_manifest *m, struct hx_error *err)
{
    s->j.state = HX_BUNDLE_ARMED;
    s->j.cold_wanted = m->install_cold;
    s->j.armed_at = s->now;
    snprintf(s->j.armed_boot, sizeof(s->j.armed_boot), "%s", s->boot_id);
    int r = hx_store_publish(s, err);
    return r < 0 ? r : hx_store_save(s, err);
}

static int run_steps(struct work *w, struct hx_manifest **staged, struct hx_error *err)
{
    struct hx_store *s = w->s;
    char name[32];
    snprintf(name, sizeof(name), "%s", hx_slot_name(s->j.candidate));
    int r = hx_tree_folder(s->dir, name, &w->slot, err);
    if (r < 0)
        return r;
    tell(w, "stage");
    r = stage(w, staged, err);
    if (r < 0)
        return r;
    w->m = *staged;
    if (w->m->has_build) {
        tell(w, "build");
        r = build(w, err);
    }
    if (r == 0 && w->sign) {
        tell(w, "sign");
        r = hx_sign_prepare(s, err);
    }
    if (r < 0)
        return r;
    tell(w, "install");
    snprintf(w->target, sizeof(w->target), "lib/modules/%s/%s", w->in->kernel, w->m->module_dir);
    r = place_modules(w, err);
    if (r == 0)
        r = place_metadata(w, err);
    if (r == 0)
        r = place_userspace(w, err);
    if (r < 0)
        return r;
    tell(w, "index");
    r = hx_slot_index(s, s->j.candidate, w->m, w->in->kernel, err);
    if (r == 0)
        r = hx_tree_sync(s->dir, name, err);
    if (r < 0)
        return r;
    tell(w, "boot_image");
    return arm(s, w->m, err);
}

/* Back to what was before, as far as the disk lets us. */
static void give_up(struct hx_store *s, const struct hx_error *why)
{
    struct hx_error ignored;
    enum hx_slot slot = s->j.candidate;
    s->j.candidate = HX_SLOT_NONE;
    s->j.state = HX_BUNDLE_FAILED;
    s->j.cold_wanted = false;
    s->j.armed_boot[0] = '\0';
    s->j.armed_at = 0;
    snprintf(s->j.why, sizeof(s->j.why), "%s", why->text);
    (void)!hx_tree_remove(s->dir, SCRATCH, &ignored);
    /* The journal first: a slot is wiped only when nothing points at it. */
    if (hx_store_save(s, &ignored) == 0 && slot != HX_SLOT_NONE)
        (void)!hx_tree_remove(s->dir, hx_slot_name(slot), &ignored);
    (void)!hx_store_publish(s, &ignored);
}

int hx_bundle_install(struct hx_store *s, const struct hx_install *in,
                      struct hx_bundle_verdict *verdict, struct hx_error *err)
{
    struct hx_manifest *m = NULL, *staged = NULL;
    struct hx_error own = {0};
    struct work w = {.s = s, .in = in, .slot = -1, .modules = -1};
    if (!err)
        err = &own;
    if (s->j.state == HX_BUNDLE_PROBING)
        return hx_fail(err, -EBUSY,
                       "slot %c was loaded at this start and is not confirmed; run 'hx-cards "
                       "bundle confirm' or 'hx-cards bundle rollback' first",
                       hx_slot_letter(s->j.candidate));
    tell(&w, "verify");
    int r = hx_bundle_verify(in->source, in->host, in->ctx, &m, verdict, err);
    if (r < 0 || !verdict->accept) {
        hx_manifest_free(m);
        return r;
    }
    w.m = m;
    w.sign = verdict->sign;
    r = claim(s, m, in->kernel, err);
    if (r == 0)
        r = run_steps(&w, &staged, err);
    if (w.slot >= 0)
        close(w.slot);
    if (w.modules >= 0)
        close(w.modules);
    if (r < 0)
        give_up(s, err);
    else
        r = hx_tree_remove(s->dir, SCRATCH, err);
    hx_manifest_free(m);
    hx_manifest_free(staged);
    return r;
}
