/* Rules against calls that a web page or a name server of somebody else makes. */
#ifndef HX_SERVER_SECURITY_H
#define HX_SERVER_SECURITY_H

#include <stdbool.h>
#include <stddef.h>

/* Host header: localhost, 127.0.0.1, [::1] or a word of `allowed`, compared as a whole after
 * the port was cut off. */
bool hx_host_allowed(const char *host, const char *allowed);
/* The word is in a list separated by spaces or commas. */
bool hx_word_in(const char *word, size_t len, const char *list);
/* "application/json", parameters allowed. */
bool hx_type_is_json(const char *content_type);
/* Authorization header against the key; time depends on the header's length only. */
bool hx_bearer_matches(const char *authorization, const char *key);

#endif
