/* Steps that the scenarios on an installed drive share: a machine on a copy of a drive, commands in
 * it with what they have to say, update bundles of other versions, files put into the ext4 of a
 * drive that lies still. */
#ifndef HX_TESTS_IMAGE_KIT_H
#define HX_TESTS_IMAGE_KIT_H

#include "base/sha256.h"
#include "image/scene.h"

/* Versions that tests/image/variant.sh makes; the number is put behind the image's own version. */
enum hx_kit_fault {
    HX_KIT_GOOD,
    HX_KIT_HANG,
    HX_KIT_SICK,
    HX_KIT_STUCK,
    HX_KIT_LOST,
    HX_KIT_NEXT, /* good as well, later than all others */
    HX_KIT_FAULTS
};

struct hx_kit_bundle {
    char path[300];
    char version[40];
};

/* IMAGE_VERSION of the built image. */
int hx_kit_version(const struct hx_scene *s, char *out, size_t size, struct hx_error *err) HX_MUST;
/* Made once, and again when the image is another one. */
int hx_kit_bundle(struct hx_scene *s, enum hx_kit_fault fault, struct hx_kit_bundle *out,
                  struct hx_error *err) HX_MUST;

/* "WORK/NAME.SUFFIX" */
void hx_kit_path(const struct hx_scene *s, const char *name, const char *suffix, char *out,
                 size_t size);
/* Moments of power cuts follow from this seed, so that a failure can be repeated. */
#define HX_KIT_SEED 0x170170170ull
#define HX_KIT_CUTS 20
uint64_t hx_kit_random(uint64_t *state);

/* Describes the machine NAME with a copy of the drive `from` as NAME.disk, fresh firmware variables
 * and the answers as credential; further disks may be added before it is started. */
int hx_kit_machine(struct hx_scene *s, const char *name, const char *from,
                   struct hx_error *err) HX_MUST;
/* The firmware's line at every start, and again behind a restart. */
#define HX_KIT_STARTS "BdsDxe: starting"
/* Starts what is described (again after hx_kit_cut), learns the port, waits for the firmware. */
int hx_kit_start(struct hx_scene *s, struct hx_error *err) HX_MUST;
int hx_kit_login(struct hx_scene *s, struct hx_error *err) HX_MUST;
/* Power cut. */
void hx_kit_cut(struct hx_scene *s);
/* Orderly power off from inside, until QEMU has ended. */
int hx_kit_power_off(struct hx_scene *s, struct hx_error *err) HX_MUST;
/* The drive as a power cut in this moment would leave it, as the file `to`; the machine goes on. */
int hx_kit_snapshot(struct hx_scene *s, const char *to, struct hx_error *err) HX_MUST;

/* A command as admin: its exit status, and words that its output has to hold (NULL: any). */
int hx_kit_expect(struct hx_scene *s, const char *command, int status, const char *words,
                  struct hx_error *err) HX_MUST;
/* The first line of what a command says; status 0. */
int hx_kit_ask(struct hx_scene *s, const char *command, char *out, size_t size,
               struct hx_error *err) HX_MUST;
/* Waits until the start has come to its end, the demo model left aside; no unit may have failed. */
int hx_kit_settled(struct hx_scene *s, struct hx_error *err) HX_MUST;
/* Start, login, and that. */
int hx_kit_boot(struct hx_scene *s, struct hx_error *err) HX_MUST;

/* One command of debugfs on partition `number` of a drive image, with write access. */
int hx_kit_debugfs(struct hx_scene *s, const char *disk, unsigned number, const char *command,
                   struct hx_buf *out, struct hx_error *err) HX_MUST;
/* SHA-256 of the host key on the state partition of a drive that lies still. */
int hx_kit_host_key(struct hx_scene *s, const char *disk, char hex[HX_SHA256_HEX],
                    struct hx_error *err) HX_MUST;
/* First byte and size of a partition of a drive image with sectors of 512 bytes. */
int hx_kit_partition(const char *disk, unsigned number, uint64_t *at, uint64_t *n_bytes,
                     struct hx_error *err) HX_MUST;

/* Whether the drive comes up from every boot entry, and has n_wanted of them: those of the image
 * and of the bundle may be there. */
int hx_kit_entries(struct hx_scene *s, const char *disk, const struct hx_kit_bundle *b,
                   unsigned n_wanted, struct hx_error *err) HX_MUST;

#endif
