/* The judgement over all checks: overall word, axes, layout, remedies. */
#ifndef HX_P2P_VERDICT_H
#define HX_P2P_VERDICT_H

#include "check.h"

enum hx_overall { HX_READY, HX_DEGRADED, HX_NOT_READY, HX_UNSUPPORTED }; /* = exit code */
const char *hx_overall_name(enum hx_overall o);

#define HX_AXIS_VALUES HX_CARDS

struct hx_axes {
    const char *module;  /* absent, stock, shadowed, bundle */
    const char *memory;  /* absent, stock, unlocked, oversize, odd */
    const char *compute; /* unknown, throttled, reduced, full */
    const char *p2p;     /* none, unverified, verified, slow, corrupt, hang */
    /* Values that occur, ascending, each once. */
    int sm[HX_AXIS_VALUES], n_sm;
    int link_gen[HX_AXIS_VALUES], n_link_gen;
    int link_width[HX_AXIS_VALUES], n_link_width;
    int bar1_mib[HX_AXIS_VALUES], n_bar1_mib;
};

struct hx_layout {
    const char *recommend; /* TP4_P2P, TP4_HOST, PP4, NONE */
    const char *reason;
    const char *advice; /* PP4_FOR_LONG_PROMPTS, COMPARE_WITH_PP4, NULL */
    bool predicted;
    double allreduce_ms_per_step; /* 86 all-reduces of six rows */
    double prefill_ceiling;       /* tokens a second that TP4 cannot exceed */
};

struct hx_judgement {
    struct hx_finding finding[HX_CHECKS_MAX]; /* in the order of hx_checks */
    enum hx_overall overall;
    struct hx_axes axes;
    struct hx_layout layout;
    const char *remedy[HX_CHECKS_MAX]; /* for failures: gates first, each once */
    int n_remedies;
    const char *hint[HX_CHECKS_MAX]; /* for warnings */
    int n_hints;
    const char *unjudged[HX_CHECKS_MAX]; /* gates without their measurement or kernel log */
    int n_unjudged;
};

void hx_judge(const struct hx_facts *f, struct hx_judgement *out);
/* The word for a check that another failure explains, for output. NULL: none does. */
const char *hx_judge_explained(const struct hx_judgement *j, const struct hx_check *check);

#endif
