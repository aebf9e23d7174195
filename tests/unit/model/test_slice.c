/* Shares of the ranks: together each weight once, by shape at the released size and by bytes for
 * the golden model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "model/place.h"
#include "model/slice.h"
#include "released.h"

/* ---- the released shape ---- */

struct walk {
    int n_ranks, bits;
    int64_t n_cut, n_whole; /* parts */
    int64_t rank_bytes[HX_PLACE_MAX_RANKS];
};

static bool side_vector(const struct hx_tensor_need *need, enum hx_weight_part part)
{
    bool down = need->spec->role == HX_T_EXPERT_W2;
    return need->spec->split == HX_SPLIT_EXPERT &&
           part == (down ? HX_PART_SVH : HX_PART_SUH); /* spec exl3.md 9 */
}

static int cover(void *user, const struct hx_tensor_need *need)
{
    struct walk *k = user;
    const struct hx_weight w =
        hx_need_weight(need, need->spec->per_expert && need->layer < 40 ? k->bits : 0);
    int64_t width = 0;
    for (int p = 0; p < HX_PART_MAX; p++) {
        const struct hx_tensor *t = &w.part[p];
        int64_t at = 0;
        int dim = -1;
        for (int r = 0; t->n_dims > 0 && r < k->n_ranks; r++) {
            const struct hx_slice s = {r, k->n_ranks};
            struct hx_cut cut[HX_PART_MAX];
            struct hx_weight part;
            struct hx_error err;
            if (hx_slice_weight(&s, need, &w, &part, cut, &err) < 0)
                fail_msg("%s", err.text);
            const struct hx_cut *c = &cut[p], whole = {-1, 0, 0};
            size_t bytes = hx_cut_bytes(t, c);
            assert_int_equal(bytes, hx_cut_bytes(&part.part[p], &whole));
            k->rank_bytes[r] += need->spec->home == HX_HOME_NVME ? 0 : (int64_t)bytes;
            if (c->dim < 0) {
                /* Copies are those of the plan, and no others. */
                if (need->spec->split != HX_SPLIT_NONE &&
                    !side_vector(need, (enum hx_weight_part)p))
                    fail_msg("%s: part %d is whole on rank %d", need->name, p, r);
                k->n_whole++;
                continue;
            }
            if (need->spec->split == HX_SPLIT_NONE)
                fail_msg("%s: cut", need->name);
            assert_true(r == 0 || c->dim == dim);
            dim = c->dim;
            if (c->from != at)
                fail_msg("%s: part %d: rank %d begins at %lld, not %lld", need->name, p, r,
                         (long long)c->from, (long long)at);
            assert_true(c->to > c->from);
            at = c->to;
            k->n_cut++;
            if (p == HX_PART_DATA)
                width += part.n_out == w.n_out ? part.n_in : part.n_out;
        }
        if (dim >= 0)
            assert_int_equal(at, t->ne[dim]);
    }
    if (need->spec->split != HX_SPLIT_NONE)
        assert_int_equal(width, need->spec->split == HX_SPLIT_COLUMN ||
                                        need->spec->role == HX_T_EXPERT_W2 || w.n_out == 1
                                    ? w.n_in
                                    : w.n_out);
    return 0;
}

static void test_released_once(void **state)
{
    static const int ranks[] = {2, 4, 8};
    struct hx_hparams h = released();
    struct hx_maps maps;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_maps_derive(&h, &maps, &err), 0);
    for (int bits = 0; bits <= 3; bits += bits ? 1 : 2) {
        for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
            struct walk k = {.n_ranks = ranks[i], .bits = bits};
            const struct hx_slice s = {0, ranks[i]};
            assert_int_equal(hx_slice_check(&s, &h, &err), 0);
            assert_int_equal(hx_tensors_each(&h, &maps, cover, &k), 0);
            assert_true(k.n_cut > 100000 && k.n_whole > 1000);
            struct hx_placement p;
            uint8_t form[40];
            memset(form, bits, sizeof(form));
            if (ranks[i] == 8)
                continue; /* no layout of eight */
            assert_int_equal(hx_place_config(&h, &maps, bits ? form : NULL,
                                             ranks[i] == 2 ? HX_LAYOUT_TP2 : HX_LAYOUT_TP4, &p,
                                             &err),
                             0);
            for (int r = 0; r < ranks[i]; r++) {
                int64_t sum = 0;
                for (int c = 0; c < HX_COMP_MAX; c++)
                    sum += p.rank_bytes[r][c];
                assert_int_equal(sum, k.rank_bytes[r]);
            }
        }
    }
}

/* 18 blocks: rank r of expert e begins where rank r - 1 ends. */
static void test_blocks_in_rank_order(void **state)
{
    static const int64_t first[4][5] = {
        {0, 5, 10, 14, 18}, {0, 4, 9, 14, 18}, {0, 4, 8, 13, 18}, {0, 5, 9, 13, 18}};
    const struct hx_tensor_spec w2 = {.role = HX_T_EXPERT_W2,
                                      .naming = HX_NAME_LINEAR,
                                      .per_expert = true,
                                      .split = HX_SPLIT_EXPERT};
    (void)state;
    for (int e = 0; e < 8; e++) {
        struct hx_tensor_need need = {&w2, 3, e, 5120, 2304, "w2"};
        const struct hx_weight w = hx_need_weight(&need, 3);
        for (int r = 0; r < 4; r++) {
            const struct hx_slice s = {r, 4};
            struct hx_cut cut[HX_PART_MAX];
            struct hx_weight out;
            assert_int_equal(hx_slice_weight(&s, &need, &w, &out, cut, NULL), 0);
            assert_int_equal(cut[HX_PART_DATA].dim, 0);
            assert_int_equal(cut[HX_PART_DATA].from, first[e % 4][r] * 8);
            assert_int_equal(cut[HX_PART_DATA].to, first[e % 4][r + 1] * 8);
            assert_int_equal(cut[HX_PART_SUH].from, first[e % 4][r] * 128);
            assert_int_equal(cut[HX_PART_SVH].dim, -1);
            assert_int_equal(out.n_in, (first[e % 4][r + 1] - first[e % 4][r]) * 128);
            assert_int_equal(out.n_out, 5120);
        }
    }
}

/* A bias is added once: by the rank that has the first block. */
static void test_bias_once(void **state)
{
    const struct hx_tensor_spec w2 = {.role = HX_T_EXPERT_W2,
                                      .naming = HX_NAME_LINEAR,
                                      .per_expert = true,
                                      .split = HX_SPLIT_EXPERT};
    (void)state;
    for (int blocks = 1; blocks <= 6; blocks++) {
        for (int e = 0; e < 5; e++) {
            struct hx_tensor_need need = {&w2, 3, e, 256, blocks * 128, "w2"};
            struct hx_weight w = hx_need_weight(&need, 3);
            w.part[HX_PART_BIAS] = (struct hx_tensor){HX_DTYPE_F16, 1, {256, 1, 1, 1}, NULL};
            int n = 0;
            for (int r = 0; r < 4; r++) {
                const struct hx_slice s = {r, 4};
                struct hx_cut cut[HX_PART_MAX];
                struct hx_weight out;
                assert_int_equal(hx_slice_weight(&s, &need, &w, &out, cut, NULL), 0);
                n += hx_cut_bytes(&w.part[HX_PART_BIAS], &cut[HX_PART_BIAS]) == 512;
            }
            assert_int_equal(n, 1);
        }
    }
}

static void test_refused(void **state)
{
    static const struct {
        int rank, n_ranks, heads, groups, vocab;
        const char *says;
    } rows[] = {
        {4, 4, 64, 8, 1024, "rank 4 of 4"},     {-1, 4, 64, 8, 1024, "rank -1 of 4"},
        {1, 0, 64, 8, 1024, "rank 1 of 0"},     {0, 3, 64, 9, 1023, "64 heads"},
        {0, 4, 64, 6, 1024, "6 output groups"}, {0, 4, 64, 8, 1026, "1026 tokens"},
    };
    struct hx_error err;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_hparams h = released();
        const struct hx_slice s = {rows[i].rank, rows[i].n_ranks};
        h.n_head = rows[i].heads;
        h.o_groups = rows[i].groups;
        h.n_vocab = rows[i].vocab;
        assert_int_equal(hx_slice_check(&s, &h, &err), -EINVAL);
        if (!strstr(err.text, rows[i].says))
            fail_msg("'%s' does not say '%s'", err.text, rows[i].says);
    }
}

/* ---- a folder ---- */

static struct hx_model *open_rank(const char *dir, struct hx_device *dev, int rank, int n_ranks)
{
    const struct hx_model_options opt = {
        .backend = hx_backend_select("cpu", NULL), .dev = dev, .slice = {rank, n_ranks}};
    struct hx_model *m;
    struct hx_error err;
    if (hx_model_open(dir, &opt, &m, &err) < 0)
        fail_msg("%s", err.text);
    return m;
}

struct compare {
    struct hx_model *whole, **rank;
    int n_ranks;
    int64_t n_parts;
};

/* The bytes of every rank are those of its cut. */
static int compare(void *user, const struct hx_tensor_need *need)
{
    struct compare *k = user;
    const struct hx_weight *w =
        hx_model_weight(k->whole, need->spec->role, need->layer, need->expert);
    for (int r = 0; need->spec->home != HX_HOME_NVME && r < k->n_ranks; r++) {
        const struct hx_weight *part =
            hx_model_weight(k->rank[r], need->spec->role, need->layer, need->expert);
        const struct hx_slice s = {r, k->n_ranks};
        struct hx_cut cut[HX_PART_MAX];
        struct hx_weight shape;
        assert_int_equal(hx_slice_weight(&s, need, w, &shape, cut, NULL), 0);
        assert_int_equal(part->n_out, shape.n_out);
        assert_int_equal(part->n_in, shape.n_in);
        for (int p = 0; p < HX_PART_MAX; p++) {
            size_t n = w->part[p].n_dims ? hx_cut_bytes(&w->part[p], &cut[p]) : 0;
            if (n == 0) {
                assert_null(part->part[p].data);
                continue;
            }
            uint8_t *want = malloc(n);
            assert_non_null(want);
            hx_cut_copy(&w->part[p], &cut[p], w->part[p].data, want);
            if (memcmp(want, part->part[p].data, n) != 0)
                fail_msg("%s: part %d of rank %d", need->name, p, r);
            free(want);
            k->n_parts++;
        }
    }
    return 0;
}

static void compare_folder(const char *dir, int n_ranks)
{
    struct hx_device *dev;
    struct hx_error err;
    const struct hx_backend *be = hx_backend_select("cpu", NULL);
    struct hx_model *rank[4];
    assert_int_equal(be->open(0, &dev, &err), 0);
    struct compare k = {open_rank(dir, dev, 0, 0), rank, n_ranks, 0};
    for (int r = 0; r < n_ranks; r++)
        rank[r] = open_rank(dir, dev, r, n_ranks);
    assert_int_equal(
        hx_tensors_each(hx_model_hparams(k.whole), hx_model_maps(k.whole), compare, &k), 0);
    assert_true(k.n_parts > 1000);
    for (int r = 0; r < n_ranks; r++)
        hx_model_close(rank[r]);
    hx_model_close(k.whole);
    be->close(dev);
}

static void test_folder_bytes(void **state)
{
    (void)state;
    compare_folder("tests/vectors/model", 2);
    compare_folder("tests/vectors/model", 4);
}

static void test_rank_that_cannot_be(void **state)
{
    struct hx_model_options opt = {.backend = hx_backend_select("cpu", NULL), .slice = {0, 3}};
    struct hx_model *m;
    struct hx_error err;
    (void)state;
    assert_int_equal(opt.backend->open(0, &opt.dev, &err), 0);
    assert_int_equal(hx_model_open("tests/vectors/model", &opt, &m, &err), -EINVAL);
    assert_non_null(strstr(err.text, "8 heads, which 3 ranks do not divide"));
    opt.slice = (struct hx_slice){2, 2};
    assert_int_equal(hx_model_open("tests/vectors/model", &opt, &m, &err), -EINVAL);
    opt.backend->close(opt.dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_released_once), cmocka_unit_test(test_blocks_in_rank_order),
        cmocka_unit_test(test_bias_once),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_folder_bytes),  cmocka_unit_test(test_rank_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
