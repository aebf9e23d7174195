/* Runs scenarios, several at a time if asked: each in a process of its own, its output kept until
 * it ends. What one scenario leaves for others is there before those start. */
#ifndef HX_TESTS_IMAGE_LANE_H
#define HX_TESTS_IMAGE_LANE_H

#include <stdbool.h>

#include "image/scene.h"

enum hx_lane_use {
    HX_LANE_MIRROR = 1, /* files of the server that boxes download from: one scenario at a time */
    HX_LANE_HOST = 2,   /* figures for a quiet host, or the build folder: nothing beside it */
};

struct hx_scenario {
    const char *id;
    bool is_long;
    unsigned seconds; /* limit, for two quiet processors times four */
    const char *what;
    int (*run)(struct hx_scene *s, struct hx_error *err);
    const char *needs; /* scenario whose drive it takes; NULL: none */
    unsigned uses;     /* of hx_lane_use */
};

struct hx_lane {
    const struct hx_scenario *scenarios; /* one that is needed stands before those that need it */
    int n;
    const bool *chosen;
    const char *build, *work;
    int patience; /* limits times this */
    int jobs;     /* 1: one after the other */
    bool goes_on; /* what has passed in the work folder, same image and same tests, is not run again
                   */
};

/* Prints a line for each scenario that has ended, and the sum. False: some failed, or none ran. */
bool hx_lane_run(const struct hx_lane *lane);

#endif
