/* Journals of driver slots: refused, or sound and the same after writing and reading again. */
#include "fuzz.h"

#include "bundle/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_journal j, again;
    struct hx_error err = {0};
    struct hx_buf text = HX_BUF_INIT(HX_JOURNAL_MAX);
    const char *why;
    int r = hx_journal_parse((const char *)data, size, &j, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return 0;
    }
    EXPECT(hx_journal_sound(&j, &why));
    enum hx_slot next = hx_journal_next(&j);
    EXPECT(next == HX_SLOT_NONE || next == HX_SLOT_A || next == HX_SLOT_B);
    EXPECT(hx_journal_format(&j, &text) == 0);
    EXPECT(hx_journal_parse((const char *)text.data, text.len, &again, &err) == 0);
    EXPECT(strcmp(j.name, again.name) == 0 && j.state == again.state && j.off_s == again.off_s &&
           j.active == again.active && j.previous == again.previous &&
           j.candidate == again.candidate);
    hx_buf_done(&text);
    return 0;
}
