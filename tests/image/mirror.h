/* The server that a box downloads from (mirror.py), with its lock file and a stick that carries it.
 */
#ifndef HX_TESTS_IMAGE_MIRROR_H
#define HX_TESTS_IMAGE_MIRROR_H

#include "image/scene.h"

struct hx_mirror {
    struct hx_child child;
    unsigned port, control; /* on 127.0.0.1 */
    char sha256[65];        /* of the lock file */
    char model[64];
    uint64_t n_bytes;   /* of a whole download */
    char lock[300];     /* file on the host */
    char folder[300];   /* the repositories' files and model.lock.json, for an offline disk */
    char stick[300];    /* ext4 image with model.lock.json */
    char relay[600];    /* command for hx_vm_setup.relay */
    char answers[1200]; /* lines that make a box download from here */
};

/* Makes demo model and lock file in the work folder, starts the server, makes the stick. */
int hx_mirror_start(struct hx_mirror *m, struct hx_scene *s, struct hx_error *err) HX_MUST;
/* A fault of tests/fetch/hub.py as JSON, until hx_mirror_clear. */
int hx_mirror_fault(struct hx_mirror *m, const char *json, struct hx_error *err) HX_MUST;
/* Forgets faults and figures. */
int hx_mirror_clear(struct hx_mirror *m, struct hx_error *err) HX_MUST;
/* Answered requests for data and body bytes since the start or hx_mirror_clear. */
int hx_mirror_stats(struct hx_mirror *m, unsigned *n_requests, uint64_t *n_bytes,
                    struct hx_error *err) HX_MUST;
void hx_mirror_close(struct hx_mirror *m);
/* Adds a stick, and the way to the port. */
void hx_mirror_plug(struct hx_mirror *m, struct hx_scene *s, const char *stick);
/* hx_scene_prepare for a box that downloads from here: with the stick and the way to the port. */
int hx_mirror_box(struct hx_mirror *m, struct hx_scene *s, const char *name, const char *more,
                  struct hx_error *err) HX_MUST;
/* Until `hx status` says that the model answers; a fault, and the deadline, end it with the
 * journals. */
int hx_mirror_wait_serving(struct hx_scene *s, struct hx_error *err) HX_MUST;

/* ssh -N -L to the API as the account tunnel. */
struct hx_tunnel {
    struct hx_child child;
    unsigned port;
    char url[40]; /* http://127.0.0.1:port */
};
int hx_mirror_tunnel(struct hx_scene *s, struct hx_tunnel *t, struct hx_error *err) HX_MUST;
/* Asks until the answer is a good one and holds `want`. */
int hx_mirror_get(struct hx_scene *s, struct hx_tunnel *t, const char *path, const char *want,
                  struct hx_error *err) HX_MUST;
/* The official client with n streamed requests (client.py). */
int hx_mirror_ask(struct hx_scene *s, struct hx_tunnel *t, unsigned n,
                  struct hx_error *err) HX_MUST;

/* A stick (or disk on USB) with the content of a folder, ext4. */
int hx_mirror_medium(const char *folder, unsigned mib, const char *path,
                     struct hx_error *err) HX_MUST;

#endif
