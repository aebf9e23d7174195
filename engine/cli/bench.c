/* hx-bench: prefill and decode rates of a model folder by context length; hx-bench engram. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

#include "base/rand.h"
#include "cli/bench.h"
#include "cli/bench_kernels.h"
#include "run/rank.h"

#include <hx/build_facts.h>

#define MAX_CONTEXTS 32
#define MAX_REPEAT   99
#define BLOCK_TOK    64

struct bench {
    const char *dir, *backend;
    int64_t context[MAX_CONTEXTS];
    int n_contexts, repeat, chunk, n_decode;
    bool json;
    struct hx_rank *rank;
    int32_t *tokens; /* [longest context + n_decode] */
    float *logits;   /* [n_vocab] */
};

static const char usage[] =
    "Usage: hx-bench [options] MODEL_DIR\n"
    "       hx-bench engram --help\n"
    "       hx-bench kernels --help\n"
    "       hx-bench step --help\n"
    "       hx-bench extrapolate --help\n"
    "Measures prefill and decode rates by context length: one warm-up, then the median of the\n"
    "repeats. Prompts are random tokens of a fixed seed.\n"
    "  --contexts N,N,...  prompt lengths (default 64,256,1024)\n"
    "  --decode N          tokens decoded behind each prompt (default 16)\n"
    "  --repeat N          measurements of each (1-99, default 3)\n"
    "  --chunk N           tokens of one prefill step (1-65536, default 2048)\n"
    "  --backend NAME      back end (default cpu)\n"
    "  --json              one JSON object a line instead of a table\n"
    "  --help              this text\n";

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- options ---- */

static bool read_number(const char *text, int64_t min, int64_t max, char stop, const char **end,
                        int64_t *out)
{
    return hx_bench_number(text, min, max, end, out) && (!**end || **end == stop);
}

bool hx_bench_number(const char *text, int64_t min, int64_t max, const char **end, int64_t *out)
{
    char *after;
    errno = 0;
    long long v = strtoll(text, &after, 10);
    if (after == text || errno != 0 || v < min || v > max)
        return false;
    *end = after;
    *out = v;
    return true;
}

static bool read_count(const char *name, const char *text, int64_t max, int *out)
{
    const char *end;
    int64_t v;
    if (!read_number(text, 1, max, 0, &end, &v)) {
        fprintf(stderr, "hx-bench: --%s is '%.40s': expected 1 to %lld\n", name, text,
                (long long)max);
        return false;
    }
    *out = (int)v;
    return true;
}

static bool read_contexts(struct bench *b, const char *text)
{
    b->n_contexts = 0;
    for (;; text++) {
        if (b->n_contexts == MAX_CONTEXTS ||
            !read_number(text, 1, INT32_MAX, ',', &text, &b->context[b->n_contexts])) {
            fprintf(stderr,
                    "hx-bench: --contexts: '%.40s': expected up to %d numbers of 1 or more, with "
                    "commas between\n",
                    text, MAX_CONTEXTS);
            return false;
        }
        b->n_contexts++;
        if (*text == 0)
            return true;
    }
}

/* 0: go on; else the exit code. *stop: leave with it. */
static int read_options(struct bench *b, int argc, char **argv, bool *stop)
{
    enum { CONTEXTS = 256, DECODE, REPEAT, CHUNK, BACKEND, JSON, HELP };
    static const struct option rows[] = {{"contexts", required_argument, NULL, CONTEXTS},
                                         {"decode", required_argument, NULL, DECODE},
                                         {"repeat", required_argument, NULL, REPEAT},
                                         {"chunk", required_argument, NULL, CHUNK},
                                         {"backend", required_argument, NULL, BACKEND},
                                         {"json", no_argument, NULL, JSON},
                                         {"help", no_argument, NULL, HELP},
                                         {NULL, 0, NULL, 0}};
    bool ok = true;
    *stop = true;
    for (int o; ok && (o = getopt_long(argc, argv, "", rows, NULL)) != -1;) {
        switch (o) {
        case CONTEXTS: ok = read_contexts(b, optarg); break;
        case DECODE: ok = read_count("decode", optarg, 100000, &b->n_decode); break;
        case REPEAT: ok = read_count("repeat", optarg, MAX_REPEAT, &b->repeat); break;
        case CHUNK: ok = read_count("chunk", optarg, 65536, &b->chunk); break;
        case BACKEND: b->backend = optarg; break;
        case JSON: b->json = true; break;
        case HELP: fputs(usage, stdout); return EX_OK;
        default: ok = false;
        }
    }
    if (ok && optind + 1 != argc) {
        fprintf(stderr, "hx-bench: expected one model folder\n");
        ok = false;
    }
    if (!ok) {
        fprintf(stderr, "Try 'hx-bench --help'.\n");
        return EX_USAGE;
    }
    b->dir = argv[optind];
    *stop = false;
    return 0;
}

/* ---- measuring ---- */

static int open_model(struct bench *b, struct hx_error *err)
{
    int64_t longest = 0;
    for (int i = 0; i < b->n_contexts; i++)
        longest = b->context[i] > longest ? b->context[i] : longest;
    longest += b->n_decode;
    struct hx_rank_options o = {
        .model_dir = b->dir,
        .backend = b->backend,
        .max_tok = b->chunk < longest ? b->chunk : (int)longest,
        .max_seq = 1,
        .max_context = longest,
        .kv = {.block_tok = BLOCK_TOK,
               .n_blocks = (int)((longest + BLOCK_TOK - 1) / BLOCK_TOK),
               .n_seqs = 1},
    };
    /* Before memory is taken for it. */
    struct hx_hparams hp;
    int r = hx_hparams_load(b->dir, &hp, err);
    if (r < 0)
        return r;
    if (longest > hp.max_positions)
        return hx_fail(err, -EINVAL,
                       "%lld tokens (--contexts and --decode) are more than the model's context of "
                       "%lld",
                       (long long)longest, (long long)hp.max_positions);
    r = hx_rank_open(&o, &b->rank, err);
    if (r < 0)
        return r;
    b->tokens = malloc((size_t)longest * sizeof(*b->tokens));
    b->logits = malloc((size_t)hp.n_vocab * sizeof(*b->logits));
    if (!b->tokens || !b->logits)
        return hx_fail(err, -ENOMEM, "out of memory");
    struct hx_rng rng;
    hx_rng_seed(&rng, 170);
    for (int64_t i = 0; i < longest; i++)
        b->tokens[i] = (int32_t)(hx_rng_uniform(&rng) * hp.n_vocab);
    return 0;
}

static int feed(struct bench *b, struct hx_kv_seq *kv, int64_t from, int n, int n_logits,
                struct hx_error *err)
{
    struct hx_step_seq s = {.kv = kv, .tokens = b->tokens + from, .n_tok = n, .n_logits = n_logits};
    return hx_rank_step(b->rank, &s, 1, b->logits, NULL, NULL, err);
}

/* seconds[0]: prefill of n_context tokens; seconds[1]: decode behind it. */
static int measure(struct bench *b, int64_t n_context, double seconds[2], struct hx_error *err)
{
    struct hx_kv_seq *kv = NULL;
    int r = hx_kv_seq_new(hx_rank_kv(b->rank), &kv, err);
    double start = now();
    for (int64_t at = 0; r == 0 && at < n_context;) {
        int64_t left = n_context - at;
        int n = left < b->chunk ? (int)left : b->chunk;
        r = feed(b, kv, at, n, at + n == n_context, err);
        at += n;
    }
    double middle = now();
    for (int i = 0; r == 0 && i < b->n_decode; i++)
        r = feed(b, kv, n_context + i, 1, 1, err);
    seconds[0] = middle - start;
    seconds[1] = now() - middle;
    hx_kv_seq_free(kv);
    return r;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const struct bench *b, const char *kind, int64_t context, int64_t tokens,
                      double seconds)
{
    double rate = (double)tokens / seconds;
    if (b->json)
        printf("{\"kind\":\"%s\",\"context\":%lld,\"tokens\":%lld,\"seconds\":%.6f,"
               "\"tok_per_s\":%.3f,\"backend\":\"%s\",\"layout\":\"%s\",\"build\":\"%s %s\"}\n",
               kind, (long long)context, (long long)tokens, seconds, rate, b->backend, b->backend,
               HX_BUILD_VERSION, HX_BUILD_VARIANT);
    else
        printf("%-8s %10lld %8lld %12.4f %12.2f\n", kind, (long long)context, (long long)tokens,
               seconds, rate);
    fflush(stdout);
}

static int measure_all(struct bench *b, struct hx_error *err)
{
    if (!b->json)
        printf("%-8s %10s %8s %12s %12s\n", "kind", "context", "tokens", "seconds", "tok/s");
    for (int i = 0; i < b->n_contexts; i++) {
        double seconds[2][MAX_REPEAT], one[2];
        for (int k = -1; k < b->repeat; k++) { /* -1: warm-up */
            int r = measure(b, b->context[i], one, err);
            if (r < 0)
                return hx_wrap(err, r, "context %lld", (long long)b->context[i]);
            for (int kind = 0; k >= 0 && kind < 2; kind++)
                seconds[kind][k] = one[kind];
        }
        for (int kind = 0; kind < 2; kind++)
            qsort(seconds[kind], (size_t)b->repeat, sizeof(double), by_value);
        print_row(b, "prefill", b->context[i], b->context[i], seconds[0][b->repeat / 2]);
        print_row(b, "decode", b->context[i], b->n_decode, seconds[1][b->repeat / 2]);
    }
    return 0;
}

int hx_bench_exit(int r)
{
    return r == 0         ? EX_OK
           : r == -EINVAL ? EX_DATAERR
           : r == -ENOENT ? EX_NOINPUT
           : r == -ENOMEM ? EX_OSERR
           : r == -EIO    ? EX_IOERR
                          : EX_SOFTWARE;
}

int main(int argc, char **argv)
{
    struct bench b = {.backend = "cpu",
                      .context = {64, 256, 1024},
                      .n_contexts = 3,
                      .repeat = 3,
                      .chunk = 2048,
                      .n_decode = 16};
    struct hx_error err = {0};
    bool stop;
    if (argc > 1 && strcmp(argv[1], "engram") == 0)
        return hx_bench_engram(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "kernels") == 0)
        return hx_bench_kernels(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "step") == 0)
        return hx_bench_step(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "extrapolate") == 0)
        return hx_bench_extrapolate(argc - 1, argv + 1);
    int code = read_options(&b, argc, argv, &stop);
    if (stop)
        return code;
    int r = open_model(&b, &err);
    if (r == 0)
        r = measure_all(&b, &err);
    if (r < 0)
        fprintf(stderr, "hx-bench: %s\n", err.text);
    hx_rank_close(b.rank);
    free(b.tokens);
    free(b.logits);
    return hx_bench_exit(r);
}
