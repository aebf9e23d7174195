/* Counters of the HTTP side and the Prometheus text of /metrics. */
#ifndef HX_SERVER_METRICS_H
#define HX_SERVER_METRICS_H

#include <stdint.h>

#include <hx/engine.h>

#include "base/buf.h"

#define HX_METRIC_CODES 48 /* distinct (path, code) or healing codes kept */

struct hx_labelled {
    char a[40], b[16];
    uint64_t n;
};

struct hx_metrics {
    struct hx_labelled responses[HX_METRIC_CODES], healed[HX_METRIC_CODES];
    uint64_t unknown_fields; /* atomic */
    uint64_t success_stop, success_length, success_tool_calls, success_abort;
    uint64_t cancelled[HX_CANCEL_MAX]; /* client gone, by enum hx_request_phase */
    uint64_t cancelled_tokenising;
};

void hx_metrics_response(struct hx_metrics *m, const char *path, int code);
void hx_metrics_healed(struct hx_metrics *m, const char *code, size_t len);
/* engine NULL: only the HTTP side. */
void hx_metrics_text(const struct hx_metrics *m, struct hx_engine *engine, const char *effort_table,
                     struct hx_buf *out);

#endif
