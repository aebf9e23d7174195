/* The wizard: steps as rows, and what they share. */
#ifndef HX_SETUP_SETUP_H
#define HX_SETUP_SETUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "hw/command.h"
#include "hw/root.h"
#include "setup/box.h"
#include "setup/ui.h"

#define HX_SETUP_CONFIG "/var/lib/hx170/config"
#define HX_SETUP_BOX    HX_SETUP_CONFIG "/box.conf"
#define HX_SETUP_SHOWN  "/run/hx170/box.conf" /* copy for those who may not read the folder */
#define HX_SETUP_OLD    HX_SETUP_CONFIG "/box.conf.old"
#define HX_SETUP_DRAFT  HX_SETUP_CONFIG "/draft.conf"
#define HX_SETUP_TOKEN  HX_SETUP_CONFIG "/hub_token"
#define HX_SETUP_LOG    "/var/lib/hx170/setup.log"
#define HX_SETUP_LOCKS  "/usr/share/hx170/locks"
#define HX_SETUP_OWN    "/var/lib/hx170/locks" /* lock files that the owner brought */
#define HX_SETUP_CHECK  "/var/lib/hx170/check/p2p.json"
#define HX_SETUP_MODELS "/srv/models"

struct hx_setup {
    const char *root_dir; /* "" on the machine itself */
    struct hx_root *root;
    struct hx_commands *tools;
    struct hx_ui *ui;
    struct hx_box box;     /* draft: what was answered so far */
    bool scripted;         /* an answers file speaks */
    char token[512];       /* entered just now, "": none; wiped after apply */
    int lock_fd;           /* of the one setup that may run (lock.h), -1: not held */
    bool cold_start;       /* apply found that the machine has to be switched off and on */
    char kit_refused[400]; /* why the build kit on a stick is not used, "" */
    bool restart;          /* apply gave the models another drive: it counts from the next start */
};

struct hx_setup_step {
    const char *id, *title, *about; /* about: one line for `hx-setup list` */
    /* Whether the screen is shown at all; NULL: always. */
    bool (*needed)(const struct hx_setup *s);
    /* Asks and stores into s->box. Changes nothing outside. HX_UI_ERROR leaves ui->error. */
    enum hx_ui_reply (*ask)(struct hx_setup *s);
    /* What has to happen besides writing box.conf; NULL: nothing. Twice gives the same. */
    int (*apply)(struct hx_setup *s, struct hx_error *err);
    /* Takes apply back when a later step fails; NULL: nothing to take back. */
    void (*undo)(struct hx_setup *s);
};

extern const struct hx_setup_step hx_setup_steps[];
extern const int hx_setup_n_steps;
int hx_setup_find(const char *id); /* -1: there is none of this name */

enum hx_ui_reply hx_setup_ask_name(struct hx_setup *s);
enum hx_ui_reply hx_setup_ask_key(struct hx_setup *s);
enum hx_ui_reply hx_setup_ask_time(struct hx_setup *s);
enum hx_ui_reply hx_setup_ask_network(struct hx_setup *s);
enum hx_ui_reply hx_setup_ask_driver(struct hx_setup *s);
int hx_setup_apply_driver(struct hx_setup *s, struct hx_error *err);
void hx_setup_undo_driver(struct hx_setup *s);
enum hx_ui_reply hx_setup_ask_hardware(struct hx_setup *s);
enum hx_ui_reply hx_setup_ask_model(struct hx_setup *s);
int hx_setup_apply_model(struct hx_setup *s, struct hx_error *err);
enum hx_ui_reply hx_setup_ask_performance(struct hx_setup *s);
enum hx_ui_reply hx_setup_ask_review(struct hx_setup *s);
enum hx_ui_reply hx_setup_ask_status(struct hx_setup *s);

/* root and tools; root_dir NULL: the machine itself. commands: table of recorded answers instead of
 * tools, NULL: the real ones (below a root_dir: none). */
int hx_setup_open(struct hx_setup *s, const char *root_dir, const char *commands,
                  struct hx_error *err) HX_MUST;
void hx_setup_close(struct hx_setup *s);

/* Draft, else what is in force, else defaults. A file that cannot be understood is an error: the
 * wizard never guesses. */
int hx_setup_load(struct hx_setup *s, struct hx_error *err) HX_MUST;
int hx_setup_save_draft(struct hx_setup *s, struct hx_error *err) HX_MUST;
/* Checks everything again, applies the steps in order (a failure takes the earlier ones back),
 * then replaces box.conf, which is the moment it counts, and drops the draft. */
int hx_setup_apply(struct hx_setup *s, struct hx_error *err) HX_MUST;

/* What box.conf says, into the files that other programs read (render.c), then the services are
 * told. Without box.conf: nothing, 0. */
int hx_setup_render(struct hx_setup *s, struct hx_error *err) HX_MUST;
int hx_setup_activate(struct hx_setup *s, struct hx_error *err) HX_MUST;

/* All screens from the first that is not answered; only: that one, then apply. */
enum hx_ui_reply hx_setup_run(struct hx_setup *s, const char *only, struct hx_error *err);

/* A path of the appliance below the root, for writing. -ENAMETOOLONG. */
int hx_setup_path(const struct hx_setup *s, const char *path, char out[HX_ROOT_PATH],
                  struct hx_error *err) HX_MUST;
/* Makes the folders that a path lies in. */
int hx_setup_folders(char *path, struct hx_error *err) HX_MUST;
/* Replaces a file below the root and makes its folders (0755), whatever the umask is. */
int hx_setup_put(const struct hx_setup *s, const char *path, const void *data, size_t n,
                 unsigned mode, struct hx_error *err) HX_MUST;

/* Asks for a key of the box: default is what it holds, the check is the table's. */
enum hx_ui_reply hx_setup_ask_text(struct hx_setup *s, const char *key, const char *body,
                                   const char *prompt, const char *help);
enum hx_ui_reply hx_setup_ask_choice(struct hx_setup *s, const char *key, const char *body,
                                     const char *prompt, const char *help,
                                     const struct hx_ui_item *items, int n);
/* Runs a tool, output in *out (NUL terminated, free). -ENOENT: there is no such tool. *rc: its
 * status. */
int hx_setup_tool(const struct hx_setup *s, const char *const argv[], int timeout_ms, int *rc,
                  char **out, struct hx_error *err) HX_MUST;

#endif
