/* image-test: scenarios of docs/image-tests.md, one after the other, in software emulation. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include "image/lane.h"
#include "image/relay.h"

enum { DEFAULT = false, LONG = true };

/* In the order in which they start: what is for a quiet host, then what takes long, so that several
 * at a time end together. */
static const struct hx_scenario scenarios[] = {
    {"audit", DEFAULT, 120, "B2, B3: nothing of one machine, no password, every licence",
     hx_scene_audit, NULL, HX_LANE_HOST},
    {"install", DEFAULT, 600, "I1, I2: stick to blank NVMe drive, unattended; partition table",
     hx_scene_install, NULL, HX_LANE_HOST},
    {"firstboot", DEFAULT, 400, "I1, I2: the drive boots alone, answers are in force, sockets",
     hx_scene_first_boot, "install", HX_LANE_HOST},
    {"model", DEFAULT, 2400, "D1, E1: download from a mirror, engine, answers through a tunnel",
     hx_scene_model, "install", HX_LANE_HOST},
    {"secure", DEFAULT, 500,
     "F2: keys only, no open port, the tunnel account forwards nothing else", hx_scene_secure,
     "install", HX_LANE_HOST},
    {"wizard", LONG, 2400, "F4, F5: installer and wizard at the serial console, cut off once",
     hx_scene_wizard, NULL, 0},
    {"recovery", LONG, 900, "the boot menu's second entry: recovery, and back", hx_scene_recovery,
     "install", 0},
    {"update", LONG, 600, "U1: an update of a box in use; two entries", hx_scene_update,
     "firstboot", 0},
    {"updated", LONG, 600, "U1, F3: the new version is blessed; key, id, answers stay",
     hx_scene_updated, "update", 0},
    {"corrupt", LONG, 900, "U2: new root damaged, three attempts, old version; says why",
     hx_scene_corrupt, "update", 0},
    {"standby", LONG, 900, "broken updates for hang, sick, stuck, lost", hx_scene_standby,
     "firstboot", 0},
    {"dl-seeds", LONG, 6000, "D2: power cuts at 20 seeded moments of the download",
     hx_scene_cuts_seeded, "install", HX_LANE_MIRROR},
    {"requests", LONG, 3000, "E1: a hundred requests through the tunnel", hx_scene_requests,
     "model", 0},
    {"hang", LONG, 1500, "U3: process 1 hangs, the watchdog resets, old version", hx_scene_hang,
     "standby", 0},
    {"sick", LONG, 2400, "U4: nobody can log in, old version", hx_scene_sick, "standby", 0},
    {"stuck", LONG, 2400, "U3: boot-complete never comes, old version", hx_scene_stuck, "standby",
     0},
    {"lost", LONG, 2400, "U4: /var cannot be mounted, old version", hx_scene_lost, "standby", 0},
    {"upd-cuts", LONG, 3000, "U5: an update cut at 20 moments and behind every flush",
     hx_scene_cuts_update, "firstboot", 0},
    {"upd-again", LONG, 1200, "U5: three of the drives that were cut, started",
     hx_scene_cuts_started, "upd-cuts", 0},
    {"two-drives", LONG, 900, "I3, I10: the second of two drives, from a stick of 8 GiB",
     hx_scene_two_drives, NULL, 0},
    {"inst-cuts", LONG, 1800, "I5: an installation cut at 20 moments and behind every flush",
     hx_scene_cuts_install, NULL, 0},
    {"over-cuts", LONG, 1800, "I6: the same onto a drive with two versions of the system",
     hx_scene_cuts_over, "update", 0},
    {"first-cuts", LONG, 2400, "F4: the first starts cut at 20 moments", hx_scene_cuts_first,
     "install", 0},
    {"no-update", LONG, 1200, "U6 to U9: updates that are refused; a drive of another box",
     hx_scene_no_update, "two-drives", 0},
    {"wrongdrive", LONG, 1200, "I4: no such drive, a small one: refused, nothing written",
     hx_scene_wrong_drive, NULL, 0},
    {"badsticks", LONG, 1800, "I7: damage to hash tree, kernel image, boot loader of the stick",
     hx_scene_damaged_sticks, NULL, 0},
    {"reinstall", LONG, 900, "I8: installed again, models kept", hx_scene_reinstall, "firstboot",
     0},
    {"sectors", LONG, 1200, "I9, F3: sectors of 4096 bytes; another host key",
     hx_scene_large_sectors, "firstboot", 0},
    {"models", LONG, 900, "a second drive is given to the models, and used after the restart",
     hx_scene_models_drive, "install", 0},
    {"full-state", LONG, 1200, "S1: the state partition is full", hx_scene_full_state, "firstboot",
     0},
    {"lost-state", LONG, 1200, "S2: the state partition is broken", hx_scene_lost_state,
     "firstboot", 0},
    {"reset", LONG, 1200, "S3: factory reset, cut off twice", hx_scene_reset, "firstboot", 0},
    {"clock", LONG, 1200, "S4: 1970 and 2040", hx_scene_clock, "firstboot", 0},
    {"dl-cuts", LONG, 4800, "D2: power cuts at 10, 50, 99 % and while the model is published",
     hx_scene_cuts_download, "install", HX_LANE_MIRROR},
    {"faults", LONG, 2400,
     "D3, D6, E2: a download in spite of faults, a flipped bit, a crashing engine", hx_scene_faults,
     "install", HX_LANE_MIRROR},
    {"full", LONG, 1200, "D4: the disk fills up under a download", hx_scene_full, "install",
     HX_LANE_MIRROR},
    {"refused", LONG, 1800, "D3: a server that says no", hx_scene_refused, "install",
     HX_LANE_MIRROR},
    {"offline", LONG, 1800, "D5: the model from a disk, no server within reach", hx_scene_offline,
     "install", HX_LANE_MIRROR},
    {"nonet", LONG, 1800, "F1: no network at the first start, a cable later", hx_scene_no_network,
     "install", 0},
    {"damaged", LONG, 600, "I7: a damaged stick installs nothing", hx_scene_damaged, NULL, 0},
    {"driver", LONG, 3600, "a bundle: imported, built, armed, on trial, taken back by itself",
     hx_scene_driver, "install", 0},
    {"drive", LONG, 900, "G: an Engram drive with a bad sector, a slow one, a pulled one",
     hx_scene_drive, NULL, 0},
    {"repro", LONG, 900, "B1: two builds are alike, byte by byte", hx_scene_repro, NULL,
     HX_LANE_HOST},
};
#define N_SCENARIOS ((int)(sizeof(scenarios) / sizeof(scenarios[0])))

static void help(FILE *to)
{
    fprintf(to, "usage: image-test [--build DIR] [--work DIR] [--long] [SCENARIO...]\n"
                "       image-test --list\n\n"
                "  --build DIR  build folder with image/work/out (build)\n"
                "  --work DIR   disks, logs and keys (BUILD/image-test); logs stay there\n"
                "  --long       the long scenarios too\n"
                "  --patience N limits N times as long, 1 to 20, for a host that is busy\n"
                "  --jobs N     N scenarios at a time, 1 to 16 (1); those whose times are\n"
                "               targets run alone\n"
                "  --go-on      without those that have passed in the work folder, with the same\n"
                "               image and the same image-test\n\n"
                "Exit status: 0 all passed, 1 some failed, 64 usage, 74 no folder.\n\n");
    for (int i = 0; i < N_SCENARIOS; i++)
        fprintf(to, "  %-10s %s%s\n", scenarios[i].id, scenarios[i].what,
                scenarios[i].is_long ? " (long)" : "");
}

static bool chosen(const struct hx_scenario *sc, bool with_long, char *const *ids, int n_ids)
{
    if (!n_ids)
        return !sc->is_long || with_long;
    for (int i = 0; i < n_ids; i++)
        if (!strcmp(ids[i], sc->id))
            return true;
    return false;
}

/* An option's number from 1 to `most`. */
static bool number(const char *option, const char *text, int most, int *out)
{
    if (sscanf(text, "%2d", out) == 1 && *out >= 1 && *out <= most)
        return true;
    fprintf(stderr, "image-test: --%s takes 1 to %d, not '%s'\n", option, most, text);
    return false;
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
        {"relay", required_argument, NULL, 'r'},    {"jobs", required_argument, NULL, 'j'},
        {"go-on", no_argument, NULL, 'g'},          {0}};
    const char *build = "build", *work = NULL;
    bool with_long = false, goes_on = false, is_chosen[N_SCENARIOS];
    int patience = 1, jobs = 1;
    char folder[300];
    for (int c; (c = getopt_long(argc, argv, "", rows, NULL)) != -1;) {
        switch (c) {
        case 'b': build = optarg; break;
        case 'w': work = optarg; break;
        case 'r': return relay(optarg);
        case 'l': with_long = true; break;
        case 'p':
            if (!number("patience", optarg, 20, &patience))
                return EX_USAGE;
            break;
        case 'g': goes_on = true; break;
        case 'j':
            if (!number("jobs", optarg, 16, &jobs))
                return EX_USAGE;
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
    for (int i = 0; i < N_SCENARIOS; i++)
        is_chosen[i] = chosen(&scenarios[i], with_long, argv + optind, argc - optind);
    struct hx_lane lane = {scenarios, N_SCENARIOS, is_chosen, build, work, patience, jobs, goes_on};
    return hx_lane_run(&lane) ? 0 : 1;
}
