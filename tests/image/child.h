/* Programs that a test starts: one process each, ended by its own number only, and never longer
 * than a deadline. */
#ifndef HX_TESTS_IMAGE_CHILD_H
#define HX_TESTS_IMAGE_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

/* Milliseconds of a clock that only goes forward. Deadlines are times of this clock. */
int64_t hx_child_clock(void);
/* The earlier one of `deadline` and ms milliseconds from now. */
int64_t hx_child_within(int64_t deadline, int64_t ms);
/* Sleeps ms milliseconds, but not beyond the deadline. False once it has passed. */
bool hx_child_sleep(int64_t ms, int64_t deadline);

struct hx_child {
    pid_t pid;  /* 0: none was started or its end was seen */
    int status; /* of waitpid, once ended */
    bool ended;
    char pidfile[256]; /* empty: none */
    char program[64];  /* for messages */
};

/* Starts argv[0] (searched in PATH) with standard input from /dev/null and both outputs at the end
 * of the file `log`. The number goes into `pidfile` (NULL: nowhere) and the file leaves with the
 * process. The child dies with this process. -ENOENT when there is no such program. */
int hx_child_start(struct hx_child *c, const char *const *argv, const char *log,
                   const char *pidfile, struct hx_error *err) HX_MUST;
/* True while it runs; notices its end. */
bool hx_child_alive(struct hx_child *c);
/* Waits for the end. -ETIMEDOUT at the deadline, the program still runs then. */
int hx_child_wait(struct hx_child *c, int64_t deadline, struct hx_error *err) HX_MUST;
/* SIGKILL and wait; nothing if it has ended. */
void hx_child_kill(struct hx_child *c);
/* "exit status 3", "signal 9", "still running". */
void hx_child_describe(const struct hx_child *c, char *text, size_t size);

/* Runs a program to its end with `input` (NULL: none) as its standard input; *out gets both
 * outputs, *code the exit status or 128 + signal. At the deadline the program is killed: -ETIMEDOUT
 * with the end of its output. */
int hx_child_run(const char *const *argv, const char *input, struct hx_buf *out, int *code,
                 int64_t deadline, struct hx_error *err) HX_MUST;

#endif
