#include "disk/bundle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/ed25519.h"
#include "base/sha256.h"
#include "hw/root.h"

#define TAR_BLOCK    512u
#define TAR_MAX      64 /* members looked at */
#define MANIFEST_MAX 16384u
#define PRODUCT      "hx170"
#define SCHEMA       "1"

enum member { MEMBER_MANIFEST = HX_BUNDLE_PARTS, MEMBER_SIGNATURE, N_MEMBERS };

static const char *const member_names[N_MEMBERS] = {
    [HX_BUNDLE_ROOT] = "root.erofs",     [HX_BUNDLE_VERITY] = "root.verity",
    [HX_BUNDLE_UKI] = "uki.efi",         [MEMBER_MANIFEST] = "manifest",
    [MEMBER_SIGNATURE] = "manifest.sig",
};

struct members {
    bool have[N_MEMBERS];
    struct hx_extent at[N_MEMBERS];
};

static bool octal(const uint8_t *p, int n, uint64_t *out)
{
    uint64_t v = 0;
    int i = 0;
    while (i < n && p[i] == ' ')
        i++;
    int digits = 0;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++, digits++)
        v = v << 3 | (uint64_t)(p[i] - '0');
    *out = v;
    return digits > 0 && digits <= 12 && (i == n || p[i] == ' ' || p[i] == '\0');
}

static bool tar_header_ok(const uint8_t h[TAR_BLOCK])
{
    uint64_t stored, sum = 0;
    for (unsigned i = 0; i < TAR_BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : h[i];
    return octal(h + 148, 8, &stored) && stored == sum;
}

static int take_member(const struct hx_disk *d, const uint8_t h[TAR_BLOCK], uint64_t at, uint64_t n,
                       struct members *m, struct hx_error *err)
{
    char name[101];
    memcpy(name, h, 100);
    name[100] = '\0';
    const char *plain = strncmp(name, "./", 2) == 0 ? name + 2 : name;
    for (int i = 0; i < N_MEMBERS; i++) {
        if (strcmp(plain, member_names[i]) != 0)
            continue;
        if (m->have[i] || (h[156] != '0' && h[156] != '\0'))
            return hx_fail(err, -EBADMSG, "%s: '%s' is there twice or is no file", d->path, plain);
        m->have[i] = true;
        m->at[i] = (struct hx_extent){d, at, n};
        return 0;
    }
    return h[156] == '5' ? 0
                         : hx_fail(err, -EBADMSG, "%s: does not belong into an update: '%.60s'",
                                   d->path, plain);
}

static int read_tar(const struct hx_disk *d, struct members *m, struct hx_error *err)
{
    uint64_t at = 0;
    for (int i = 0; i < TAR_MAX; i++) {
        uint8_t h[TAR_BLOCK];
        uint64_t n;
        if (d->n_bytes - at < TAR_BLOCK)
            return i == 0 ? hx_fail(err, -EBADMSG, "%s: no update bundle", d->path) : 0;
        int r = hx_disk_read(d, h, sizeof(h), at, err);
        if (r < 0)
            return r;
        if (h[0] == '\0')
            return i == 0 ? hx_fail(err, -EBADMSG, "%s: no update bundle", d->path) : 0;
        if (!tar_header_ok(h) || !octal(h + 124, 12, &n))
            return hx_fail(err, -EBADMSG, "%s: %s", d->path,
                           i == 0 ? "no update bundle" : "damaged at the start of a part");
        at += TAR_BLOCK;
        if (n > d->n_bytes - at)
            return hx_fail(err, -EBADMSG, "%s: is cut off: %llu bytes are missing", d->path,
                           (unsigned long long)(n - (d->n_bytes - at)));
        r = take_member(d, h, at, n, m, err);
        if (r < 0)
            return r;
        uint64_t padded = (n + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
        at = padded > d->n_bytes - at ? d->n_bytes : at + padded;
    }
    return hx_fail(err, -EBADMSG, "%s: more than %d parts", d->path, TAR_MAX);
}

static int open_members(const char *path, struct hx_bundle *b, struct members *m,
                        struct hx_error *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return hx_fail_errno(err, errno, "%s", path);
    if (!S_ISDIR(st.st_mode)) {
        int r = hx_disk_open(path, HX_DISK_READ, 0, &b->file[0], err);
        if (r < 0)
            return r;
        b->n_files = 1;
        return read_tar(&b->file[0], m, err);
    }
    for (int i = 0; i < N_MEMBERS; i++) {
        char file[HX_DISK_PATH];
        struct hx_disk *d = &b->file[b->n_files];
        if (snprintf(file, sizeof(file), "%s/%s", path, member_names[i]) >= (int)sizeof(file))
            return hx_fail(err, -ENAMETOOLONG, "%.80s...: path is too long", path);
        int r = hx_disk_open(file, HX_DISK_READ, 0, d, err);
        if (r < 0)
            return r;
        b->n_files++;
        m->have[i] = true;
        m->at[i] = (struct hx_extent){d, 0, d->n_bytes};
    }
    return 0;
}

/* Where a manifest's line goes. */
struct field {
    const char *key;
    char *to;
    size_t size;
    uint64_t *number;
    bool seen;
};

static int take_line(struct field *fields, int n, char *line, int number, struct hx_error *err)
{
    char *equals = strstr(line, " = ");
    if (!equals)
        return hx_fail(err, -EINVAL, "manifest line %d: 'key = value' is expected", number);
    *equals = '\0';
    const char *value = equals + 3;
    for (int i = 0; i < n; i++) {
        struct field *f = &fields[i];
        if (strcmp(f->key, line) != 0)
            continue;
        if (f->seen)
            return hx_fail(err, -EINVAL, "manifest line %d: '%s' again", number, f->key);
        f->seen = true;
        if (f->number && !hx_parse_u64(value, strlen(value), 1ull << 40, f->number))
            return hx_fail(err, -EINVAL, "manifest line %d: %s is no size", number, f->key);
        if (f->to && strlen(value) >= f->size)
            return hx_fail(err, -EINVAL, "manifest line %d: %s is too long", number, f->key);
        if (f->to)
            snprintf(f->to, f->size, "%s", value);
        return 0;
    }
    return hx_fail(err, -EINVAL, "manifest line %d: unknown key '%.40s'", number, line);
}

static int parse(char *text, size_t len, struct hx_bundle *b, uint64_t size[HX_BUNDLE_PARTS],
                 struct hx_error *err)
{
    char schema[8] = "", product[16] = "", salt[520];
    struct field fields[] = {
        {"schema", schema, sizeof(schema), NULL, false},
        {"product", product, sizeof(product), NULL, false},
        {"version", b->version, sizeof(b->version), NULL, false},
        {"minimum_version", b->minimum, sizeof(b->minimum), NULL, false},
        {"kernel", b->kernel, sizeof(b->kernel), NULL, false},
        {"root_hash", b->root_hash, sizeof(b->root_hash), NULL, false},
        {"root.erofs.size", NULL, 0, &size[HX_BUNDLE_ROOT], false},
        {"root.erofs.sha256", b->sha256[HX_BUNDLE_ROOT], 65, NULL, false},
        {"root.verity.size", NULL, 0, &size[HX_BUNDLE_VERITY], false},
        {"root.verity.sha256", b->sha256[HX_BUNDLE_VERITY], 65, NULL, false},
        {"uki.efi.size", NULL, 0, &size[HX_BUNDLE_UKI], false},
        {"uki.efi.sha256", b->sha256[HX_BUNDLE_UKI], 65, NULL, false},
        {"verity_salt", salt, sizeof(salt), NULL, false}, /* for readers; the tree has it too */
    };
    const int n = (int)(sizeof(fields) / sizeof(fields[0])), n_needed = n - 1;
    if (memchr(text, '\0', len))
        return hx_fail(err, -EINVAL, "manifest: holds a NUL byte");
    int number = 0;
    for (char *line = text; *line;) {
        size_t k = strcspn(line, "\n");
        bool end = line[k] == '\0';
        line[k] = '\0';
        number++;
        int r = *line ? take_line(fields, n, line, number, err) : 0;
        if (r < 0)
            return r;
        line += k + !end;
    }
    for (int i = 0; i < n_needed; i++)
        if (!fields[i].seen)
            return hx_fail(err, -EINVAL, "manifest: '%s' is missing", fields[i].key);
    if (strcmp(product, PRODUCT) != 0)
        return hx_fail(err, -EINVAL, "this is an update of '%s', not of " PRODUCT, product);
    if (strcmp(schema, SCHEMA) != 0)
        return hx_fail(err, -EINVAL, "manifest of schema %s; this system reads schema " SCHEMA,
                       schema);
    return 0;
}

static int check_fields(const struct hx_bundle *b, const uint64_t size[HX_BUNDLE_PARTS],
                        struct hx_error *err)
{
    if (!hx_version_valid(b->version) || !hx_version_valid(b->minimum))
        return hx_fail(err, -EINVAL, "manifest: '%s' or '%s' is no version", b->version,
                       b->minimum);
    if (!hx_root_hash_valid(b->root_hash))
        return hx_fail(err, -EINVAL, "manifest: root_hash is not 64 hexadecimal digits");
    for (int i = 0; i < HX_BUNDLE_PARTS; i++) {
        if (!hx_root_hash_valid(b->sha256[i]))
            return hx_fail(err, -EINVAL, "manifest: %s.sha256 is not 64 hexadecimal digits",
                           member_names[i]);
        if (size[i] != b->part[i].n_bytes || size[i] == 0)
            return hx_fail(err, -EBADMSG, "%s: %llu bytes, the manifest says %llu", member_names[i],
                           (unsigned long long)b->part[i].n_bytes, (unsigned long long)size[i]);
    }
    return 0;
}

static int read_manifest(const struct members *m, const char *key, struct hx_bundle *b,
                         struct hx_error *err)
{
    uint8_t signature[HX_ED25519_SIGNATURE];
    uint64_t size[HX_BUNDLE_PARTS] = {0};
    const struct hx_extent *x = &m->at[MEMBER_MANIFEST], *s = &m->at[MEMBER_SIGNATURE];
    if (x->n_bytes > MANIFEST_MAX || s->n_bytes != sizeof(signature))
        return hx_fail(err, -EBADMSG, "manifest of %llu bytes, signature of %llu bytes",
                       (unsigned long long)x->n_bytes, (unsigned long long)s->n_bytes);
    char *text = calloc(1, MANIFEST_MAX + 1);
    if (!text)
        return hx_fail(err, -ENOMEM, "out of memory for the manifest");
    int r = hx_disk_read(x->disk, text, x->n_bytes, x->offset, err);
    if (r == 0)
        r = hx_disk_read(s->disk, signature, sizeof(signature), s->offset, err);
    if (r == 0) {
        r = hx_ed25519_verify(key, text, x->n_bytes, signature, err);
        if (r == -EINVAL)
            r = hx_wrap(err, -EPERM, "this update is not signed by the maker of this system");
    }
    if (r == 0)
        r = parse(text, x->n_bytes, b, size, err);
    if (r == 0)
        r = check_fields(b, size, err);
    free(text);
    return r;
}

int hx_bundle_open(const char *path, const char *key, struct hx_bundle *out, struct hx_error *err)
{
    struct members m = {0};
    memset(out, 0, sizeof(*out));
    int r = open_members(path, out, &m, err);
    for (int i = 0; r == 0 && i < N_MEMBERS; i++) {
        if (!m.have[i])
            r = hx_fail(err, -EBADMSG, "%s: has no '%s': cut off, or no update bundle", path,
                        member_names[i]);
        if (r == 0 && i < HX_BUNDLE_PARTS)
            out->part[i] = m.at[i];
    }
    if (r == 0)
        r = read_manifest(&m, key, out, err);
    if (r < 0) {
        hx_bundle_close(out);
        return hx_wrap(err, r, "update %s", path);
    }
    return 0;
}

void hx_bundle_close(struct hx_bundle *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->n_files; i++)
        hx_disk_close(&b->file[i]);
    b->n_files = 0;
}

int hx_bundle_check(const struct hx_bundle *b, hx_progress progress, void *ctx,
                    struct hx_error *err)
{
    uint8_t *buf = malloc(HX_DISK_CHUNK), digest[HX_SHA256_BYTES];
    struct hx_sha256 *h = NULL;
    char hex[HX_SHA256_HEX];
    uint64_t done = 0, total = 0;
    int r = buf ? hx_sha256_new(&h, err) : hx_fail(err, -ENOMEM, "out of memory for the update");
    for (int i = 0; i < HX_BUNDLE_PARTS; i++)
        total += b->part[i].n_bytes;
    for (int i = 0; r == 0 && i < HX_BUNDLE_PARTS; i++) {
        const struct hx_extent *x = &b->part[i];
        hx_sha256_reset(h);
        for (uint64_t at = 0; r == 0 && at < x->n_bytes;) {
            size_t n = x->n_bytes - at < HX_DISK_CHUNK ? (size_t)(x->n_bytes - at) : HX_DISK_CHUNK;
            r = hx_disk_read(x->disk, buf, n, x->offset + at, err);
            if (r == 0)
                r = hx_sha256_update(h, buf, n);
            at += n;
            done += n;
            if (r == 0 && progress)
                r = progress(ctx, "verify", done, total);
        }
        if (r == 0)
            r = hx_sha256_final(h, digest);
        if (r < 0)
            break;
        hx_sha256_to_hex(digest, hex);
        if (strcmp(hex, b->sha256[i]) != 0)
            r = hx_fail(err, -EBADMSG,
                        "%s of the update is damaged: SHA-256 %s, the manifest says "
                        "%s; copy or download it again",
                        member_names[i], hex, b->sha256[i]);
    }
    hx_sha256_free(h);
    free(buf);
    return r;
}
