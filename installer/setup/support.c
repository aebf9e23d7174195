#include "setup/support.h"

#include <stdlib.h>
#include <string.h>

#include "setup/redact.h"
#include "setup/setup.h"
#include "setup/status.h"

#define FILE_MAX (8u << 20)
#define ALL_MAX  (64u << 20)
#define TOOL_MS  60000

static const struct {
    const char *name, *path;
} files[] = {
    {"box.conf", HX_SETUP_BOX},
    {"draft.conf", HX_SETUP_DRAFT},
    {"setup.log", HX_SETUP_LOG},
    {"p2p.json", HX_SETUP_CHECK},
    {"cards.json", "/var/lib/hx170/check/cards.json"},
    {"fetch.json", "/run/hx170/fetch.json"},
    {"update.json", "/var/lib/hx170/update.json"},
    {"cmdline", "/proc/cmdline"},
    {"meminfo", "/proc/meminfo"},
    {"os-release", "/etc/os-release"},
    {"last-good.txt", "/var/lib/hx170/check/last-good"},
    {"given-up.txt", "/var/lib/hx170/check/given-up"},
};

static const struct {
    const char *name;
    const char *argv[8];
} tools[] = {
    {"journal.txt", {"journalctl", "-b", "--no-pager", "-o", "short-monotonic", "-n", "20000"}},
    /* Of a start that went back to the version before, or ended in a crash. */
    {"boots.txt", {"journalctl", "--list-boots", "--no-pager"}},
    {"journal-before.txt",
     {"journalctl", "-b", "-1", "--no-pager", "-o", "short-monotonic", "-n5000"}},
    {"dmesg.txt", {"journalctl", "-k", "-b", "--no-pager", "-n", "10000"}},
    {"units.txt", {"systemctl", "--no-pager", "--all", "list-units", "hx-*"}},
    {"failed.txt", {"systemctl", "--no-pager", "--failed"}},
    {"cards.txt", {"hx-cards", "list", "--redact"}},
    {"driver.txt", {"hx-cards", "bundle", "status"}},
    {"addresses.txt", {"ip", "addr"}},
    {"routes.txt", {"ip", "route"}},
    {"space.txt", {"df", "-h"}},
    {"update.txt", {"hx-update", "status"}},
};

/* ---- tar ------------------------------------------------------------------------------------- */

struct archive {
    FILE *out;
    long long now;
    struct hx_redact *redact;
    struct hx_buf list;
    size_t written;
};

static void octal(char *to, size_t size, unsigned long long v)
{
    snprintf(to, size, "%0*llo", (int)size - 1, v);
}

/* One file in ustar form. */
static int put_entry(struct archive *a, const char *name, const void *data, size_t n)
{
    char head[512] = {0}, zeros[512] = {0};
    unsigned sum = 0;
    snprintf(head, 100, "hx170-support/%s", name);
    octal(head + 100, 8, 0644);
    octal(head + 108, 8, 0);
    octal(head + 116, 8, 0);
    octal(head + 124, 12, n);
    octal(head + 136, 12, a->now < 0 ? 0 : (unsigned long long)a->now);
    memset(head + 148, ' ', 8);
    head[156] = '0';
    snprintf(head + 257, 6, "ustar");
    head[263] = head[264] = '0';
    for (size_t i = 0; i < sizeof(head); i++)
        sum += (unsigned char)head[i];
    octal(head + 148, 7, sum);
    size_t pad = (512 - n % 512) % 512;
    bool ok = fwrite(head, 1, 512, a->out) == 512 && fwrite(data, 1, n, a->out) == n &&
              fwrite(zeros, 1, pad, a->out) == pad;
    a->written += 512 + n + pad;
    return ok ? 0 : -EIO;
}

/* What is too long loses its beginning: the newest lines are at the end. */
static int put_redacted(struct archive *a, const char *name, const char *text, size_t n)
{
    struct hx_buf clean = HX_BUF_INIT(2 * FILE_MAX);
    int r = hx_redact_text(a->redact, text, n, &clean);
    if (r == 0 && a->written + clean.len > ALL_MAX)
        hx_buf_printf(&a->list, "%-16s left out, the archive is full\n", name);
    else if (r == 0) {
        r = put_entry(a, name, clean.data, clean.len);
        hx_buf_printf(&a->list, "%-16s %zu bytes\n", name, clean.len);
    }
    hx_buf_done(&clean);
    return r;
}

/* ---- content --------------------------------------------------------------------------------- */

static int put_files(struct archive *a, const struct hx_root *root)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof(files) / sizeof(files[0]); i++) {
        struct hx_error err;
        char *text = NULL;
        size_t n;
        int got = hx_root_read(root, files[i].path, FILE_MAX, &text, &n, &err);
        if (got == 0)
            r = put_redacted(a, files[i].name, text, n);
        else
            hx_buf_printf(&a->list, "%-16s not there: %s\n", files[i].name, strerror(-got));
        free(text);
    }
    return r;
}

static int put_tools(struct archive *a, const struct hx_commands *commands)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof(tools) / sizeof(tools[0]); i++) {
        struct hx_command_result result = {0};
        struct hx_error err;
        int got = hx_command_run(commands, tools[i].argv, TOOL_MS, &result, &err);
        if (got == 0 && !result.timed_out && result.rc != HX_COMMAND_MISSING && result.out)
            r = put_redacted(a, tools[i].name, result.out, result.out_len);
        else
            hx_buf_printf(&a->list, "%-16s not there: %s\n", tools[i].name,
                          result.timed_out ? "no answer" : "cannot be run");
        hx_command_result_done(&result);
    }
    return r;
}

static int put_status(struct archive *a, const struct hx_root *root,
                      const struct hx_commands *commands, struct hx_error *err)
{
    struct hx_status s;
    struct hx_buf text = HX_BUF_INIT(1 << 20);
    int r = hx_status_read(root, commands, &s, err);
    if (r < 0)
        return r;
    r = hx_status_text(&s, &text);
    if (r == 0)
        r = put_redacted(a, "status.txt", (char *)text.data, text.len);
    hx_buf_clear(&text);
    if (r == 0)
        r = hx_status_json(&s, &text);
    if (r == 0)
        r = put_redacted(a, "status.json", (char *)text.data, text.len);
    hx_buf_done(&text);
    hx_status_done(&s);
    return r;
}

/* The words that must not leave: host name, hub token, key of the API. */
static int take_words(struct hx_redact *redact, const struct hx_root *root, struct hx_error *err)
{
    static const struct {
        const char *path, *what;
    } rows[] = {
        {"/etc/hostname", "host"},
        {"/run/hx170/hostname", "host"},
        {HX_SETUP_TOKEN, "secret"},
        {"/run/credstore/hub_token", "secret"},
        {HX_SETUP_CONFIG "/api_key", "secret"},
        {"/run/credstore/api_key", "secret"},
    };
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof(rows) / sizeof(rows[0]); i++) {
        char word[1024];
        if (hx_root_text(root, rows[i].path, word, sizeof(word)) == 0)
            r = hx_redact_word(redact, word, rows[i].what, err);
        explicit_bzero(word, sizeof(word));
    }
    return r;
}

int hx_support_write(const struct hx_root *root, const struct hx_commands *commands, long long now,
                     FILE *out, struct hx_error *err)
{
    static const char end[1024] = {0};
    struct archive a = {.out = out, .now = now, .list = HX_BUF_INIT(1 << 16)};
    int r = hx_redact_new(&a.redact, err);
    if (r < 0)
        return r;
    hx_buf_puts(&a.list, "Support archive of an hx170 box. Addresses, ids, serial numbers, names, "
                         "keys and tokens are replaced.\n\n");
    r = take_words(a.redact, root, err);
    if (r < 0)
        goto out;
    r = put_status(&a, root, commands, err);
    if (r == 0)
        r = put_files(&a, root);
    if (r == 0)
        r = put_tools(&a, commands);
    if (r == 0)
        r = put_entry(&a, "content.txt", a.list.data, a.list.len);
    if (r == 0 && (fwrite(end, 1, sizeof(end), out) != sizeof(end) || fflush(out) != 0))
        r = -EIO;
    if (r < 0)
        hx_fail(err, r, "the archive cannot be written: %s", strerror(-r));
out:
    hx_buf_done(&a.list);
    hx_redact_free(a.redact);
    return r;
}
