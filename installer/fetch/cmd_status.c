/* hx-fetch status and gc: what lies on the disk of a download, and its removal. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_write.h"
#include "fetch/commands.h"
#include "fetch/journal.h"

#define MAX_JOURNAL (1u << 30)
#define MAX_STATUS  (1u << 20)

enum file_state { FILE_NONE, FILE_GROWING, FILE_READY, FILE_PUBLISHED };

static const char *const state_names[] = {"missing", "growing", "ready", "published"};

static char *path_of(const struct hx_fetch_cli *cli, const struct hx_lock *lock, const char *sub,
                     const char *out, const char *end)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s%s/%s%s", cli->conf.models, sub, lock->model, out, end) < 0)
        return NULL;
    return path;
}

static bool has_size(const char *path, uint64_t size)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size;
}

/* ---- status ---------------------------------------------------------------------------------- */

/* Bytes that the journal of a growing file vouches for; 0 if it has none or is one of another plan.
 */
static int journalled(const char *path, const struct hx_plan_file *p, uint64_t *done,
                      struct hx_error *err)
{
    struct hx_journal_image image = {0};
    struct hx_error ignored;
    char *data = NULL;
    size_t n = 0;
    *done = 0;
    int r = hx_file_read(path, MAX_JOURNAL, &data, &n, err);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r;
    if (hx_journal_parse((const uint8_t *)data, n, &image, &ignored) == 0) {
        bool same = image.n_chunks == p->n_chunks && memcmp(image.plan, p->sha256, 32) == 0;
        for (size_t i = 0; same && i < p->n_chunks; i++)
            *done += image.chunks[i].done ? p->chunks[i].out_bytes : 0;
        hx_journal_image_done(&image);
    }
    free(data);
    return 0;
}

static int look(const struct hx_fetch_cli *cli, const struct hx_lock *lock,
                const struct hx_plan_file *p, enum file_state *state, uint64_t *done,
                struct hx_error *err)
{
    const char *out = p->lock->out;
    char *final = path_of(cli, lock, "", out, ""),
         *ready = path_of(cli, lock, "incoming/", out, "");
    char *part = path_of(cli, lock, "incoming/", out, ".part");
    char *journal = path_of(cli, lock, "incoming/", out, ".journal");
    uint64_t data = p->out_bytes - p->header_bytes;
    struct stat st;
    int r = 0;
    *done = data;
    if (!final || !ready || !part || !journal)
        r = hx_fail(err, -ENOMEM, "out of memory");
    else if (has_size(final, p->out_bytes))
        *state = FILE_PUBLISHED;
    else if (has_size(ready, p->out_bytes))
        *state = FILE_READY;
    else {
        *state = stat(part, &st) == 0 ? FILE_GROWING : FILE_NONE;
        r = journalled(journal, p, done, err);
    }
    free(final);
    free(ready);
    free(part);
    free(journal);
    return r;
}

/* What the running process says about itself, if one runs. */
static void put_live(struct hx_json_writer *w, const char *path)
{
    const struct hx_json_limits limits = {MAX_STATUS, 1u << 16, 16, 0};
    struct hx_json *doc = NULL;
    struct hx_error ignored;
    char *text = NULL;
    size_t n;
    hx_jw_key(w, "live");
    if (*path && hx_file_read(path, MAX_STATUS, &text, &n, &ignored) == 0 &&
        hx_json_parse(text, n, &limits, &doc, &ignored) == 0)
        hx_jw_value(w, hx_json_root(doc));
    else
        hx_jw_null(w);
    hx_json_free(doc);
    free(text);
}

static char *lock_path(const struct hx_fetch_cli *cli)
{
    char *path = NULL;
    return asprintf(&path, "%s/incoming/.hx-fetch.lock", cli->conf.models) < 0 ? NULL : path;
}

/* Does somebody hold the downloader's lock? Taking it to find out would stop one that starts now.
 */
static bool is_running(const struct hx_fetch_cli *cli)
{
    char line[256], *path = lock_path(cli);
    struct stat st;
    bool found = false;
    FILE *f = path && stat(path, &st) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (f && !found && fgets(line, sizeof(line), f)) {
        unsigned dev_major, dev_minor;
        unsigned long inode;
        found =
            sscanf(line, "%*d: FLOCK %*s %*s %*d %x:%x:%lu", &dev_major, &dev_minor, &inode) == 3 &&
            inode == st.st_ino && dev_major == major(st.st_dev) && dev_minor == minor(st.st_dev);
    }
    if (f)
        fclose(f);
    free(path);
    return found;
}

static int report(const struct hx_fetch_cli *cli, const struct hx_lock *lock,
                  const struct hx_plan *plan, struct hx_buf *out, struct hx_error *err)
{
    struct hx_json_writer w;
    uint64_t total = 0, wanted = 0;
    size_t counts[4] = {0};
    bool busy = is_running(cli);
    int r = 0;
    hx_jw_init(&w, out, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "model");
    hx_jw_str(&w, lock->model);
    hx_jw_key(&w, "running");
    hx_jw_bool(&w, busy);
    hx_jw_key(&w, "files");
    hx_jw_array(&w);
    for (size_t i = 0; r == 0 && i < plan->n_files; i++) {
        const struct hx_plan_file *p = &plan->files[i];
        enum file_state state = FILE_NONE;
        uint64_t done = 0;
        r = look(cli, lock, p, &state, &done, err);
        total += done;
        wanted += p->wanted_bytes;
        counts[state]++;
        hx_jw_object(&w);
        hx_jw_key(&w, "out");
        hx_jw_str(&w, p->lock->out);
        hx_jw_key(&w, "state");
        hx_jw_str(&w, state_names[state]);
        hx_jw_key(&w, "done");
        hx_jw_uint(&w, done);
        hx_jw_key(&w, "wanted");
        hx_jw_uint(&w, p->wanted_bytes);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    hx_jw_key(&w, "done");
    hx_jw_uint(&w, total);
    hx_jw_key(&w, "wanted");
    hx_jw_uint(&w, wanted);
    hx_jw_key(&w, "complete");
    hx_jw_bool(&w, counts[FILE_PUBLISHED] == plan->n_files);
    put_live(&w, busy ? cli->conf.status : "");
    hx_jw_end_object(&w);
    hx_buf_putc(out, '\n');
    if (r == 0 && !cli->json) {
        hx_buf_clear(out);
        hx_buf_printf(out,
                      "%s: %.2f of %.2f GiB on record (%.1f %%), %s\n%zu files published, %zu "
                      "ready, %zu growing, %zu not begun\n",
                      lock->model, (double)total / 0x1p30, (double)wanted / 0x1p30,
                      wanted ? 100.0 * (double)total / (double)wanted : 100.0,
                      counts[FILE_PUBLISHED] == plan->n_files ? "complete"
                      : busy                                  ? "a download runs"
                                                              : "no download runs",
                      counts[FILE_PUBLISHED], counts[FILE_READY], counts[FILE_GROWING],
                      counts[FILE_NONE]);
    }
    return r;
}

int hx_fetch_cmd_status(struct hx_fetch_cli *cli)
{
    struct hx_error err = {0};
    struct hx_lock *lock = NULL;
    struct hx_plan *plan = NULL;
    struct hx_buf out = HX_BUF_INIT(64u << 20);
    if (cli->n_args > 0)
        return hx_fetch_usage("status: '%s' is not understood", cli->args[0]);
    int r = hx_fetch_load(cli, &lock, &plan, &err);
    if (r == 0)
        r = report(cli, lock, plan, &out, &err);
    if (r == 0)
        r = hx_fetch_print(&out, &err);
    hx_buf_done(&out);
    hx_plan_free(plan);
    hx_lock_free(lock);
    return hx_fetch_status(r, &err);
}

/* ---- gc -------------------------------------------------------------------------------------- */

/* Removes a regular file; a missing one is fine. */
static int drop(char *path, uint64_t *freed, struct hx_error *err)
{
    struct stat st;
    int r = 0;
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    if (lstat(path, &st) == 0) {
        if (unlink(path) < 0)
            r = hx_fail_errno(err, errno, "cannot remove %s", path);
        else
            *freed += (uint64_t)st.st_blocks * 512;
    } else if (errno != ENOENT) {
        r = hx_fail_errno(err, errno, "cannot look at %s", path);
    }
    free(path);
    return r;
}

static int drop_file(const struct hx_fetch_cli *cli, const struct hx_lock *lock,
                     const struct hx_lock_file *f, uint64_t *freed, struct hx_error *err)
{
    static const char *const ends[] = {".journal", ".part", ""};
    int r = 0;
    /* The journal first: what is left after a cut in between is not trusted. */
    for (size_t i = 0; r == 0 && i < sizeof(ends) / sizeof(ends[0]); i++)
        r = drop(path_of(cli, lock, "incoming/", f->out, ends[i]), freed, err);
    for (int n = 1; r == 0 && n <= 9; n++) {
        char end[16];
        snprintf(end, sizeof(end), ".bad-%d", n);
        r = drop(path_of(cli, lock, "incoming/", f->out, end), freed, err);
    }
    return r;
}

static void drop_folders(const struct hx_fetch_cli *cli, const struct hx_lock *lock)
{
    for (size_t i = 0; i < lock->n_files; i++) {
        char *path = path_of(cli, lock, "incoming/", lock->files[i].out, "");
        size_t keep = strlen(cli->conf.models) + strlen("/incoming/");
        /* Folders that others still use are not empty and stay. */
        for (char *slash; path && (slash = strrchr(path, '/')) && slash > path + keep;) {
            *slash = '\0';
            if (rmdir(path) < 0)
                break;
        }
        free(path);
    }
}

/* Keeps downloads out while files go. *fd -1: none ever ran here. */
static int take_lock(const struct hx_fetch_cli *cli, int *fd, struct hx_error *err)
{
    char *path = lock_path(cli);
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = *fd < 0 && errno != ENOENT ? hx_fail_errno(err, errno, "cannot open %s", path) : 0;
    if (*fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) < 0)
        r = hx_fail(err, -EBUSY, "a download runs in %s: stop it first", cli->conf.models);
    free(path);
    return r;
}

static int collect(const struct hx_fetch_cli *cli, const char *only, uint64_t *freed,
                   struct hx_error *err)
{
    struct hx_lock *lock = NULL;
    bool found = false;
    int r = hx_lock_read(cli->conf.lock, &lock, err), fd = -1;
    if (r < 0)
        return r;
    r = take_lock(cli, &fd, err);
    for (size_t i = 0; r == 0 && i < lock->n_files; i++) {
        if (only && strcmp(only, lock->files[i].out) != 0)
            continue;
        found = true;
        r = drop_file(cli, lock, &lock->files[i], freed, err);
    }
    if (r == 0 && !found)
        r = hx_fail(err, -ENOENT, "gc: '%s' is not a file of the lock file", only);
    if (r == 0)
        drop_folders(cli, lock);
    if (fd >= 0)
        close(fd);
    hx_lock_free(lock);
    return r;
}

int hx_fetch_cmd_gc(struct hx_fetch_cli *cli)
{
    struct hx_error err = {0};
    uint64_t freed = 0;
    if (cli->n_args > 1 || (cli->n_args == 1 && cli->args[0][0] == '-'))
        return hx_fetch_usage("gc takes at most the name of one file");
    if (cli->conf.lock[0] == '\0')
        return hx_fetch_usage("gc needs --lock FILE, which names the files");
    int r = collect(cli, cli->n_args ? cli->args[0] : NULL, &freed, &err);
    if (r == 0 && cli->json)
        printf("{\"freed\":%llu}\n", (unsigned long long)freed);
    else if (r == 0)
        printf("%.3f GiB freed\n", (double)freed / 0x1p30);
    return hx_fetch_status(r, &err);
}
