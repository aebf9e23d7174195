/* The wizard on the serial console of the real machine: from the stick onto a blank drive, then the
 * first start, which is cut off in the middle. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "image/kit.h"
#include "image/play.h"
#include "image/rawdisk.h"

#define SCREENS    "tests/image/screens/wizard.txt"
#define SLOW_BYTES "300000000" /* a second */

static const struct hx_play_question installer[] = {
    {"Step 1 of 7.", "Keyboard:", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 1 of 7.", "Type some signs to test it", HX_PLAY_TEXT, NULL, NULL, "qwertz"},
    {"Step 2 of 7.", "Check this stick", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 3 of 7.", "What to do:", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 4 of 7.", "Disk:", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 5 of 7.", "Type the last four characters", HX_PLAY_TEXT, "0002",
     "not the end of this disk's serial number", "0001"},
    {"Step 7 of 7.", "Remove the stick now", HX_PLAY_GO, NULL, NULL, ""},
};

/* Up to the power cut. */
static const struct hx_play_question before[] = {
    {"Step 1 of 10.", "Name:", HX_PLAY_TEXT, "a b", "1 to 63 letters", "box-w"},
    {"Step 2 of 10.", "Public key or path:", HX_PLAY_TEXT, "hello", "no SSH public key", "@key"},
    {"Step 2 of 10.", "Another key:", HX_PLAY_TEXT, "/media/none", "No such file", ""},
    {"Step 3 of 10.", "Which:", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 3 of 10.", "Name servers:", HX_PLAY_TEXT, "dns.example", "addresses of name servers",
     ""},
    {"Step 3 of 10.", "VLAN number:", HX_PLAY_TEXT, "4095", "from 0 to 4094", "0"},
    {"Step 3 of 10.", "Proxy:", HX_PLAY_TEXT, "proxy:1", "http://proxy.example", ""},
    {"Step 4 of 10.", "Time source:", HX_PLAY_TEXT, "a,b", "names of time servers", "later"},
};

static const struct hx_play_question after[] = {
    {"Step 5 of 10.", "Bundle:", HX_PLAY_TEXT, "/media/none", "is not there", "none"},
    {"Step 6 of 10.", "Go on all the same", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 7 of 10.", "Model:", HX_PLAY_PICK, NULL, NULL, "1"},
    {"Step 7 of 10.", "Lock file:", HX_PLAY_TEXT, "/media/none", "is not there", NULL},
    {"Step 7 of 10.", "Model:", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 8 of 10.", "Watts per card:", HX_PLAY_TEXT, "50", "from 100 to 300", "180"},
    {"Step 8 of 10.", "Layout:", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 8 of 10.", "Tokens of one conversation:", HX_PLAY_TEXT, "10", "from 1024 to 1048576",
     "65536"},
    {"Step 9 of 10.", "Put this in force", HX_PLAY_PICK, NULL, NULL, "0"},
    {"Step 10 of 10.", "Log in:", HX_PLAY_GO, NULL, NULL, ""},
};

#define ASK(p, rows, err) hx_play_questions(p, rows, sizeof(rows) / sizeof((rows)[0]), err)

/* The stick and a blank drive; ends with the machine's own restart. */
static int install(struct hx_play *p, struct hx_scene *s, const char *disk, const char *kept,
                   struct hx_error *err)
{
    bool watched = false;
    char vars[512];
    hx_kit_path(s, "wizard", "vars", vars, sizeof(vars));
    unlink(vars); /* another machine than last time's */
    int r = hx_rawdisk_blank(disk, HX_SCENE_TARGET_BYTES, err);
    if (!r)
        r = hx_scene_setup(s, "wizard", err);
    if (r)
        return r;
    hx_scene_add_disk(s, s->stick, HX_VM_USB)->snapshot = true;
    hx_scene_add_disk(s, disk, HX_VM_NVME)->serial = HX_SCENE_SERIAL;
    s->setup.stop_at_reboot = true;
    r = hx_play_start(p, s, kept, err);
    if (!r)
        r = hx_play_find(p, &watched, err);
    if (!r)
        r = ASK(p, installer, err);
    if (!r)
        r = hx_vm_wait_exit(&s->vm, s->deadline, err);
    return r;
}

/* The drive alone: the first screens, a power cut, and on from the screen that was open. */
static int first_start(struct hx_play *p, struct hx_scene *s, const char *disk,
                       struct hx_error *err)
{
    bool watched = false, cut_watched = false;
    s->setup.n_disks = 0;
    s->setup.stop_at_reboot = false;
    hx_scene_add_disk(s, disk, HX_VM_NVME)->serial = HX_SCENE_SERIAL;
    int r = hx_play_again(p, err);
    if (!r)
        r = hx_play_find(p, &watched, err);
    if (!r)
        r = ASK(p, before, err);
    if (!r)
        r = hx_play_see(p, "Step 5 of 10.", "Bundle:", err);
    if (r)
        return r;
    hx_vm_kill(&s->vm);
    r = hx_play_again(p, err);
    /* Whatever the host's drive can do, the hardware report calls this one slow. */
    if (!r)
        r = hx_vm_monitor(&s->vm, "block_set_io_throttle disk0 0 " SLOW_BYTES " 0 0 0 0", NULL,
                          err);
    if (!r)
        r = hx_play_find(p, &cut_watched, err);
    if (!r)
        r = ASK(p, after, err);
    printf("# the wizard came up at the other console first: %s, %s\n", watched ? "yes" : "no",
           cut_watched ? "yes" : "no");
    return r;
}

/* What was answered is in force, and the key that was pasted opens the door. */
static int check_box(struct hx_scene *s, struct hx_error *err)
{
    static const struct hx_check rows[] = {
        {"host name", "cat /proc/sys/kernel/hostname", "box-w\n"},
        {"answers",
         "grep -E '^(hostname|network|ntp|context|power_cap_watts) ' /run/hx170/box.conf",
         "hostname = box-w\nnetwork = dhcp\nntp = later\npower_cap_watts = 180\ncontext = 65536\n"},
        {"one key", "grep -c ^admin_key /run/hx170/box.conf", "1\n"},
        {"no draft", "hx root sh -c 'ls /var/lib/hx170/config'", "box.conf\n"},
        {"transcript", "hx root grep -c 'Step 9 of 10: Review' /var/lib/hx170/setup.log", "1\n"},
        {"no cards", "hx status | grep ^Cards",
         "Cards:     0, no CMP 170HX; only the demo model can run\n"},
    };
    int r = hx_vm_ssh_port(&s->vm, &s->ssh.port, err);
    s->ssh.user = "admin";
    if (!r)
        r = hx_ssh_wait(&s->ssh, s->deadline, err);
    return r ? r : hx_scene_checks(s, rows, sizeof(rows) / sizeof(rows[0]), err);
}

int hx_scene_wizard(struct hx_scene *s, struct hx_error *err)
{
    struct hx_play p = {0};
    char disk[512], *kept = NULL;
    size_t n;
    snprintf(disk, sizeof(disk), "%s/wizard.disk", s->work);
    if (hx_file_read(SCREENS, 1 << 20, &kept, &n, NULL))
        kept = NULL;
    int r = hx_ssh_make_key(&s->ssh, s->work, err);
    if (!r)
        r = install(&p, s, disk, kept ? kept : "", err);
    if (!r)
        r = first_start(&p, s, disk, err);
    if (!r)
        r = check_box(s, err);
    r = hx_play_verdict(&p, SCREENS, r, err);
    hx_play_done(&p);
    free(kept);
    return r;
}
