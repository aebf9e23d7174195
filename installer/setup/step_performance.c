/* Power limit, layout, length of conversations. */
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "setup/checks.h"
#include "setup/setup.h"

#define TOOL_MS 30000

struct limits {
    int64_t min, max; /* watts that every card takes; 0: not known */
};

/* The narrowest range over all cards, by `hx-cards list --json`. */
static void read_limits(const struct hx_setup *s, struct limits *out)
{
    static const char *const argv[] = {"hx-cards", "list", "--json", NULL};
    static const struct hx_json_limits json_limits = {4u << 20, 200000, 32, 0};
    struct hx_json *doc = NULL;
    struct hx_error err;
    char *json = NULL;
    int rc;
    *out = (struct limits){0};
    if (hx_setup_tool(s, argv, TOOL_MS, &rc, &json, &err) < 0)
        return;
    if (hx_json_parse(json, strlen(json), &json_limits, &doc, &err) == 0) {
        struct hx_jv card = hx_jv_first(hx_jv_get(hx_json_root(doc), "cards"));
        for (; card.doc; card = hx_jv_next(card)) {
            struct hx_jv power = hx_jv_get(card, "power_w");
            double min, max;
            if (!hx_jv_double(hx_jv_get(power, "min"), &min) ||
                !hx_jv_double(hx_jv_get(power, "max"), &max) || min < 1 || max > 1000 || min > max)
                continue;
            if (out->min == 0 || (int64_t)(min + 0.999) > out->min)
                out->min = (int64_t)(min + 0.999);
            if (out->max == 0 || (int64_t)max < out->max)
                out->max = (int64_t)max;
        }
    }
    hx_json_free(doc);
    free(json);
}

static int check_watts(void *ctx, const char *answer, struct hx_error *err)
{
    const struct limits *l = ctx;
    struct hx_box scratch;
    hx_box_init(&scratch);
    int r = hx_box_set(&scratch, "power_cap_watts", answer, err);
    if (r == 0 && l->max > 0 &&
        (scratch.power_cap_watts < l->min || scratch.power_cap_watts > l->max))
        r = hx_fail(err, -EINVAL, "the cards take %lld to %lld W", (long long)l->min,
                    (long long)l->max);
    return r;
}

static enum hx_ui_reply ask_watts(struct hx_setup *s)
{
    char standard[32], answer[64], body[300];
    struct limits l;
    read_limits(s, &l);
    snprintf(standard, sizeof(standard), "%lld", (long long)s->box.power_cap_watts);
    if (l.max > 0)
        snprintf(body, sizeof(body),
                 "Each card may draw so many watts; they take %lld to %lld. 180 costs little speed "
                 "and keeps them cool.",
                 (long long)l.min, (long long)l.max);
    else
        snprintf(body, sizeof(body),
                 "Each card may draw so many watts. 180 costs little speed and keeps them cool.");
    struct hx_ui_question q = {
        .key = "power_cap_watts",
        .body = body,
        .prompt = "Watts per card",
        .help = "The limit is set again at every start, since the driver forgets it.",
        .standard = standard,
        .check = check_watts,
        .ctx = &l};
    enum hx_ui_reply reply = hx_ui_text(s->ui, &q, answer, sizeof(answer));
    if (reply != HX_UI_NEXT)
        return reply;
    return hx_box_set(&s->box, "power_cap_watts", answer, &s->ui->error) < 0 ? HX_UI_ERROR
                                                                             : HX_UI_NEXT;
}

static enum hx_ui_reply ask_layout(struct hx_setup *s)
{
    static const struct hx_ui_item items[] = {
        {"auto", "as the hardware check proposes"},
        {"tp4", "TP4: all cards work on every word together; fastest for one person"},
        {"pp4", "PP4: each card holds a quarter of the layers; for slow links between cards"},
    };
    struct hx_checks_summary c;
    struct hx_error err;
    char body[500] = "How the model lies on the four cards.";
    if (hx_checks_read(s->root, &c, &err) == 0 && c.there && *c.layout &&
        strcmp(c.layout, "NONE") != 0)
        snprintf(body, sizeof(body),
                 "How the model lies on the four cards. The hardware check proposes %s%s%s.",
                 c.layout, *c.reason ? ": " : "", c.reason);
    return hx_setup_ask_choice(s, "layout", body, "Layout",
                               "'auto' follows the check at every start, also when a cable or a "
                               "driver changes. The others hold until you change them here.",
                               items, 3);
}

static enum hx_ui_reply ask_context(struct hx_setup *s)
{
    return hx_setup_ask_text(s, "context", NULL, "Tokens of one conversation",
                             "1024 to 1048576. Long conversations take memory only when they "
                             "happen. A token is about three quarters of a word.");
}

static enum hx_ui_reply ask_cmdline(struct hx_setup *s)
{
    /* For experts: the wizard itself does not ask, an answers file may say it. */
    return s->scripted ? hx_setup_ask_text(s, "expert_cmdline", NULL, "expert_cmdline", NULL)
                       : HX_UI_NEXT;
}

static enum hx_ui_reply (*const questions[])(struct hx_setup *) = {ask_watts, ask_layout,
                                                                   ask_context, ask_cmdline};
#define N_QUESTIONS ((int)(sizeof(questions) / sizeof(questions[0])))

enum hx_ui_reply hx_setup_ask_performance(struct hx_setup *s)
{
    for (int at = 0; at < N_QUESTIONS;) {
        enum hx_ui_reply reply = questions[at](s);
        if (reply == HX_UI_NEXT)
            at++;
        else if (reply == HX_UI_BACK && at > 0)
            at--;
        else
            return reply;
    }
    return HX_UI_NEXT;
}
