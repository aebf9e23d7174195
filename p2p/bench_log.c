/* Parses the matrices of p2pBandwidthLatencyTest. */
#include "bench_log.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "hw/root.h"
#include "hw/variant.h"

/* One line: up to most numbers behind the row's own number; how many there were, -1 if the line is
 * no row. */
static int take_row(const char *line, size_t len, int row, double *out, int most)
{
    int n = -1;
    for (size_t at = 0; at < len;) {
        while (at < len && (line[at] == ' ' || line[at] == '\t' || line[at] == '\r'))
            at++;
        size_t from = at;
        while (at < len && line[at] != ' ' && line[at] != '\t' && line[at] != '\r')
            at++;
        double v;
        if (at == from)
            break;
        if (!hx_parse_real(line + from, at - from, &v))
            return -1;
        if (n < 0) {
            if (v != row)
                return -1;
            n = 0;
        } else if (n < most) {
            out[n++] = v;
        } else {
            return -1;
        }
    }
    return n;
}

static size_t line_length(const char *text, size_t len, size_t at)
{
    const char *end = memchr(text + at, '\n', len - at);
    return end ? (size_t)(end - text) - at : len - at;
}

/* The square below the first line that starts with title. 0 if it is not there or broken. */
static int take_matrix(const char *text, size_t len, const char *title,
                       double out[HX_BENCH_CARDS][HX_BENCH_CARDS])
{
    size_t tlen = strlen(title);
    int rows = -1, side = 0; /* -1: still looking, then the column heads, then rows */
    bool heads = false;
    for (size_t at = 0, n; at < len; at += n + 1) {
        n = line_length(text, len, at);
        if (rows < 0) {
            if (n >= tlen && memcmp(text + at, title, tlen) == 0)
                rows = 0;
            continue;
        }
        if (!heads) {
            heads = true;
            continue;
        }
        if (rows == HX_BENCH_CARDS)
            return 0;
        int got = take_row(text + at, n, rows, out[rows], HX_BENCH_CARDS);
        if (got < 1)
            break;
        if (rows == 0)
            side = got;
        if (got != side)
            return 0;
        rows++;
    }
    return rows > 0 && rows == side ? side : 0;
}

int hx_bench_log_parse(const char *text, size_t len, struct hx_bench_log *out, struct hx_error *err)
{
    double us[HX_BENCH_CARDS][HX_BENCH_CARDS];
    memset(out, 0, sizeof(*out));
    int n = take_matrix(text, len, "Unidirectional P2P=Disabled Bandwidth Matrix", out->off);
    if (n < 2)
        return hx_fail(err, -EINVAL,
                       "no matrix 'Unidirectional P2P=Disabled' of two or more cards");
    if (take_matrix(text, len, "Unidirectional P2P=Enabled Bandwidth", out->on) != n)
        return hx_fail(err, -EINVAL, "no matrix 'Unidirectional P2P=Enabled' of %d cards", n);
    bool has_us = take_matrix(text, len, "P2P=Enabled Latency", us) == n;
    out->n = n;
    out->min_on = out->ratio_on_off = INFINITY;
    out->latency_on_us = has_us ? 0 : NAN;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            if (i == j)
                continue;
            out->min_on = fmin(out->min_on, out->on[i][j]);
            if (out->off[i][j] > 0)
                out->ratio_on_off = fmin(out->ratio_on_off, out->on[i][j] / out->off[i][j]);
            if (has_us)
                out->latency_on_us = fmax(out->latency_on_us, us[i][j]);
        }
    }
    if (isinf(out->ratio_on_off))
        return hx_fail(err, -EINVAL, "the matrix without P2P has no rate above 0");
    out->verdict = out->ratio_on_off < hx_hw_limits.peer_of_staged ? "slow" : "fast";
    return 0;
}
