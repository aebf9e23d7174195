/* Commands of hx-inspect. Each gets its own arguments (argv[0]: the command) and returns an exit
 * status of sysexits.h; errors go to standard error as one line. */
#ifndef HX_CLI_INSPECT_H
#define HX_CLI_INSPECT_H

#include <stdbool.h>

#include <hx/error.h>

#include "base/buf.h"

int hx_inspect_headers(int argc, char **argv);
int hx_inspect_plan(int argc, char **argv);
int hx_inspect_memory(int argc, char **argv);
int hx_inspect_tiny(int argc, char **argv);
int hx_inspect_tokens(int argc, char **argv);
int hx_inspect_prompt(int argc, char **argv);
int hx_inspect_logits(int argc, char **argv);

/* 0 for r >= 0, else prints the error and returns the status for its class. */
int hx_inspect_status(int r, const struct hx_error *err);
/* Prints what is wrong with the command line and returns EX_USAGE. */
int hx_inspect_usage(const char *fmt, ...) HX_PRINTF(1, 2);
/* Writes a buffer to standard output; a failed or full buffer and a failed write are errors. */
int hx_inspect_print(struct hx_buf *out);
/* Progress of long work on standard error: one line that is redrawn on a terminal, one line at the
 * end of a stage elsewhere. */
void hx_inspect_progress(const char *stage, double fraction);
/* A decimal number within limits; false otherwise. */
bool hx_inspect_number(const char *s, long long lo, long long hi, long long *out);

#endif
