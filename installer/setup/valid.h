/* Rules for single answers. Each takes the text and gives 0, or -EINVAL with one sentence that says
 * what was found and what is expected. Empty text is accepted where "" has a meaning (see each). */
#ifndef HX_SETUP_VALID_H
#define HX_SETUP_VALID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

typedef int (*hx_valid_fn)(const char *value, struct hx_error *err);

int hx_valid_hostname(const char *value, struct hx_error *err); /* RFC 1123 label */
int hx_valid_address(const char *value, struct hx_error *err);  /* 192.0.2.5/24 or v6; "" */
int hx_valid_gateway(const char *value, struct hx_error *err);  /* one address; "" */
int hx_valid_dns(const char *value, struct hx_error *err);      /* up to 4 addresses; "" */
int hx_valid_proxy(const char *value, struct hx_error *err);    /* http://host:port; "" */
int hx_valid_ntp(const char *value, struct hx_error *err);      /* names, "default", "later" */
int hx_valid_serial(const char *value, struct hx_error *err);   /* printable; "" */
int hx_valid_driver(const char *value, struct hx_error *err);   /* "none" or absolute path */
int hx_valid_sha256(const char *value, struct hx_error *err);   /* 64 hex digits; "" */
int hx_valid_licences(const char *value, struct hx_error *err); /* ids; "" */
int hx_valid_model(const char *value, struct hx_error *err);    /* name of a lock file, "none" */
int hx_valid_source(const char *value, struct hx_error *err);   /* see box.h */
int hx_valid_path(const char *value, struct hx_error *err);     /* absolute, no ".."; "" */
int hx_valid_schedule(const char *value, struct hx_error *err); /* 22:00-06:00; "" */
int hx_valid_cmdline(const char *value, struct hx_error *err);  /* kernel words; "" */

/* "192.0.2.5/24": address bytes (4 or 16), family AF_INET or AF_INET6, prefix. */
struct hx_prefix {
    int family, bits;
    uint8_t addr[16];
};
bool hx_prefix_parse(const char *text, bool need_prefix, struct hx_prefix *out);
/* The gateway lies in the network and is not the box itself. */
int hx_valid_route(const char *address, const char *gateway, struct hx_error *err) HX_MUST;

#endif
