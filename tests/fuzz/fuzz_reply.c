/* Replies: the first byte chooses the options, the rest is the model's text. The chunks do not
 * matter, and what a finished call holds is JSON. */
#include "fuzz.h"

#include "../unit/text/reply_run.h"
#include "base/utf8.h"
#include "text/tools.h"

static struct hx_tools *declare(void)
{
    static const char list[] =
        "[{\"function\":{\"name\":\"bash\",\"parameters\":{\"properties\":{\"command\":{\"type\":"
        "\"string\"},\"timeout\":{\"type\":\"number\"}},\"required\":[\"command\"]}}},"
        "{\"function\":{\"name\":\"ping\"}}]";
    struct hx_json *doc;
    struct hx_tools *tools;
    const struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    EXPECT(hx_json_parse(list, sizeof(list) - 1, &limits, &doc, NULL) == 0);
    EXPECT(hx_tools_new(hx_json_root(doc), &tools, NULL) == 0);
    hx_json_free(doc);
    return tools;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct hx_tools *tools = declare();
    uint8_t bits = data[0];
    const struct hx_reply_options opt = {.thinking = bits & 1,
                                         .tools = bits & 2 ? tools : NULL,
                                         .parallel_tool_calls = bits & 4,
                                         .streaming = bits & 8};
    enum hx_reply_end end = bits & 16 ? HX_REPLY_END_LENGTH : HX_REPLY_END_EOS;
    const char *text = (const char *)data + 1;
    struct reply_result whole, part;
    EXPECT(reply_run(&opt, text, size - 1, size, 0, end, &whole) == 0);
    for (unsigned k = 0; k < 3; k++) {
        EXPECT(reply_run(&opt, text, size - 1, k == 0, bits + k, end, &part) == 0);
        EXPECT(same_result(&whole, &part));
        reply_result_done(&part);
    }
    for (int i = 0; i < MAX_CALLS; i++) {
        struct hx_json *doc;
        struct hx_error err;
        const struct hx_json_limits limits = {1 << 20, 1 << 20, 200, 0};
        if (!whole.complete[i] ||
            hx_utf8_valid_prefix(whole.args[i].data, whole.args[i].len) < whole.args[i].len)
            continue;
        EXPECT(hx_json_parse((char *)whole.args[i].data, whole.args[i].len, &limits, &doc, &err) ==
               0);
        hx_json_free(doc);
    }
    reply_result_done(&whole);
    hx_tools_free(tools);
    return 0;
}
