/* One setup at a time: the wizard is on tty1 and on the serial line at once, and anyone who logs in
 * may start it too. */
#ifndef HX_SETUP_LOCK_H
#define HX_SETUP_LOCK_H

#include "setup/setup.h"

/* Takes the lock and says so in its file (process, terminal). -EBUSY: another holds it, holder is
 * then a line about it. */
int hx_setup_lock(const struct hx_setup *s, int *fd, char *holder, size_t size,
                  struct hx_error *err) HX_MUST;
void hx_setup_unlock(int fd);

#endif
