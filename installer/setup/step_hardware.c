/* The hardware report in plain words. */
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "setup/checks.h"
#include "setup/setup.h"

#define CHECK_MS 180000
#define DRIVE_MS 30000
#define SLOW     1e9 /* bytes per second */

/* Memory of the machine in GiB, 0 if not known. */
static long memory_gib(const struct hx_root *root)
{
    char *text = NULL;
    size_t n;
    uint64_t kib = 0;
    struct hx_error err;
    if (hx_root_read(root, "/proc/meminfo", 1 << 16, &text, &n, &err) < 0)
        return 0;
    const char *at = strstr(text, "MemTotal:");
    if (at) {
        at += strlen("MemTotal:");
        at += strspn(at, " ");
        size_t digits = strspn(at, "0123456789");
        if (!hx_parse_u64(at, digits, UINT64_MAX / 1024, &kib))
            kib = 0;
    }
    free(text);
    return (long)((kib + (1 << 19)) >> 20);
}

static void run_check(struct hx_setup *s)
{
    static const char *const argv[] = {"p2p_check", "--quick", NULL};
    struct hx_error err;
    char *out = NULL;
    int rc;
    hx_ui_progress(s->ui, "Checking the cards", -1);
    if (hx_setup_tool(s, argv, CHECK_MS, &rc, &out, &err) == 0)
        free(out);
}

/* Reading a drive takes a while; with nobody at the console a short look has to do. */
static void put_drive(struct hx_setup *s, struct hx_buf *body)
{
    static const struct hx_json_limits limits = {4096, 64, 4, 0};
    const char *argv[] = {"hx-install", "speed", "--json", "--seconds", s->scripted ? "1" : "8",
                          NULL};
    struct hx_error err;
    struct hx_json *doc = NULL;
    char *out = NULL;
    double rate = 0;
    int rc;
    if (!*s->root_dir)
        hx_ui_progress(s->ui, "Reading from the drive", -1);
    if (hx_setup_tool(s, argv, DRIVE_MS, &rc, &out, &err) == 0 && rc == 0 &&
        hx_json_parse(out, strlen(out), &limits, &doc, &err) == 0 &&
        hx_jv_double(hx_jv_get(hx_json_root(doc), "bytes_per_second"), &rate) && rate > 0) {
        hx_buf_printf(body, "The drive of the models reads %.2f GB/s.\n", rate / 1e9);
        if (rate < SLOW)
            hx_buf_printf(
                body,
                "That is slow: a model of 400 GB takes %.0f minutes to load, and answers wait "
                "for the drive. An NVMe drive on its own lanes reads 2 GB/s and more.\n",
                400e9 / rate / 60);
    }
    hx_json_free(doc);
    free(out);
}

enum hx_ui_reply hx_setup_ask_hardware(struct hx_setup *s)
{
    struct hx_checks_summary c;
    struct hx_error err;
    struct hx_buf body = HX_BUF_INIT(1 << 16);
    bool go_on = true;
    int r = hx_checks_read(s->root, &c, &err);
    if (r == 0 && !c.there && !*s->root_dir) {
        run_check(s);
        r = hx_checks_read(s->root, &c, &err);
    }
    if (r < 0) {
        hx_buf_printf(&body, "%s\n", err.text);
        c = (struct hx_checks_summary){0};
    }
    long gib = memory_gib(s->root);
    if (gib > 0)
        hx_buf_printf(&body, "Memory of this machine: %ld GiB.\n", gib);
    put_drive(s, &body);
    hx_checks_words(&c, &body);
    if (strcmp(s->box.driver_source, "none") != 0 && !hx_box_is_done(&s->box, "review"))
        hx_buf_puts(&body, "\nYour driver bundle is not installed yet: the cards are checked again "
                           "after the next start.");
    const char *text = hx_buf_cstr(&body);
    if (!text)
        text = "out of memory";
    enum hx_ui_reply reply;
    if (c.there && strcmp(c.overall, "ready") == 0) {
        reply = hx_ui_show(s->ui, text);
    } else {
        struct hx_ui_question q = {
            .body = text,
            .prompt = "Go on all the same (yes or no)",
            .help = "You can go on: the download needs no cards, and everything can be repaired "
                    "later. This report comes again with: hx-setup hardware",
            .standard = "yes",
            .unattended = true};
        reply = hx_ui_confirm(s->ui, &q, &go_on);
    }
    hx_buf_done(&body);
    return reply == HX_UI_NEXT && !go_on ? HX_UI_BACK : reply;
}
