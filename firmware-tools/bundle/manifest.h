/* The manifest of a driver bundle, cmp-bundle.json (docs/bundles.md): parsed strictly, every value
 * bounded, unknown fields refused. */
#ifndef HX_BUNDLE_MANIFEST_H
#define HX_BUNDLE_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_MANIFEST_NAME      "cmp-bundle.json"
#define HX_MANIFEST_MAX       (1u << 20) /* bytes of the manifest */
#define HX_BUNDLE_FILES_MAX   4096
#define HX_BUNDLE_BYTES_MAX   (8ull << 30) /* all files of a bundle */
#define HX_BUNDLE_PATH_MAX    200
#define HX_BUNDLE_DEPTH_MAX   12
#define HX_BUNDLE_MIN_FREE    4096 /* MiB that a build gets if the manifest names less */
#define HX_BUNDLE_TIMEOUT_S   1800
#define HX_BUNDLE_DEVICE_NAME 8

/* Why a bundle is refused: which check, at which field, file or licence, and the reason. */
struct hx_bundle_fault {
    char check[8]; /* "BND-01"; "" = no fault */
    char where[256];
    char why[200];
};

struct hx_strings {
    size_t n;
    char **item;
};

struct hx_pair {
    char *key, *value;
};
struct hx_pairs {
    size_t n;
    struct hx_pair *item;
};

struct hx_bundle_file {
    char *path; /* relative, plain components */
    char *sha256;
    int64_t size;
    char *mode; /* "0644" (also if NULL) or "0755" */
    char *role, *licence;
};
struct hx_bundle_files {
    size_t n;
    struct hx_bundle_file *item;
};

struct hx_bundle_range {
    char *id; /* PCI device id, "20c2" */
    int64_t min, max;
};
struct hx_bundle_ranges {
    size_t n;
    struct hx_bundle_range *item;
};

struct hx_bundle_licence {
    char *id, *covers, *text_file; /* text_file may be NULL */
    bool must_accept;
};
struct hx_bundle_licences {
    size_t n;
    struct hx_bundle_licence *item;
};

/* Optional texts are NULL, optional numbers 0 if the manifest has none. */
struct hx_manifest {
    int64_t schema_version;
    char *name, *version;
    struct hx_strings kinds;
    char *origin, *revision, *built_by, *built_at;
    /* targets */
    char *driver_version, *arch, *release_regex;
    struct hx_strings device_ids, exact_kernels;
    struct hx_bundle_files files;
    /* build; absent in a prebuilt bundle */
    bool has_build;
    struct hx_strings needs, argv, outputs;
    struct hx_pairs env;
    int64_t timeout_s, min_free_mib;
    bool network;
    /* install */
    char *module_dir; /* "updates/NAME" */
    struct hx_strings module_names, metadata;
    struct hx_pairs modprobe_options;
    char *registry_keys, *userspace_root;
    struct hx_strings cmdline_add, cmdline_remove, units, blacklist;
    bool boot_image, install_cold;
    /* verify */
    struct hx_bundle_ranges memory_mib;
    int64_t sm_min, link_gen, bar1_mib_min;
    char *p2p_kind, *product_name, *marker_file;
    struct hx_strings iommu_accepted, marker_accepted, log_required, log_forbidden;
    /* remove: not run, since nothing is installed outside a slot */
    struct hx_strings remove_argv;
    bool remove_cold;
    /* signing; NULL: must be off */
    char *secure_boot, *signer_cert;
    struct hx_bundle_licences licences;
    bool redistributable;

    void **held; /* everything allocated */
    size_t n_held, cap_held;
};

/* Any bytes are fine. -EINVAL: *fault says which field and why (BND-01); -ENOMEM. *out is set on
 * success only; free with hx_manifest_free. */
int hx_manifest_parse(const char *text, size_t len, struct hx_manifest **out,
                      struct hx_bundle_fault *fault, struct hx_error *err) HX_MUST;
void hx_manifest_free(struct hx_manifest *m);

const struct hx_bundle_file *hx_manifest_file(const struct hx_manifest *m, const char *path);
bool hx_strings_has(const struct hx_strings *s, const char *word);
/* Whether a relative path has only plain components of allowed characters; *why else. */
bool hx_bundle_path_ok(const char *path, const char **why);
/* 1: the kernel is one that the bundle is meant for; 0; -ENOMEM. */
int hx_manifest_fits_kernel(const struct hx_manifest *m, const char *release);
/* Whether the bundle brings user-space driver files. */
bool hx_manifest_has_userspace(const struct hx_manifest *m);
void hx_bundle_fault_set(struct hx_bundle_fault *fault, const char *check, const char *where,
                         const char *why);

#endif
