/* The system's SSH client against a machine, with a key and a list of known hosts of the test's
 * own; no file of the user who runs the test is read or written. */
#ifndef HX_TESTS_IMAGE_SSH_H
#define HX_TESTS_IMAGE_SSH_H

#include "image/child.h"

struct hx_ssh {
    char folder[200]; /* holds `key`, `key.pub`, `known` */
    unsigned port;    /* on 127.0.0.1 */
    const char *user;
    char public_key[512]; /* one line, as in authorized_keys, without newline */
    /* Connection that commands of `master_user` share: a login costs an emulated machine seconds.
     */
    bool share;
    struct hx_child master;
    const char *master_user;
};

/* Makes an Ed25519 key in the folder, or takes the one that is there. */
int hx_ssh_make_key(struct hx_ssh *ssh, const char *folder, struct hx_error *err) HX_MUST;
/* Runs a command there; *out gets both outputs, *code its exit status (255: the client's own
 * failure). */
int hx_ssh_run(const struct hx_ssh *ssh, const char *command, struct hx_buf *out, int *code,
               int64_t deadline, struct hx_error *err) HX_MUST;
/* Waits until the server's first line comes. Precise to a fraction of a second: tries overlap,
 * since one that the machine does not hear yet is repeated by its network in ever longer steps. */
int hx_ssh_wait_banner(const struct hx_ssh *ssh, int64_t deadline, struct hx_error *err) HX_MUST;
/* Ends the shared connection, if there is one; before the machine starts anew. */
void hx_ssh_close(struct hx_ssh *ssh);
/* Tries until a login works; then, with `share`, commands of this user share one
 * connection. -ETIMEDOUT with what
 * the client said last. */
int hx_ssh_wait(struct hx_ssh *ssh, int64_t deadline, struct hx_error *err) HX_MUST;
/* What the server offers to somebody without a key: "publickey" and so on, as it says itself. */
int hx_ssh_methods(const struct hx_ssh *ssh, const char *user, struct hx_buf *out, int64_t deadline,
                   struct hx_error *err) HX_MUST;
/* ssh -N -L 127.0.0.1:local:to as a child of its own. */
int hx_ssh_tunnel(const struct hx_ssh *ssh, struct hx_child *tunnel, unsigned local, const char *to,
                  const char *log, struct hx_error *err) HX_MUST;

#endif
