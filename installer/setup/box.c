#include "setup/box.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/file.h"
#include "base/utf8.h"
#include "setup/sshkey.h"
#include "setup/valid.h"

enum { ANY, ONLY_ANSWERS, ONLY_STATE };

struct row {
    struct hx_conf_option o;
    hx_valid_fn valid; /* NULL: the type says it all */
    int where;
};

#define TEXT(key, field, standard, valid, where, help)                                             \
    {                                                                                              \
        {"",                                                                                       \
         key,                                                                                      \
         HX_CONF_STRING,                                                                           \
         offsetof(struct hx_box, field),                                                           \
         0,                                                                                        \
         sizeof(((struct hx_box *)0)->field) - 1,                                                  \
         standard,                                                                                 \
         NULL,                                                                                     \
         help},                                                                                    \
            valid, where                                                                           \
    }
#define OTHER(key, field, type, min, max, standard, choices, where, help)                          \
    {                                                                                              \
        {"", key, type, offsetof(struct hx_box, field), min, max, standard, choices, help}, NULL,  \
            where                                                                                  \
    }

static const struct row rows[] = {
    OTHER("schema", schema, HX_CONF_INT, 1, 1e6, "1", NULL, ANY,
          "version of this form; has to be the first line"),
    OTHER("mode", mode, HX_CONF_CHOICE, 0, 0, "install", "install reinstall update try",
          ONLY_ANSWERS, "installer: what to do"),
    TEXT("target_serial", target_serial, "", hx_valid_serial, ONLY_ANSWERS,
         "installer: serial number of the disk"),
    TEXT("confirm_erase_serial", confirm_erase_serial, "", hx_valid_serial, ONLY_ANSWERS,
         "installer: the same again; the disk is erased only if both are alike"),
    OTHER("keep_models", keep_models, HX_CONF_BOOL, 0, 0, "no", NULL, ONLY_ANSWERS,
          "installer: keep the models of an appliance that is on the disk"),
    TEXT("hostname", hostname, "hx170", hx_valid_hostname, ANY, "name of this machine"),
    OTHER("network", network, HX_CONF_CHOICE, 0, 0, "dhcp", "dhcp static none", ANY,
          "how the address is found"),
    TEXT("address", address, "", hx_valid_address, ANY, "static: address and prefix"),
    TEXT("gateway", gateway, "", hx_valid_gateway, ANY, "static: address of the router"),
    TEXT("dns", dns, "", hx_valid_dns, ANY, "name servers; empty: what DHCP says"),
    OTHER("vlan", vlan, HX_CONF_INT, 0, 4094, "0", NULL, ANY, "VLAN number; 0: none"),
    TEXT("proxy", proxy, "", hx_valid_proxy, ANY, "HTTP proxy for the download"),
    TEXT("ntp", ntp, "default", hx_valid_ntp, ANY,
         "time servers; default: those of the system; later: none"),
    TEXT("driver_source", driver_source, "none", hx_valid_driver, ANY,
         "driver bundle: none, or path of a folder or archive"),
    TEXT("driver_sha256", driver_sha256, "", hx_valid_sha256, ANY,
         "what the archive has to hash to; empty: not checked"),
    TEXT("accept_driver_licence", accept_driver_licence, "", hx_valid_licences, ANY,
         "licences of the bundle that the owner accepts"),
    TEXT("model", model, "none", hx_valid_model, ANY, "model to download; none: later"),
    TEXT("model_lock", model_lock, "", hx_valid_path, ANY,
         "lock file of the owner's own for the model; empty: one of the system"),
    TEXT("model_lock_sha256", model_lock_sha256, "", hx_valid_sha256, ANY,
         "what that lock file has to hash to: the owner's consent to it"),
    TEXT("models_disk", models_disk, "", hx_valid_serial, ANY,
         "drive for the models: system, or a serial number; empty: as it is"),
    TEXT("erase_models_disk", erase_models_disk, "", hx_valid_serial, ANY,
         "the same number again: that drive is erased; empty: the models on it are kept"),
    OTHER("accept_model_licence", accept_model_licence, HX_CONF_BOOL, 0, 0, "no", NULL, ANY,
          "the owner has read and accepts the licences of the model's files"),
    TEXT("model_source", model_source, "default", hx_valid_source, ANY,
         "default, address of a mirror, or folder of an offline disk"),
    TEXT("token_file", token_file, "", hx_valid_path, ANY,
         "file with the access token; it is taken over and the file is wiped"),
    OTHER("bandwidth", bandwidth, HX_CONF_SIZE, 0, 1e12, "0", NULL, ANY,
          "bytes per second of the download; 0: no limit"),
    TEXT("schedule", schedule, "", hx_valid_schedule, ANY,
         "time of day of the download, such as 22:00-06:00; empty: always"),
    OTHER("power_cap_watts", power_cap_watts, HX_CONF_INT, 100, 300, "180", NULL, ANY,
          "power limit of each card"),
    OTHER("layout", layout, HX_CONF_CHOICE, 0, 0, "auto", "auto tp4 pp4", ANY,
          "how the model lies on the cards; auto: as the hardware check says"),
    OTHER("context", context, HX_CONF_INT, 1024, 1048576, "262144", NULL, ANY,
          "tokens of one conversation"),
    TEXT("expert_cmdline", expert_cmdline, "", hx_valid_cmdline, ANY,
         "further words for the kernel"),
    TEXT("done", done, "", NULL, ONLY_STATE, "steps of the wizard that are answered"),
};
#define N_ROWS ((int)(sizeof(rows) / sizeof(rows[0])))
#define KEY    "admin_key" /* the one that may repeat; its bit is N_ROWS */

_Static_assert(sizeof(rows) / sizeof(rows[0]) < 63, "one bit for each key");

static const struct row *find(const char *key)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].o.key, key) == 0)
            return &rows[i];
    }
    return NULL;
}

static uint64_t bit_of(const char *key)
{
    const struct row *row = find(key);
    return row ? 1ull << (row - rows) : strcmp(key, KEY) == 0 ? 1ull << N_ROWS : 0;
}

void hx_box_init(struct hx_box *box)
{
    *box = (struct hx_box){0};
    for (int i = 0; i < N_ROWS; i++)
        hx_conf_defaults(&rows[i].o, 1, box);
}

void hx_box_done(struct hx_box *box)
{
    if (!box)
        return;
    for (int i = 0; i < box->n_admin_keys; i++)
        free(box->admin_key[i]);
    hx_box_init(box);
}

int hx_box_copy(const struct hx_box *from, struct hx_box *to, struct hx_error *err)
{
    struct hx_box b = *from;
    b.n_admin_keys = 0;
    for (int i = 0; i < from->n_admin_keys; i++) {
        b.admin_key[i] = strdup(from->admin_key[i]);
        if (!b.admin_key[i]) {
            hx_box_done(&b);
            return hx_fail(err, -ENOMEM, "out of memory");
        }
        b.n_admin_keys++;
    }
    *to = b;
    return 0;
}

int hx_box_add_key(struct hx_box *box, const char *line, bool *merged, struct hx_error *err)
{
    struct hx_ssh_key key;
    int r = hx_ssh_key_parse(line, strlen(line), &key, err);
    if (r < 0)
        return r;
    size_t n = strlen(key.type) + strlen(key.base64) + strlen(key.comment) + 3;
    char *text = malloc(n);
    if (!text)
        r = hx_fail(err, -ENOMEM, "out of memory");
    else
        snprintf(text, n, "%s %s%s%s", key.type, key.base64, *key.comment ? " " : "", key.comment);
    size_t same = strlen(key.type) + 1 + strlen(key.base64);
    for (int i = 0; r == 0 && i < box->n_admin_keys; i++) {
        const char *old = box->admin_key[i];
        if (strncmp(old, text, same) == 0 && (old[same] == '\0' || old[same] == ' ')) {
            if (merged)
                *merged = true;
            free(text);
            hx_ssh_key_done(&key);
            return 0;
        }
    }
    if (r == 0 && box->n_admin_keys == HX_BOX_KEYS)
        r = hx_fail(err, -EINVAL, "more than %d keys", HX_BOX_KEYS);
    hx_ssh_key_done(&key);
    if (r < 0) {
        free(text);
        return r;
    }
    box->admin_key[box->n_admin_keys++] = text;
    box->given |= bit_of(KEY);
    if (merged)
        *merged = false;
    return 0;
}

int hx_box_set(struct hx_box *box, const char *key, const char *value, struct hx_error *err)
{
    struct hx_error why;
    if (strcmp(key, KEY) == 0)
        return hx_box_add_key(box, value, NULL, err);
    const struct row *row = find(key);
    if (!row)
        return hx_fail(err, -EINVAL, "no such key");
    int r = row->valid ? row->valid(value, err) : 0;
    if (r < 0)
        return r;
    if (hx_conf_set(&row->o, 1, box, "", key, value, "", &why) < 0) {
        const char *found = strstr(why.text, "found ");
        return hx_fail(err, -EINVAL, "%s", found ? found : why.text);
    }
    box->given |= bit_of(key);
    return 0;
}

int hx_box_get(const struct hx_box *box, const char *key, char *out, size_t size)
{
    char *text = NULL;
    size_t n = 0;
    if (strcmp(key, KEY) == 0) {
        snprintf(out, size, "%s", box->n_admin_keys ? box->admin_key[0] : "");
        return 0;
    }
    const struct row *row = find(key);
    if (!row)
        return -ENOENT;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return -ENOMEM;
    hx_conf_dump(&row->o, 1, box, false, f);
    if (fclose(f) != 0) {
        free(text);
        return -ENOMEM;
    }
    /* The dump is "[]", line feed, "key = value", line feed. */
    const char *at = strstr(text, " = ");
    at = at ? at + 3 : "";
    snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
    free(text);
    return 0;
}

bool hx_box_given(const struct hx_box *box, const char *key)
{
    return box->given & bit_of(key);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct reading {
    const char *label;
    enum hx_box_form form;
    int line;
    int first_at[N_ROWS + 1]; /* line of each key */
    struct hx_box box;
};

static int where(const struct reading *r, struct hx_error *err, const char *what)
{
    return hx_fail(err, -EINVAL, "%s:%d: %s", r->label, r->line, what);
}

static int keep_later(struct reading *r, const char *key, const char *value, struct hx_error *err)
{
    char *later = r->box.later;
    size_t used = strlen(later), left = sizeof(r->box.later) - used;
    int n = snprintf(later + used, left, "%s = %s\n", key, value);
    if (n >= 0 && (size_t)n < left)
        return 0;
    return hx_fail(err, -EINVAL, "%s:%d: too many keys that this system does not know", r->label,
                   r->line);
}

static int take_pair(struct reading *r, const char *key, const char *value, struct hx_error *err)
{
    const struct row *row = find(key);
    bool is_key = strcmp(key, KEY) == 0;
    if (!row && !is_key && r->form == HX_BOX_STATE && r->first_at[0])
        return keep_later(r, key, value, err);
    if (!row && !is_key)
        return hx_fail(err, -EINVAL, "%s:%d: unknown key '%.60s'", r->label, r->line, key);
    if (row && row->where == ONLY_STATE && r->form == HX_BOX_ANSWERS)
        return hx_fail(err, -EINVAL, "%s:%d: unknown key '%.60s'", r->label, r->line, key);
    if (row && row->where == ONLY_ANSWERS && r->form == HX_BOX_STATE)
        return hx_fail(err, -EINVAL, "%s:%d: '%.60s' belongs into an answers file only", r->label,
                       r->line, key);
    int *first = &r->first_at[row ? (int)(row - rows) : N_ROWS];
    if (row && *first)
        return hx_fail(err, -EINVAL, "%s:%d: '%s' is there twice, first in line %d", r->label,
                       r->line, key, *first);
    *first = r->line;
    bool has_schema = r->first_at[0] != 0;
    if (!has_schema)
        return where(r, err, "the first line has to be: schema = 1");
    int result = hx_box_set(&r->box, key, value, err);
    if (result < 0)
        return hx_wrap(err, result, "%s:%d: %s", r->label, r->line, key);
    if (r->box.schema != HX_BOX_SCHEMA)
        return hx_fail(err, -EINVAL,
                       "%s:%d: schema %lld is newer than this system, which knows %d; update it "
                       "first",
                       r->label, r->line, (long long)r->box.schema, HX_BOX_SCHEMA);
    return 0;
}

static int take_line(struct reading *r, const char *s, size_t n, struct hx_error *err)
{
    char text[HX_BOX_LINE_MAX + 1];
    if (n > 0 && s[n - 1] == '\r') /* written on another system */
        n--;
    if (n > HX_BOX_LINE_MAX)
        return hx_fail(err, -EINVAL, "%s:%d: the line has %zu bytes, at most %d are allowed",
                       r->label, r->line, n, HX_BOX_LINE_MAX);
    if (memchr(s, '\0', n))
        return where(r, err, "a NUL byte in the line; is this a text file?");
    if (hx_utf8_valid_prefix((const uint8_t *)s, n) != n)
        return where(r, err, "not valid UTF-8; save the file as UTF-8 text");
    memcpy(text, s, n);
    text[n] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\t')
            text[i] = ' ';
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            return where(r, err, "a control character in the line");
    }
    char *key = text + strspn(text, " "), *value = strchr(key, '=');
    if (*key == '\0' || *key == '#')
        return 0;
    size_t n_key = value ? (size_t)(value - key) : 0;
    while (n_key > 0 && key[n_key - 1] == ' ')
        n_key--;
    if (!value || n_key == 0)
        return hx_fail(err, -EINVAL, "%s:%d: expected 'key = value', found '%.40s'", r->label,
                       r->line, key);
    value++;
    value += strspn(value, " ");
    size_t n_value = strlen(value);
    while (n_value > 0 && value[n_value - 1] == ' ')
        value[--n_value] = '\0';
    key[n_key] = '\0';
    return take_pair(r, key, value, err);
}

int hx_box_parse(const char *text, size_t len, const char *label, enum hx_box_form form,
                 struct hx_box *out, struct hx_error *err)
{
    struct reading r = {.label = label, .form = form};
    int result = 0;
    hx_box_init(&r.box);
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        len -= 3;
    }
    while (result == 0 && len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len, step = end ? n + 1 : n;
        r.line++;
        result = take_line(&r, text, n, err);
        text += step;
        len -= step;
    }
    if (result == 0 && !r.first_at[0])
        result = hx_fail(err, -EINVAL, "%s:1: the first line has to be: schema = 1", label);
    if (result < 0)
        hx_box_done(&r.box);
    else
        *out = r.box;
    return result;
}

int hx_box_read(const char *path, enum hx_box_form form, struct hx_box *out, struct hx_error *err)
{
    char *text = NULL;
    size_t len;
    int r = hx_file_read(path, HX_BOX_FILE_MAX, &text, &len, err);
    if (r == 0)
        r = hx_box_parse(text, len, path, form, out, err);
    free(text);
    return r;
}

/* ---- together -------------------------------------------------------------------------------- */

static int together(struct hx_error *err, const char *key, const char *what)
{
    return hx_fail(err, -EINVAL, "%s: %s", key, what);
}

static int check_network(const struct hx_box *b, struct hx_error *err)
{
    if (b->network == HX_NET_STATIC) {
        if (*b->address == '\0')
            return together(err, "address", "missing; network = static needs it");
        int r = hx_valid_route(b->address, b->gateway, err);
        return r < 0 ? hx_wrap(err, r, "gateway") : 0;
    }
    if (*b->address)
        return together(err, "address", "only network = static has one");
    if (*b->gateway)
        return together(err, "gateway", "only network = static has one");
    if (b->network == HX_NET_NONE && (*b->dns || *b->proxy || b->vlan))
        return together(err, "network", "none, but dns, proxy or vlan are given");
    return 0;
}

static int check_installer(const struct hx_box *b, struct hx_error *err)
{
    if (strcmp(b->target_serial, b->confirm_erase_serial) != 0 && *b->confirm_erase_serial)
        return together(err, "confirm_erase_serial",
                        "differs from target_serial; nothing is erased unless both are alike");
    if (*b->target_serial && b->mode == HX_MODE_INSTALL && !*b->confirm_erase_serial)
        return together(err, "confirm_erase_serial",
                        "missing; repeat the serial number to allow erasing that disk");
    if (hx_box_given(b, "mode") && b->mode != HX_MODE_TRY && !*b->target_serial)
        return together(err, "target_serial", "missing; mode needs the disk's serial number");
    if (b->mode == HX_MODE_REINSTALL && !b->keep_models)
        return together(err, "keep_models",
                        "has to be yes with mode = reinstall; mode = install erases everything");
    if (b->keep_models && b->mode != HX_MODE_REINSTALL)
        return together(err, "keep_models", "only mode = reinstall can keep models");
    return 0;
}

int hx_box_check(const struct hx_box *b, enum hx_box_form form, struct hx_error *err)
{
    int r = form == HX_BOX_ANSWERS ? check_installer(b, err) : 0;
    if (r == 0 && b->n_admin_keys == 0)
        r = together(err, KEY, "missing; there are no passwords, so without a key nobody gets in");
    if (r == 0)
        r = check_network(b, err);
    if (r == 0 && strcmp(b->driver_source, "none") == 0 && (*b->driver_sha256))
        r = together(err, "driver_sha256", "given, but driver_source is none");
    if (r == 0 && strcmp(b->model, "none") == 0 && (*b->model_lock || *b->model_lock_sha256))
        r = together(err, "model_lock", "given, but model is none");
    if (r == 0 && *b->model_lock && !*b->model_lock_sha256)
        r = together(err, "model_lock_sha256",
                     "missing; it says that you agree to what the lock file lists");
    if (r == 0 && *b->erase_models_disk && strcmp(b->erase_models_disk, b->models_disk) != 0)
        r = together(err, "erase_models_disk", "has to repeat models_disk");
    if (r == 0 && strcmp(b->erase_models_disk, "system") == 0)
        r = together(err, "erase_models_disk", "the system's disk is not erased by this");
    if (r == 0 && strcmp(b->model, "none") != 0 && !b->accept_model_licence)
        r = together(err, "accept_model_licence", "has to be yes for a model to be downloaded");
    if (r == 0 && strcmp(b->model, "none") != 0 && b->network == HX_NET_NONE &&
        b->model_source[0] != '/')
        r = together(err, "model_source", "network = none leaves only a folder of an offline disk");
    return r;
}

/* ---- writing --------------------------------------------------------------------------------- */

int hx_box_write(const struct hx_box *box, enum hx_box_form form, struct hx_buf *out)
{
    char value[600];
    for (int i = 0; i < N_ROWS; i++) {
        if ((form == HX_BOX_STATE && rows[i].where == ONLY_ANSWERS) ||
            (form == HX_BOX_ANSWERS && rows[i].where == ONLY_STATE))
            continue;
        int r = hx_box_get(box, rows[i].o.key, value, sizeof(value));
        if (r < 0)
            return r;
        hx_buf_printf(out, "%s = %s\n", rows[i].o.key, value);
        if (strcmp(rows[i].o.key, "hostname") == 0) {
            for (int k = 0; k < box->n_admin_keys; k++)
                hx_buf_printf(out, "%s = %s\n", KEY, box->admin_key[k]);
        }
    }
    if (form == HX_BOX_STATE)
        hx_buf_printf(out, "%s", box->later);
    return out->failed ? -ENOMEM : 0;
}

/* ---- steps of the wizard --------------------------------------------------------------------- */

static char *find_word(char *list, const char *word)
{
    size_t n = strlen(word);
    for (char *p = list; (p = strstr(p, word)); p += n) {
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return p;
    }
    return NULL;
}

bool hx_box_is_done(const struct hx_box *box, const char *step)
{
    char list[sizeof(box->done)];
    memcpy(list, box->done, sizeof(list));
    return find_word(list, step) != NULL;
}

void hx_box_set_done(struct hx_box *box, const char *step, bool done)
{
    char *at = find_word(box->done, step);
    size_t n = strlen(step), used = strlen(box->done);
    if (done && !at && used + n + 2 <= sizeof(box->done)) {
        snprintf(box->done + used, sizeof(box->done) - used, "%s%s", used ? " " : "", step);
    } else if (!done && at) {
        char *rest = at[n] == ' ' ? at + n + 1 : at + n;
        memmove(at, rest, strlen(rest) + 1);
        used = strlen(box->done);
        if (used > 0 && box->done[used - 1] == ' ')
            box->done[used - 1] = '\0';
    }
}

bool hx_box_row(int i, const char **key, const char **standard, const char **help)
{
    if (i < 0 || i >= N_ROWS)
        return false;
    *key = rows[i].o.key;
    *standard = rows[i].o.standard;
    *help = rows[i].o.help;
    return true;
}
