/* Token map: any vocabulary gets a map with dense ids in order of first use. The input is split
 * into tokens at 0xFE; a token that starts with 0xFD counts as an added one if it is UTF-8. */
#include "fuzz.h"

#include "base/utf8.h"
#include "engram/token_map.h"

#define MAX_TOKENS 256

struct vocab {
    struct hx_token_bytes token[MAX_TOKENS];
    int32_t n;
};

static int get(void *user, int32_t id, struct hx_token_bytes *out, struct hx_error *err)
{
    struct vocab *v = user;
    (void)err;
    *out = v->token[id];
    return 0;
}

static void split(struct vocab *v, const uint8_t *data, size_t size)
{
    size_t from = 0;
    for (size_t i = 0; i <= size && v->n < MAX_TOKENS; i++) {
        if (i < size && data[i] != 0xFE)
            continue;
        struct hx_token_bytes t = {data + from, i - from, false};
        if (t.len > 1 && t.data[0] == 0xFD &&
            hx_utf8_valid_prefix(t.data + 1, t.len - 1) == t.len - 1)
            t = (struct hx_token_bytes){t.data + 1, t.len - 1, true};
        v->token[v->n++] = t;
        from = i + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct vocab v;
    v.n = 0;
    split(&v, data, size);
    int32_t map[MAX_TOKENS], n_ids = 0, next = 0;
    struct hx_token_source source = {v.n, get, &v};
    struct hx_error err = {0};
    int r = hx_token_map_build(&source, map, &n_ids, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return 0;
    }
    struct hx_buf key[2] = {HX_BUF_INIT(4 << 20), HX_BUF_INIT(4 << 20)};
    for (int32_t i = 0; i < v.n; i++) {
        EXPECT(map[i] >= 0 && map[i] <= next);
        next += map[i] == next;
        hx_buf_clear(&key[0]);
        EXPECT(hx_token_map_key(&v.token[i], &key[0], &err) == 0);
        EXPECT(key[0].len > 0);
        EXPECT(hx_utf8_valid_prefix(key[0].data, key[0].len) == key[0].len);
        if (i == 0)
            continue;
        hx_buf_clear(&key[1]);
        EXPECT(hx_token_map_key(&v.token[i - 1], &key[1], &err) == 0);
        bool same = key[0].len == key[1].len && !memcmp(key[0].data, key[1].data, key[0].len);
        EXPECT(same == (map[i] == map[i - 1]));
    }
    EXPECT(next == n_ids);
    hx_buf_done(&key[0]);
    hx_buf_done(&key[1]);
    return 0;
}
