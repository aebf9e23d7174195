/* Updates from hostile hands. First byte: 0 the bundle as it comes; 1 a manifest, signed and packed
 * with small parts, since no fuzzer guesses a signature; 2 a hash tree over 16 blocks. */
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/mman.h>
#include <unistd.h>

#include "disk/bundle.h"
#include "fuzz.h"

#define MAX_BYTES 65536u
#define KEY_FILE  "/tmp/hx-fuzz-update-key.%d.pem"

static EVP_PKEY *key;
static char key_file[64];

static void drop_key(void)
{
    unlink(key_file);
}

static void make_key(void)
{
    snprintf(key_file, sizeof(key_file), KEY_FILE, (int)getpid());
    key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    FILE *f = fopen(key_file, "w");
    EXPECT(key && f && PEM_write_PUBKEY(f, key) == 1);
    fclose(f);
    atexit(drop_key);
}

static size_t add_member(uint8_t *to, const char *name, const void *data, size_t len)
{
    unsigned sum = 0;
    memset(to, 0, 512);
    snprintf((char *)to, 100, "%s", name);
    snprintf((char *)to + 124, 12, "%011zo", len);
    to[156] = '0';
    memset(to + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        sum += to[i];
    snprintf((char *)to + 148, 8, "%06o", sum);
    memcpy(to + 512, data, len);
    return 512 + (len + 511) / 512 * 512;
}

static size_t pack(const uint8_t *manifest, size_t len, uint8_t *to)
{
    uint8_t signature[64];
    size_t n = sizeof(signature), at = 0;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    EXPECT(ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, key) == 1 &&
           EVP_DigestSign(ctx, signature, &n, manifest, len) == 1);
    EVP_MD_CTX_free(ctx);
    at += add_member(to + at, "manifest", manifest, len);
    at += add_member(to + at, "manifest.sig", signature, sizeof(signature));
    at += add_member(to + at, "root.erofs", "root", 4);
    at += add_member(to + at, "root.verity", "tree", 4);
    at += add_member(to + at, "uki.efi", "uki", 3);
    return at;
}

static void check_bundle(const char *path)
{
    struct hx_bundle b;
    struct hx_error err;
    int r = hx_bundle_open(path, key_file, &b, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return;
    }
    EXPECT(hx_version_valid(b.version) && hx_version_valid(b.minimum));
    EXPECT(hx_root_hash_valid(b.root_hash));
    r = hx_bundle_check(&b, NULL, NULL, &err);
    if (r < 0)
        expect_refusal(r, &err);
    hx_bundle_close(&b);
}

static void check_tree(const char *path, size_t len)
{
    struct hx_disk d;
    struct hx_error err;
    char hash[65];
    memset(hash, '0', 64);
    hash[64] = '\0';
    if (hx_disk_open(path, HX_DISK_READ, 512, &d, &err) < 0)
        return;
    struct hx_extent data = {&d, 0, 16 * 4096}, tree = {&d, 0, len};
    expect_refusal(hx_verity_check(&data, &tree, hash, NULL, NULL, &err), &err);
    hx_disk_close(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t tar[MAX_BYTES + 16384];
    static int fd = -1;
    char path[64];
    if (!key)
        make_key();
    if (fd < 0)
        fd = memfd_create("bundle", 0);
    if (size < 1 || size > 16384)
        return 0;
    size_t len = size - 1;
    if (data[0] % 3 == 1)
        len = pack(data + 1, len, tar);
    else
        memcpy(tar, data + 1, len);
    EXPECT(ftruncate(fd, 0) == 0 && pwrite(fd, tar, len, 0) == (ssize_t)len);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (data[0] % 3 == 2)
        check_tree(path, len);
    else
        check_bundle(path);
    return 0;
}
