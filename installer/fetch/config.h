/* Options of hx-fetch: fetch.conf, its folder of rendered files, and --section.key=value. */
#ifndef HX_FETCH_CONFIG_H
#define HX_FETCH_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/conf.h"
#include "fetch/transfer.h"

#define HX_FETCH_MAX_ENDPOINTS 16

struct hx_fetch_conf {
    /* [fetch] */
    char models[512];        /* incoming/<model>, <model> and the link current lie below it */
    char lock[512];          /* lock file */
    char groups[128];        /* "": all */
    char endpoints[2048];    /* "name=kind:url ...", kind hub or plain, in order of preference */
    char token_file[512];    /* "": the credential hub_token, if the service manager passes one */
    char ca_file[512];       /* "": the system's */
    char status[512];        /* progress for other programs; "": none */
    int64_t connections;     /* 1-32 */
    int64_t per_file;        /* 1-32 */
    int64_t rate;            /* bytes per second, 0: no cap */
    char window[64];         /* "22:00-06:00": local time in which to download; "": always */
    int64_t stall;           /* microseconds below 8 kB/s */
    int64_t writers;         /* threads */
    int64_t buffer;          /* bytes between socket and disk */
    int64_t sync_bytes;      /* data per sync batch */
    int64_t sync_time;       /* microseconds between syncs */
    bool direct;             /* O_DIRECT where the file system has it */
    int64_t reserve;         /* bytes of the file system that stay free; also at least 5 % */
    bool accept_licences;    /* the owner has read them */
    bool network_disks;      /* allow network file systems */
    char trusted_locks[512]; /* folder whose lock files the verified root vouches for */
    char release_key[512];   /* Ed25519 public key, PEM; "": no signature is accepted */
    char accept_lock[128];   /* SHA-256 of a lock file that the owner agreed to */
};

extern const struct hx_conf_option hx_fetch_options[];
extern const int hx_fetch_n_options;

/* The endpoints row taken apart. Free with hx_fetch_endpoints_done. -EINVAL names the entry. */
struct hx_fetch_endpoints {
    struct hx_endpoint e[HX_FETCH_MAX_ENDPOINTS];
    size_t n;
    char *text;
};
int hx_fetch_endpoints_parse(const char *value, struct hx_fetch_endpoints *out,
                             struct hx_error *err) HX_MUST;
void hx_fetch_endpoints_done(struct hx_fetch_endpoints *e);

/* Transfer options without the token (the caller adds it); e must outlive them. */
void hx_fetch_transfer_options(const struct hx_fetch_conf *conf, const struct hx_fetch_endpoints *e,
                               struct hx_transfer_options *out);

#endif
