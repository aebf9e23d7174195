/* The screens of the stick: keyboard, check, what to do, disk, confirm, progress, done. Disks are
 * listed and written by hx-install; here is only what a person sees and answers. */
#ifndef HX_SETUP_INSTALLER_H
#define HX_SETUP_INSTALLER_H

#include "setup/setup.h"

/* Whether this machine was started from the stick. */
bool hx_installer_mode(const struct hx_setup *s);

/* answers: file that the installed system's first start gets, NULL: none. *try_out: the person
 * wants to try the system without installing it; the caller goes on with the first start's
 * questions. */
enum hx_ui_reply hx_installer_run(struct hx_setup *s, const char *answers, bool *try_out,
                                  struct hx_error *err);

#endif
