/* Work as root for whoever logged in as admin, without a program that changes users: words, folder
 * and the three standard files go over a socket to a service of root's, which runs the command and
 * reports its exit status. Who may connect is decided by the socket's owner and mode, and once more
 * by the peer's user id. */
#ifndef HX_SETUP_RELAY_H
#define HX_SETUP_RELAY_H

#include <sys/types.h>

#include <hx/error.h>

#define HX_RELAY_SOCKET "/run/hx170/root.socket"
#define HX_RELAY_WORDS  64
#define HX_RELAY_BYTES  16384

/* Runs argv at the other end of `connection` (a sequenced-packet socket, closed at the end) with
 * this process's standard files. Signals that would end this process go to the command. *code: its
 * exit status, 128 + n for signal n. */
int hx_relay_call(int connection, const char *const argv[], int *code,
                  struct hx_error *err) HX_MUST;
/* A connection to the service; -EACCES if this user may not. */
int hx_relay_connect(const char *path, int *connection, struct hx_error *err) HX_MUST;

/* One call: takes the request from `connection`, whose peer has to be root or `allowed`, runs it,
 * reports. A peer that goes away ends the command. What is asked for goes to stderr as one line. */
int hx_relay_serve(int connection, uid_t allowed, struct hx_error *err) HX_MUST;

#endif
