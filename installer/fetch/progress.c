#include "fetch/progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_write.h"

#define RATE_SPAN  10.0
#define ETA_SPAN   300.0
#define MAX_STATUS (4u << 20)

struct hx_progress {
    char *model, *status_path;
    bool json, terminal, line_open, ready_told, status_failed;
    double log_s, shown_at, logged_at;
    char phase[16], waiting[192];
    struct hx_meter meter;
    struct hx_buf buf;
};

/* ---- numbers --------------------------------------------------------------------------------- */

void hx_meter_add(struct hx_meter *m, double now, uint64_t bytes)
{
    const unsigned size = sizeof(m->at) / sizeof(m->at[0]);
    m->at[m->next] = now;
    m->bytes[m->next] = bytes;
    m->next = (m->next + 1) % size;
    if (m->n < size)
        m->n++;
}

double hx_meter_rate(const struct hx_meter *m, double span)
{
    const unsigned size = sizeof(m->at) / sizeof(m->at[0]);
    if (m->n < 2)
        return 0;
    unsigned last = (m->next + size - 1) % size, first = last;
    for (unsigned i = 1; i < m->n; i++) {
        unsigned k = (last + size - i) % size;
        if (m->at[last] - m->at[k] > span + 0.5)
            break;
        first = k;
    }
    double s = m->at[last] - m->at[first];
    return s > 0 ? (double)(m->bytes[last] - m->bytes[first]) / s : 0;
}

static double percent(const struct hx_progress_view *v)
{
    return v->wanted ? 100.0 * (double)v->verified / (double)v->wanted : 100.0;
}

static void span_text(double s, char *out, size_t n)
{
    unsigned long t = s < 0 ? 0 : s > 1e8 ? 100000000 : (unsigned long)(s + 0.5);
    if (t >= 86400)
        snprintf(out, n, "%lu d %lu h", t / 86400, t % 86400 / 3600);
    else if (t >= 3600)
        snprintf(out, n, "%lu h %lu min", t / 3600, t % 3600 / 60);
    else if (t >= 60)
        snprintf(out, n, "%lu min", (t + 30) / 60);
    else
        snprintf(out, n, "%lu s", t);
}

static void bytes_text(double b, char *out, size_t n)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    unsigned u = 0;
    while (b >= 999.5 && u < 4) {
        b /= 1000;
        u++;
    }
    snprintf(out, n, "%.*f %s", u == 0 || b >= 99.95 ? 0 : 1, b, units[u]);
}

void hx_progress_line(const struct hx_progress_view *v, double rate, double eta, char *out,
                      size_t n)
{
    char done[24], all[24], speed[24], left[32];
    bytes_text((double)v->verified, done, sizeof(done));
    bytes_text((double)v->wanted, all, sizeof(all));
    bytes_text(rate, speed, sizeof(speed));
    span_text(eta, left, sizeof(left));
    int k = snprintf(out, n, "%s %.1f %%, %s of %s", v->phase, percent(v), done, all);
    if (k < 0 || (size_t)k >= n)
        return;
    out += k;
    n -= (size_t)k;
    if (v->waiting[0] && v->waiting_s >= 1) {
        span_text(v->waiting_s, left, sizeof(left));
        snprintf(out, n, ", waiting %s: %s", left, v->waiting);
    } else if (v->waiting[0]) {
        snprintf(out, n, ", waiting: %s", v->waiting);
    } else if (strcmp(v->phase, "download") == 0) {
        snprintf(out, n, ", %s/s, %s left, %u connection%s", speed, eta < 0 ? "?" : left,
                 v->net.active, v->net.active == 1 ? "" : "s");
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t offset;
} counters[] = {
    {"all", offsetof(struct hx_transfer_stats, retries)},
    {"stalls", offsetof(struct hx_transfer_stats, stalls)},
    {"resets", offsetof(struct hx_transfer_stats, resets)},
    {"protocol_errors", offsetof(struct hx_transfer_stats, protocol_errors)},
    {"http_4xx", offsetof(struct hx_transfer_stats, http_4xx)},
    {"http_5xx", offsetof(struct hx_transfer_stats, http_5xx)},
    {"throttled", offsetof(struct hx_transfer_stats, throttled)},
    {"tls_errors", offsetof(struct hx_transfer_stats, tls_errors)},
};

static void put_uint(struct hx_json_writer *w, const char *key, uint64_t v)
{
    hx_jw_key(w, key);
    hx_jw_uint(w, v);
}

static void put_str(struct hx_json_writer *w, const char *key, const char *v)
{
    hx_jw_key(w, key);
    hx_jw_str(w, v);
}

static void put_view(struct hx_json_writer *w, const struct hx_progress *p,
                     const struct hx_progress_view *v, double rate, double rate_long, double eta)
{
    put_str(w, "model", p->model);
    put_str(w, "phase", v->phase);
    put_uint(w, "wanted", v->wanted);
    put_uint(w, "verified", v->verified);
    put_uint(w, "fetched", v->fetched);
    put_uint(w, "wasted", v->wasted);
    hx_jw_key(w, "percent");
    hx_jw_finite(w, (double)(int64_t)(percent(v) * 10) / 10);
    put_uint(w, "rate_10s", (uint64_t)rate);
    put_uint(w, "rate_5min", (uint64_t)rate_long);
    hx_jw_key(w, "eta_s");
    if (eta < 0)
        hx_jw_null(w);
    else
        hx_jw_uint(w, (uint64_t)eta);
    put_uint(w, "connections", v->net.active);
    put_uint(w, "connection_limit", v->net.limit);
    put_str(w, "host", v->net.host);
    put_str(w, "waiting", v->waiting);
    put_uint(w, "waiting_s", v->waiting_s > 0 ? (uint64_t)(v->waiting_s + 0.5) : 0);
    hx_jw_key(w, "independently_verified");
    hx_jw_bool(w, v->all_known);
    hx_jw_key(w, "retries");
    hx_jw_object(w);
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        uint64_t n;
        memcpy(&n, (const char *)&v->net + counters[i].offset, sizeof(n));
        put_uint(w, counters[i].name, n);
    }
    hx_jw_end_object(w);
}

/* Readers see the old or the new one. Not synced: it is worth nothing after a power cut. */
static int status_replace(const char *path, const void *data, size_t n, struct hx_error *err)
{
    char next[4096];
    if ((size_t)snprintf(next, sizeof(next), "%s.new", path) >= sizeof(next))
        return hx_fail(err, -ENAMETOOLONG, "status file: its name is too long");
    int fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return hx_fail_errno(err, errno, "status file '%.200s': cannot open", next);
    int r = hx_file_pwrite(fd, next, data, n, 0, err);
    close(fd);
    if (r == 0 && rename(next, path) < 0)
        r = hx_fail_errno(err, errno, "status file '%.200s': cannot rename", next);
    return r;
}

static void write_status(struct hx_progress *p, const struct hx_progress_view *v, double rate,
                         double rate_long, double eta)
{
    struct hx_json_writer w;
    struct hx_error err;
    if (!p->status_path)
        return;
    hx_buf_clear(&p->buf);
    hx_jw_init(&w, &p->buf, false);
    hx_jw_object(&w);
    put_uint(&w, "updated", (uint64_t)time(NULL));
    put_uint(&w, "pid", (uint64_t)getpid());
    put_view(&w, p, v, rate, rate_long, eta);
    hx_jw_key(&w, "files");
    hx_jw_array(&w);
    for (size_t i = 0; i < v->n_files; i++) {
        hx_jw_object(&w);
        put_str(&w, "name", v->files[i].name);
        put_str(&w, "state", v->files[i].state);
        put_uint(&w, "wanted", v->files[i].wanted);
        put_uint(&w, "verified", v->files[i].verified);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    hx_jw_end_object(&w);
    hx_buf_putc(&p->buf, '\n');
    int r = p->buf.failed ? hx_fail(&err, -ENOMEM, "out of memory")
                          : status_replace(p->status_path, p->buf.data, p->buf.len, &err);
    if (r < 0 && !p->status_failed)
        hx_progress_note(p, true, err.text);
    p->status_failed = r < 0;
}

static void put_event(struct hx_progress *p, struct hx_json_writer *w)
{
    hx_jw_end_object(w);
    hx_buf_putc(&p->buf, '\n');
    if (p->buf.failed)
        return;
    fwrite(p->buf.data, 1, p->buf.len, stdout);
    fflush(stdout);
}

static void begin_event(struct hx_progress *p, struct hx_json_writer *w, const char *name)
{
    hx_buf_clear(&p->buf);
    hx_jw_init(w, &p->buf, false);
    hx_jw_object(w);
    put_str(w, "event", name);
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Ends a line that is being drawn, so that another may follow. */
static void leave_line(struct hx_progress *p)
{
    if (p->line_open)
        fprintf(stderr, "\r\033[K");
    p->line_open = false;
}

static void draw(struct hx_progress *p, const struct hx_progress_view *v, const char *line)
{
    char bar[23] = "[                    ]";
    int n = (int)(percent(v) / 5);
    for (int i = 0; i < n && i < 20; i++)
        bar[i + 1] = '#';
    fprintf(stderr, "\r\033[K%s %.200s", bar, line);
    fflush(stderr);
    p->line_open = true;
}

void hx_progress_show(struct hx_progress *p, const struct hx_progress_view *v, double now)
{
    bool changed = strcmp(p->phase, v->phase) != 0 || strcmp(p->waiting, v->waiting) != 0;
    if (!changed && now < p->shown_at + 1)
        return;
    if (now >= p->shown_at + 0.9)
        hx_meter_add(&p->meter, now, v->fetched);
    bool log = strcmp(p->phase, v->phase) != 0 || now >= p->logged_at + p->log_s ||
               (changed && v->waiting[0]);
    p->shown_at = now;
    snprintf(p->phase, sizeof(p->phase), "%s", v->phase);
    snprintf(p->waiting, sizeof(p->waiting), "%s", v->waiting);
    double rate = hx_meter_rate(&p->meter, RATE_SPAN);
    double rate_long = hx_meter_rate(&p->meter, ETA_SPAN);
    double eta = v->verified >= v->wanted ? 0
                 : rate_long > 0          ? (double)(v->wanted - v->verified) / rate_long
                                          : -1;
    char line[320];
    hx_progress_line(v, rate, eta, line, sizeof(line));
    write_status(p, v, rate, rate_long, eta);
    if (p->json) {
        struct hx_json_writer w;
        begin_event(p, &w, "progress");
        put_view(&w, p, v, rate, rate_long, eta);
        put_event(p, &w);
    } else if (p->terminal) {
        draw(p, v, line);
    } else if (log) {
        fprintf(stderr, "hx-fetch: %s\n", line);
        p->logged_at = now;
    }
    bool ready = strcmp(v->phase, "check") != 0;
    bool over = strcmp(v->phase, "stopped") == 0 || strcmp(v->phase, "failed") == 0;
    sd_notifyf(0, "%sWATCHDOG=1\nSTATUS=%s",
               over                      ? "STOPPING=1\n"
               : ready && !p->ready_told ? "READY=1\n"
                                         : "",
               line);
    p->ready_told |= ready;
}

void hx_progress_note(struct hx_progress *p, bool urgent, const char *text)
{
    if (p->json) {
        struct hx_json_writer w;
        begin_event(p, &w, "note");
        hx_jw_key(&w, "urgent");
        hx_jw_bool(&w, urgent);
        put_str(&w, "text", text);
        put_event(p, &w);
        if (!urgent)
            return;
    }
    leave_line(p);
    fprintf(stderr, "hx-fetch: %s\n", text);
}

void hx_progress_file_event(struct hx_progress *p, const char *name, const char *state,
                            const char *message)
{
    if (p->json) {
        struct hx_json_writer w;
        begin_event(p, &w, "file");
        put_str(&w, "name", name);
        put_str(&w, "state", state);
        if (message)
            put_str(&w, "message", message);
        put_event(p, &w);
    }
    if (p->json && !message)
        return;
    leave_line(p);
    fprintf(stderr, "hx-fetch: %s: %s%s%s\n", name, state, message ? ": " : "",
            message ? message : "");
}

/* ---- life ------------------------------------------------------------------------------------ */

int hx_progress_open(const struct hx_progress_options *opt, struct hx_progress **out,
                     struct hx_error *err)
{
    struct hx_progress *p = calloc(1, sizeof(*p));
    if (p)
        p->model = strdup(opt->model);
    bool file = opt->status_path && opt->status_path[0];
    if (p && file)
        p->status_path = strdup(opt->status_path);
    if (!p || !p->model || (file && !p->status_path)) {
        hx_progress_close(p);
        return hx_fail(err, -ENOMEM, "out of memory");
    }
    p->json = opt->json;
    p->terminal = !opt->json && isatty(STDERR_FILENO);
    p->log_s = opt->log_s ? opt->log_s : 30;
    p->shown_at = p->logged_at = -1e9;
    p->buf = HX_BUF_INIT(MAX_STATUS);
    *out = p;
    return 0;
}

void hx_progress_close(struct hx_progress *p)
{
    if (!p)
        return;
    if (p->line_open)
        fprintf(stderr, "\n");
    hx_buf_done(&p->buf);
    free(p->model);
    free(p->status_path);
    free(p);
}
