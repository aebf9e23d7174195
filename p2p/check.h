/* One row for each check of hardware.md 4: what it proves, when it applies, how it runs, its bounds
 * in words, its remedy. */
#ifndef HX_P2P_CHECK_H
#define HX_P2P_CHECK_H

#include "facts.h"

enum hx_verdict { HX_PASS, HX_NOTE, HX_WARN, HX_FAIL, HX_SKIP };
const char *hx_verdict_name(enum hx_verdict v);

/* What a check needs; the first that is missing is the reason to skip it. */
enum hx_applies {
    HX_NEEDS_CARDS = 1 << 0,
    HX_NEEDS_DRIVER = 1 << 1, /* module loaded */
    HX_NEEDS_BUNDLE = 1 << 2,
    HX_NEEDS_NVML = 1 << 3,  /* cards seen through the management library */
    HX_NEEDS_LOAD = 1 << 4,  /* readings while the probe ran */
    HX_NEEDS_PROBE = 1 << 5, /* devices in the probe's result */
    HX_NEEDS_PEERS = 1 << 6, /* peer matrices */
    HX_NEEDS_KLOG = 1 << 7,
    HX_NEEDS_SUMS = 1 << 8,   /* all-reduce results */
    HX_MAY_BE_LATER = 1 << 9, /* no need: a long test that a ready machine may have skipped */
};

struct hx_finding {
    enum hx_verdict verdict;
    char value[96];     /* what was found, short: "3/4", "85" */
    char detail[224];   /* a sentence for people, without identifiers of the machine */
    const char *remedy; /* overrides the row's, NULL: the row's */
};

#define HX_CHECK_EXPLAINED 6

struct hx_check {
    const char *id, *title;
    const char *reads;
    const char *pass, *warn, *fail; /* bounds in words, "-" where there is none */
    bool gate;
    unsigned applies;
    const char *remedy;
    const char *explained_by[HX_CHECK_EXPLAINED]; /* failures that explain this one */
    enum hx_verdict (*run)(const struct hx_facts *f, struct hx_finding *out); /* NULL: other tool */
    const char *elsewhere; /* run is NULL: who does this check */
};

extern const struct hx_check hx_checks[];
extern const int hx_n_checks;
#define HX_CHECKS_MAX 96

const struct hx_check *hx_check_find(const char *id);
const char *hx_remedy_text(const char *id); /* NULL if there is none of this name */
/* "" or why the check does not apply to these facts. */
const char *hx_check_missing(const struct hx_check *check, const struct hx_facts *f);

/* For run functions: a verdict with value and sentence. */
enum hx_verdict hx_find(struct hx_finding *out, enum hx_verdict v, const char *value,
                        const char *detail, ...) __attribute__((format(printf, 4, 5)));

/* Shared by several checks and by the axes. */
struct hx_peer_state {
    int n_pairs, n_access; /* ordered pairs; those with access */
    bool all, none;
};
void hx_peer_access(const struct hx_facts *f, struct hx_peer_state *out);
/* The slower of the two links of a pair of measured devices; gen 0 if not known. */
struct hx_pci_link hx_pair_link(const struct hx_facts *f, int from, int to);
enum hx_memory_class hx_card_memory(const struct hx_facts *f, const struct hx_card *card,
                                    bool *known);
/* The arm that COL-02, COL-03 and the layout use; NULL if none was measured. */
const struct hx_measured_arm *hx_best_arm(const struct hx_facts *f, bool *is_p2p);
/* Rule 2 of hardware.md 3.7 without the all-reduce: checks P2P-01, 03 to 09, 13, 14. */
bool hx_p2p_eligible(const struct hx_facts *f);
bool hx_module_shadowed(const struct hx_facts *f);

typedef enum hx_verdict hx_check_fn(const struct hx_facts *f, struct hx_finding *out);
hx_check_fn hx_inv_01, hx_inv_02, hx_inv_03, hx_inv_04, hx_inv_05, hx_inv_06;
hx_check_fn hx_drv_01, hx_drv_02, hx_drv_03, hx_drv_04, hx_drv_05, hx_drv_06, hx_drv_07, hx_drv_08,
    hx_drv_09, hx_drv_10, hx_drv_11, hx_drv_12, hx_drv_13;
hx_check_fn hx_mem_01, hx_mem_02, hx_mem_03, hx_mem_04, hx_mem_05, hx_mem_06, hx_mem_07, hx_mem_08;
hx_check_fn hx_cmp_01, hx_cmp_02, hx_cmp_03, hx_cmp_04, hx_cmp_05, hx_cmp_06;
hx_check_fn hx_lnk_01, hx_lnk_02, hx_lnk_03, hx_lnk_04, hx_lnk_05, hx_lnk_06;
hx_check_fn hx_bar_01, hx_bar_02, hx_bar_03, hx_bar_04;
hx_check_fn hx_plt_01, hx_plt_02, hx_plt_03, hx_plt_04, hx_plt_05, hx_plt_06, hx_plt_07;
hx_check_fn hx_pwr_01, hx_pwr_02, hx_pwr_03, hx_pwr_04, hx_thm_01, hx_thm_02, hx_thm_03, hx_thm_04;
hx_check_fn hx_err_01, hx_err_02, hx_err_03, hx_err_04, hx_err_05, hx_err_06;
hx_check_fn hx_p2p_01, hx_p2p_02, hx_p2p_03, hx_p2p_04, hx_p2p_05, hx_p2p_06, hx_p2p_07, hx_p2p_08,
    hx_p2p_09, hx_p2p_10, hx_p2p_11, hx_p2p_12, hx_p2p_13, hx_p2p_14;
hx_check_fn hx_col_01, hx_col_02, hx_col_03;
hx_check_fn hx_bnd_06, hx_bnd_07, hx_bnd_08, hx_bnd_09;

#endif
