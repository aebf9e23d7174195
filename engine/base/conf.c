/* Configuration rows. Files are read by inih. */
#include "base/conf.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"

struct unit {
    const char *name;
    double factor;
};

static const struct unit size_units[] = {{"", 1},       {"k", 0x1p10}, {"K", 0x1p10}, {"M", 0x1p20},
                                         {"G", 0x1p30}, {"T", 0x1p40}, {NULL, 0}};
static const struct unit time_units[] = {{"", 1e6},   {"us", 1},     {"ms", 1e3}, {"s", 1e6},
                                         {"m", 60e6}, {"h", 3600e6}, {NULL, 0}};
static const struct unit no_units[] = {{"", 1}, {NULL, 0}};

static bool parse_number(const char *value, const struct unit *units, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(value, &end);
    if (end == value || errno != 0 || !isfinite(v))
        return false;
    for (; units->name; units++) {
        if (strcmp(end, units->name) == 0) {
            *out = v * units->factor;
            return true;
        }
    }
    return false;
}

static int parse_choice(const char *choices, const char *value)
{
    int i = 0;
    for (const char *s = choices; *s; i++) {
        size_t n = strcspn(s, " ");
        if (strlen(value) == n && strncmp(s, value, n) == 0)
            return i;
        s += n + (s[n] == ' ');
    }
    return -1;
}

static int parse_bool(const char *value)
{
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false",
                                                                                "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(value, yes[i]) == 0)
            return 1;
        if (strcasecmp(value, no[i]) == 0)
            return 0;
    }
    return -1;
}

/* What the row expects, for messages and help. */
static void expected(const struct hx_conf_option *o, char out[160])
{
    switch (o->type) {
    case HX_CONF_STRING:
        snprintf(out, 160,
                 "at most %.0f characters, no control characters, no ';' first or after a space",
                 o->max);
        break;
    case HX_CONF_INT: snprintf(out, 160, "an integer from %.0f to %.0f", o->min, o->max); break;
    case HX_CONF_REAL: snprintf(out, 160, "a number from %g to %g", o->min, o->max); break;
    case HX_CONF_BOOL: snprintf(out, 160, "yes or no"); break;
    case HX_CONF_SIZE:
        snprintf(out, 160, "a size from %.0f to %.0f bytes (k, M, G)", o->min, o->max);
        break;
    case HX_CONF_TIME:
        snprintf(out, 160, "a time from %gs to %gs (us, ms, s, m, h)", o->min / 1e6, o->max / 1e6);
        break;
    case HX_CONF_CHOICE: snprintf(out, 160, "one of: %s", o->choices); break;
    }
}

/* What a file can hold, so that the effective configuration reads back the same. */
static bool is_plain_text(const char *s)
{
    size_t n = strlen(s);
    if (n > 0 && (s[0] == ' ' || s[n - 1] == ' '))
        return false;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F ||
            (s[i] == ';' && (i == 0 || s[i - 1] == ' ')))
            return false;
    }
    return true;
}

static bool store(const struct hx_conf_option *o, void *to, const char *value)
{
    uint8_t *at = (uint8_t *)to + o->offset;
    double v;
    int i;
    switch (o->type) {
    case HX_CONF_STRING:
        if (strlen(value) > (size_t)o->max || !is_plain_text(value))
            return false;
        memcpy(at, value, strlen(value) + 1);
        return true;
    case HX_CONF_BOOL:
        i = parse_bool(value);
        if (i >= 0)
            *(bool *)at = i == 1;
        return i >= 0;
    case HX_CONF_CHOICE:
        i = parse_choice(o->choices, value);
        if (i >= 0)
            memcpy(at, &i, sizeof(i));
        return i >= 0;
    default: break;
    }
    const struct unit *units = o->type == HX_CONF_SIZE   ? size_units
                               : o->type == HX_CONF_TIME ? time_units
                                                         : no_units;
    if (!parse_number(value, units, &v) || v < o->min || v > o->max)
        return false;
    if (o->type == HX_CONF_REAL) {
        memcpy(at, &v, sizeof(v));
        return true;
    }
    if (v != floor(v))
        return false;
    int64_t n = (int64_t)v;
    memcpy(at, &n, sizeof(n));
    return true;
}

void hx_conf_defaults(const struct hx_conf_option *rows, int n, void *to)
{
    for (int i = 0; i < n; i++) {
        bool ok = store(&rows[i], to, rows[i].standard);
        assert(ok);
        (void)ok;
    }
}

int hx_conf_set(const struct hx_conf_option *rows, int n, void *to, const char *section,
                const char *key, const char *value, const char *where, struct hx_error *err)
{
    bool known = false;
    for (int i = 0; i < n; i++) {
        known = known || strcmp(rows[i].section, section) == 0;
        if (strcmp(rows[i].section, section) != 0 || strcmp(rows[i].key, key) != 0)
            continue;
        if (store(&rows[i], to, value))
            return 0;
        char want[160];
        expected(&rows[i], want);
        hx_fail(err, -EINVAL, "%s: [%s] %s: found '%.60s', expected %s", where, section, key, value,
                want);
        if (err)
            err->domain = HX_DOMAIN_CONF;
        return -EINVAL;
    }
    hx_fail(err, -EINVAL, "%s: [%.60s] %.60s: no such %s", where, section, key,
            known ? "option" : "section");
    if (err)
        err->domain = HX_DOMAIN_CONF;
    return -EINVAL;
}

struct reading {
    const struct hx_conf_option *rows;
    int n;
    void *to;
    const char *path, *text;
    int line;
    int long_line; /* a line that inih would cut; 0: none */
    int bad_line;  /* line of the value that result is about */
    int result;
    struct hx_error *err;
};

/* inih's line reader over the text in memory. It counts the lines, which the handler is not told,
 * and drops indentation, which inih would take for more lines of the value above, the last of which
 * silently wins. */
static char *next_line(char *out, int size, void *user)
{
    struct reading *r = user;
    if (*r->text == '\0')
        return NULL;
    r->line++;
    r->text += strspn(r->text, " \t");
    size_t n = strcspn(r->text, "\n");
    if (n >= (size_t)size) {
        r->long_line = r->line;
        return NULL;
    }
    memcpy(out, r->text, n);
    out[n] = '\0';
    r->text += n + (r->text[n] == '\n');
    return out;
}

static int handle(void *user, const char *section, const char *name, const char *value)
{
    struct reading *r = user;
    char where[512];
    if (r->result < 0)
        return 0;
    snprintf(where, sizeof(where), "%s:%d", r->path, r->line);
    r->bad_line = r->line;
    r->result = hx_conf_set(r->rows, r->n, r->to, section, name, value ? value : "", where, r->err);
    return r->result == 0;
}

int hx_conf_file(const struct hx_conf_option *rows, int n, void *to, const char *path,
                 struct hx_error *err)
{
    struct reading r = {.rows = rows, .n = n, .to = to, .path = path, .err = err};
    char *text = NULL;
    size_t len;
    int ret = hx_file_read(path, 1 << 20, &text, &len, err);
    if (ret < 0)
        return ret;
    r.text = text;
    int line = strlen(text) == len ? ini_parse_stream(next_line, &r, handle, &r) : -1;
    free(text);
    /* The first fault of the file is the one to report. */
    if (r.result < 0 && (line <= 0 || r.bad_line <= line))
        return r.result;
    if (line == 0 && r.long_line == 0)
        return 0;
    if (line != 0)
        hx_fail(err, -EINVAL, "%s:%d: not a section, a 'key = value' line or a comment", path,
                line > 0 ? line : 1);
    else
        hx_fail(err, -EINVAL, "%s:%d: the line is too long", path, r.long_line);
    if (err)
        err->domain = HX_DOMAIN_CONF;
    return -EINVAL;
}

static int only_conf(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 5 && strcmp(e->d_name + n - 5, ".conf") == 0 && e->d_name[0] != '.';
}

int hx_conf_folder(const struct hx_conf_option *rows, int n, void *to, const char *dir,
                   struct hx_error *err)
{
    struct dirent **e = NULL;
    int count = scandir(dir, &e, only_conf, alphasort), r = 0;
    if (count < 0)
        return errno == ENOENT ? 0 : hx_fail_errno(err, errno, "%s: cannot read the folder", dir);
    for (int i = 0; i < count; i++) {
        char *path = r == 0 ? hx_path_join(dir, e[i]->d_name) : NULL;
        if (r == 0)
            r = path ? hx_conf_file(rows, n, to, path, err)
                     : hx_fail(err, -ENOMEM, "out of memory");
        free(path);
        free(e[i]);
    }
    free(e);
    return r;
}

int hx_conf_argument(const struct hx_conf_option *rows, int n, void *to, const char *arg,
                     struct hx_error *err)
{
    char section[64], key[64];
    int used = 0;
    if (sscanf(arg, "--%60[a-z_].%60[a-z_]=%n", section, key, &used) != 2 || used == 0)
        return 0;
    int r = hx_conf_set(rows, n, to, section, key, arg + used, "argument", err);
    return r < 0 ? r : 1;
}

static void put_value(const struct hx_conf_option *o, const void *from, FILE *out)
{
    const uint8_t *at = (const uint8_t *)from + o->offset;
    int64_t n = 0;
    double v = 0;
    int i = 0;
    char number[32];
    switch (o->type) {
    case HX_CONF_STRING: fprintf(out, "%s", (const char *)at); return;
    case HX_CONF_BOOL: fprintf(out, "%s", *(const bool *)at ? "yes" : "no"); return;
    case HX_CONF_REAL:
        memcpy(&v, at, sizeof(v));
        snprintf(number, sizeof(number), "%g", v);
        if (strtod(number, NULL) != v)
            snprintf(number, sizeof(number), "%.17g", v);
        fprintf(out, "%s", number);
        return;
    case HX_CONF_CHOICE: {
        memcpy(&i, at, sizeof(i));
        const char *s = o->choices;
        for (; i > 0; i--)
            s = strchr(s, ' ') + 1;
        fprintf(out, "%.*s", (int)strcspn(s, " "), s);
        return;
    }
    default: memcpy(&n, at, sizeof(n));
    }
    if (o->type == HX_CONF_TIME)
        fprintf(out, n % 1000000 == 0 ? "%llds" : "%lldus",
                (long long)(n % 1000000 == 0 ? n / 1000000 : n));
    else if (o->type == HX_CONF_SIZE && n > 0 && n % (1 << 20) == 0)
        fprintf(out, "%lldM", (long long)(n >> 20));
    else
        fprintf(out, "%lld", (long long)n);
}

void hx_conf_dump(const struct hx_conf_option *rows, int n, const void *from, bool help, FILE *out)
{
    const char *section = "";
    for (int i = 0; i < n; i++) {
        if (strcmp(section, rows[i].section) != 0) {
            section = rows[i].section;
            fprintf(out, "%s[%s]\n", i ? "\n" : "", section);
        }
        if (help) {
            char want[160];
            expected(&rows[i], want);
            fprintf(out, "; %s (%s)\n", rows[i].help, want);
        }
        fprintf(out, "%s = ", rows[i].key);
        put_value(&rows[i], from, out);
        fputc('\n', out);
    }
}
