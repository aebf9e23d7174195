/* hx-fetch lock: makes a lock file from the metadata of the repositories. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

#include <hx/build_facts.h>

#include "base/sha256.h"
#include "fetch/commands.h"
#include "fetch/lock_build.h"
#include "fetch/token.h"

struct request {
    const char *official, *pack, *out;
    struct hx_lock_build build;
};

static void note(void *ctx, bool urgent, const char *text)
{
    (void)ctx;
    (void)urgent;
    fprintf(stderr, "hx-fetch: %s\n", text);
}

/* Names of the repository without its owner, as the folder's name. */
static const char *model_name(const char *spec, char out[129])
{
    const char *slash = strchr(spec, '/'), *name = slash ? slash + 1 : spec;
    snprintf(out, 129, "%.*s", (int)strcspn(name, "@"), name);
    return out;
}

/* "65536", "64k", "64M" */
static bool parse_chunk(const char *text, uint64_t *out)
{
    char *end;
    if (strspn(text, "0123456789") == 0 || strlen(text) > 12)
        return false;
    unsigned long long v = strtoull(text, &end, 10);
    unsigned shift = *end == 'k' || *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift)
        end++;
    *out = v << shift;
    return *end == '\0' && v <= HX_LOCK_MAX_CHUNK && *out >= HX_LOCK_MIN_CHUNK &&
           *out <= HX_LOCK_MAX_CHUNK && *out % HX_LOCK_MIN_CHUNK == 0;
}

static int parse(struct hx_fetch_cli *cli, struct request *q, char name[129])
{
    const char *layout = "full", *chunk = NULL;
    const struct {
        const char *name;
        const char **to;
    } values[] = {{"--official", &q->official}, {"--exl3", &q->pack},  {"--out", &q->out},
                  {"--model", &q->build.model}, {"--layout", &layout}, {"--chunk", &chunk}};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (hx_fetch_take_value(cli, values[i].name, values[i].to) < 0)
            return EX_USAGE;
    }
    q->build.vision = !hx_fetch_take_flag(cli, "--without-vision");
    if (cli->n_args > 0)
        return hx_fetch_usage("lock: '%s' is not understood", cli->args[0]);
    if (!q->official || !q->pack || !q->out)
        return hx_fetch_usage("lock needs --official OWNER/NAME@COMMIT, --exl3 OWNER/NAME@COMMIT "
                              "and --out FILE");
    if (strcmp(layout, "full") == 0 || strcmp(layout, "pack") == 0)
        q->build.layout = HX_LAYOUT_FULL;
    else if (strcmp(layout, "experts") == 0)
        q->build.layout = HX_LAYOUT_EXPERTS;
    else
        return hx_fetch_usage("--layout: expected full or experts, found '%.40s'", layout);
    if (chunk && !parse_chunk(chunk, &q->build.chunk))
        return hx_fetch_usage("--chunk: expected bytes (k, M, G), a multiple of %u up to %u",
                              HX_LOCK_MIN_CHUNK, HX_LOCK_MAX_CHUNK);
    if (!q->build.model)
        q->build.model = model_name(q->official, name);
    return EX_OK;
}

static void report(const struct hx_lock *lock, const struct hx_select_counts *c,
                   const struct hx_repo *official, const struct hx_repo *pack, const char *path)
{
    char hex[HX_SHA256_HEX];
    fprintf(stderr,
            "hx-fetch: %zu files; %zu dense tensors, %zu of the vision tower, %zu expert "
            "matrices",
            lock->n_files, c->dense, c->vision, c->expert_matrices);
    for (int bits = 1; bits < 9; bits++) {
        if (c->bits[bits])
            fprintf(stderr, ", %zu of %d bits", c->bits[bits], bits);
    }
    fprintf(stderr, "; %zu other tensors of the pack are not used\n", c->pack_ignored);
    if (official->n_skipped + pack->n_skipped > 0)
        fprintf(stderr, "hx-fetch: %zu listed files have names that are not used\n",
                official->n_skipped + pack->n_skipped);
    hx_sha256_to_hex(lock->sha256, hex);
    fprintf(stderr,
            "hx-fetch: the hashes come from the repositories themselves; ranges of cut files have "
            "none yet, so the result will be marked \"not independently verified\"\n"
            "hx-fetch: wrote %s; to use it: hx-fetch run --lock %s --accept-lock %s\n",
            path, path, hex);
}

static int build(struct hx_fetch_cli *cli, struct request *q, struct hx_transfer *t,
                 struct hx_error *err)
{
    struct hx_repo *official = NULL, *pack = NULL;
    struct hx_lock *lock = NULL;
    struct hx_select_counts counts;
    int r = hx_repo_open(t, q->official, &official, err);
    if (r == 0)
        r = hx_repo_open(t, q->pack, &pack, err);
    /* Plain servers have no listing: another endpoint has to be named. */
    if (r == -ENOTSUP)
        err->domain = HX_DOMAIN_CONF;
    if (r == 0)
        r = hx_lock_build(&q->build, official, pack, &lock, &counts, err);
    if (r == 0)
        r = hx_lock_write(lock, q->out, err);
    if (r == 0 && cli->json) {
        char hex[HX_SHA256_HEX];
        hx_sha256_to_hex(lock->sha256, hex);
        printf("{\"files\":%zu,\"sha256\":\"%s\"}\n", lock->n_files, hex);
    }
    if (r == 0)
        report(lock, &counts, official, pack, q->out);
    hx_lock_free(lock);
    hx_repo_close(official);
    hx_repo_close(pack);
    return r;
}

int hx_fetch_cmd_lock(struct hx_fetch_cli *cli)
{
    struct hx_error err = {0};
    struct hx_fetch_endpoints endpoints = {0};
    struct hx_transfer_options options;
    struct hx_transfer *t = NULL;
    struct request q = {0};
    char name[129], created[32], *token = NULL;
    time_t now = time(NULL);
    struct tm tm;
    int status = parse(cli, &q, name);
    if (status != EX_OK)
        return status;
    strftime(created, sizeof(created), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    q.build.created = created;
    q.build.tool = "hx-fetch " HX_BUILD_VERSION;
    int r = hx_fetch_endpoints_parse(cli->conf.endpoints, &endpoints, &err);
    if (r < 0)
        err.domain = HX_DOMAIN_CONF;
    if (r == 0)
        r = hx_fetch_token_read(cli->conf.token_file, &token, &err);
    if (r == 0) {
        hx_fetch_transfer_options(&cli->conf, &endpoints, &options);
        options.token = token;
        options.note = note;
        r = hx_transfer_open(&options, &t, &err);
    }
    if (r == 0)
        r = build(cli, &q, t, &err);
    hx_transfer_close(t);
    hx_fetch_endpoints_done(&endpoints);
    hx_fetch_token_free(token);
    return hx_fetch_status(r, &err);
}
