#include "image/mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define START_MS 120000

/* Runs a program and wants status 0. */
static int run(const char *const *argv, int64_t ms, struct hx_buf *out, struct hx_error *err)
{
    int code = -1;
    int r = hx_child_run(argv, NULL, out, &code, hx_child_clock() + ms, err);
    const char *said = r ? NULL : hx_buf_cstr(out);
    if (!r && code)
        r = hx_fail(err, -EIO, "%s ends with %d: %.300s", argv[0], code, said ? said : "");
    return r;
}

/* The demo model, once for a build folder. */
static int make_model(const struct hx_scene *s, char *model, size_t size, struct hx_error *err)
{
    char program[300], tokenizer[300], map[300], state[400];
    snprintf(model, size, "%s/demo", s->build);
    snprintf(state, sizeof(state), "%s/state.json", model);
    if (access(state, F_OK) == 0)
        return 0;
    snprintf(program, sizeof(program), "%s/release/bin/hx-inspect", s->build);
    snprintf(tokenizer, sizeof(tokenizer), "%s/data/tokenizer.json", s->build);
    snprintf(map, sizeof(map), "%s/data/engram_map.i32", s->build);
    const char *const argv[] = {program,   "tiny",  model, "--tokenizer",
                                tokenizer, "--map", map,   NULL};
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    int r = run(argv, START_MS, &out, err);
    hx_buf_done(&out);
    return r;
}

int hx_mirror_medium(const char *folder, unsigned mib, const char *path, struct hx_error *err)
{
    char size[32];
    snprintf(size, sizeof(size), "%uM", mib);
    if (unlink(path) < 0 && errno != ENOENT)
        return hx_fail_errno(err, errno, "%s", path);
    const char *const argv[] = {"mke2fs", "-q", "-t", "ext4", "-d", folder, path, size, NULL};
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    int r = run(argv, START_MS, &out, err);
    hx_buf_done(&out);
    return r;
}

/* Waits for the line "mirror PORT CONTROL SHA256 NAME BYTES". */
static int read_ready(struct hx_mirror *m, const char *log, struct hx_error *err)
{
    int64_t deadline = hx_child_clock() + START_MS;
    for (;;) {
        bool alive = hx_child_alive(&m->child);
        char *text = NULL;
        size_t len;
        unsigned long long n = 0;
        if (hx_file_read(log, 1 << 20, &text, &len, err) == 0) {
            const char *line = strstr(text, "mirror ");
            if (line && strchr(line, '\n') &&
                sscanf(line, "mirror %u %u %64s %63s %llu", &m->port, &m->control, m->sha256,
                       m->model, &n) == 5) {
                m->n_bytes = n;
                free(text);
                return 0;
            }
        }
        if (!alive || !hx_child_sleep(100, deadline)) {
            int r = hx_fail(err, -EIO, "mirror.py does not serve: %.400s",
                            !text ? "" : text + (len > 400 ? len - 400 : 0));
            free(text);
            return r;
        }
        free(text);
    }
}

static int put_on_stick(struct hx_mirror *m, const struct hx_scene *s, struct hx_error *err)
{
    char folder[300], file[400];
    snprintf(folder, sizeof(folder), "%s/stick", s->work);
    snprintf(file, sizeof(file), "%s/model.lock.json", folder);
    snprintf(m->stick, sizeof(m->stick), "%s/lock.disk", s->work);
    char *text = NULL;
    size_t len;
    int r = 0;
    if (mkdir(folder, 0755) < 0 && errno != EEXIST)
        r = hx_fail_errno(err, errno, "%s", folder);
    if (!r)
        r = hx_file_read(m->lock, 64 << 20, &text, &len, err);
    if (!r)
        r = hx_file_replace(file, text, len, err);
    free(text);
    return r ? r : hx_mirror_medium(folder, 16, m->stick, err);
}

int hx_mirror_start(struct hx_mirror *m, struct hx_scene *s, struct hx_error *err)
{
    char model[300], fetch[300], log[300], self[400];
    *m = (struct hx_mirror){0};
    int r = make_model(s, model, sizeof(model), err);
    if (r)
        return r;
    snprintf(m->lock, sizeof(m->lock), "%s/model.lock.json", s->work);
    snprintf(fetch, sizeof(fetch), "%s/release/bin/hx-fetch", s->build);
    snprintf(log, sizeof(log), "%s/mirror.log", s->work);
    if (unlink(log) < 0 && errno != ENOENT)
        return hx_fail_errno(err, errno, "%s", log);
    snprintf(m->folder, sizeof(m->folder), "%s/offline", s->work);
    const char *const argv[] = {"python3", "-B", "tests/image/mirror.py", model, m->lock, fetch,
                                m->folder, NULL};
    r = hx_child_start(&m->child, argv, log, NULL, err);
    if (!r)
        r = read_ready(m, log, err);
    if (!r)
        r = put_on_stick(m, s, err);
    ssize_t n = r ? 0 : readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (!r && n <= 0)
        r = hx_fail_errno(err, errno, "/proc/self/exe");
    if (r) {
        hx_mirror_close(m);
        return r;
    }
    self[n] = '\0';
    snprintf(m->relay, sizeof(m->relay), "%s --relay %u", self, m->port);
    snprintf(m->answers, sizeof(m->answers),
             "model = %s\naccept_model_licence = yes\nmodel_source = http://%s:%d\n"
             "model_lock = /run/hx170/media/sda/model.lock.json\nmodel_lock_sha256 = %s\n",
             m->model, HX_VM_FILES_HOST, HX_VM_FILES_PORT, m->sha256);
    return 0;
}

static int control(struct hx_mirror *m, const char *path, const char *body, struct hx_buf *out,
                   struct hx_error *err)
{
    char url[100];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/%s", m->control, path);
    const char *argv[10] = {"curl", "-sS", "--fail-with-body", "--noproxy", "*", url};
    if (body) {
        argv[6] = "--data-binary";
        argv[7] = body;
    }
    return run(argv, START_MS, out, err);
}

int hx_mirror_fault(struct hx_mirror *m, const char *json, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    int r = control(m, "fault", json, &out, err);
    hx_buf_done(&out);
    return r;
}

int hx_mirror_clear(struct hx_mirror *m, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    int r = control(m, "clear", "", &out, err);
    hx_buf_done(&out);
    return r;
}

int hx_mirror_stats(struct hx_mirror *m, unsigned *n_requests, uint64_t *n_bytes,
                    struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    unsigned long long bytes = 0;
    int r = control(m, "stats", NULL, &out, err);
    const char *text = r ? NULL : hx_buf_cstr(&out);
    if (!r && (!text || sscanf(text, "%u %llu", n_requests, &bytes) != 2))
        r = hx_fail(err, -EIO, "mirror.py: figures expected, not '%.100s'", text ? text : "");
    *n_bytes = bytes;
    hx_buf_done(&out);
    return r;
}

void hx_mirror_close(struct hx_mirror *m)
{
    hx_child_kill(&m->child);
}

void hx_mirror_plug(struct hx_mirror *m, struct hx_scene *s, const char *stick)
{
    struct hx_vm_disk *d = hx_scene_add_disk(s, stick, HX_VM_USB);
    d->boot = -1;
    d->read_only = true;
    s->setup.relay = m->relay;
}

int hx_mirror_box(struct hx_mirror *m, struct hx_scene *s, const char *name, const char *more,
                  struct hx_error *err)
{
    char answers[2000];
    snprintf(answers, sizeof(answers), "%s%s", m->answers, more);
    int r = hx_scene_prepare(s, name, answers, err);
    s->ssh.share = true;
    if (!r)
        hx_mirror_plug(m, s, m->stick);
    return r;
}
