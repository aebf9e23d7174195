/* Recognition of the markers a model writes, in every spelling that was seen (chat.md 8.2). */
#include <string.h>

#include "text/reply_impl.h"

#define BAR     "｜"
#define BAR_LEN 3

static const char *const heal_name[HX_HEAL_MAX] = {
    [HX_HEAL_DROP_THINK_OPEN] = "drop_think_open",
    [HX_HEAL_DROP_THINK_CLOSE] = "drop_think_close",
    [HX_HEAL_REOPENED_REASONING] = "reopened_reasoning",
    [HX_HEAL_CALL_IN_REASONING] = "call_in_reasoning",
    [HX_HEAL_WRAPPER_SPELLING] = "wrapper_spelling",
    [HX_HEAL_V4_SPELLING] = "v4_spelling",
    [HX_HEAL_BAR_SPELLING] = "bar_spelling",
    [HX_HEAL_ATTR_SPELLING] = "attr_spelling",
    [HX_HEAL_NO_WRAPPER] = "no_wrapper",
    [HX_HEAL_IMPLICIT_WRAPPER_CLOSE] = "implicit_wrapper_close",
    [HX_HEAL_IMPLICIT_INVOKE_CLOSE] = "implicit_invoke_close",
    [HX_HEAL_STRAY_CLOSER] = "stray_closer",
    [HX_HEAL_STRAY_TEXT] = "stray_text",
    [HX_HEAL_EMPTY_BLOCK] = "empty_block",
    [HX_HEAL_TYPE_FROM_SCHEMA] = "type_from_schema",
    [HX_HEAL_DUPLICATE_PARAM] = "duplicate_param",
    [HX_HEAL_PARAM_CLOSE_MISSING] = "param_close_missing",
    [HX_HEAL_CLOSE_TAG_IN_VALUE] = "close_tag_in_value",
    [HX_HEAL_PYTHON_LITERAL] = "python_literal",
    [HX_HEAL_NOT_JSON] = "not_json",
    [HX_HEAL_UNWRAPPED_ARGUMENTS] = "unwrapped_arguments",
    [HX_HEAL_WHITESPACE] = "whitespace",
    [HX_HEAL_XML_IDIOM] = "xml_idiom",
    [HX_HEAL_FUSED_NAME] = "fused_name",
    [HX_HEAL_TOOL_INFERRED] = "tool_inferred",
    [HX_HEAL_RESTORED_TEXT] = "restored_text",
};

const char *hx_heal_name(enum hx_heal code)
{
    return heal_name[code];
}

/* Text being matched; `short_of` is set when it ended before a decision. */
struct reader {
    const char *s;
    size_t len, at;
    bool short_of;
};

static bool accept(struct reader *r, const char *word)
{
    size_t n = strlen(word), have = r->len - r->at;
    size_t m = have < n ? have : n;
    if (memcmp(r->s + r->at, word, m) != 0)
        return false;
    if (m < n) {
        r->short_of = true;
        return false;
    }
    r->at += n;
    return true;
}

/* Up to two bars of either kind; *exact if it is one of the right kind. */
static unsigned bars(struct reader *r, bool *exact)
{
    unsigned n = 0;
    bool ascii = false;
    while (n < 2 && !r->short_of) {
        if (accept(r, BAR)) {
            n++;
        } else if (!r->short_of && accept(r, "|")) {
            n++;
            ascii = true;
        } else {
            break;
        }
    }
    *exact = n == 1 && !ascii;
    return n;
}

static const struct {
    const char *name;
    enum hx_tag_kind kind;
    unsigned healed; /* with the right marker */
} dsml_row[] = {
    {" calls", HX_TAG_WRAPPER, 0},
    {"calls", HX_TAG_WRAPPER, HX_HEAL_BIT(HX_HEAL_WRAPPER_SPELLING)},
    {"_calls", HX_TAG_WRAPPER, HX_HEAL_BIT(HX_HEAL_WRAPPER_SPELLING)},
    {"tool_calls", HX_TAG_WRAPPER, HX_HEAL_BIT(HX_HEAL_V4_SPELLING)},
    {" tool_calls", HX_TAG_WRAPPER, HX_HEAL_BIT(HX_HEAL_WRAPPER_SPELLING)},
    {"_tool_calls", HX_TAG_WRAPPER, HX_HEAL_BIT(HX_HEAL_WRAPPER_SPELLING)},
    {"function_calls", HX_TAG_WRAPPER, HX_HEAL_BIT(HX_HEAL_WRAPPER_SPELLING)},
    {" function_calls", HX_TAG_WRAPPER, HX_HEAL_BIT(HX_HEAL_WRAPPER_SPELLING)},
    {"_function_calls", HX_TAG_WRAPPER, HX_HEAL_BIT(HX_HEAL_WRAPPER_SPELLING)},
    {" invoke", HX_TAG_INVOKE, 0},
    {"invoke", HX_TAG_INVOKE, HX_HEAL_BIT(HX_HEAL_V4_SPELLING)},
    {" parameter", HX_TAG_PARAM, 0},
    {"parameter", HX_TAG_PARAM, HX_HEAL_BIT(HX_HEAL_V4_SPELLING)},
};
static const struct {
    const char *name;
    enum hx_tag_kind kind;
} plain_row[] = {{"invoke", HX_TAG_INVOKE}, {"parameter", HX_TAG_PARAM}};

/* Behind '<' or '</': marker and name. Returns the opener's kind, NONE, or MORE. */
static enum hx_tag_kind head(struct reader *r, struct hx_tag *tag)
{
    size_t start = r->at;
    for (size_t i = 0; i < 2; i++) {
        if (accept(r, plain_row[i].name)) {
            tag->plain = true;
            tag->healed = HX_HEAL_BIT(HX_HEAL_XML_IDIOM);
            return plain_row[i].kind;
        }
    }
    bool before, after, waits = r->short_of;
    r->short_of = false;
    bars(r, &before);
    if (!r->short_of && accept(r, "DSML")) {
        unsigned n = bars(r, &after);
        if (r->short_of)
            return HX_TAG_MORE;
        if (n == 0)
            return HX_TAG_NONE;
        for (size_t i = 0; i < sizeof(dsml_row) / sizeof(dsml_row[0]); i++) {
            if (accept(r, dsml_row[i].name)) {
                tag->healed =
                    before && after ? dsml_row[i].healed : HX_HEAL_BIT(HX_HEAL_BAR_SPELLING);
                return dsml_row[i].kind;
            }
        }
    }
    waits = waits || r->short_of;
    r->at = start;
    return waits ? HX_TAG_MORE : HX_TAG_NONE;
}

/* End of a tag: the first '>' outside quotes. NONE at what no tag holds, MORE if it is not there
 * yet. */
static enum hx_tag_kind find_end(const char *s, size_t len, struct hx_tag_cursor *c)
{
    for (; c->scan < len; c->scan++) {
        char ch = s[c->scan];
        if (c->scan - c->at >= HX_TAG_MAX)
            return HX_TAG_NONE;
        if (c->quote) {
            c->quote = ch == c->quote ? 0 : c->quote;
        } else if (ch == '"' || ch == '\'') {
            c->quote = ch;
        } else if (ch == '>') {
            return HX_TAG_THINK; /* found; any kind but NONE and MORE */
        } else if (ch == '<' || ch == '\n' || ch == '\r') {
            return HX_TAG_NONE;
        }
    }
    return HX_TAG_MORE;
}

static bool same(const char *s, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(s, word, len) == 0;
}

/* One attribute out of s[*at..end); false at the end. */
static bool attribute(const char *s, size_t *at, size_t end, const char **key, size_t *key_len,
                      const char **value, size_t *value_len, bool *exact)
{
    size_t i = *at;
    while (i < end && (s[i] == ' ' || s[i] == '\t'))
        i++;
    *exact = i == *at + 1;
    if (i == end)
        return false;
    *key = s + i;
    while (i < end && s[i] != '=' && s[i] != ' ')
        i++;
    *key_len = (size_t)(s + i - *key);
    *value = s + i;
    *value_len = 0;
    size_t equals = i;
    while (i < end && s[i] == ' ')
        i++;
    if (i == end || s[i] != '=') {
        *exact = false;
        *at = equals;
        return true;
    }
    *exact = *exact && i == equals;
    i++;
    while (i < end && s[i] == ' ') {
        i++;
        *exact = false;
    }
    char quote = i < end && (s[i] == '"' || s[i] == '\'') ? s[i] : 0;
    *exact = *exact && quote == '"';
    i += quote != 0;
    *value = s + i;
    while (i < end && s[i] != (quote ? quote : ' '))
        i++;
    *value_len = (size_t)(s + i - *value);
    *at = i + (quote != 0 && i < end);
    return true;
}

static void attributes(const char *s, size_t at, size_t end, struct hx_tag *tag)
{
    const char *key, *value;
    size_t key_len, value_len;
    bool exact, right = true, named = false;
    size_t rest = at;
    while (attribute(s, &rest, end, &key, &key_len, &value, &value_len, &exact)) {
        right = right && exact;
        if (same(key, key_len, "name")) {
            right = right && !named && tag->string == HX_STRING_MISSING;
            named = true;
            tag->name = value;
            tag->name_len = value_len;
        } else if (tag->kind == HX_TAG_PARAM && same(key, key_len, "string") &&
                   (same(value, value_len, "true") || same(value, value_len, "false"))) {
            tag->string = value[0] == 't' ? HX_STRING_TRUE : HX_STRING_FALSE;
        } else {
            right = false;
        }
    }
    if (rest != end)
        right = false;
    if (!right)
        tag->healed |= HX_HEAL_BIT(HX_HEAL_ATTR_SPELLING);
}

void hx_tag_match(const char *s, size_t len, size_t at, bool tools, struct hx_tag_cursor *c,
                  struct hx_tag *tag)
{
    *tag = (struct hx_tag){.kind = HX_TAG_NONE, .name = ""};
    struct reader r = {.s = s, .len = len, .at = at + 1};
    bool think = accept(&r, "think>");
    if (think || (!r.short_of && accept(&r, "/think>"))) {
        tag->kind = think ? HX_TAG_THINK : HX_TAG_THINK_END;
        tag->len = r.at - at;
        return;
    }
    bool waits = r.short_of;
    if (!tools) {
        tag->kind = waits ? HX_TAG_MORE : HX_TAG_NONE;
        return;
    }
    r.short_of = false;
    r.at = at + 1;
    bool closer = accept(&r, "/");
    if (r.short_of) {
        tag->kind = HX_TAG_MORE;
        return;
    }
    enum hx_tag_kind kind = head(&r, tag);
    if (kind == HX_TAG_NONE || kind == HX_TAG_MORE) {
        tag->kind = waits || kind == HX_TAG_MORE ? HX_TAG_MORE : HX_TAG_NONE;
        return;
    }
    if (c->at != at || c->scan < r.at)
        *c = (struct hx_tag_cursor){.at = at, .scan = r.at};
    bool attrs = !closer && kind != HX_TAG_WRAPPER;
    if (r.at < len && s[r.at] != '>' && s[r.at] != ' ' && s[r.at] != '\t')
        return; /* another name that begins the same */
    if (!attrs) {
        while (r.at < len && r.at - at < 64 && s[r.at] == ' ')
            r.at++;
        bool end = r.at < len && s[r.at] == '>';
        tag->kind = end                             ? (enum hx_tag_kind)(kind + closer)
                    : r.at == len && r.at - at < 64 ? HX_TAG_MORE
                                                    : HX_TAG_NONE;
        tag->len = r.at + 1 - at;
        return;
    }
    enum hx_tag_kind found = find_end(s, len, c);
    if (found == HX_TAG_NONE || found == HX_TAG_MORE) {
        tag->kind = found;
        return;
    }
    tag->kind = kind;
    tag->len = c->scan + 1 - at;
    attributes(s, r.at, c->scan, tag);
}
