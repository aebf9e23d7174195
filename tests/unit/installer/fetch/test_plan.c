/* Plans: chunks and segments of whole and cut files against a slow model of the same rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/rand.h"
#include "fetch/plan.h"
#include "model/safetensors.h"
#include "sample_lock.h"

static struct hx_lock *lock_of(const char *text)
{
    struct hx_lock *lock = NULL;
    struct hx_error err = {0};
    if (hx_lock_parse(text, strlen(text), "test.json", &lock, &err) != 0)
        fail_msg("%s", err.text);
    return lock;
}

static struct hx_plan *plan_of(const struct hx_lock *lock, const char *groups)
{
    struct hx_plan *plan = NULL;
    struct hx_error err = {0};
    if (hx_plan_make(lock, groups, &plan, &err) != 0)
        fail_msg("%s", err.text);
    return plan;
}

static const struct hx_plan_file *file_of(const struct hx_plan *plan, const char *out)
{
    for (size_t i = 0; i < plan->n_files; i++) {
        if (strcmp(plan->files[i].lock->out, out) == 0)
            return &plan->files[i];
    }
    fail_msg("no %s in the plan", out);
    return NULL;
}

/* What every plan must hold: output covered once, in order; requests inside the source; chunks
 * within their block of the output. */
static void check_file(const struct hx_plan_file *p)
{
    uint64_t out = p->header_bytes, wanted = 0, fetched = 0;
    uint32_t segment = 0;
    for (size_t i = 0; i < p->n_chunks; i++) {
        const struct hx_plan_chunk *c = &p->chunks[i];
        uint64_t src_end = c->src_begin, chunk_out = 0;
        assert_int_equal(c->out_begin, out);
        assert_int_equal(c->first_segment, segment);
        assert_true(c->n_segments > 0);
        for (uint32_t k = 0; k < c->n_segments; k++, segment++) {
            const struct hx_plan_segment *s = &p->segments[segment];
            assert_true(s->n_bytes > 0);
            assert_true(s->src_begin >= src_end);
            assert_true(k > 0 || s->src_begin == c->src_begin);
            assert_int_equal(s->out_begin, out);
            src_end = s->src_begin + s->n_bytes;
            out += s->n_bytes;
            chunk_out += s->n_bytes;
        }
        assert_int_equal(c->out_bytes, chunk_out);
        assert_int_equal(c->src_bytes, src_end - c->src_begin);
        assert_true(src_end <= p->lock->size);
        assert_int_equal(c->out_begin / p->lock->chunk,
                         (c->out_begin + c->out_bytes - 1) / p->lock->chunk);
        wanted += chunk_out;
        fetched += c->src_bytes;
    }
    assert_int_equal(segment, p->n_segments);
    assert_int_equal(out, p->out_bytes);
    assert_int_equal(wanted, p->wanted_bytes);
    assert_int_equal(fetched, p->fetched_bytes);
    assert_true((fetched - wanted) * 50 <= wanted);
}

static void test_whole(void **state)
{
    (void)state;
    struct hx_lock *lock = lock_of(sample_lock);
    struct hx_plan *plan = plan_of(lock, NULL);
    const struct hx_plan_file *p = file_of(plan, "experts/00001.safetensors");
    assert_null(p->header);
    assert_int_equal(p->out_bytes, 10000);
    assert_int_equal(p->n_chunks, 3);
    assert_int_equal(p->chunks[2].src_begin, 8192);
    assert_int_equal(p->chunks[2].src_bytes, 10000 - 8192);
    assert_ptr_equal(p->chunks[1].sha256, p->lock->chunk_sha256[1]);
    assert_null(file_of(plan, "config.json")->chunks[0].sha256);
    assert_string_equal(p->source->id, "exl3");
    for (size_t i = 0; i < plan->n_files; i++)
        check_file(&plan->files[i]);
    hx_plan_free(plan);
    hx_lock_free(lock);
}

/* The header of a cut is one that the engine reads, and says where the tensors came from. */
static void test_cut_header(void **state)
{
    (void)state;
    struct hx_lock *lock = lock_of(sample_lock);
    struct hx_plan *plan = plan_of(lock, "dense");
    const struct hx_plan_file *p = &plan->files[0];
    struct hx_st_file *st = NULL;
    struct hx_error err = {0};
    assert_int_equal(p->header_bytes % 4096, 0);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | p->header[i];
    assert_int_equal(n, p->header_bytes - 8);
    if (hx_st_parse("cut", p->header + 8, n, p->out_bytes, &st, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(hx_st_count(st), 3);
    const struct hx_st_tensor *t = hx_st_at(st, 2);
    assert_string_equal(t->name, "c");
    assert_int_equal(t->offset, p->header_bytes + 1200);
    assert_int_equal(t->ne[1], 100);
    char *text = strndup((const char *)p->header + 8, n);
    assert_non_null(text);
    assert_non_null(strstr(text, "\"repository\":\"owner/name\""));
    assert_non_null(strstr(text, "\"commit\":\"" COMMIT "\""));
    assert_non_null(strstr(text, "\"file\":\"model-3.safetensors\""));
    assert_non_null(strstr(text, "\"header_sha256\":\"" HASH_B "\""));
    free(text);
    /* Two runs: [1000, 2200) and [91000, 95000); the second one crosses a block of the output. */
    assert_int_equal(p->wanted_bytes, 5200);
    assert_int_equal(p->n_chunks, 3);
    assert_int_equal(p->chunks[0].src_begin, 1000);
    assert_int_equal(p->chunks[0].src_bytes, 1200);
    assert_int_equal(p->chunks[1].src_begin, 91000);
    assert_int_equal(p->chunks[1].src_bytes, 4096 - 1200);
    assert_int_equal(p->chunks[2].src_begin, 91000 + 4096 - 1200);
    check_file(p);
    hx_st_close(st);
    hx_plan_free(plan);
    hx_lock_free(lock);
}

static void test_groups(void **state)
{
    (void)state;
    struct hx_lock *lock = lock_of(sample_lock);
    struct hx_plan *plan = plan_of(lock, NULL);
    const char *const order[] = {"config.json", "dense/00003.safetensors",
                                 "experts/00001.safetensors", "engram/layer1.safetensors"};
    assert_int_equal(plan->n_files, 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(plan->files[i].lock->out, order[i]);
    assert_int_equal(plan->wanted_bytes, 100 + 5200 + 10000 + 5000);
    struct hx_plan *some = plan_of(lock, "engram,small");
    assert_int_equal(some->n_files, 2);
    assert_string_equal(some->files[1].lock->out, "engram/layer1.safetensors");
    assert_memory_equal(some->sha256, plan->sha256, 32);
    hx_plan_free(some);
    const char *const wrong[] = {"everything", "small,",      "small,,dense",
                                 "Small",      "small dense", ","};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hx_error err = {0};
        struct hx_plan *none = NULL;
        int r = hx_plan_make(lock, wrong[i], &none, &err);
        if (i == 1) { /* one comma at the end is harmless */
            assert_int_equal(r, 0);
            hx_plan_free(none);
            continue;
        }
        assert_int_equal(r, -EINVAL);
        assert_non_null(strstr(err.text, "groups"));
        assert_null(none);
    }
    hx_plan_free(plan);
    hx_lock_free(lock);
}

static void test_group_not_there(void **state)
{
    (void)state;
    char *text = sample_with("experts/00001", "dense/00001", 0);
    struct hx_lock *lock = lock_of(text);
    struct hx_plan *plan = NULL;
    struct hx_error err = {0};
    assert_int_equal(hx_plan_make(lock, "experts", &plan, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no file in 'experts'"));
    hx_lock_free(lock);
    free(text);
}

static uint64_t below(struct hx_rng *r, uint64_t n)
{
    return hx_rng_next(r) % n;
}

/* A lock of one cut file with random tensors and gaps. */
static struct hx_lock *random_lock(struct hx_rng *r)
{
    struct hx_lock *lock = calloc(1, sizeof(*lock));
    assert_non_null(lock);
    lock->model = strdup("m");
    lock->sources = calloc(1, sizeof(*lock->sources));
    lock->files = calloc(1, sizeof(*lock->files));
    assert_true(lock->model && lock->sources && lock->files);
    lock->n_sources = lock->n_files = 1;
    lock->sources[0].id = strdup("s");
    lock->sources[0].repo = strdup("o/n");
    memset(lock->sources[0].commit, 'a', 40);
    struct hx_lock_file *f = &lock->files[0];
    f->path = strdup("p.safetensors");
    f->out = strdup("dense/1.safetensors");
    f->group = HX_GROUP_DENSE;
    f->mode = HX_LOCK_CUT;
    f->header_bytes = 10 + below(r, 5000);
    f->chunk = 4096 * (1 + below(r, 64));
    size_t n = 1 + below(r, 40);
    f->tensors = calloc(n, sizeof(*f->tensors));
    assert_non_null(f->tensors);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        struct hx_lock_tensor *t = &f->tensors[f->n_tensors++];
        char name[32];
        snprintf(name, sizeof(name), "t%zu", i);
        t->name = strdup(name);
        t->dtype = strdup("U8");
        at += below(r, 3) ? 0 : below(r, 1 + (1u << below(r, 22)));
        t->begin = at;
        at += (i > 0 && below(r, 8) == 0) ? 0 : 1 + below(r, 1u << below(r, 20));
        t->end = at;
        t->shape[0] = t->end - t->begin;
        t->n_dims = 1;
    }
    f->size = f->header_bytes + at + below(r, 1000);
    return lock;
}

/* Bytes put where the plan says are those of the tensors one after the other. */
static void test_random_cuts(void **state)
{
    (void)state;
    struct hx_rng r;
    hx_rng_seed(&r, 1);
    size_t joined = 0;
    for (int round = 0; round < 400; round++) {
        struct hx_lock *lock = random_lock(&r);
        struct hx_plan *plan = plan_of(lock, NULL);
        const struct hx_plan_file *p = &plan->files[0];
        check_file(p);
        uint64_t at = p->header_bytes;
        size_t s = 0;
        uint64_t used = 0; /* of segment s */
        for (size_t i = 0; i < lock->files[0].n_tensors; i++) {
            const struct hx_lock_tensor *t = &lock->files[0].tensors[i];
            for (uint64_t k = t->begin; k < t->end;) {
                const struct hx_plan_segment *seg = &p->segments[s];
                uint64_t n = seg->n_bytes - used, left = t->end - k;
                assert_int_equal(seg->out_begin + used, at);
                assert_int_equal(seg->src_begin + used, lock->files[0].header_bytes + k);
                n = n < left ? n : left;
                used += n;
                k += n;
                at += n;
                if (used == seg->n_bytes) {
                    s++;
                    used = 0;
                }
            }
        }
        assert_int_equal(at, p->out_bytes);
        for (size_t i = 0; i < p->n_chunks; i++)
            joined += p->chunks[i].src_bytes > p->chunks[i].out_bytes;
        hx_plan_free(plan);
        hx_lock_free(lock);
    }
    assert_true(joined > 10); /* the rule about gaps was used */
}

/* 18.8 MB between wanted runs stay gaps, however small their share is. */
static void test_expert_block(void **state)
{
    (void)state;
    char *text = sample_with("\"size\":102000", "\"size\":60102000", 0);
    struct hx_lock *lock = lock_of(text);
    struct hx_lock_file *f = &lock->files[2];
    f->chunk = 64u << 20;
    f->tensors[2].begin = 20000000;
    f->tensors[2].end = 20004000;
    struct hx_plan *plan = plan_of(lock, "dense");
    assert_int_equal(plan->files[0].n_chunks, 2);
    assert_int_equal(plan->files[0].fetched_bytes, plan->files[0].wanted_bytes);
    hx_plan_free(plan);
    hx_lock_free(lock);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),       cmocka_unit_test(test_cut_header),
        cmocka_unit_test(test_groups),      cmocka_unit_test(test_group_not_there),
        cmocka_unit_test(test_random_cuts), cmocka_unit_test(test_expert_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
