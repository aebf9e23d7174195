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
        cmocka_unit_test(test_damage_is_seen),
        cmocka_unit_test(test_entry_without_root),
        cmocka_unit_test(test_proofs_are_forgotten_by_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
