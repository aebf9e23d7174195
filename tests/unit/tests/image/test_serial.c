/* Serial text: markers are found through terminal sequences, in any split of the input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "image/serial.h"

static void feed(struct hx_serial *s, const char *text)
{
    assert_int_equal(hx_serial_feed(s, text, strlen(text), NULL), 0);
}

struct row {
    const char *name;
    const char *input;
    const char *text;
};

static const struct row rows[] = {
    {"plain", "one\r\ntwo\r\n", "one\ntwo\n"},
    {"colours", "\x1b[0;1;32mhx-\x1b[0mready\x1b[K\n", "hx-ready\n"},
    {"private modes", "\x1b[?25lhidden\x1b[?2004h\n", "hidden\n"},
    {"title ended by BEL", "\x1b]0;a title\x07text\n", "text\n"},
    {"title ended by ST", "\x1b]3008;start=1;x\x1b\\text\n", "text\n"},
    {"device control", "\x1bP+q544e\x1b\\text\n", "text\n"},
    {"character set", "\x1b(Btext\x1b)0\n", "text\n"},
    {"one letter",
     "\x1b=\x1b>\x1b"
     "7text\x1b"
     "8\n",
     "text\n"},
    {"cursor jump parts lines", "left\x1b[10;40Hright\x1b[2Jnew\n", "left\nright\nnew\n"},
    {"jump at the start of a line", "\x1b[1;1H\x1b[2Jtext\n", "text\n"},
    {"empty lines", "\n\n\r\n\x07\b\n", ""},
    {"tabulator", "a\tb\n", "a b\n"},
    {"UTF-8 stays", "caf\xc3\xa9\n", "caf\xc3\xa9\n"},
    {"sequence within sequence", "\x1b[3\x1b[0mtext\n", "text\n"},
    {"NUL", "a\n", "a\n"},
    {"no newline", "login: ", "login: "},
};

static void test_strip(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        /* Whole, and in pieces of every size. */
        size_t n = strlen(rows[i].input);
        for (size_t piece = 1; piece <= n; piece++) {
            struct hx_serial s;
            hx_serial_init(&s);
            for (size_t at = 0; at < n; at += piece)
                assert_int_equal(
                    hx_serial_feed(&s, rows[i].input + at, n - at < piece ? n - at : piece, NULL),
                    0);
            const char *text = hx_buf_cstr(&s.text);
            assert_non_null(text);
            assert_string_equal(text, rows[i].text);
            hx_serial_done(&s);
        }
    }
}

static void test_endless_sequence(void **state)
{
    (void)state;
    struct hx_serial s;
    hx_serial_init(&s);
    feed(&s, "\x1b]0;");
    for (int i = 0; i < 1000; i++)
        feed(&s, "x");
    feed(&s, "\nmarker\n");
    size_t behind;
    assert_true(hx_serial_find(&s, "marker", 0, &behind));
    hx_serial_done(&s);
}

static void test_find(void **state)
{
    (void)state;
    struct hx_serial s;
    hx_serial_init(&s);
    size_t at = 0, again;
    assert_false(hx_serial_find(&s, "x", 0, &at));
    feed(&s, "first hx: ready\nsecond hx: ready\nhalf a mar");
    assert_true(hx_serial_find(&s, "hx: ready", 0, &at));
    assert_int_equal(at, strlen("first hx: ready"));
    assert_true(hx_serial_find(&s, "hx: ready", at, &again));
    assert_int_equal(again, strlen("first hx: ready\nsecond hx: ready"));
    assert_false(hx_serial_find(&s, "hx: ready", again, &at));
    assert_false(hx_serial_find(&s, "marker", 0, &at));
    feed(&s, "ker\n");
    assert_true(hx_serial_find(&s, "marker", 0, &at));
    /* Over the end of a line there is no match, nor for nothing. */
    assert_false(hx_serial_find(&s, "ready\nsecond", 0, &at));
    assert_false(hx_serial_find(&s, "readysecond", 0, &at));
    assert_false(hx_serial_find(&s, "", 0, &at));
    assert_false(hx_serial_find(&s, "half", SIZE_MAX, &at));
    hx_serial_done(&s);
}

static void test_tail(void **state)
{
    (void)state;
    struct hx_serial s;
    struct hx_buf b = HX_BUF_INIT(4096);
    hx_serial_init(&s);
    assert_int_equal(hx_serial_tail(&s, 3, &b, NULL), 0);
    assert_string_equal((const char *)b.data, "");
    feed(&s, "a\nb\nc\n");
    assert_int_equal(hx_serial_tail(&s, 2, &b, NULL), 0);
    assert_string_equal((const char *)b.data, "b\nc\n");
    assert_int_equal(hx_serial_tail(&s, 9, &b, NULL), 0);
    assert_string_equal((const char *)b.data, "a\nb\nc\n");
    feed(&s, "open");
    assert_int_equal(hx_serial_tail(&s, 2, &b, NULL), 0);
    assert_string_equal((const char *)b.data, "c\nopen");
    hx_buf_done(&b);
    hx_serial_done(&s);
}

static void test_too_much(void **state)
{
    (void)state;
    size_t n = (size_t)1 << 20;
    char *block = malloc(n);
    assert_non_null(block);
    memset(block, 'x', n);
    struct hx_serial s;
    struct hx_error err;
    hx_serial_init(&s);
    int r = 0;
    size_t blocks = 0;
    while (!r && blocks < 100) {
        r = hx_serial_feed(&s, block, n, &err);
        blocks++;
    }
    assert_int_equal(r, -EMSGSIZE);
    assert_int_equal(blocks, (HX_SERIAL_MAX >> 20) + 1);
    assert_non_null(strstr(err.text, "loop"));
    hx_serial_done(&s);
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strip),    cmocka_unit_test(test_endless_sequence),
        cmocka_unit_test(test_find),     cmocka_unit_test(test_tail),
        cmocka_unit_test(test_too_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
