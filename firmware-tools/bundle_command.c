/* hx-cards bundle ...: arguments to calls, results to text or JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "base/sha256.h"
#include "bundle/host.h"
#include "bundle/install.h"
#include "bundle/load.h"
#include "bundle/sign.h"
#include "bundle/start.h"
#include "options.h"

#define KIT_DIR "/run/hx170/kit"

struct session {
    const struct hx_cards_options *o;
    struct hx_store store;
    struct hx_host_query query;
    char kit[HX_ROOT_PATH];
};

static const struct {
    const char *check, *advice;
} advice[] = {
    {"BND-01", "Have the manifest corrected; docs/bundles.md describes every field."},
    {"BND-02", "The bundle is damaged or was changed. Copy it again from where it was made."},
    {"BND-03", "This bundle is made for another machine. Get one for this kernel, driver version "
               "and card."},
    {"BND-04", "Attach the build kit of this system version (--kit DIR), or free space on the "
               "state disk."},
    {"BND-05", "Read the licence text in the bundle; to accept it, add --accept ID."},
    {"DRV-11", "Switch Secure Boot off in the firmware setup, or use a bundle whose modules may be "
               "signed at install."},
};

static const char *folder_of(const struct hx_cards_options *o)
{
    return o->state ? o->state : HX_STORE_DIR;
}

static int open_session(struct session *x, const struct hx_cards_options *o, unsigned flags,
                        struct hx_error *err)
{
    memset(x, 0, sizeof(*x));
    x->o = o;
    x->store.dir = x->store.lock = -1;
    return hx_store_open(o->root, folder_of(o), flags, o->now, &x->store, err);
}

/* Where tools and headers are: as told, the mounted build kit, else the machine's own. */
static int open_host(struct session *x, struct hx_error *err)
{
    const struct hx_cards_options *o = x->o;
    int r = 0;
    if (o->kit)
        snprintf(x->kit, sizeof(x->kit), "%s", o->kit);
    else
        r = hx_root_outside(o->root, hx_root_is_folder(o->root, KIT_DIR) ? KIT_DIR : "/", x->kit);
    if (r < 0)
        return hx_fail_errno(err, -r, "build kit");
    x->query = (struct hx_host_query){
        .root = o->root,
        .commands = o->tools,
        .store = &x->store,
        .kit = x->kit[0] ? x->kit : "/",
        .kernel = o->kernel,
        .accepted = o->accepted,
    };
    r = hx_root_open(x->query.kit, &x->query.kit_root, err);
    if (r < 0)
        return hx_wrap(err, r, "build kit");
    return hx_host_query_init(&x->query, err);
}

static void close_session(struct session *x)
{
    hx_store_close(&x->store);
    hx_root_close(x->query.kit_root);
}

static int print_buf(struct hx_buf *out)
{
    hx_buf_putc(out, '\n');
    if (!out->failed)
        fwrite(out->data, 1, out->len, stdout);
    bool bad = out->failed || fflush(stdout) != 0;
    hx_buf_done(out);
    return bad ? -EIO : 0;
}

static int print_verdict(const struct hx_cards_options *o, const char *what,
                         const struct hx_bundle_verdict *v)
{
    int code = v->accept ? HX_EXIT_READY : HX_EXIT_NOT_READY;
    if (o->json) {
        struct hx_buf out = HX_BUF_INIT(1u << 20);
        hx_bundle_verdict_json(v, &out);
        return print_buf(&out) < 0 ? HX_EXIT_INTERNAL : code;
    }
    if (v->accept) {
        printf("%s: accepted. Steps:", what);
        for (int i = 0; i < v->n_plan; i++)
            printf(" %s", v->plan[i]);
        puts("");
        return code;
    }
    for (int i = 0; i < v->n_faults; i++) {
        printf("%s: refused. %s %s: %s\n", what, v->fault[i].check, v->fault[i].where,
               v->fault[i].why);
        for (size_t k = 0; k < sizeof(advice) / sizeof(advice[0]); k++)
            if (strcmp(advice[k].check, v->fault[i].check) == 0)
                printf("  %s\n", advice[k].advice);
    }
    return code;
}

/* --sha256: of the archive, or of a folder's manifest. */
static int check_sum(const struct hx_cards_options *o, const char *path, struct hx_error *err)
{
    char hex[HX_SHA256_HEX], *manifest = NULL;
    uint64_t size;
    if (!o->sha256)
        return 0;
    struct hx_source *s;
    int r = hx_source_open(path, &s, err);
    if (r < 0)
        return r;
    bool archive = hx_source_is_archive(s);
    hx_source_close(s);
    if (!archive) {
        size_t len = strlen(path) + sizeof("/" HX_MANIFEST_NAME);
        manifest = malloc(len);
        if (!manifest)
            return hx_fail(err, -ENOMEM, "out of memory");
        snprintf(manifest, len, "%s/%s", path, HX_MANIFEST_NAME);
    }
    r = hx_sha256_file(archive ? path : manifest, hex, &size, err);
    if (r == 0 && strcmp(hex, o->sha256) != 0)
        r = hx_fail(err, -EBADMSG,
                    "%s: SHA-256 is %s, expected %s; the bundle is damaged or "
                    "another one",
                    archive ? path : manifest, hex, o->sha256);
    free(manifest);
    return r;
}

static int verify(const struct hx_cards_options *o, const char *path, struct hx_bundle_verdict *v,
                  struct hx_error *err)
{
    struct session x;
    struct hx_source *source = NULL;
    int r = open_session(&x, o, 0, err);
    if (r == 0)
        r = check_sum(o, path, err);
    if (r == 0)
        r = open_host(&x, err);
    if (r == 0)
        r = hx_source_open(path, &source, err);
    if (r == 0)
        r = hx_bundle_verify(source, hx_host_read, &x.query, NULL, v, err);
    hx_source_close(source);
    close_session(&x);
    return r;
}

static int command_verify(const struct hx_cards_options *o, const char *path)
{
    struct hx_error err = {0};
    struct hx_bundle_verdict v;
    int r = verify(o, path, &v, &err);
    if (r < 0)
        return hx_cards_error(r == -EBADMSG ? HX_EXIT_NOT_READY : HX_EXIT_INTERNAL, &err);
    return print_verdict(o, path, &v);
}

static void say_step(const char *step)
{
    fprintf(stderr, "hx-cards: %s\n", step);
}

static void put_text(struct hx_json_writer *w, const char *key, const char *value)
{
    hx_jw_key(w, key);
    if (value && value[0])
        hx_jw_str(w, value);
    else
        hx_jw_null(w);
}

static void put_slot_letter(struct hx_json_writer *w, const char *key, enum hx_slot slot)
{
    char letter[2] = {hx_slot_letter(slot), '\0'};
    put_text(w, key, slot == HX_SLOT_NONE ? NULL : letter);
}

static void put_slot(struct hx_json_writer *w, enum hx_slot slot, const struct hx_slot_facts *f)
{
    char letter[2] = {hx_slot_letter(slot), '\0'};
    hx_jw_object(w);
    hx_jw_key(w, "slot");
    hx_jw_str(w, letter);
    hx_jw_key(w, "present");
    hx_jw_bool(w, f->present);
    hx_jw_key(w, "intact");
    hx_jw_bool(w, f->intact);
    hx_jw_key(w, "signed");
    hx_jw_bool(w, f->is_signed);
    put_text(w, "name", f->name);
    put_text(w, "version", f->version);
    put_text(w, "kernel", f->kernel);
    put_text(w, "driver_version", f->driver_version);
    put_text(w, "srcversion", f->srcversion);
    put_text(w, "module_dir", f->module_dir);
    put_text(w, "damage", f->damage);
    hx_jw_end_object(w);
}

/* What a person has to do now. */
static const char *next_move(const struct hx_store *s)
{
    const struct hx_journal *j = &s->j;
    switch (j->state) {
    case HX_BUNDLE_ABSENT: return "No bundle is installed. Give one to 'hx-cards bundle install'.";
    case HX_BUNDLE_VERIFIED:
    case HX_BUNDLE_STAGED:
    case HX_BUNDLE_BUILT:
    case HX_BUNDLE_SIGNED:
        return "An install was interrupted. Run 'hx-cards bundle install' again.";
    case HX_BUNDLE_ARMED: return "Shut down, switch the power off for 60 seconds and start again.";
    case HX_BUNDLE_PROBING: return "The new slot is on trial. 'hx-cards bundle confirm' judges it.";
    case HX_BUNDLE_COMMITTED: break;
    case HX_BUNDLE_FAILED: return "The last install failed; what was active before still is.";
    case HX_BUNDLE_ROLLED_BACK:
        if (j->cold_wanted)
            return "Shut down, switch the power off for 60 seconds and start again.";
        break;
    case HX_BUNDLE_STATE_MAX: break;
    }
    return j->cold_wanted ? "Shut down, switch the power off for 60 seconds and start again."
                          : "Nothing to do.";
}

static int status_json(const struct hx_store *s, const struct hx_slot_facts f[HX_SLOT_MAX])
{
    const struct hx_journal *j = &s->j;
    struct hx_buf out = HX_BUF_INIT(1u << 20);
    struct hx_json_writer w;
    hx_jw_init(&w, &out, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "state");
    hx_jw_str(&w, hx_bundle_state_name(j->state));
    put_slot_letter(&w, "active", j->active);
    put_slot_letter(&w, "previous", j->previous);
    put_slot_letter(&w, "candidate", j->candidate);
    put_slot_letter(&w, "next_start", hx_journal_next(j));
    put_text(&w, "name", j->name);
    put_text(&w, "version", j->version);
    put_text(&w, "kernel", j->kernel);
    put_text(&w, "manifest_sha256", j->manifest_sha256);
    hx_jw_key(&w, "starts");
    hx_jw_int(&w, j->starts);
    hx_jw_key(&w, "cold_start");
    hx_jw_str(&w, hx_cold_start_name(hx_store_cold_start(s)));
    hx_jw_key(&w, "power_off_wanted");
    hx_jw_bool(&w, j->cold_wanted);
    put_text(&w, "why", j->why);
    put_text(&w, "do", next_move(s));
    hx_jw_key(&w, "slots");
    hx_jw_array(&w);
    for (int i = 0; i < HX_SLOT_MAX; i++)
        put_slot(&w, (enum hx_slot)i, &f[i]);
    hx_jw_end_array(&w);
    hx_jw_end_object(&w);
    return print_buf(&out);
}

static void status_text(const struct hx_store *s, const struct hx_slot_facts f[HX_SLOT_MAX])
{
    const struct hx_journal *j = &s->j;
    printf("state       %s\n", hx_bundle_state_name(j->state));
    for (int i = 0; i < HX_SLOT_MAX; i++) {
        enum hx_slot slot = (enum hx_slot)i;
        const char *use = slot == j->active      ? "active"
                          : slot == j->previous  ? "previous"
                          : slot == j->candidate ? "candidate"
                                                 : "free";
        printf("slot %c      %s", hx_slot_letter(slot), use);
        if (f[i].intact)
            printf(", %s %s for kernel %s, driver %s%s\n", f[i].name, f[i].version, f[i].kernel,
                   f[i].driver_version, f[i].is_signed ? ", signed" : "");
        else if (f[i].present && slot != j->candidate)
            printf(", damaged: %s\n", f[i].damage);
        else
            puts(f[i].present ? ", not complete" : ", empty");
    }
    enum hx_slot next = hx_journal_next(j);
    if (next == HX_SLOT_NONE)
        puts("next start  loads no driver");
    else
        printf("next start  loads slot %c\n", hx_slot_letter(next));
    if (j->why[0])
        printf("last time   %s\n", j->why);
    puts(next_move(s));
}

/* Damage of a slot that is used counts; an interrupted candidate does not. */
static int status_code(const struct hx_store *s, const struct hx_slot_facts f[HX_SLOT_MAX])
{
    enum hx_slot next = hx_journal_next(&s->j);
    if (next != HX_SLOT_NONE && !f[next].intact)
        return HX_EXIT_NOT_READY;
    if (s->j.previous != HX_SLOT_NONE && !f[s->j.previous].intact)
        return HX_EXIT_DEGRADED;
    return HX_EXIT_READY;
}

static int print_status(struct session *x)
{
    struct hx_slot_facts f[HX_SLOT_MAX];
    struct hx_error err = {0};
    for (int i = 0; i < HX_SLOT_MAX; i++)
        if (hx_slot_check(&x->store, (enum hx_slot)i, &f[i], &err) < 0)
            return hx_cards_error(HX_EXIT_INTERNAL, &err);
    if (!x->o->json)
        status_text(&x->store, f);
    else if (status_json(&x->store, f) < 0)
        return HX_EXIT_INTERNAL;
    return status_code(&x->store, f);
}

static int command_install(const struct hx_cards_options *o, const char *path)
{
    struct session x;
    struct hx_error err = {0};
    struct hx_source *source = NULL;
    struct hx_bundle_verdict v = {.accept = false};
    int code;
    /* A bundle that is refused leaves nothing behind, not even the driver folder. */
    int r = verify(o, path, &v, &err);
    if (r < 0)
        return hx_cards_error(r == -EBADMSG ? HX_EXIT_NOT_READY : HX_EXIT_INTERNAL, &err);
    if (!v.accept)
        return print_verdict(o, path, &v);
    r = open_session(&x, o, HX_STORE_WRITE, &err);
    if (r == 0)
        r = open_host(&x, &err);
    if (r == 0)
        r = hx_source_open(path, &source, &err);
    struct hx_install in = {source,      hx_host_read,
                            &x.query,    x.query.release,
                            x.query.kit, x.query.headers[0] ? x.query.headers : NULL,
                            say_step};
    if (r == 0)
        r = hx_bundle_install(&x.store, &in, &v, &err);
    hx_source_close(source);
    if (r < 0)
        code = hx_cards_error(r == -EBUSY ? HX_EXIT_NOT_READY : HX_EXIT_INTERNAL, &err);
    else if (!v.accept)
        code = print_verdict(o, path, &v);
    else
        code = print_status(&x);
    if (r == 0 && v.accept && v.sign && !o->json)
        printf("Enrol %s/%s: mokutil --import FILE asks for a one-time password, and so does the "
               "next start.\n",
               x.store.path, HX_SIGN_CERT);
    close_session(&x);
    return code;
}

static int command_status(const struct hx_cards_options *o)
{
    struct session x;
    struct hx_error err = {0};
    if (open_session(&x, o, 0, &err) < 0)
        return hx_cards_error(HX_EXIT_INTERNAL, &err);
    int code = print_status(&x);
    close_session(&x);
    return code;
}

static int command_rollback(const struct hx_cards_options *o)
{
    struct session x;
    struct hx_error err = {0};
    int r = open_session(&x, o, HX_STORE_WRITE, &err);
    if (r == 0)
        r = hx_bundle_rollback(&x.store, &err);
    int code = r == 0         ? print_status(&x)
               : r == -ENOENT ? hx_cards_error(HX_EXIT_NOT_READY, &err)
                              : hx_cards_error(HX_EXIT_INTERNAL, &err);
    close_session(&x);
    return code;
}

static int command_remove(const struct hx_cards_options *o)
{
    struct session x;
    struct hx_error err = {0};
    if (!o->yes) {
        fprintf(stderr, "hx-cards: bundle remove takes %s away; add --yes to do it\n",
                o->all ? "every slot" : "the slots that are not active");
        return HX_EXIT_USAGE;
    }
    int r = open_session(&x, o, HX_STORE_WRITE | (o->all ? HX_STORE_FORGET : 0), &err);
    if (r == 0)
        r = hx_bundle_remove(&x.store, o->all, &err);
    int code = r == 0        ? print_status(&x)
               : r == -EBUSY ? hx_cards_error(HX_EXIT_NOT_READY, &err)
                             : hx_cards_error(HX_EXIT_INTERNAL, &err);
    close_session(&x);
    return code;
}

static int print_start(const struct session *x, const struct hx_start_plan *plan,
                       const struct hx_load_plan *load, bool off)
{
    static const char *const actions[] = {"nothing", "load", "refuse"};
    if (!x->o->json) {
        printf("%s\n", plan->why);
        for (int i = 0; i < load->n; i++)
            printf("  %s: %s %s\n", load->module[i].name, load->module[i].path,
                   load->module[i].options);
        return 0;
    }
    struct hx_buf out = HX_BUF_INIT(1u << 16);
    struct hx_json_writer w;
    hx_jw_init(&w, &out, true);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    hx_jw_key(&w, "action");
    hx_jw_str(&w, off ? "off" : actions[plan->action]);
    put_slot_letter(&w, "slot", plan->slot);
    hx_jw_key(&w, "rolled_back");
    hx_jw_bool(&w, plan->rolled_back);
    put_text(&w, "why", plan->why);
    hx_jw_key(&w, "cold_start");
    hx_jw_str(&w, hx_cold_start_name(hx_store_cold_start(&x->store)));
    hx_jw_key(&w, "modules");
    hx_jw_array(&w);
    for (int i = 0; i < load->n; i++) {
        hx_jw_object(&w);
        put_text(&w, "name", load->module[i].name);
        put_text(&w, "path", load->module[i].path);
        put_text(&w, "options", load->module[i].options);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    hx_jw_end_object(&w);
    return print_buf(&out);
}

/* The kernel word that starts the machine without the driver. */
static bool driver_is_off(const struct hx_root *root)
{
    char line[4096], *save = NULL;
    hx_root_text(root, "/proc/cmdline", line, sizeof(line));
    for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        if (strcmp(w, "hx.driver=off") == 0)
            return true;
    return false;
}

static int command_start(const struct hx_cards_options *o)
{
    struct session x;
    struct hx_error err = {0};
    struct hx_start_plan plan = {.action = HX_START_NOTHING, .slot = HX_SLOT_NONE};
    struct hx_load_plan load = {.n = 0};
    char kernel[128];
    int code = HX_EXIT_READY;
    bool off = driver_is_off(o->root);
    hx_root_text(o->root, "/proc/sys/kernel/osrelease", kernel, sizeof(kernel));
    int r = open_session(&x, o, HX_STORE_WRITE, &err);
    if (r == 0 && off)
        snprintf(plan.why, sizeof(plan.why), "started without the driver (hx.driver=off)");
    else if (r == 0)
        r = hx_start_decide(&x.store, o->kernel ? o->kernel : kernel, o->confirmed_off, &plan,
                            &err);
    /* Also brings in line what a cut left behind the journal. */
    if (r == 0 && !off && plan.action != HX_START_NOTHING)
        r = hx_store_publish(&x.store, &err);
    if (r == 0 && plan.action == HX_START_LOAD)
        r = hx_load_plan_make(&x.store, plan.slot, &load, &err);
    if (r == 0 && plan.action == HX_START_LOAD && !hx_root_is_fake(o->root))
        r = hx_load_run(&x.store, plan.slot, &load, &err);
    if (r == 0 && print_start(&x, &plan, &load, off) < 0)
        code = HX_EXIT_INTERNAL;
    close_session(&x);
    if (r < 0)
        return hx_cards_error(HX_EXIT_INTERNAL, &err);
    if (plan.action == HX_START_REFUSE)
        code = HX_EXIT_NOT_READY;
    else if (plan.rolled_back)
        code = HX_EXIT_DEGRADED;
    return code;
}

static int command_stop(const struct hx_cards_options *o)
{
    struct session x;
    struct hx_error err = {0};
    int r = open_session(&x, o, HX_STORE_WRITE, &err);
    if (r == 0)
        r = hx_start_stopped(&x.store, &err);
    close_session(&x);
    return r < 0 ? hx_cards_error(HX_EXIT_INTERNAL, &err) : HX_EXIT_READY;
}

int hx_cards_bundle(const struct hx_cards_options *o)
{
    static const struct {
        const char *name;
        int (*run)(const struct hx_cards_options *o);
        int (*run_with)(const struct hx_cards_options *o, const char *path);
    } rows[] = {
        {"verify", NULL, command_verify}, {"install", NULL, command_install},
        {"status", command_status, NULL}, {"rollback", command_rollback, NULL},
        {"remove", command_remove, NULL}, {"start", command_start, NULL},
        {"stop", command_stop, NULL},     {"confirm", hx_cards_confirm, NULL},
    };
    const char *name = o->n_words > 1 ? o->word[1] : "";
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].name, name) != 0)
            continue;
        if (o->n_words != (rows[i].run_with ? 3 : 2)) {
            fprintf(stderr, "hx-cards: bundle %s: expected %s; see hx-cards --help\n", name,
                    rows[i].run_with ? "one folder or archive" : "nothing more");
            return HX_EXIT_USAGE;
        }
        return rows[i].run ? rows[i].run(o) : rows[i].run_with(o, o->word[2]);
    }
    fprintf(stderr,
            "hx-cards: bundle: found '%s', expected verify, install, status, rollback, "
            "remove, start, stop or confirm\n",
            name);
    return HX_EXIT_USAGE;
}
