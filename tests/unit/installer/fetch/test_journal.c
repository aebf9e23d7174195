/* Journal records: what was appended is read again, and a tail that is torn at any byte costs that
 * tail alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "fetch/journal.h"

static char folder[64], path[96];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/hx-test-journal-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof(path), "%s/x.journal", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    rmdir(folder);
    return 0;
}

static struct hx_journal_entry entry(enum hx_journal_type type, uint32_t index, uint64_t length,
                                     uint8_t digest)
{
    struct hx_journal_entry e = {.type = type, .index = index, .length = length};
    memset(e.digest, digest, sizeof(e.digest));
    return e;
}

/* Ten chunks of 4,096 bytes. */
static void create(struct hx_journal *j)
{
    struct hx_error err = {0};
    const struct hx_journal_entry e[] = {entry(HX_JOURNAL_PLAN, 10, 40960, 1),
                                         entry(HX_JOURNAL_CONTENT, 0, 0, 2)};
    *j = HX_JOURNAL_INIT;
    assert_int_equal(hx_journal_create(path, e, 2, j, &err), 0);
}

static void append(struct hx_journal *j, struct hx_journal_entry e)
{
    assert_int_equal(hx_journal_append(j, &e, 1, NULL), 0);
}

/* The file's bytes cut to n. */
static int parse(size_t n, struct hx_journal_image *im)
{
    char *data;
    size_t len;
    struct hx_error err = {0};
    assert_int_equal(hx_file_read(path, 1u << 20, &data, &len, NULL), 0);
    int r = hx_journal_parse((uint8_t *)data, n < len ? n : len, im, &err);
    free(data);
    return r;
}

static void test_read_again(void **state)
{
    (void)state;
    struct hx_journal j;
    struct hx_journal_image im;
    create(&j);
    for (uint32_t i = 0; i < 8; i++)
        append(&j, entry(HX_JOURNAL_CHUNK, i, 4096, (uint8_t)(10 + i)));
    append(&j, entry(HX_JOURNAL_HASH, 0, 8192, 3));
    append(&j, entry(HX_JOURNAL_HASH, 0, 16384, 4));
    append(&j, entry(HX_JOURNAL_CLEAN, 0, 0, 0));
    assert_int_equal(hx_journal_sync(&j, NULL), 0);
    hx_journal_close(&j);
    assert_int_equal(hx_journal_open(path, &j, &im, NULL), 0);
    assert_int_equal(im.n_chunks, 10);
    assert_int_equal(im.out_bytes, 40960);
    assert_int_equal(im.plan[5], 1);
    assert_int_equal(im.content[5], 2);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(im.chunks[i].done, i < 8);
    assert_int_equal(im.chunks[3].digest[31], 13);
    assert_int_equal(im.chunks[3].seq, 5);
    assert_int_equal(im.n_hashes, 2);
    assert_int_equal(im.hashes[1].n_bytes, 16384);
    assert_true(im.clean);
    assert_false(im.ready);
    hx_journal_image_done(&im);
    /* What follows makes it unclean. */
    append(&j, entry(HX_JOURNAL_CHUNK, 8, 4096, 1));
    hx_journal_close(&j);
    assert_int_equal(parse(SIZE_MAX, &im), 0);
    assert_false(im.clean);
    assert_true(im.chunks[8].done);
    hx_journal_image_done(&im);
}

static void test_drop(void **state)
{
    (void)state;
    struct hx_journal j;
    struct hx_journal_image im;
    create(&j);
    for (uint32_t i = 0; i < 10; i++)
        append(&j, entry(HX_JOURNAL_CHUNK, i, 4096, 7));
    append(&j, entry(HX_JOURNAL_HASH, 0, 8192, 3));
    append(&j, entry(HX_JOURNAL_HASH, 0, 40960, 4));
    append(&j, entry(HX_JOURNAL_READY, 0, 0, 9));
    assert_int_equal(parse(SIZE_MAX, &im), 0);
    assert_true(im.ready);
    assert_int_equal(im.ready_sha256[0], 9);
    hx_journal_image_done(&im);
    append(&j, entry(HX_JOURNAL_HASH, 0, 8192, 5)); /* the one above is void */
    append(&j, entry(HX_JOURNAL_DROP, 4, 0, 0));
    assert_int_equal(parse(SIZE_MAX, &im), 0);
    assert_false(im.ready);
    assert_false(im.chunks[4].done);
    assert_true(im.chunks[5].done);
    assert_int_equal(im.n_hashes, 1);
    assert_int_equal(im.hashes[0].h[0], 5);
    hx_journal_image_done(&im);
    append(&j, entry(HX_JOURNAL_HASH, 0, 0, 0)); /* all of them */
    append(&j, entry(HX_JOURNAL_DROP, 0, 0, 0));
    append(&j, entry(HX_JOURNAL_CHUNK, 4, 4096, 8));
    append(&j, entry(HX_JOURNAL_BACK, 0, 0, 0));
    assert_int_equal(parse(SIZE_MAX, &im), 0);
    assert_int_equal(im.n_hashes, 0);
    assert_false(im.chunks[0].done);
    assert_true(im.chunks[4].done);
    assert_true(im.back);
    assert_int_equal(im.valid_bytes, im.n_records * HX_JOURNAL_RECORD);
    assert_int_equal(im.n_records, 2 + 10 + 3 + 2 + 4);
    hx_journal_image_done(&im);
    hx_journal_close(&j);
}

static void test_torn_anywhere(void **state)
{
    (void)state;
    struct hx_journal j;
    struct hx_journal_image im;
    create(&j);
    for (uint32_t i = 0; i < 4; i++)
        append(&j, entry(HX_JOURNAL_CHUNK, i, 4096, 7));
    hx_journal_close(&j);
    for (size_t n = 0; n <= 6 * HX_JOURNAL_RECORD; n++) {
        int r = parse(n, &im);
        assert_int_equal(r, n < 2 * HX_JOURNAL_RECORD ? -EINVAL : 0);
        if (r < 0)
            continue;
        assert_int_equal(im.n_records, n / HX_JOURNAL_RECORD);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(im.chunks[i].done, i + 2 < n / HX_JOURNAL_RECORD);
        hx_journal_image_done(&im);
    }
    /* Opening cuts the torn record, and what is appended then is valid. */
    assert_int_equal(truncate(path, 4 * HX_JOURNAL_RECORD + 13), 0);
    assert_int_equal(hx_journal_open(path, &j, &im, NULL), 0);
    assert_int_equal(im.n_records, 4);
    hx_journal_image_done(&im);
    append(&j, entry(HX_JOURNAL_CHUNK, 9, 4096, 1));
    hx_journal_close(&j);
    assert_int_equal(parse(SIZE_MAX, &im), 0);
    assert_int_equal(im.n_records, 5);
    assert_true(im.chunks[9].done);
    hx_journal_image_done(&im);
}

/* Any flipped bit ends the valid part there: CRC32C sees every single one. */
static void test_flipped_bits(void **state)
{
    (void)state;
    struct hx_journal j;
    struct hx_journal_image im;
    struct hx_error err;
    char *data;
    size_t n;
    create(&j);
    for (uint32_t i = 0; i < 4; i++)
        append(&j, entry(HX_JOURNAL_CHUNK, i, 4096, 7));
    hx_journal_close(&j);
    assert_int_equal(hx_file_read(path, 4096, &data, &n, NULL), 0);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        data[bit / 8] = (char)(data[bit / 8] ^ 1 << bit % 8);
        size_t record = bit / 8 / HX_JOURNAL_RECORD;
        int r = hx_journal_parse((uint8_t *)data, n, &im, &err);
        assert_int_equal(r, record < 2 ? -EINVAL : 0);
        if (r == 0) {
            assert_int_equal(im.n_records, record);
            hx_journal_image_done(&im);
        }
        data[bit / 8] = (char)(data[bit / 8] ^ 1 << bit % 8);
    }
    free(data);
}

/* Records that contradict the header do not count, valid checksum or not. */
static void test_contradictions(void **state)
{
    (void)state;
    const struct hx_journal_entry wrong[] = {
        entry(HX_JOURNAL_CHUNK, 10, 4096, 1), entry(HX_JOURNAL_CHUNK, 1, 0, 1),
        entry(HX_JOURNAL_CHUNK, 1, 40961, 1), entry(HX_JOURNAL_DROP, 10, 0, 1),
        entry(HX_JOURNAL_HASH, 0, 100, 1),    entry(HX_JOURNAL_HASH, 0, 41024, 1),
        entry(HX_JOURNAL_PLAN, 10, 40960, 1), entry(HX_JOURNAL_CONTENT, 0, 0, 1),
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hx_journal j;
        struct hx_journal_image im;
        create(&j);
        append(&j, entry(HX_JOURNAL_CHUNK, 0, 4096, 1));
        append(&j, wrong[i]);
        append(&j, entry(HX_JOURNAL_CHUNK, 2, 4096, 1));
        hx_journal_close(&j);
        assert_int_equal(parse(SIZE_MAX, &im), 0);
        assert_int_equal(im.n_records, 3);
        assert_true(im.chunks[0].done);
        assert_false(im.chunks[2].done);
        hx_journal_image_done(&im);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_again),     cmocka_unit_test(test_drop),
        cmocka_unit_test(test_torn_anywhere),  cmocka_unit_test(test_flipped_bits),
        cmocka_unit_test(test_contradictions),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
