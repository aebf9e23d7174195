/* The token for the endpoints: from a credentials file, never from the command line. */
#ifndef HX_FETCH_TOKEN_H
#define HX_FETCH_TOKEN_H

#include <hx/error.h>

/* path "": the credential hub_token that the service manager passes; without one *out is NULL.
 * -EPERM: others may read the file. No message shows any of its content. */
int hx_fetch_token_read(const char *path, char **out, struct hx_error *err) HX_MUST;
void hx_fetch_token_free(char *token); /* wipes it */

#endif
