/* The owner's driver bundle: verified when it is named, installed when all is put in force. */
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "setup/setup.h"

#define VERIFY_MS    300000
#define INSTALL_MS   3600000
#define MAX_LICENCES 16

struct verdict {
    bool accept;
    char licence[128]; /* the one that is not accepted yet, "" if that is not all */
    char why[300];     /* first fault */
};

static void text_of(struct hx_jv v, char *out, size_t size)
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    snprintf(out, size, "%.*s", s ? (int)(n > size ? size : n) : 0, s ? s : "");
}

static int read_verdict(const char *json, struct verdict *out, struct hx_error *err)
{
    static const struct hx_json_limits limits = {1u << 20, 4096, 16, 0};
    struct hx_json *doc = NULL;
    char where[128], why[160];
    int r = hx_json_parse(json, strlen(json), &limits, &doc, err);
    if (r < 0)
        return hx_wrap(err, r, "answer of hx-cards");
    struct hx_jv v = hx_json_root(doc), fail = hx_jv_get(v, "fail");
    *out = (struct verdict){0};
    if (!hx_jv_bool(hx_jv_get(v, "accept"), &out->accept))
        r = hx_fail(err, -EINVAL, "answer of hx-cards: 'accept' is missing");
    text_of(hx_jv_get(v, "first_error"), where, sizeof(where));
    text_of(hx_jv_get(v, "why"), why, sizeof(why));
    snprintf(out->why, sizeof(out->why), "%s: %s", where, why);
    if (hx_jv_count(fail) == 1 && hx_jv_str_is(hx_jv_first(fail), "BND-05"))
        memcpy(out->licence, where, sizeof(out->licence));
    hx_json_free(doc);
    return r;
}

/* hx-cards bundle VERB SOURCE with the owner's licences and hash. licences is cut into words. */
static int run_cards(const struct hx_setup *s, const char *verb, const char *source, char *licences,
                     int limit_ms, int *rc, char **out, struct hx_error *err)
{
    const char *argv[12 + 2 * MAX_LICENCES] = {"hx-cards", "bundle", verb, source, "--json"};
    int n = 5;
    char *rest = licences;
    for (char *id; (id = strsep(&rest, " ")) && n < 5 + 2 * MAX_LICENCES;) {
        if (*id == '\0')
            continue;
        argv[n++] = "--accept";
        argv[n++] = id;
    }
    if (*s->box.driver_sha256) {
        argv[n++] = "--sha256";
        argv[n++] = s->box.driver_sha256;
    }
    argv[n] = NULL;
    return hx_setup_tool(s, argv, limit_ms, rc, out, err);
}

static int verify(const struct hx_setup *s, const char *source, struct verdict *out,
                  struct hx_error *err)
{
    char licences[sizeof(s->box.accept_driver_licence)], *json = NULL;
    int rc;
    memcpy(licences, s->box.accept_driver_licence, sizeof(licences));
    int r = run_cards(s, "verify", source, licences, VERIFY_MS, &rc, &json, err);
    if (r < 0)
        return r;
    if (*json == '{')
        r = read_verdict(json, out, err);
    else
        r = -EIO; /* err holds what the tool said */
    free(json);
    return r;
}

static int check_source(void *ctx, const char *answer, struct hx_error *err)
{
    struct hx_setup *s = ctx;
    struct hx_box scratch;
    struct verdict v;
    hx_box_init(&scratch);
    int r = hx_box_set(&scratch, "driver_source", answer, err);
    if (r < 0 || strcmp(answer, "none") == 0)
        return r;
    if (!hx_root_exists(s->root, answer))
        return hx_fail(err, -ENOENT, "%s is not there; plug in the stick and try again", answer);
    r = verify(s, answer, &v, err);
    if (r == 0 && !v.accept && !*v.licence)
        r = hx_fail(err, -EINVAL, "the bundle is refused: %s%s%.200s", v.why,
                    *s->kit_refused ? "; the build kit on the stick is not used: " : "",
                    s->kit_refused);
    return r;
}

static enum hx_ui_reply ask_licence(struct hx_setup *s, const char *id)
{
    char body[700], list[sizeof(s->box.accept_driver_licence) + 160];
    bool yes = false;
    snprintf(body, sizeof(body),
             "The bundle comes under the licence '%s'. Its text is in the bundle, %s. Read it "
             "before you accept it.",
             id, s->box.driver_source);
    struct hx_ui_question q = {
        .body = body,
        .prompt = "Do you accept this licence (yes or no)",
        .help = "Without your consent the bundle is not installed. The rest of the setup works "
                "without it.",
        .standard = "no"};
    enum hx_ui_reply reply = hx_ui_confirm(s->ui, &q, &yes);
    if (reply != HX_UI_NEXT)
        return reply;
    if (!yes && s->scripted) {
        hx_fail(&s->ui->error, -EINVAL,
                "accept_driver_licence: the bundle's licence '%s' is not named", id);
        return HX_UI_ERROR;
    }
    if (!yes)
        return HX_UI_BACK;
    snprintf(list, sizeof(list), "%s%s%s", s->box.accept_driver_licence,
             *s->box.accept_driver_licence ? " " : "", id);
    return hx_box_set(&s->box, "accept_driver_licence", list, &s->ui->error) < 0 ? HX_UI_ERROR
                                                                                 : HX_UI_NEXT;
}

static enum hx_ui_reply ask_licences(struct hx_setup *s)
{
    for (int i = 0; i < MAX_LICENCES; i++) {
        struct verdict v;
        if (verify(s, s->box.driver_source, &v, &s->ui->error) < 0)
            return HX_UI_ERROR;
        if (v.accept)
            return HX_UI_NEXT;
        if (!*v.licence) {
            hx_fail(&s->ui->error, -EINVAL, "driver_source: the bundle is refused: %s", v.why);
            return HX_UI_ERROR;
        }
        enum hx_ui_reply reply = ask_licence(s, v.licence);
        if (reply != HX_UI_NEXT)
            return reply;
    }
    hx_fail(&s->ui->error, -EINVAL, "driver_source: more than %d licences", MAX_LICENCES);
    return HX_UI_ERROR;
}

static enum hx_ui_reply ask_source(struct hx_setup *s)
{
    char standard[600], answer[HX_UI_ANSWER_MAX];
    snprintf(standard, sizeof(standard), "%s", s->box.driver_source);
    struct hx_ui_question q = {
        .key = "driver_source",
        .body = "The cards need a driver bundle, which you bring yourself: a folder or an archive "
                "on a stick or disk, or copied here over SSH. It is checked now and installed at "
                "the end. 'none' leaves it for later (hx-setup driver).",
        .prompt = "Bundle",
        .help = "The whole path, such as /run/hx170/media/sda1/bundle.tar.xz. What a bundle is "
                "made of stands in docs/bundles.md. Without one the demo model runs on the "
                "processor.",
        .standard = standard,
        .check = check_source,
        .ctx = s};
    enum hx_ui_reply reply = hx_ui_text(s->ui, &q, answer, sizeof(answer));
    if (reply != HX_UI_NEXT)
        return reply;
    return hx_box_set(&s->box, "driver_source", answer, &s->ui->error) < 0 ? HX_UI_ERROR
                                                                           : HX_UI_NEXT;
}

/* Consent that the answers file gives comes in before the bundle is looked at. */
static enum hx_ui_reply take_given(struct hx_setup *s)
{
    static const char *const keys[] = {"driver_sha256", "accept_driver_licence"};
    for (size_t i = 0; s->scripted && i < 2; i++) {
        enum hx_ui_reply reply = hx_setup_ask_text(s, keys[i], NULL, keys[i], NULL);
        if (reply != HX_UI_NEXT)
            return reply;
    }
    return HX_UI_NEXT;
}

enum hx_ui_reply hx_setup_ask_driver(struct hx_setup *s)
{
    enum hx_ui_reply reply = take_given(s);
    while (reply == HX_UI_NEXT) {
        reply = ask_source(s);
        if (reply != HX_UI_NEXT || strcmp(s->box.driver_source, "none") == 0)
            return reply;
        reply = ask_licences(s);
        if (reply != HX_UI_BACK)
            return reply;
        hx_box_set_done(&s->box, "driver", false);
        reply = HX_UI_NEXT;
    }
    return reply;
}

/* A bundle that is in a slot already is not built again: hx-cards goes by its content. */
int hx_setup_apply_driver(struct hx_setup *s, struct hx_error *err)
{
    char licences[sizeof(s->box.accept_driver_licence)], *out = NULL;
    struct verdict v;
    int rc;
    s->cold_start = false;
    if (strcmp(s->box.driver_source, "none") == 0)
        return 0;
    /* The stick may be gone by now; what was installed from it stays. */
    if (!hx_root_exists(s->root, s->box.driver_source) && hx_box_is_done(&s->box, "review"))
        return 0;
    int r = verify(s, s->box.driver_source, &v, err);
    if (r == 0 && !v.accept)
        r = hx_fail(err, -EINVAL, "the bundle is refused: %s", v.why);
    if (r < 0)
        return r;
    hx_ui_progress(s->ui, "Installing the driver bundle, which may take some minutes", -1);
    memcpy(licences, s->box.accept_driver_licence, sizeof(licences));
    r = run_cards(s, "install", s->box.driver_source, licences, INSTALL_MS, &rc, &out, err);
    if (r == 0 && rc != 0)
        r = -EIO;
    free(out);
    s->cold_start = r == 0;
    return r;
}

void hx_setup_undo_driver(struct hx_setup *s)
{
    static const char *const argv[] = {"hx-cards", "bundle", "rollback", NULL};
    struct hx_error err;
    char *out = NULL;
    int rc;
    if (!s->cold_start)
        return;
    if (hx_setup_tool(s, argv, VERIFY_MS, &rc, &out, &err) == 0)
        free(out);
    s->cold_start = false;
}
