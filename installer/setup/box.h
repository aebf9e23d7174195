/* The owner's answers: one table of keys for the answers file of an unattended setup, for what the
 * wizard has so far (draft.conf) and for what is in force (box.conf). All three have the same form:
 *
 *   schema = 1
 *   hostname = hx170
 *   admin_key = ssh-ed25519 AAAA... name
 *
 * One key a line, # starts a comment line. Strict: an unknown key, a key twice (admin_key may
 * repeat), a bad value or a newer schema is an error with file and line. */
#ifndef HX_SETUP_BOX_H
#define HX_SETUP_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "base/buf.h"

#define HX_BOX_SCHEMA   1
#define HX_BOX_KEYS     16        /* SSH keys of the owner */
#define HX_BOX_FILE_MAX (4 << 20) /* bytes of an answers file */
#define HX_BOX_LINE_MAX 12288     /* of one line */

enum hx_box_mode { HX_MODE_INSTALL, HX_MODE_REINSTALL, HX_MODE_UPDATE, HX_MODE_TRY };
enum hx_box_network { HX_NET_DHCP, HX_NET_STATIC, HX_NET_NONE };
enum hx_box_layout { HX_BOX_AUTO, HX_BOX_TP4, HX_BOX_PP4 };

struct hx_box {
    int64_t schema;
    /* Installer: only in an answers file. */
    int mode; /* enum hx_box_mode */
    char target_serial[128], confirm_erase_serial[128];
    bool keep_models;
    /* The box. */
    char hostname[64];
    char *admin_key[HX_BOX_KEYS]; /* "type base64 comment", no options; heap */
    int n_admin_keys;
    int network;                     /* enum hx_box_network */
    char address[64], gateway[64];   /* "192.0.2.5/24", "192.0.2.1"; static only */
    char dns[256];                   /* addresses, separated by spaces */
    int64_t vlan;                    /* 0: none */
    char proxy[256];                 /* http://host:port, "": none */
    char ntp[256];                   /* names or addresses; "default"; "later": no time source */
    char driver_source[512];         /* "none", or absolute path of a folder or archive */
    char driver_sha256[65];          /* of the archive, "": not given */
    char accept_driver_licence[512]; /* licence ids, separated by spaces */
    char model[64];                  /* name of a lock file, "none" */
    char model_lock[512];            /* lock file of the owner's own that is to be taken over, "" */
    char model_lock_sha256[65]; /* the model's lock file is the owner's own; "": the system's */
    /* An order, gone once it is done: "" as it is, "system" the system's disk, a serial number. */
    char models_disk[128];
    char erase_models_disk[128]; /* the same number again: everything on it may go */
    bool accept_model_licence;   /* the owner accepts the licences of the model's files */
    char model_source[512];      /* "default", an address of a mirror, or an absolute folder */
    char token_file[512];        /* file with the access token, "": none or unchanged */
    int64_t bandwidth;           /* bytes per second, 0: no cap */
    char schedule[64];           /* "22:00-06:00", "": always */
    int64_t power_cap_watts;     /* of each card */
    int layout;                  /* enum hx_box_layout */
    int64_t context;             /* tokens of one sequence */
    char expert_cmdline[512];    /* further words for the kernel */
    /* Wizard: not in an answers file. */
    char done[256]; /* ids of answered steps, separated by spaces */
    /* Lines of a later system whose keys are not known here, kept as they are: after the way back
     * to an older version the box goes on, and forward again nothing is lost. */
    char later[2048];

    uint64_t given; /* bit per key of the table that the file named */
};

enum hx_box_form {
    HX_BOX_ANSWERS, /* no wizard keys */
    HX_BOX_STATE    /* box.conf, draft.conf: no installer keys; unknown ones are kept */
};

void hx_box_init(struct hx_box *box); /* defaults; no key, no host name */
void hx_box_done(struct hx_box *box); /* frees, back to defaults; zeroed memory is fine */
int hx_box_copy(const struct hx_box *from, struct hx_box *to, struct hx_error *err) HX_MUST;

/* label: the file's name for messages. -EINVAL "FILE:LINE: KEY: ..."; *out only on success. Each
 * value alone is valid then; hx_box_check says whether they fit together. */
int hx_box_parse(const char *text, size_t len, const char *label, enum hx_box_form form,
                 struct hx_box *out, struct hx_error *err) HX_MUST;
int hx_box_read(const char *path, enum hx_box_form form, struct hx_box *out,
                struct hx_error *err) HX_MUST;
/* What the values have to be together: the gateway inside the network, serials alike, a key that
 * lets the owner in. The message begins with the key. */
int hx_box_check(const struct hx_box *box, enum hx_box_form form, struct hx_error *err) HX_MUST;
int hx_box_write(const struct hx_box *box, enum hx_box_form form, struct hx_buf *out);

/* One value by its key, as the parser does. -EINVAL with the reason, without file and line. */
int hx_box_set(struct hx_box *box, const char *key, const char *value,
               struct hx_error *err) HX_MUST;
/* The value in file spelling; for admin_key the first. -ENOENT: no such key. */
int hx_box_get(const struct hx_box *box, const char *key, char *out, size_t size);
bool hx_box_given(const struct hx_box *box, const char *key);
/* One more SSH key; a key that is there already is merged (*merged, may be NULL). */
int hx_box_add_key(struct hx_box *box, const char *line, bool *merged,
                   struct hx_error *err) HX_MUST;

bool hx_box_is_done(const struct hx_box *box, const char *step);
void hx_box_set_done(struct hx_box *box, const char *step, bool done);

/* The table, for the manual: "key", expectation and help of row i; false behind the last. */
bool hx_box_row(int i, const char **key, const char **standard, const char **help);

#endif
