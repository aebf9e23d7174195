/* The journal's text: back and forth, every byte cut or changed, what it refuses. */
#include "bundle/journal.h"
#include "bundle_data.h"

static struct hx_journal example(void)
{
    struct hx_journal j;
    hx_journal_init(&j);
    j.state = HX_BUNDLE_PROBING;
    j.active = HX_SLOT_A;
    j.candidate = HX_SLOT_B;
    snprintf(j.name, sizeof(j.name), "one");
    snprintf(j.kernel, sizeof(j.kernel), "6.1.0");
    snprintf(j.why, sizeof(j.why), "a \"quoted\" reason");
    j.armed_at = 1800000000;
    j.starts = 2;
    j.off_s = 60;
    j.cold_wanted = true;
    return j;
}

static void test_back_and_forth(void **state)
{
    (void)state;
    struct hx_journal j = example(), back;
    struct hx_buf text = HX_BUF_INIT(HX_JOURNAL_MAX);
    assert_int_equal(hx_journal_format(&j, &text), 0);
    assert_int_equal(hx_journal_parse((char *)text.data, text.len, &back, &err), 0);
    assert_memory_equal(&j, &back, sizeof(j));
    hx_buf_done(&text);
}

static void test_cut_and_changed_text(void **state)
{
    (void)state;
    struct hx_journal j = example(), back;
    struct hx_buf text = HX_BUF_INIT(HX_JOURNAL_MAX);
    const char *why;
    assert_int_equal(hx_journal_format(&j, &text), 0);
    for (size_t n = 0; n + 2 < text.len; n++)
        assert_true(hx_journal_parse((char *)text.data, n, &back, &err) < 0);
    for (size_t i = 0; i < text.len; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            text.data[i] ^= (uint8_t)(1u << bit);
            if (hx_journal_parse((char *)text.data, text.len, &back, &err) == 0)
                assert_true(hx_journal_sound(&back, &why));
            text.data[i] ^= (uint8_t)(1u << bit);
        }
    hx_buf_done(&text);
}

static void unsound(struct hx_journal j, const char *want)
{
    struct hx_buf text = HX_BUF_INIT(HX_JOURNAL_MAX);
    struct hx_journal back;
    const char *why;
    assert_false(hx_journal_sound(&j, &why));
    assert_string_equal(why, want);
    hx_journal_format(&j, &text);
    assert_int_equal(hx_journal_parse((char *)text.data, text.len, &back, &err), -EINVAL);
    assert_non_null(strstr(err.text, want));
    hx_buf_done(&text);
}

static void test_contradictions(void **state)
{
    (void)state;
    struct hx_journal j = example();
    j.candidate = HX_SLOT_A;
    unsound(j, "one slot has two uses");
    j = example();
    j.previous = HX_SLOT_B;
    unsound(j, "one slot has two uses");
    j = example();
    j.candidate = HX_SLOT_NONE;
    unsound(j, "state and candidate do not fit");
    j = example();
    j.state = HX_BUNDLE_COMMITTED;
    unsound(j, "state and candidate do not fit");
    j.candidate = j.active = HX_SLOT_NONE;
    unsound(j, "nothing is active after a commit");
    j.state = HX_BUNDLE_ABSENT;
    j.previous = HX_SLOT_A;
    unsound(j, "absent, but a slot is in use");
}

static void test_next_start(void **state)
{
    (void)state;
    struct hx_journal j = example();
    for (int s = 0; s < HX_BUNDLE_STATE_MAX; s++) {
        j.state = (enum hx_bundle_state)s;
        bool trial = j.state == HX_BUNDLE_ARMED || j.state == HX_BUNDLE_PROBING;
        assert_int_equal(hx_journal_next(&j), trial ? HX_SLOT_B : HX_SLOT_A);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_back_and_forth),
        cmocka_unit_test(test_cut_and_changed_text),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_next_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
