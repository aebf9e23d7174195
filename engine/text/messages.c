/* Messages: roles and parts checked, tool results merged into user turns and put in call order. */
#include "text/messages.h"

#include <stdlib.h>
#include <string.h>

#include "text/prompt.h"

static int bad(struct hx_error *err, const char *param, const char *slug, size_t i,
               const char *what)
{
    return hx_fail_param(err, -EINVAL, param, slug, "messages[%zu]: %s", i, what);
}

static const struct {
    const char *name;
    enum hx_role role;
} role_row[] = {
    {"system", HX_ROLE_SYSTEM},
    {"user", HX_ROLE_USER},
    {"assistant", HX_ROLE_ASSISTANT},
    {"tool", HX_ROLE_TOOL},
    {"latest_reminder", HX_ROLE_REMINDER},
};

static const struct {
    const char *name, *token;
} task_row[] = {
    {"action", "<｜action｜>"}, {"query", "<｜query｜>"}, {"authority", "<｜authority｜>"},
    {"domain", "<｜domain｜>"}, {"title", "<｜title｜>"}, {"read_url", "<｜read_url｜>"},
};

static bool holds_image_spelling(struct hx_jv v)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    return s && memmem(s, len, HX_T_IMAGE, strlen(HX_T_IMAGE));
}

/* An image's source: a data: URL (the server fetches nothing), or base64 data. */
static int check_image(struct hx_jv part, unsigned flags, size_t i, struct hx_error *err)
{
    static const char where[] = "messages[].content";
    bool by_url = hx_jv_str_is(hx_jv_get(part, "type"), "image_url");
    struct hx_jv source = hx_jv_get(part, by_url ? "image_url" : "source");
    if (!by_url && (flags & HX_MESSAGES_NATIVE) && hx_jv_type(source) > HX_JSON_NULL)
        return 0;
    size_t len;
    if (!by_url && hx_jv_str(hx_jv_get(source, "data"), &len))
        return 0;
    struct hx_jv url = hx_jv_type(source) == HX_JSON_OBJECT ? hx_jv_get(source, "url") : source;
    const char *s = hx_jv_str(url, &len);
    if (!s || len == 0)
        return bad(err, where, "invalid_image", i, "an image part has no data");
    if (!(flags & HX_MESSAGES_NATIVE) && (len < 5 || memcmp(s, "data:", 5) != 0))
        return bad(err, where, "image_url_not_allowed", i,
                   "images must be data: URLs; this server fetches nothing");
    return 0;
}

static int check_part(struct hx_jv part, unsigned flags, size_t i, struct hx_error *err)
{
    static const char where[] = "messages[].content";
    struct hx_jv type = hx_jv_get(part, "type"), text = hx_jv_get(part, "text");
    if (hx_jv_type(part) != HX_JSON_OBJECT || hx_jv_type(type) != HX_JSON_STRING)
        return bad(err, where, "invalid_type", i, "a content part must be an object with a type");
    if (hx_jv_str_is(type, "image_url") || hx_jv_str_is(type, "image"))
        return check_image(part, flags, i, err);
    if (!hx_jv_str_is(type, "text"))
        return 0;
    if (hx_jv_type(text) != HX_JSON_STRING)
        return bad(err, where, "invalid_type", i, "a text part needs a string called text");
    if ((flags & HX_MESSAGES_NATIVE) && holds_image_spelling(text))
        return bad(err, where, "invalid_value", i, "text holds the spelling of the image token");
    return 0;
}

static int check_content(struct hx_jv content, enum hx_role role, unsigned flags, size_t i,
                         struct hx_error *err)
{
    static const char where[] = "messages[].content";
    bool native = flags & HX_MESSAGES_NATIVE;
    switch (hx_jv_type(content)) {
    case HX_JSON_NULL:
        return native && role == HX_ROLE_USER
                   ? bad(err, where, "invalid_type", i, "content is null")
                   : 0;
    case HX_JSON_NONE: return 0;
    case HX_JSON_STRING:
        return native && holds_image_spelling(content)
                   ? bad(err, where, "invalid_value", i,
                         "text holds the spelling of the image token")
                   : 0;
    case HX_JSON_ARRAY:
        for (struct hx_jv p = hx_jv_first(content); p.doc; p = hx_jv_next(p)) {
            int r = check_part(p, flags, i, err);
            if (r < 0)
                return r;
        }
        return 0;
    default:
        return bad(err, where, "invalid_type", i,
                   "content must be a string, a list of parts or null");
    }
}

static int read_assistant(struct hx_message *m, struct hx_jv v, unsigned flags, size_t i,
                          struct hx_error *err)
{
    m->reasoning = hx_jv_get(v, "reasoning_content");
    if (hx_jv_type(m->reasoning) <= HX_JSON_NULL)
        m->reasoning = hx_jv_get(v, "reasoning");
    if (hx_jv_type(m->reasoning) > HX_JSON_NULL && hx_jv_type(m->reasoning) != HX_JSON_STRING)
        return bad(err, "messages[].reasoning_content", "invalid_type", i,
                   "reasoning_content must be a string");
    if ((flags & HX_MESSAGES_NATIVE) && holds_image_spelling(m->reasoning))
        return bad(err, "messages[].reasoning_content", "invalid_value", i,
                   "reasoning holds the spelling of the image token");
    m->calls = hx_jv_get(v, "tool_calls");
    if (hx_jv_type(m->calls) <= HX_JSON_NULL)
        return 0;
    if (hx_jv_type(m->calls) != HX_JSON_ARRAY)
        return bad(err, "messages[].tool_calls", "invalid_type", i, "tool_calls must be a list");
    for (struct hx_jv c = hx_jv_first(m->calls); c.doc; c = hx_jv_next(c)) {
        if (hx_jv_type(hx_jv_get(c, "function")) != HX_JSON_OBJECT)
            return bad(err, "messages[].tool_calls", "invalid_type", i,
                       "a tool call must be an object with a function");
    }
    return 0;
}

/* Keys that only the reference's own form has. */
static int read_native(struct hx_message *m, struct hx_jv v, size_t i, struct hx_error *err)
{
    struct hx_jv tools = hx_jv_get(v, "tools"), task = hx_jv_get(v, "task");
    if (hx_jv_type(tools) == HX_JSON_ARRAY && hx_jv_first(tools).doc)
        m->tools = tools;
    struct hx_jv format = hx_jv_get(v, "response_format");
    if (hx_jv_type(format) > HX_JSON_NULL)
        m->format = format;
    hx_jv_bool(hx_jv_get(v, "wo_eos"), &m->no_eos);
    if (hx_jv_type(task) <= HX_JSON_NULL)
        return 0;
    for (size_t k = 0; k < sizeof(task_row) / sizeof(task_row[0]); k++) {
        if (hx_jv_str_is(task, task_row[k].name)) {
            m->task = task_row[k].token;
            m->task_is_action = k == 0;
        }
    }
    return m->task ? 0 : bad(err, "messages[].task", "invalid_value", i, "unknown task");
}

static int read_message(struct hx_message *m, struct hx_jv v, unsigned flags, size_t i,
                        struct hx_error *err)
{
    bool native = flags & HX_MESSAGES_NATIVE;
    if (hx_jv_type(v) != HX_JSON_OBJECT)
        return bad(err, "messages", "invalid_type", i, "a message must be an object");
    struct hx_jv role = hx_jv_get(v, "role");
    *m = (struct hx_message){.role = HX_ROLE_OTHER, .content = hx_jv_get(v, "content")};
    for (size_t k = 0; k < sizeof(role_row) / sizeof(role_row[0]); k++) {
        if (hx_jv_str_is(role, role_row[k].name))
            m->role = role_row[k].role;
    }
    if (!native && hx_jv_str_is(role, "developer"))
        m->role = HX_ROLE_SYSTEM;
    if (!native && m->role == HX_ROLE_OTHER)
        return bad(err, "messages[].role",
                   hx_jv_type(role) <= HX_JSON_NULL     ? "missing_required_parameter"
                   : hx_jv_type(role) == HX_JSON_STRING ? "invalid_value"
                                                        : "invalid_type",
                   i, "role must be system, developer, user, assistant, tool or latest_reminder");
    int r = check_content(m->content, m->role, flags, i, err);
    if (r == 0 && m->role == HX_ROLE_ASSISTANT)
        r = read_assistant(m, v, flags, i, err);
    if (r == 0 && native)
        r = read_native(m, v, i, err);
    return r;
}

/* Appends a message's blocks to the user turn t. */
static void add_blocks(struct hx_messages *all, struct hx_message *t, struct hx_jv v, bool result)
{
    struct hx_jv content = hx_jv_get(v, "content");
    if (!result && hx_jv_type(content) == HX_JSON_ARRAY) {
        for (struct hx_jv p = hx_jv_first(content); p.doc; p = hx_jv_next(p))
            all->block[all->n_blocks++] = (struct hx_block){.content = p};
    } else {
        all->block[all->n_blocks++] = (struct hx_block){
            .result = result, .content = content, .call_id = hx_jv_get(v, "tool_call_id")};
    }
    t->n_blocks = all->n_blocks - t->block;
}

static size_t count_blocks(struct hx_jv list)
{
    size_t n = 1;
    for (struct hx_jv v = hx_jv_first(list); v.doc; v = hx_jv_next(v)) {
        struct hx_jv content = hx_jv_get(v, "content");
        n += 1 + (hx_jv_type(content) == HX_JSON_ARRAY ? hx_jv_count(content) : 0);
    }
    return n;
}

int hx_messages_read(struct hx_jv list, unsigned flags, bool front, struct hx_messages *out,
                     struct hx_error *err)
{
    struct hx_messages m = {0};
    m.item = calloc(hx_jv_count(list) + 1, sizeof(*m.item));
    m.block = calloc(count_blocks(list), sizeof(*m.block));
    int r = m.item && m.block ? 0 : hx_fail(err, -ENOMEM, "out of memory for messages");
    size_t i = 0;
    for (struct hx_jv v = hx_jv_first(list); r == 0 && v.doc; v = hx_jv_next(v), i++) {
        struct hx_message one;
        r = read_message(&one, v, flags, i, err);
        if (r < 0)
            break;
        if (i == 0 && front && one.role != HX_ROLE_SYSTEM)
            m.item[m.n++] = (struct hx_message){.role = HX_ROLE_SYSTEM};
        bool result = one.role == HX_ROLE_TOOL;
        if (!result && one.role != HX_ROLE_USER) {
            m.item[m.n++] = one;
            continue;
        }
        struct hx_message *last = m.n ? &m.item[m.n - 1] : NULL;
        if (!last || last->role != HX_ROLE_USER || (!result && last->task)) {
            last = &m.item[m.n++];
            *last = one;
            last->role = HX_ROLE_USER;
            last->block = m.n_blocks;
        } else {
            if (hx_jv_type(one.tools) == HX_JSON_ARRAY)
                last->tools = one.tools;
            if (one.task) {
                last->task = one.task;
                last->task_is_action = one.task_is_action;
            }
        }
        add_blocks(&m, last, v, result);
    }
    if (r < 0) {
        hx_messages_done(&m);
        return r;
    }
    *out = m;
    return 0;
}

/* ---- order of results ------------------------------------------------------------------------ */

struct order {
    const char *id;
    size_t len, index;
};

static int by_id(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    int c = memcmp(x->id, y->id, x->len < y->len ? x->len : y->len);
    if (c == 0)
        c = (x->len > y->len) - (x->len < y->len);
    return c ? c : (x->index > y->index) - (x->index < y->index);
}

/* Index of the last call with this id; 0 if there is none. */
static size_t find_order(const struct order *o, size_t n, struct hx_jv id)
{
    struct order key = {.index = SIZE_MAX};
    key.id = hx_jv_str(id, &key.len);
    if (!key.id)
        return 0;
    size_t low = 0, high = n; /* first entry above the key */
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (by_id(&o[mid], &key) > 0)
            high = mid;
        else
            low = mid + 1;
    }
    bool hit = low > 0 && o[low - 1].len == key.len && memcmp(o[low - 1].id, key.id, key.len) == 0;
    return hit ? o[low - 1].index : 0;
}

struct ranked {
    size_t rank, place;
    struct hx_block block;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank > y->rank ? 1 : -1;
    return (x->place > y->place) - (x->place < y->place);
}

static void sort_turn(struct hx_block *block, size_t n, struct ranked *room,
                      const struct order *order, size_t n_order)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (block[i].result) {
            room[k] = (struct ranked){find_order(order, n_order, block[i].call_id), k, block[i]};
            k++;
        }
    }
    if (k < 2)
        return;
    qsort(room, k, sizeof(*room), by_rank);
    k = 0;
    for (size_t i = 0; i < n; i++) {
        if (block[i].result)
            block[i] = room[k++].block;
    }
}

int hx_messages_sort_results(struct hx_messages *m, struct hx_error *err)
{
    size_t most = 1, n_order = 0;
    for (size_t i = 0; i < m->n; i++) {
        size_t n = hx_jv_count(m->item[i].calls);
        most = n > most ? n : most;
    }
    struct order *order = calloc(most, sizeof(*order));
    struct ranked *room = calloc(m->n_blocks + 1, sizeof(*room));
    int r = order && room ? 0 : hx_fail(err, -ENOMEM, "out of memory for messages");
    for (size_t i = 0; r == 0 && i < m->n; i++) {
        const struct hx_message *one = &m->item[i];
        if (one->role == HX_ROLE_ASSISTANT && hx_jv_first(one->calls).doc) {
            size_t index = 0;
            n_order = 0;
            for (struct hx_jv c = hx_jv_first(one->calls); c.doc; c = hx_jv_next(c), index++) {
                struct order *o = &order[n_order];
                o->id = hx_jv_str(hx_jv_get(c, "id"), &o->len);
                o->index = index;
                n_order += o->id && o->len;
            }
            qsort(order, n_order, sizeof(*order), by_id);
        } else if (one->role == HX_ROLE_USER && n_order) {
            sort_turn(m->block + one->block, one->n_blocks, room, order, n_order);
        }
    }
    free(order);
    free(room);
    return r;
}

void hx_messages_done(struct hx_messages *m)
{
    free(m->item);
    free(m->block);
    *m = (struct hx_messages){0};
}
