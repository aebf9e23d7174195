/* Manifests of driver bundles: refused with check, place and reason, or sound in every field that
 * later steps build paths, words and programs from. */
#include "fuzz.h"

#include "bundle/manifest.h"

static void expect_path(const char *path)
{
    const char *why;
    EXPECT(hx_bundle_path_ok(path, &why));
    EXPECT(path[0] != '/' && !strstr(path, "//") && strlen(path) <= HX_BUNDLE_PATH_MAX);
    for (const char *p = path; *p; p += strcspn(p, "/"), p += *p == '/')
        EXPECT(strncmp(p, "../", 3) != 0 && strcmp(p, "..") != 0 && strncmp(p, "./", 2) != 0);
}

static void expect_plain(const char *word)
{
    for (const char *p = word; *p; p++)
        EXPECT((unsigned char)*p > 0x20 && (unsigned char)*p < 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_manifest *m = NULL;
    struct hx_bundle_fault fault;
    struct hx_error err = {0};
    int r = hx_manifest_parse((const char *)data, size, &m, &fault, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        EXPECT(!m && strcmp(fault.check, "BND-01") == 0 && fault.where[0] && fault.why[0]);
        return 0;
    }
    EXPECT(!fault.check[0] && !m->redistributable && !m->network && !m->units.n);
    int64_t total = 0;
    for (size_t i = 0; i < m->files.n; i++) {
        expect_path(m->files.item[i].path);
        EXPECT(strlen(m->files.item[i].sha256) == 64 && m->files.item[i].size >= 0);
        EXPECT(hx_manifest_file(m, m->files.item[i].path) == &m->files.item[i]);
        total += m->files.item[i].size;
    }
    EXPECT(m->files.n > 0 && total <= (int64_t)HX_BUNDLE_BYTES_MAX);
    for (size_t i = 0; i < m->outputs.n; i++)
        expect_path(m->outputs.item[i]);
    for (size_t i = 0; i < m->metadata.n; i++)
        EXPECT(!strchr(m->metadata.item[i], '/') && m->metadata.item[i][0] != '.');
    for (size_t i = 0; i < m->cmdline_add.n; i++)
        expect_plain(m->cmdline_add.item[i]);
    EXPECT(strncmp(m->module_dir, "updates/", 8) == 0 && !strchr(m->module_dir + 8, '/'));
    EXPECT(m->timeout_s >= 1 && m->timeout_s <= 7200);
    if (m->has_build)
        EXPECT(m->argv.n > 0);
    EXPECT(hx_manifest_fits_kernel(m, "6.8.0-136-generic") >= 0);
    hx_manifest_free(m);
    return 0;
}
