/* Key, certificate and module signatures by libcrypto. Layout of a signed module: content,
 * PKCS #7 message, 12 bytes of description, 28 bytes of text (kernel documentation, "Kernel module
 * signing facility"). */
#include "bundle/sign.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/cms.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bundle/modinfo.h"
#include "bundle/tree.h"

#define KEY_BITS     3072
#define YEARS        30
#define ID_TYPE_PKCS 2
#define END_TEXT     "~Module signature appended~\n"

static int crypto(struct hx_error *err, const char *what)
{
    return hx_fail(err, -EIO, "signing: cannot %s", what);
}

static bool add_extension(X509 *x, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = e && X509_add_ext(x, e, -1);
    X509_EXTENSION_free(e);
    return ok;
}

static X509 *make_certificate(EVP_PKEY *key)
{
    X509 *x = X509_new();
    X509_NAME *name = x ? X509_get_subject_name(x) : NULL;
    unsigned char serial[16];
    BIGNUM *number = NULL;
    bool ok = name && RAND_bytes(serial, sizeof(serial)) == 1;
    serial[0] &= 0x7f;
    if (ok)
        number = BN_bin2bn(serial, sizeof(serial), NULL);
    ok = ok && number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(x)) &&
         X509_set_version(x, 2) && X509_gmtime_adj(X509_getm_notBefore(x), -86400) &&
         X509_gmtime_adj(X509_getm_notAfter(x), 365l * 86400 * YEARS) &&
         X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                    (const unsigned char *)"hx170 module signing", -1, -1, 0) &&
         X509_set_issuer_name(x, name) && X509_set_pubkey(x, key) &&
         add_extension(x, NID_basic_constraints, "critical,CA:FALSE") &&
         add_extension(x, NID_key_usage, "digitalSignature") &&
         add_extension(x, NID_subject_key_identifier, "hash") &&
         X509_sign(x, key, EVP_sha256()) > 0;
    BN_free(number);
    if (!ok) {
        X509_free(x);
        x = NULL;
    }
    return x;
}

/* Writes name.new and renames it, so that a cut leaves no half of it. */
static int put_secret(int dir, const char *name, mode_t mode, const void *data, size_t len,
                      struct hx_error *err)
{
    char fresh[64];
    int fd;
    snprintf(fresh, sizeof(fresh), "%s.new", name);
    int r = hx_tree_remove(dir, fresh, err);
    if (r == 0)
        r = hx_tree_create(dir, fresh, mode, &fd, err);
    if (r < 0)
        return r;
    r = hx_tree_write(fd, fresh, data, len, err);
    int closed = hx_tree_finish(fd, fresh, r == 0 ? err : NULL);
    r = r < 0 ? r : closed;
    if (r == 0 && (renameat(dir, fresh, dir, name) < 0 || fsync(dir) < 0))
        r = hx_fail_errno(err, errno, "%s: cannot put in place", name);
    return r;
}

int hx_sign_prepare(struct hx_store *s, struct hx_error *err)
{
    struct stat st;
    if (fstatat(s->dir, HX_SIGN_KEY, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        fstatat(s->dir, HX_SIGN_CERT, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    /* A certificate of an older key would look right and fit nothing. */
    int gone = hx_tree_remove(s->dir, HX_SIGN_KEY, err);
    if (gone < 0)
        return gone;
    EVP_PKEY *key = EVP_RSA_gen(KEY_BITS);
    X509 *cert = key ? make_certificate(key) : NULL;
    BIO *pem = BIO_new(BIO_s_mem());
    unsigned char *der = NULL;
    char *text;
    int len = cert ? i2d_X509(cert, &der) : -1, r = 0;
    if (len <= 0 || !pem || !PEM_write_bio_PrivateKey(pem, key, NULL, NULL, 0, NULL, NULL))
        r = crypto(err, "make a key");
    /* The certificate first: a key without it is made anew. */
    if (r == 0)
        r = put_secret(s->dir, HX_SIGN_CERT, 0644, der, (size_t)len, err);
    long n = r == 0 ? BIO_get_mem_data(pem, &text) : 0;
    if (r == 0)
        r = put_secret(s->dir, HX_SIGN_KEY, 0600, text, (size_t)n, err);
    OPENSSL_free(der);
    BIO_free(pem);
    X509_free(cert);
    EVP_PKEY_free(key);
    return r;
}

static BIO *open_bio(int dir, const char *name)
{
    int fd;
    if (hx_tree_open(dir, name, &fd, NULL) < 0)
        return NULL;
    BIO *b = BIO_new_fd(fd, BIO_CLOSE);
    if (!b)
        close(fd);
    return b;
}

static int append(int dir, const char *path, const unsigned char *sig, size_t len,
                  struct hx_error *err)
{
    unsigned char info[12] = {0, 0, ID_TYPE_PKCS};
    for (int i = 0; i < 4; i++)
        info[8 + i] = (unsigned char)(len >> (24 - 8 * i));
    int fd = openat(dir, path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return hx_fail_errno(err, errno, "%s: cannot open", path);
    int r = hx_tree_write(fd, path, sig, len, err);
    if (r == 0)
        r = hx_tree_write(fd, path, info, sizeof(info), err);
    if (r == 0)
        r = hx_tree_write(fd, path, END_TEXT, sizeof(END_TEXT) - 1, err);
    int closed = hx_tree_finish(fd, path, r == 0 ? err : NULL);
    return r < 0 ? r : closed;
}

int hx_sign_module(struct hx_store *s, int dir, const char *path, struct hx_error *err)
{
    BIO *key_in = open_bio(s->dir, HX_SIGN_KEY), *cert_in = open_bio(s->dir, HX_SIGN_CERT);
    BIO *module = open_bio(dir, path);
    EVP_PKEY *key = key_in ? PEM_read_bio_PrivateKey(key_in, NULL, NULL, NULL) : NULL;
    X509 *cert = cert_in ? d2i_X509_bio(cert_in, NULL) : NULL;
    unsigned flags = CMS_NOCERTS | CMS_PARTIAL | CMS_BINARY | CMS_DETACHED | CMS_STREAM;
    CMS_ContentInfo *cms = NULL;
    unsigned char *der = NULL;
    int len = -1, r = 0;
    if (key && cert && module)
        cms = CMS_sign(NULL, NULL, NULL, NULL, flags);
    if (cms &&
        CMS_add1_signer(cms, cert, key, EVP_sha512(),
                        CMS_NOCERTS | CMS_BINARY | CMS_NOSMIMECAP | CMS_NOATTR) &&
        CMS_final(cms, module, NULL, CMS_NOCERTS | CMS_BINARY))
        len = i2d_CMS_ContentInfo(cms, &der);
    BIO_free(module);
    if (len <= 0)
        r = crypto(err, "sign a module");
    else
        r = append(dir, path, der, (size_t)len, err);
    OPENSSL_free(der);
    CMS_ContentInfo_free(cms);
    X509_free(cert);
    EVP_PKEY_free(key);
    BIO_free(key_in);
    BIO_free(cert_in);
    return r;
}
