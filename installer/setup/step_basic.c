/* Device name, SSH keys, time. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hx/build_facts.h>

#include "setup/media.h"
#include "setup/setup.h"
#include "setup/sshkey.h"

#define FETCH_MS 45000

enum hx_ui_reply hx_setup_ask_name(struct hx_setup *s)
{
    return hx_setup_ask_text(
        s, "hostname", "The name that this machine has in your network.", "Name",
        "Letters, digits and '-', at most 63, for example hx170. Your router may show this name "
        "in its list of devices.");
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* What a key is, on one line: type, fingerprint, comment. */
static void describe(const char *line, struct hx_buf *out)
{
    struct hx_ssh_key key;
    struct hx_error err;
    if (hx_ssh_key_parse(line, strlen(line), &key, &err) < 0)
        return;
    hx_buf_printf(out, "  %s, %d bits\n  %s\n  %s\n", key.name, key.bits, key.fingerprint,
                  *key.comment ? key.comment : "(no comment)");
    hx_ssh_key_done(&key);
}

/* All keys of a text in the form of authorized_keys; comment lines are skipped. from: where it was.
 */
static int take_text(struct hx_setup *s, const char *from, char *text, struct hx_error *err)
{
    char *rest = text;
    int found = 0, line = 0, r = 0;
    for (char *at; r == 0 && (at = strsep(&rest, "\n"));) {
        line++;
        at[strcspn(at, "\r")] = '\0';
        at += strspn(at, " \t");
        if (*at == '\0' || *at == '#')
            continue;
        r = hx_box_add_key(&s->box, at, NULL, err);
        if (r < 0)
            hx_wrap(err, r, "%s:%d", from, line);
        found++;
    }
    if (r == 0 && found == 0)
        r = hx_fail(err, -EINVAL, "%s holds no key", from);
    return r;
}

static int take_file(struct hx_setup *s, const char *path, struct hx_error *err)
{
    char *text = NULL;
    size_t n;
    int r = hx_root_read(s->root, path, HX_BOX_KEYS * HX_SSH_LINE_MAX, &text, &n, err);
    if (r < 0)
        return r;
    r = strlen(text) != n ? hx_fail(err, -EINVAL, "%s is not a text file", path)
                          : take_text(s, path, text, err);
    free(text);
    return r;
}

/* Somebody's keys as code hosting sites publish them. What came is shown with fingerprints, and
 * counts only with the review's yes. */
static int take_address(struct hx_setup *s, const char *address, struct hx_error *err)
{
    const char *argv[] = {
        "curl",   "--silent", "--show-error", "--fail",     "--location", "--max-redirs",
        "3",      "--proto",  "=https,http",  "--max-time", "30",         "--max-filesize",
        "131072", "--",       address,        NULL};
    char *text = NULL;
    int rc = 0, r = hx_setup_tool(s, argv, FETCH_MS, &rc, &text, err);
    if (r == 0 && rc != 0)
        r = hx_wrap(err, -EINVAL, "%.200s: no keys from there", address);
    if (r == 0)
        r = take_text(s, address, text, err);
    free(text);
    return r;
}

static int take_key(void *ctx, const char *answer, struct hx_error *err)
{
    struct hx_setup *s = ctx;
    if (*answer == '\0') {
        return s->box.n_admin_keys ? 0
                                   : hx_fail(err, -EINVAL,
                                             "at least one key is needed: there are no passwords, "
                                             "without a key nobody gets in");
    }
    if (strcmp(answer, "clear") == 0) {
        while (s->box.n_admin_keys > 0)
            free(s->box.admin_key[--s->box.n_admin_keys]);
        return 0;
    }
    if (*answer == '/')
        return take_file(s, answer, err);
    if (strncmp(answer, "https://", 8) == 0 || strncmp(answer, "http://", 7) == 0)
        return take_address(s, answer, err);
    return hx_box_add_key(&s->box, answer, NULL, err);
}

static void keys_body(const struct hx_setup *s, struct hx_buf *body)
{
    if (s->box.n_admin_keys == 0) {
        hx_buf_puts(body,
                    "You log in with an SSH key; there are no passwords. Paste the public key of "
                    "your computer, one line, usually in the file .ssh/id_ed25519.pub of your home "
                    "folder. Or enter the path of a file with keys, for example on the stick.");
        return;
    }
    hx_buf_printf(body, "%d key%s may log in:\n", s->box.n_admin_keys,
                  s->box.n_admin_keys == 1 ? "" : "s");
    for (int i = 0; i < s->box.n_admin_keys; i++)
        describe(s->box.admin_key[i], body);
    hx_buf_puts(body, "Compare the fingerprint with: ssh-keygen -l -f FILE.pub\n"
                      "Paste another key, or press Enter to go on. 'clear' removes all of them.");
}

enum hx_ui_reply hx_setup_ask_key(struct hx_setup *s)
{
    char answer[HX_UI_ANSWER_MAX], found[HX_ROOT_PATH];
    hx_media_find(s, "authorized_keys", found);
    for (;;) {
        struct hx_buf body = HX_BUF_INIT(1 << 16);
        bool none = s->box.n_admin_keys == 0;
        keys_body(s, &body);
        struct hx_ui_question q = {
            .key = "admin_key",
            .body = hx_buf_cstr(&body),
            .prompt = none ? "Public key or path" : "Another key",
            .help = "If you have no key yet: run ssh-keygen -t ed25519 on your computer, then "
                    "open the .pub file it made and copy its line. On the serial line paste it "
                    "with your terminal program. An address such as https://example.org/you.keys "
                    "is fetched.",
            .standard = none ? found : "",
            .several = true,
            .check = take_key,
            .ctx = s};
        enum hx_ui_reply reply = hx_ui_text(s->ui, &q, answer, sizeof(answer));
        hx_buf_done(&body);
        if (reply != HX_UI_NEXT || *answer == '\0')
            return reply;
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

enum hx_ui_reply hx_setup_ask_time(struct hx_setup *s)
{
    const char *body = "The clock is set over the network. 'default' takes the system's time "
                       "servers, 'later' leaves the clock alone; or enter up to 4 servers of your "
                       "own.";
    const char *wrong = "The clock of this machine is wrong: it says a time before this system was "
                        "made. Encrypted downloads fail with a wrong clock, so choose a time "
                        "source. 'default' takes the system's time servers, 'later' leaves the "
                        "clock alone; or enter up to 4 servers of your own.";
    return hx_setup_ask_text(
        s, "ntp", time(NULL) < HX_BUILD_TIME ? wrong : body, "Time source",
        "Names or addresses of NTP servers with a space between them. Without a network choose "
        "'later'.");
}
