/* Encoding speed of whole files, one line of JSON each.
 *
 *   bench_tokenizer TOKENIZER.json FILE...
 *
 * seconds: CPU time of the fastest of at least three calls, as other work on the machine only ever
 * adds; first_s: of the first one, into an empty list with cold caches. sha256: of the ids as
 * little-endian 32-bit integers. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hx/tokenizer.h>

#include "base/file.h"
#include "base/sha256.h"

#define MAX_FILE  (256u << 20)
#define MIN_CALLS 3
#define MIN_TIME  0.5 /* seconds of CPU time for a file */

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int time_file(const struct hx_tokenizer *t, const char *path, struct hx_error *err)
{
    const struct hx_encode_options opt = {.parse_special = true};
    struct hx_ids ids = {0};
    uint8_t digest[HX_SHA256_BYTES];
    char *text = NULL, hex[HX_SHA256_HEX];
    size_t len;
    double best = 1e30, first = 0, total = 0;
    int r = hx_file_read(path, MAX_FILE, &text, &len, err);
    for (int call = 0; r == 0 && (call < MIN_CALLS || total < MIN_TIME); call++) {
        ids.len = 0;
        double start = cpu_seconds();
        r = hx_tokenizer_encode(t, text, len, &opt, &ids, err);
        double took = cpu_seconds() - start;
        total += took;
        if (call == 0)
            first = took;
        if (took < best)
            best = took;
    }
    if (r == 0 && (r = hx_sha256_data(ids.id, ids.len * sizeof(*ids.id), digest)) < 0)
        r = hx_fail(err, r, "no SHA-256");
    if (r == 0) {
        hx_sha256_to_hex(digest, hex);
        printf("{\"file\":\"%s\",\"bytes\":%zu,\"tokens\":%zu,\"seconds\":%.6f,\"first_s\":%.6f,"
               "\"mb_s\":%.2f,\"sha256\":\"%s\"}\n",
               path, len, ids.len, best, first, (double)len / best * 1e-6, hex);
    }
    hx_ids_done(&ids);
    free(text);
    return r;
}

int main(int argc, char **argv)
{
    struct hx_tokenizer *t = NULL;
    struct hx_error err;
    if (argc < 3) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER.json FILE...\n");
        return 64;
    }
    int r = hx_tokenizer_open(argv[1], &t, &err);
    for (int i = 2; r == 0 && i < argc; i++)
        r = time_file(t, argv[i], &err);
    hx_tokenizer_close(t);
    if (r < 0)
        fprintf(stderr, "bench_tokenizer: %s\n", err.text);
    return r < 0;
}
