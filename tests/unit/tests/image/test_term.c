#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "image/term.h"

static struct hx_term t;

static void feed(const char *text)
{
    hx_term_feed(&t, text, strlen(text));
}

static void line_is(int row, const char *text)
{
    char line[HX_TERM_COLS + 1];
    memset(line, ' ', HX_TERM_COLS);
    memcpy(line, text, strlen(text));
    line[HX_TERM_COLS] = '\0';
    assert_memory_equal(t.cell[row], line, HX_TERM_COLS);
}

static void test_lines(void **state)
{
    (void)state;
    hx_term_init(&t);
    feed("one\r\ntwo\b\bX\tz\x07\x01");
    line_is(0, "one");
    line_is(1, "tXo     z");
    for (int i = 0; i < HX_TERM_ROWS; i++)
        feed("\r\n");
    line_is(0, "");
    hx_term_init(&t);
    for (int i = 0; i < HX_TERM_COLS; i++)
        feed("a");
    assert_int_equal(t.row, 0); /* the edge counts with the next sign only */
    feed("b");
    assert_int_equal(t.row, 1);
    line_is(1, "b");
}

static void test_sequences(void **state)
{
    (void)state;
    hx_term_init(&t);
    feed("garbage\x1b[2J\x1b[3;5Hhere\x1b[1;31m!\x1b[m\x1b[?25l\x1b]0;title\x07\x1b]104\x1b\\.");
    line_is(0, "");
    line_is(2, "    here!.");
    feed("\x1b[3;1Habcd\x1b[3G\x1b[K");
    line_is(2, "ab");
    feed("\rabcdef\r\x1b[2C\x1b[2P\x1b[1@-\x1b[2X");
    line_is(2, "ab-"); /* abef, ab-ef, then two erased */
    feed("\x1b[999;999Hz\x1b[1;1H\x1b[J");
    line_is(HX_TERM_ROWS - 1, "");
    /* Cut anywhere, it reads the same. */
    hx_term_init(&t);
    const char *text = "\x1b[4;2H\x1b)0\x0elqqk\x0fx";
    for (const char *p = text; *p; p++)
        hx_term_feed(&t, p, 1);
    line_is(3, " +--+x");
}

static void test_words(void **state)
{
    struct hx_buf b = HX_BUF_INIT(4096);
    (void)state;
    hx_term_init(&t);
    feed("\x1b(B\x1b)0\x0elqqqu\x0f Step 1 \x0etqqk\x0f\r\n\x0ex\x0f name:       \x0ex\x0f\r\n");
    assert_int_equal(hx_term_words(&t, &b), 0);
    assert_memory_equal(b.data, "--- Step 1 -- name:", b.len);
    assert_false(hx_term_has_note(&t));
    feed(
        "behind \x0elqu\x0f Note \x0etqk\x0f behind\r\nbehind \x0ex\x0f not so   \x0ex\x0f behind");
    assert_true(hx_term_has_note(&t));
    assert_int_equal(hx_term_words(&t, &b), 0);
    assert_non_null(hx_buf_cstr(&b));
    assert_non_null(strstr(hx_buf_cstr(&b), "- Note - not so"));
    assert_null(strstr(hx_buf_cstr(&b), "behind"));
    assert_int_equal(hx_term_picture(&t, &b), 0);
    assert_non_null(strstr(hx_buf_cstr(&b), "behind +-| Note |-+ behind\n"));
    hx_buf_done(&b);
}

/* The same frames as signs of their own, cut in the middle of one; a sign that is no frame. */
static void test_utf8(void **state)
{
    const char *text = "┌┤ Note ├┐\r\n│ größe  │\r\n└─▒──────┘\xe2\r\nab\x80";
    (void)state;
    hx_term_init(&t);
    for (const char *p = text; *p; p++)
        hx_term_feed(&t, p, 1);
    line_is(0, "+| Note |+");
    line_is(1, "| gr??e  |");
    line_is(2, "+-#------+");
    line_is(3, "ab");
    assert_true(hx_term_has_note(&t));
}

static void test_nonsense(void **state)
{
    uint32_t x = 17;
    (void)state;
    hx_term_init(&t);
    for (int i = 0; i < 200000; i++) {
        x = x * 1664525u + 1013904223u;
        uint8_t c = (uint8_t)(x >> 24);
        hx_term_feed(&t, i % 3 ? &c : (const void *)"\x1b[", i % 3 ? 1 : 2);
    }
    assert_in_range(t.row, 0, HX_TERM_ROWS - 1);
    assert_in_range(t.col, 0, HX_TERM_COLS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),    cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_words),    cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
