/* Public SSH keys: the lines of authorized_keys that a person pastes. */
#ifndef HX_SETUP_SSHKEY_H
#define HX_SETUP_SSHKEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_SSH_LINE_MAX 8192
#define HX_SSH_COMMENT  128

struct hx_ssh_key {
    char type[40];    /* "ssh-ed25519", ... */
    const char *name; /* "Ed25519", "ECDSA", "RSA", "Ed25519 security key", ... */
    int bits;         /* strength in the family's own measure: 256, 384, 521, 3072, ... */
    char *base64;     /* heap */
    char comment[HX_SSH_COMMENT];
    char fingerprint[64]; /* "SHA256:..." as ssh-keygen -l prints it */
};

/* One line. Options in front of the type are refused, so are private keys (with an explanation),
 * certificates, DSA, RSA below 3072 bits and anything after which the blob does not parse to its
 * last byte. -EINVAL, -ENOMEM. */
int hx_ssh_key_parse(const char *line, size_t len, struct hx_ssh_key *out,
                     struct hx_error *err) HX_MUST;
void hx_ssh_key_done(struct hx_ssh_key *key);

#endif
