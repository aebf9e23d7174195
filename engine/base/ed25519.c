#include "base/ed25519.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdlib.h>

#include "base/file.h"

#define MAX_KEY_FILE 65536

static int load_key(const char *path, EVP_PKEY **out, struct hx_error *err)
{
    char *text = NULL;
    size_t n;
    int r = hx_file_read(path, MAX_KEY_FILE, &text, &n, err);
    if (r < 0)
        return hx_wrap(err, r, "public key");
    BIO *bio = BIO_new_mem_buf(text, (int)n);
    EVP_PKEY *key = bio ? PEM_read_bio_PUBKEY(bio, NULL, NULL, NULL) : NULL;
    BIO_free(bio);
    free(text);
    if (!key || EVP_PKEY_id(key) != EVP_PKEY_ED25519) {
        EVP_PKEY_free(key);
        return hx_fail(err, -EINVAL, "public key %s: not an Ed25519 key in PEM form", path);
    }
    *out = key;
    return 0;
}

int hx_ed25519_verify(const char *key_path, const void *data, size_t len,
                      const uint8_t signature[HX_ED25519_SIGNATURE], struct hx_error *err)
{
    EVP_PKEY *key = NULL;
    int r = load_key(key_path, &key, err);
    if (r < 0)
        return r;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (!ctx || EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, key) != 1)
        r = hx_fail(err, -ENOMEM, "cannot start checking a signature");
    else if (EVP_DigestVerify(ctx, signature, HX_ED25519_SIGNATURE, data, len) != 1)
        r = hx_fail(err, -EINVAL, "the signature is not one of the key in %s", key_path);
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(key);
    return r;
}
