/* Chat requests: any JSON is a prompt whose segments cover it, or one clear refusal. */
#include "fuzz.h"

#include <hx/chat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct hx_json_limits limits = {1 << 20, 1 << 16, 128, 0};
    struct hx_json *doc;
    struct hx_error err = {0};
    if (hx_json_parse((const char *)data, size, &limits, &doc, &err) < 0)
        return 0;
    for (int table = 0; table < 2; table++) {
        struct hx_chat c;
        struct hx_prompt forced;
        memset(&err, 0, sizeof(err));
        int r = hx_chat_from_request(hx_json_root(doc), (enum hx_effort_table)table, &c, &err);
        if (r < 0) {
            expect_refusal(r, &err);
            EXPECT(err.slug[0]);
            continue;
        }
        size_t at = 0;
        for (size_t i = 0; i < c.prompt.n_segments; i++) {
            EXPECT(c.prompt.segment[i].offset == at);
            at += c.prompt.segment[i].len;
        }
        EXPECT(at == c.prompt.text.len);
        EXPECT(hx_chat_forced_prefix(&c, &forced, &err) == 0);
        hx_prompt_done(&forced);
        hx_chat_done(&c);
    }
    hx_json_free(doc);
    return 0;
}
