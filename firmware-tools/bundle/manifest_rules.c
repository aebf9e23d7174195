/* The schema of cmp-bundle.json as tables, and what it means that fields fit each other. */
#include "bundle/manifest_rules.h"

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define M(field) .offset = offsetof(struct hx_manifest, field)
#define F(field) .offset = offsetof(struct hx_bundle_file, field)
#define L(field) .offset = offsetof(struct hx_bundle_licence, field)
#define N(rows)  (sizeof(rows) / sizeof((rows)[0]))

bool hx_rule_choice(const char *choices, const char *word)
{
    size_t len = strlen(word);
    for (const char *p = choices; *p && len;) {
        size_t n = strcspn(p, " ");
        if (n == len && memcmp(p, word, n) == 0)
            return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

static bool only(const char *text, const char *extra)
{
    for (const char *p = text; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr(extra, *p))
            return false;
    return text[0] != '\0';
}

static bool lower_only(const char *text, const char *extra)
{
    for (const char *p = text; *p; p++)
        if (isupper((unsigned char)*p))
            return false;
    return only(text, extra);
}

bool hx_bundle_path_ok(const char *path, const char **why)
{
    size_t n = 0;
    for (const char *p = path; *p; n++) {
        size_t len = strcspn(p, "/");
        if (len == 2 && memcmp(p, "..", 2) == 0) {
            *why = "path leaves the bundle";
            return false;
        }
        p += len + (p[len] == '/');
    }
    if (path[0] == '/') {
        *why = "path leaves the bundle";
        return false;
    }
    if (!only(path, "._+/@-")) {
        *why = "path holds characters that are not allowed";
        return false;
    }
    for (const char *p = path; *p;) {
        size_t len = strcspn(p, "/");
        if (len == 0 || (len == 1 && *p == '.') || (p[len] == '/' && p[len + 1] == '\0')) {
            *why = "path has an empty component";
            return false;
        }
        p += len + (p[len] == '/');
    }
    if (strlen(path) > HX_BUNDLE_PATH_MAX || n > HX_BUNDLE_DEPTH_MAX) {
        *why = "path is too long or too deep";
        return false;
    }
    return true;
}

static bool is_name(const char *s, const char **why)
{
    (void)why;
    return isalnum((unsigned char)s[0]) && lower_only(s, "._-") && strlen(s) <= 64;
}

static bool is_file_name(const char *s, const char **why)
{
    *why = "must be a plain file name";
    return only(s, "._+@-") && s[0] != '.' && strlen(s) <= 64;
}

static bool is_hash(const char *s, const char **why)
{
    *why = "must be 64 lower-case hexadecimal digits";
    return strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

/* Three digits, two or three, and perhaps two: "610.43.03". */
static bool is_driver_version(const char *s, const char **why)
{
    (void)why;
    size_t a = strspn(s, "0123456789");
    if (a != 3 || s[3] != '.')
        return false;
    size_t b = strspn(s + 4, "0123456789");
    if (b < 2 || b > 3)
        return false;
    const char *rest = s + 4 + b;
    return *rest == '\0' ||
           (*rest == '.' && strspn(rest + 1, "0123456789") == 2 && rest[3] == '\0');
}

/* Extended regular expression without counts and back references, which can cost any amount of
 * time or memory. */
static bool is_regex(const char *s, const char **why)
{
    *why = "must be an extended regular expression without counts and back references";
    for (const char *p = s; *p; p++) {
        if (*p == '{' || (*p == '\\' && isdigit((unsigned char)p[1])))
            return false;
        if (*p == '\\' && p[1])
            p++;
    }
    regex_t re;
    int r = regcomp(&re, s, REG_EXTENDED | REG_NOSUB);
    if (r == 0)
        regfree(&re);
    errno = r == REG_ESPACE ? ENOMEM : 0;
    return r == 0;
}

static bool is_release(const char *s, const char **why)
{
    (void)why;
    return only(s, "._+~-") && s[0] != '.';
}

static bool is_module_dir(const char *s, const char **why)
{
    (void)why;
    return strncmp(s, "updates/", 8) == 0 && lower_only(s + 8, "-") && strlen(s) <= 64;
}

static bool is_module_name(const char *s, const char **why)
{
    *why = "is not one of the driver's modules";
    return hx_rule_choice("nvidia nvidia-modeset nvidia-uvm nvidia-drm nvidia-peermem", s);
}

static bool is_plain_word(const char *s, const char **why)
{
    *why = "must be one word without spaces and quotes";
    return s[0] && !strpbrk(s, " \"'\\`$");
}

/* Kernel words that concern the cards and their links. Others (root, init, security settings)
 * are not a bundle's business. */
static bool is_kernel_word(const char *s, const char **why)
{
    static const char *const allowed[] = {
        "iommu=",
        "iommu.passthrough=",
        "iommu.strict=",
        "intel_iommu=",
        "amd_iommu=",
        "pci=",
        "pcie_aspm=",
        "pcie_ports=",
        "pcie_port_pm=",
        "nvidia.",
        "nvidia-uvm.",
        "nvidia_uvm.",
        "nvidia-drm.",
        "nvidia_drm.",
        "nouveau.",
        "modprobe.blacklist=",
        "hugepages=",
        "hugepagesz=",
        "module_blacklist=",
        "default_hugepagesz=",
    };
    *why = "must be one word without spaces and quotes";
    if (!is_plain_word(s, why))
        return false;
    *why = "is not a kernel word that a bundle may set";
    for (size_t i = 0; i < N(allowed); i++)
        if (strncmp(s, allowed[i], strlen(allowed[i])) == 0)
            return true;
    return false;
}

static bool is_options(const char *s, const char **why)
{
    *why = "must be name=value words";
    return s[0] && !strpbrk(s, "\"'\\`$") && strchr(s, '=');
}

/* Names that would change which programs or libraries the build runs are not the bundle's. */
static bool is_env_name(const char *s, const char **why)
{
    *why = "is not a name that a build may set";
    if (!isupper((unsigned char)s[0]) && s[0] != '_')
        return false;
    for (const char *p = s; *p; p++)
        if (!isupper((unsigned char)*p) && !isdigit((unsigned char)*p) && *p != '_')
            return false;
    return !hx_rule_choice("PATH HOME TMPDIR IFS SHELL BASH_ENV ENV", s) &&
           strncmp(s, "LD_", 3) != 0;
}

static bool is_env_value(const char *s, const char **why)
{
    *why = "may hold @kernel@, @headers@ and @out@ and no other @word@";
    for (const char *p = strchr(s, '@'); p; p = strchr(p, '@')) {
        const char *end = strchr(p + 1, '@');
        if (!end)
            return false;
        size_t n = (size_t)(end - p - 1);
        if (!(n == 6 && memcmp(p + 1, "kernel", 6) == 0) &&
            !(n == 7 && memcmp(p + 1, "headers", 7) == 0) &&
            !(n == 3 && memcmp(p + 1, "out", 3) == 0))
            return false;
        p = end + 1;
    }
    return true;
}

static const struct hx_rule provenance_rules[] = {
    {"origin", HX_RULE_TEXT, M(origin), .free_text = true},
    {"revision", HX_RULE_TEXT, M(revision), .free_text = true},
    {"built_by", HX_RULE_TEXT, M(built_by), .free_text = true},
    {"built_at", HX_RULE_TEXT, M(built_at), .free_text = true},
};
static const struct hx_table provenance_table = {provenance_rules, N(provenance_rules), 0};

static const struct hx_rule kernel_rules[] = {
    {"release_regex", HX_RULE_TEXT, M(release_regex), .max = 256, .check = is_regex},
    {"exact", HX_RULE_TEXTS, M(exact_kernels), .max = 64, .check = is_release},
};
static const struct hx_table kernel_table = {kernel_rules, N(kernel_rules), 0};

static const struct hx_rule target_rules[] = {
    {"driver_version", HX_RULE_TEXT, M(driver_version), .required = true,
     .check = is_driver_version, .why = "must be a driver version like 610.43.03"},
    {"arch", HX_RULE_TEXT, M(arch), .required = true, .choices = "x86_64", .why = "must be x86_64"},
    {"device_ids", HX_RULE_TEXTS, M(device_ids), .required = true, .min_items = 1,
     .choices = "20c2 2082", .why = "must be 20c2 or 2082"},
    {"kernels", HX_RULE_OBJECT, .required = true, .table = &kernel_table},
};
static const struct hx_table target_table = {target_rules, N(target_rules), 0};

static const struct hx_rule file_rules[] = {
    {"path", HX_RULE_TEXT, F(path), .required = true, .check = hx_bundle_path_ok},
    {"sha256", HX_RULE_TEXT, F(sha256), .required = true, .check = is_hash},
    {"size", HX_RULE_NUMBER, F(size), .required = true, .max = (int64_t)HX_BUNDLE_BYTES_MAX},
    {"mode", HX_RULE_TEXT, F(mode), .choices = "0644 0755", .why = "must be 0644 or 0755"},
    {"role", HX_RULE_TEXT, F(role), .required = true,
     .choices = "source patch script module userspace gpu-firmware modprobe unit doc "
                "licence-text other"},
    {"licence", HX_RULE_TEXT, F(licence), .required = true, .max = 128},
};
static const struct hx_table file_table = {file_rules, N(file_rules),
                                           sizeof(struct hx_bundle_file)};

static const struct hx_rule build_rules[] = {
    {"needs", HX_RULE_TEXTS, M(needs), .check = is_file_name},
    {"argv", HX_RULE_TEXTS, M(argv), .required = true, .min_items = 1},
    {"env", HX_RULE_PAIRS, M(env), .check = is_env_value, .key_check = is_env_name},
    {"outputs", HX_RULE_TEXTS, M(outputs), .required = true, .unique = true,
     .check = hx_bundle_path_ok},
    {"timeout_s", HX_RULE_NUMBER, M(timeout_s), .min = 1, .max = 7200},
    {"network", HX_RULE_BOOL, M(network), .must_be_false = true,
     .why = "the build step runs without network"},
    {"min_free_mib", HX_RULE_NUMBER, M(min_free_mib), .max = 1 << 20},
};
static const struct hx_table build_table = {build_rules, N(build_rules), 0};

static const struct hx_rule module_rules[] = {
    {"dir", HX_RULE_TEXT, M(module_dir), .required = true, .check = is_module_dir,
     .why = "must be a directory below updates/"},
    {"names", HX_RULE_TEXTS, M(module_names), .required = true, .unique = true,
     .check = is_module_name},
    {"metadata", HX_RULE_TEXTS, M(metadata), .unique = true, .check = is_file_name},
};
static const struct hx_table module_table = {module_rules, N(module_rules), 0};

static const struct hx_rule cmdline_rules[] = {
    {"add", HX_RULE_TEXTS, M(cmdline_add), .max = 200, .check = is_kernel_word},
    {"remove", HX_RULE_TEXTS, M(cmdline_remove), .max = 200, .check = is_kernel_word},
};
static const struct hx_table cmdline_table = {cmdline_rules, N(cmdline_rules), 0};

static const struct hx_rule install_rules[] = {
    {"modules", HX_RULE_OBJECT, .required = true, .table = &module_table},
    {"modprobe_options", HX_RULE_PAIRS, M(modprobe_options), .max = 512, .check = is_options,
     .key_check = is_module_name},
    {"registry_keys", HX_RULE_TEXT, M(registry_keys), .max = 511},
    {"kernel_cmdline", HX_RULE_OBJECT, .table = &cmdline_table},
    {"units", HX_RULE_TEXTS, M(units), .max = 128},
    {"userspace_root", HX_RULE_TEXT, M(userspace_root), .check = hx_bundle_path_ok},
    {"boot_image", HX_RULE_BOOL, M(boot_image)},
    {"blacklist", HX_RULE_TEXTS, M(blacklist), .check = is_file_name},
    {"requires_cold_power_off", HX_RULE_BOOL, M(install_cold)},
};
static const struct hx_table install_table = {install_rules, N(install_rules), 0};

static const struct hx_rule marker_rules[] = {
    {"file", HX_RULE_TEXT, M(marker_file), .check = is_file_name},
    {"accepted", HX_RULE_TEXTS, M(marker_accepted), .max = 128},
};
static const struct hx_table marker_table = {marker_rules, N(marker_rules), 0};

static const struct hx_rule verify_rules[] = {
    {"memory_mib", HX_RULE_RANGES, M(memory_mib), .max = 1 << 20, .key_check = is_release},
    {"sm_min", HX_RULE_NUMBER, M(sm_min), .max = 1024},
    {"link_gen", HX_RULE_NUMBER, M(link_gen), .max = 6},
    {"bar1_mib_min", HX_RULE_NUMBER, M(bar1_mib_min), .max = 1 << 20},
    {"p2p_kind", HX_RULE_TEXT, M(p2p_kind), .choices = "none mailbox bar1"},
    {"iommu_accepted", HX_RULE_TEXTS, M(iommu_accepted), .choices = "off identity"},
    {"product_name", HX_RULE_TEXT, M(product_name), .max = 95},
    {"safety_marker", HX_RULE_OBJECT, .table = &marker_table},
    {"log_required", HX_RULE_TEXTS, M(log_required), .max = 256},
    {"log_forbidden", HX_RULE_TEXTS, M(log_forbidden), .max = 256},
};
static const struct hx_table verify_table = {verify_rules, N(verify_rules), 0};

static const struct hx_rule remove_rules[] = {
    {"argv", HX_RULE_TEXTS, M(remove_argv)},
    {"needs_cold_power_off", HX_RULE_BOOL, M(remove_cold)},
};
static const struct hx_table remove_table = {remove_rules, N(remove_rules), 0};

static const struct hx_rule signing_rules[] = {
    {"secure_boot", HX_RULE_TEXT, M(secure_boot),
     .choices = "must-be-off sign-at-install already-signed"},
    {"signer_cert_sha256", HX_RULE_TEXT, M(signer_cert), .check = is_hash},
};
static const struct hx_table signing_table = {signing_rules, N(signing_rules), 0};

static const struct hx_rule licence_rules[] = {
    {"id", HX_RULE_TEXT, L(id), .required = true, .max = 128},
    {"covers", HX_RULE_TEXT, L(covers), .required = true, .free_text = true},
    {"text_file", HX_RULE_TEXT, L(text_file), .check = hx_bundle_path_ok},
    {"must_accept", HX_RULE_BOOL, L(must_accept), .required = true},
};
static const struct hx_table licence_table = {licence_rules, N(licence_rules),
                                              sizeof(struct hx_bundle_licence)};

static const struct hx_rule manifest_rules[] = {
    {"schema_version", HX_RULE_NUMBER, M(schema_version), .required = true, .min = 1, .max = 1,
     .why = "must be 1; this program knows no other"},
    {"name", HX_RULE_TEXT, M(name), .required = true, .check = is_name,
     .why = "must be 1 to 64 of a-z 0-9 . _ -, first a letter or digit"},
    {"version", HX_RULE_TEXT, M(version), .required = true, .max = 64},
    {"kinds", HX_RULE_TEXTS, M(kinds), .required = true, .unique = true, .min_items = 1,
     .choices = "driver modules p2p link kernel"},
    {"provenance", HX_RULE_OBJECT, .table = &provenance_table},
    {"targets", HX_RULE_OBJECT, .required = true, .table = &target_table},
    {"files", HX_RULE_OBJECTS, M(files), .required = true, .min_items = 1, .table = &file_table},
    {"build", HX_RULE_OBJECT, M(has_build), .table = &build_table},
    {"install", HX_RULE_OBJECT, .required = true, .table = &install_table},
    {"verify", HX_RULE_OBJECT, .required = true, .table = &verify_table},
    {"remove", HX_RULE_OBJECT, .required = true, .table = &remove_table},
    {"signing", HX_RULE_OBJECT, .table = &signing_table},
    {"licences", HX_RULE_OBJECTS, M(licences), .required = true, .table = &licence_table},
    {"redistributable", HX_RULE_BOOL, M(redistributable), .required = true, .must_be_false = true,
     .why = "bundles are always the owner's own and are never embedded in an image"},
};
const struct hx_table hx_manifest_table = {manifest_rules, N(manifest_rules), 0};

static bool refuse(struct hx_bundle_fault *fault, const char *where, const char *why)
{
    hx_bundle_fault_set(fault, "BND-01", where, why);
    return false;
}

/* A file that is also the folder of another one, or is listed twice. */
static bool files_fit(const struct hx_manifest *m, struct hx_bundle_fault *fault)
{
    int64_t total = 0;
    for (size_t i = 0; i < m->files.n; i++) {
        const char *path = m->files.item[i].path;
        size_t len = strlen(path);
        char at[64];
        snprintf(at, sizeof(at), "files[%zu].path", i);
        if (strcmp(path, HX_MANIFEST_NAME) == 0)
            return refuse(fault, at, "the manifest does not list itself");
        for (size_t k = 0; k < i; k++) {
            const char *other = m->files.item[k].path;
            size_t n = strlen(other), least = n < len ? n : len;
            if (memcmp(path, other, least) == 0 &&
                (n == len || (n < len ? path[n] : other[len]) == '/'))
                return refuse(fault, at, "is listed twice, or is a file and a folder");
        }
        total += m->files.item[i].size;
        if (total > (int64_t)HX_BUNDLE_BYTES_MAX)
            return refuse(fault, "files", "are more than 8 GiB together");
    }
    return true;
}

/* The build runs a file of the bundle that is listed as executable, or a tool that it needs. */
static bool build_fits(const struct hx_manifest *m, struct hx_bundle_fault *fault)
{
    const char *program = m->argv.item[0];
    if (strncmp(program, "./", 2) == 0) {
        const struct hx_bundle_file *file = hx_manifest_file(m, program + 2);
        if (!file || !file->mode || strcmp(file->mode, "0755") != 0)
            return refuse(fault, "build.argv[0]", "is not a listed file of mode 0755");
    } else if (strchr(program, '/') || !hx_strings_has(&m->needs, program)) {
        return refuse(fault, "build.argv[0]", "is neither ./FILE of the bundle nor in build.needs");
    }
    for (size_t i = 0; i < m->module_names.n; i++) {
        char want[80];
        snprintf(want, sizeof(want), "%s.ko", m->module_names.item[i]);
        bool found = false;
        for (size_t k = 0; k < m->outputs.n && !found; k++) {
            const char *slash = strrchr(m->outputs.item[k], '/');
            found = strcmp(slash ? slash + 1 : m->outputs.item[k], want) == 0;
        }
        if (!found)
            return refuse(fault, "build.outputs", "lack a module that install.modules.names has");
    }
    return true;
}

static bool prebuilt_fits(const struct hx_manifest *m, struct hx_bundle_fault *fault)
{
    for (size_t k = 0; k < m->exact_kernels.n; k++)
        for (size_t i = 0; i < m->module_names.n; i++) {
            char want[HX_BUNDLE_PATH_MAX + 1];
            snprintf(want, sizeof(want), "modules/%s/%s.ko", m->exact_kernels.item[k],
                     m->module_names.item[i]);
            const struct hx_bundle_file *file = hx_manifest_file(m, want);
            if (!file || strcmp(file->role, "module") != 0)
                return refuse(fault, want, "a prebuilt bundle lists each module for each kernel");
        }
    return true;
}

bool hx_manifest_consistent(const struct hx_manifest *m, struct hx_bundle_fault *fault)
{
    if (!files_fit(m, fault))
        return false;
    if (!m->release_regex && m->exact_kernels.n == 0)
        return refuse(fault, "targets.kernels", "names no kernel");
    if (m->module_names.n == 0)
        return refuse(fault, "install.modules.names", "must have at least one entry");
    if (m->units.n)
        return refuse(fault, "install.units",
                      "no service of a bundle is started; leave the list empty");
    if (m->userspace_root) {
        size_t len = strlen(m->userspace_root), found = 0;
        for (size_t i = 0; i < m->files.n; i++)
            found += strncmp(m->files.item[i].path, m->userspace_root, len) == 0 &&
                     m->files.item[i].path[len] == '/';
        if (!found)
            return refuse(fault, "install.userspace_root", "no file is below it");
    }
    if (m->marker_accepted.n && !m->marker_file)
        return refuse(fault, "verify.safety_marker.file", "is missing (a string)");
    for (size_t i = 0; i < m->licences.n; i++) {
        char at[64];
        snprintf(at, sizeof(at), "licences[%zu].text_file", i);
        if (m->licences.item[i].text_file && !hx_manifest_file(m, m->licences.item[i].text_file))
            return refuse(fault, at, "is not a listed file");
    }
    if (m->secure_boot && strcmp(m->secure_boot, "already-signed") == 0 && !m->signer_cert)
        return refuse(fault, "signing.signer_cert_sha256", "is missing (a string)");
    return m->has_build ? build_fits(m, fault) : prebuilt_fits(m, fault);
}

int hx_manifest_fits_kernel(const struct hx_manifest *m, const char *release)
{
    if (hx_strings_has(&m->exact_kernels, release))
        return 1;
    if (!m->has_build || !m->release_regex)
        return 0; /* built modules fit the kernels that are named */
    regex_t re;
    if (regcomp(&re, m->release_regex, REG_EXTENDED | REG_NOSUB) != 0)
        return -ENOMEM; /* it compiled when the manifest was read */
    int r = regexec(&re, release, 0, NULL, 0);
    regfree(&re);
    return r == REG_ESPACE ? -ENOMEM : r == 0;
}
