/* What hx-install and hx-update have in common on the command line. */
#ifndef HX_DISK_CLI_H
#define HX_DISK_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "hw/root.h"

struct hx_cli_option { /* rows end with an empty name */
    const char *name;
    const char **value; /* takes a value; NULL: a switch */
    bool *on;
};

/* 1: argv[*i] is one of the options (with its value, --name VALUE or --name=VALUE); 0: a word;
 * -ENOENT: an unknown option; -EINVAL: its value is missing. */
int hx_cli_take(const struct hx_cli_option *rows, int argc, char **argv, int *i);

/* Prints the error and returns the exit status for it. */
int hx_cli_report(const char *program, int r, const struct hx_error *err);

/* Folder where the ESP is mounted: `given`, else /efi of the root. */
int hx_cli_esp(const struct hx_root *root, const char *given, char out[HX_ROOT_PATH],
               struct hx_error *err) HX_MUST;

/* Progress on standard error: one line that is rewritten on a terminal; else, and with json, one
 * line for each step of ten per cent. */
struct hx_cli_progress {
    bool json;
    const char *what;
    int percent; /* shown last */
    bool open_line;
};
int hx_cli_progress(void *shown, const char *what, uint64_t done, uint64_t total);
void hx_cli_progress_end(struct hx_cli_progress *shown);

#endif
