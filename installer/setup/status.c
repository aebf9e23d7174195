#include "setup/status.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "setup/setup.h"
#include "setup/sshkey.h"

#define TOOL_MS  5000
#define FETCH    "/run/hx170/fetch.json"
#define HOST_KEY "/var/lib/hx170/ssh/ssh_host_ed25519_key.pub"
#define CURRENT  HX_SETUP_MODELS "/current"

static const char *const unit_names[HX_STATUS_UNITS] = {
    "hx-config", "hx-driver", "hx-check", "hx-fetch", "hx-engine", "ssh", "hx-update"};

static void copy(struct hx_jv v, char *out, size_t size)
{
    size_t n;
    const char *s = hx_jv_str(v, &n);
    snprintf(out, size, "%.*s", s ? (int)(n > size ? size : n) : 0, s ? s : "");
    for (char *p = out; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            *p = '?';
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

void hx_status_address(const struct hx_commands *tools, char *out, size_t size)
{
    static const char *const argv[] = {"ip", "-json", "addr", NULL};
    static const struct hx_json_limits limits = {1u << 20, 20000, 32, 0};
    struct hx_command_result result = {0};
    struct hx_json *doc = NULL;
    struct hx_error err;
    out[0] = '\0';
    if (hx_command_run(tools, argv, TOOL_MS, &result, &err) == 0 && result.rc == 0 && result.out &&
        hx_json_parse(result.out, result.out_len, &limits, &doc, &err) == 0) {
        struct hx_jv link = hx_jv_first(hx_json_root(doc));
        for (; link.doc && !*out; link = hx_jv_next(link)) {
            struct hx_jv a = hx_jv_first(hx_jv_get(link, "addr_info"));
            for (; a.doc && !*out; a = hx_jv_next(a)) {
                if (hx_jv_str_is(hx_jv_get(a, "scope"), "global"))
                    copy(hx_jv_get(a, "local"), out, size);
            }
        }
    }
    hx_json_free(doc);
    hx_command_result_done(&result);
}

static void read_fetch(const struct hx_root *root, struct hx_status *out)
{
    static const struct hx_json_limits limits = {4u << 20, 1u << 20, 16, 0};
    struct hx_json *doc = NULL;
    struct hx_error err;
    char *text = NULL;
    size_t n;
    out->fetch.eta_s = -1;
    if (hx_root_read(root, FETCH, 4u << 20, &text, &n, &err) == 0 &&
        hx_json_parse(text, n, &limits, &doc, &err) == 0) {
        struct hx_jv v = hx_json_root(doc);
        copy(hx_jv_get(v, "phase"), out->fetch.phase, sizeof(out->fetch.phase));
        copy(hx_jv_get(v, "waiting"), out->fetch.waiting, sizeof(out->fetch.waiting));
        copy(hx_jv_get(v, "model"), out->fetch.model, sizeof(out->fetch.model));
        if (!hx_jv_double(hx_jv_get(v, "percent"), &out->fetch.percent) ||
            !(out->fetch.percent >= 0 && out->fetch.percent <= 100))
            out->fetch.percent = 0;
        if (!hx_jv_int64(hx_jv_get(v, "eta_s"), &out->fetch.eta_s) || out->fetch.eta_s < 0)
            out->fetch.eta_s = -1;
        if (!hx_jv_int64(hx_jv_get(v, "rate_10s"), &out->fetch.rate) || out->fetch.rate < 0)
            out->fetch.rate = 0;
        out->fetch.there = *out->fetch.phase != '\0';
    }
    hx_json_free(doc);
    free(text);
}

static void take_property(struct hx_status_unit *u, const char *line)
{
    static const struct {
        const char *name;
        size_t offset, size;
    } rows[] = {
        {"ActiveState=", offsetof(struct hx_status_unit, active), sizeof(u->active)},
        {"Result=", offsetof(struct hx_status_unit, result), sizeof(u->result)},
        {"StatusText=", offsetof(struct hx_status_unit, text), sizeof(u->text)},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t n = strlen(rows[i].name);
        if (strncmp(line, rows[i].name, n) == 0)
            snprintf((char *)u + rows[i].offset, rows[i].size, "%s", line + n);
    }
}

/* One block of properties for each unit, an empty line between them, in the order asked for. */
static void read_units(const struct hx_commands *tools, struct hx_status *out)
{
    static const char *const argv[] = {"systemctl",
                                       "show",
                                       "--property=ActiveState,Result,StatusText",
                                       "hx-config.service",
                                       "hx-driver.service",
                                       "hx-check.service",
                                       "hx-fetch.service",
                                       "hx-engine.service",
                                       "ssh.service",
                                       "hx-update@*.service",
                                       NULL};
    struct hx_command_result result = {0};
    struct hx_error err;
    int unit = 0;
    for (int i = 0; i < HX_STATUS_UNITS; i++)
        out->unit[i].name = unit_names[i];
    if (hx_command_run(tools, argv, TOOL_MS, &result, &err) == 0 && result.rc == 0 && result.out) {
        char *rest = result.out;
        for (char *line; (line = strsep(&rest, "\n")) && unit < HX_STATUS_UNITS;) {
            if (*line == '\0')
                unit++;
            else
                take_property(&out->unit[unit], line);
        }
    }
    hx_command_result_done(&result);
}

int hx_status_read(const struct hx_root *root, const struct hx_commands *tools,
                   struct hx_status *out, struct hx_error *err)
{
    struct hx_status s = {0};
    struct hx_error why;
    char *text = NULL, line[HX_SSH_LINE_MAX];
    size_t n;
    hx_box_init(&s.box);
    int r = hx_root_read(root, HX_SETUP_BOX, HX_BOX_FILE_MAX, &text, &n, &why);
    if (r == -EACCES)
        r = hx_root_read(root, HX_SETUP_SHOWN, HX_BOX_FILE_MAX, &text, &n, &why);
    if (r == 0)
        r = hx_box_parse(text, n, HX_SETUP_BOX, HX_BOX_STATE, &s.box, &why);
    free(text);
    if (r == -ENOMEM)
        return hx_fail(err, r, "out of memory");
    s.configured = r == 0;
    s.box_broken = r < 0 && r != -ENOENT;
    if (s.box_broken)
        snprintf(s.box_error, sizeof(s.box_error), "%s", why.text);
    if (hx_checks_read(root, &s.checks, &why) < 0)
        snprintf(s.checks_error, sizeof(s.checks_error), "%s", why.text);
    if (hx_root_text(root, HOST_KEY, line, sizeof(line)) == 0) {
        struct hx_ssh_key key;
        if (hx_ssh_key_parse(line, strlen(line), &key, &why) == 0) {
            snprintf(s.fingerprint, sizeof(s.fingerprint), "%s", key.fingerprint);
            hx_ssh_key_done(&key);
        }
    }
    read_fetch(root, &s);
    read_units(tools, &s);
    hx_status_address(tools, s.address, sizeof(s.address));
    s.any_model = hx_root_exists(root, CURRENT);
    *out = s;
    return 0;
}

void hx_status_done(struct hx_status *s)
{
    if (s)
        hx_box_done(&s->box);
}
