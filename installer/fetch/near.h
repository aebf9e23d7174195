/* Addresses of the machine itself and of the network it stands in: a server of the internet has no
 * business to send a download there. */
#ifndef HX_FETCH_NEAR_H
#define HX_FETCH_NEAR_H

#include <stdbool.h>
#include <sys/socket.h>

/* Private, loopback, link-local, shared (100.64/10), multicast and unspecified addresses, IPv4 also
 * inside IPv6. Other families: true. */
bool hx_near_address(const struct sockaddr *a);

/* An address as text, without brackets; false for anything else. */
bool hx_near_text(const char *ip);

/* The host of an address of the web, as far as its text says: a number in any form that resolvers
 * take ("0x7f.1"), or localhost. A name that has to be looked up: false. */
bool hx_near_url(const char *url);

/* Whether one of the variables is set that curl takes its proxy from: connections lead there then,
 * whatever the address is. */
bool hx_near_has_proxy(void);

#endif
