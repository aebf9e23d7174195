/* Declared tools: what the prompt writes about them and what healing needs to know. */
#ifndef HX_TEXT_TOOLS_H
#define HX_TEXT_TOOLS_H

#include <stdbool.h>
#include <stddef.h>

#include <hx/error.h>

#include "base/json_read.h"
#include "base/json_write.h"

#define HX_TOOLS_MAX          1024
#define HX_TOOL_NAME_MAX      128 /* bytes; api.md section 3 */
#define HX_TOOL_FULL_NAME_MAX (2 * HX_TOOL_NAME_MAX + 3)

enum hx_schema_type {
    HX_SCHEMA_UNKNOWN, /* not stated, or more than one */
    HX_SCHEMA_STRING,
    HX_SCHEMA_INTEGER,
    HX_SCHEMA_NUMBER,
    HX_SCHEMA_BOOLEAN,
    HX_SCHEMA_ARRAY,
    HX_SCHEMA_OBJECT,
};

struct hx_tool_property {
    const char *name; /* not NUL-terminated */
    size_t len;
    enum hx_schema_type type;
};

struct hx_tool {
    char name[HX_TOOL_FULL_NAME_MAX]; /* with the namespace: ns::tool */
    size_t name_len;
    struct hx_tool_property *property; /* sorted by name */
    size_t n_properties;
    const char *first_string; /* first required string property, NULL if none */
    size_t first_string_len;
};

struct hx_tools {
    struct hx_tool *tool;
    size_t n_tools;
    char *names; /* the property names */
};

/* Reads the request's list of tools. Errors -EINVAL with param "tools". The list must outlive
 * nothing: names are copied. */
int hx_tools_new(struct hx_jv list, struct hx_tools **out, struct hx_error *err) HX_MUST;
void hx_tools_free(struct hx_tools *tools);
const struct hx_tool *hx_tools_find(const struct hx_tools *tools, const char *name, size_t len);
/* NULL if the tool declares no such property. */
const struct hx_tool_property *hx_tool_property(const struct hx_tool *tool, const char *name,
                                                size_t len);
/* True if any tool declares the property. */
bool hx_tools_have_property(const struct hx_tools *tools, const char *name, size_t len);

/* Full name of a call or a function (chat.md 3.11): joins `namespace` of the holder or of the
 * function with its name. NUL-terminated into out. */
int hx_tool_full_name(struct hx_jv holder, struct hx_jv function, const char *param,
                      char out[HX_TOOL_FULL_NAME_MAX], struct hx_error *err) HX_MUST;
/* The tool's line of the prompt: its function object as sent, names joined. */
int hx_tool_put_line(struct hx_jv tool, struct hx_buf *out, struct hx_error *err) HX_MUST;

#endif
