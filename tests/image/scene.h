/* What a scenario gets and how it says what it found. A scenario is a function that returns 0 or an
 * error; what it needs from an earlier one lies as a file in the work folder, so that each can run
 * alone. */
#ifndef HX_TESTS_IMAGE_SCENE_H
#define HX_TESTS_IMAGE_SCENE_H

#include "image/ssh.h"
#include "image/vm.h"

/* The result of a scenario that cannot run here; the reason is in err. */
#define HX_SCENE_SKIP (-ENODEV)

#define HX_SCENE_SERIAL "HXTARGET0001" /* of the drive that is installed to */
/* Answers of an installation to it with nobody at the keyboard. */
#define HX_SCENE_UNATTENDED                                                                        \
    "mode = install\ntarget_serial = " HX_SCENE_SERIAL "\nconfirm_erase_serial = " HX_SCENE_SERIAL \
    "\n"
/* Sparse. Room for a download: hx-fetch leaves 10 GiB free. */
#define HX_SCENE_TARGET_BYTES ((uint64_t)64 << 30)

struct hx_scene {
    const char *build;   /* build folder, has image/work/out */
    const char *work;    /* own folder of this run: disks, logs, keys */
    char stick[256];     /* the image as built; never written to */
    char installed[256]; /* drive as scenario `install` leaves it */
    char served[256];    /* drive as scenario `model` leaves it: with the model */
    int64_t deadline;    /* of this scenario */
    struct hx_ssh ssh;
    struct hx_vm vm; /* closed by the runner whatever happens */
    struct hx_vm_setup setup;
    char answers[4096];
    char disk[512]; /* copy of the installed drive that was booted last */
};

/* Answers of an unattended box with the test's key; `more` (may be "") is put at the end. Without
 * a line "model = " in it the box gets no model. */
int hx_scene_answers(struct hx_scene *s, const char *more, struct hx_error *err) HX_MUST;
/* A machine with OVMF, 1 GiB, two processors, network; disks are added by the caller. */
int hx_scene_setup(struct hx_scene *s, const char *name, struct hx_error *err) HX_MUST;
struct hx_vm_disk *hx_scene_add_disk(struct hx_scene *s, const char *path, enum hx_vm_bus bus);
/* Starts a copy of the installed drive under the scenario's name and waits for a login as admin. */
int hx_scene_boot_installed(struct hx_scene *s, const char *name, struct hx_error *err) HX_MUST;
/* The same in two steps: a copy of the drive and its answers; then power-on to login. Between them
 * the caller adds what the machine needs more. */
int hx_scene_prepare(struct hx_scene *s, const char *name, const char *more,
                     struct hx_error *err) HX_MUST;
/* The same with the drive that has the model; no answers, nothing to download from. */
int hx_scene_prepare_served(struct hx_scene *s, const char *name, struct hx_error *err) HX_MUST;
int hx_scene_power_on(struct hx_scene *s, struct hx_error *err) HX_MUST;
/* Orderly end by the power button; the drive is as the box left it. */
int hx_scene_power_off(struct hx_scene *s, struct hx_error *err) HX_MUST;
/* Runs a command as admin; fails if it ends with another status than 0. *out NUL-terminated. */
int hx_scene_admin(struct hx_scene *s, const char *command, struct hx_buf *out,
                   struct hx_error *err) HX_MUST;
/* One command in the machine and what its output has to be; NULL: only its status counts. */
struct hx_check {
    const char *what;
    const char *command;
    const char *output;
};
int hx_scene_checks(struct hx_scene *s, const struct hx_check *rows, size_t n,
                    struct hx_error *err) HX_MUST;
/* A port of 127.0.0.1 that the kernel has just given out and that is free again. */
int hx_scene_free_port(unsigned *port, struct hx_error *err) HX_MUST;
/* A figure for the report. */
void hx_scene_measure(const char *what, double value, const char *unit);
/* A figure with its limit: for the report's end. Times are those of a quiet host, so that a limit
 * which is missed fails nothing. */
void hx_scene_target(const char *what, double value, double limit, const char *unit);
/* All targets of this run, one a line. Those of processes that are started behind
 * hx_scene_share_targets are among them; a process may leave its own out. */
void hx_scene_targets(void);
bool hx_scene_share_targets(void) HX_MUST;
void hx_scene_count_targets(bool count);

int hx_scene_audit(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_install(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_first_boot(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_driver(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_wizard(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_model(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_cuts_download(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_cuts_seeded(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_faults(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_full(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_refused(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_offline(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_requests(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_no_network(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_recovery(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_secure(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_repro(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_drive(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_damaged(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_update(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_updated(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_no_update(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_corrupt(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_standby(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_hang(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_sick(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_stuck(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_lost(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_cuts_update(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_cuts_started(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_cuts_install(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_cuts_over(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_cuts_first(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_full_state(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_lost_state(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_reset(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_clock(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_two_drives(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_wrong_drive(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_damaged_sticks(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_reinstall(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_large_sectors(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_scene_models_drive(struct hx_scene *s, struct hx_error *err) HX_MUST;

#endif
