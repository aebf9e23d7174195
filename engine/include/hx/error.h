/* Error objects: every fallible function returns 0 or a negative errno class, never positive,
 * and takes a struct hx_error as its last parameter (NULL allowed). */
#ifndef HX_ERROR_H
#define HX_ERROR_H

#include <errno.h>
#include <stddef.h>

enum hx_error_domain {
    HX_DOMAIN_SYS,
    HX_DOMAIN_DATA, /* a file's or a message's content */
    HX_DOMAIN_CONF,
    HX_DOMAIN_CUDA,
    HX_DOMAIN_NCCL,
    HX_DOMAIN_CURL,
    HX_DOMAIN_MAX
};

/* One message, outermost context first ("loading shard 3: tensor 'x': ..."). */
struct hx_error {
    enum hx_error_domain domain;
    int code;        /* negative errno class that was returned */
    int native;      /* native code of the domain, 0 if none */
    char param[64];  /* request field at fault, empty if none (HTTP errors) */
    char slug[40];   /* machine-readable code, empty if none (HTTP errors) */
    char text[1024]; /* always one line of NUL-terminated UTF-8 */
};

#define HX_MUST         __attribute__((warn_unused_result))
#define HX_PRINTF(a, b) __attribute__((format(printf, a, b)))

/* Sets the message and returns r (negative). Domain DATA unless r is an I/O errno. */
int hx_fail(struct hx_error *err, int r, const char *fmt, ...) HX_PRINTF(3, 4);
/* Same, with "<message>: <strerror(errno_value)>" appended; returns -errno_value. */
int hx_fail_errno(struct hx_error *err, int errno_value, const char *fmt, ...) HX_PRINTF(3, 4);
/* Same, with the HTTP fields: param and slug may be NULL. */
int hx_fail_param(struct hx_error *err, int r, const char *param, const char *slug, const char *fmt,
                  ...) HX_PRINTF(5, 6);
/* Puts "context: " in front of the message and returns r unchanged. */
int hx_wrap(struct hx_error *err, int r, const char *fmt, ...) HX_PRINTF(3, 4);

#endif
