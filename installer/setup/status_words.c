/* What the state means, as a table of situations: the first that fits speaks. */
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "setup/setup.h"
#include "setup/status.h"
#include "setup/ui.h"

/* Words of a row, behind its name: fits the wizard's windows as well. */
#define NAME_WIDTH 11
#define TEXT_WIDTH 54
#define LINE_WIDTH 80

enum { U_CONFIG, U_DRIVER, U_CHECK, U_FETCH, U_ENGINE };

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* Ended badly, for good or until its next start: then it is "activating", with the last result. */
static bool failed(const struct hx_status *s, int unit)
{
    const struct hx_status_unit *u = &s->unit[unit];
    return is(u->active, "failed") ||
           (is(u->active, "activating") && *u->result && !is(u->result, "success"));
}

static bool box_broken(const struct hx_status *s)
{
    return s->box_broken;
}

static bool not_configured(const struct hx_status *s)
{
    return !s->configured;
}

static bool config_failed(const struct hx_status *s)
{
    return failed(s, U_CONFIG);
}

static bool engine_ready(const struct hx_status *s)
{
    return is(s->unit[U_ENGINE].active, "active");
}

static bool engine_failed(const struct hx_status *s)
{
    return failed(s, U_ENGINE);
}

static bool engine_starts(const struct hx_status *s)
{
    return is(s->unit[U_ENGINE].active, "activating") && !failed(s, U_ENGINE);
}

static bool fetch_failed(const struct hx_status *s)
{
    return failed(s, U_FETCH);
}

static bool fetch_waits(const struct hx_status *s)
{
    return s->fetch.there && *s->fetch.waiting && !is(s->fetch.phase, "complete");
}

static bool fetching(const struct hx_status *s)
{
    return s->fetch.there && !is(s->fetch.phase, "complete") && !is(s->fetch.phase, "failed") &&
           !is(s->fetch.phase, "stopped");
}

static bool not_ready(const struct hx_status *s)
{
    return s->checks.there && is(s->checks.overall, "not_ready");
}

static bool no_network(const struct hx_status *s)
{
    return !*s->address && s->box.network != HX_NET_NONE && !is(s->box.model, "none") &&
           !s->any_model;
}

static bool no_model(const struct hx_status *s)
{
    return is(s->box.model, "none") && !s->any_model;
}

static bool always(const struct hx_status *s)
{
    (void)s;
    return true;
}

static const struct {
    bool (*fits)(const struct hx_status *s);
    enum hx_status_level level;
    const char *head, *what;
} situations[] = {
    {box_broken, HX_STATUS_FAULT, "The settings of this box cannot be read.",
     "Nothing is guessed. Put the previous settings back with: hx-setup previous; or start anew "
     "with: hx-setup --new"},
    {not_configured, HX_STATUS_TODO, "This box is not set up yet.",
     "Answer the questions on the screen or the serial line, or run: hx-setup"},
    {config_failed, HX_STATUS_FAULT, "The settings could not be put in force.",
     "See why: systemctl status hx-config. Then run: hx-setup review"},
    {engine_ready, HX_STATUS_OK, "It is working: the model answers.", ""},
    {engine_starts, HX_STATUS_WORKING, "The model is being loaded.",
     "Nothing to do. The first start takes some minutes."},
    {engine_failed, HX_STATUS_FAULT, "The engine stopped with an error.",
     "It is started again by itself. If this stays, see why: journalctl -u hx-engine -n 50; then "
     "run: hx support"},
    {no_network, HX_STATUS_TODO, "Waiting for the network.",
     "Plug in the cable, or change the settings with: hx-setup network"},
    {fetch_failed, HX_STATUS_FAULT, "The download stopped with an error.",
     "See why: systemctl status hx-fetch. Wrong settings are changed with: hx-setup model"},
    {fetch_waits, HX_STATUS_WORKING, "The download waits.",
     "It goes on by itself as soon as it can."},
    {fetching, HX_STATUS_WORKING, "The model is being downloaded.",
     "Nothing to do. You may switch off; it goes on where it was."},
    {not_ready, HX_STATUS_TODO, "The cards are not ready.",
     "See what has to be done with: hx-setup hardware"},
    {no_model, HX_STATUS_TODO, "No model is chosen yet.", "Choose one with: hx-setup model"},
    {always, HX_STATUS_TODO, "The engine is not running.",
     "Start it with: systemctl start hx-engine; if that does not help, run: hx support"},
};

enum hx_status_level hx_status_verdict(const struct hx_status *s, char *head, size_t head_size,
                                       char *what, size_t what_size)
{
    size_t i = 0;
    while (!situations[i].fits(s))
        i++;
    snprintf(head, head_size, "%s", situations[i].head);
    snprintf(what, what_size, "%s", situations[i].what);
    return situations[i].level;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* A row of words, broken where they are. */
static void put_row(struct hx_buf *out, const char *name, const char *text)
{
    char *lines = hx_ui_wrap(text, TEXT_WIDTH), *rest = lines, *line;
    if (!lines)
        out->failed = true;
    while ((line = strsep(&rest, "\n"))) {
        if (*line || line == lines)
            hx_buf_printf(out, "%-*s%s\n", NAME_WIDTH, line == lines ? name : "", line);
    }
    free(lines);
}

static void put_fetch(const struct hx_status *s, struct hx_buf *out)
{
    if (!s->fetch.there)
        return;
    hx_buf_printf(out, "Download:  %s, %.1f %%", s->fetch.phase, s->fetch.percent);
    if (s->fetch.rate > 0)
        hx_buf_printf(out, ", %.1f MB/s", (double)s->fetch.rate / 1e6);
    if (s->fetch.eta_s >= 0 && !is(s->fetch.phase, "complete"))
        hx_buf_printf(out, ", about %lld h %lld min left", (long long)s->fetch.eta_s / 3600,
                      (long long)s->fetch.eta_s % 3600 / 60);
    hx_buf_puts(out, "\n");
    char text[sizeof(s->fetch.waiting) + 10];
    snprintf(text, sizeof(text), "waits: %s", s->fetch.waiting);
    if (*s->fetch.waiting)
        put_row(out, "", text);
}

static void put_connect(const struct hx_status *s, struct hx_buf *out)
{
    const char *at = *s->address ? s->address : "ADDRESS";
    hx_buf_printf(out, "Address:   %s\n", *s->address ? s->address : "none yet");
    if (*s->fingerprint)
        hx_buf_printf(out, "Host key:  %s\n", s->fingerprint);
    if (!s->configured)
        return;
    static const char command[] = "ssh -N -L 127.0.0.1:8000:127.0.0.1:8000 ";
    const bool fits = NAME_WIDTH + strlen(command) + strlen("tunnel@") + strlen(at) <= LINE_WIDTH;
    hx_buf_printf(out, "Connect:   %s%stunnel@%s\n", command, fits ? "" : "\\\n             ", at);
    hx_buf_printf(out,
                  "           then use http://127.0.0.1:8000/v1 on your computer\n"
                  "Log in:    ssh admin@%s\n",
                  at);
}

/* The check's word for the person who reads it. */
static const char *cards_words(const char *overall)
{
    static const struct {
        const char *word, *means;
    } rows[] = {
        {"ready", "ready"},
        {"degraded", "ready, but could do better; how: hx-setup hardware"},
        {"not_ready", "not ready; what to do: hx-setup hardware"},
        {"unsupported", "no CMP 170HX; only the demo model can run"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (is(rows[i].word, overall))
            return rows[i].means;
    }
    return overall;
}

int hx_status_text(const struct hx_status *s, struct hx_buf *out)
{
    char head[200], what[400];
    hx_status_verdict(s, head, sizeof(head), what, sizeof(what));
    hx_buf_printf(out, "%s\n", head);
    if (*what)
        put_row(out, "What now:", what);
    if (s->box_broken)
        put_row(out, "Reason:", s->box_error);
    if (engine_ready(s) && *s->unit[U_ENGINE].text)
        put_row(out, "Engine:", s->unit[U_ENGINE].text);
    put_fetch(s, out);
    put_connect(s, out);
    if (*s->checks_error)
        put_row(out, "Cards:", s->checks_error);
    else if (s->checks.there) {
        char text[160];
        snprintf(text, sizeof(text), "%d, %s%s", s->checks.n_cards, cards_words(s->checks.overall),
                 s->checks.this_boot ? "" : " (checked at an earlier start)");
        put_row(out, "Cards:", text);
    } else
        hx_buf_puts(out, "Cards:     not checked yet\n");
    for (int i = 0; i < HX_STATUS_UNITS; i++) {
        if (failed(s, i))
            hx_buf_printf(out, "Failed:    %s (%s)\n", s->unit[i].name, s->unit[i].result);
    }
    return out->failed ? -ENOMEM : 0;
}

static void pair(struct hx_json_writer *w, const char *key, const char *value)
{
    hx_jw_key(w, key);
    hx_jw_str(w, value);
}

int hx_status_json(const struct hx_status *s, struct hx_buf *out)
{
    static const char *const levels[] = {"ok", "working", "todo", "fault"};
    char head[200], what[400];
    struct hx_json_writer w;
    enum hx_status_level level = hx_status_verdict(s, head, sizeof(head), what, sizeof(what));
    hx_jw_init(&w, out, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "schema");
    hx_jw_int(&w, 1);
    pair(&w, "level", levels[level]);
    pair(&w, "status", head);
    pair(&w, "what_now", what);
    hx_jw_key(&w, "configured");
    hx_jw_bool(&w, s->configured);
    pair(&w, "address", s->address);
    pair(&w, "host_key", s->fingerprint);
    hx_jw_key(&w, "download");
    hx_jw_object(&w);
    pair(&w, "phase", s->fetch.phase);
    pair(&w, "model", s->fetch.model);
    pair(&w, "waiting", s->fetch.waiting);
    hx_jw_key(&w, "percent");
    hx_jw_finite(&w, s->fetch.percent);
    hx_jw_end_object(&w);
    hx_jw_key(&w, "cards");
    hx_jw_object(&w);
    pair(&w, "overall", s->checks.overall);
    hx_jw_key(&w, "count");
    hx_jw_int(&w, s->checks.n_cards);
    hx_jw_end_object(&w);
    hx_jw_key(&w, "units");
    hx_jw_object(&w);
    for (int i = 0; i < HX_STATUS_UNITS; i++)
        pair(&w, s->unit[i].name, s->unit[i].active);
    hx_jw_end_object(&w);
    hx_jw_end_object(&w);
    hx_buf_putc(out, '\n');
    return out->failed ? -ENOMEM : 0;
}
