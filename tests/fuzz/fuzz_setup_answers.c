/* Answers files: refused with one line that begins with the file's name, or written and read again
 * without change. */
#include "fuzz.h"

#include "setup/box.h"
#include "setup/sshkey.h"

static void check_again(const struct hx_box *box)
{
    struct hx_buf a = HX_BUF_INIT(8u << 20), b = HX_BUF_INIT(8u << 20);
    struct hx_box again;
    struct hx_error err;
    EXPECT(hx_box_write(box, HX_BOX_ANSWERS, &a) == 0);
    EXPECT(hx_box_parse((char *)a.data, a.len, "f", HX_BOX_ANSWERS, &again, &err) == 0);
    EXPECT(hx_box_write(&again, HX_BOX_ANSWERS, &b) == 0);
    EXPECT(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    hx_box_done(&again);
    hx_buf_done(&a);
    hx_buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_box box;
    struct hx_error err;
    struct hx_ssh_key key;
    int r = hx_box_parse((const char *)data, size, "f", HX_BOX_ANSWERS, &box, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        EXPECT(strncmp(err.text, "f:", 2) == 0);
    } else {
        r = hx_box_check(&box, HX_BOX_ANSWERS, &err);
        if (r < 0)
            expect_refusal(r, &err);
        check_again(&box);
        hx_box_done(&box);
    }
    r = hx_ssh_key_parse((const char *)data, size, &key, &err);
    if (r < 0)
        expect_refusal(r, &err);
    else
        hx_ssh_key_done(&key);
    return 0;
}
