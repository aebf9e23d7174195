/* Settings of the box and the active bundle. */
#include "hw/wanted.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/file.h"
#include "base/json_read.h"

#define WANTED_MAX (256u << 10)

static const char *const kinds[] = {"none", "mailbox", "bar1", "unknown"};

void hx_wanted_defaults(struct hx_wanted *w)
{
    *w = (struct hx_wanted){.cards = 4, .power_cap_w = 180, .control_interface = "lo"};
}

struct reader {
    const char *name;
    struct hx_error *err;
};

static int wrong(const struct reader *in, const char *key, struct hx_jv v, const char *expected)
{
    return hx_fail(in->err, -EINVAL, "%s: %s: found %s, expected %s", in->name, key,
                   hx_json_type_name(hx_jv_type(v)), expected);
}

static int take_bool(const struct reader *in, struct hx_jv from, const char *key, bool *out)
{
    struct hx_jv v = hx_jv_get(from, key);
    if (!v.doc)
        return 0;
    return hx_jv_bool(v, out) ? 0 : wrong(in, key, v, "true or false");
}

static int take_int(const struct reader *in, struct hx_jv from, const char *key, int low, int high,
                    int *out)
{
    struct hx_jv v = hx_jv_get(from, key);
    int64_t n;
    if (!v.doc)
        return 0;
    if (!hx_jv_int64(v, &n))
        return wrong(in, key, v, "an integer");
    if (n < low || n > high)
        return hx_fail(in->err, -EINVAL, "%s: %s: found %lld, expected %d to %d", in->name, key,
                       (long long)n, low, high);
    *out = (int)n;
    return 0;
}

static int take_text(const struct reader *in, struct hx_jv from, const char *key, char *out,
                     size_t size)
{
    struct hx_jv v = hx_jv_get(from, key);
    size_t len;
    if (!v.doc || hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    const char *s = hx_jv_str(v, &len);
    if (!s)
        return wrong(in, key, v, "a text");
    if (len >= size || memchr(s, '\0', len))
        return hx_fail(in->err, -EINVAL, "%s: %s: found %zu bytes, expected at most %zu", in->name,
                       key, len, size - 1);
    memcpy(out, s, len);
    out[len] = '\0';
    return 0;
}

/* One of a few words; what is absent leaves 0, the i-th word is i + 1. */
static int take_word(const struct reader *in, struct hx_jv from, const char *key,
                     const char *const words[3], int *out)
{
    char text[16] = "";
    int r = take_text(in, from, key, text, sizeof(text));
    if (r < 0 || !text[0])
        return r;
    for (int i = 0; i < 3; i++) {
        if (strcmp(words[i], text) == 0) {
            *out = i + 1;
            return 0;
        }
    }
    return hx_fail(in->err, -EINVAL, "%s: %s: found '%s', expected %s, %s or %s", in->name, key,
                   text, words[0], words[1], words[2]);
}

static int take_bundle(const struct reader *in, struct hx_jv v, struct hx_wanted_bundle *b)
{
    if (!v.doc)
        return 0;
    *b = (struct hx_wanted_bundle){0};
    if (hx_jv_type(v) == HX_JSON_NULL)
        return 0;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return wrong(in, "bundle", v, "an object or null");
    b->present = true;
    int r = take_text(in, v, "name", b->name, sizeof(b->name));
    r = r < 0 ? r
              : take_text(in, v, "driver_version", b->driver_version, sizeof(b->driver_version));
    r = r < 0 ? r : take_text(in, v, "module_dir", b->module_dir, sizeof(b->module_dir));
    r = r < 0 ? r : take_text(in, v, "registry_keys", b->registry_keys, sizeof(b->registry_keys));
    r = r < 0 ? r : take_text(in, v, "srcversion", b->srcversion, sizeof(b->srcversion));
    r = r < 0 ? r : take_bool(in, v, "safety_marker_required", &b->safety_marker_required);
    r = r < 0 ? r : take_bool(in, v, "signed_by_trusted", &b->signed_by_trusted);
    r = r < 0 ? r : take_bool(in, v, "state_ok", &b->state_ok);
    r = r < 0 ? r : take_bool(in, v, "by_path", &b->by_path);
    static const char *const cold_words[3] = {"yes", "unknown", "warm"};
    static const char *const back_words[3] = {"yes", "first", "no"};
    int cold = 0, back = 0;
    r = r < 0 ? r : take_word(in, v, "cold_start", cold_words, &cold);
    r = r < 0 ? r : take_word(in, v, "way_back", back_words, &back);
    b->cold_start = (enum hx_cold_start)cold;
    b->way_back = (enum hx_way_back)back;
    if (r == 0 && b->module_dir[0] && (b->module_dir[0] != '/' || strstr(b->module_dir, "/../")))
        r = hx_fail(in->err, -EINVAL, "%s: module_dir: '%s' is not an absolute path", in->name,
                    b->module_dir);
    return r;
}

static int take_all(const struct reader *in, struct hx_jv root, struct hx_wanted *w)
{
    char kind[16] = "";
    if (hx_jv_type(root) != HX_JSON_OBJECT)
        return wrong(in, "the document", root, "an object");
    int r = take_int(in, root, "want_cards", 1, 16, &w->cards);
    r = r < 0 ? r : take_int(in, root, "power_cap_w", 0, 1000, &w->power_cap_w);
    r = r < 0 ? r : take_text(in, root, "p2p_kind", kind, sizeof(kind));
    r = r < 0 ? r
              : take_text(in, root, "control_interface", w->control_interface,
                          sizeof(w->control_interface));
    if (r == 0 && kind[0]) {
        size_t i = 0;
        while (i < sizeof(kinds) / sizeof(kinds[0]) && strcmp(kinds[i], kind) != 0)
            i++;
        if (i == sizeof(kinds) / sizeof(kinds[0]))
            return hx_fail(in->err, -EINVAL,
                           "%s: p2p_kind: found '%s', expected none, mailbox, bar1 or unknown",
                           in->name, kind);
        w->p2p_kind = (enum hx_p2p_kind)i;
    }
    if (r == 0 && hx_jv_get(root, "default_entry_has_modules").doc) {
        w->has_default_entry = true;
        r = take_bool(in, root, "default_entry_has_modules", &w->default_entry_has_modules);
    }
    struct hx_jv image = hx_jv_get(root, "boot_image");
    if (r == 0 && hx_jv_type(image) == HX_JSON_OBJECT) {
        w->has_boot_image = true;
        r = take_bool(in, image, "has_modules", &w->boot_image_modules);
        r = r < 0 ? r : take_bool(in, image, "has_options", &w->boot_image_options);
    }
    return r < 0 ? r : take_bundle(in, hx_jv_get(root, "bundle"), &w->bundle);
}

int hx_wanted_parse(const char *text, size_t len, const char *name, struct hx_wanted *w,
                    struct hx_error *err)
{
    struct hx_json_limits limits = {WANTED_MAX, 4096, 16, 0};
    struct hx_json *doc;
    int r = hx_json_parse(text, len, &limits, &doc, err);
    if (r < 0)
        return hx_wrap(err, r, "%s", name);
    struct hx_wanted next = *w;
    struct reader in = {name, err};
    r = take_all(&in, hx_json_root(doc), &next);
    hx_json_free(doc);
    if (r == 0)
        *w = next;
    return r;
}

int hx_wanted_read(const char *path, struct hx_wanted *w, struct hx_error *err)
{
    char *text;
    size_t len;
    int r = hx_file_read(path, WANTED_MAX, &text, &len, err);
    if (r < 0)
        return r;
    r = hx_wanted_parse(text, len, path, w, err);
    free(text);
    return r;
}

struct cards_conf {
    int64_t count, power_cap;
    int p2p_kind;
};

static const struct hx_conf_option cards_rows[] = {
    {"cards", "count", HX_CONF_INT, offsetof(struct cards_conf, count), 1, 16, "4", NULL,
     "cards that the model runs on"},
    {"cards", "power_cap", HX_CONF_INT, offsetof(struct cards_conf, power_cap), 0, 1000, "180",
     NULL, "power limit of each card in watts, 0 leaves the driver's own"},
    {"cards", "p2p_kind", HX_CONF_CHOICE, offsetof(struct cards_conf, p2p_kind), 0, 0, "none",
     "none mailbox bar1 unknown", "direct copies that the driver bundle offers"},
};
#define N_CARDS_ROWS ((int)(sizeof(cards_rows) / sizeof(cards_rows[0])))

int hx_wanted_conf(const char *file, const char *folder, struct hx_wanted *w, struct hx_error *err)
{
    struct cards_conf conf;
    hx_conf_defaults(cards_rows, N_CARDS_ROWS, &conf);
    int r = file ? hx_conf_file(cards_rows, N_CARDS_ROWS, &conf, file, err) : 0;
    if (r == -ENOENT)
        r = 0;
    if (r == 0 && folder)
        r = hx_conf_folder(cards_rows, N_CARDS_ROWS, &conf, folder, err);
    if (r < 0)
        return r;
    w->cards = (int)conf.count;
    w->power_cap_w = (int)conf.power_cap;
    w->p2p_kind = (enum hx_p2p_kind)conf.p2p_kind;
    return 0;
}
