/* Who vouches for a lock file (decisions.md 24). */
#ifndef HX_FETCH_TRUST_H
#define HX_FETCH_TRUST_H

#include <hx/error.h>

#include "fetch/lock.h"

enum hx_lock_voucher {
    HX_VOUCHER_IMAGE,     /* lies in the trusted folder, which only root can write */
    HX_VOUCHER_SIGNATURE, /* <path>.sig: 64 bytes, Ed25519 of the release key over the file */
    HX_VOUCHER_OWNER,     /* the owner named its SHA-256 */
};

/* trusted_dir and release_key may be "" (none); accepted: hexadecimal SHA-256, "" or NULL: no
 * consent. -EPERM says which hash to accept; a signature that does not fit is refused even with
 * consent. by may be NULL. */
int hx_lock_trust(const struct hx_lock *lock, const char *path, const char *trusted_dir,
                  const char *release_key, const char *accepted, enum hx_lock_voucher *by,
                  struct hx_error *err) HX_MUST;

#endif
