/* Inside of bundle/manifest: the schema as tables. */
#ifndef HX_BUNDLE_MANIFEST_RULES_H
#define HX_BUNDLE_MANIFEST_RULES_H

#include "bundle/manifest.h"

#define HX_RULE_TEXT_MAX  1024
#define HX_RULE_ITEMS_MAX 256

enum hx_rule_kind {
    HX_RULE_TEXT,    /* char * */
    HX_RULE_NUMBER,  /* int64_t */
    HX_RULE_BOOL,    /* bool */
    HX_RULE_TEXTS,   /* struct hx_strings */
    HX_RULE_PAIRS,   /* struct hx_pairs */
    HX_RULE_RANGES,  /* struct hx_bundle_ranges */
    HX_RULE_OBJECT,  /* fields of the same struct; offset: a bool "is there", 0 = none */
    HX_RULE_OBJECTS, /* struct hx_rule_items of table->item_size */
};

struct hx_rule_items {
    size_t n;
    void *item;
};

struct hx_table;

struct hx_rule {
    const char *name;
    enum hx_rule_kind kind;
    bool required, unique, free_text, must_be_false;
    size_t offset;
    int min_items;
    int64_t min, max;    /* numbers; texts: max = longest, 0 = HX_RULE_TEXT_MAX */
    const char *choices; /* words separated by spaces */
    /* false with errno ENOMEM: could not be judged */
    bool (*check)(const char *text, const char **why);
    bool (*key_check)(const char *text, const char **why);
    const char *why; /* what to say when the value does not fit */
    const struct hx_table *table;
};

struct hx_table {
    const struct hx_rule *rule;
    size_t n, item_size;
};

extern const struct hx_table hx_manifest_table;
bool hx_rule_choice(const char *choices, const char *word);
/* What no single field shows: duplicates, sums, references between fields. */
bool hx_manifest_consistent(const struct hx_manifest *m, struct hx_bundle_fault *fault);

#endif
