/* What to download, from where, when; how much room that takes. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/json_read.h"
#include "base/sha256.h"
#include "setup/drive.h"
#include "setup/media.h"
#include "setup/setup.h"
#include "setup/valid.h"

#define MAX_MODELS 24
#define PLAN_MS    60000
#define LOCK_MAX   (64u << 20)
#define LOCK_NAME  "model.lock.json" /* looked for on sticks */
#define OWN        "file"            /* the choice that is no model's name */

/* ---- models ---------------------------------------------------------------------------------- */

struct models {
    struct hx_ui_item item[MAX_MODELS + 3];
    char name[MAX_MODELS][65];
    int n;
};

static bool is_lock_name(const char *file, char name[65])
{
    size_t n = strlen(file);
    if (n < 6 || n > 5 + 64 || strcmp(file + n - 5, ".json") != 0)
        return false;
    snprintf(name, 65, "%.*s", (int)(n - 5), file);
    return strcmp(name, "none") != 0 && strcmp(name, OWN) != 0;
}

/* Lock files that the system brought along, and the owner's own one that is in use. */
static int list_models(const struct hx_setup *s, struct models *out, struct hx_error *err)
{
    struct hx_names names = {0};
    out->n = 0;
    int r = hx_root_list(s->root, HX_SETUP_LOCKS, &names, err);
    if (r < 0 && r != -ENOENT)
        return r;
    for (size_t i = 0; r == 0 && i < names.n && out->n < MAX_MODELS; i++) {
        int k = out->n;
        if (!is_lock_name(names.name[i], out->name[k]))
            continue;
        out->item[out->n++] = (struct hx_ui_item){out->name[k], out->name[k]};
    }
    hx_names_done(&names);
    if (*s->box.model_lock_sha256)
        out->item[out->n++] = (struct hx_ui_item){s->box.model, s->box.model};
    out->item[out->n++] = (struct hx_ui_item){"none", "none now; the demo model runs"};
    out->item[out->n++] = (struct hx_ui_item){OWN, "by a lock file that you brought"};
    return 0;
}

/* Where the answers' lock file lies now. */
static void lock_path(const struct hx_box *b, const char *model, char *out, size_t size)
{
    bool own = *b->model_lock_sha256 && strcmp(model, b->model) == 0;
    if (own && *b->model_lock)
        snprintf(out, size, "%s", b->model_lock);
    else
        snprintf(out, size, "%s/%s.json", own ? HX_SETUP_OWN : HX_SETUP_LOCKS, model);
}

/* ---- room ------------------------------------------------------------------------------------ */

struct room {
    uint64_t wanted, needed, reserve, free;
    char model[64];     /* the lock file's name for it */
    char licences[300]; /* of the sources, separated by commas */
};

static bool take_u64(struct hx_jv object, const char *key, uint64_t *out)
{
    int64_t v;
    if (!hx_jv_int64(hx_jv_get(object, key), &v) || v < 0)
        return false;
    *out = (uint64_t)v;
    return true;
}

static int read_plan(const char *json, struct room *out, struct hx_error *err)
{
    static const struct hx_json_limits limits = {8u << 20, 1u << 20, 16, 0};
    struct hx_json *doc = NULL;
    struct room room = {0};
    int r = hx_json_parse(json, strlen(json), &limits, &doc, err);
    if (r < 0)
        return hx_wrap(err, r, "answer of hx-fetch");
    struct hx_jv plan = hx_json_root(doc), disk = hx_jv_first(hx_jv_get(plan, "disks"));
    if (!take_u64(plan, "wanted_bytes", &room.wanted) || !take_u64(disk, "needed", &room.needed) ||
        !take_u64(disk, "reserve", &room.reserve) || !take_u64(disk, "free", &room.free))
        r = hx_fail(err, -EINVAL, "answer of hx-fetch: wanted_bytes or disks are missing");
    size_t len;
    const char *name = hx_jv_str(hx_jv_get(plan, "model"), &len);
    snprintf(room.model, sizeof(room.model), "%.*s", name ? (int)(len > 63 ? 63 : len) : 0,
             name ? name : "");
    for (struct hx_jv v = hx_jv_first(hx_jv_get(plan, "sources")); v.doc; v = hx_jv_next(v)) {
        size_t n, used = strlen(room.licences);
        char id[64];
        const char *text = hx_jv_str(hx_jv_get(v, "licence"), &n);
        snprintf(id, sizeof(id), "%.*s", text ? (int)(n > 63 ? 63 : n) : 0, text ? text : "");
        if (*id && !strstr(room.licences, id))
            snprintf(room.licences + used, sizeof(room.licences) - used, "%s%s", used ? ", " : "",
                     id);
    }
    hx_json_free(doc);
    if (r == 0)
        *out = room;
    return r;
}

/* sha256: the owner's consent to a lock file of his own, "": one of the system. */
static int plan_file(const struct hx_setup *s, const char *lock, const char *sha256,
                     struct room *out, struct hx_error *err)
{
    const char *argv[10] = {"hx-fetch", "plan", "--json", "--force", "--lock", lock};
    char *json = NULL;
    int rc;
    if (*sha256) {
        argv[6] = "--accept-lock";
        argv[7] = sha256;
    }
    int r = hx_setup_tool(s, argv, PLAN_MS, &rc, &json, err);
    if (r < 0)
        return r;
    r = *json == '{' ? read_plan(json, out, err) : -EIO;
    free(json);
    return r;
}

static int plan(const struct hx_setup *s, const char *model, struct room *out, struct hx_error *err)
{
    char lock[600];
    lock_path(&s->box, model, lock, sizeof(lock));
    bool own = *s->box.model_lock_sha256 && strcmp(model, s->box.model) == 0;
    return plan_file(s, lock, own ? s->box.model_lock_sha256 : "", out, err);
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

/* On the drive that holds the models now, or on the one that was chosen for them. */
static int check_room(const struct hx_setup *s, const struct room *room, struct hx_error *err)
{
    char where[64] = HX_SETUP_MODELS;
    double there = (double)room->free;
    int r = *s->box.models_disk ? hx_setup_drive_room(s, &there, where, sizeof(where), err) : 0;
    if (r == 0 && (double)room->needed + (double)room->reserve > there)
        r = hx_fail(err, -ENOSPC,
                    "not enough room: the model needs %.1f GiB and %.1f GiB have to stay free, "
                    "but only %.1f GiB are free in %s",
                    gib(room->needed), gib(room->reserve), there / (1 << 30), where);
    return r;
}

static int check_model(void *ctx, const char *answer, struct hx_error *err)
{
    struct hx_setup *s = ctx;
    struct room room;
    if (strcmp(answer, "none") == 0 || strcmp(answer, OWN) == 0)
        return 0;
    int r = plan(s, answer, &room, err);
    if (r < 0)
        return hx_wrap(err, r, "cannot work out the room for '%s'", answer);
    return check_room(s, &room, err);
}

/* ---- a lock file of the owner's own ---------------------------------------------------------- */

static int read_lock(const struct hx_setup *s, const char *path, char **text, size_t *len,
                     char hex[HX_SHA256_HEX], struct hx_error *err)
{
    uint8_t digest[HX_SHA256_BYTES];
    struct hx_sha256 *h = NULL;
    int r = hx_root_read(s->root, path, LOCK_MAX, text, len, err);
    if (r < 0)
        return r;
    r = hx_sha256_new(&h, err);
    if (r == 0 && (hx_sha256_update(h, *text, *len) < 0 || hx_sha256_final(h, digest) < 0))
        r = hx_fail(err, -EIO, "%s: cannot be hashed", path);
    hx_sha256_free(h);
    if (r < 0) {
        free(*text);
        *text = NULL;
        return r;
    }
    hx_sha256_to_hex(digest, hex);
    return 0;
}

/* Name and hash of what a path leads to; the model fits on the disk. */
static int look_at_lock(const struct hx_setup *s, const char *path, struct room *room,
                        char hex[HX_SHA256_HEX], struct hx_error *err)
{
    char *text = NULL;
    size_t len;
    if (!hx_root_exists(s->root, path))
        return hx_fail(err, -ENOENT, "%s is not there; plug in the stick and try again", path);
    int r = read_lock(s, path, &text, &len, hex, err);
    free(text);
    if (r == 0)
        r = plan_file(s, path, hex, room, err);
    return r == 0 ? check_room(s, room, err) : r;
}

static int check_lock(void *ctx, const char *answer, struct hx_error *err)
{
    struct room room;
    char hex[HX_SHA256_HEX];
    int r = hx_valid_path(answer, err);
    if (r == 0 && *answer == '\0')
        r = hx_fail(err, -EINVAL, "the path of the lock file is missing");
    return r == 0 ? look_at_lock(ctx, answer, &room, hex, err) : r;
}

/* Asks for the path and for consent to the hash; then model, model_lock and its hash are set. */
static enum hx_ui_reply ask_own(struct hx_setup *s)
{
    char path[HX_UI_ANSWER_MAX], found[HX_ROOT_PATH], body[500], hex[HX_SHA256_HEX];
    struct room room;
    bool yes = false;
    hx_media_find(s, LOCK_NAME, found);
    struct hx_ui_question where = {
        .key = "model_lock",
        .body = "A lock file lists the files of a model, byte by byte. 'hx-fetch lock' makes one.",
        .prompt = "Lock file",
        .help = "The whole path, such as " HX_MEDIA "/sda1/" LOCK_NAME ". It is copied to this "
                "machine; the stick is not needed afterwards.",
        .standard = found,
        .check = check_lock,
        .ctx = s};
    enum hx_ui_reply reply = hx_ui_text(s->ui, &where, path, sizeof(path));
    if (reply != HX_UI_NEXT)
        return reply;
    if (look_at_lock(s, path, &room, hex, &s->ui->error) < 0)
        return HX_UI_ERROR;
    snprintf(body, sizeof(body),
             "The model is '%s'. Nobody vouches for this lock file but you: compare its SHA-256 "
             "with the one that its maker told you.\n\n%s",
             room.model, hex);
    struct hx_ui_question agree = {.body = body,
                                   .prompt = "Is this the right one (yes or no)",
                                   .help = "Without your consent it is not used.",
                                   .standard = "no"};
    reply = hx_ui_confirm(s->ui, &agree, &yes);
    if (reply != HX_UI_NEXT || !yes)
        return reply == HX_UI_NEXT ? HX_UI_BACK : reply;
    if (hx_box_set(&s->box, "model", room.model, &s->ui->error) < 0 ||
        hx_box_set(&s->box, "model_lock", path, &s->ui->error) < 0 ||
        hx_box_set(&s->box, "model_lock_sha256", hex, &s->ui->error) < 0)
        return HX_UI_ERROR;
    return HX_UI_NEXT;
}

/* From an answers file: path and hash are given, and the names have to be alike. */
static enum hx_ui_reply take_own(struct hx_setup *s)
{
    static const char *const keys[] = {"model_lock_sha256", "model_lock", "model"};
    struct room room;
    char hex[HX_SHA256_HEX];
    struct hx_error *err = &s->ui->error;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        enum hx_ui_reply reply = hx_setup_ask_text(s, keys[i], NULL, keys[i], NULL);
        if (reply != HX_UI_NEXT)
            return reply;
        if (i == 1 && *s->box.model_lock == '\0' && *s->box.model_lock_sha256) {
            hx_fail(err, -EINVAL, "model_lock: missing; model_lock_sha256 is given");
            return HX_UI_ERROR;
        }
        if (i == 1 && *s->box.model_lock == '\0')
            return HX_UI_NEXT;
    }
    const char *path = s->box.model_lock;
    hx_media_await(s, path);
    int r = look_at_lock(s, path, &room, hex, err);
    if (r == 0 && strcasecmp(hex, s->box.model_lock_sha256) != 0)
        r = hx_fail(err, -EINVAL, "it is for %s, but %.300s hashes to %s", s->box.model_lock_sha256,
                    path, hex);
    if (r == 0 && strcmp(room.model, s->box.model) != 0)
        r = hx_fail(err, -EINVAL, "%.300s is for the model '%s', not '%s'", path, room.model,
                    s->box.model);
    if (r < 0) {
        hx_wrap(err, r, "model_lock");
        return HX_UI_ERROR;
    }
    return HX_UI_NEXT;
}

/* ---- questions ------------------------------------------------------------------------------- */

static enum hx_ui_reply ask_model(struct hx_setup *s)
{
    struct models *m = calloc(1, sizeof(*m));
    char standard[65];
    int at = 0;
    if (!m || list_models(s, m, &s->ui->error) < 0) {
        if (!m)
            hx_fail(&s->ui->error, -ENOMEM, "out of memory");
        free(m);
        return HX_UI_ERROR;
    }
    if (s->scripted) {
        enum hx_ui_reply reply = take_own(s);
        if (reply != HX_UI_NEXT || *s->box.model_lock) {
            free(m);
            return reply;
        }
    }
    bool first =
        !s->scripted && !hx_box_is_done(&s->box, "model") && strcmp(s->box.model, "none") == 0;
    snprintf(standard, sizeof(standard), "%s", first ? m->item[0].value : s->box.model);
    struct hx_ui_question q = {
        .key = "model",
        .body = "The model is downloaded in the background, piece by piece, each checked. It goes "
                "on by itself after a cut of the line or of the power.",
        .prompt = "Model",
        .help = "The list comes with the system: each name stands for an exact list of files and "
                "their hashes. The room it takes on the disk is checked when you choose.",
        .standard = standard,
        .check = check_model,
        .ctx = s};
    enum hx_ui_reply reply;
    const char *value;
    bool own;
    do { /* back from the lock file leads to the list again */
        reply = hx_ui_choice(s->ui, &q, m->item, m->n, &at);
        value = reply == HX_UI_NEXT ? m->item[at].value : "";
        own = strcmp(value, OWN) == 0;
        if (own)
            reply = ask_own(s);
    } while (own && reply == HX_UI_BACK && !s->scripted);
    if (!own && reply == HX_UI_NEXT && strcmp(value, s->box.model) != 0) {
        s->box.model_lock[0] = s->box.model_lock_sha256[0] = '\0';
        if (hx_box_set(&s->box, "model", value, &s->ui->error) < 0)
            reply = HX_UI_ERROR;
    }
    free(m);
    return reply;
}

static enum hx_ui_reply ask_licence(struct hx_setup *s)
{
    struct room room;
    char body[700];
    bool yes = false;
    if (plan(s, s->box.model, &room, &s->ui->error) < 0)
        return HX_UI_ERROR;
    snprintf(body, sizeof(body),
             "%.1f GiB are downloaded. The files come under these licences: %s. 'hx-fetch plan' "
             "shows where each file comes from.",
             gib(room.wanted), *room.licences ? room.licences : "none is named");
    struct hx_ui_question q = {.key = "accept_model_licence",
                               .body = body,
                               .prompt = "Do you accept these licences (yes or no)",
                               .help = "Without your consent nothing is downloaded.",
                               .standard = s->box.accept_model_licence ? "yes" : "no"};
    enum hx_ui_reply reply = hx_ui_confirm(s->ui, &q, &yes);
    if (reply == HX_UI_NEXT && !yes && s->scripted) {
        hx_fail(&s->ui->error, -EINVAL,
                "accept_model_licence: has to be yes for a model to be downloaded");
        return HX_UI_ERROR;
    }
    if (reply == HX_UI_NEXT)
        s->box.accept_model_licence = yes;
    return reply == HX_UI_NEXT && !yes ? HX_UI_BACK : reply;
}

static int check_source(void *ctx, const char *answer, struct hx_error *err)
{
    const struct hx_setup *s = ctx;
    struct hx_box scratch;
    hx_box_init(&scratch);
    int r = hx_box_set(&scratch, "model_source", answer, err);
    if (r == 0 && *answer == '/' && !hx_root_is_folder(s->root, answer))
        r = hx_fail(err, -ENOENT, "%.200s is no folder here; plug in the disk and try again",
                    answer);
    if (r == 0 && *answer != '/' && s->box.network == HX_NET_NONE)
        r = hx_fail(err, -EINVAL,
                    "there is no network; name the folder of an offline disk, or go back and "
                    "choose a network");
    return r;
}

static enum hx_ui_reply ask_source(struct hx_setup *s)
{
    char standard[600], answer[HX_UI_ANSWER_MAX];
    snprintf(standard, sizeof(standard), "%s", s->box.model_source);
    struct hx_ui_question q = {
        .key = "model_source",
        .prompt = "Where from",
        .help = "'default': the model hub. Or the address of a mirror in your network, such as "
                "http://192.168.1.5:8080/models. Or the whole path of a folder on a disk that you "
                "brought, such as /run/hx170/media/sdb1.",
        .standard = standard,
        .check = check_source,
        .ctx = s};
    enum hx_ui_reply reply = hx_ui_text(s->ui, &q, answer, sizeof(answer));
    if (reply != HX_UI_NEXT)
        return reply;
    return hx_box_set(&s->box, "model_source", answer, &s->ui->error) < 0 ? HX_UI_ERROR
                                                                          : HX_UI_NEXT;
}

static enum hx_ui_reply ask_bandwidth(struct hx_setup *s)
{
    return hx_setup_ask_text(s, "bandwidth", NULL, "Bytes per second at most",
                             "0: no limit. 5M is 5 MiB per second, about 42 Mbit/s.");
}

static enum hx_ui_reply ask_schedule(struct hx_setup *s)
{
    return hx_setup_ask_text(s, "schedule", NULL, "Time of day",
                             "Empty: always. 22:00-06:00 downloads at night only. - empties it.");
}

static int check_token(void *ctx, const char *answer, struct hx_error *err)
{
    (void)ctx;
    for (const char *p = answer; *p; p++) {
        if (*p <= ' ' || *p > '~')
            return hx_fail(err, -EINVAL, "a token has no spaces and only plain letters and signs");
    }
    return 0;
}

/* A file with the token: its first line. */
static int read_token(struct hx_setup *s, struct hx_error *err)
{
    char *text = NULL;
    size_t n;
    int r = hx_root_read(s->root, s->box.token_file, 4096, &text, &n, err);
    if (r < 0)
        return r;
    text[strcspn(text, "\r\n")] = '\0';
    if (*text == '\0' || strlen(text) >= sizeof(s->token) || check_token(NULL, text, NULL) < 0)
        r = hx_fail(err, -EINVAL, "%s: its first line is no access token", s->box.token_file);
    else
        snprintf(s->token, sizeof(s->token), "%s", text);
    explicit_bzero(text, n);
    free(text);
    return r;
}

static enum hx_ui_reply ask_token(struct hx_setup *s)
{
    char answer[sizeof(s->token)] = "";
    if (s->scripted) {
        enum hx_ui_reply reply = hx_setup_ask_text(s, "token_file", NULL, "token_file", NULL);
        if (reply == HX_UI_NEXT && *s->box.token_file && read_token(s, &s->ui->error) < 0) {
            hx_wrap(&s->ui->error, s->ui->error.code, "token_file");
            reply = HX_UI_ERROR;
        }
        return reply;
    }
    bool kept = hx_root_exists(s->root, HX_SETUP_TOKEN);
    struct hx_ui_question q = {
        .prompt =
            kept ? "Access token (empty keeps the present one)" : "Access token (may be empty)",
        .help = "Some models are given out only to people who signed in at the model hub; then a "
                "token of your account is needed. It is not shown, and no report contains it.",
        .standard = "",
        .check = check_token};
    enum hx_ui_reply reply = hx_ui_secret(s->ui, &q, answer, sizeof(answer));
    if (reply == HX_UI_NEXT)
        memcpy(s->token, answer, sizeof(answer));
    explicit_bzero(answer, sizeof(answer));
    return reply;
}

static enum hx_ui_reply (*const questions[])(struct hx_setup *) = {
    ask_model, ask_licence, ask_source, ask_token, ask_bandwidth, ask_schedule,
};
#define N_QUESTIONS ((int)(sizeof(questions) / sizeof(questions[0])))

static enum hx_ui_reply ask_download(struct hx_setup *s)
{
    for (int at = 0; at < N_QUESTIONS;) {
        enum hx_ui_reply reply = questions[at](s);
        if (reply == HX_UI_NEXT && at == 0 && strcmp(s->box.model, "none") == 0) {
            snprintf(s->box.model_source, sizeof(s->box.model_source), "default");
            return reply;
        }
        if (reply == HX_UI_NEXT)
            at++;
        else if (reply == HX_UI_BACK && at > 0)
            at--;
        else
            return reply;
    }
    return HX_UI_NEXT;
}

enum hx_ui_reply hx_setup_ask_model(struct hx_setup *s)
{
    enum hx_ui_reply reply;
    bool asked;
    do {
        reply = hx_setup_ask_drive(s, &asked);
        if (reply != HX_UI_NEXT)
            return reply;
        reply = ask_download(s);
    } while (reply == HX_UI_BACK && asked && !s->scripted);
    return reply;
}

/* ---- apply ----------------------------------------------------------------------------------- */

/* The stick may be gone tomorrow, and the file on it another one. */
static int keep_lock(struct hx_setup *s, struct hx_error *err)
{
    char at[200], hex[HX_SHA256_HEX], *text = NULL;
    size_t len;
    if (*s->box.model_lock == '\0')
        return 0;
    int r = read_lock(s, s->box.model_lock, &text, &len, hex, err);
    if (r < 0)
        return r;
    if (strcasecmp(hex, s->box.model_lock_sha256) != 0)
        r = hx_fail(err, -EINVAL, "%s has changed: it hashes to %s now", s->box.model_lock, hex);
    snprintf(at, sizeof(at), "%s/%s.json", HX_SETUP_OWN, s->box.model);
    if (r == 0)
        r = hx_setup_put(s, at, text, len, 0644, err);
    if (r == 0)
        s->box.model_lock[0] = '\0';
    free(text);
    return r;
}

/* The token gets a file of its own that only root reads; the file it came from is overwritten as
 * far as its medium can be written. */
int hx_setup_apply_model(struct hx_setup *s, struct hx_error *err)
{
    char at[HX_ROOT_PATH];
    int r = keep_lock(s, err);
    if (r == 0)
        r = hx_setup_apply_drive(s, err);
    if (r < 0 || *s->token == '\0')
        return r;
    r = hx_setup_put(s, HX_SETUP_TOKEN, s->token, strlen(s->token), 0600, err);
    if (r < 0 || *s->box.token_file == '\0')
        return r;
    if (hx_root_outside(s->root, s->box.token_file, at) == 0 && access(at, W_OK) == 0) {
        struct hx_buf zeros = HX_BUF_INIT(4096);
        FILE *f = fopen(at, "r+");
        for (size_t i = 0; i < strlen(s->token); i++)
            hx_buf_putc(&zeros, ' ');
        if (f) {
            fwrite(zeros.data, 1, zeros.len, f);
            fflush(f);
            fsync(fileno(f));
            fclose(f);
        }
        hx_buf_done(&zeros);
        unlink(at);
    }
    s->box.token_file[0] = '\0';
    return 0;
}
