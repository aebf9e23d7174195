/* The drive of the models, and how a drive is named to a person. */
#ifndef HX_SETUP_DRIVE_H
#define HX_SETUP_DRIVE_H

#include "setup/setup.h"

struct hx_drive_words {
    const char *name, *model, *serial, *content; /* "": not known */
    double bytes;                                /* 0: not known */
};

/* "nvme0n1 Fast 1TB, serial S5GX1234, 1000.2 GB, 2 partitions", without what is not known. */
void hx_drive_label(const struct hx_drive_words *w, char *out, size_t size);

/* First question of the step "model". *asked: false if there was nothing to choose. */
enum hx_ui_reply hx_setup_ask_drive(struct hx_setup *s, bool *asked);
/* Carries out the order in models_disk, and removes it: twice does it once. */
int hx_setup_apply_drive(struct hx_setup *s, struct hx_error *err) HX_MUST;
/* Room for models on the drive that is ordered (models_disk is not ""), and its name. */
int hx_setup_drive_room(const struct hx_setup *s, double *bytes, char *label, size_t size,
                        struct hx_error *err) HX_MUST;

#endif
