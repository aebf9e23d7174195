/* What one step computes. Pure functions: no clock, lock or device. */
#ifndef HX_RUN_PLAN_H
#define HX_RUN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct hx_plan_item {
    int64_t prefill_tok; /* tokens before the one whose logits are wanted; 0: that one is next */
    bool ready;          /* false: its reader is behind */
    bool solo;           /* was part of a step that failed: runs alone until it is past that */
    uint64_t order;      /* age, lower is older */
};

struct hx_plan_rows {
    int item;
    int n_tok;
    bool logits; /* of the last row */
};

/* Decode rows of every ready sequence first; then chunk prefill rows, shared out evenly among the
 * sequences in prefill (what one leaves goes to the others); turn rotates who gets the remainder,
 * so that with a chunk below the number of sequences each still advances. rows: [n]. Returns how
 * many were filled. */
int hx_plan_step(const struct hx_plan_item *items, int n, int chunk, uint64_t turn,
                 struct hx_plan_rows *rows);

/* Who stops when the pool is full: the youngest. -1: none. */
int hx_plan_victim(const struct hx_plan_item *items, int n);

/* Whether a waiting sequence may start: slots for it and for the choices that follow it, and
 * blocks for its tokens and one more for each running sequence; with nothing running, always. */
bool hx_plan_admits(int need_slots, int free_slots, int need_blocks, int free_blocks,
                    int n_running);

#endif
