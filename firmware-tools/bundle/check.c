/* Verification of a bundle: content against the manifest, the manifest against the machine. */
#include "bundle/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_write.h"
#include "base/sha256.h"
#include "bundle/tree.h"

#define STOP (-ECANCELED) /* ends a walk that found what it wanted */

struct find {
    char *text;
    size_t len;
};

static int find_manifest(void *ctx, const struct hx_entry *e, struct hx_error *err)
{
    struct find *f = ctx;
    if (strcmp(e->path, HX_MANIFEST_NAME) != 0)
        return 0;
    if (e->kind != HX_ENTRY_FILE)
        return hx_fail(err, -EINVAL, "%s: is not a plain file", e->path);
    if (e->size > HX_MANIFEST_MAX)
        return hx_fail(err, -EINVAL, "%s: %llu bytes, at most %u", e->path,
                       (unsigned long long)e->size, HX_MANIFEST_MAX);
    f->text = malloc((size_t)e->size + 1);
    if (!f->text)
        return hx_fail(err, -ENOMEM, "%s: out of memory", e->path);
    while (f->len < e->size) {
        size_t n;
        int r = hx_entry_read(e->body, f->text + f->len, (size_t)e->size - f->len, &n, err);
        if (r < 0)
            return r;
        if (n == 0)
            break;
        f->len += n;
    }
    f->text[f->len] = '\0';
    return STOP;
}

int hx_bundle_load(struct hx_source *source, struct hx_manifest **out,
                   struct hx_bundle_fault *fault, struct hx_error *err)
{
    struct find f = {NULL, 0};
    memset(fault, 0, sizeof(*fault));
    int r = hx_source_walk(source, find_manifest, &f, err);
    if (r == STOP) {
        r = hx_manifest_parse(f.text, f.len, out, fault, err);
    } else if (r == 0) {
        hx_bundle_fault_set(fault, "BND-01", HX_MANIFEST_NAME, "is not at the top of the bundle");
        r = hx_fail(err, -EINVAL, "%s: %s is not at the top of the bundle", hx_source_path(source),
                    HX_MANIFEST_NAME);
    } else if (r == -EINVAL) {
        hx_bundle_fault_set(fault, "BND-01", HX_MANIFEST_NAME, err ? err->text : "cannot be read");
    }
    free(f.text);
    return r;
}

struct content {
    const struct hx_manifest *m;
    struct hx_bundle_fault *fault;
    bool *seen; /* [files] */
    bool seen_manifest;
    int copy_to;
    uint8_t *buf;
};
#define COPY_BYTES (256u << 10)

static int refuse(struct content *c, const char *where, const char *why)
{
    hx_bundle_fault_set(c->fault, "BND-02", where, why);
    return STOP;
}

/* Hashes an entry, at most limit + 1 bytes of it, and copies it. */
static int take(struct content *c, const struct hx_entry *e, uint64_t limit, mode_t mode,
                char hex[HX_SHA256_HEX], uint64_t *size, struct hx_error *err)
{
    struct hx_sha256 *hash = NULL;
    uint8_t digest[HX_SHA256_BYTES];
    int fd = -1, r = hx_sha256_new(&hash, err);
    *size = 0;
    if (r == 0 && c->copy_to >= 0)
        r = hx_tree_create(c->copy_to, e->path, mode, &fd, err);
    while (r == 0 && *size <= limit) {
        size_t n;
        r = hx_entry_read(e->body, c->buf, COPY_BYTES, &n, err);
        if (r < 0 || n == 0)
            break;
        *size += n;
        hx_sha256_update(hash, c->buf, n);
        if (fd >= 0)
            r = hx_tree_write(fd, e->path, c->buf, n, err);
    }
    if (r == 0 && hx_sha256_final(hash, digest) < 0)
        r = hx_fail(err, -ENOMEM, "%s: cannot hash", e->path);
    if (r == 0)
        hx_sha256_to_hex(digest, hex);
    if (fd >= 0) {
        int closed = hx_tree_finish(fd, e->path, r == 0 ? err : NULL);
        r = r < 0 ? r : closed;
    }
    hx_sha256_free(hash);
    return r;
}

static int check_entry(void *ctx, const struct hx_entry *e, struct hx_error *err)
{
    struct content *c = ctx;
    const char *why;
    char hex[HX_SHA256_HEX];
    uint64_t size;
    if (!hx_bundle_path_ok(e->path, &why))
        return refuse(c, e->path, why);
    if (e->kind == HX_ENTRY_LINK)
        return refuse(c, e->path, "a bundle may hold no links");
    if (e->kind == HX_ENTRY_OTHER)
        return refuse(c, e->path, "is neither a plain file nor a folder");
    if (e->kind == HX_ENTRY_FOLDER)
        return 0;
    if (strcmp(e->path, HX_MANIFEST_NAME) == 0) {
        if (c->seen_manifest)
            return refuse(c, e->path, "is there twice");
        c->seen_manifest = true;
        return c->copy_to < 0 ? 0 : take(c, e, HX_MANIFEST_MAX, 0644, hex, &size, err);
    }
    const struct hx_bundle_file *file = hx_manifest_file(c->m, e->path);
    if (!file)
        return refuse(c, e->path, "a file that the manifest does not list");
    size_t i = (size_t)(file - c->m->files.item);
    if (c->seen[i])
        return refuse(c, e->path, "is there twice");
    c->seen[i] = true;
    mode_t mode = file->mode && strcmp(file->mode, "0755") == 0 ? 0755 : 0644;
    if (e->size != (uint64_t)file->size)
        return refuse(c, e->path, "content does not match its hash");
    int r = take(c, e, (uint64_t)file->size, mode, hex, &size, err);
    if (r == 0 && (size != (uint64_t)file->size || strcmp(hex, file->sha256) != 0))
        return refuse(c, e->path, "content does not match its hash");
    return r;
}

int hx_bundle_content(struct hx_source *source, const struct hx_manifest *m, int copy_to,
                      struct hx_bundle_fault *fault, struct hx_error *err)
{
    struct content c = {.m = m, .fault = fault, .copy_to = copy_to};
    memset(fault, 0, sizeof(*fault));
    c.seen = calloc(m->files.n, sizeof(bool));
    c.buf = malloc(COPY_BYTES);
    int r = -ENOMEM;
    if (c.seen && c.buf)
        r = hx_source_walk(source, check_entry, &c, err);
    else
        hx_fail(err, r, "%s: out of memory", hx_source_path(source));
    for (size_t i = 0; r == 0 && i < m->files.n && !fault->check[0]; i++)
        if (!c.seen[i])
            refuse(&c, m->files.item[i].path, "listed but absent");
    free(c.seen);
    free(c.buf);
    return r == STOP && fault->check[0] ? 0 : r;
}

static void add_fault(struct hx_bundle_verdict *v, const char *check, const char *where,
                      const char *why)
{
    if (v->n_faults < HX_BUNDLE_FAULTS)
        hx_bundle_fault_set(&v->fault[v->n_faults++], check, where, why);
}

static void judge_targets(const struct hx_manifest *m, const struct hx_bundle_host *h,
                          struct hx_bundle_verdict *v)
{
    bool card = false;
    int kernel = hx_manifest_fits_kernel(m, h->kernel);
    for (int i = 0; i < h->n_device_ids; i++)
        card = card || hx_strings_has(&m->device_ids, h->device_id[i]);
    if (strcmp(m->arch, h->arch) != 0)
        add_fault(v, "BND-03", "targets.arch", "this machine has another architecture");
    else if (kernel <= 0)
        add_fault(v, "BND-03", "targets.kernels",
                  kernel < 0     ? "out of memory"
                  : m->has_build ? "kernel not covered"
                                 : "prebuilt modules fit one kernel only");
    else if (!card)
        add_fault(v, "BND-03", "targets.device_ids", "no card in this machine is covered");
    else if (strcmp(m->driver_version, h->userspace_driver) != 0 && !hx_manifest_has_userspace(m))
        add_fault(v, "BND-03", "targets.driver_version",
                  h->userspace_driver[0]
                      ? "user-space driver differs and the bundle brings none that replaces it"
                      : "no user-space driver here and the bundle brings none");
}

/* MiB that staging, building and installing need. */
static int64_t space_needed(const struct hx_manifest *m)
{
    int64_t total = 0;
    for (size_t i = 0; i < m->files.n; i++)
        total += m->files.item[i].size;
    int64_t copies = (2 * total >> 20) + 16;
    int64_t build = !m->has_build ? 0 : m->min_free_mib ? m->min_free_mib : HX_BUNDLE_MIN_FREE;
    return build > copies ? build : copies;
}

static void judge_needs(const struct hx_manifest *m, const struct hx_bundle_host *h,
                        struct hx_bundle_verdict *v)
{
    char why[160];
    if (m->has_build && !h->headers) {
        add_fault(v, "BND-04", "linux-headers", "headers for the running kernel are absent");
    } else if (h->missing_tool[0]) {
        add_fault(v, "BND-04", h->missing_tool, "a tool that the build needs is absent");
    } else if (h->free_mib < space_needed(m)) {
        snprintf(why, sizeof(why), "%lld MiB are needed and %lld MiB are free",
                 (long long)space_needed(m), (long long)h->free_mib);
        add_fault(v, "BND-04", "free space", why);
    }
}

void hx_bundle_judge(const struct hx_manifest *m, const struct hx_bundle_host *host,
                     struct hx_bundle_verdict *v)
{
    judge_targets(m, host, v);
    judge_needs(m, host, v);
    for (size_t i = 0; i < m->licences.n; i++)
        if (m->licences.item[i].must_accept &&
            !hx_strings_has(&host->accepted, m->licences.item[i].id)) {
            add_fault(v, "BND-05", m->licences.item[i].id, "owner has not accepted this licence");
            break;
        }
    const char *signing = m->secure_boot ? m->secure_boot : "must-be-off";
    if (host->secure_boot == HX_YES && strcmp(signing, "must-be-off") == 0)
        add_fault(v, "DRV-11", "signing.secure_boot", "Secure Boot is on");
    v->accept = v->n_faults == 0;
    if (!v->accept)
        return;
    v->sign = host->secure_boot == HX_YES && strcmp(signing, "sign-at-install") == 0;
    v->plan[v->n_plan++] = "verify";
    v->plan[v->n_plan++] = "stage";
    if (m->has_build)
        v->plan[v->n_plan++] = "build";
    if (v->sign) {
        v->plan[v->n_plan++] = "sign";
        v->plan[v->n_plan++] = "enrol_key_at_next_start";
    }
    v->plan[v->n_plan++] = "install";
    v->plan[v->n_plan++] = "index";
    v->plan[v->n_plan++] = "boot_image";
    v->plan[v->n_plan++] = m->install_cold ? "power_off" : "restart";
    v->plan[v->n_plan++] = "probe";
    v->plan[v->n_plan++] = "commit";
}

int hx_bundle_verify(struct hx_source *source, hx_bundle_host_fn host, void *ctx,
                     struct hx_manifest **m, struct hx_bundle_verdict *v, struct hx_error *err)
{
    struct hx_manifest *own = NULL;
    struct hx_bundle_host h = {.n_device_ids = 0};
    memset(v, 0, sizeof(*v));
    int r = hx_bundle_load(source, &own, &v->fault[0], err);
    if (r < 0) {
        v->n_faults = v->fault[0].check[0] != '\0';
        return v->n_faults ? 0 : r;
    }
    r = hx_bundle_content(source, own, -1, &v->fault[0], err);
    if (r == -EINVAL) { /* a damaged archive, a name that no manifest can list */
        hx_bundle_fault_set(&v->fault[0], "BND-02", hx_source_path(source),
                            err ? err->text : "cannot be read");
        r = 0;
    }
    v->n_faults = r == 0 && v->fault[0].check[0];
    if (r == 0 && v->n_faults == 0) {
        r = host(ctx, own, &h, err);
        if (r == 0)
            hx_bundle_judge(own, &h, v);
    }
    if (m && r == 0)
        *m = own;
    else
        hx_manifest_free(own);
    return r;
}

int hx_bundle_verdict_json(const struct hx_bundle_verdict *v, struct hx_buf *out)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "accept");
    hx_jw_bool(&w, v->accept);
    if (v->accept) {
        hx_jw_key(&w, "plan");
        hx_jw_array(&w);
        for (int i = 0; i < v->n_plan; i++)
            hx_jw_str(&w, v->plan[i]);
        hx_jw_end_array(&w);
    } else {
        hx_jw_key(&w, "fail");
        hx_jw_array(&w);
        for (int i = 0; i < v->n_faults; i++)
            if (i == 0 || strcmp(v->fault[i].check, v->fault[i - 1].check) != 0)
                hx_jw_str(&w, v->fault[i].check);
        hx_jw_end_array(&w);
        hx_jw_key(&w, "first_error");
        hx_jw_str(&w, v->fault[0].where);
        hx_jw_key(&w, "why");
        hx_jw_str(&w, v->fault[0].why);
        hx_jw_key(&w, "state_changed");
        hx_jw_bool(&w, false);
    }
    hx_jw_end_object(&w);
    return out->failed ? -ENOMEM : 0;
}
