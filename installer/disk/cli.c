#include "disk/cli.h"

#include <stdio.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

int hx_cli_take(const struct hx_cli_option *rows, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    if (arg[0] != '-')
        return 0;
    size_t n = strcspn(arg, "=");
    for (; rows->name; rows++) {
        if (strlen(rows->name) != n || strncmp(arg, rows->name, n) != 0)
            continue;
        if (!rows->value) {
            if (arg[n])
                return -ENOENT;
            *rows->on = true;
            return 1;
        }
        if (arg[n])
            *rows->value = arg + n + 1;
        else if (*i + 1 < argc)
            *rows->value = argv[++*i];
        else
            return -EINVAL;
        return 1;
    }
    return -ENOENT;
}

int hx_cli_report(const char *program, int r, const struct hx_error *err)
{
    static const struct {
        int r, status;
    } rows[] = {
        {-EINVAL, EX_DATAERR}, {-EBADMSG, EX_DATAERR},    {-ENODATA, EX_DATAERR},
        {-EFBIG, EX_DATAERR},  {-EEXIST, EX_DATAERR},     {-ENOSPC, EX_CANTCREAT},
        {-ENOENT, EX_NOINPUT}, {-ENODEV, EX_UNAVAILABLE}, {-EIO, EX_IOERR},
        {-EBUSY, EX_TEMPFAIL}, {-EAGAIN, EX_TEMPFAIL},    {-EPERM, EX_NOPERM},
        {-EACCES, EX_NOPERM},  {-EROFS, EX_CANTCREAT},
    };
    fprintf(stderr, "%s: %s\n", program, err->text);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].r == r)
            return rows[i].status;
    return EX_OSERR;
}

int hx_cli_esp(const struct hx_root *root, const char *given, char out[HX_ROOT_PATH],
               struct hx_error *err)
{
    if (given) {
        if (strlen(given) >= HX_ROOT_PATH)
            return hx_fail(err, -ENAMETOOLONG, "--esp: the path is too long");
        snprintf(out, HX_ROOT_PATH, "%s", given);
        return 0;
    }
    int r = hx_root_outside(root, "/efi", out);
    return r < 0 ? hx_fail(err, r, "/efi: the ESP is not mounted") : 0;
}

int hx_cli_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct hx_cli_progress *shown = ctx;
    int percent = total ? (int)((double)done / (double)total * 100) : 100;
    bool changed = shown->what != what;
    bool terminal = !shown->json && isatty(STDERR_FILENO);
    if (!changed && percent / (terminal ? 1 : 10) == shown->percent / (terminal ? 1 : 10))
        return 0;
    if (changed)
        hx_cli_progress_end(shown);
    shown->what = what;
    shown->percent = percent;
    if (shown->json)
        fprintf(stderr, "{\"step\":\"%s\",\"percent\":%d}\n", what, percent);
    else
        fprintf(stderr, "%s%-8s %3d %%%s", terminal ? "\r" : "", what, percent,
                terminal ? "" : "\n");
    shown->open_line = terminal;
    return 0;
}

void hx_cli_progress_end(struct hx_cli_progress *shown)
{
    if (shown->open_line)
        fputc('\n', stderr);
    shown->open_line = false;
}
