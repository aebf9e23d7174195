/* Which drive holds the models: asked only where there is a choice. An answer is an order, carried
 * out once when the answers are put in force, and counts from the next start. */
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "setup/drive.h"
#include "setup/valid.h"

#define LIST_MS    60000
#define READ_S     "3"
#define READ_MS    300000
#define MOVE_MS    120000
#define MAX_DRIVES 16
#define OWN        "system" /* the choice that is no serial number */
#define SLOW       1e9      /* bytes per second */

struct drive {
    char name[64], serial[128], model[64], content[96], reason[96], label[300];
    double bytes, room, rate;
    bool own, current, usable, keepable;
};

struct drives {
    int n;
    struct drive drive[MAX_DRIVES];
};

/* ---- words ----------------------------------------------------------------------------------- */

void hx_drive_label(const struct hx_drive_words *w, char *out, size_t size)
{
    char bytes[40] = "", serial[80] = "";
    if (*w->serial)
        snprintf(serial, sizeof(serial), "serial %.40s", w->serial);
    if (w->bytes > 0)
        snprintf(bytes, sizeof(bytes), "%.1f GB", w->bytes / 1e9);
    const char *const parts[] = {w->model, serial, bytes, w->content};
    size_t n = (size_t)snprintf(out, size, "%.20s", w->name);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && n < size; i++) {
        if (*parts[i])
            n += (size_t)snprintf(out + n, size - n, "%s%.46s", i ? ", " : " ", parts[i]);
    }
}

static void copy(struct hx_jv object, const char *key, char *out, size_t size)
{
    size_t n;
    const char *text = hx_jv_str(hx_jv_get(object, key), &n);
    snprintf(out, size, "%.*s", text ? (int)(n > size ? size : n) : 0, text ? text : "");
}

static double number(struct hx_jv object, const char *key)
{
    double v;
    return hx_jv_double(hx_jv_get(object, key), &v) && v > 0 ? v : 0;
}

static bool fact(struct hx_jv object, const char *key)
{
    bool v;
    return hx_jv_bool(hx_jv_get(object, key), &v) && v;
}

static void take(struct hx_jv v, struct drive *d)
{
    *d = (struct drive){.bytes = number(v, "bytes"),
                        .room = number(v, "room"),
                        .rate = number(v, "bytes_per_second"),
                        .own = fact(v, "own"),
                        .current = fact(v, "current"),
                        .usable = fact(v, "usable"),
                        .keepable = fact(v, "models_can_be_kept")};
    copy(v, "name", d->name, sizeof(d->name));
    copy(v, "serial", d->serial, sizeof(d->serial));
    copy(v, "model", d->model, sizeof(d->model));
    copy(v, "content", d->content, sizeof(d->content));
    copy(v, "reason", d->reason, sizeof(d->reason));
    /* What cannot be named cannot be chosen. */
    if (d->usable && !d->own && (!*d->serial || hx_valid_serial(d->serial, NULL) < 0)) {
        snprintf(d->reason, sizeof(d->reason), "it has no serial number that can be typed");
        d->usable = false;
    }
    struct hx_drive_words words = {d->name, d->model, d->serial, d->own ? "" : d->content,
                                   d->bytes};
    hx_drive_label(&words, d->label, sizeof(d->label));
}

/* ---- what there is --------------------------------------------------------------------------- */

static int list(const struct hx_setup *s, bool measured, struct drives *out, struct hx_error *err)
{
    static const struct hx_json_limits limits = {1u << 20, 20000, 16, 0};
    const char *argv[] = {"hx-install", "drives", "--json", measured ? "--seconds" : NULL,
                          READ_S,       NULL};
    struct hx_json *doc = NULL;
    char *json = NULL;
    int rc, r = hx_setup_tool(s, argv, measured ? READ_MS : LIST_MS, &rc, &json, err);
    if (r == 0)
        r = rc == 0 ? hx_json_parse(json, strlen(json), &limits, &doc, err) : -EIO;
    out->n = 0;
    for (struct hx_jv v = hx_jv_first(hx_json_root(doc)); r == 0 && v.doc && out->n < MAX_DRIVES;
         v = hx_jv_next(v))
        take(v, &out->drive[out->n++]);
    hx_json_free(doc);
    free(json);
    return r;
}

static const char *value_of(const struct drive *d)
{
    return d->own ? OWN : d->serial;
}

static const struct drive *find(const struct drives *all, const char *value)
{
    for (int i = 0; i < all->n; i++) {
        if (strcmp(value_of(&all->drive[i]), value) == 0)
            return &all->drive[i];
    }
    return NULL;
}

/* One drive that holds the models, and no other: nothing to ask. If the drive that should hold them
 * is gone, there is. */
static bool is_choice(const struct drives *all)
{
    int n = 0, now = 0;
    for (int i = 0; i < all->n; i++) {
        n += all->drive[i].usable;
        now += all->drive[i].current;
    }
    return n > 1 || (n == 1 && !now);
}

/* The drive of an order, and whether the order can be carried out. */
static int ordered(const struct hx_box *b, const struct drives *all, const struct drive **out,
                   struct hx_error *err)
{
    const struct drive *d = find(all, b->models_disk);
    if (!d)
        return hx_fail(err, -ENODEV,
                       "no drive has the serial number '%.60s'; hx-install drives shows what is "
                       "there",
                       b->models_disk);
    if (!d->usable)
        return hx_fail(err, -EPERM, "%s: %s", d->label, d->reason);
    if (!d->own && !d->current && !d->keepable && !*b->erase_models_disk)
        return hx_fail(err, -EINVAL,
                       "%s: there are no models on it that could be kept; erase_models_disk with "
                       "its serial number erases it",
                       d->label);
    *out = d;
    return 0;
}

int hx_setup_drive_room(const struct hx_setup *s, double *bytes, char *label, size_t size,
                        struct hx_error *err)
{
    struct drives *all = calloc(1, sizeof(*all));
    const struct drive *d;
    if (!all)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = list(s, false, all, err);
    if (r == 0)
        r = ordered(&s->box, all, &d, err);
    if (r == 0) {
        *bytes = d->room;
        snprintf(label, size, "%s", d->name);
    }
    free(all);
    return r;
}

/* ---- question -------------------------------------------------------------------------------- */

static void forget(struct hx_box *b)
{
    b->models_disk[0] = b->erase_models_disk[0] = '\0';
}

static void describe(const struct drives *all, struct hx_buf *out)
{
    bool slow = false;
    for (int i = 0; i < all->n; i++) {
        const struct drive *d = &all->drive[i];
        slow = slow || (d->usable && d->rate > 0 && d->rate < SLOW);
        if (d->usable)
            hx_buf_printf(out, "%s%s\n", d->label, d->current ? " (now)" : "");
        else
            hx_buf_printf(out, "Not possible: %s: %s\n", d->label, d->reason);
    }
    if (slow)
        hx_buf_puts(out, "Below 1 GB/s a model of 400 GB takes seven minutes and more to load, and "
                         "answers wait for the drive.\n");
    hx_buf_puts(out, "Another drive than now is used after a restart, which comes by itself when "
                     "the answers are put in force.");
}

static void item_text(const struct drive *d, char *out, size_t size)
{
    char rate[40] = "";
    if (d->rate > 0)
        snprintf(rate, sizeof(rate), ", reads %.2f GB/s", d->rate / 1e9);
    snprintf(out, size, "%.20s%s, %.1f GB free%s%s", d->name, d->own ? ", the system's disk" : "",
             d->room / 1e9, d->keepable && !d->current ? " if erased" : "", rate);
}

static int check_tail(void *ctx, const char *answer, struct hx_error *err)
{
    const struct drive *d = ctx;
    size_t n = strlen(d->serial), tail = n > 4 ? n - 4 : 0;
    if (strcmp(answer, d->serial + tail) == 0 || strcmp(answer, d->serial) == 0)
        return 0;
    return hx_fail(err, -EINVAL,
                   "found '%.40s', which is not the end of this drive's serial number", answer);
}

/* A drive beside the system's: what it holds is kept or erased. */
static enum hx_ui_reply ask_content(struct hx_setup *s, struct drive *d)
{
    static const struct hx_ui_item items[] = {{"keep", "keep the models that are on it"},
                                              {"erase", "erase everything on it"}};
    char body[500], answer[200];
    int at = 1;
    struct hx_ui_question what = {.body = d->label,
                                  .prompt = "There are models on this drive",
                                  .help = "Kept models are checked by the download, which fetches "
                                          "only what is missing.",
                                  .standard = "keep"};
    enum hx_ui_reply reply = d->keepable ? hx_ui_choice(s->ui, &what, items, 2, &at) : HX_UI_NEXT;
    if (reply != HX_UI_NEXT || at == 0)
        return reply;
    snprintf(body, sizeof(body),
             "This drive is erased when the answers are put in force:\n  %s\nEVERYTHING on it is "
             "lost then.",
             d->label);
    struct hx_ui_question sure = {.body = body,
                                  .prompt = "Type the last four characters of its serial number",
                                  .help = "This makes sure that it is the drive you mean. b goes "
                                          "back.",
                                  .check = check_tail,
                                  .ctx = d};
    reply = hx_ui_text(s->ui, &sure, answer, sizeof(answer));
    if (reply == HX_UI_NEXT)
        snprintf(s->box.erase_models_disk, sizeof(s->box.erase_models_disk), "%s", d->serial);
    return reply;
}

static enum hx_ui_reply choose(struct hx_setup *s, struct drives *all)
{
    struct hx_ui_item items[MAX_DRIVES];
    struct drive *row[MAX_DRIVES];
    char text[MAX_DRIVES][120];
    struct hx_buf body = HX_BUF_INIT(1 << 16);
    const char *standard = "";
    enum hx_ui_reply reply;
    int n = 0, at = 0;
    for (int i = 0; i < all->n; i++) {
        struct drive *d = &all->drive[i];
        if (!d->usable)
            continue;
        item_text(d, text[n], sizeof(text[n]));
        if (*s->box.models_disk ? strcmp(value_of(d), s->box.models_disk) == 0 : d->current)
            standard = value_of(d);
        row[n] = d;
        items[n] = (struct hx_ui_item){value_of(d), text[n]};
        n++;
    }
    describe(all, &body);
    const char *words = hx_buf_cstr(&body);
    struct hx_ui_question q = {.body = words ? words : "out of memory",
                               .prompt = "Drive for the models",
                               .help = "The large model needs about 400 GB, and it is read from "
                                       "this drive all the time. An NVMe drive on its own lanes "
                                       "reads 2 GB/s and more.",
                               .standard = standard};
    do {
        reply = hx_ui_choice(s->ui, &q, items, n, &at);
        if (reply != HX_UI_NEXT)
            break;
        forget(&s->box);
        if (row[at]->current)
            break;
        snprintf(s->box.models_disk, sizeof(s->box.models_disk), "%s", value_of(row[at]));
        reply = row[at]->own ? HX_UI_NEXT : ask_content(s, row[at]);
        if (reply != HX_UI_NEXT)
            forget(&s->box);
    } while (reply == HX_UI_BACK);
    hx_buf_done(&body);
    return reply;
}

/* An answers file names it, or says nothing and leaves it as it is. */
static enum hx_ui_reply take_answer(struct hx_setup *s, struct drives *all)
{
    const struct drive *d;
    struct hx_error *err = &s->ui->error;
    enum hx_ui_reply reply = hx_setup_ask_text(s, "models_disk", NULL, "models_disk", NULL);
    if (reply == HX_UI_NEXT)
        reply = hx_setup_ask_text(s, "erase_models_disk", NULL, "erase_models_disk", NULL);
    if (reply != HX_UI_NEXT || !*s->box.models_disk)
        return reply;
    int r = list(s, false, all, err);
    if (r == 0)
        r = ordered(&s->box, all, &d, err);
    if (r < 0) {
        hx_wrap(err, r, "models_disk");
        return HX_UI_ERROR;
    }
    return HX_UI_NEXT;
}

enum hx_ui_reply hx_setup_ask_drive(struct hx_setup *s, bool *asked)
{
    struct drives *all = calloc(1, sizeof(*all));
    struct hx_error why;
    enum hx_ui_reply reply = HX_UI_NEXT;
    *asked = false;
    if (!all) {
        hx_fail(&s->ui->error, -ENOMEM, "out of memory");
        return HX_UI_ERROR;
    }
    if (s->scripted) {
        reply = take_answer(s, all);
    } else if (list(s, false, all, &why) == 0 && is_choice(all)) {
        *asked = true;
        if (!*s->root_dir)
            hx_ui_progress(s->ui, "Reading from the drives", -1);
        if (list(s, true, all, &why) == 0 || list(s, false, all, &why) == 0)
            reply = choose(s, all);
    } else {
        forget(&s->box);
    }
    free(all);
    return reply;
}

/* ---- apply ----------------------------------------------------------------------------------- */

static int move(struct hx_setup *s, const struct drive *d, struct hx_error *err)
{
    const char *argv[9] = {"hx-install", "models", "--own"};
    char *out = NULL;
    int rc = 0;
    if (!d->own) {
        argv[2] = "--disk";
        argv[3] = d->serial;
        argv[4] = "--confirm";
        argv[5] = d->serial;
        argv[6] = *s->box.erase_models_disk ? NULL : "--keep-models";
    }
    int r = hx_setup_tool(s, argv, MOVE_MS, &rc, &out, err);
    free(out);
    return r == 0 && rc != 0 ? -EIO : r;
}

int hx_setup_apply_drive(struct hx_setup *s, struct hx_error *err)
{
    struct drives *all;
    const struct drive *d;
    if (!*s->box.models_disk)
        return 0;
    all = calloc(1, sizeof(*all));
    if (!all)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = list(s, false, all, err);
    if (r == 0)
        r = ordered(&s->box, all, &d, err);
    /* The power went right behind it: it is done already. */
    if (r == 0 && !d->current) {
        r = move(s, d, err);
        s->restart = r == 0;
    }
    if (r == 0)
        forget(&s->box);
    free(all);
    return r;
}
