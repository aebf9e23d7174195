/* One setup at a time: the wizard is on tty1 and on the serial line at once, and anyone who logs in
 * may start it too. */
#ifndef HX_SETUP_LOCK_H
#define HX_SETUP_LOCK_H

#include <stdio.h>

#include "setup/setup.h"

/* Takes the lock, says so in its file (process, terminal) and keeps it in s->lock_fd. -EBUSY:
 * another holds it, holder is then a line about it. */
int hx_setup_lock(struct hx_setup *s, char *holder, size_t size, struct hx_error *err) HX_MUST;
void hx_setup_unlock(struct hx_setup *s);

/* Says which screen is open, for those who watch. Nothing without the lock. */
void hx_setup_lock_screen(const struct hx_setup *s, int number, int total, const char *title);

/* The same, while answers are put in force or a disk is written: nobody may take over now. */
void hx_setup_lock_busy(const struct hx_setup *s, const char *what);

/* For a second console: shows on out, in lines, which screen is open at the holder's. From the
 * terminal `in` it reads lines: q leaves, t ends the holder (SIGTERM) unless that is busy. Ends
 * with the lock taken (0), or when the person leaves (-ECANCELED). */
int hx_setup_watch(struct hx_setup *s, int in, FILE *out, struct hx_error *err) HX_MUST;

#endif
