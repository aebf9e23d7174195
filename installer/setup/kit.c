#include "setup/kit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/ed25519.h"
#include "base/sha256.h"

#define KEY          "/usr/share/hx170/release.pem"
#define MANIFEST_MAX 16384
#define CHUNK        (1u << 20)

/* The value of a line "key = value"; "": there is none. */
static void value_of(const char *manifest, const char *key, char *out, size_t size)
{
    size_t n = strlen(key);
    out[0] = '\0';
    for (const char *line = manifest; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, key, n) == 0 && strncmp(line + n, " = ", 3) == 0)
            snprintf(out, size, "%.*s", (int)strcspn(line + n + 3, "\n"), line + n + 3);
    }
}

static int read_manifest(const struct hx_root *root, const char *kit, char **out,
                         struct hx_error *err)
{
    char path[HX_ROOT_PATH], key[HX_ROOT_PATH], *signature = NULL;
    size_t len, n = 0;
    snprintf(path, sizeof(path), "%.900s.manifest", kit);
    int r = hx_root_read(root, path, MANIFEST_MAX, out, &len, err);
    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "%.900s.manifest.sig", kit);
    r = hx_root_read(root, path, MANIFEST_MAX, &signature, &n, err);
    if (r == 0 && n != HX_ED25519_SIGNATURE)
        r = hx_fail(err, -EBADMSG, "%s: found %zu bytes, a signature has %d", path, n,
                    HX_ED25519_SIGNATURE);
    if (r == 0 && hx_root_outside(root, KEY, key) < 0)
        r = hx_fail(err, -ENOENT, KEY " is missing");
    if (r == 0)
        r = hx_ed25519_verify(key, *out, len, (const uint8_t *)signature, err);
    if (r == 0 && strlen(*out) != len)
        r = hx_fail(err, -EBADMSG, "%.900s.manifest: damaged", kit);
    free(signature);
    if (r < 0) {
        free(*out);
        *out = NULL;
    }
    return r;
}

static int hash_file(const char *path, char hex[HX_SHA256_HEX], struct hx_error *err)
{
    uint8_t digest[HX_SHA256_BYTES], *block = malloc(CHUNK);
    struct hx_sha256 *h = NULL;
    ssize_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = fd < 0   ? hx_fail_errno(err, errno, "%s", path)
            : !block ? hx_fail(err, -ENOMEM, "out of memory")
                     : hx_sha256_new(&h, err);
    while (r == 0 && (n = read(fd, block, CHUNK)) > 0)
        r = hx_sha256_update(h, block, (size_t)n);
    if (r == 0 && n < 0)
        r = hx_fail_errno(err, errno, "%s", path);
    if (r == 0)
        r = hx_sha256_final(h, digest);
    if (r == 0)
        hx_sha256_to_hex(digest, hex);
    hx_sha256_free(h);
    if (fd >= 0)
        close(fd);
    free(block);
    return r;
}

static int compare(const struct hx_root *root, const char *kit, const char *version,
                   const char *manifest, struct hx_error *err)
{
    char product[64], of[64], wanted[80], path[HX_ROOT_PATH], hex[HX_SHA256_HEX];
    value_of(manifest, "product", product, sizeof(product));
    value_of(manifest, "version", of, sizeof(of));
    value_of(manifest, "kit.sha256", wanted, sizeof(wanted));
    if (strcmp(product, "hx170-kit") != 0)
        return hx_fail(err, -EBADMSG, "its manifest is for '%s', not for a build kit", product);
    if (strcmp(of, version) != 0)
        return hx_fail(err, -EBADMSG, "it is for version %s, this system is %s", of, version);
    int r = hx_root_outside(root, kit, path);
    if (r < 0)
        return hx_fail(err, r, "%s: %s", kit, strerror(-r));
    r = hash_file(path, hex, err);
    if (r == 0 && strcmp(hex, wanted) != 0)
        r = hx_fail(err, -EBADMSG, "it hashes to %s, its manifest says %s: copy it again", hex,
                    wanted);
    return r;
}

int hx_kit_check(const struct hx_root *root, const char *kit, const char *version,
                 struct hx_error *err)
{
    char *manifest = NULL;
    int r = read_manifest(root, kit, &manifest, err);
    if (r == 0)
        r = compare(root, kit, version, manifest, err);
    free(manifest);
    return r;
}
