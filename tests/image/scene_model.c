/* The whole way: a box downloads the demo hybrid, serves it, and a client on another machine asks
 * it through a tunnel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "image/mirror.h"

#define LOOK_MS 3000

/* What `hx status` says: level and sentence. */
static int read_status(struct hx_scene *s, char level[16], char text[200], struct hx_error *err)
{
    static const struct hx_json_limits limits = {1 << 20, 1 << 16, 16, 0};
    struct hx_buf out = HX_BUF_INIT(256 << 10);
    struct hx_json *doc = NULL;
    int r = hx_scene_admin(s, "hx status --json || test $? -lt 64", &out, err);
    if (!r)
        r = hx_json_parse((const char *)out.data, out.len, &limits, &doc, err);
    if (!r) {
        static const char *const keys[] = {"level", "status"};
        char *const to[] = {level, text};
        const int size[] = {16, 200};
        for (int i = 0; i < 2; i++) {
            size_t n = 0;
            const char *v = hx_jv_str(hx_jv_get(hx_json_root(doc), keys[i]), &n);
            snprintf(to[i], (size_t)size[i], "%.*s", v ? (int)n : 0, v ? v : "");
        }
    }
    hx_json_free(doc);
    hx_buf_done(&out);
    return r;
}

/* The last lines of a unit's journal, for a message. */
static void journal_of(struct hx_scene *s, const char *unit, struct hx_buf *out)
{
    char command[200];
    struct hx_error ignored;
    snprintf(command, sizeof(command), "journalctl -q -o cat -n 4 -u %s", unit);
    if (hx_scene_admin(s, command, out, &ignored))
        hx_buf_clear(out);
}

int hx_mirror_wait_serving(struct hx_scene *s, struct hx_error *err)
{
    char level[16], text[200];
    for (;;) {
        int r = read_status(s, level, text, err);
        if (r)
            return r;
        if (!strcmp(level, "ok"))
            return 0;
        if (!strcmp(level, "fault") || !hx_child_sleep(LOOK_MS, s->deadline)) {
            struct hx_buf fetch = HX_BUF_INIT(1 << 16), engine = HX_BUF_INIT(1 << 16);
            journal_of(s, "hx-fetch", &fetch);
            journal_of(s, "hx-engine", &engine);
            const char *f = hx_buf_cstr(&fetch), *e = hx_buf_cstr(&engine);
            r = hx_fail(err, -EIO,
                        "the box does not serve: '%s'; hx-fetch: %.300s; hx-engine: %.300s", text,
                        f ? f : "", e ? e : "");
            hx_buf_done(&fetch);
            hx_buf_done(&engine);
            return r;
        }
    }
}

int hx_mirror_tunnel(struct hx_scene *s, struct hx_tunnel *t, struct hx_error *err)
{
    char log[512];
    *t = (struct hx_tunnel){0};
    snprintf(log, sizeof(log), "%s/tunnel.log", s->work);
    if (unlink(log) < 0 && errno != ENOENT)
        return hx_fail_errno(err, errno, "%s", log);
    int r = hx_scene_free_port(&t->port, err);
    s->ssh.user = "tunnel";
    if (!r)
        r = hx_ssh_tunnel(&s->ssh, &t->child, t->port, "127.0.0.1:8000", log, err);
    s->ssh.user = "admin";
    snprintf(t->url, sizeof(t->url), "http://127.0.0.1:%u", t->port);
    return r;
}

int hx_mirror_get(struct hx_scene *s, struct hx_tunnel *t, const char *path, const char *want,
                  struct hx_error *err)
{
    char url[160];
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    snprintf(url, sizeof(url), "%s%s", t->url, path);
    const char *const argv[] = {
        "curl", "-sS", "--fail-with-body", "--noproxy", "*", "--max-time", "60", url, NULL};
    int r, code = -1;
    for (;;) {
        r = hx_child_run(argv, NULL, &out, &code, hx_child_within(s->deadline, 90000), err);
        const char *said = r ? NULL : hx_buf_cstr(&out);
        if (r && r != -ETIMEDOUT)
            break;
        if (!r && !code && said && strstr(said, want))
            break;
        if (!hx_child_alive(&t->child)) {
            r = hx_fail(err, -EPIPE, "%s on the way there has ended", t->child.program);
            break;
        }
        if (!hx_child_sleep(300, s->deadline)) {
            r = hx_fail(err, -ETIMEDOUT, "%s through the tunnel: no '%s', but %.300s", path, want,
                        said ? said : "nothing");
            break;
        }
    }
    hx_buf_done(&out);
    return r;
}

/* Pinned official client; *python its interpreter. */
static int client_python(const struct hx_scene *s, char *python, size_t size, struct hx_error *err)
{
    char folder[300];
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    int code = -1;
    snprintf(folder, sizeof(folder), "%s/venv", s->build);
    snprintf(python, size, "%s/bin/python", folder);
    const char *const argv[] = {"scripts/venv.sh", folder, NULL};
    int r = hx_child_run(argv, NULL, &out, &code, s->deadline, err);
    const char *said = r ? NULL : hx_buf_cstr(&out);
    if (!r && code)
        r = hx_fail(err, -EIO, "scripts/venv.sh ends with %d: %.300s", code, said ? said : "");
    hx_buf_done(&out);
    return r;
}

/* The engine of this build on this host, with the model that the mirror was made from. */
static int start_reference(const struct hx_scene *s, struct hx_child *engine, char *url,
                           size_t size, struct hx_error *err)
{
    char program[300], model[300], listen[60], log[300];
    unsigned port;
    int r = hx_scene_free_port(&port, err);
    if (r)
        return r;
    snprintf(program, sizeof(program), "%s/release/bin/hx-engine", s->build);
    snprintf(model, sizeof(model), "--engine.model=%s/demo", s->build);
    snprintf(listen, sizeof(listen), "--server.listen=127.0.0.1:%u", port);
    snprintf(log, sizeof(log), "%s/reference.log", s->work);
    snprintf(url, size, "http://127.0.0.1:%u", port);
    const char *const argv[] = {program, model, listen, "--engram.slow_read=60s", NULL};
    return hx_child_start(engine, argv, log, NULL, err);
}

int hx_mirror_ask(struct hx_scene *s, struct hx_tunnel *t, unsigned n, struct hx_error *err)
{
    char python[400], number[16], reference[60] = "";
    struct hx_tunnel here = {0};
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    int code = -1;
    int r = client_python(s, python, sizeof(python), err);
    if (!r)
        r = start_reference(s, &here.child, reference, sizeof(reference), err);
    snprintf(here.url, sizeof(here.url), "%s", reference);
    if (!r)
        r = hx_mirror_get(s, &here, "/health", "ok", err);
    snprintf(number, sizeof(number), "%u", n);
    const char *const argv[] = {python,    "-B", "tests/image/client.py", t->url, number,
                                reference, NULL};
    if (!r)
        r = hx_child_run(argv, NULL, &out, &code, s->deadline, err);
    hx_child_kill(&here.child);
    const char *said = r ? NULL : hx_buf_cstr(&out);
    size_t len = out.len;
    if (!r && code)
        r = hx_fail(err, -EIO, "the client ends with %d: %s", code,
                    !said ? "" : said + (len > 500 ? len - 500 : 0));
    if (!r)
        printf("# client: %s", said ? said : "");
    hx_buf_done(&out);
    return r;
}

static const struct hx_check served[] = {
    {"download", "systemctl show -P Result hx-fetch", "success\n"},
    {"hashes", "hx-fetch verify --check", NULL},
    {"stamp", "grep -c '\"complete\":true' /srv/models/current/state.json", "1\n"},
    {"left over",
     "find /srv/models/incoming /srv/models/current/ -name '*.part' -o -name '*.journal'", ""},
    {"sockets",
     "ss -Hltun | awk '{print $1, $5}' | grep -v -e ':68$' -e 127.0.0.53 -e 127.0.0.54 | sort",
     "tcp 0.0.0.0:22\ntcp 127.0.0.1:8000\ntcp [::]:22\n"},
    {"demo mode", "hx | grep -c 'DEMO MODE'", "1\n"},
    {"engine's log", "journalctl -q -o cat -u hx-engine | grep -c 'DEMO MODE'", "1\n"},
};

/* Nothing is fetched twice, and the gaps between tensors stay below 2 %. */
static int check_traffic(struct hx_mirror *m, struct hx_error *err)
{
    unsigned n;
    uint64_t sent;
    int r = hx_mirror_stats(m, &n, &sent, err);
    if (!r && (sent < m->n_bytes / 2 || sent > m->n_bytes + m->n_bytes / 50))
        r = hx_fail(err, -EBADMSG, "%llu bytes were sent for a download of %llu",
                    (unsigned long long)sent, (unsigned long long)m->n_bytes);
    return r;
}

static int download_and_ask(struct hx_scene *s, struct hx_mirror *m, struct hx_tunnel *t,
                            struct hx_error *err)
{
    int r = hx_scene_power_on(s, err);
    if (!r)
        r = hx_mirror_wait_serving(s, err);
    if (!r)
        hx_scene_measure("power-on to downloaded and served", (double)hx_vm_age(&s->vm) / 1000,
                         "s");
    if (!r)
        r = check_traffic(m, err);
    if (!r)
        r = hx_scene_checks(s, served, sizeof(served) / sizeof(served[0]), err);
    if (!r)
        r = hx_mirror_tunnel(s, t, err);
    if (!r)
        r = hx_mirror_get(s, t, "/health", "ok", err);
    if (!r)
        r = hx_mirror_get(s, t, "/version", "DEMO MODE", err);
    return r ? r : hx_mirror_ask(s, t, 2, err);
}

/* Without stick and answers: from power-on to an API that answers through the tunnel. */
static int start_again(struct hx_scene *s, struct hx_tunnel *t, struct hx_error *err)
{
    int r = hx_scene_power_off(s, err);
    s->setup.n_disks = 1;
    s->setup.n_credentials = 0;
    if (!r)
        r = hx_scene_power_on(s, err);
    if (!r)
        r = hx_mirror_tunnel(s, t, err);
    if (!r)
        r = hx_mirror_get(s, t, "/health", "ok", err);
    if (!r)
        hx_scene_target("power-on to ready API", (double)hx_vm_age(&s->vm) / 1000, 70, "s");
    return r ? r : hx_mirror_ask(s, t, 1, err);
}

/* D1, E1. */
int hx_scene_model(struct hx_scene *s, struct hx_error *err)
{
    struct hx_mirror m;
    struct hx_tunnel t = {0};
    unlink(s->served);
    int r = hx_mirror_start(&m, s, err);
    if (r)
        return r;
    r = hx_mirror_box(&m, s, "model", "", err);
    if (!r)
        r = download_and_ask(s, &m, &t, err);
    hx_child_kill(&t.child);
    if (!r)
        r = start_again(s, &t, err);
    hx_child_kill(&t.child);
    if (!r)
        r = hx_scene_power_off(s, err);
    if (!r && rename(s->disk, s->served) < 0)
        r = hx_fail_errno(err, errno, "%s", s->served);
    hx_mirror_close(&m);
    return r;
}
