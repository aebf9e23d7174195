/* What may happen to a download and to what it brought. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "image/kit.h"
#include "image/mirror.h"

/* Bytes per second of one answer, so that there is time to cut the power. */
#define SLOW  "{\"rate\": 200000}"
#define CRAWL "{\"rate\": 50000}"
/* hx-fetch's own connections, its chunks here, its seconds between two syncs (fetch.conf). */
#define CONNECTIONS 8
#define CHUNK       (1 << 20)
#define SYNC_S      10

/* Waits in the machine until a condition of its shell holds. */
static int await(struct hx_scene *s, const char *what, const char *condition, struct hx_error *err)
{
    char command[1000];
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    int64_t left = (s->deadline - hx_child_clock()) / 1000;
    snprintf(command, sizeof(command), "timeout %d sh -c 'until %s; do sleep 0.3; done'",
             left > 10 ? (int)left - 5 : 5, condition);
    int r = hx_scene_admin(s, command, &out, err);
    hx_buf_done(&out);
    return r ? hx_wrap(err, r, "waiting for %s", what) : 0;
}

static int await_percent(struct hx_scene *s, unsigned percent, struct hx_error *err)
{
    char what[40], condition[300];
    snprintf(what, sizeof(what), "%u %% of the download", percent);
    snprintf(condition, sizeof(condition),
             "p=$(grep -o \"\\\"percent\\\":[0-9]*\" /run/hx170/fetch.json 2>/dev/null | cut -d: "
             "-f2); [ \"${p:-0}\" -ge %u ]",
             percent);
    return await(s, what, condition, err);
}

/* Counts what the mirror has sent, and sets another fault, NULL: none. */
static int next_fault(struct hx_mirror *m, const char *fault, uint64_t *sent, struct hx_error *err)
{
    unsigned n;
    uint64_t bytes = 0;
    int r = hx_mirror_stats(m, &n, &bytes, err);
    *sent += bytes;
    if (!r)
        r = hx_mirror_clear(m, err);
    return r || !fault ? r : hx_mirror_fault(m, fault, err);
}

static const struct hx_check whole[] = {
    {"download", "systemctl show -P Result hx-fetch", "success\n"},
    {"hashes", "hx-fetch verify --check", NULL},
    {"stamp", "grep -c '\"complete\":true' /srv/models/current/state.json", "1\n"},
    {"left over",
     "find /srv/models/incoming /srv/models/current/ -name '*.part' -o -name '*.journal'", ""},
    {"failed units", "systemctl --failed --no-legend --plain", ""},
};
#define N_WHOLE (sizeof(whole) / sizeof(whole[0]))

static int check_whole(struct hx_scene *s, struct hx_error *err)
{
    int r = hx_mirror_wait_serving(s, err);
    return r ? r : hx_scene_checks(s, whole, N_WHOLE, err);
}

static int cut_at(struct hx_scene *s, struct hx_mirror *m, unsigned percent, uint64_t *sent,
                  struct hx_error *err)
{
    int r = hx_scene_power_on(s, err);
    if (!r && percent >= 99) {
        r = await_percent(s, 90, err);
        if (!r)
            r = next_fault(m, CRAWL, sent, err);
    }
    if (!r && percent > 100)
        r = await(
            s, "publishing",
            "grep -q -e \"\\\"phase\\\":\\\"publish\\\"\" -e \"\\\"phase\\\":\\\"complete\\\"\" "
            "/run/hx170/fetch.json",
            err);
    else if (!r)
        r = await_percent(s, percent, err);
    hx_vm_close(&s->vm);
    return r ? hx_wrap(err, r, "cut at %u %%", percent) : 0;
}

/* Power cuts at these percents, in rising order; 101: while the model is published. */
static int cuts_download(struct hx_scene *s, const char *name, const unsigned *cuts,
                         unsigned n_cuts, struct hx_error *err)
{
    struct hx_mirror m;
    uint64_t sent = 0;
    int r = hx_mirror_start(&m, s, err);
    if (r)
        return r;
    r = hx_mirror_box(&m, s, name, "", err);
    for (unsigned i = 0; i < n_cuts && !r; i++) {
        r = next_fault(&m, cuts[i] > 100 ? NULL : SLOW, &sent, err);
        if (!r)
            r = cut_at(s, &m, cuts[i], &sent, err);
    }
    if (!r)
        r = next_fault(&m, NULL, &sent, err);
    if (!r)
        r = hx_scene_power_on(s, err);
    if (!r)
        r = check_whole(s, err);
    if (!r)
        r = next_fault(&m, NULL, &sent, err);
    /* A cut costs what was not synced, and the chunks that were under way. */
    const uint64_t loss = CONNECTIONS * (200000 * SYNC_S + CHUNK);
    if (!r)
        hx_scene_measure("fetched again after the cuts",
                         sent > m.n_bytes ? (double)(sent - m.n_bytes) / 1e6 : 0, "MB");
    if (!r && sent > m.n_bytes + n_cuts * loss)
        r = hx_fail(err, -EBADMSG, "%llu bytes were sent for %llu", (unsigned long long)sent,
                    (unsigned long long)m.n_bytes);
    hx_mirror_close(&m);
    return r;
}

/* D2: power cuts at 10, 50, 99 % and while the model is published. */
int hx_scene_cuts_download(struct hx_scene *s, struct hx_error *err)
{
    static const unsigned cuts[] = {10, 50, 99, 101};
    return cuts_download(s, "dlcuts", cuts, sizeof(cuts) / sizeof(cuts[0]), err);
}

static int rising(const void *a, const void *b)
{
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}

/* D2: power cuts at twenty seeded moments. */
int hx_scene_cuts_seeded(struct hx_scene *s, struct hx_error *err)
{
    unsigned cuts[HX_KIT_CUTS];
    uint64_t random = HX_KIT_SEED;
    for (int i = 0; i < HX_KIT_CUTS; i++)
        cuts[i] = (unsigned)(hx_kit_random(&random) % 98) + 1;
    qsort(cuts, HX_KIT_CUTS, sizeof(cuts[0]), rising);
    return cuts_download(s, "dl-seeds", cuts, HX_KIT_CUTS, err);
}

/* One after the other, each met by the next requests. */
static int meet_faults(struct hx_scene *s, struct hx_mirror *m, struct hx_error *err)
{
    static const char *const faults[] = {
        "{\"cut\": 300000, \"times\": 2}",
        "{\"status\": 500, \"times\": 3}",
        "{\"status\": 503, \"times\": 1, \"headers\": {\"Retry-After\": \"2\"}}",
        "{\"reset\": 5000, \"times\": 1}",
        "{\"stall\": 70000, \"seconds\": 90, \"times\": 1}",
        "{\"fewer\": 10, \"times\": 1}",
        "{\"gzip\": true, \"times\": 1}",
        "{\"path\": \"of-00002\", \"corrupt\": 1000, \"times\": 1}",
    };
    static const struct hx_check rows[] = {
        {"retries", "grep -o '\"all\":[0-9]*' /run/hx170/fetch.json | grep -qv ':0$'", NULL},
        {"the bad piece", "journalctl -q -o cat -u hx-fetch | grep -c 'SHA-256 is'", "1\n"},
    };
    unsigned n = 0;
    uint64_t sent = 0;
    int r = 0;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]) && !r; i++)
        r = hx_mirror_fault(m, faults[i], err);
    if (!r)
        r = hx_scene_power_on(s, err);
    if (!r)
        r = check_whole(s, err);
    if (!r)
        r = hx_mirror_stats(m, &n, &sent, err);
    if (!r)
        hx_scene_measure("sent more than a clean download",
                         ((double)sent - (double)m->n_bytes) / 1e6, "MB");
    return r ? r : hx_scene_checks(s, rows, 2, err);
}

/* The download's unit anew, as hx-setup does it; it may end badly again. */
static int start_download(struct hx_scene *s, struct hx_error *err)
{
    static const struct hx_check row = {
        "new start", "hx root systemctl restart hx-fetch 2>/dev/null; true", NULL};
    return hx_scene_checks(s, &row, 1, err);
}

/* Answers that mean no: `hx` says so, the journal has the reason, nothing is stamped, and the
 * next start goes on. */
static int meet_refusals(struct hx_scene *s, struct hx_mirror *m, struct hx_error *err)
{
    static const struct {
        const char *fault, *head, *reason;
    } rows[] = {
        {"{\"status\": 403}", "The download stopped with an error", "403 forbidden"},
        {"{\"status\": 302, \"headers\": {\"Location\": \"/login\"}}", "The download waits",
         "more than 5 redirects"},
        {"{\"status\": 416, \"headers\": {\"Content-Range\": \"bytes */1\"}}",
         "The download stopped with an error", "upstream changed"},
        {"{\"path\": \"of-00002\", \"corrupt\": 1000}", "The download stopped with an error",
         "SHA-256 is"},
    };
    static const struct hx_check meanwhile[] = {
        {"nothing stamped", "! test -e /srv/models/current", NULL},
        {"SSH", "systemctl is-active ssh", "active\n"},
    };
    uint64_t sent = 0;
    int r = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !r; i++) {
        char condition[300];
        r = next_fault(m, rows[i].fault, &sent, err);
        if (!r)
            r = start_download(s, err);
        snprintf(condition, sizeof(condition),
                 "hx | grep -q \"^%s\" && journalctl -q -b -u hx-fetch | grep -q \"%s\"",
                 rows[i].head, rows[i].reason);
        if (!r)
            r = await(s, rows[i].reason, condition, err);
        if (!r)
            r = hx_scene_checks(s, meanwhile, 2, err);
        if (r)
            r = hx_wrap(err, r, "%s", rows[i].fault);
    }
    if (!r)
        r = next_fault(m, NULL, &sent, err);
    if (!r)
        r = start_download(s, err);
    if (!r)
        r = check_whole(s, err);
    return r;
}

/* The file system of the models fills up under the download. Small parts have their room by then,
 * so that it is the finished model that finds none. */
static int fill_disk(struct hx_scene *s, struct hx_mirror *m, struct hx_error *err)
{
    static const struct hx_check fill[] = {
        /* fallocate keeps what it got before it failed; zeros take the rest. */
        {"filler",
         "hx root sh -c 'fallocate -l $(df --output=avail -B1 /srv/models | tail -1) "
         "/srv/models/filler; cat /dev/zero >/srv/models/filler2; df --output=avail -B1 "
         "/srv/models | tail -1 | tr -d \" \"' 2>/dev/null",
         "0\n"},
    };
    static const struct hx_check meanwhile[] = {
        {"failed units", "systemctl --failed --no-legend --plain", ""},
        {"nothing stamped", "! test -e /srv/models/current", NULL},
        {"room again", "hx root rm /srv/models/filler /srv/models/filler2", NULL},
    };
    int r = hx_mirror_fault(m, SLOW, err);
    if (!r)
        r = hx_scene_power_on(s, err);
    if (!r)
        r = await_percent(s, 10, err);
    if (!r)
        r = hx_scene_checks(s, fill, 1, err);
    if (!r)
        r = await(s, "the reason in hx status", "hx | grep -q \"waits: .*full\"", err);
    if (!r)
        r = hx_scene_checks(s, meanwhile, 3, err);
    /* By itself: nobody starts anything. */
    return r ? r : check_whole(s, err);
}

/* D4. */
int hx_scene_full(struct hx_scene *s, struct hx_error *err)
{
    struct hx_mirror m;
    int r = hx_mirror_start(&m, s, err);
    if (r)
        return r;
    r = hx_mirror_box(&m, s, "full", "", err);
    if (!r)
        r = fill_disk(s, &m, err);
    hx_mirror_close(&m);
    return r;
}

/* D3: a server that says no. */
int hx_scene_refused(struct hx_scene *s, struct hx_error *err)
{
    struct hx_mirror m;
    int r = hx_mirror_start(&m, s, err);
    if (r)
        return r;
    r = hx_mirror_box(&m, s, "refused", "", err);
    if (!r)
        r = hx_mirror_fault(&m, SLOW, err);
    if (!r)
        r = hx_scene_power_on(s, err);
    if (!r)
        r = await_percent(s, 5, err);
    if (!r)
        r = meet_refusals(s, &m, err);
    hx_mirror_close(&m);
    return r;
}

/* D5: everything from a disk, no server within reach. */
int hx_scene_offline(struct hx_scene *s, struct hx_error *err)
{
    char disk[400], answers[1000];
    struct hx_mirror m;
    int r = hx_mirror_start(&m, s, err);
    if (r)
        return r;
    hx_mirror_close(&m);
    snprintf(disk, sizeof(disk), "%s/offline.stick", s->work);
    r = hx_mirror_medium(m.folder, 200, disk, err);
    snprintf(answers, sizeof(answers),
             "model = %s\naccept_model_licence = yes\nmodel_source = /run/hx170/media/sda\n"
             "model_lock = /run/hx170/media/sda/model.lock.json\nmodel_lock_sha256 = %s\n",
             m.model, m.sha256);
    if (!r)
        r = hx_scene_prepare(s, "offline", answers, err);
    s->ssh.share = true;
    if (!r)
        hx_mirror_plug(&m, s, disk);
    s->setup.relay = NULL;
    if (!r)
        r = hx_scene_power_on(s, err);
    return r ? r : check_whole(s, err);
}

/* A bit flipped in a file of the finished model. */
static int flip_a_bit(struct hx_scene *s, struct hx_mirror *m, struct hx_error *err)
{
    static const struct hx_check damage[] = {
        {"bit rot",
         "hx root sh -c 'f=$(ls -S /srv/models/current/*/*.safetensors | head -1); printf rot | "
         "dd of=$f bs=1 seek=3000000 conv=notrunc status=none; sync; echo 3 > "
         "/proc/sys/vm/drop_caches'",
         NULL},
        {"on demand", "hx-fetch verify --check; test $? -eq 65", NULL},
        {"on schedule", "hx root systemctl start hx-verify; test $? -ne 0", NULL},
        {"its verdict", "systemctl is-failed hx-verify", "failed\n"},
        {"seen", "hx root systemctl reset-failed hx-verify", NULL},
    };
    unsigned n = 0;
    uint64_t sent = 0;
    int r = next_fault(m, NULL, &sent, err);
    if (!r)
        r = hx_scene_checks(s, damage, sizeof(damage) / sizeof(damage[0]), err);
    /* The timer's unit hands over to the download by itself. */
    if (!r)
        r = await(s, "the repair",
                  "grep -q \"complete.:true\" /srv/models/current/state.json && test "
                  "\"$(systemctl is-active hx-fetch)\" = inactive",
                  err);
    if (!r)
        r = check_whole(s, err);
    if (!r)
        r = hx_mirror_stats(m, &n, &sent, err);
    if (!r)
        hx_scene_measure("fetched for one flipped bit", (double)sent / 1e6, "MB");
    if (!r && (sent == 0 || sent > 2 * CHUNK))
        r = hx_fail(err, -EBADMSG, "%llu bytes were fetched for one flipped bit",
                    (unsigned long long)sent);
    return r;
}

/* E1: a hundred requests. */
int hx_scene_requests(struct hx_scene *s, struct hx_error *err)
{
    struct hx_tunnel t = {0};
    int r = hx_scene_prepare_served(s, "requests", err);
    if (!r)
        r = hx_scene_power_on(s, err);
    if (!r)
        r = hx_mirror_tunnel(s, &t, err);
    if (!r)
        r = hx_mirror_get(s, &t, "/health", "ok", err);
    if (!r)
        r = hx_mirror_ask(s, &t, 100, err);
    hx_child_kill(&t.child);
    return r;
}

/* The engine dies whenever it has come up, then is left alone. */
static int crash_engine(struct hx_scene *s, struct hx_error *err)
{
    static const struct hx_check rows[] = {
        {"crash loop",
         "hx root sh -c 'systemctl reset-failed hx-engine; for i in 1 2 3; do until systemctl kill "
         "--kill-whom=main -s SEGV hx-engine 2>/dev/null; do sleep 0.2; done; until systemctl show "
         "-P SubState hx-engine | grep -q auto-restart; do sleep 0.2; done; [ $i = 3 ] || until [ "
         "$(systemctl show -P SubState hx-engine) != auto-restart ]; do sleep 0.2; done; done'",
         NULL},
        {"what hx says", "hx | head -1", "The engine stopped with an error.\n"},
        {"delay grows",
         "x=$(systemctl show -P RestartUSecNext hx-engine); echo $x; case $x in *min*) exit 0;; "
         "*ms) exit 1;; esac; x=${x%s}; test ${x%.*} -ge 15",
         NULL},
        {"SSH", "systemctl is-active ssh", "active\n"},
    };
    struct hx_tunnel t = {0};
    int r = hx_scene_checks(s, rows, sizeof(rows) / sizeof(rows[0]), err);
    if (!r)
        r = hx_mirror_tunnel(s, &t, err);
    if (!r)
        r = hx_mirror_get(s, &t, "/health", "ok", err);
    hx_child_kill(&t.child);
    return r;
}

/* D3, D6, E2: a download in spite of faults; then a bit flips; then the engine crashes. */
int hx_scene_faults(struct hx_scene *s, struct hx_error *err)
{
    struct hx_mirror m;
    int r = hx_mirror_start(&m, s, err);
    if (r)
        return r;
    r = hx_mirror_box(&m, s, "faults", "", err);
    if (!r)
        r = meet_faults(s, &m, err);
    if (!r)
        r = flip_a_bit(s, &m, err);
    if (!r)
        r = crash_engine(s, err);
    hx_mirror_close(&m);
    return r;
}

/* F1: no cable at the first start; it is plugged in later. */
int hx_scene_no_network(struct hx_scene *s, struct hx_error *err)
{
    static const struct hx_check rows[] = {
        {"wizard's end", "systemctl is-active hx-setup@tty1 hx-setup@ttyS0; true",
         "inactive\ninactive\n"},
    };
    struct hx_mirror m;
    int r = hx_mirror_start(&m, s, err);
    if (r)
        return r;
    r = hx_mirror_box(&m, s, "nonet", "", err);
    s->setup.cable_out = true;
    if (!r)
        r = hx_vm_start(&s->vm, &s->setup, err);
    if (!r)
        r = hx_vm_ssh_port(&s->vm, &s->ssh.port, err);
    /* The status on the serial port, behind the wizard's end. */
    if (!r)
        r = hx_vm_wait(&s->vm, "Waiting for the network", s->deadline, err);
    if (!r)
        r = hx_vm_monitor(&s->vm, "set_link card0 on", NULL, err);
    s->ssh.user = "admin";
    if (!r)
        r = hx_ssh_wait(&s->ssh, s->deadline, err);
    if (!r)
        r = hx_scene_checks(s, rows, 1, err);
    if (!r)
        r = check_whole(s, err);
    hx_mirror_close(&m);
    return r;
}
