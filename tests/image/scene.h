/* What a scenario gets and how it says what it found. A scenario is a function that returns 0 or an
 * error; what it needs from an earlier one lies as a file in the work folder, so that each can run
 * alone. */
#ifndef HX_TESTS_IMAGE_SCENE_H
#define HX_TESTS_IMAGE_SCENE_H

#include "image/ssh.h"
#include "image/vm.h"

/* The result of a scenario that cannot run here; the reason is in err. */
#define HX_SCENE_SKIP (-ENODEV)

#define HX_SCENE_SERIAL       "HXTARGET0001" /* of the drive that is installed to */
#define HX_SCENE_TARGET_BYTES ((uint64_t)32 << 30)

struct hx_scene {
    const char *build;   /* build folder, has image/work/out */
    const char *work;    /* own folder of this run: disks, logs, keys */
    char stick[256];     /* the image as built; never written to */
    char installed[256]; /* drive as scenario `install` leaves it */
    int64_t deadline;    /* of this scenario */
    struct hx_ssh ssh;
    struct hx_vm vm; /* closed by the runner whatever happens */
    struct hx_vm_setup setup;
    char answers[2048];
};

/* Answers of an unattended box with the test's key; `more` (may be "") is put at the end. */
int hx_scene_answers(struct hx_scene *s, const char *more, struct hx_error *err) HX_MUST;
/* A machine with OVMF, 1 GiB, two processors, network; disks are added by the caller. */
int hx_scene_setup(struct hx_scene *s, const char *name, struct hx_error *err) HX_MUST;
struct hx_vm_disk *hx_scene_add_disk(struct hx_scene *s, const char *path, enum hx_vm_bus bus);
/* Starts a copy of the installed drive under the scenario's name and waits for a login as admin. */
int hx_scene_boot_installed(struct hx_scene *s, const char *name, struct hx_error *err) HX_MUST;
/* Runs a command as admin; fails if it ends with another status than 0. *out NUL-terminated. */
int hx_scene_admin(struct hx_scene *s, const char *command, struct hx_buf *out,
                   struct hx_error *err) HX_MUST;
/* A figure for the report. */
void hx_scene_measure(const char *what, double value, const char *unit);

int hx_scene_audit(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_install(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_first_boot(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_secure(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_repro(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_damaged(struct hx_scene *s, struct hx_error *err) HX_MUST;

#endif
