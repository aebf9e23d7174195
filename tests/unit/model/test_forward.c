/* Row sets of a pass (which rows each layer computes), and passes that are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "model/row_sets.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct hx_error check_err = {0};                                                           \
        int check_r = (call);                                                                      \
        if (check_r != 0)                                                                          \
            fail_msg("%s: %d: %s", #call, check_r, check_err.text);                                \
    } while (0)
#define ERR (&check_err)

enum { LAYERS = 6, SOURCE = 2, WINDOW = 4, RING = 10 };

struct fixture {
    const struct hx_backend *be;
    struct hx_device *dev;
    struct hx_row_sets sets;
    struct hx_kv_stream window;
    struct hx_kv_view view;
};

static void open_sets(struct fixture *f)
{
    struct hx_hparams hp = {.n_layer = LAYERS, .window = WINDOW};
    struct hx_maps maps = {0};
    maps.is_kv_source[SOURCE] = true;
    memset(f, 0, sizeof(*f));
    f->be = hx_backend_select("cpu", NULL);
    assert_non_null(f->be);
    CHECK(f->be->open(0, &f->dev, ERR));
    CHECK(hx_row_sets_init(&f->sets, &hp, &maps, f->be, f->dev, 64, 3, ERR));
    f->window.ring = RING;
    f->view.window = &f->window;
}

static void close_sets(struct fixture *f)
{
    hx_row_sets_done(&f->sets);
    f->be->close(f->dev);
}

static const struct hx_row_set *entering(const struct fixture *f, int layer)
{
    return &f->sets.set[f->sets.in[layer]];
}

/* 40 rows behind 5, logits of the last 2: by hand from the rule in row_sets.c. */
static void test_cone(void **state)
{
    (void)state;
    struct fixture f;
    int32_t token[40];
    struct hx_forward_seq seq = {.kv = &f.view, .n_past = 5, .n_tok = 40, .n_logits = 2};
    struct hx_forward_in in = {.n_seq = 1, .seq = &seq, .token = token};
    static const int64_t first[LAYERS + 1] = {5, 5, 5, 29, 32, 35, 43};
    open_sets(&f);
    for (int i = 0; i < 40; i++)
        token[i] = i;
    CHECK(hx_row_sets_build(&f.sets, &in, ERR));
    for (int il = 0; il <= LAYERS; il++) {
        const struct hx_row_set *s = entering(&f, il);
        assert_int_equal(s->first_pos[0], first[il]);
        assert_int_equal(s->batch.n_row, 45 - first[il]);
        for (int i = 0; i < s->batch.n_row; i++) {
            int64_t pos = first[il] + i;
            assert_int_equal(s->batch.pos[i], pos);
            assert_int_equal(s->batch.dead[i], 0);
            assert_int_equal(s->window_row[i], pos < 45 - RING ? -1 : pos);
            if (s->keep)
                assert_int_equal(s->keep[i], pos - s[-1].first_pos[0]);
        }
    }
    assert_null(entering(&f, 0)->keep);
    assert_int_equal(f.sets.n_set, 5);
    assert_memory_equal(f.sets.token, token, sizeof(token));
    /* Positions 4 (kept) and 5 make group 2; the last whole group is 43 / 2 = 21. */
    assert_int_equal(f.sets.groups.n_row, 20);
    assert_int_equal(f.sets.group_row[0], 2);
    assert_int_equal(f.sets.groups.pos[0], 4);
    assert_int_equal(f.sets.group_row[19], 21);
    close_sets(&f);
}

static void no_tap(void *user, const char *name, int layer, const struct hx_tensor *t)
{
    (void)user;
    (void)name;
    (void)layer;
    (void)t;
}

/* With a tap every layer has every row; without logits the last layer still fills its ring. */
static void test_taps_and_no_logits(void **state)
{
    (void)state;
    struct fixture f;
    int32_t token[40] = {0};
    struct hx_forward_seq seq = {.kv = &f.view, .n_past = 0, .n_tok = 40, .n_logits = 1};
    struct hx_forward_in in = {.n_seq = 1, .seq = &seq, .token = token, .tap = no_tap};
    open_sets(&f);
    CHECK(hx_row_sets_build(&f.sets, &in, ERR));
    for (int il = 0; il < LAYERS; il++)
        assert_int_equal(entering(&f, il)->batch.n_row, 40);
    assert_int_equal(entering(&f, LAYERS)->batch.n_row, 1);
    in.tap = NULL;
    seq.n_logits = 0;
    CHECK(hx_row_sets_build(&f.sets, &in, ERR));
    assert_int_equal(entering(&f, LAYERS)->batch.n_row, 0);
    assert_int_equal(entering(&f, LAYERS - 1)->batch.n_row, RING);
    close_sets(&f);
}

/* Three sequences: a long one, a single row, one short of logits; and span flags. */
static void test_ragged(void **state)
{
    (void)state;
    struct fixture f;
    int32_t token[27] = {0};
    uint8_t dead[27] = {0};
    struct hx_forward_seq seq[3] = {{.kv = &f.view, .n_past = 0, .n_tok = 20, .n_logits = 1},
                                    {.kv = &f.view, .n_past = 7, .n_tok = 1, .n_logits = 1},
                                    {.kv = &f.view, .n_past = 3, .n_tok = 6, .n_logits = 0}};
    struct hx_forward_in in = {.n_seq = 3, .seq = seq, .token = token, .dead = dead};
    dead[19] = dead[20] = 1;
    open_sets(&f);
    CHECK(hx_row_sets_build(&f.sets, &in, ERR));
    const struct hx_row_set *all = entering(&f, 0), *last = entering(&f, LAYERS - 1),
                            *head = entering(&f, LAYERS);
    assert_int_equal(all->batch.n_row, 27);
    assert_int_equal(all->batch.first_row[1], 20);
    assert_int_equal(all->batch.first_row[2], 21);
    assert_int_equal(all->batch.first_pos[2], 3);
    assert_int_equal(last->batch.n_row, 10 + 1 + 6);
    assert_int_equal(last->batch.seq[10], 1);
    assert_int_equal(last->batch.pos[10], 7);
    assert_int_equal(head->batch.n_row, 2);
    assert_int_equal(head->batch.pos[0], 19);
    assert_int_equal(head->batch.dead[0], 1);
    assert_int_equal(head->batch.pos[1], 7);
    assert_int_equal(head->batch.dead[1], 1);
    assert_int_equal(head->keep[0], 9);
    assert_int_equal(head->keep[1], 10);
    /* Groups: 10 of the first, position 7 ends group 3 of the second, 4 5, 6 7 and 3 of the third.
     */
    assert_int_equal(f.sets.groups.n_row, 10 + 1 + 3);
    assert_int_equal(f.sets.groups.seq[10], 1);
    assert_int_equal(f.sets.group_row[10], 3);
    assert_int_equal(f.sets.group_row[11], 1);
    close_sets(&f);
}

/* ---- passes that are refused ---- */

static void test_refused(void **state)
{
    (void)state;
    const struct hx_backend *be = hx_backend_select("cpu", NULL);
    struct hx_device *dev = NULL;
    struct hx_model *m = NULL;
    struct hx_forward *f = NULL;
    struct hx_error err = {0};
    CHECK(be->open(0, &dev, ERR));
    struct hx_model_options opt = {.backend = be, .dev = dev};
    CHECK(hx_model_open("tests/vectors/model", &opt, &m, ERR));
    assert_int_equal(hx_forward_open(m, be, dev, NULL, HX_MODE_W8A16, 0, 1, false, &f, &err),
                     -EINVAL);
    assert_int_equal(hx_forward_open(m, be, dev, NULL, HX_MODE_W8A16, 8, 0, false, &f, &err),
                     -EINVAL);
    assert_null(f);
    CHECK(hx_forward_open(m, be, dev, NULL, HX_MODE_W8A16, 8, 2, false, &f, ERR));
    struct hx_kv_stream window = {.ring = 32};
    struct hx_kv_view view = {.window = &window};
    float logits[512];
    int32_t token[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct hx_forward_seq seq = {.kv = &view, .n_tok = 2, .n_logits = 1};
    struct hx_forward_in in = {.n_seq = 1, .seq = &seq, .token = token, .logits = logits};
    assert_int_equal(hx_forward_run(f, &in, &err), -EINVAL);
    assert_non_null(strstr(err.text, "Engram rows of layer 1"));
    uint8_t some[1];
    for (int i = 0; i < 2; i++)
        in.engram[i].codes = in.engram[i].scales = some;
    static const struct {
        int n_seq, n_tok, n_logits;
        int64_t n_past;
        int32_t token;
        bool no_room;
        const char *text;
    } cases[] = {
        {0, 2, 1, 0, 1, false, "0 sequences"},
        {3, 2, 1, 0, 1, false, "3 sequences"},
        {1, 0, 0, 0, 1, false, "0 rows"},
        {1, 2, 3, 0, 1, false, "3 with logits"},
        {1, 2, -1, 0, 1, false, "-1 with logits"},
        {1, 2, 1, -1, 1, false, "behind -1"},
        {1, 9, 1, 0, 1, false, "9 rows"},
        {1, 2, 1, 0, 512, false, "token 512"},
        {1, 2, 1, 0, -4, false, "token -4"},
        {1, 2, 1, 0, 1, true, "no room"},
        {1, 2, 1, INT64_MAX - 1, 1, false, "limit"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        in.n_seq = cases[i].n_seq;
        seq.n_tok = cases[i].n_tok;
        seq.n_logits = cases[i].n_logits;
        seq.n_past = cases[i].n_past;
        token[1] = cases[i].token;
        in.logits = cases[i].no_room ? NULL : logits;
        assert_int_equal(hx_forward_run(f, &in, &err), -EINVAL);
        if (!strstr(err.text, cases[i].text))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].text);
    }
    hx_forward_close(f);
    hx_forward_close(NULL);
    hx_model_close(m);
    be->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cone),
        cmocka_unit_test(test_taps_and_no_logits),
        cmocka_unit_test(test_ragged),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
