/* hx-bench extrapolate: what the kernels measured on another card would take on the product's, by
 * the rules of spec performance.md 4.4. A prediction: every line says so. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "cli/bench.h"

#define LABEL      "extrapolated, not run on CMP 170HX"
#define MAX_LINES  10000
#define MAX_LENGTH 65536
#define N_SM       74
#define SMALL      10e6 /* bytes below which a product waits more than it reads (docs/kernels.md) */
#define SLOWER     1.4  /* waits by the ratio of the clocks */
/* Weights of one expert of the released shape. */
#define EXPERT (3.0 * 5120 * 2304)

static const char usage[] = "Usage: hx-bench extrapolate [--json] FILE|-\n"
                            "Reads the JSON lines of hx-bench kernels, measured on one card, and "
                            "shows what they would be on\n"
                            "a CMP 170HX: from a fast card (1.41 GHz, 1.67 TB/s read) to a slow "
                            "one (1.32 GHz, 1.42 TB/s).\n"
                            "  --json  one JSON object a line instead of a table\n"
                            "  --help  this text\n";

/* Two cards of the product's kind. */
struct card {
    double ghz, read; /* read: bytes a second */
};
static const struct card fast = {1.41, 1.67e12}, slow = {1.32, 1.42e12};

struct measured {
    char name[64];
    int rows, bits;
    double us, bytes, of_read, weights, per_clock; /* weights 0: no EXL3 */
};

/* ---- the rules ---- */

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double predict(const struct measured *m, const struct card *c, bool is_slow)
{
    double memory = m->bytes / c->read * 1e6;
    if (m->weights > 0) /* 2: weights per clock and multiprocessor carry over */
        return most(memory, m->weights / (m->per_clock * N_SM * c->ghz * 1e9) * 1e6);
    if (m->bytes >= SMALL) /* 1: the share of the read bandwidth does */
        return memory / m->of_read;
    return most(memory, is_slow ? m->us * SLOWER : m->us); /* 4: microseconds do */
}

static const char *rule(const struct measured *m)
{
    if (m->weights == 0)
        return m->bytes >= SMALL ? "memory" : "latency";
    double alu = m->weights / (m->per_clock * N_SM * slow.ghz * 1e9);
    return alu > m->bytes / slow.read ? "EXL3, decoding" : "EXL3, memory";
}

/* ---- lines ---- */

static bool positive(struct hx_jv object, const char *key, double max, double *out)
{
    double v;
    if (!hx_jv_double(hx_jv_get(object, key), &v) || !(v > 0 && v <= max))
        return false;
    *out = v;
    return true;
}

static int missing(const char *key, struct hx_error *err)
{
    return hx_fail(err, -EINVAL, "'%s' is missing or no positive number", key);
}

static int read_experts(struct hx_jv o, struct measured *m, struct hx_error *err)
{
    double bits, distinct, gb_s;
    if (!positive(o, "bits", 8, &bits))
        return missing("bits", err);
    if (!positive(o, "distinct", 4096, &distinct))
        return missing("distinct", err);
    if (!positive(o, "weights_clk_sm", 1024, &m->per_clock))
        return missing("weights_clk_sm", err);
    if (!positive(o, "gb_s", 1e6, &gb_s))
        return missing("gb_s", err);
    m->bits = (int)bits;
    m->weights = distinct * EXPERT;
    m->bytes = gb_s * 1e9 * m->us * 1e-6;
    snprintf(m->name, sizeof(m->name), "experts, %d bits", m->bits);
    return 0;
}

static int read_linear(struct hx_jv o, struct measured *m, struct hx_error *err)
{
    size_t len;
    const char *name = hx_jv_str(hx_jv_get(o, "name"), &len);
    if (!name || len == 0 || len >= sizeof(m->name))
        return hx_fail(err, -EINVAL, "'name' is missing or too long");
    if (!positive(o, "bytes", 1e15, &m->bytes))
        return missing("bytes", err);
    for (size_t i = 0; i < len; i++)
        m->name[i] = (unsigned char)name[i] < 32 || name[i] == 127 ? '?' : name[i];
    return 0;
}

/* 1: a measurement; 0: a line of another kind. */
static int read_line(struct hx_jv o, double *read_rate, struct measured *m, struct hx_error *err)
{
    struct hx_jv op = hx_jv_get(o, "op");
    double rows, v;
    memset(m, 0, sizeof(*m));
    if (hx_jv_type(o) != HX_JSON_OBJECT || !op.doc)
        return hx_fail(err, -EINVAL,
                       "expected an object with 'op', as hx-bench kernels --json "
                       "prints it");
    if (hx_jv_str_is(op, "read")) {
        if (!positive(o, "gb_s", 1e6, &v))
            return missing("gb_s", err);
        *read_rate = v * 1e9;
        return 0;
    }
    bool experts = hx_jv_str_is(op, "experts");
    if (!experts && !hx_jv_str_is(op, "linear"))
        return 0;
    if (!positive(o, "rows", 1e6, &rows))
        return missing("rows", err);
    if (!positive(o, "us", 1e9, &m->us))
        return missing("us", err);
    if (!positive(o, "of_read", 2, &m->of_read))
        return missing("of_read", err);
    m->rows = (int)rows;
    int r = experts ? read_experts(o, m, err) : read_linear(o, m, err);
    return r < 0 ? r : 1;
}

static void print(const struct measured *m, bool json)
{
    double low = predict(m, &fast, false), high = predict(m, &slow, true);
    if (json) {
        struct hx_buf out = HX_BUF_INIT(4096);
        struct hx_json_writer w;
        hx_jw_init(&w, &out, false);
        hx_jw_str(&w, m->name);
        printf("{\"name\":%.*s,\"rows\":%d,\"measured_us\":%.2f,\"bytes\":%.0f,\"low_us\":%.1f,"
               "\"high_us\":%.1f,\"rule\":\"%s\",\"label\":\"%s\"}\n",
               (int)out.len, out.data, m->rows, m->us, m->bytes, low, high, rule(m), LABEL);
        hx_buf_done(&out);
    } else {
        printf("%-18s %4d %12.0f %10.2f %10.1f - %-8.1f %s\n", m->name, m->rows, m->bytes, m->us,
               low, high, rule(m));
    }
}

static int run(FILE *f, const char *name, bool json, struct hx_error *err)
{
    const struct hx_json_limits limits = {MAX_LENGTH, 256, 8, 0};
    char *line = NULL;
    size_t room = 0;
    double read_rate = 0;
    int n = 0, n_line = 0, r = 0;
    if (!json)
        printf("%s\n%-18s %4s %12s %10s %21s %s\n", LABEL, "kernel", "rows", "bytes", "measured us",
               "CMP 170HX us", "rule");
    for (ssize_t len; r >= 0 && (len = getline(&line, &room, f)) > 0;) {
        struct hx_json *doc = NULL;
        struct measured m;
        n_line++;
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            len--;
        if (len == 0)
            continue;
        if (n_line > MAX_LINES || len > MAX_LENGTH)
            r = hx_fail(err, -EINVAL, "more than %d lines, or one longer than %d", MAX_LINES,
                        MAX_LENGTH);
        if (r >= 0)
            r = hx_json_parse(line, (size_t)len, &limits, &doc, err);
        if (r >= 0)
            r = read_line(hx_json_root(doc), &read_rate, &m, err);
        if (r == 1 && read_rate == 0)
            r = hx_fail(err, -EINVAL,
                        "a kernel before the line of the card's read bandwidth "
                        "('op' 'read')");
        if (r == 1)
            print(&m, json);
        n += r == 1;
        hx_json_free(doc);
        if (r < 0)
            hx_wrap(err, r, "%.200s: line %d", name, n_line);
    }
    if (r >= 0 && ferror(f))
        r = hx_fail(err, -EIO, "%.200s: cannot read", name);
    free(line);
    if (r >= 0 && n == 0)
        r = hx_fail(err, -EINVAL, "%.200s: no line of hx-bench kernels --json with a kernel", name);
    if (r >= 0 && !json)
        printf("%d kernels; measured on a card that reads %.0f GB/s; joins are not extrapolated\n",
               n, read_rate / 1e9);
    return r < 0 ? r : 0;
}

int hx_bench_extrapolate(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct hx_error err = {0};
    bool json = false;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            return EX_OK;
        }
        if (c != 'j') {
            fputs("Try 'hx-bench extrapolate --help'.\n", stderr);
            return EX_USAGE;
        }
        json = true;
    }
    if (optind + 1 != argc) {
        fputs("hx-bench: extrapolate: expected one file, or - for standard input\n"
              "Try 'hx-bench extrapolate --help'.\n",
              stderr);
        return EX_USAGE;
    }
    const char *name = argv[optind];
    FILE *f = strcmp(name, "-") == 0 ? stdin : fopen(name, "re");
    int r = f ? run(f, name, json, &err) : hx_fail_errno(&err, errno, "%.200s: cannot open", name);
    if (f && f != stdin)
        fclose(f);
    if (r < 0)
        fprintf(stderr, "hx-bench: %s\n", err.text);
    return hx_bench_exit(r);
}
