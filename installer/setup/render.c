/* box.conf into the files of other programs, all below /run: the root is read-only, and nothing of
 * it outlives the answer it comes from (hx-config.service, and after each change). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "setup/media.h"
#include "setup/setup.h"

#define RUN       "/run/hx170"
#define NETWORKD  "/run/systemd/network"
#define TOOL_MS   60000
#define INTERFACE "en* eth*"

struct output {
    const struct hx_setup *s;
    struct hx_buf text;
    struct hx_error *err;
    int r;
};

static void put(struct output *o, const char *path, unsigned mode)
{
    if (o->r == 0 && o->text.failed)
        o->r = hx_fail(o->err, -ENOMEM, "out of memory");
    if (o->r == 0)
        o->r = hx_setup_put(o->s, path, o->text.data, o->text.len, mode, o->err);
    hx_buf_clear(&o->text);
}

static void drop(struct output *o, const char *path)
{
    char at[HX_ROOT_PATH];
    if (o->r == 0)
        o->r = hx_setup_path(o->s, path, at, o->err);
    if (o->r == 0 && unlink(at) < 0 && errno != ENOENT)
        o->r = hx_fail_errno(o->err, errno, "%s: cannot remove", at);
}

static bool has_model(const struct hx_box *b)
{
    return strcmp(b->model, "none") != 0;
}

static void render_fetch(struct output *o, const struct hx_box *b)
{
    hx_buf_puts(&o->text, "[fetch]\n");
    if (has_model(b))
        hx_buf_printf(&o->text, "lock = %s/%s.json\naccept_licences = %s\n",
                      *b->model_lock_sha256 ? HX_SETUP_OWN : HX_SETUP_LOCKS, b->model,
                      b->accept_model_licence ? "yes" : "no");
    if (has_model(b) && *b->model_lock_sha256)
        hx_buf_printf(&o->text, "accept_lock = %s\n", b->model_lock_sha256);
    if (strncmp(b->model_source, "http", 4) == 0)
        hx_buf_printf(&o->text, "endpoints = mirror=plain:%s\n", b->model_source);
    hx_buf_printf(&o->text, "rate = %lld\nwindow = %s\n", (long long)b->bandwidth, b->schedule);
    put(o, RUN "/fetch.conf.d/50-box.conf", 0644);
}

/* Where the offline disk's folder is for the download's service: a device as hx-media.service
 * mounts it. */
static void offline_folder(const struct hx_box *b, char *out, size_t size)
{
    const char *name = strrchr(b->model_source, '/') + 1;
    if (strncmp(b->model_source, "/dev/", 5) == 0)
        snprintf(out, size, HX_MEDIA "/%s", name);
    else
        snprintf(out, size, "%s", b->model_source);
}

/* An offline disk is read before the network is asked. */
static void put_import(struct output *o, const struct hx_box *b)
{
    char folder[600];
    offline_folder(b, folder, sizeof(folder));
    hx_buf_puts(&o->text, "[Unit]\nWants=hx-media.service\nAfter=hx-media.service\n\n[Service]\n"
                          "TimeoutStartSec=infinity\nExecStartPre=-/usr/bin/hx-fetch import \"");
    for (const char *p = folder; *p; p++) {
        if (*p == '"' || *p == '\\')
            hx_buf_putc(&o->text, '\\');
        if (*p == '%' || *p == '$')
            hx_buf_putc(&o->text, (uint8_t)*p);
        hx_buf_putc(&o->text, (uint8_t)*p);
    }
    hx_buf_puts(&o->text, "\"\n");
}

/* A mirror or a proxy may stand in the owner's own network, where the download else may not go. */
static void render_download(struct output *o, const struct hx_box *b)
{
    const char *path = "/run/systemd/system/hx-fetch.service.d/50-box.conf";
    bool offline = b->model_source[0] == '/';
    bool near = strncmp(b->model_source, "http", 4) == 0 || *b->proxy;
    if (!offline && !near) {
        drop(o, path);
        return;
    }
    if (offline)
        put_import(o, b);
    else
        hx_buf_puts(&o->text, "[Service]\n");
    if (near)
        hx_buf_puts(&o->text, "IPAddressDeny=\nIPAddressDeny=link-local multicast\n");
    put(o, path, 0644);
}

static void render_programs(struct output *o, const struct hx_box *b)
{
    hx_buf_printf(&o->text, "[engine]\nmax_context = %lld\n", (long long)b->context);
    put(o, RUN "/engine.conf.d/50-box.conf", 0644);
    hx_buf_printf(&o->text, "[cards]\npower_cap = %lld\n", (long long)b->power_cap_watts);
    put(o, RUN "/cards.conf.d/50-box.conf", 0644);
    if (*b->proxy)
        hx_buf_printf(&o->text, "http_proxy=%s\nhttps_proxy=%s\nno_proxy=localhost,127.0.0.1\n",
                      b->proxy, b->proxy);
    put(o, RUN "/environment", 0644);
}

static void render_identity(struct output *o, const struct hx_box *b)
{
    hx_buf_printf(&o->text, "%s\n", b->hostname);
    put(o, RUN "/hostname", 0644);
    for (int i = 0; i < b->n_admin_keys; i++)
        hx_buf_printf(&o->text, "%s\n", b->admin_key[i]);
    put(o, RUN "/ssh/authorized_keys", 0644);
}

static void put_address(struct output *o, const struct hx_box *b)
{
    if (b->network == HX_NET_STATIC) {
        hx_buf_printf(&o->text, "Address=%s\n", b->address);
        if (*b->gateway)
            hx_buf_printf(&o->text, "Gateway=%s\n", b->gateway);
    } else {
        /* Also with "no network now": a cable that is plugged in later should do. */
        hx_buf_puts(&o->text, "DHCP=yes\n");
    }
    if (*b->dns)
        hx_buf_printf(&o->text, "DNS=%s\n", b->dns);
    hx_buf_puts(&o->text, "LLMNR=no\nMulticastDNS=no\n");
    if (b->network != HX_NET_STATIC)
        hx_buf_printf(&o->text, "\n[DHCPv4]\nUseDNS=%s\n", *b->dns ? "no" : "yes");
}

static void render_network(struct output *o, const struct hx_box *b)
{
    hx_buf_puts(&o->text, "[Match]\nName=" INTERFACE "\n\n[Network]\n");
    if (b->vlan)
        hx_buf_puts(&o->text, "VLAN=hxvlan\nLinkLocalAddressing=no\nLLMNR=no\nMulticastDNS=no\n");
    else
        put_address(o, b);
    put(o, NETWORKD "/10-hx170.network", 0644);
    if (!b->vlan) {
        drop(o, NETWORKD "/10-hx170-vlan.netdev");
        drop(o, NETWORKD "/11-hx170-vlan.network");
        return;
    }
    hx_buf_printf(&o->text, "[NetDev]\nName=hxvlan\nKind=vlan\n\n[VLAN]\nId=%lld\n",
                  (long long)b->vlan);
    put(o, NETWORKD "/10-hx170-vlan.netdev", 0644);
    hx_buf_puts(&o->text, "[Match]\nName=hxvlan\n\n[Network]\n");
    put_address(o, b);
    put(o, NETWORKD "/11-hx170-vlan.network", 0644);
}

static void render_time(struct output *o, const struct hx_box *b)
{
    const char *path = "/run/systemd/timesyncd.conf.d/50-hx170.conf";
    if (strcmp(b->ntp, "default") == 0) {
        drop(o, path);
        return;
    }
    bool later = strcmp(b->ntp, "later") == 0;
    hx_buf_printf(&o->text, "[Time]\nNTP=%s\n%s", later ? "" : b->ntp,
                  later ? "FallbackNTP=\n" : "");
    put(o, path, 0644);
}

static void render_token(struct output *o)
{
    char *token = NULL;
    size_t n;
    struct hx_error why;
    int r = hx_root_read(o->s->root, HX_SETUP_TOKEN, 4096, &token, &n, &why);
    if (r == -ENOENT) {
        drop(o, "/run/credstore/hub_token");
        return;
    }
    if (o->r == 0 && r < 0)
        o->r = hx_fail(o->err, r, "%s", why.text);
    if (o->r == 0)
        o->r = hx_setup_put(o->s, "/run/credstore/hub_token", token, n, 0600, o->err);
    if (token)
        explicit_bzero(token, n);
    free(token);
}

int hx_setup_render(struct hx_setup *s, struct hx_error *err)
{
    char at[HX_ROOT_PATH];
    struct hx_box b;
    int r = hx_setup_path(s, HX_SETUP_BOX, at, err);
    if (r == 0)
        r = hx_box_read(at, HX_BOX_STATE, &b, err);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    struct output o = {.s = s, .text = HX_BUF_INIT(1 << 20), .err = err};
    o.r = hx_box_check(&b, HX_BOX_STATE, err);
    if (o.r == 0) {
        o.r = hx_box_write(&b, HX_BOX_STATE, &o.text);
        put(&o, HX_SETUP_SHOWN, 0644);
        render_identity(&o, &b);
        render_network(&o, &b);
        render_time(&o, &b);
        render_token(&o);
        render_fetch(&o, &b);
        render_download(&o, &b);
        render_programs(&o, &b);
    }
    hx_buf_done(&o.text);
    hx_box_done(&b);
    return o.r;
}

int hx_setup_activate(struct hx_setup *s, struct hx_error *err)
{
    /* What is not there, or does not run yet, takes the new files when it starts. */
    static const char *const tools[][6] = {
        {"systemctl", "daemon-reload"},
        {"systemctl", "--no-block", "restart", "hx-config.service"}, /* sets the host name */
        {"networkctl", "reload"},
        {"systemctl", "--no-block", "try-restart", "systemd-timesyncd.service"},
        {"systemctl", "--no-block", "restart", "hx-fetch.service"},
        {"systemctl", "--no-block", "start", "multi-user.target"},
    };
    enum { N_LATE = 2 }; /* not on a drive that holds the models only until the restart */
    int r = hx_setup_render(s, err);
    const size_t n = sizeof(tools) / sizeof(tools[0]) - (s->restart ? N_LATE : 0);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct hx_error why;
        char *out = NULL;
        int rc;
        if (hx_setup_tool(s, tools[i], TOOL_MS, &rc, &out, &why) == 0)
            free(out);
    }
    return r;
}
