/* Configuration: INI files and --section.key=value arguments over one table of option rows. */
#ifndef HX_BASE_CONF_H
#define HX_BASE_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <hx/error.h>

enum hx_conf_type {
    HX_CONF_STRING, /* char [max + 1] inside the struct */
    HX_CONF_INT,    /* int64_t */
    HX_CONF_REAL,   /* double */
    HX_CONF_BOOL,   /* bool: yes no true false on off 1 0 */
    HX_CONF_SIZE,   /* int64_t bytes: 64M, 4G, 100k */
    HX_CONF_TIME,   /* int64_t microseconds: 30s, 500ms, 2m */
    HX_CONF_CHOICE, /* int: index into choices */
};

struct hx_conf_option {
    const char *section, *key;
    enum hx_conf_type type;
    size_t offset;
    double min, max;      /* numbers in their unit; STRING: max = longest length */
    const char *standard; /* default, in file spelling */
    const char *choices;  /* CHOICE: names separated by spaces */
    const char *help;
};

/* Writes every default into the struct at `to`. A default that its own row refuses is a bug
 * (asserts). */
void hx_conf_defaults(const struct hx_conf_option *rows, int n, void *to);
/* One value. where: "file:line" or "argument", for the message. -EINVAL names key, found and
 * expected. */
int hx_conf_set(const struct hx_conf_option *rows, int n, void *to, const char *section,
                const char *key, const char *value, const char *where,
                struct hx_error *err) HX_MUST;
/* A file. A missing file is -ENOENT. Unknown sections and keys are errors with file and line. */
int hx_conf_file(const struct hx_conf_option *rows, int n, void *to, const char *path,
                 struct hx_error *err) HX_MUST;
/* All *.conf of a folder in name order; a missing folder is fine. */
int hx_conf_folder(const struct hx_conf_option *rows, int n, void *to, const char *dir,
                   struct hx_error *err) HX_MUST;
/* --section.key=value; 1 if it was such an argument, 0 if not, negative on a bad value. */
int hx_conf_argument(const struct hx_conf_option *rows, int n, void *to, const char *arg,
                     struct hx_error *err);
/* The effective configuration as a file; help: with a comment line for each option. */
void hx_conf_dump(const struct hx_conf_option *rows, int n, const void *from, bool help, FILE *out);

#endif
