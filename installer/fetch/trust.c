#include "fetch/trust.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/ed25519.h"
#include "base/file.h"
#include "base/sha256.h"

/* The verified root of the appliance makes its files trustworthy; elsewhere at least nobody but
 * root may write there. */
static bool in_trusted_folder(const char *path, const char *dir)
{
    char file[PATH_MAX], folder[PATH_MAX];
    struct stat st, own;
    if (*dir == '\0' || !realpath(path, file) || !realpath(dir, folder))
        return false;
    char *slash = strrchr(file, '/');
    if (!slash || stat(file, &own) < 0)
        return false;
    *slash = '\0';
    return strcmp(file, folder) == 0 && stat(folder, &st) == 0 && st.st_uid == 0 &&
           own.st_uid == 0 && !((st.st_mode | own.st_mode) & (S_IWGRP | S_IWOTH));
}

/* 1: signed, 0: no signature there. The file is read again: only the bytes that were parsed count.
 */
static int check_signature(const struct hx_lock *lock, const char *path, const char *key,
                           struct hx_error *err)
{
    char *sig = NULL, *text = NULL, *name = NULL;
    size_t n_sig, n;
    struct stat st;
    uint8_t sha256[32];
    if (asprintf(&name, "%s.sig", path) < 0)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = 0;
    if (*key == '\0' || (stat(name, &st) < 0 && errno == ENOENT))
        goto out;
    r = hx_file_read(name, 4096, &sig, &n_sig, err);
    if (r == 0 && n_sig != HX_ED25519_SIGNATURE)
        r = hx_fail(err, -EINVAL, "signature %s: %zu bytes, expected %d", name, n_sig,
                    HX_ED25519_SIGNATURE);
    if (r == 0)
        r = hx_file_read(path, HX_LOCK_MAX_BYTES, &text, &n, err);
    if (r == 0 && (hx_sha256_data(text, n, sha256) < 0 || memcmp(sha256, lock->sha256, 32) != 0))
        r = hx_fail(err, -EINVAL, "lock file %s changed while it was read", path);
    if (r == 0)
        r = hx_ed25519_verify(key, text, n, (const uint8_t *)sig, err);
    if (r < 0)
        hx_wrap(err, r, "lock file %s", path);
out:
    free(name);
    free(sig);
    if (r == 0)
        r = text != NULL;
    free(text);
    return r;
}

int hx_lock_trust(const struct hx_lock *lock, const char *path, const char *trusted_dir,
                  const char *release_key, const char *accepted, enum hx_lock_voucher *by,
                  struct hx_error *err)
{
    char hex[HX_SHA256_HEX];
    enum hx_lock_voucher voucher = HX_VOUCHER_IMAGE;
    hx_sha256_to_hex(lock->sha256, hex);
    if (!in_trusted_folder(path, trusted_dir)) {
        int r = check_signature(lock, path, release_key, err);
        if (r < 0)
            return r;
        voucher = r > 0 ? HX_VOUCHER_SIGNATURE : HX_VOUCHER_OWNER;
        if (r == 0 && (!accepted || strcasecmp(accepted, hex) != 0))
            return hx_fail(err, -EPERM,
                           "lock file %s is not part of the system and has no signature of the "
                           "release key. Its SHA-256 is %s. If it is the one that you want, pass "
                           "--accept-lock %s",
                           path, hex, hex);
    }
    if (by)
        *by = voucher;
    return 0;
}
