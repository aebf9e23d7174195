/* Everything once more, and where to go from here. */
#include <string.h>

#include "setup/setup.h"
#include "setup/sshkey.h"
#include "setup/status.h"

static void row(struct hx_buf *out, const char *name, const char *value)
{
    hx_buf_printf(out, " %-13s %s\n", name, value);
}

static void put_keys(const struct hx_box *b, struct hx_buf *out)
{
    for (int i = 0; i < b->n_admin_keys; i++) {
        struct hx_ssh_key key;
        struct hx_error err;
        if (hx_ssh_key_parse(b->admin_key[i], strlen(b->admin_key[i]), &key, &err) < 0)
            continue;
        row(out, i ? "" : "SSH keys", key.fingerprint);
        hx_ssh_key_done(&key);
    }
}

static void put_network(const struct hx_box *b, struct hx_buf *out)
{
    static const char *const kinds[] = {"automatic (DHCP)", "", "none now"};
    char text[200];
    if (b->network == HX_NET_STATIC)
        snprintf(text, sizeof(text), "%s, router %s", b->address,
                 *b->gateway ? b->gateway : "none");
    else
        snprintf(text, sizeof(text), "%s", kinds[b->network]);
    row(out, "Network", text);
    if (*b->dns)
        row(out, "Name servers", b->dns);
    if (b->vlan) {
        snprintf(text, sizeof(text), "%lld", (long long)b->vlan);
        row(out, "VLAN", text);
    }
    if (*b->proxy)
        row(out, "Proxy", b->proxy);
}

static void put_model(const struct hx_setup *s, struct hx_buf *out)
{
    const struct hx_box *b = &s->box;
    char text[64];
    if (*b->models_disk)
        row(out, "Models on",
            strcmp(b->models_disk, "system") == 0 ? "the system's disk" : b->models_disk);
    if (*b->erase_models_disk)
        row(out, "", "this drive is ERASED");
    row(out, "Model", strcmp(b->model, "none") == 0 ? "none now" : b->model);
    if (strcmp(b->model, "none") == 0)
        return;
    row(out, "From", strcmp(b->model_source, "default") == 0 ? "the model hub" : b->model_source);
    if (*s->token)
        row(out, "Access token", "entered");
    if (b->bandwidth) {
        snprintf(text, sizeof(text), "%.1f MB/s at most", (double)b->bandwidth / 1e6);
        row(out, "Speed", text);
    }
    if (*b->schedule)
        row(out, "Time of day", b->schedule);
}

static void review_body(const struct hx_setup *s, struct hx_buf *out)
{
    static const char *const layouts[] = {"as the hardware check proposes", "TP4", "PP4"};
    const struct hx_box *b = &s->box;
    char text[64];
    row(out, "Name", b->hostname);
    put_keys(b, out);
    put_network(b, out);
    row(out, "Time source", b->ntp);
    row(out, "Driver bundle", b->driver_source);
    put_model(s, out);
    snprintf(text, sizeof(text), "%lld W per card", (long long)b->power_cap_watts);
    row(out, "Power", text);
    row(out, "Layout", layouts[b->layout]);
    snprintf(text, sizeof(text), "%lld tokens", (long long)b->context);
    row(out, "Conversation", text);
    if (*b->expert_cmdline)
        row(out, "Kernel words", b->expert_cmdline);
}

static int check_all(void *ctx, const char *answer, struct hx_error *err)
{
    (void)answer;
    const struct hx_setup *s = ctx;
    return hx_box_check(&s->box, HX_BOX_STATE, err);
}

enum hx_ui_reply hx_setup_ask_review(struct hx_setup *s)
{
    struct hx_buf body = HX_BUF_INIT(1 << 16);
    struct hx_error err;
    bool yes = false;
    review_body(s, &body);
    if (check_all(s, "", &err) < 0)
        hx_buf_printf(&body, "\nThis does not fit together yet: %s\n", err.text);
    struct hx_ui_question q = {
        .body = hx_buf_cstr(&body),
        .prompt = "Put this in force (yes or no)",
        .help = "Nothing has been changed so far. Every answer can be changed later with hx-setup "
                "and the step's name; hx-setup list shows the names.",
        .standard = "yes",
        .unattended = true};
    enum hx_ui_reply reply = hx_ui_confirm(s->ui, &q, &yes);
    hx_buf_done(&body);
    return reply == HX_UI_NEXT && !yes ? HX_UI_BACK : reply;
}

enum hx_ui_reply hx_setup_ask_status(struct hx_setup *s)
{
    struct hx_status status;
    struct hx_buf text = HX_BUF_INIT(1 << 16);
    enum hx_ui_reply reply = HX_UI_ERROR;
    if (hx_status_read(s->root, s->tools, &status, &s->ui->error) < 0)
        return reply;
    hx_status_text(&status, &text);
    if (s->cold_start)
        hx_buf_puts(&text, "\nThe driver bundle is installed. Switch the machine off, wait 60 "
                           "seconds, and switch it on again: a restart alone is not enough.\n");
    else if (s->restart)
        hx_buf_puts(&text, "\nThe models have another drive now. The machine starts again by "
                           "itself behind this screen.\n");
    hx_buf_puts(&text, "\nThis screen comes again with: hx status. To change an answer: hx-setup, "
                       "then one of name, key, network, time, driver, hardware, model, "
                       "performance.");
    const char *words = hx_buf_cstr(&text);
    reply = hx_ui_show(s->ui, words ? words : "out of memory");
    hx_buf_done(&text);
    hx_status_done(&status);
    return reply;
}
