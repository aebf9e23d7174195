/* What to download, from where, when; how much room that takes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_read.h"
#include "setup/setup.h"

#define MAX_MODELS 24
#define PLAN_MS    60000

/* ---- models ---------------------------------------------------------------------------------- */

struct models {
    struct hx_ui_item item[MAX_MODELS + 1];
    char name[MAX_MODELS][65];
    int n;
};

static bool is_lock_name(const char *file, char name[65])
{
    size_t n = strlen(file);
    if (n < 6 || n > 5 + 64 || strcmp(file + n - 5, ".json") != 0)
        return false;
    snprintf(name, 65, "%.*s", (int)(n - 5), file);
    return strcmp(name, "none") != 0;
}

/* Lock files that the system brought along. */
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
    out->item[out->n++] = (struct hx_ui_item){"none", "none now; the demo model runs"};
    return 0;
}

static int lock_path(const char *model, char out[256])
{
    return snprintf(out, 256, "%s/%s.json", HX_SETUP_LOCKS, model) < 256 ? 0 : -ENAMETOOLONG;
}

/* ---- room ------------------------------------------------------------------------------------ */

struct room {
    uint64_t wanted, needed, reserve, free;
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

static int plan(const struct hx_setup *s, const char *model, struct room *out, struct hx_error *err)
{
    char lock[256], *json = NULL;
    int rc, r = lock_path(model, lock);
    const char *argv[] = {"hx-fetch", "plan", "--json", "--force", "--lock", lock, NULL};
    if (r < 0)
        return hx_fail(err, r, "the name is too long");
    r = hx_setup_tool(s, argv, PLAN_MS, &rc, &json, err);
    if (r < 0)
        return r;
    r = *json == '{' ? read_plan(json, out, err) : -EIO;
    free(json);
    return r;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

static int check_model(void *ctx, const char *answer, struct hx_error *err)
{
    struct hx_setup *s = ctx;
    struct room room;
    if (strcmp(answer, "none") == 0)
        return 0;
    int r = plan(s, answer, &room, err);
    if (r < 0)
        return hx_wrap(err, r, "cannot work out the room for '%s'", answer);
    if (room.needed + room.reserve > room.free)
        return hx_fail(err, -ENOSPC,
                       "not enough room: the model needs %.1f GiB and %.1f GiB have to stay free, "
                       "but only %.1f GiB are free in " HX_SETUP_MODELS,
                       gib(room.needed), gib(room.reserve), gib(room.free));
    return 0;
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
    enum hx_ui_reply reply = hx_ui_choice(s->ui, &q, m->item, m->n, &at);
    if (reply == HX_UI_NEXT && hx_box_set(&s->box, "model", m->item[at].value, &s->ui->error) < 0)
        reply = HX_UI_ERROR;
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

enum hx_ui_reply hx_setup_ask_model(struct hx_setup *s)
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

/* ---- apply ----------------------------------------------------------------------------------- */

/* The token gets a file of its own that only root reads; the file it came from is overwritten as
 * far as its medium can be written. */
int hx_setup_apply_model(struct hx_setup *s, struct hx_error *err)
{
    char at[HX_ROOT_PATH];
    if (*s->token == '\0')
        return 0;
    int r = hx_setup_put(s, HX_SETUP_TOKEN, s->token, strlen(s->token), 0600, err);
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
