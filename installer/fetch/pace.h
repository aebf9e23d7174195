/* How fast: the cap on all connections together, the time of day, the number of connections, and
 * the delay before another try. Pure; times are seconds of a clock that only goes forward. */
#ifndef HX_FETCH_PACE_H
#define HX_FETCH_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

/* Token bucket that may go into debt by one block: who takes when it is open pays afterwards. */
struct hx_bucket {
    double rate; /* bytes per second, 0: no cap */
    double level, last;
};
void hx_bucket_set(struct hx_bucket *b, double rate, double now);
bool hx_bucket_open(struct hx_bucket *b, double now);
void hx_bucket_take(struct hx_bucket *b, double n);
/* Seconds until it opens, 0 if it is open. */
double hx_bucket_wait(struct hx_bucket *b, double now);

/* "22:00-06:00" in minutes of the day; from == to: always. */
struct hx_day_window {
    int from, to;
};
/* "" is always. -EINVAL says what is expected. */
int hx_day_window_parse(const char *text, struct hx_day_window *out, struct hx_error *err);
/* Seconds until it opens, 0 while it is open; second_of_day: 0-86399, local time. */
int hx_day_window_wait(const struct hx_day_window *w, int second_of_day);

/* Number of connections: one more while the total rises by more than 5 % a step, one less when a
 * server asks to slow down (429, 503). */
struct hx_adapt {
    unsigned limit, max;
    double step_start, quiet_until;
    uint64_t step_bytes;
    double best; /* bytes per second of the step before the last change */
    bool trying; /* the last step ran with one more than before */
};
void hx_adapt_init(struct hx_adapt *a, unsigned max, double now);
/* Call often. bytes: total so far; busy: at least `limit` connections were wanted. */
void hx_adapt_step(struct hx_adapt *a, double now, uint64_t bytes, bool busy);
void hx_adapt_slow_down(struct hx_adapt *a, double now);

/* Upper end of the delay before try number n (from 1): base, doubling, at most cap. The delay is
 * uniform between 0 and it. */
double hx_backoff_range(unsigned n, double base, double cap);

#endif
