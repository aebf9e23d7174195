/* Small files of the demo model: everything that is not a tensor. */
#ifndef HX_MODEL_TINY_FILES_H
#define HX_MODEL_TINY_FILES_H

#include "model/tiny.h"

#define HX_TINY_VOCAB      129280
#define HX_TINY_COMPRESSED 99092

/* Makes the folder and its sub-folders, refuses foreign content, marks the folder incomplete. */
int hx_tiny_begin(const struct hx_tiny_options *opt, struct hx_error *err) HX_MUST;
/* config.json, generation_config.json, LICENSE, token map, tokenizer. */
int hx_tiny_write_small(const struct hx_tiny_options *opt, struct hx_error *err) HX_MUST;

#endif
