/* The judge of drives, on what the installer writes: blank before its end, bootable behind it, and
 * every kind of damage is seen. Replays the installation up to every flush. */
#include "unit/installer/disk/world.h"

#include "image/drivelook.h"
#include "image/fatview.h"
#include "image/rawdisk.h"

#define TARGET_BYTES (24ull << 30)
#define ESP_AT       (1ull << 20)
#define ROOT_AT      ((1ull + 1024) << 20)
#define KERNEL_BYTES 9000u

struct bench {
    struct world w;
    struct hx_system from;
    struct hx_disk source, target;
    struct hx_install_job job;
    struct hx_drive_known known;
    struct hx_drive_memory memory;
    struct hx_drive_look look;
    char path[512];
    unsigned n_flushes, n_blank;
};

static void open_bench(struct bench *b, unsigned sector)
{
    struct hx_error err;
    uint8_t kernel[KERNEL_BYTES], digest[32];
    char line[100];
    memset(b, 0, sizeof(*b));
    world_open(&b->w);
    noise(kernel, sizeof(kernel), 4);
    int n = snprintf(line, sizeof(line), "roothash=%s ro quiet", b->w.root_hash);
    memcpy(kernel + 5000, line, (size_t)n);
    put(&b->w, "/efi/" KERNEL, kernel, sizeof(kernel));
    assert_int_equal(hx_sha256_data(kernel, sizeof(kernel), digest), 0);
    hx_sha256_to_hex(digest, b->known.sha256);
    snprintf(b->known.version, sizeof(b->known.version), VERSION);
    add_disk(&b->w, "nvme0n1", "259:0", "NVME-ABCD\n", TARGET_BYTES, sector);
    snprintf(b->path, sizeof(b->path), "%s", path_in(&b->w, "/dev/nvme0n1"));
    assert_int_equal(hx_system_read(b->w.root, 0, &b->from, &err), 0);
    assert_int_equal(hx_disk_open(b->from.path, HX_DISK_READ, 0, &b->source, &err), 0);
    assert_int_equal(hx_disk_open(b->path, HX_DISK_ALONE, sector, &b->target, &err), 0);
    b->job = (struct hx_install_job){
        .from = &b->from, .source = &b->source, .esp = strdup(path_in(&b->w, "/efi"))};
}

static void close_bench(struct bench *b)
{
    free((char *)(uintptr_t)b->job.esp);
    hx_disk_close(&b->source);
    hx_disk_close(&b->target);
    world_close(&b->w);
}

static enum hx_drive_verdict look(struct bench *b)
{
    struct hx_error err;
    assert_int_equal(
        hx_drive_look(b->path, b->target.sector, &b->known, 1, &b->memory, &b->look, &err), 0);
    return b->look.verdict;
}

/* Every flush is shown here before it is done: the drive holds a prefix that ends there. */
static int judge_flush(void *ctx, const struct hx_disk_event *e, struct hx_error *err)
{
    struct bench *b = ctx;
    (void)err;
    if (e->act == HX_DISK_WRITE)
        hx_drive_wrote(&b->memory, e->offset, e->len);
    if (e->act != HX_DISK_FLUSH)
        return 0;
    b->n_flushes++;
    enum hx_drive_verdict v = look(b);
    assert_int_not_equal(v, HX_DRIVE_BROKEN);
    b->n_blank += v == HX_DRIVE_BLANK;
    return 0;
}

static void test_every_flush_of_an_installation(void **state)
{
    (void)state;
    static const unsigned sectors[] = {512, 4096};
    for (size_t i = 0; i < 2; i++) {
        struct bench b;
        struct hx_error err;
        open_bench(&b, sectors[i]);
        assert_int_equal(look(&b), HX_DRIVE_BLANK);
        struct hx_disk_watch watch = {&b, judge_flush};
        b.target.watch = &watch;
        assert_int_equal(hx_install_write(&b.job, &b.target, &err), 0);
        b.target.watch = NULL;
        assert_int_equal(look(&b), HX_DRIVE_BOOTS);
        assert_int_equal(b.look.n_entries, 1);
        assert_string_equal(b.look.versions, " hx170_" VERSION ".efi");
        assert_true(b.n_flushes > 5);
        /* Only the flush behind the last write, the kernel image's name, finds something. */
        assert_int_equal(b.n_blank, b.n_flushes - 1);
        close_bench(&b);
    }
}

/* ---- what a drive may have lost ----------------------------------------------------------------
 */

#define TRIALS 12

struct act {
    uint64_t offset;
    size_t len;
    uint8_t *data, *before; /* data NULL: a flush */
};

struct acts {
    size_t n;
    struct act act[4096];
};

static int note(void *ctx, const struct hx_disk_event *e, struct hx_error *err)
{
    struct acts *all = ctx;
    (void)err;
    assert_true(all->n < 4096);
    struct act *a = &all->act[all->n++];
    *a = (struct act){.offset = e->offset, .len = e->len};
    if (e->act == HX_DISK_WRITE) {
        a->data = malloc(e->len);
        a->before = malloc(e->len);
        memcpy(a->data, e->data, e->len);
    }
    return 0;
}

static void write_act(struct bench *b, const struct act *a, const uint8_t *data, size_t len)
{
    struct hx_error err;
    assert_int_equal(hx_file_pwrite(b->target.fd, "drive", data, len, a->offset, &err), 0);
    hx_drive_wrote(&b->memory, a->offset, len);
}

/* The writes [from, to) lie between two flushes: a drive that loses power may have done any of
 * them, in any order, and one by half. */
static unsigned try_subsets(struct bench *b, const struct acts *all, size_t from, size_t to,
                            struct hx_rng *g)
{
    unsigned n_boots = 0;
    struct hx_error err;
    for (size_t i = from; i < to; i++)
        assert_int_equal(hx_file_pread(b->target.fd, "drive", all->act[i].before, all->act[i].len,
                                       all->act[i].offset, &err),
                         0);
    for (int trial = 0; trial < TRIALS; trial++) {
        uint64_t bits = hx_rng_next(g);
        for (size_t i = from; i < to; i++) {
            const struct act *a = &all->act[i];
            size_t half = a->len / 1024 * 512;
            if (bits >> (i % 31) & 1)
                write_act(b, a, a->data, i % 7 == bits >> 61 && half ? half : a->len);
        }
        enum hx_drive_verdict v = look(b);
        if (v == HX_DRIVE_BROKEN)
            fail_msg("writes %zu to %zu, trial %d: %s", from, to, trial, b->look.why);
        n_boots += v == HX_DRIVE_BOOTS;
        for (size_t i = to; i-- > from;)
            write_act(b, &all->act[i], all->act[i].before, all->act[i].len);
    }
    for (size_t i = from; i < to; i++)
        write_act(b, &all->act[i], all->act[i].data, all->act[i].len);
    return n_boots;
}

static void test_lost_and_torn_writes_of_an_installation(void **state)
{
    (void)state;
    static const unsigned sectors[] = {512, 4096};
    for (size_t k = 0; k < 2; k++) {
        struct bench b;
        struct hx_error err;
        struct hx_rng g;
        struct acts *all = calloc(1, sizeof(*all));
        open_bench(&b, sectors[k]);
        hx_rng_seed(&g, 170);
        struct hx_disk_watch watch = {all, note};
        b.target.watch = &watch;
        assert_int_equal(hx_install_write(&b.job, &b.target, &err), 0);
        b.target.watch = NULL;
        /* A blank drive again. */
        assert_int_equal(ftruncate(b.target.fd, 0), 0);
        assert_int_equal(ftruncate(b.target.fd, (off_t)TARGET_BYTES), 0);
        b.memory = (struct hx_drive_memory){0};
        unsigned n_epochs = 0, n_boots = 0;
        for (size_t from = 0, i = 0; i < all->n; i++) {
            if (all->act[i].data)
                continue;
            n_epochs++;
            n_boots += try_subsets(&b, all, from, i, &g);
            from = i + 1;
            /* Nothing starts before the last flush but one. */
            assert_true(n_boots == 0 || i + 1 == all->n);
        }
        assert_true(n_epochs > 5);
        assert_int_equal(look(&b), HX_DRIVE_BOOTS);
        for (size_t i = 0; i < all->n; i++) {
            free(all->act[i].data);
            free(all->act[i].before);
        }
        free(all);
        close_bench(&b);
    }
}

static void flip(struct bench *b, uint64_t at)
{
    struct hx_error err;
    assert_int_equal(hx_rawdisk_damage(b->path, at, &err), 0);
}

/* First byte of a file of the target's ESP. */
static uint64_t place_of(struct bench *b, const char *file)
{
    struct hx_fatview v;
    struct hx_fatview_file f;
    struct hx_error err;
    assert_int_equal(hx_fatview_open(&v, b->target.fd, ESP_AT, 1ull << 30, &err), 0);
    assert_int_equal(hx_fatview_find(&v, file, &f, &err), 0);
    return v.data + (uint64_t)(f.first - 2) * v.cluster;
}

static void test_damage_is_seen(void **state)
{
    (void)state;
    struct bench b;
    struct hx_error err;
    open_bench(&b, 512);
    assert_int_equal(hx_install_write(&b.job, &b.target, &err), 0);
    assert_int_equal(look(&b), HX_DRIVE_BOOTS);
    const struct {
        uint64_t at;
        enum hx_drive_verdict verdict;
        const char *words;
    } rows[] = {
        {ROOT_AT + 70000, HX_DRIVE_BROKEN, "its root in partition 2 is damaged"},
        {place_of(&b, KERNEL) + 100, HX_DRIVE_BROKEN, "is no kernel image that was built"},
        {ESP_AT + 510, HX_DRIVE_BLANK, "no FAT32"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        flip(&b, rows[i].at);
        hx_drive_wrote(&b.memory, rows[i].at, 1);
        assert_int_equal(look(&b), rows[i].verdict);
        if (!strstr(b.look.why, rows[i].words))
            fail_msg("'%s' is not in '%s'", rows[i].words, b.look.why);
        flip(&b, rows[i].at);
        hx_drive_wrote(&b.memory, rows[i].at, 1);
        assert_int_equal(look(&b), HX_DRIVE_BOOTS);
    }
    /* Both tables gone; then only the first, which the second stands in for. */
    flip(&b, 512);
    assert_int_equal(look(&b), HX_DRIVE_BOOTS);
    flip(&b, TARGET_BYTES - 512);
    assert_int_equal(look(&b), HX_DRIVE_BLANK);
    close_bench(&b);
}

/* A slot without its name: the entry is there, the root is not found. */
static void test_entry_without_root(void **state)
{
    (void)state;
    struct bench b;
    struct hx_error err;
    static struct hx_table t;
    open_bench(&b, 512);
    assert_int_equal(hx_install_write(&b.job, &b.target, &err), 0);
    assert_int_equal(hx_table_read(&b.target, &t, NULL, &err), 0);
    assert_int_equal(hx_layout_empty_slot(&t, 0, &err), 0);
    assert_int_equal(hx_table_write(&t, &b.target, false, &err), 0);
    assert_int_equal(look(&b), HX_DRIVE_BROKEN);
    assert_non_null(strstr(b.look.why, "no partition of its root"));
    close_bench(&b);
}

static void test_proofs_are_forgotten_by_writes(void **state)
{
    (void)state;
    struct hx_drive_memory m = {0};
    m.slot[0].valid = m.slot[1].valid = true;
    m.slot[0].at = 1000;
    m.slot[0].n_bytes = 100;
    m.slot[1].at = 2000;
    m.slot[1].n_bytes = 100;
    hx_drive_wrote(&m, 900, 100);
    hx_drive_wrote(&m, 1100, 900);
    assert_true(m.slot[0].valid && m.slot[1].valid);
    hx_drive_wrote(&m, 1099, 902);
    assert_false(m.slot[0].valid);
    assert_false(m.slot[1].valid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_flush_of_an_installation),
        cmocka_unit_test(test_lost_and_torn_writes_of_an_installation),
        cmocka_unit_test(test_damage_is_seen),
        cmocka_unit_test(test_entry_without_root),
        cmocka_unit_test(test_proofs_are_forgotten_by_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
