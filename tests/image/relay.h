/* One connection of a guest to a port of 127.0.0.1: QEMU starts the relay for each. */
#ifndef HX_TESTS_IMAGE_RELAY_H
#define HX_TESTS_IMAGE_RELAY_H

#include <hx/error.h>

/* Moves bytes between standard input and output and the port until both sides have ended. */
int hx_relay(unsigned port, struct hx_error *err) HX_MUST;

#endif
