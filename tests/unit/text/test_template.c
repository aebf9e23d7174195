/* The encoder against the official encoder's prompts, and segments against its ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include <hx/build_facts.h>
#include <hx/chat.h>

#include "base/json_write.h"
#include "text/effort.h"
#include "text/prompt.h"
#include "text/template.h"

#include "chat_data.h"
#include "jsonl.h"

static struct hx_json *encode_doc;

/* Joins `context` and `messages` into one list; returns the document that holds it. */
static struct hx_json *join(struct hx_jv input, size_t *n_context)
{
    struct hx_buf b = HX_BUF_INIT(1 << 20);
    struct hx_json_writer w;
    hx_jw_init(&w, &b, false);
    hx_jw_array(&w);
    static const char *const part[] = {"context", "messages"};
    *n_context = hx_jv_count(hx_jv_get(input, "context"));
    for (int k = 0; k < 2; k++) {
        struct hx_jv list = hx_jv_get(input, part[k]);
        for (struct hx_jv v = hx_jv_first(list); v.doc; v = hx_jv_next(v))
            hx_jw_value(&w, v);
    }
    hx_jw_end_array(&w);
    struct hx_json *doc = parse_json((char *)b.data, b.len);
    hx_buf_done(&b);
    return doc;
}

/* Renders an input of encode.json: 0, or the negative errno. */
static int render(struct hx_jv input, unsigned flags, struct hx_prompt *out, size_t *n_images)
{
    struct hx_error err;
    struct hx_template_options opt = {.thinking =
                                          strcmp(text_of(input, "thinking_mode"), "thinking") == 0};
    bool off, drop = true, bos = true;
    int r = hx_effort_read(hx_jv_get(input, "reasoning_effort"), HX_EFFORT_RELEASE,
                           HX_EFFORT_REFERENCE, "reasoning_effort", &opt.effort, &off, &err);
    if (r < 0)
        return r;
    hx_jv_bool(hx_jv_get(input, "drop_thinking"), &drop);
    hx_jv_bool(hx_jv_get(input, "add_default_bos_token"), &bos);
    opt.keep_thinking = !drop;
    opt.no_bos = !bos;
    struct hx_json *list = join(input, &opt.n_context);
    struct hx_messages m;
    struct hx_template_end end;
    r = hx_messages_read(hx_json_root(list), flags, false, &m, &err);
    if (r == 0) {
        r = hx_template_render(&m, &opt, out, &end, &err);
        hx_messages_done(&m);
        *n_images = r == 0 ? end.n_images : 0;
    }
    if (r < 0) {
        assert_int_equal(r, -EINVAL);
        assert_true(err.param[0] && err.slug[0] && err.text[0]);
    }
    hx_json_free(list);
    return r;
}

static void test_every_prompt_is_equal(void **state)
{
    (void)state;
    unsigned prompts = 0, errors = 0;
    struct hx_jv cases = hx_jv_get(hx_json_root(encode_doc), "cases");
    for (struct hx_jv c = hx_jv_first(cases); c.doc; c = hx_jv_next(c)) {
        struct hx_prompt p;
        size_t len, n_images;
        const char *want = hx_jv_str(hx_jv_get(c, "prompt"), &len);
        int r = render(hx_jv_get(c, "input"), HX_MESSAGES_NATIVE, &p, &n_images);
        if (!want) {
            if (r == 0)
                fail_msg("%s: accepted", text_of(c, "id"));
            errors++;
            continue;
        }
        if (r < 0)
            fail_msg("%s: refused", text_of(c, "id"));
        if (p.text.len != len || memcmp(p.text.data, want, len) != 0)
            fail_msg("%s:\n--- want\n%.*s\n--- got\n%.*s", text_of(c, "id"), (int)len, want,
                     (int)p.text.len, (char *)p.text.data);
        assert_int_equal(n_images, hx_jv_count(hx_jv_get(c, "images")));
        size_t at = 0;
        for (size_t i = 0; i < p.n_segments; i++) {
            assert_int_equal(p.segment[i].offset, at);
            assert_true(i == 0 || p.segment[i].special || p.segment[i - 1].special);
            at += p.segment[i].len;
        }
        assert_int_equal(at, len);
        hx_prompt_done(&p);
        prompts++;
    }
    assert_int_equal(prompts, 127);
    assert_int_equal(errors, 24);
}

/* The image token's spelling in text is refused by the reference; a server takes it as plain text,
 * or the client that keeps the turn is stuck (chat.md 4.7). */
static void test_image_spelling_is_plain_text(void **state)
{
    (void)state;
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"echo <｜deepseek_image｜>\"}]}";
    struct hx_json *doc = parse_json(request, strlen(request));
    struct hx_chat c;
    struct hx_error err;
    assert_int_equal(hx_chat_from_request(hx_json_root(doc), HX_EFFORT_RELEASE, &c, &err), 0);
    assert_int_equal(c.n_images, 0);
    for (size_t i = 0; i < c.prompt.n_segments; i++) {
        const struct hx_prompt_segment *s = &c.prompt.segment[i];
        bool image =
            memmem(c.prompt.text.data + s->offset, s->len, HX_T_IMAGE, strlen(HX_T_IMAGE)) != NULL;
        assert_false(image && s->special);
    }
    hx_chat_done(&c);
    hx_json_free(doc);
}

struct ids_check {
    struct hx_tokenizer *t;
    unsigned n, safe_differs;
};

static void expect_ids(const struct hx_ids *got, struct hx_jv want, const char *id)
{
    size_t i = 0;
    for (struct hx_jv v = hx_jv_first(want); v.doc; v = hx_jv_next(v), i++) {
        int64_t n = -1;
        hx_jv_int64(v, &n);
        if (i >= got->len || got->id[i] != n)
            fail_msg("%s: id %zu is %d, not %d", id, i, i < got->len ? got->id[i] : -1, (int)n);
    }
    assert_int_equal(got->len, i);
}

static void check_ids(void *user, struct hx_jv row)
{
    struct ids_check *k = user;
    struct hx_error err;
    char id[64];
    snprintf(id, sizeof(id), "%s", text_of(row, "id"));
    struct hx_jv cases = hx_jv_get(hx_json_root(encode_doc), "cases"), c = hx_jv_first(cases);
    while (c.doc && strcmp(text_of(c, "id"), id) != 0)
        c = hx_jv_next(c);
    assert_non_null(c.doc);
    struct hx_prompt p;
    size_t n_images;
    assert_int_equal(render(hx_jv_get(c, "input"), HX_MESSAGES_NATIVE, &p, &n_images), 0);
    const struct hx_encode_options whole = {.parse_special = true};
    struct hx_ids ids = {0}, safe = {0};
    if (hx_tokenizer_encode(k->t, (char *)p.text.data, p.text.len, &whole, &ids, &err) < 0 ||
        hx_prompt_encode(&p, k->t, NULL, &safe, &err) < 0)
        fail_msg("%s: %s", id, err.text);
    expect_ids(&ids, hx_jv_get(row, "ids"), id);
    struct hx_jv want = hx_jv_get(row, "ids_safe");
    k->safe_differs += want.doc != NULL;
    expect_ids(&safe, want.doc ? want : hx_jv_get(row, "ids"), id);
    k->n++;
    hx_ids_done(&ids);
    hx_ids_done(&safe);
    hx_prompt_done(&p);
}

static void test_ids(void **state)
{
    (void)state;
    struct ids_check k = {0};
    struct hx_error err;
    if (hx_tokenizer_open(HX_BUILD_DATA "/tokenizer.json", &k.t, &err) < 0)
        fail_msg("%s", err.text);
    each_line("tests/vectors/chat/prompt_ids.jsonl", check_ids, &k);
    assert_int_equal(k.n, 127);
    assert_int_equal(k.safe_differs, 3);
    int32_t ends[16];
    assert_int_equal(hx_chat_end_tokens(k.t, ends, 16), 8);
    hx_tokenizer_close(k.t);
}

static int load(void **state)
{
    (void)state;
    encode_doc = load_json("tests/vectors/chat/encode.json");
    return 0;
}

static int unload(void **state)
{
    (void)state;
    hx_json_free(encode_doc);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_prompt_is_equal),
        cmocka_unit_test(test_image_spelling_is_plain_text),
        cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
