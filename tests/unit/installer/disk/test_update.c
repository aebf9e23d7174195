/* Updates of an installed system on image files: a cut at every step, and what is refused. */
#include "world.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "disk/update.h"

#define TARGET_BYTES (24ull << 30)
#define NEW          "1.10" /* later than 1.2: numbers, not texts */
#define THIRD        "1.11"
#define UKI_BYTES    70000u

struct box {
    struct world w;
    struct hx_system system;
    struct hx_disk disk;
    struct hx_bundle bundle;
    char esp[128], path[128], key[128];
    char new_hash[65], third_hash[65];
    struct hx_update_job job;
};

/* Files of a bundle, in a folder; manifest lines may be replaced before it is signed. */
struct parts {
    uint8_t root[ROOT_BYTES], tree[TREE_BYTES], uki[UKI_BYTES];
    char manifest[4096];
};

static void hash_hex(const void *data, size_t len, char hex[65])
{
    uint8_t digest[32];
    assert_int_equal(hx_sha256_data(data, len, digest), 0);
    hx_sha256_to_hex(digest, hex);
}

static struct parts *make_parts(char hash[65], const char *version, const char *minimum,
                                uint64_t seed)
{
    struct parts *p = calloc(1, sizeof(*p));
    char a[65], b[65], c[65];
    noise(p->root, sizeof(p->root), seed);
    make_tree(p->root, p->tree, hash);
    noise(p->uki, sizeof(p->uki), 22);
    hash_hex(p->root, sizeof(p->root), a);
    hash_hex(p->tree, sizeof(p->tree), b);
    hash_hex(p->uki, sizeof(p->uki), c);
    snprintf(p->manifest, sizeof(p->manifest),
             "schema = 1\nproduct = hx170\nversion = %s\nminimum_version = %s\nkernel = 6.12\n"
             "root_hash = %s\nroot.erofs.size = %u\nroot.erofs.sha256 = %s\n"
             "root.verity.size = %u\nroot.verity.sha256 = %s\nuki.efi.size = %u\n"
             "uki.efi.sha256 = %s\n",
             version, minimum, hash, ROOT_BYTES, a, TREE_BYTES, b, UKI_BYTES, c);
    return p;
}

static EVP_PKEY *make_key(const char *path)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    FILE *f = fopen(path, "w");
    assert_non_null(key);
    assert_non_null(f);
    assert_int_equal(PEM_write_PUBKEY(f, key), 1);
    fclose(f);
    return key;
}

static void put_parts(const struct world *w, const struct parts *p, EVP_PKEY *key)
{
    uint8_t signature[64];
    size_t n = sizeof(signature);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    assert_int_equal(EVP_DigestSignInit(ctx, NULL, NULL, NULL, key), 1);
    assert_int_equal(
        EVP_DigestSign(ctx, signature, &n, (const uint8_t *)p->manifest, strlen(p->manifest)), 1);
    EVP_MD_CTX_free(ctx);
    put_text(w, "/bundle/manifest", p->manifest);
    put(w, "/bundle/manifest.sig", signature, sizeof(signature));
    put(w, "/bundle/root.erofs", p->root, sizeof(p->root));
    put(w, "/bundle/root.verity", p->tree, sizeof(p->tree));
    put(w, "/bundle/uki.efi", p->uki, sizeof(p->uki));
}

static void tar_member(FILE *f, const char *name, const void *data, size_t len)
{
    uint8_t h[512] = {0}, pad[512] = {0};
    unsigned sum = 0;
    snprintf((char *)h, 100, "%s", name);
    snprintf((char *)h + 124, 12, "%011zo", len);
    h[156] = '0';
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        sum += h[i];
    snprintf((char *)h + 148, 8, "%06o", sum);
    assert_int_equal(fwrite(h, 1, 512, f), 512);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fwrite(pad, 1, (512 - len % 512) % 512, f);
}

static void put_tar(const struct world *w, const char *path)
{
    static const char *const names[] = {"manifest", "manifest.sig", "root.erofs", "root.verity",
                                        "uki.efi"};
    FILE *f = fopen(path_in(w, path), "w");
    char from[64];
    uint8_t zero[1024] = {0};
    assert_non_null(f);
    for (int i = 0; i < 5; i++) {
        char *data;
        size_t len;
        struct hx_error err;
        snprintf(from, sizeof(from), "/bundle/%s", names[i]);
        assert_int_equal(hx_file_read(path_in(w, from), 4u << 20, &data, &len, &err), 0);
        tar_member(f, names[i], data, len);
        free(data);
    }
    fwrite(zero, 1, sizeof(zero), f);
    fclose(f);
}

/* The disk after an installation, and its ESP as the folder it is mounted at. */
static void box_open(struct box *b)
{
    struct hx_error err;
    struct hx_system stick;
    struct hx_disk source;
    char text[256];
    memset(b, 0, sizeof(*b));
    world_open(&b->w);
    add_disk(&b->w, "nvme0n1", "259:0", "NVME-ABCD\n", TARGET_BYTES, 512);
    assert_int_equal(hx_system_read(b->w.root, 0, &stick, &err), 0);
    assert_int_equal(hx_disk_open(stick.path, HX_DISK_READ, 0, &source, &err), 0);
    assert_int_equal(
        hx_disk_open(path_in(&b->w, "/dev/nvme0n1"), HX_DISK_SHARED, 512, &b->disk, &err), 0);
    snprintf(b->esp, sizeof(b->esp), "%s/efi", b->w.dir);
    struct hx_install_job job = {.from = &stick, .source = &source, .esp = b->esp};
    assert_int_equal(hx_install_write(&job, &b->disk, &err), 0);
    hx_disk_close(&source);
    unlink(path_in(&b->w, "/run/hx170/boot/8:0"));
    put_text(&b->w, "/run/hx170/boot/259:0", "");
    snprintf(text, sizeof(text), "quiet roothash=%s\n", b->w.root_hash);
    put_text(&b->w, "/proc/cmdline", text);
    assert_int_equal(hx_system_read(b->w.root, 0, &b->system, &err), 0);
    assert_true(b->system.installed);
    assert_int_equal(b->system.slot, 0);
    snprintf(b->path, sizeof(b->path), "%s/bundle", b->w.dir);
    snprintf(b->key, sizeof(b->key), "%s/key.pem", b->w.dir);
}

static void box_bundle(struct box *b, const char *version, const char *minimum)
{
    struct hx_error err;
    bool third = strcmp(version, THIRD) == 0;
    struct parts *p =
        make_parts(third ? b->third_hash : b->new_hash, version, minimum, third ? 31 : 21);
    EVP_PKEY *key = make_key(b->key);
    put_parts(&b->w, p, key);
    EVP_PKEY_free(key);
    free(p);
    assert_int_equal(hx_bundle_open(b->path, b->key, &b->bundle, &err), 0);
    b->job = (struct hx_update_job){
        .system = &b->system, .disk = &b->disk, .esp = b->esp, .bundle = &b->bundle};
}

static void box_close(struct box *b)
{
    hx_bundle_close(&b->bundle);
    hx_disk_close(&b->disk);
    world_close(&b->w);
}

/* What the boot loader and the initrd would do: every kernel image must find its whole root. The
 * number of systems that start. */
static int startable(const struct box *b)
{
    static struct hx_table t;
    struct hx_kernels list;
    struct hx_error err;
    bool backup;
    int n = 0;
    assert_int_equal(hx_table_read(&b->disk, &t, &backup, &err), 0);
    assert_false(backup);
    assert_int_equal(hx_kernels_list(b->esp, &list, &err), 0);
    for (int i = 0; i < list.n; i++) {
        const char *version = list.image[i].version;
        bool is_new = strcmp(version, VERSION) != 0;
        const char *hash = strcmp(version, NEW) == 0     ? b->new_hash
                           : strcmp(version, THIRD) == 0 ? b->third_hash
                                                         : b->w.root_hash;
        uint8_t guid[2][16];
        assert_int_equal(hx_guid_from_hex(hash, guid[0]), 0);
        assert_int_equal(hx_guid_from_hex(hash + 32, guid[1]), 0);
        int root = hx_table_find_guid(&t, guid[0]), tree = hx_table_find_guid(&t, guid[1]);
        assert_int_equal(root, is_new ? HX_PART_ROOT_B : HX_PART_ROOT_A);
        assert_int_equal(tree, root + 1);
        struct hx_extent data = {&b->disk, hx_part_offset(&t, root), hx_part_bytes(&t, root)};
        struct hx_extent hashes = {&b->disk, hx_part_offset(&t, tree), hx_part_bytes(&t, tree)};
        assert_int_equal(hx_verity_check(&data, &hashes, hash, NULL, NULL, &err), 0);
        assert_int_equal(list.image[i].n_bytes, is_new ? UKI_BYTES : 10000);
        n++;
    }
    return n;
}

static void test_updates(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    struct hx_update_status st;
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    assert_int_equal(hx_update_check(&b.job, &err), 0);
    assert_int_equal(startable(&b), 1);
    assert_int_equal(hx_update_write(&b.job, &err), 0);
    assert_int_equal(startable(&b), 2);
    assert_int_equal(access(path_in(&b.w, "/efi/EFI/Linux/hx170_" NEW "+3.efi"), F_OK), 0);
    assert_int_equal(hx_system_read(b.w.root, 0, &b.system, &err), 0);
    assert_string_equal(b.system.table.part[HX_PART_ROOT_B].label, "root_" NEW);
    assert_int_equal(hx_update_status(&b.system, b.esp, &st, &err), 0);
    assert_int_equal(st.left, -1);
    assert_string_equal(st.standby, NEW);
    assert_int_equal(st.standby_left, 3);
    assert_true(st.next_is_standby);
    box_close(&b);
}

static void test_from_a_tar(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    hx_bundle_close(&b.bundle);
    put_tar(&b.w, "/update.bundle");
    assert_int_equal(hx_bundle_open(path_in(&b.w, "/update.bundle"), b.key, &b.bundle, &err), 0);
    assert_int_equal(hx_update_write(&b.job, &err), 0);
    assert_int_equal(startable(&b), 2);
    box_close(&b);
}

struct cut {
    int left;
    bool half; /* the write at the cut reaches the disk by half */
    struct hx_disk *disk;
};

static int cut_here(void *ctx, const struct hx_disk_event *e, struct hx_error *err)
{
    struct cut *c = ctx;
    if (c->left-- > 0)
        return 0;
    if (c->half && e->act == HX_DISK_WRITE && e->len > 512)
        assert_int_equal(
            hx_file_pwrite(c->disk->fd, "disk", e->data, e->len / 1024 * 512, e->offset, err), 0);
    return hx_fail(err, -EIO, "the power is gone");
}

/* At every act, whole and half: one system starts, and the next update works. */
static void test_cut_at_every_step(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    int n_cuts = 0;
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    for (int stop = 0, done = 0; !done; stop++) {
        for (int half = 0; half < 2 && !done; half++) {
            struct cut c = {stop, half == 1, &b.disk};
            struct hx_disk_watch watch = {&c, cut_here};
            assert_int_equal(hx_system_read(b.w.root, 0, &b.system, &err), 0);
            b.disk.watch = &watch;
            int r = hx_update_write(&b.job, &err);
            b.disk.watch = NULL;
            int n = startable(&b);
            assert_true(n >= 1);
            done = r == 0;
            n_cuts += r < 0;
        }
    }
    assert_true(n_cuts > 30);
    assert_int_equal(startable(&b), 2);
    box_close(&b);
}

/* The same over a slot that holds an update which nobody started: its kernel image has to go before
 * its root does. */
static void test_cut_over_another_update(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    box_open(&b);
    for (int stop = 0, done = 0; !done; stop++) {
        hx_bundle_close(&b.bundle);
        box_bundle(&b, NEW, VERSION);
        assert_int_equal(hx_system_read(b.w.root, 0, &b.system, &err), 0);
        assert_int_equal(hx_update_write(&b.job, &err), 0);
        assert_int_equal(startable(&b), 2);
        hx_bundle_close(&b.bundle);
        box_bundle(&b, THIRD, VERSION);
        assert_int_equal(hx_system_read(b.w.root, 0, &b.system, &err), 0);
        struct cut c = {stop, true, &b.disk};
        struct hx_disk_watch watch = {&c, cut_here};
        b.disk.watch = &watch;
        done = hx_update_write(&b.job, &err) == 0;
        b.disk.watch = NULL;
        assert_true(startable(&b) >= 1);
    }
    box_close(&b);
}

/* Writes of an update with what they overwrote. */
struct act {
    uint64_t offset;
    size_t len;
    uint8_t *data, *before; /* data NULL: a flush */
};

struct acts {
    struct hx_disk *disk;
    size_t n, n_pending;
    struct act act[1024];
};

static int note(void *ctx, const struct hx_disk_event *e, struct hx_error *err)
{
    struct acts *all = ctx;
    assert_true(all->n < 1024);
    /* The ESP is another file system: what it says must be true of the slot by then. */
    if (e->act == HX_DISK_FILE) {
        assert_int_equal(all->n_pending, 0);
        return 0;
    }
    struct act *a = &all->act[all->n++];
    *a = (struct act){.offset = e->offset, .len = e->len};
    all->n_pending = e->act == HX_DISK_FLUSH ? 0 : all->n_pending + 1;
    if (e->act == HX_DISK_WRITE) {
        a->data = malloc(e->len);
        a->before = malloc(e->len);
        memcpy(a->data, e->data, e->len);
        return hx_disk_read(all->disk, a->before, a->len, a->offset, err);
    }
    return 0;
}

static void write_bytes(struct box *b, uint64_t at, const uint8_t *data, size_t len)
{
    struct hx_error err;
    assert_int_equal(hx_file_pwrite(b->disk.fd, "disk", data, len, at, &err), 0);
}

/* A drive that loses power may have done any of the writes behind the last flush, and one by half:
 * the system that runs must come up again from each. */
static void test_lost_and_torn_writes(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    struct hx_rng g;
    struct acts *all = calloc(1, sizeof(*all));
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    hx_rng_seed(&g, 170);
    all->disk = &b.disk;
    struct hx_disk_watch watch = {all, note};
    b.disk.watch = &watch;
    assert_int_equal(hx_update_write(&b.job, &err), 0);
    b.disk.watch = NULL;
    assert_int_equal(startable(&b), 2);
    unlink(path_in(&b.w, "/efi/EFI/Linux/hx170_" NEW "+3.efi"));
    for (size_t i = all->n; i-- > 0;)
        if (all->act[i].data)
            write_bytes(&b, all->act[i].offset, all->act[i].before, all->act[i].len);
    size_t n_epochs = 0;
    for (size_t from = 0, i = 0; i < all->n; i++) {
        if (all->act[i].data)
            continue;
        n_epochs++;
        for (int trial = 0; trial < 12; trial++) {
            uint64_t bits = hx_rng_next(&g);
            for (size_t k = from; k < i; k++) {
                const struct act *a = &all->act[k];
                size_t half = a->len / 1024 * 512;
                if (bits >> (k % 31) & 1)
                    write_bytes(&b, a->offset, a->data,
                                k % 7 == bits >> 61 && half ? half : a->len);
            }
            assert_int_equal(startable(&b), 1);
            for (size_t k = i; k-- > from;)
                write_bytes(&b, all->act[k].offset, all->act[k].before, all->act[k].len);
        }
        for (size_t k = from; k < i; k++)
            write_bytes(&b, all->act[k].offset, all->act[k].data, all->act[k].len);
        from = i + 1;
    }
    assert_true(n_epochs > 5);
    for (size_t i = 0; i < all->n; i++) {
        free(all->act[i].data);
        free(all->act[i].before);
    }
    free(all);
    box_close(&b);
}

static void test_only_the_standby_slot_changes(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    uint8_t *before = malloc(16 * HX_DISK_MIB), *after = malloc(16 * HX_DISK_MIB);
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    const int kept[] = {HX_PART_ESP, HX_PART_ROOT_A, HX_PART_VERITY_A, HX_PART_STATE,
                        HX_PART_MODELS};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(hx_disk_read(&b.disk, before + i * 3 * HX_DISK_MIB, 3 * HX_DISK_MIB,
                                      hx_part_offset(&b.system.table, kept[i]), &err),
                         0);
    assert_int_equal(hx_update_write(&b.job, &err), 0);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(hx_disk_read(&b.disk, after + i * 3 * HX_DISK_MIB, 3 * HX_DISK_MIB,
                                      hx_part_offset(&b.system.table, kept[i]), &err),
                         0);
    assert_memory_equal(before, after, 15 * HX_DISK_MIB);
    free(before);
    free(after);
    box_close(&b);
}

static int count(void *ctx, const struct hx_disk_event *e, struct hx_error *err)
{
    (void)e;
    (void)err;
    (*(int *)ctx)++;
    return 0;
}

static void refused(struct box *b, int r, const char *words)
{
    struct hx_error err;
    int n = 0;
    struct hx_disk_watch watch = {&n, count};
    b->disk.watch = &watch;
    assert_int_equal(hx_update_write(&b->job, &err), r);
    b->disk.watch = NULL;
    if (!strstr(err.text, words))
        fail_msg("'%s' is not in '%s'", words, err.text);
    assert_int_equal(n, 0);
}

static void test_refused_versions(void **state)
{
    (void)state;
    static const struct {
        const char *version, *minimum, *words;
    } rows[] = {{"1.1", "1.0", "version 1.1 is older than 1.2, which runs"},
                {"1.2", "1.0", "version 1.2 is the one that runs"},
                {"2.0", "1.3", "needs 1.3 or later, 1.2 runs"}};
    for (size_t i = 0; i < 3; i++) {
        struct box b;
        box_open(&b);
        box_bundle(&b, rows[i].version, rows[i].minimum);
        refused(&b, -EPERM, rows[i].words);
        box_close(&b);
    }
}

static void test_refused_on_trial(void **state)
{
    (void)state;
    struct box b;
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    assert_int_equal(rename(path_in(&b.w, "/efi/" KERNEL),
                            path_in(&b.w, "/efi/EFI/Linux/hx170_" VERSION "+2-1.efi")),
                     0);
    refused(&b, -EAGAIN, "has not proven itself yet (2 tries left)");
    unlink(path_in(&b.w, "/efi/EFI/Linux/hx170_" VERSION "+2-1.efi"));
    refused(&b, -EAGAIN, "no kernel image of the running version");
    box_close(&b);
}

static void test_refused_damage(void **state)
{
    (void)state;
    static const char *const files[] = {"root.erofs", "root.verity", "uki.efi"};
    for (size_t i = 0; i < 3; i++) {
        struct box b;
        char path[200], byte;
        box_open(&b);
        box_bundle(&b, NEW, VERSION);
        snprintf(path, sizeof(path), "%s/%s", b.path, files[i]);
        int fd = open(path, O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, 5000), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, 5000), 1);
        close(fd);
        snprintf(path, sizeof(path), "%s of the update is damaged", files[i]);
        refused(&b, -EBADMSG, path);
        box_close(&b);
    }
}

/* Bundles that are not even opened: what is changed, and what is said. */
static void test_refused_bundles(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        int r;
        const char *words;
    } rows[] = {
        {"product = hx170", "product = hx999", -EINVAL, "an update of 'hx999', not of hx170"},
        {"schema = 1", "schema = 2", -EINVAL, "manifest of schema 2"},
        {"version = 1.10", "version = 1.x0", -EINVAL, "no version"},
        {"kernel = 6.12", "colour = red", -EINVAL, "line 5: unknown key 'colour'"},
        {"kernel = 6.12", "version = 1.3", -EINVAL, "line 5: 'version' again"},
        {"kernel = 6.12", "kernel: 6.12", -EINVAL, "line 5: 'key = value' is expected"},
        {"kernel = 6.12\n", "", -EINVAL, "'kernel' is missing"},
        {"root.erofs.size = 1048576", "root.erofs.size = 1048577", -EBADMSG,
         "root.erofs: 1048576 bytes, the manifest says 1048577"},
        {"root.erofs.size = 1048576", "root.erofs.size = -5", -EINVAL,
         "root.erofs.size is no size"},
        {"root_hash = ", "root_hash = Z", -EINVAL, "root_hash is too long"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct box b;
        struct hx_error err;
        box_open(&b);
        struct parts *p = make_parts(b.new_hash, NEW, VERSION, 21);
        char *at = strstr(p->manifest, rows[i].from), fresh[5000];
        assert_non_null(at);
        snprintf(fresh, sizeof(fresh), "%.*s%s%s", (int)(at - p->manifest), p->manifest, rows[i].to,
                 at + strlen(rows[i].from));
        snprintf(p->manifest, sizeof(p->manifest), "%s", fresh);
        EVP_PKEY *key = make_key(b.key);
        put_parts(&b.w, p, key);
        EVP_PKEY_free(key);
        free(p);
        assert_int_equal(hx_bundle_open(b.path, b.key, &b.bundle, &err), rows[i].r);
        if (!strstr(err.text, rows[i].words))
            fail_msg("'%s' is not in '%s'", rows[i].words, err.text);
        box_close(&b);
    }
}

static void test_refused_signatures(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    hx_bundle_close(&b.bundle);
    EVP_PKEY_free(make_key(path_in(&b.w, "/other.pem")));
    assert_int_equal(hx_bundle_open(b.path, path_in(&b.w, "/other.pem"), &b.bundle, &err), -EPERM);
    assert_non_null(strstr(err.text, "not signed by the maker of this system"));
    put(&b.w, "/bundle/manifest.sig", "short", 5);
    assert_int_equal(hx_bundle_open(b.path, b.key, &b.bundle, &err), -EBADMSG);
    unlink(path_in(&b.w, "/bundle/manifest.sig"));
    assert_int_equal(hx_bundle_open(b.path, b.key, &b.bundle, &err), -ENOENT);
    assert_non_null(strstr(err.text, "manifest.sig"));
    box_close(&b);
}

/* A tar that ends at any place is refused, without a crash. */
static void test_truncated_tar(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    hx_bundle_close(&b.bundle);
    put_tar(&b.w, "/update.bundle");
    struct stat st;
    assert_int_equal(stat(path_in(&b.w, "/update.bundle"), &st), 0);
    off_t used = st.st_size - 1024 - (512 - UKI_BYTES % 512) % 512;
    for (off_t at = used - 1; at >= 0; at -= 37777) {
        assert_int_equal(truncate(path_in(&b.w, "/update.bundle"), at), 0);
        int r = hx_bundle_open(path_in(&b.w, "/update.bundle"), b.key, &b.bundle, &err);
        assert_int_equal(r, -EBADMSG);
    }
    put_text(&b.w, "/update.bundle", "");
    assert_int_equal(hx_bundle_open(path_in(&b.w, "/update.bundle"), b.key, &b.bundle, &err),
                     -EBADMSG);
    assert_non_null(strstr(err.text, "no update bundle"));
    box_close(&b);
}

static void test_too_large_for_the_slot(void **state)
{
    (void)state;
    struct box b;
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    b.system.table.part[HX_PART_ROOT_B].n_sectors = ROOT_BYTES / 512 - 1;
    refused(&b, -EFBIG, "the update has 1048576 bytes, partition 4 has 1048064");
    box_close(&b);
}

static void test_rollback(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    struct hx_update_status st;
    char text[256];
    box_open(&b);
    b.job = (struct hx_update_job){.system = &b.system, .disk = &b.disk, .esp = b.esp};
    assert_int_equal(hx_update_rollback(&b.job, &err), -ENODATA);
    box_bundle(&b, NEW, VERSION);
    assert_int_equal(hx_update_write(&b.job, &err), 0);
    /* The new system starts and is blessed. */
    assert_int_equal(rename(path_in(&b.w, "/efi/EFI/Linux/hx170_" NEW "+3.efi"),
                            path_in(&b.w, "/efi/EFI/Linux/hx170_" NEW ".efi")),
                     0);
    snprintf(text, sizeof(text), "quiet roothash=%s\n", b.new_hash);
    put_text(&b.w, "/proc/cmdline", text);
    put_text(&b.w, "/usr/lib/os-release", "IMAGE_VERSION=" NEW "\n");
    assert_int_equal(hx_system_read(b.w.root, 0, &b.system, &err), 0);
    assert_int_equal(b.system.slot, 1);
    assert_int_equal(hx_update_rollback(&b.job, &err), 0);
    assert_int_equal(hx_update_status(&b.system, b.esp, &st, &err), 0);
    assert_int_equal(st.left, 0);
    assert_string_equal(st.standby, VERSION);
    assert_true(st.next_is_standby);
    assert_int_equal(startable(&b), 2);
    refused(&b, -EAGAIN, "has not proven itself yet (0 tries left)");
    box_close(&b);
}

static void test_withdrawn_before_the_start(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    assert_int_equal(hx_update_write(&b.job, &err), 0);
    assert_int_equal(hx_system_read(b.w.root, 0, &b.system, &err), 0);
    assert_int_equal(hx_update_rollback(&b.job, &err), 0);
    assert_int_equal(startable(&b), 1);
    assert_int_equal(access(path_in(&b.w, "/efi/" KERNEL), F_OK), 0);
    box_close(&b);
}

static void test_no_way_back_to_a_damaged_root(void **state)
{
    (void)state;
    struct box b;
    struct hx_error err;
    char text[256];
    box_open(&b);
    box_bundle(&b, NEW, VERSION);
    assert_int_equal(hx_update_write(&b.job, &err), 0);
    snprintf(text, sizeof(text), "quiet roothash=%s\n", b.new_hash);
    put_text(&b.w, "/proc/cmdline", text);
    put_text(&b.w, "/usr/lib/os-release", "IMAGE_VERSION=" NEW "\n");
    assert_int_equal(hx_system_read(b.w.root, 0, &b.system, &err), 0);
    assert_int_equal(hx_disk_write(&b.disk, "damage", 6,
                                   hx_part_offset(&b.system.table, HX_PART_ROOT_A) + 9999, &err),
                     0);
    assert_int_equal(hx_update_rollback(&b.job, &err), -EBADMSG);
    assert_int_equal(access(path_in(&b.w, "/efi/EFI/Linux/hx170_" NEW "+3.efi"), F_OK), 0);
    box_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_from_a_tar),
        cmocka_unit_test(test_cut_at_every_step),
        cmocka_unit_test(test_cut_over_another_update),
        cmocka_unit_test(test_lost_and_torn_writes),
        cmocka_unit_test(test_only_the_standby_slot_changes),
        cmocka_unit_test(test_refused_versions),
        cmocka_unit_test(test_refused_on_trial),
        cmocka_unit_test(test_refused_damage),
        cmocka_unit_test(test_refused_bundles),
        cmocka_unit_test(test_refused_signatures),
        cmocka_unit_test(test_truncated_tar),
        cmocka_unit_test(test_too_large_for_the_slot),
        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_withdrawn_before_the_start),
        cmocka_unit_test(test_no_way_back_to_a_damaged_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
