/* image-test: scenarios of docs/image-tests.md, one after the other, in software emulation. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include "image/relay.h"
#include "image/scene.h"

enum lane { DEFAULT, LONG };

/* In the order in which they run: first the drive that the others copy. */
static const struct scenario {
    const char *id;
    enum lane lane;
    unsigned seconds; /* limit, for two quiet processors times four */
    const char *what;
    int (*run)(struct hx_scene *s, struct hx_error *err);
} scenarios[] = {
    {"audit", DEFAULT, 120, "B2, B3: nothing of one machine, no password, every licence",
     hx_scene_audit},
    {"install", DEFAULT, 600, "I1, I2: stick to blank NVMe drive, unattended; partition table",
     hx_scene_install},
    {"firstboot", DEFAULT, 400, "I1, I2: the drive boots alone, answers are in force, sockets",
     hx_scene_first_boot},
    {"wizard", LONG, 2400, "F4, F5: installer and wizard at the serial console, cut off once",
     hx_scene_wizard},
    {"model", DEFAULT, 2400, "D1, E1: download from a mirror, engine, answers through a tunnel",
     hx_scene_model},
    {"secure", DEFAULT, 500,
     "F2: keys only, no open port, the tunnel account forwards nothing else", hx_scene_secure},
    {"recovery", LONG, 900, "the boot menu's second entry: recovery, and back", hx_scene_recovery},
    {"update", LONG, 600, "U1: an update of a box in use; two entries", hx_scene_update},
    {"updated", LONG, 600, "U1, F3: the new version is blessed; key, id, answers stay",
     hx_scene_updated},
    {"corrupt", LONG, 900, "U2: new root damaged, three attempts, old version; says why",
     hx_scene_corrupt},
    {"standby", LONG, 900, "broken updates for hang, sick, stuck, lost", hx_scene_standby},
    {"hang", LONG, 1500, "U3: process 1 hangs, the watchdog resets, old version", hx_scene_hang},
    {"sick", LONG, 2400, "U4: nobody can log in, old version", hx_scene_sick},
    {"stuck", LONG, 2400, "U3: boot-complete never comes, old version", hx_scene_stuck},
    {"lost", LONG, 2400, "U4: /var cannot be mounted, old version", hx_scene_lost},
    {"upd-cuts", LONG, 3000, "U5: an update cut at 20 moments and behind every flush",
     hx_scene_cuts_update},
    {"upd-again", LONG, 1200, "U5: three of the drives that were cut, started",
     hx_scene_cuts_started},
    {"inst-cuts", LONG, 1800, "I5: an installation cut at 20 moments and behind every flush",
     hx_scene_cuts_install},
    {"over-cuts", LONG, 1800, "I6: the same onto a drive with two versions of the system",
     hx_scene_cuts_over},
    {"first-cuts", LONG, 2400, "F4: the first starts cut at 20 moments", hx_scene_cuts_first},
    {"two-drives", LONG, 900, "I3, I10: the second of two drives, from a stick of 8 GiB",
     hx_scene_two_drives},
    {"no-update", LONG, 1200, "U6 to U9: updates that are refused; a drive of another box",
     hx_scene_no_update},
    {"wrongdrive", LONG, 1200, "I4: no such drive, a small one: refused, nothing written",
     hx_scene_wrong_drive},
    {"badsticks", LONG, 1800, "I7: damage to hash tree, kernel image, boot loader of the stick",
     hx_scene_damaged_sticks},
    {"reinstall", LONG, 900, "I8: installed again, models kept", hx_scene_reinstall},
    {"sectors", LONG, 1200, "I9, F3: sectors of 4096 bytes; another host key",
     hx_scene_large_sectors},
    {"models", LONG, 900, "a second drive is given to the models, and used after the restart",
     hx_scene_models_drive},
    {"full-state", LONG, 1200, "S1: the state partition is full", hx_scene_full_state},
    {"lost-state", LONG, 1200, "S2: the state partition is broken", hx_scene_lost_state},
    {"reset", LONG, 1200, "S3: factory reset, cut off twice", hx_scene_reset},
    {"clock", LONG, 1200, "S4: 1970 and 2040", hx_scene_clock},
    {"dl-cuts", LONG, 4800, "D2: power cuts at 10, 50, 99 % and while the model is published",
     hx_scene_cuts_download},
    {"dl-seeds", LONG, 6000, "D2: power cuts at 20 seeded moments of the download",
     hx_scene_cuts_seeded},
    {"faults", LONG, 2400,
     "D3, D6, E2: a download in spite of faults, a flipped bit, a crashing engine",
     hx_scene_faults},
    {"full", LONG, 1200, "D4: the disk fills up under a download", hx_scene_full},
    {"refused", LONG, 1800, "D3: a server that says no", hx_scene_refused},
    {"offline", LONG, 1800, "D5: the model from a disk, no server within reach", hx_scene_offline},
    {"requests", LONG, 3000, "E1: a hundred requests through the tunnel", hx_scene_requests},
    {"nonet", LONG, 1800, "F1: no network at the first start, a cable later", hx_scene_no_network},
    {"damaged", LONG, 600, "I7: a damaged stick installs nothing", hx_scene_damaged},
    {"driver", LONG, 3600, "a bundle: imported, built, armed, on trial, taken back by itself",
     hx_scene_driver},
    {"drive", LONG, 900, "G: an Engram drive with a bad sector, a slow one, a pulled one",
     hx_scene_drive},
    {"repro", LONG, 900, "B1: two builds are alike, byte by byte", hx_scene_repro},
};
#define N_SCENARIOS ((int)(sizeof(scenarios) / sizeof(scenarios[0])))

static void help(FILE *to)
{
    fprintf(to, "usage: image-test [--build DIR] [--work DIR] [--long] [SCENARIO...]\n"
                "       image-test --list\n\n"
                "  --build DIR  build folder with image/work/out (build)\n"
                "  --work DIR   disks, logs and keys (BUILD/image-test); logs stay there\n"
                "  --long       the long scenarios too\n"
                "  --patience N limits N times as long, 1 to 20, for a host that is busy\n\n"
                "Exit status: 0 all passed, 1 some failed, 64 usage, 74 no folder.\n\n");
    for (int i = 0; i < N_SCENARIOS; i++)
        fprintf(to, "  %-10s %s%s\n", scenarios[i].id, scenarios[i].what,
                scenarios[i].lane == LONG ? " (long)" : "");
}

static bool chosen(const struct scenario *sc, bool with_long, char *const *ids, int n_ids)
{
    if (!n_ids)
        return sc->lane == DEFAULT || with_long;
    for (int i = 0; i < n_ids; i++)
        if (!strcmp(ids[i], sc->id))
            return true;
    return false;
}

static int run_one(const struct scenario *sc, const char *build, const char *work, int patience,
                   struct hx_error *err)
{
    struct hx_scene *s = calloc(1, sizeof(*s));
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    s->build = build;
    s->work = work;
    s->vm.log_fd = s->vm.console_fd = -1;
    s->deadline = hx_child_clock() + (int64_t)sc->seconds * patience * 1000;
    snprintf(s->stick, sizeof(s->stick), "%s/image/work/out/stick.img", build);
    snprintf(s->served, sizeof(s->served), "%s/served.disk", work);
    snprintf(s->installed, sizeof(s->installed), "%s/installed.disk", work);
    int r = 0;
    if (access(s->stick, R_OK) < 0)
        r = hx_fail(err, HX_SCENE_SKIP, "%s is missing: make image", s->stick);
    else if (!hx_vm_available(err))
        r = HX_SCENE_SKIP;
    if (!r)
        r = sc->run(s, err);
    hx_ssh_close(&s->ssh);
    hx_vm_close(&s->vm);
    free(s);
    return r;
}

/* Processor time of what has ended below this process, QEMU above all: on a busy host the wall
 * clock says nothing about how long a scenario takes on a quiet one. */
static double cpu_seconds(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_CHILDREN, &u) < 0)
        return 0;
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int run_all(const char *build, const char *work, bool with_long, int patience,
                   char *const *ids, int n_ids)
{
    int n_passed = 0, n_failed = 0, n_skipped = 0;
    for (int i = 0; i < N_SCENARIOS; i++) {
        const struct scenario *sc = &scenarios[i];
        if (!chosen(sc, with_long, ids, n_ids))
            continue;
        struct hx_error err = {0};
        int64_t start = hx_child_clock();
        double cpu = cpu_seconds();
        int r = run_one(sc, build, work, patience, &err);
        double seconds = (double)(hx_child_clock() - start) / 1000;
        if (r == HX_SCENE_SKIP) {
            n_skipped++;
            printf("%-10s skipped: %s\n", sc->id, err.text);
        } else if (r) {
            n_failed++;
            printf("%-10s FAILED after %.0f s: %s\n", sc->id, seconds, err.text);
        } else {
            n_passed++;
            printf("%-10s passed, %.0f s, %.0f s of processor time\n", sc->id, seconds,
                   cpu_seconds() - cpu);
        }
        fflush(stdout);
    }
    hx_scene_targets();
    if (n_failed)
        printf("serial logs: %s/*.serial\n", work);
    printf("%d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    return n_failed || n_passed + n_skipped == 0 ? 1 : 0;
}

/* What QEMU starts for each connection to the files (vm_args.c). */
static int relay(const char *text)
{
    struct hx_error err;
    unsigned port = 0;
    if (sscanf(text, "%5u", &port) != 1 || port == 0 || port > 65535)
        return EX_USAGE;
    if (hx_relay(port, &err) == 0)
        return 0;
    fprintf(stderr, "image-test: %s\n", err.text);
    return EX_UNAVAILABLE;
}

int main(int argc, char **argv)
{
    static const struct option rows[] = {
        {"build", required_argument, NULL, 'b'},    {"work", required_argument, NULL, 'w'},
        {"patience", required_argument, NULL, 'p'}, {"long", no_argument, NULL, 'l'},
        {"list", no_argument, NULL, 'i'},           {"help", no_argument, NULL, 'h'},
        {"relay", required_argument, NULL, 'r'},    {0}};
    const char *build = "build", *work = NULL;
    bool with_long = false;
    int patience = 1;
    char folder[300];
    for (int c; (c = getopt_long(argc, argv, "", rows, NULL)) != -1;) {
        switch (c) {
        case 'b': build = optarg; break;
        case 'w': work = optarg; break;
        case 'r': return relay(optarg);
        case 'l': with_long = true; break;
        case 'p':
            if (sscanf(optarg, "%2d", &patience) != 1 || patience < 1 || patience > 20) {
                fprintf(stderr, "image-test: --patience takes 1 to 20, not '%s'\n", optarg);
                return EX_USAGE;
            }
            break;
        case 'i':
        case 'h': help(stdout); return 0;
        default: help(stderr); return EX_USAGE;
        }
    }
    for (int i = optind; i < argc; i++) {
        int k = 0;
        while (k < N_SCENARIOS && strcmp(scenarios[k].id, argv[i]) != 0)
            k++;
        if (k == N_SCENARIOS) {
            fprintf(stderr, "image-test: there is no scenario '%s'; see --list\n", argv[i]);
            return EX_USAGE;
        }
    }
    if (!work) {
        snprintf(folder, sizeof(folder), "%s/image-test", build);
        work = folder;
    }
    if (mkdir(work, 0700) < 0 && errno != EEXIST) {
        fprintf(stderr, "image-test: folder %s: %s\n", work, strerror(errno));
        return EX_IOERR;
    }
    return run_all(build, work, with_long, patience, argv + optind, argc - optind);
}
