/* Signing modules with the appliance's own key, for machines with Secure Boot. The key is made on
 * the box, lies beside the slots (mode 0600) and never leaves it. */
#ifndef HX_BUNDLE_SIGN_H
#define HX_BUNDLE_SIGN_H

#include "bundle/store.h"

#define HX_SIGN_KEY  "signing-key.pem"
#define HX_SIGN_CERT "signing-cert.der" /* what the owner enrols */

/* Makes key and certificate if they are not there. */
int hx_sign_prepare(struct hx_store *s, struct hx_error *err) HX_MUST;
/* Appends a signature (PKCS #7, SHA-512) to a module below dir. */
int hx_sign_module(struct hx_store *s, int dir, const char *path, struct hx_error *err) HX_MUST;

#endif
