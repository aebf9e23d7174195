/* Short tools (nvidia-smi, modinfo, modprobe -n) with a time limit. With a table, recorded answers
 * stand in for all of them and nothing is started. */
#ifndef HX_HW_COMMAND_H
#define HX_HW_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include <hx/error.h>

#define HX_COMMAND_MISSING 127

struct hx_commands; /* how commands are run */

/* Real tools, looked up in the system folders only. */
int hx_commands_real(struct hx_commands **out, struct hx_error *err) HX_MUST;
/* Recorded answers: {"commands": [{"argv": [...], "rc", "delay_s", "stdout" or "file" (beside the
 * table), "stderr"}]}; "*" in a word stands for any text. What is not listed does not exist (127).
 * A delay beyond the limit of a call is a time-out at once, without waiting. path NULL: an empty
 * table. */
int hx_commands_table(const char *path, struct hx_commands **out, struct hx_error *err) HX_MUST;
void hx_commands_free(struct hx_commands *commands);

struct hx_command_result {
    int rc;         /* exit status; 127 no such program; 128 + signal */
    bool timed_out; /* rc is then -1 */
    char *out;      /* NUL terminated, at most 1 MiB (cut) */
    size_t out_len;
    char err_text[512]; /* start of standard error */
};
/* argv ends with NULL. Standard input is empty, the environment is PATH and LC_ALL=C. A tool that
 * exceeds its limit gets SIGTERM and is left alone (it may hang in the kernel). 0, or negative if
 * nothing could be started for lack of memory or processes. */
int hx_command_run(const struct hx_commands *commands, const char *const argv[], int timeout_ms,
                   struct hx_command_result *out, struct hx_error *err) HX_MUST;
void hx_command_result_done(struct hx_command_result *result);

#endif
