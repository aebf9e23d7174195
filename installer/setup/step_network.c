/* Address, router, name servers, VLAN, proxy. Nothing changes before the review. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "setup/setup.h"
#include "setup/valid.h"

#define TOOL_MS 5000

/* Interfaces that are up with their addresses, by `ip -json addr`. */
static void describe_links(const char *json, struct hx_buf *out)
{
    struct hx_json *doc = NULL;
    struct hx_json_limits limits = {1u << 20, 20000, 32, 0};
    struct hx_error err;
    if (hx_json_parse(json, strlen(json), &limits, &doc, &err) < 0)
        return;
    for (struct hx_jv link = hx_jv_first(hx_json_root(doc)); link.doc; link = hx_jv_next(link)) {
        size_t n_name, n;
        const char *name = hx_jv_str(hx_jv_get(link, "ifname"), &n_name);
        const char *address = NULL;
        int64_t bits = 0;
        if (!name || (n_name == 2 && memcmp(name, "lo", 2) == 0))
            continue;
        bool up = hx_jv_str_is(hx_jv_get(link, "operstate"), "UP");
        hx_buf_printf(out, "  %.*s: ", n_name > 15 ? 15 : (int)n_name, name);
        struct hx_jv a = hx_jv_first(hx_jv_get(link, "addr_info"));
        for (; a.doc && !address; a = hx_jv_next(a)) {
            if (!hx_jv_str_is(hx_jv_get(a, "scope"), "global") ||
                !hx_jv_int64(hx_jv_get(a, "prefixlen"), &bits))
                continue;
            address = hx_jv_str(hx_jv_get(a, "local"), &n);
        }
        if (address)
            hx_buf_printf(out, "%.*s/%d\n", n > 45 ? 45 : (int)n, address, (int)(bits & 255));
        else
            hx_buf_puts(out, up ? "connected, no address yet\n" : "no cable or no link\n");
    }
    hx_json_free(doc);
}

static void network_body(struct hx_setup *s, struct hx_buf *out)
{
    static const char *const argv[] = {"ip", "-json", "addr", NULL};
    struct hx_buf links = HX_BUF_INIT(1 << 14);
    struct hx_error err;
    char *json = NULL;
    int rc;
    if (hx_setup_tool(s, argv, TOOL_MS, &rc, &json, &err) == 0 && rc == 0)
        describe_links(json, &links);
    free(json);
    if (links.len > 0) {
        hx_buf_puts(out, "Found:\n");
        hx_buf_append(out, links.data, links.len);
    } else {
        hx_buf_puts(out, "No network card was found.\n");
    }
    hx_buf_puts(out, "You can go on without a network and connect it later.");
    hx_buf_done(&links);
}

static int check_gateway(void *ctx, const char *answer, struct hx_error *err)
{
    const struct hx_setup *s = ctx;
    const char *value = strcmp(answer, "-") == 0 ? "" : answer;
    int r = hx_valid_gateway(value, err);
    return r < 0 ? r : hx_valid_route(s->box.address, value, err);
}

static enum hx_ui_reply ask_gateway(struct hx_setup *s)
{
    char standard[64], answer[256];
    snprintf(standard, sizeof(standard), "%s", s->box.gateway);
    struct hx_ui_question q = {
        .key = "gateway",
        .prompt = "Router",
        .help = "The address of your router, such as 192.168.1.1, or - for none. It has to be in "
                "the same network as the address.",
        .standard = standard,
        .check = check_gateway,
        .ctx = s};
    enum hx_ui_reply reply = hx_ui_text(s->ui, &q, answer, sizeof(answer));
    if (reply != HX_UI_NEXT)
        return reply;
    const char *value = strcmp(answer, "-") == 0 ? "" : answer;
    return hx_box_set(&s->box, "gateway", value, &s->ui->error) < 0 ? HX_UI_ERROR : HX_UI_NEXT;
}

static int check_static(void *ctx, const char *answer, struct hx_error *err)
{
    (void)ctx;
    if (*answer == '\0')
        return hx_fail(err, -EINVAL,
                       "an address is needed, with its prefix, such as 192.168.1.20/24");
    return hx_valid_address(answer, err);
}

static enum hx_ui_reply ask_address(struct hx_setup *s)
{
    char standard[64], answer[256];
    snprintf(standard, sizeof(standard), "%s", s->box.address);
    struct hx_ui_question q = {
        .key = "address",
        .prompt = "Address",
        .help = "The address of this machine and the length of the network's prefix. A mask of "
                "255.255.255.0 is /24.",
        .standard = standard,
        .check = check_static,
        .ctx = s};
    enum hx_ui_reply reply = hx_ui_text(s->ui, &q, answer, sizeof(answer));
    if (reply != HX_UI_NEXT)
        return reply;
    return hx_box_set(&s->box, "address", answer, &s->ui->error) < 0 ? HX_UI_ERROR : HX_UI_NEXT;
}

static enum hx_ui_reply ask_dns(struct hx_setup *s)
{
    return hx_setup_ask_text(s, "dns", NULL, "Name servers",
                             "Addresses with a space between them. With DHCP leave it empty: the "
                             "router says. - empties it.");
}

static enum hx_ui_reply ask_vlan(struct hx_setup *s)
{
    return hx_setup_ask_text(s, "vlan", NULL, "VLAN number",
                             "0 for none, which is right unless your network was set up with "
                             "tagged VLANs.");
}

static enum hx_ui_reply ask_proxy(struct hx_setup *s)
{
    return hx_setup_ask_text(s, "proxy", NULL, "Proxy",
                             "Empty for none, else an address such as http://proxy.example:3128. - "
                             "empties it.");
}

static bool is_static(const struct hx_setup *s)
{
    return s->box.network == HX_NET_STATIC;
}

static bool has_network(const struct hx_setup *s)
{
    return s->box.network != HX_NET_NONE;
}

/* Questions behind the choice, on the same screen. */
static const struct {
    bool (*needed)(const struct hx_setup *s);
    enum hx_ui_reply (*ask)(struct hx_setup *s);
} questions[] = {
    {is_static, ask_address}, {is_static, ask_gateway}, {has_network, ask_dns},
    {has_network, ask_vlan},  {has_network, ask_proxy},
};
#define N_QUESTIONS ((int)(sizeof(questions) / sizeof(questions[0])))

/* What the choice leaves no room for. */
static void forget(struct hx_box *b)
{
    if (b->network != HX_NET_STATIC)
        b->address[0] = b->gateway[0] = '\0';
    if (b->network == HX_NET_NONE) {
        b->dns[0] = b->proxy[0] = '\0';
        b->vlan = 0;
    }
}

static enum hx_ui_reply ask_kind(struct hx_setup *s)
{
    static const struct hx_ui_item items[] = {
        {"dhcp", "automatic (DHCP), right for most networks"},
        {"static", "an address of my own choice"},
        {"none", "no network now"},
    };
    struct hx_buf body = HX_BUF_INIT(1 << 14);
    network_body(s, &body);
    enum hx_ui_reply reply = hx_setup_ask_choice(
        s, "network", hx_buf_cstr(&body), "Which",
        "Automatic: the router gives the address. An address of your own: for networks without "
        "DHCP, or to always find the machine at the same place.",
        items, 3);
    hx_buf_done(&body);
    if (reply == HX_UI_NEXT)
        forget(&s->box);
    return reply;
}

enum hx_ui_reply hx_setup_ask_network(struct hx_setup *s)
{
    int at = -1; /* -1: the choice itself */
    while (at < N_QUESTIONS) {
        enum hx_ui_reply reply = at < 0                     ? ask_kind(s)
                                 : !questions[at].needed(s) ? HX_UI_NEXT
                                                            : questions[at].ask(s);
        if (reply == HX_UI_NEXT) {
            at++;
        } else if (reply == HX_UI_BACK && at >= 0) {
            do
                at--;
            while (at >= 0 && !questions[at].needed(s));
        } else {
            return reply;
        }
    }
    return HX_UI_NEXT;
}
