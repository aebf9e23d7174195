/* Joins plan, store and transfers: decides which piece is asked for next, from where after a bad
 * one, and when a file is given up. One thread; call step until it says that it is over. */
#ifndef HX_FETCH_DOWNLOAD_H
#define HX_FETCH_DOWNLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "fetch/plan.h"
#include "fetch/progress.h"
#include "fetch/store.h"
#include "fetch/transfer.h"

struct hx_download;

/* All of them are borrowed and must outlive the download. progress may be NULL. */
int hx_download_open(const struct hx_plan *plan, struct hx_store *store, struct hx_transfer *t,
                     struct hx_progress *progress, unsigned n_endpoints, struct hx_download **out,
                     struct hx_error *err);
/* Close the transfers first: they call back into the download. */
void hx_download_close(struct hx_download *d);

/* The store closes its sinks itself: nothing is fed from now on. Before hx_store_close. */
void hx_download_stop(struct hx_download *d);

/* Nothing moves for a reason from outside, such as the time of day; NULL: go on. */
void hx_download_hold(struct hx_download *d, const char *why, double seconds);

/* One round: events of the store, new requests, network; waits at most timeout_ms, less if
 * other_fd becomes readable. 1: nothing is left to do, see result; 0: go on; negative: the loop
 * itself failed. */
int hx_download_step(struct hx_download *d, int other_fd, int timeout_ms, struct hx_error *err);

/* 0: every file is ready; else the first reason why not, with all stopped files counted. */
int hx_download_result(const struct hx_download *d, struct hx_error *err);

/* Fills in all but the phase. The files belong to the download. */
void hx_download_view(const struct hx_download *d, struct hx_progress_view *v);

#endif
