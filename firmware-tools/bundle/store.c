/* Driver folder: lock, journal, index of a slot, published facts. */
#include "bundle/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "bundle/modinfo.h"
#include "bundle/tree.h"

#define INDEX_NAME "index.json"
#define INDEX_MAX  (8u << 20)

const char *hx_slot_name(enum hx_slot slot)
{
    return slot == HX_SLOT_A ? "slot-a" : "slot-b";
}

static int make_folders(const char *path, struct hx_error *err)
{
    char part[HX_ROOT_PATH];
    snprintf(part, sizeof(part), "%s", path);
    for (char *p = strchr(part + 1, '/');; p = strchr(p + 1, '/')) {
        if (p)
            *p = '\0';
        if (mkdir(part, 0755) < 0 && errno != EEXIST)
            return hx_fail_errno(err, errno, "%s: cannot make the folder", part);
        if (!p)
            return 0;
        *p = '/';
    }
}

/* The folder inside the root, whatever of it exists. */
static int outside(const struct hx_root *root, const char *folder, char out[HX_ROOT_PATH],
                   struct hx_error *err)
{
    char base[HX_ROOT_PATH];
    int r = hx_root_outside(root, "/", base);
    if (r == 0) {
        size_t len = strlen(base);
        while (len && base[len - 1] == '/')
            base[--len] = '\0';
        int n = snprintf(out, HX_ROOT_PATH, "%s%s", base, folder);
        if (n < 0 || n >= HX_ROOT_PATH)
            r = -ENAMETOOLONG;
    }
    return r < 0 ? hx_fail_errno(err, -r, "%s: cannot use the folder", folder) : 0;
}

static int64_t read_boot_time(const struct hx_root *root)
{
    char *text;
    size_t len;
    uint64_t v = 0;
    if (hx_root_read(root, "/proc/stat", 1 << 20, &text, &len, NULL) < 0)
        return 0;
    const char *p = strstr(text, "\nbtime ");
    if (p && !hx_parse_u64(p + 7, strcspn(p + 7, "\n"), INT64_MAX, &v))
        v = 0;
    free(text);
    return (int64_t)v;
}

static int read_journal(struct hx_store *s, struct hx_error *err)
{
    char path[HX_ROOT_PATH + 32], *text;
    size_t len;
    snprintf(path, sizeof(path), "%s/%s", s->path, HX_JOURNAL_NAME);
    int r = hx_file_read(path, HX_JOURNAL_MAX, &text, &len, err);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r;
    r = hx_journal_parse(text, len, &s->j, err);
    free(text);
    if (r < 0)
        return hx_wrap(err, r,
                       "%s (remove the bundle with 'hx-cards bundle remove --yes --all' "
                       "and install it again)",
                       path);
    return 0;
}

int hx_store_open(const struct hx_root *root, const char *folder, unsigned flags, int64_t now,
                  struct hx_store *s, struct hx_error *err)
{
    bool write = flags & HX_STORE_WRITE;
    memset(s, 0, sizeof(*s));
    s->root = root;
    snprintf(s->folder, sizeof(s->folder), "%s", folder);
    s->dir = s->lock = -1;
    s->now = now ? now : (int64_t)time(NULL);
    hx_journal_init(&s->j);
    hx_root_text(root, "/proc/sys/kernel/random/boot_id", s->boot_id, sizeof(s->boot_id));
    s->boot_time = read_boot_time(root);
    int r = outside(root, folder, s->path, err);
    if (r == 0 && write)
        r = make_folders(s->path, err);
    if (r < 0)
        return r;
    s->dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0)
        return errno == ENOENT && !write ? 0
                                         : hx_fail_errno(err, errno, "%s: cannot open", s->path);
    if (write) {
        s->lock = openat(s->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (s->lock < 0)
            r = hx_fail_errno(err, errno, "%s/lock: cannot open", s->path);
        else if (flock(s->lock, LOCK_EX | LOCK_NB) < 0)
            r = hx_fail(err, -EBUSY, "%s: another hx-cards is at work; wait until it has ended",
                        s->path);
    }
    if (r == 0)
        r = read_journal(s, err);
    if (r == -EINVAL && (flags & HX_STORE_FORGET))
        r = 0;
    if (r < 0)
        hx_store_close(s);
    return r;
}

void hx_store_close(struct hx_store *s)
{
    if (s->dir >= 0)
        close(s->dir);
    if (s->lock >= 0)
        close(s->lock);
    s->dir = s->lock = -1;
}

/* A small file of the driver folder. */
static int replace(struct hx_store *s, const char *name, struct hx_buf *text, struct hx_error *err)
{
    char path[HX_ROOT_PATH + 32];
    snprintf(path, sizeof(path), "%s/%s", s->path, name);
    if (text->failed)
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    return hx_file_replace(path, text->data, text->len, err);
}

int hx_store_save(struct hx_store *s, struct hx_error *err)
{
    struct hx_buf text = HX_BUF_INIT(HX_JOURNAL_MAX);
    s->j.changed_at = s->now;
    hx_journal_format(&s->j, &text);
    int r = replace(s, HX_JOURNAL_NAME, &text, err);
    hx_buf_done(&text);
    return r;
}

int hx_slot_open(const struct hx_store *s, enum hx_slot slot, int *fd, struct hx_error *err)
{
    int got = -1;
    errno = ENOENT;
    if (s->dir >= 0 && slot != HX_SLOT_NONE)
        got = openat(s->dir, hx_slot_name(slot), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (got < 0)
        return hx_fail_errno(err, errno, "%s/%s: cannot open", s->path, hx_slot_name(slot));
    *fd = got;
    return 0;
}

static int read_beneath(int dir, const char *name, size_t max, char **out, size_t *len,
                        struct hx_error *err)
{
    char path[64];
    int fd, r = hx_tree_open(dir, name, &fd, err);
    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    r = hx_file_read(path, max, out, len, err);
    close(fd);
    return r < 0 ? hx_wrap(err, r, "%s", name) : 0;
}

int hx_slot_manifest(const struct hx_store *s, enum hx_slot slot, struct hx_manifest **out,
                     struct hx_error *err)
{
    char *text;
    size_t len;
    int dir, r = hx_slot_open(s, slot, &dir, err);
    if (r < 0)
        return r;
    r = read_beneath(dir, "bundle/" HX_MANIFEST_NAME, HX_MANIFEST_MAX, &text, &len, err);
    close(dir);
    if (r < 0)
        return r;
    r = hx_manifest_parse(text, len, out, NULL, err);
    free(text);
    return r;
}

struct indexing {
    struct hx_json_writer w;
    size_t n;
};

static int index_file(void *ctx, const char *path, int fd, struct hx_error *err)
{
    struct indexing *x = ctx;
    char hex[65];
    uint64_t size;
    if (++x->n > HX_SLOT_FILES)
        return hx_fail(err, -EINVAL, "more than %d files in the slot", HX_SLOT_FILES);
    int r = hx_tree_hash(fd, path, hex, &size, err);
    if (r < 0)
        return r;
    hx_jw_object(&x->w);
    hx_jw_key(&x->w, "path");
    hx_jw_str(&x->w, path);
    hx_jw_key(&x->w, "sha256");
    hx_jw_str(&x->w, hex);
    hx_jw_key(&x->w, "size");
    hx_jw_uint(&x->w, size);
    hx_jw_end_object(&x->w);
    return 0;
}

/* Facts of the slot's nvidia module; all empty if it has none. */
static struct hx_modinfo read_module(int dir, const char *module_dir)
{
    char path[512];
    struct hx_modinfo info = {.is_signed = false};
    int fd;
    snprintf(path, sizeof(path), "%s/nvidia.ko", module_dir);
    if (hx_tree_open(dir, path, &fd, NULL) < 0)
        return info;
    if (hx_modinfo_read(fd, path, &info, NULL) < 0)
        info = (struct hx_modinfo){.is_signed = false};
    close(fd);
    return info;
}

int hx_slot_index(const struct hx_store *s, enum hx_slot slot, const struct hx_manifest *m,
                  const char *kernel, struct hx_error *err)
{
    struct hx_buf text = HX_BUF_INIT(INDEX_MAX);
    struct indexing x = {.n = 0};
    char module_dir[256];
    int dir, r = hx_slot_open(s, slot, &dir, err);
    if (r < 0)
        return r;
    snprintf(module_dir, sizeof(module_dir), "lib/modules/%s/%s", kernel, m->module_dir);
    struct hx_modinfo module = read_module(dir, module_dir);
    const char *facts[][2] = {{"name", m->name},
                              {"version", m->version},
                              {"kernel", kernel},
                              {"driver_version", m->driver_version},
                              {"srcversion", module.srcversion},
                              {"module_dir", module_dir}};
    hx_jw_init(&x.w, &text, true);
    hx_jw_object(&x.w);
    hx_jw_key(&x.w, "schema");
    hx_jw_int(&x.w, 1);
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        hx_jw_key(&x.w, facts[i][0]);
        hx_jw_str(&x.w, facts[i][1]);
    }
    hx_jw_key(&x.w, "files");
    hx_jw_array(&x.w);
    r = hx_tree_walk(dir, index_file, &x, err);
    hx_jw_end_array(&x.w);
    hx_jw_end_object(&x.w);
    hx_buf_putc(&text, '\n');
    if (r == 0 && text.failed)
        r = hx_fail(err, -ENOMEM, "%s: index: out of memory", hx_slot_name(slot));
    if (r == 0)
        r = hx_tree_put(dir, INDEX_NAME, text.data, text.len, err);
    hx_buf_done(&text);
    close(dir);
    return r;
}

static bool copy_text(struct hx_jv v, char *to, size_t size)
{
    size_t len;
    const char *t = hx_jv_str(v, &len);
    if (!t || len >= size || memchr(t, '\0', len))
        return false;
    memcpy(to, t, len);
    to[len] = '\0';
    return true;
}

static void damaged(struct hx_slot_facts *f, const char *path, const char *how)
{
    if (!f->damage[0])
        snprintf(f->damage, sizeof(f->damage), "%s: %s", path, how);
}

static int count_file(void *ctx, const char *path, int fd, struct hx_error *err)
{
    (void)path;
    (void)fd;
    (void)err;
    ++*(size_t *)ctx;
    return 0;
}

static int check_listed(int dir, struct hx_jv files, struct hx_slot_facts *f, struct hx_error *err)
{
    size_t n_listed = 0, n_there = 0;
    for (struct hx_jv e = hx_jv_first(files); e.doc && !f->damage[0]; e = hx_jv_next(e)) {
        char path[1024], want[65], hex[65];
        int64_t want_size;
        uint64_t size;
        int fd;
        n_listed++;
        if (!copy_text(hx_jv_get(e, "path"), path, sizeof(path)) ||
            !copy_text(hx_jv_get(e, "sha256"), want, sizeof(want)) ||
            !hx_jv_int64(hx_jv_get(e, "size"), &want_size)) {
            damaged(f, INDEX_NAME, "is damaged");
            break;
        }
        if (hx_tree_open(dir, path, &fd, NULL) < 0) {
            damaged(f, path, "is absent");
            break;
        }
        int r = hx_tree_hash(fd, path, hex, &size, err);
        close(fd);
        if (r == -ENOMEM)
            return r;
        if (r < 0)
            damaged(f, path, "cannot be read");
        else if (size != (uint64_t)want_size || strcmp(hex, want) != 0)
            damaged(f, path, "differs from what was installed");
    }
    if (f->damage[0])
        return 0;
    if (hx_tree_walk(dir, count_file, &n_there, err) < 0)
        damaged(f, "the slot", "holds something that was not installed");
    else if (n_there != n_listed + 1) /* the index itself */
        damaged(f, "the slot", "holds files that were not installed");
    return 0;
}

int hx_slot_check(const struct hx_store *s, enum hx_slot slot, struct hx_slot_facts *out,
                  struct hx_error *err)
{
    struct hx_json_limits limits = {INDEX_MAX, 8 * HX_SLOT_FILES, 6, 0};
    struct hx_slot_facts f = {.present = false};
    struct hx_json *doc = NULL;
    char *text = NULL;
    size_t len;
    int dir, r = hx_slot_open(s, slot, &dir, NULL);
    if (r < 0) {
        *out = f;
        return 0;
    }
    f.present = true;
    struct hx_error why = {0};
    r = read_beneath(dir, INDEX_NAME, INDEX_MAX, &text, &len, &why);
    if (r == 0)
        r = hx_json_parse(text, len, &limits, &doc, &why);
    free(text);
    if (r == -ENOMEM)
        r = hx_fail(err, r, "%s: out of memory", INDEX_NAME);
    if (r == 0) {
        struct hx_jv v = hx_json_root(doc);
        if (!copy_text(hx_jv_get(v, "name"), f.name, sizeof(f.name)) ||
            !copy_text(hx_jv_get(v, "version"), f.version, sizeof(f.version)) ||
            !copy_text(hx_jv_get(v, "kernel"), f.kernel, sizeof(f.kernel)) ||
            !copy_text(hx_jv_get(v, "driver_version"), f.driver_version,
                       sizeof(f.driver_version)) ||
            !copy_text(hx_jv_get(v, "srcversion"), f.srcversion, sizeof(f.srcversion)) ||
            !copy_text(hx_jv_get(v, "module_dir"), f.module_dir, sizeof(f.module_dir)))
            damaged(&f, INDEX_NAME, "is damaged");
        else
            r = check_listed(dir, hx_jv_get(v, "files"), &f, err);
    } else if (r != -ENOMEM) {
        damaged(&f, INDEX_NAME, why.text);
        r = 0;
    }
    hx_json_free(doc);
    if (f.module_dir[0])
        f.is_signed = read_module(dir, f.module_dir).is_signed;
    close(dir);
    f.intact = f.present && !f.damage[0];
    if (r == 0)
        *out = f;
    return r;
}

static void put_words(struct hx_json_writer *w, const char *key, const struct hx_strings *s)
{
    hx_jw_key(w, key);
    hx_jw_array(w);
    for (size_t i = 0; s && i < s->n; i++)
        hx_jw_str(w, s->item[i]);
    hx_jw_end_array(w);
}

/* Kernel words of the slot that the next start loads. */
static int publish_boot(struct hx_store *s, const struct hx_manifest *m, enum hx_slot slot,
                        struct hx_error *err)
{
    struct hx_buf text = HX_BUF_INIT(256u << 10);
    struct hx_json_writer w;
    char letter[2] = {hx_slot_letter(slot), '\0'};
    hx_jw_init(&w, &text, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "slot");
    if (slot == HX_SLOT_NONE)
        hx_jw_null(&w);
    else
        hx_jw_str(&w, letter);
    put_words(&w, "add", m ? &m->cmdline_add : NULL);
    put_words(&w, "remove", m ? &m->cmdline_remove : NULL);
    put_words(&w, "blacklist", m ? &m->blacklist : NULL);
    hx_jw_end_object(&w);
    hx_buf_putc(&text, '\n');
    int r = replace(s, "boot.json", &text, err);
    hx_buf_done(&text);
    return r;
}

const char *hx_cold_start_name(enum hx_cold_start c)
{
    return c == HX_COLD_YES ? "yes" : c == HX_COLD_WARM ? "warm" : "unknown";
}

enum hx_cold_start hx_store_cold_start(const struct hx_store *s)
{
    const struct hx_journal *j = &s->j;
    if (j->armed_boot[0] && strcmp(j->armed_boot, s->boot_id) == 0)
        return HX_COLD_WARM;
    if (j->off_s < 0)
        return HX_COLD_UNKNOWN;
    return j->off_s >= HX_COLD_SECONDS ? HX_COLD_YES : HX_COLD_WARM;
}

/* BND-09 */
static int way_back(const struct hx_store *s, const char **out, struct hx_error *err)
{
    /* While a candidate is on trial the active slot is the way back. */
    bool pending = s->j.candidate != HX_SLOT_NONE;
    enum hx_slot slot = pending ? s->j.active : s->j.previous;
    struct hx_slot_facts f;
    *out = "first";
    if (slot == HX_SLOT_NONE)
        return 0;
    int r = hx_slot_check(s, slot, &f, err);
    *out = f.intact ? "yes" : "no";
    return r;
}

/* Facts of the slot that this or the next start loads, for the checks. */
static int publish_active(struct hx_store *s, const struct hx_manifest *m, enum hx_slot slot,
                          struct hx_error *err)
{
    struct hx_buf text = HX_BUF_INIT(64u << 10);
    struct hx_json_writer w;
    struct hx_slot_facts facts = {.present = false};
    char module_dir[HX_ROOT_PATH];
    const char *back = "first";
    int r = m ? hx_slot_check(s, slot, &facts, err) : 0;
    if (r == 0)
        r = way_back(s, &back, err);
    if (r < 0)
        return r;
    snprintf(module_dir, sizeof(module_dir), "%s/%s/%s", s->folder, hx_slot_name(slot),
             facts.module_dir);
    hx_jw_init(&w, &text, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "bundle");
    if (!m || !facts.present) {
        hx_jw_null(&w);
    } else {
        hx_jw_object(&w);
        hx_jw_key(&w, "name");
        hx_jw_str_n(&w, m->name, strnlen(m->name, 63));
        hx_jw_key(&w, "driver_version");
        hx_jw_str(&w, m->driver_version);
        hx_jw_key(&w, "module_dir");
        hx_jw_str(&w, module_dir);
        hx_jw_key(&w, "registry_keys");
        hx_jw_str(&w, m->registry_keys ? m->registry_keys : "");
        hx_jw_key(&w, "safety_marker_required");
        hx_jw_bool(&w, m->marker_accepted.n > 0);
        hx_jw_key(&w, "signed_by_trusted");
        hx_jw_bool(&w, facts.is_signed);
        hx_jw_key(&w, "state_ok");
        hx_jw_bool(&w, facts.intact);
        hx_jw_key(&w, "srcversion");
        hx_jw_str(&w, facts.srcversion);
        hx_jw_key(&w, "by_path");
        hx_jw_bool(&w, true);
        hx_jw_key(&w, "cold_start");
        hx_jw_str(&w, hx_cold_start_name(hx_store_cold_start(s)));
        hx_jw_key(&w, "way_back");
        hx_jw_str(&w, back);
        hx_jw_end_object(&w);
    }
    hx_jw_end_object(&w);
    hx_buf_putc(&text, '\n');
    r = replace(s, "active.json", &text, err);
    hx_buf_done(&text);
    return r;
}

int hx_store_publish(struct hx_store *s, struct hx_error *err)
{
    enum hx_slot slot = hx_journal_next(&s->j);
    struct hx_manifest *m = NULL;
    int r = 0;
    if (slot != HX_SLOT_NONE && hx_slot_manifest(s, slot, &m, err) == -ENOMEM)
        return -ENOMEM;
    r = publish_boot(s, m, slot, err);
    if (r == 0)
        r = publish_active(s, m, slot, err);
    hx_manifest_free(m);
    return r;
}
