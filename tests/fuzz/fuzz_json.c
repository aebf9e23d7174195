/* JSON reader and writer: whatever is accepted survives writing and reading again. */
#include "fuzz.h"

#include "base/json_read.h"
#include "base/json_write.h"

static struct hx_json *parse(const void *text, size_t len, struct hx_error *err, int *r)
{
    struct hx_json_limits limits = {1 << 20, 1 << 16, 100, HX_JSON_ALLOW_NONFINITE};
    struct hx_json *doc = NULL;
    *r = hx_json_parse(text, len, &limits, &doc, err);
    EXPECT((*r == 0) == (doc != NULL));
    return doc;
}

static void write(struct hx_buf *out, const struct hx_json *doc, bool spaced)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, spaced);
    hx_jw_value(&w, hx_json_root(doc));
    EXPECT(!out->failed);
}

static size_t walk(struct hx_jv v)
{
    size_t n = 1, len;
    int64_t i;
    double d;
    hx_jv_str(v, &len);
    hx_jv_int64(v, &i);
    hx_jv_double(v, &d);
    EXPECT(hx_json_type_name(hx_jv_type(v)) != NULL);
    for (struct hx_jv e = hx_jv_first(v); e.doc; e = hx_jv_next(e))
        n += walk(e);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_error err = {0};
    int r;
    struct hx_json *doc = parse(data, size, &err, &r), *again;
    if (!doc) {
        expect_refusal(r, &err);
        return 0;
    }
    EXPECT(walk(hx_json_root(doc)) <= 1 << 16);
    for (int spaced = 0; spaced < 2; spaced++) {
        struct hx_buf a = HX_BUF_INIT(16 << 20), b = HX_BUF_INIT(16 << 20);
        write(&a, doc, spaced);
        again = parse(a.data, a.len, &err, &r);
        EXPECT(again);
        write(&b, again, spaced);
        EXPECT(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
        hx_json_free(again);
        hx_buf_done(&a);
        hx_buf_done(&b);
    }
    hx_json_free(doc);
    return 0;
}
