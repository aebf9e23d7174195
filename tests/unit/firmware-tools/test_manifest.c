/* The manifest: every field of the schema with a value that it refuses, and where it says so. */
#include "bundle_data.h"

static char *text;
static size_t text_len;

static int load(void **state)
{
    (void)state;
    return hx_file_read(BUNDLES "/good-source/cmp-bundle.json", 1 << 20, &text, &text_len, &err);
}

static int unload(void **state)
{
    (void)state;
    free(text);
    return 0;
}

/* The good manifest with the first `from` (all of it) replaced by `to`. */
static void refused(const char *from, const char *to, const char *where, const char *why)
{
    struct hx_buf b = HX_BUF_INIT(1 << 20);
    struct hx_manifest *m = NULL;
    struct hx_bundle_fault fault;
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("not in the manifest: %s", from);
    hx_buf_append(&b, text, (size_t)(at - text));
    hx_buf_puts(&b, to);
    hx_buf_puts(&b, at + strlen(from));
    int r = hx_manifest_parse((char *)b.data, b.len, &m, &fault, &err);
    hx_buf_done(&b);
    if (!where) {
        if (r < 0)
            fail_msg("%s", err.text);
        hx_manifest_free(m);
        return;
    }
    assert_int_equal(r, -EINVAL);
    assert_string_equal(fault.check, "BND-01");
    assert_string_equal(fault.where, where);
    if (why)
        assert_string_equal(fault.why, why);
    assert_non_null(strstr(err.text, where));
}

static void test_good(void **state)
{
    (void)state;
    struct hx_manifest *m;
    assert_int_equal(hx_manifest_parse(text, text_len, &m, NULL, &err), 0);
    assert_string_equal(m->name, "example-source");
    assert_int_equal(m->files.n, 6);
    assert_string_equal(m->env.item[1].value, "@out@");
    assert_int_equal(m->memory_mib.item[0].min, 60000);
    assert_string_equal(m->secure_boot, "sign-at-install");
    assert_int_equal(1, hx_manifest_fits_kernel(m, "6.8.0-136-generic"));
    assert_int_equal(0, hx_manifest_fits_kernel(m, "6.17.0-2-pve"));
    hx_manifest_free(m);
}

static const struct {
    const char *from, *to, *where, *why;
} cases[] = {
    {"\"schema_version\": 1", "\"schema_version\": 2", "schema_version",
     "must be 1; this program knows no other"},
    {"\"schema_version\": 1", "\"schema_version\": 1.5", "schema_version",
     "must be a whole number"},
    {"\"name\": \"example-source\"", "\"name\": \"Example\"", "name", NULL},
    {"\"name\": \"example-source\"", "\"name\": \"../x\"", "name", NULL},
    {"\"name\": \"example-source\"", "\"name\": 3", "name", "must be a string"},
    {"\"name\": \"example-source\",", "", "name", "is missing (a string)"},
    {"\"version\": \"1\"", "\"version\": \"1\\u0000\"", "version",
     "holds characters that are not allowed"},
    {"\"version\": \"1\"", "\"version\": \"1\", \"version\": \"2\"", "version", "is there twice"},
    {"\"version\": \"1\"", "\"version\": \"1\", \"color\": 1", "color",
     "is not a field of the schema"},
    {"\"p2p\",", "\"p2p\", \"p2p\",", "kinds[3]", "is there twice"},
    {"\"p2p\",", "\"games\",", "kinds[2]", NULL},
    {"\"driver_version\": \"610.43.03\"", "\"driver_version\": \"610\"", "targets.driver_version",
     "must be a driver version like 610.43.03"},
    {"\"arch\": \"x86_64\"", "\"arch\": \"riscv64\"", "targets.arch", "must be x86_64"},
    {"\"20c2\"\n", "\"20b0\"\n", "targets.device_ids[0]", "must be 20c2 or 2082"},
    {"\"release_regex\": \"^6\\\\.8\\\\..*-generic$\"", "\"release_regex\": \"(\"",
     "targets.kernels.release_regex", NULL},
    {"\"release_regex\": \"^6\\\\.8\\\\..*-generic$\"", "\"release_regex\": \"(a{9}){9}\"",
     "targets.kernels.release_regex", NULL},
    {"\"release_regex\": \"^6\\\\.8\\\\..*-generic$\"", "\"release_regex\": \"(a)\\\\1\"",
     "targets.kernels.release_regex", NULL},
    {"\"release_regex\": \"^6\\\\.8\\\\..*-generic$\"", "", "targets.kernels", "names no kernel"},
    {"\"release_regex\"", "\"regex\"", "targets.kernels.regex", "is not a field of the schema"},
    {"\"path\": \"build.sh\"", "\"path\": \"/build.sh\"", "files[2].path",
     "path leaves the bundle"},
    {"\"path\": \"build.sh\"", "\"path\": \"a/../../b\"", "files[2].path",
     "path leaves the bundle"},
    {"\"path\": \"build.sh\"", "\"path\": \"a//b\"", "files[2].path",
     "path has an empty component"},
    {"\"path\": \"build.sh\"", "\"path\": \"a b\"", "files[2].path",
     "path holds characters that are not allowed"},
    {"\"path\": \"build.sh\"", "\"path\": \"src\"", "files[2].path",
     "is listed twice, or is a file and a folder"},
    {"\"path\": \"build.sh\"", "\"path\": \"src/PLACEHOLDER\"", "files[2].path",
     "is listed twice, or is a file and a folder"},
    {"\"path\": \"build.sh\"", "\"path\": \"cmp-bundle.json\"", "files[2].path",
     "the manifest does not list itself"},
    {"\"path\": \"build.sh\"", "\"path\": \"other.sh\"", "build.argv[0]",
     "is not a listed file of mode 0755"},
    {"\"size\": 64", "\"size\": -1", "files[2].size", NULL},
    {"\"size\": 64", "\"size\": 9000000000", "files[2].size", NULL},
    {"\"size\": 64", "\"size\": 1e400", "files[2].size", "must be a whole number"},
    {"\"mode\": \"0755\"", "\"mode\": \"4755\"", "files[2].mode", "must be 0644 or 0755"},
    {"\"sha256\": \"2013", "\"sha256\": \"Z013", "files[2].sha256",
     "must be 64 lower-case hexadecimal digits"},
    {"\"role\": \"script\"", "\"role\": \"virus\"", "files[2].role", NULL},
    {"\"./build.sh\"", "\"/bin/sh\"", "build.argv[0]",
     "is neither ./FILE of the bundle nor in build.needs"},
    {"\"./build.sh\"", "\"bash\"", "build.argv[0]",
     "is neither ./FILE of the bundle nor in build.needs"},
    {"\"./build.sh\"", "\"./src/PLACEHOLDER\"", "build.argv[0]",
     "is not a listed file of mode 0755"},
    {"\"OUT\": \"@out@\"", "\"LD_PRELOAD\": \"x\"", "build.env",
     "is not a name that a build may set"},
    {"\"OUT\": \"@out@\"", "\"PATH\": \"x\"", "build.env", "is not a name that a build may set"},
    {"\"OUT\": \"@out@\"", "\"OUT\": \"@home@\"", "build.env.OUT",
     "may hold @kernel@, @headers@ and @out@ and no other @word@"},
    {"\"nvidia-peermem.ko\"\n", "\"../x.ko\"\n", "build.outputs[4]", "path leaves the bundle"},
    {"\"nvidia-uvm.ko\",", "", "build.outputs", "lack a module that install.modules.names has"},
    {"\"timeout_s\": 1800", "\"timeout_s\": 7201", "build.timeout_s", NULL},
    {"\"timeout_s\": 1800", "\"timeout_s\": 0", "build.timeout_s", NULL},
    {"\"network\": false", "\"network\": true", "build.network",
     "the build step runs without network"},
    {"\"dir\": \"updates/owner-bundle\"", "\"dir\": \"updates/../x\"", "install.modules.dir",
     "must be a directory below updates/"},
    {"\"dir\": \"updates/owner-bundle\"", "\"dir\": \"updates/\"", "install.modules.dir",
     "must be a directory below updates/"},
    {"\"safety_revision\"\n", "\"../x\"\n", "install.modules.metadata[2]",
     "must be a plain file name"},
    {"\"nvidia\": \"NVreg", "\"i915\": \"NVreg", "install.modprobe_options",
     "is not one of the driver's modules"},
    {"\"nvidia\": \"NVreg_R", "\"nvidia\": \"$(x) NVreg_R", "install.modprobe_options.nvidia",
     "must be name=value words"},
    {"\"iommu=off\"", "\"init=/bin/sh\"", "install.kernel_cmdline.add[0]",
     "is not a kernel word that a bundle may set"},
    {"\"iommu=off\"", "\"iommu=off init=/x\"", "install.kernel_cmdline.add[0]",
     "must be one word without spaces and quotes"},
    {"\"iommu=pt\"", "\"lockdown=integrity\"", "install.kernel_cmdline.remove[0]",
     "is not a kernel word that a bundle may set"},
    {"\"units\": []", "\"units\": [\"gen2.service\"]", "install.units",
     "no service of a bundle is started; leave the list empty"},
    {"\"units\": []", "\"units\": [], \"userspace_root\": \"user\"", "install.userspace_root",
     "no file is below it"},
    {"\"p2p_kind\": \"mailbox\"", "\"p2p_kind\": \"magic\"", "verify.p2p_kind", NULL},
    {"60000,", "70000,", "verify.memory_mib.20c2", "must be [least, most]"},
    {"60000,", "60000, 1,", "verify.memory_mib.20c2", "must be [least, most]"},
    {"\"must_accept\": true", "\"must_accept\": 1", "licences[0].must_accept",
     "must be true or false"},
    {"\"text_file\": \"LICENSES/GPL-2.0.txt\"", "\"text_file\": \"LICENSES/none\"",
     "licences[0].text_file", "is not a listed file"},
    {"\"secure_boot\": \"sign-at-install\"", "\"secure_boot\": \"already-signed\"",
     "signing.signer_cert_sha256", "is missing (a string)"},
    {"\"secure_boot\": \"sign-at-install\"", "\"secure_boot\": \"off\"", "signing.secure_boot",
     NULL},
    {"\"redistributable\": false", "\"redistributable\": true", "redistributable",
     "bundles are always the owner's own and are never embedded in an image"},
    /* Accepted. */
    {"\"provenance\"", "\"provenance\"", NULL, NULL},
    {"\"origin\": \"owner\"", "\"origin\": \"Besitzer Müller\"", NULL, NULL},
    {"\"mode\": \"0644\",", "", NULL, NULL},
    {"\"./build.sh\"", "\"make\", \"-C\", \"src\"", NULL, NULL},
};

static void test_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        refused(cases[i].from, cases[i].to, cases[i].where, cases[i].why);
}

static void test_required_objects(void **state)
{
    (void)state;
    static const char *const names[] = {"kinds",  "targets", "files",    "install",
                                        "verify", "remove",  "licences", "redistributable"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char from[64], to[64];
        snprintf(from, sizeof(from), "\n \"%s\":", names[i]);
        snprintf(to, sizeof(to), "\n \"x-%s\":", names[i]);
        char where[64];
        snprintf(where, sizeof(where), "x-%s", names[i]);
        refused(from, to, where, "is not a field of the schema");
    }
}

static void test_any_text(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "{", "[]", "null", "{}", "\xff\xfe", "{\"a\":1} x"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hx_manifest *m = NULL;
        struct hx_bundle_fault fault;
        assert_int_equal(hx_manifest_parse(bad[i], strlen(bad[i]), &m, &fault, &err), -EINVAL);
        assert_string_equal(fault.check, "BND-01");
        assert_null(m);
    }
}

static void test_cut_manifest(void **state)
{
    (void)state;
    for (size_t len = 0; len + 2 < text_len; len += 7) {
        struct hx_manifest *m = NULL;
        assert_int_equal(hx_manifest_parse(text, len, &m, NULL, &err), -EINVAL);
    }
}

static void test_too_large(void **state)
{
    (void)state;
    size_t len = HX_MANIFEST_MAX + 1;
    char *big = malloc(len);
    assert_non_null(big);
    memset(big, ' ', len);
    struct hx_manifest *m = NULL;
    struct hx_bundle_fault fault;
    assert_true(hx_manifest_parse(big, len, &m, &fault, &err) < 0);
    assert_string_equal(fault.check, "BND-01");
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_required_objects),
        cmocka_unit_test(test_any_text),
        cmocka_unit_test(test_cut_manifest),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
