/* Lock files: what is accepted is written back the same, and its plan covers every output once. */
#include "fuzz.h"

#include "fetch/plan.h"

static void check_file(const struct hx_plan_file *p)
{
    uint64_t out = p->header_bytes, fetched = 0;
    uint32_t segment = 0;
    for (size_t i = 0; i < p->n_chunks; i++) {
        const struct hx_plan_chunk *c = &p->chunks[i];
        EXPECT(c->out_begin == out && c->first_segment == segment && c->n_segments > 0);
        EXPECT(c->src_bytes >= c->out_bytes && c->src_bytes <= p->lock->size - c->src_begin);
        EXPECT(c->out_begin / p->lock->chunk == (c->out_begin + c->out_bytes - 1) / p->lock->chunk);
        uint64_t at = c->src_begin, end = out;
        for (uint32_t k = 0; k < c->n_segments; k++, segment++) {
            const struct hx_plan_segment *s = &p->segments[segment];
            EXPECT(s->n_bytes > 0 && s->src_begin >= at && s->out_begin == end);
            at = s->src_begin + s->n_bytes;
            end += s->n_bytes;
        }
        EXPECT(at == c->src_begin + c->src_bytes && end == out + c->out_bytes);
        out = end;
        fetched += c->src_bytes;
    }
    EXPECT(segment == p->n_segments && out == p->out_bytes && fetched == p->fetched_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_lock *lock = NULL, *again = NULL;
    struct hx_plan *plan = NULL;
    struct hx_error err = {0};
    struct hx_buf a = HX_BUF_INIT(64u << 20), b = HX_BUF_INIT(64u << 20);
    int r = hx_lock_parse((const char *)data, size, "fuzz.json", &lock, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        EXPECT(!lock);
        return 0;
    }
    for (size_t i = 0; i < lock->n_files; i++)
        EXPECT(hx_lock_path_ok(lock->files[i].out) && lock->files[i].source < lock->n_sources);
    EXPECT(hx_lock_format(lock, &a, &err) == 0);
    EXPECT(hx_lock_parse((const char *)a.data, a.len, "fuzz.json", &again, &err) == 0);
    EXPECT(hx_lock_format(again, &b, &err) == 0);
    EXPECT(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    EXPECT(hx_plan_make(lock, NULL, &plan, &err) == 0 && plan->n_files == lock->n_files);
    for (size_t i = 0; i < plan->n_files; i++)
        check_file(&plan->files[i]);
    hx_plan_free(plan);
    hx_buf_done(&a);
    hx_buf_done(&b);
    hx_lock_free(lock);
    hx_lock_free(again);
    return 0;
}
