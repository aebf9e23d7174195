#include "fetch/config.h"

#include <stdlib.h>
#include <string.h>

#define ROW(k, t, field, lo, hi, def, help)                                                        \
    {                                                                                              \
        "fetch", k, t, offsetof(struct hx_fetch_conf, field), lo, hi, def, NULL, help              \
    }

const struct hx_conf_option hx_fetch_options[] = {
    ROW("models", HX_CONF_STRING, models, 0, 511, "/srv/models",
        "folder of the models; downloads grow below incoming/"),
    ROW("lock", HX_CONF_STRING, lock, 0, 511, "", "lock file: what to download, byte by byte"),
    ROW("groups", HX_CONF_STRING, groups, 0, 127, "",
        "parts to download, separated by commas: small dense experts engram; empty: all"),
    ROW("endpoints", HX_CONF_STRING, endpoints, 0, 2047, "",
        "servers in order of preference: name=hub:https://... or name=plain:https://..."),
    ROW("token_file", HX_CONF_STRING, token_file, 0, 511, "",
        "file of mode 0600 with the token for the endpoints; empty: the credential hub_token"),
    ROW("ca_file", HX_CONF_STRING, ca_file, 0, 511, "",
        "certificates to trust, PEM; empty: the system's"),
    ROW("status", HX_CONF_STRING, status, 0, 511, "/run/hx170/fetch.json",
        "progress for other programs; empty: none"),
    ROW("connections", HX_CONF_INT, connections, 1, 32, "8", "connections at once"),
    ROW("per_file", HX_CONF_INT, per_file, 1, 32, "4", "connections at once for one file"),
    ROW("rate", HX_CONF_SIZE, rate, 0, 1e12, "0", "bytes per second over all; 0: no cap"),
    ROW("window", HX_CONF_STRING, window, 0, 63, "",
        "local time in which to download, such as 22:00-06:00; empty: always"),
    ROW("stall", HX_CONF_TIME, stall, 1e6, 600e6, "30s",
        "a connection below 8 kB/s for so long is given up"),
    ROW("writers", HX_CONF_INT, writers, 1, 16, "2", "threads that hash and write"),
    ROW("buffer", HX_CONF_SIZE, buffer, 1 << 20, 1 << 30, "64M", "memory between network and disk"),
    ROW("sync_bytes", HX_CONF_SIZE, sync_bytes, 1 << 12, 4294967296.0, "256M",
        "data written between two syncs: what a power cut may cost"),
    ROW("sync_time", HX_CONF_TIME, sync_time, 1e4, 600e6, "10s", "longest time between two syncs"),
    ROW("direct", HX_CONF_BOOL, direct, 0, 0, "yes",
        "write past the page cache where the file system can"),
    ROW("reserve", HX_CONF_SIZE, reserve, 0, 1e15, "10G",
        "space of a file system that stays free, at least 5 % of it; 0: none"),
    ROW("accept_licences", HX_CONF_BOOL, accept_licences, 0, 0, "no",
        "the owner has read and accepted the licences of the sources"),
    ROW("network_disks", HX_CONF_BOOL, network_disks, 0, 0, "no",
        "allow a network file system as the target"),
    ROW("trusted_locks", HX_CONF_STRING, trusted_locks, 0, 511, "/usr/share/hx170/locks",
        "lock files in this folder need no signature and no consent"),
    ROW("release_key", HX_CONF_STRING, release_key, 0, 511, "/usr/share/hx170/release.pub",
        "Ed25519 public key, PEM, for lock files from elsewhere; empty: none"),
    ROW("accept_lock", HX_CONF_STRING, accept_lock, 0, 127, "",
        "SHA-256 of an unsigned lock file that the owner agreed to"),
};
const int hx_fetch_n_options = (int)(sizeof(hx_fetch_options) / sizeof(hx_fetch_options[0]));

/* A password that somebody wrote into an address stays out of messages. */
static int bad_endpoint(struct hx_error *err, const char *entry, const char *why)
{
    const char *user = strstr(entry, "://"), *at = user ? strrchr(user, '@') : NULL;
    return hx_fail(err, -EINVAL,
                   "[fetch] endpoints: '%.*s%.100s': %s; expected name=hub:https://host or "
                   "name=plain:https://host/folder",
                   at ? (int)(user + 3 - entry) : 100, entry, at ? at : "", why);
}

static bool plain_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!(s[i] >= 'a' && s[i] <= 'z') && !(s[i] >= '0' && s[i] <= '9') && s[i] != '-' &&
            s[i] != '_')
            return false;
    }
    return n > 0 && n <= 32;
}

/* "name=kind:url" in place. */
static int parse_endpoint(char *entry, struct hx_endpoint *out, struct hx_error *err)
{
    char *equals = strchr(entry, '=');
    if (!equals || !plain_name(entry, (size_t)(equals - entry)))
        return bad_endpoint(err, entry,
                            "the name must be 1 to 32 small letters, digits, '-' or '_'");
    char *url = strchr(equals, ':');
    bool hub = url && url - equals == 4 && strncmp(equals + 1, "hub", 3) == 0;
    if (!url || (!hub && strncmp(equals + 1, "plain:", 6) != 0))
        return bad_endpoint(err, entry, "the kind must be hub or plain");
    url++;
    const char *host = strncmp(url, "https://", 8) == 0  ? url + 8
                       : strncmp(url, "http://", 7) == 0 ? url + 7
                                                         : NULL;
    if (!host || *host == '\0' || *host == '/')
        return bad_endpoint(err, entry, "the address must start with https:// or http://");
    /* A password in an address would end up in logs. */
    if (strpbrk(host, "@?#\\\"<>"))
        return bad_endpoint(err, entry, "the address may not hold a user name, query or fragment");
    for (size_t n = strlen(url); n > 0 && url[n - 1] == '/'; n--)
        url[n - 1] = '\0';
    *equals = '\0';
    out->name = entry;
    out->url = url;
    out->kind = hub ? HX_ENDPOINT_HUB : HX_ENDPOINT_PLAIN;
    return 0;
}

int hx_fetch_endpoints_parse(const char *value, struct hx_fetch_endpoints *out,
                             struct hx_error *err)
{
    struct hx_fetch_endpoints e = {.text = strdup(value)};
    if (!e.text)
        return hx_fail(err, -ENOMEM, "out of memory");
    char *rest = e.text;
    int r = 0;
    for (char *entry; r == 0 && (entry = strsep(&rest, " \t"));) {
        if (*entry == '\0')
            continue;
        if (e.n == HX_FETCH_MAX_ENDPOINTS) {
            r = hx_fail(err, -EINVAL, "[fetch] endpoints: more than %d", HX_FETCH_MAX_ENDPOINTS);
            break;
        }
        r = parse_endpoint(entry, &e.e[e.n], err);
        for (size_t i = 0; r == 0 && i < e.n; i++) {
            if (strcmp(e.e[i].name, e.e[e.n].name) == 0)
                r = hx_fail(err, -EINVAL, "[fetch] endpoints: the name '%s' is there twice",
                            e.e[i].name);
        }
        e.n += r == 0;
    }
    if (r == 0 && e.n == 0)
        r = hx_fail(err, -EINVAL,
                    "[fetch] endpoints is empty: name at least one server in fetch.conf or with "
                    "--fetch.endpoints=name=hub:https://...");
    if (r < 0)
        hx_fetch_endpoints_done(&e);
    else
        *out = e;
    return r;
}

void hx_fetch_endpoints_done(struct hx_fetch_endpoints *e)
{
    if (!e)
        return;
    free(e->text);
    *e = (struct hx_fetch_endpoints){0};
}

void hx_fetch_transfer_options(const struct hx_fetch_conf *conf, const struct hx_fetch_endpoints *e,
                               struct hx_transfer_options *out)
{
    *out = (struct hx_transfer_options){
        .endpoints = e->e,
        .n_endpoints = e->n,
        .ca_file = conf->ca_file[0] ? conf->ca_file : NULL,
        .connections = (unsigned)conf->connections,
        .per_file = (unsigned)conf->per_file,
        .rate = (uint64_t)conf->rate,
        .stall_s = (unsigned)(conf->stall / 1000000),
    };
}
