/* Marks the moments at which a power cut leaves a different state on the disk. Does nothing; the
 * tests replace step.c and end the process at the n-th call. */
#ifndef HX_FETCH_STEP_H
#define HX_FETCH_STEP_H

void hx_fetch_step(const char *what);

#endif
