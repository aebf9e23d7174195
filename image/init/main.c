/* First program of the machine: finds the verified root, mounts it, hands over to systemd. Any
 * failure is said on every console, then the machine restarts, and the boot loader's counter
 * decides what comes up next. */
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "init/steps.h"

#define PAUSE_S 10

static int boot(struct hx_error *err)
{
    struct hx_init_options options;
    struct hx_init_wanted wanted = {.has_loader = false};
    struct hx_init_found found;
    char line[4096];
    int r = hx_init_mount_api(err);
    if (r < 0)
        return r;
    FILE *f = fopen("/proc/cmdline", "re");
    if (!f)
        return hx_fail_errno(err, errno, "/proc/cmdline");
    size_t n = fread(line, 1, sizeof(line) - 1, f);
    fclose(f);
    line[n] = '\0';
    if ((r = hx_init_options_parse(line, &options, err)) < 0 ||
        (r = hx_verity_guids(options.root_hash, wanted.data, wanted.hash, err)) < 0 ||
        (r = hx_init_load_modules("/modules/order", err)) < 0)
        return r;
    hx_init_ask_loader(&wanted);
    if ((r = hx_init_wait_root(&wanted, options.wait_s, &found, err)) < 0 ||
        (r = hx_init_mount_root(&options, &found, err)) < 0)
        return r;
    hx_init_say(5, "root on %s, hash tree on %s%s", found.data, found.hash,
                wanted.has_loader && !found.is_boot_disk
                    ? "; this is not the disk that the firmware booted from"
                    : "");
    return hx_init_switch_root(&found, err);
}

int main(int argc, char **argv)
{
    if (getpid() != 1) {
        fprintf(stderr, "%s: runs as the first process of the initrd, nowhere else\n",
                argc > 0 ? argv[0] : "init");
        return 64;
    }
    struct hx_error err;
    if (boot(&err) == 0) {
        char *const next[] = {"/sbin/init", NULL};
        execv(next[0], next);
        hx_fail_errno(&err, errno, "%s of the root cannot be started", next[0]);
    }
    hx_init_say(2, "cannot start: %s; restart in %d s", err.text, PAUSE_S);
    sleep(PAUSE_S);
    sync();
    reboot(RB_AUTOBOOT);
    for (;;)
        pause();
}
