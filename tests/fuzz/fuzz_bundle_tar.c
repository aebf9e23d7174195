/* Tar archives of driver bundles: refused, or a list of entries with names and content that lie
 * inside the archive. */
#include "fuzz.h"

#include "bundle/source.h"

struct stream {
    const uint8_t *data;
    size_t size, at;
};

static int read_stream(void *ctx, void *buf, size_t len, size_t *n, struct hx_error *err)
{
    struct stream *s = ctx;
    (void)err;
    size_t left = s->size - s->at;
    *n = len < left ? len : left;
    memcpy(buf, s->data + s->at, *n);
    s->at += *n;
    return 0;
}

static int see(void *ctx, const struct hx_entry *e, struct hx_error *err)
{
    size_t *n = ctx;
    ++*n;
    EXPECT(e->path[0] && strlen(e->path) < HX_SOURCE_NAME_MAX);
    EXPECT(strncmp(e->path, "./", 2) != 0);
    if (e->kind != HX_ENTRY_FILE) {
        EXPECT(e->size == 0);
        return 0;
    }
    if (*n % 3 == 0) /* content that nobody reads is skipped */
        return 0;
    uint64_t got = 0;
    for (;;) {
        char buf[1000];
        size_t part;
        int r = hx_entry_read(e->body, buf, sizeof(buf), &part, err);
        if (r < 0)
            return r;
        if (part == 0)
            break;
        got += part;
    }
    EXPECT(got == e->size);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stream s = {data, size, 0};
    struct hx_error err = {0};
    size_t n = 0;
    int r = hx_tar_walk(read_stream, &s, "archive", see, &n, &err);
    if (r < 0)
        expect_refusal(r, &err);
    return 0;
}
