/* A driver bundle in the machine: from a stick into the wizard, built by the kit, armed, loaded at
 * the next start, and, since a card of sysfs files alone keeps no promise, taken back by itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "image/kit.h"

#define OFF_MS   40000 /* power has to be off for 30 s between arming and the trial */
#define MEDIUM   "/run/hx170/media/sda"
#define IN_SLOT  "hx root hx-cards bundle status --json"
#define N_LOADED "grep -c '^nvidia' /proc/modules"

/* QEMU has no card of that maker: one is laid over the list of PCI devices, before anything looks.
 */
static const char card_unit[] =
    "[Unit]\nDescription=A card for the test\nDefaultDependencies=no\n"
    "Before=hx-driver.service hx-check.service\n"
    "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
    "ExecStart=/bin/sh -ec 'd=/run/hx-test-card; mkdir -p $d/0000:0b:00.0; "
    "for p in /sys/bus/pci/devices/*; do ln -s $(readlink -f $p) $d/; done; cd $d/0000:0b:00.0; "
    "echo 0x10de >vendor; echo 0x20c2 >device; echo 0x030200 >class; "
    "echo 0x10de >subsystem_vendor; echo 0x1585 >subsystem_device; echo 0xa1 >revision; "
    "mount --bind $d /sys/bus/pci/devices'\n";
static const char card_wanted[] =
    "[Unit]\nWants=hx-test-card.service\nAfter=hx-test-card.service\n";

/* The stick, once for each image. */
static int make_stick(struct hx_scene *s, const char *stick, struct hx_error *err)
{
    char kit[400], version[64], python[300], venv[300], kernel[100];
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    int code = -1;
    int r = hx_kit_version(s, version, sizeof(version), err);
    if (r)
        return r;
    snprintf(kit, sizeof(kit), "%s/image/work/out/hx170-%s.kit", s->build, version);
    if (access(kit, R_OK) < 0)
        return hx_fail(err, HX_SCENE_SKIP, "%s is missing: make image-kit makes it", kit);
    char *text = NULL, path[400];
    size_t n;
    snprintf(path, sizeof(path), "%s/image/work/kernel", s->build);
    r = hx_file_read(path, 80, &text, &n, err);
    if (r)
        return r;
    snprintf(kernel, sizeof(kernel), "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
    snprintf(venv, sizeof(venv), "%s/venv", s->build);
    snprintf(python, sizeof(python), "%s/bin/python", venv);
    const char *const prepare[] = {"scripts/venv.sh", venv, NULL};
    const char *const make[] = {python,  "-B", "tests/image/driver_stick.py", stick, kernel, kit,
                                version, NULL};
    r = hx_child_run(prepare, NULL, &out, &code, s->deadline, err);
    if (!r && code == 0)
        r = hx_child_run(make, NULL, &out, &code, s->deadline, err);
    if (!r && code)
        r = hx_fail(err, -EIO, "the stick: exit status %d: %.300s", code, hx_buf_cstr(&out));
    hx_buf_done(&out);
    return r;
}

/* Off for a while, as the wizard asks, then on again up to the end of the start. */
static int cold_start(struct hx_scene *s, struct hx_error *err)
{
    int r = hx_kit_power_off(s, err);
    if (r)
        return r;
    hx_child_sleep(OFF_MS, s->deadline);
    return hx_kit_boot(s, err);
}

int hx_scene_driver(struct hx_scene *s, struct hx_error *err)
{
    char stick[512];
    hx_kit_path(s, "driver", "stick", stick, sizeof(stick));
    int r = make_stick(s, stick, err);
    if (!r)
        r = hx_kit_machine(s, "driver", s->installed, err);
    if (r)
        return r;
    struct hx_vm_disk *d = hx_scene_add_disk(s, stick, HX_VM_USB);
    d->read_only = true;
    d->boot = -1;
    s->setup.memory_mib = 2048; /* the compiler */
    static const struct hx_vm_credential card[] = {
        {"systemd.extra-unit.hx-test-card.service", card_unit},
        {"systemd.unit-dropin.hx-driver.service", card_wanted},
    };
    for (size_t i = 0; i < 2; i++)
        s->setup.credentials[s->setup.n_credentials++] = card[i];
    r = hx_kit_boot(s, err);
    int64_t start = hx_child_clock();
    /* Refused first: the bundle's licence is not accepted. Then it is. */
    if (!r)
        r = hx_kit_expect(s, "printf '" MEDIUM "/standin\\nno\\nq\\n' | hx-setup --plain driver",
                          75, "The bundle comes under the licence 'GPL-2.0'", err);
    if (!r)
        r = hx_kit_expect(s, IN_SLOT, 0, "\"absent\"", err);
    if (!r)
        r = hx_kit_expect(s, "printf '" MEDIUM "/standin\\nyes\\n' | hx-setup --plain driver", 0,
                          "Installing the driver bundle", err);
    if (!r)
        r = hx_kit_expect(s, IN_SLOT, 0, "\"armed\"", err);
    if (r)
        return r;
    hx_scene_measure("bundle imported, built and armed", (double)(hx_child_clock() - start) / 1000,
                     "s");
    r = cold_start(s, err);
    /* On trial it was loaded from the slot; the judge saw no driver that answers. */
    if (!r)
        r = hx_kit_expect(s, N_LOADED, 0, "2", err);
    if (!r)
        r = hx_kit_expect(s, IN_SLOT, 0, "\"rolled_back\"", err);
    if (!r)
        r = hx_kit_expect(s, "hx status | grep ^Cards", 0,
                          "not ready; what to do: hx-setup hardware", err);
    if (!r)
        r = hx_kit_expect(s, "printf 'q\\n' | hx-setup --plain hardware", 75,
                          "Something has to be fixed before the model can run", err);
    if (!r)
        r = cold_start(s, err);
    if (!r)
        r = hx_kit_expect(s, N_LOADED, 1, "0", err);
    unlink(stick);
    return r;
}
