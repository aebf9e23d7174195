/* Inside of bundle/source: what every kind of entry body begins with. */
#ifndef HX_BUNDLE_SOURCE_BODY_H
#define HX_BUNDLE_SOURCE_BODY_H

#include "bundle/source.h"

struct hx_entry_body {
    int (*read)(struct hx_entry_body *body, void *buf, size_t len, size_t *n, struct hx_error *err);
};

#endif
