/* Sub-commands of hx-fetch and what they share. Every command returns its exit status. */
#ifndef HX_FETCH_COMMANDS_H
#define HX_FETCH_COMMANDS_H

#include <stdbool.h>

#include "fetch/config.h"
#include "fetch/disk.h"
#include "fetch/lock.h"
#include "fetch/plan.h"

/* Options that every command knows are taken out; what is left is the command's own. */
struct hx_fetch_cli {
    const char *command;
    struct hx_fetch_conf conf;
    bool json;               /* --json: events or results for machines */
    bool yes;                /* --accept-licences */
    bool force;              /* --force: go on in spite of warnings that have a way round */
    const char *accept_lock; /* --accept-lock SHA256 */
    char **args;             /* left over, in order */
    int n_args;
    /* Reads files and command line once more (SIGHUP), into *out. */
    int (*reread)(const struct hx_fetch_cli *cli, struct hx_fetch_conf *out, struct hx_error *err);
    const char *conf_file; /* --config; NULL: the usual ones */
    char **line;           /* the whole command line */
    int n_line;
};

int hx_fetch_cmd_plan(struct hx_fetch_cli *cli);
int hx_fetch_cmd_run(struct hx_fetch_cli *cli);    /* run.c */
int hx_fetch_cmd_verify(struct hx_fetch_cli *cli); /* verify.c */
int hx_fetch_cmd_import(struct hx_fetch_cli *cli); /* import.c */
int hx_fetch_cmd_lock(struct hx_fetch_cli *cli);
int hx_fetch_cmd_status(struct hx_fetch_cli *cli);
int hx_fetch_cmd_gc(struct hx_fetch_cli *cli);

/* Exit status of a failure, after printing its message: the table of hx-fetch(1). */
int hx_fetch_status(int r, const struct hx_error *err);
int hx_fetch_usage(const char *fmt, ...) HX_PRINTF(1, 2);

/* All of it to standard output. */
int hx_fetch_print(const struct hx_buf *text, struct hx_error *err);

/* "--name=value" or "--name value" among the command's own arguments, taken out: 1 found, 0 not
 * there, -EINVAL without a value (printed). */
int hx_fetch_take_value(struct hx_fetch_cli *cli, const char *name, const char **value);
bool hx_fetch_take_flag(struct hx_fetch_cli *cli, const char *name);

/* Reads the configured lock file, checks who vouches for it (decisions.md 24) and makes the plan of
 * the configured groups. Both are the caller's to free, the plan first. */
int hx_fetch_load(struct hx_fetch_cli *cli, struct hx_lock **lock, struct hx_plan **plan,
                  struct hx_error *err);

/* Shows the licence of every source, then asks for consent unless given: -EPERM without it. */
int hx_fetch_show_licences(struct hx_fetch_cli *cli, const struct hx_lock *lock,
                           struct hx_error *err);

/* Room and kind of the disks that the plan writes to; warnings go to standard error. report may be
 * NULL. */
int hx_fetch_check_disks(const struct hx_fetch_cli *cli, const struct hx_plan *plan,
                         struct hx_disk_report *report, struct hx_error *err);

#endif
