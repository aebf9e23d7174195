/* Installing on image files: what is on the disk afterwards, and after a cut at every write. */
#include "world.h"

#include "disk/cli.h"

#define TARGET_BYTES (24ull << 30)

struct run {
    struct world w;
    struct hx_system from;
    struct hx_disk source, target;
    struct hx_install_job job;
};

static void run_open(struct run *r, unsigned sector)
{
    struct hx_error err;
    world_open(&r->w);
    add_disk(&r->w, "nvme0n1", "259:0", "NVME-ABCD\n", TARGET_BYTES, sector);
    assert_int_equal(hx_system_read(r->w.root, 0, &r->from, &err), 0);
    assert_true(r->from.installer);
    assert_false(r->from.installed);
    assert_int_equal(hx_disk_open(r->from.path, HX_DISK_READ, 0, &r->source, &err), 0);
    assert_int_equal(
        hx_disk_open(path_in(&r->w, "/dev/nvme0n1"), HX_DISK_ALONE, sector, &r->target, &err), 0);
    r->job = (struct hx_install_job){
        .from = &r->from, .source = &r->source, .esp = strdup(path_in(&r->w, "/efi"))};
}

static void run_close(struct run *r)
{
    free((char *)(uintptr_t)r->job.esp);
    hx_disk_close(&r->source);
    hx_disk_close(&r->target);
    world_close(&r->w);
}

/* Whether firmware and initrd would come up with the system of this disk: 1 yes; 0 nothing there
 * that firmware would start. A kernel image whose root is missing fails the test. */
static int boots(const struct hx_disk *d, const struct world *w)
{
    static struct hx_table t;
    struct hx_error err;
    uint64_t esp = HX_DISK_MIB;
    bool has_table = hx_table_read(d, &t, NULL, NULL) == 0;
    if (has_table && hx_layout_is_installed(&t))
        esp = hx_part_offset(&t, HX_PART_ESP);
    if (fat_find(d, esp, KERNEL, NULL, 0) < 0 || !has_table)
        return 0;
    assert_true(hx_layout_is_installed(&t));
    uint8_t guid[16];
    assert_int_equal(hx_guid_from_hex(w->root_hash, guid), 0);
    assert_int_equal(hx_table_find_guid(&t, guid), HX_PART_ROOT_A);
    struct hx_extent root = {d, hx_part_offset(&t, HX_PART_ROOT_A), ROOT_BYTES};
    struct hx_extent tree = {d, hx_part_offset(&t, HX_PART_VERITY_A), TREE_BYTES};
    assert_int_equal(hx_verity_check(&root, &tree, w->root_hash, NULL, NULL, &err), 0);
    assert_true(fat_find(d, esp, "EFI/BOOT/BOOTX64.EFI", NULL, 0) > 0);
    return 1;
}

static void check_installed(struct run *r, unsigned sector)
{
    static struct hx_table t;
    struct hx_error err;
    bool backup;
    uint8_t have[10000], want[10000];
    assert_int_equal(hx_install_write(&r->job, &r->target, &err), 0);
    assert_int_equal(boots(&r->target, &r->w), 1);
    assert_int_equal(hx_table_read(&r->target, &t, &backup, &err), 0);
    assert_false(backup);
    assert_string_equal(t.part[1].label, "root_" VERSION);
    assert_string_equal(t.part[2].label, "rootv_" VERSION);
    assert_string_equal(t.part[3].label, "_empty");
    assert_int_equal(hx_part_bytes(&t, HX_PART_ESP), HX_DISK_GIB);
    assert_int_equal(hx_part_bytes(&t, HX_PART_STATE), 16 * HX_DISK_GIB);
    assert_true(hx_part_offset(&t, HX_PART_MODELS) + hx_part_bytes(&t, HX_PART_MODELS) <=
                TARGET_BYTES - 16384 - sector);
    for (int i = 0; i < HX_LAYOUT_PARTS; i++)
        assert_int_equal(hx_part_offset(&t, i) % HX_DISK_MIB, 0);
    uint64_t esp = hx_part_offset(&t, HX_PART_ESP);
    noise(want, sizeof(want), 8);
    assert_int_equal(fat_find(&r->target, esp, KERNEL, have, sizeof(have)), sizeof(want));
    assert_memory_equal(have, want, sizeof(want));
    assert_int_equal(fat_find(&r->target, esp, "loader/loader.conf", NULL, 0), 10);
    assert_int_equal(fat_find(&r->target, esp, "loader/addons/board.addon.efi", NULL, 0), 5);
    assert_int_equal(fat_find(&r->target, esp, "loader/addons/installer.addon.efi", NULL, 0), -1);
    assert_int_equal(fat_find(&r->target, esp, "loader/random-seed", NULL, 0), -1);
    assert_int_equal(fat_find(&r->target, esp, "hx170-answers.conf", NULL, 0), -1);
}

static void test_installs(void **state)
{
    (void)state;
    static const unsigned sectors[] = {512, 4096};
    for (size_t i = 0; i < 2; i++) {
        struct run r;
        run_open(&r, sectors[i]);
        check_installed(&r, sectors[i]);
        run_close(&r);
    }
}

static void test_answers_travel(void **state)
{
    (void)state;
    struct run r;
    struct hx_error err;
    uint8_t have[16] = {0};
    run_open(&r, 512);
    put_text(&r.w, "/answers", "schema = 1\n");
    r.job.answers = path_in(&r.w, "/answers");
    assert_int_equal(hx_install_write(&r.job, &r.target, &err), 0);
    assert_int_equal(fat_find(&r.target, HX_DISK_MIB, "hx170-answers.conf", have, 15), 11);
    assert_string_equal((char *)have, "schema = 1\n");
    run_close(&r);
}

/* Everything that was written, in order, to be written again up to any point. */
struct log {
    int n;
    struct {
        uint64_t offset;
        size_t len;
        uint8_t *data; /* NULL: a flush */
    } act[4096];
};

static int note(void *ctx, const struct hx_disk_event *e, struct hx_error *err)
{
    struct log *log = ctx;
    (void)err;
    assert_true(log->n < 4096);
    log->act[log->n].offset = e->offset;
    log->act[log->n].len = e->len;
    log->act[log->n].data = NULL;
    if (e->act == HX_DISK_WRITE) {
        log->act[log->n].data = malloc(e->len);
        memcpy(log->act[log->n].data, e->data, e->len);
    }
    log->n++;
    return 0;
}

static void log_done(struct log *log)
{
    for (int i = 0; i < log->n; i++)
        free(log->act[i].data);
    free(log);
}

static struct log *record(struct run *r)
{
    struct log *log = calloc(1, sizeof(*log));
    struct hx_error err;
    struct hx_disk_watch watch = {log, note};
    r->target.watch = &watch;
    assert_int_equal(hx_install_write(&r->job, &r->target, &err), 0);
    r->target.watch = NULL;
    return log;
}

static void check_models(const struct hx_disk *d, const struct hx_table *old)
{
    static struct hx_table t;
    struct hx_error err;
    uint8_t have[4096], want[4096];
    bool backup;
    assert_int_equal(hx_table_read(d, &t, &backup, &err), 0);
    assert_false(backup);
    assert_int_equal(t.part[HX_PART_MODELS].first, old->part[HX_PART_MODELS].first);
    assert_int_equal(t.part[HX_PART_MODELS].n_sectors, old->part[HX_PART_MODELS].n_sectors);
    assert_memory_equal(t.part[HX_PART_MODELS].guid, old->part[HX_PART_MODELS].guid, 16);
    noise(want, sizeof(want), 99);
    assert_int_equal(hx_disk_read(d, have, sizeof(have), hx_part_offset(&t, HX_PART_MODELS), &err),
                     0);
    assert_memory_equal(have, want, sizeof(want));
}

/* After every write, and in the middle of every write: nothing that boots before the last. old: of
 * a disk whose models are kept. */
static void replay(const struct log *log, struct hx_disk *d, const struct world *w,
                   const struct hx_table *old)
{
    struct hx_error err;
    int n_boots = 0;
    for (int i = 0; i < log->n; i++) {
        if (!log->act[i].data)
            continue;
        size_t half = log->act[i].len / 2 / 512 * 512;
        bool one_sector = log->act[i].len <= d->sector;
        size_t parts[2] = {one_sector ? 0 : half, log->act[i].len};
        size_t from = 0;
        for (int k = 0; k < 2; k++) {
            assert_int_equal(hx_file_pwrite(d->fd, d->path, log->act[i].data + from,
                                            parts[k] - from, log->act[i].offset + from, &err),
                             0);
            from = parts[k];
            int now = boots(d, w);
            n_boots += now;
            /* What was there before the cut must be gone with the first flush. */
            assert_true(now == 0 || i + 2 >= log->n);
            if (old)
                check_models(d, old);
        }
    }
    assert_true(n_boots > 0);
    assert_int_equal(boots(d, w), 1);
}

static void test_cut_at_every_write(void **state)
{
    (void)state;
    struct run r;
    struct hx_disk again;
    struct hx_error err;
    run_open(&r, 512);
    struct log *log = record(&r);
    assert_true(log->n > 10);
    make_sparse(&r.w, "/again", TARGET_BYTES);
    assert_int_equal(hx_disk_open(path_in(&r.w, "/again"), HX_DISK_ALONE, 512, &again, &err), 0);
    replay(log, &again, &r.w, NULL);
    hx_disk_close(&again);
    log_done(log);
    run_close(&r);
}

static void test_flush_before_what_depends(void **state)
{
    (void)state;
    struct run r;
    run_open(&r, 512);
    struct log *log = record(&r);
    /* The last write is the kernel's name, with a flush on both sides; the zeros at the start are
     * flushed before anything else is written. */
    assert_null(log->act[log->n - 1].data);
    assert_non_null(log->act[log->n - 2].data);
    assert_null(log->act[log->n - 3].data);
    assert_int_equal(log->act[0].offset, 0);
    assert_int_equal(log->act[1].offset, TARGET_BYTES - HX_DISK_MIB);
    assert_null(log->act[2].data);
    log_done(log);
    run_close(&r);
}

static void test_keeps_models_through_every_cut(void **state)
{
    (void)state;
    struct run r;
    static struct hx_table old;
    struct hx_error err;
    uint8_t models[4096], zero[4096] = {0}, have[4096];
    run_open(&r, 512);
    assert_int_equal(hx_install_write(&r.job, &r.target, &err), 0);
    assert_int_equal(hx_table_read(&r.target, &old, NULL, &err), 0);
    noise(models, sizeof(models), 99);
    assert_int_equal(hx_disk_write(&r.target, models, sizeof(models),
                                   hx_part_offset(&old, HX_PART_MODELS), &err),
                     0);
    assert_int_equal(
        hx_disk_write(&r.target, models, sizeof(models), hx_part_offset(&old, HX_PART_STATE), &err),
        0);
    /* The state before the second run, to start the replay from. */
    /* A copy of what an install writes; all else is a hole. */
    struct hx_disk again;
    make_sparse(&r.w, "/again", TARGET_BYTES);
    assert_int_equal(hx_disk_open(path_in(&r.w, "/again"), HX_DISK_ALONE, 512, &again, &err), 0);
    static const uint64_t spans[][2] = {{0, 16}, {1025, 2}, {3073, 1}, {5249, 1}};
    uint8_t *buf = malloc(16 * HX_DISK_MIB);
    for (size_t i = 0; i < 4; i++) {
        uint64_t at = spans[i][0] * HX_DISK_MIB, n = spans[i][1] * HX_DISK_MIB;
        assert_int_equal(hx_disk_read(&r.target, buf, n, at, &err), 0);
        assert_int_equal(hx_disk_write(&again, buf, n, at, &err), 0);
    }
    uint64_t ends[] = {hx_part_offset(&old, HX_PART_MODELS), TARGET_BYTES - HX_DISK_MIB};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(hx_disk_read(&r.target, buf, HX_DISK_MIB, ends[i], &err), 0);
        assert_int_equal(hx_disk_write(&again, buf, HX_DISK_MIB, ends[i], &err), 0);
    }
    free(buf);
    assert_int_equal(boots(&again, &r.w), 1);

    r.job.keep_models = true;
    struct log *log = record(&r);
    check_models(&r.target, &old);
    assert_int_equal(
        hx_disk_read(&r.target, have, sizeof(have), hx_part_offset(&old, HX_PART_STATE), &err), 0);
    assert_memory_equal(have, zero, sizeof(have));
    replay(log, &again, &r.w, &old);
    hx_disk_close(&again);
    log_done(log);
    run_close(&r);
}

static int stop_at(void *ctx, const struct hx_disk_event *e, struct hx_error *err)
{
    int *left = ctx;
    (void)e;
    return (*left)-- == 0 ? hx_fail(err, -EIO, "stopped here") : 0;
}

static void test_second_run_after_any_stop(void **state)
{
    (void)state;
    struct run r;
    struct hx_error err;
    run_open(&r, 512);
    for (int stop = 0;; stop++) {
        int left = stop;
        struct hx_disk_watch watch = {&left, stop_at};
        r.target.watch = &watch;
        int done = hx_install_write(&r.job, &r.target, &err);
        r.target.watch = NULL;
        if (done == 0) {
            assert_true(stop > 10);
            break;
        }
        assert_int_equal(done, -EIO);
        assert_non_null(strstr(err.text, "stopped here"));
    }
    assert_int_equal(boots(&r.target, &r.w), 1);
    run_close(&r);
}

static int flip_after_write(void *ctx, const struct hx_disk_event *e, struct hx_error *err)
{
    struct run *r = ctx;
    uint64_t at = (1 + 1024) * HX_DISK_MIB;
    /* The flush behind the copy of the root: the drive has one byte wrong by then. */
    if (e->act == HX_DISK_FLUSH) {
        uint8_t b;
        if (hx_disk_read(&r->target, &b, 1, at + 77, err) == 0) {
            b ^= 1;
            return hx_file_pwrite(r->target.fd, "target", &b, 1, at + 77, err);
        }
    }
    return 0;
}

static void test_drive_that_writes_wrong(void **state)
{
    (void)state;
    struct run r;
    struct hx_error err;
    run_open(&r, 512);
    struct hx_disk_watch watch = {&r, flip_after_write};
    r.target.watch = &watch;
    assert_int_equal(hx_install_write(&r.job, &r.target, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "what was written reads back differently"));
    assert_int_equal(boots(&r.target, &r.w), 0);
    run_close(&r);
}

static void test_damaged_stick(void **state)
{
    (void)state;
    static const struct {
        uint64_t at;
        const char *words;
    } rows[] = {{22528ull * 512 + 5 * 4096 + 9, "block 5 of the system is damaged"},
                {24576ull * 512 + 2 * 4096 + 3, "block 0 of the hash tree is damaged"},
                {24576ull * 512 + 4096, "root hash is"},
                {24576ull * 512, "no hash tree"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct run r;
        struct hx_error err;
        uint8_t b;
        run_open(&r, 512);
        assert_int_equal(hx_install_check_stick(&r.job, &err), 0);
        int fd = open(r.from.path, O_RDWR);
        assert_int_equal(pread(fd, &b, 1, (off_t)rows[i].at), 1);
        b ^= 0x10;
        assert_int_equal(pwrite(fd, &b, 1, (off_t)rows[i].at), 1);
        close(fd);
        assert_int_equal(hx_install_check_stick(&r.job, &err), -EBADMSG);
        assert_non_null(strstr(err.text, "this stick is not in order"));
        assert_non_null(strstr(err.text, rows[i].words));
        run_close(&r);
    }
}

/* Files of the ESP have no hash tree; their sums are listed. */
static void test_damaged_esp(void **state)
{
    (void)state;
    static const struct {
        const char *file, *content; /* NULL: removed */
        int r;
        const char *words;
    } rows[] = {
        {"/efi/EFI/systemd/systemd-bootx64.efi", "boot Loader", -EBADMSG,
         "ESP file 'EFI/systemd/systemd-bootx64.efi' is damaged"},
        {"/efi/" KERNEL, "x", -EBADMSG, "ESP file '" KERNEL "' is damaged"},
        {"/efi/loader/loader.conf", NULL, -ENOENT, "ESP file 'loader/loader.conf'"},
        {"/efi/hx170/sums", NULL, -ENOENT, "hx170/sums is missing on the stick"},
        {"/efi/hx170/sums", "\n\n", -EINVAL, "hx170/sums is empty"},
        {"/efi/hx170/sums", "abc  loader/loader.conf\n", -EINVAL, "line 1 is damaged"},
        {"/efi/hx170/sums",
         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef  ../etc/passwd\n",
         -EINVAL, "line 1 is damaged"},
        {"/efi/hx170/sums",
         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef  /etc/passwd\n", -EINVAL,
         "line 1 is damaged"},
        {"/efi/hx170/sums", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef  ",
         -EINVAL, "line 1 is damaged"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct run r;
        struct hx_error err;
        run_open(&r, 512);
        assert_int_equal(hx_install_check_stick(&r.job, &err), 0);
        unlink(path_in(&r.w, rows[i].file));
        if (rows[i].content)
            put_text(&r.w, rows[i].file, rows[i].content);
        assert_int_equal(hx_install_check_stick(&r.job, &err), rows[i].r);
        if (!strstr(err.text, "this stick is not in order") || !strstr(err.text, rows[i].words))
            fail_msg("'%s' is not in '%s'", rows[i].words, err.text);
        run_close(&r);
    }
}

static void test_stick_without_kernel(void **state)
{
    (void)state;
    struct run r;
    struct hx_error err;
    run_open(&r, 512);
    unlink(path_in(&r.w, "/efi/" KERNEL));
    assert_int_equal(hx_install_check(&r.job, &r.target, &err), -ENOENT);
    assert_non_null(strstr(err.text, "hx170_" VERSION ".efi is missing on the stick"));
    run_close(&r);
}

static void test_refusals_write_nothing(void **state)
{
    (void)state;
    struct run r;
    struct hx_error err;
    struct log *log = calloc(1, sizeof(*log));
    struct hx_disk_watch watch = {log, note};
    run_open(&r, 512);
    r.target.watch = &watch;
    r.job.keep_models = true;
    assert_int_equal(hx_install_write(&r.job, &r.target, &err), -ENODATA);
    assert_non_null(strstr(err.text, "no hx170 system on it whose models could be kept"));
    r.job.keep_models = false;
    r.target.n_bytes = hx_layout_min_bytes() - 512;
    assert_int_equal(hx_install_write(&r.job, &r.target, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "are too small"));
    assert_int_equal(log->n, 0);
    log_done(log);
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_installs),
        cmocka_unit_test(test_answers_travel),
        cmocka_unit_test(test_cut_at_every_write),
        cmocka_unit_test(test_flush_before_what_depends),
        cmocka_unit_test(test_keeps_models_through_every_cut),
        cmocka_unit_test(test_second_run_after_any_stop),
        cmocka_unit_test(test_drive_that_writes_wrong),
        cmocka_unit_test(test_damaged_stick),
        cmocka_unit_test(test_damaged_esp),
        cmocka_unit_test(test_stick_without_kernel),
        cmocka_unit_test(test_refusals_write_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
