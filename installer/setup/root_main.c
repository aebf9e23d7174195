/* hx-root: one command for the account admin, as root. hx-root.socket starts it for each call of
 * `hx root`. */
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <sysexits.h>

#include "setup/relay.h"

#define CONNECTION 3 /* where the service manager puts it */

int main(int argc, char **argv)
{
    struct hx_error err;
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "hx-root: takes no words: hx-root.socket starts it\n");
        return EX_USAGE;
    }
    signal(SIGPIPE, SIG_IGN);
    const struct passwd *admin = getpwnam("admin");
    if (hx_relay_serve(CONNECTION, admin ? admin->pw_uid : 0, &err) < 0) {
        fprintf(stderr, "hx-root: %s\n", err.text);
        return EX_NOPERM;
    }
    return EX_OK;
}
