/* What the sub-commands share: exit status, own arguments, lock and plan, licences. */
#include "fetch/commands.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "fetch/trust.h"

static const struct {
    int error, status;
} statuses[] = {
    {ENOENT, EX_NOINPUT},
    {ENOTDIR, EX_NOINPUT},
    {EISDIR, EX_NOINPUT},
    {ENETUNREACH, EX_UNAVAILABLE},
    {EHOSTUNREACH, EX_UNAVAILABLE},
    {ETIMEDOUT, EX_UNAVAILABLE},
    {ECONNREFUSED, EX_UNAVAILABLE},
    {ECONNRESET, EX_UNAVAILABLE},
    {EPROTO, EX_UNAVAILABLE},
    {ENOLINK, EX_UNAVAILABLE},
    {ENOMEM, EX_OSERR},
    {EMFILE, EX_OSERR},
    {ENFILE, EX_OSERR},
    {ENOSPC, EX_CANTCREAT},
    {EDQUOT, EX_CANTCREAT},
    {EROFS, EX_CANTCREAT},
    {EOPNOTSUPP, EX_CANTCREAT},
    {ENAMETOOLONG, EX_CANTCREAT},
    {ESTALE, EX_DATAERR},
    {EKEYREJECTED, EX_UNAVAILABLE},
    {EEXIST, EX_CANTCREAT},
    {EIO, EX_IOERR},
    {ENODEV, EX_IOERR},
    {ENXIO, EX_IOERR},
    {EFBIG, EX_IOERR},
    {EBUSY, EX_TEMPFAIL},
    {EAGAIN, EX_TEMPFAIL},
    {EINTR, EX_TEMPFAIL},
    {ECANCELED, EX_TEMPFAIL},
    {EPERM, EX_NOPERM},
    {EACCES, EX_NOPERM},
};

int hx_fetch_status(int r, const struct hx_error *err)
{
    if (r >= 0)
        return EX_OK;
    fprintf(stderr, "hx-fetch: %s\n", err->text);
    if (err->domain == HX_DOMAIN_CONF)
        return EX_CONFIG;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        if (statuses[i].error == -r)
            return statuses[i].status;
    }
    return EX_DATAERR;
}

int hx_fetch_usage(const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "hx-fetch: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "; see hx-fetch --help\n");
    return EX_USAGE;
}

int hx_fetch_print(const struct hx_buf *text, struct hx_error *err)
{
    if (text->failed)
        return hx_fail(err, -ENOMEM, "out of memory");
    if (fwrite(text->data, 1, text->len, stdout) != text->len || fflush(stdout) != 0)
        return hx_fail_errno(err, errno ? errno : EIO, "cannot write to standard output");
    return 0;
}

static void drop_args(struct hx_fetch_cli *cli, int at, int n)
{
    memmove(cli->args + at, cli->args + at + n, (size_t)(cli->n_args - at - n) * sizeof(char *));
    cli->n_args -= n;
}

int hx_fetch_take_value(struct hx_fetch_cli *cli, const char *name, const char **value)
{
    size_t n = strlen(name);
    for (int i = 0; i < cli->n_args; i++) {
        const char *arg = cli->args[i];
        if (strncmp(arg, name, n) != 0 || (arg[n] != '\0' && arg[n] != '='))
            continue;
        if (arg[n] == '=') {
            *value = arg + n + 1;
            drop_args(cli, i, 1);
            return 1;
        }
        if (i + 1 == cli->n_args) {
            hx_fetch_usage("%s needs a value", name);
            return -EINVAL;
        }
        *value = cli->args[i + 1];
        drop_args(cli, i, 2);
        return 1;
    }
    return 0;
}

bool hx_fetch_take_flag(struct hx_fetch_cli *cli, const char *name)
{
    for (int i = 0; i < cli->n_args; i++) {
        if (strcmp(cli->args[i], name) == 0) {
            drop_args(cli, i, 1);
            return true;
        }
    }
    return false;
}

int hx_fetch_load(struct hx_fetch_cli *cli, struct hx_lock **lock, struct hx_plan **plan,
                  struct hx_error *err)
{
    struct hx_lock *l = NULL;
    struct hx_plan *p = NULL;
    if (cli->conf.lock[0] == '\0') {
        int r = hx_fail(err, -EINVAL,
                        "no lock file: name one with --lock or [fetch] lock, or make one with "
                        "'hx-fetch lock'");
        err->domain = HX_DOMAIN_CONF;
        return r;
    }
    int r = hx_lock_read(cli->conf.lock, &l, err);
    if (r == 0)
        r = hx_lock_trust(l, cli->conf.lock, cli->conf.trusted_locks, cli->conf.release_key,
                          cli->accept_lock ? cli->accept_lock : cli->conf.accept_lock, NULL, err);
    if (r == 0)
        r = hx_plan_make(l, cli->conf.groups, &p, err);
    if (r < 0) {
        hx_lock_free(l);
        return r;
    }
    *lock = l;
    *plan = p;
    return 0;
}

/* Only what the owner types counts, and only on a terminal. */
static bool ask(const char *question)
{
    char line[16];
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return false;
    fprintf(stderr, "%s [yes/no] ", question);
    return fgets(line, sizeof(line), stdin) && strcmp(line, "yes\n") == 0;
}

int hx_fetch_show_licences(struct hx_fetch_cli *cli, const struct hx_lock *lock,
                           struct hx_error *err)
{
    fprintf(stderr, "The model comes from these repositories, under their terms:\n");
    for (size_t i = 0; i < lock->n_sources; i++) {
        const struct hx_lock_source *s = &lock->sources[i];
        fprintf(stderr, "  %s at %.12s: licence %s\n", s->repo, s->commit,
                s->licence ? s->licence : "not stated by the repository");
    }
    if (cli->yes || cli->conf.accept_licences || ask("Accept them?"))
        return 0;
    return hx_fail(err, -EPERM,
                   "the licences are not accepted: read them and pass --accept-licences, or set "
                   "[fetch] accept_licences = yes");
}

int hx_fetch_check_disks(const struct hx_fetch_cli *cli, const struct hx_plan *plan,
                         struct hx_disk_report *report, struct hx_error *err)
{
    struct hx_disk_report own;
    const struct hx_disk_options opt = {cli->conf.models, (uint64_t)cli->conf.reserve,
                                        cli->conf.network_disks || cli->force};
    if (!report)
        report = &own;
    int r = hx_disk_check(&opt, plan, report, err);
    for (size_t i = 0; i < report->n_warnings; i++)
        fprintf(stderr, "hx-fetch: warning: %s\n", report->warning[i]);
    return r;
}
