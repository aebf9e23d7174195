/* The effort tables: the released one, and the pre-release one that older engine images use. */
#include "text/effort.h"

static const struct {
    const char *name;
    int level[2]; /* by table */
    bool reference;
} effort_row[] = {
    {"none", {75, 50}, false},  {"low", {50, 25}, true},   {"high", {75, 50}, true},
    {"xhigh", {75, 75}, false}, {"max", {100, 100}, true},
};

int hx_effort_read(struct hx_jv v, enum hx_effort_table table, unsigned flags, const char *param,
                   int *level, bool *off, struct hx_error *err)
{
    int column = table == HX_EFFORT_LEGACY;
    if (hx_jv_type(v) <= HX_JSON_NULL) {
        *level = effort_row[2].level[column];
        *off = false;
        return 0;
    }
    for (size_t i = 0; i < sizeof(effort_row) / sizeof(effort_row[0]); i++) {
        if (!hx_jv_str_is(v, effort_row[i].name) ||
            ((flags & HX_EFFORT_REFERENCE) && !effort_row[i].reference))
            continue;
        *level = effort_row[i].level[column];
        *off = i == 0;
        return 0;
    }
    int64_t n;
    if (hx_jv_int64(v, &n) && n >= 1 && n <= 100) {
        *level = (int)n;
        *off = false;
        return 0;
    }
    return hx_fail_param(err, -EINVAL, param, "invalid_value",
                         "%s must be none, low, high, xhigh, max or an integer from 1 to 100",
                         param);
}
