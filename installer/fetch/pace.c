#include "fetch/pace.h"

#include <string.h>

#define STEP_S   2.0
#define PROBE_S  60.0 /* a line may become faster: try one more connection so often */
#define RISE     1.05
#define START_AT 4u

/* ---- cap ------------------------------------------------------------------------------------- */

void hx_bucket_set(struct hx_bucket *b, double rate, double now)
{
    b->rate = rate;
    b->level = 0;
    b->last = now;
}

static void refill(struct hx_bucket *b, double now)
{
    if (now > b->last)
        b->level += (now - b->last) * b->rate;
    b->last = now;
    /* A pause earns at most a tenth of a second. */
    if (b->level > b->rate / 10)
        b->level = b->rate / 10;
}

bool hx_bucket_open(struct hx_bucket *b, double now)
{
    if (b->rate <= 0)
        return true;
    refill(b, now);
    return b->level >= 0;
}

void hx_bucket_take(struct hx_bucket *b, double n)
{
    if (b->rate > 0)
        b->level -= n;
}

double hx_bucket_wait(struct hx_bucket *b, double now)
{
    return hx_bucket_open(b, now) ? 0 : -b->level / b->rate;
}

/* ---- time of day ----------------------------------------------------------------------------- */

static bool two_digits(const char *s, int max, int *out)
{
    if (s[0] < '0' || s[0] > '9' || s[1] < '0' || s[1] > '9')
        return false;
    *out = (s[0] - '0') * 10 + s[1] - '0';
    return *out <= max;
}

int hx_day_window_parse(const char *text, struct hx_day_window *out, struct hx_error *err)
{
    int h0, m0, h1, m1;
    if (text[0] == '\0') {
        *out = (struct hx_day_window){0, 0};
        return 0;
    }
    if (strlen(text) != 11 || text[2] != ':' || text[5] != '-' || text[8] != ':' ||
        !two_digits(text, 23, &h0) || !two_digits(text + 3, 59, &m0) ||
        !two_digits(text + 6, 23, &h1) || !two_digits(text + 9, 59, &m1))
        return hx_fail(err, -EINVAL, "[fetch] window: '%.40s': expected hh:mm-hh:mm", text);
    *out = (struct hx_day_window){h0 * 60 + m0, h1 * 60 + m1};
    return 0;
}

int hx_day_window_wait(const struct hx_day_window *w, int second_of_day)
{
    if (w->from == w->to)
        return 0;
    int from = w->from * 60, to = w->to * 60, s = second_of_day;
    bool open = from < to ? s >= from && s < to : s >= from || s < to;
    return open ? 0 : (from - s + 86400) % 86400;
}

/* ---- connections ----------------------------------------------------------------------------- */

void hx_adapt_init(struct hx_adapt *a, unsigned max, double now)
{
    *a = (struct hx_adapt){.limit = max < START_AT ? max : START_AT, .max = max, .step_start = now};
}

static void new_step(struct hx_adapt *a, double now, uint64_t bytes)
{
    a->step_start = now;
    a->step_bytes = bytes;
}

void hx_adapt_step(struct hx_adapt *a, double now, uint64_t bytes, bool busy)
{
    double s = now - a->step_start;
    if (s < STEP_S)
        return;
    double rate = (double)(bytes - a->step_bytes) / s;
    new_step(a, now, bytes);
    if (!busy || now < a->quiet_until) {
        a->trying = false;
        return;
    }
    if (a->trying && rate <= a->best * RISE) {
        /* It brought nothing: back, and no more for a while. */
        a->limit--;
        a->trying = false;
        a->quiet_until = now + PROBE_S;
        return;
    }
    a->best = rate;
    a->trying = a->limit < a->max;
    a->limit += a->trying;
}

void hx_adapt_slow_down(struct hx_adapt *a, double now)
{
    /* One answer of each second counts: eight connections hear the same request at once. */
    if (now < a->quiet_until - PROBE_S + 1)
        return;
    a->limit -= a->limit > 1;
    a->trying = false;
    a->quiet_until = now + PROBE_S;
}

double hx_backoff_range(unsigned n, double base, double cap)
{
    double d = base;
    while (n-- > 1 && d < cap)
        d *= 2;
    return d < cap ? d : cap;
}
