/* Sticks and disks on USB that the owner brings keys, bundles and models on: mounted read-only
 * below /run/hx170/media, each under its partition's name. */
#ifndef HX_SETUP_MEDIA_H
#define HX_SETUP_MEDIA_H

#include "setup/setup.h"

#define HX_MEDIA     "/run/hx170/media"
#define HX_MEDIA_MAX 16

/* Names of block devices on USB that may hold a file system: partitions, and whole disks without
 * any. By name, at most HX_MEDIA_MAX; the number of them. */
int hx_media_list(const struct hx_root *root, char names[HX_MEDIA_MAX][64]);
/* Mounts what is not mounted yet. What cannot be mounted is left out. Nothing on a recorded machine
 * and without root's rights. */
void hx_media_mount(struct hx_setup *s);
/* The build kit of this version, hx170-VERSION.kit at the top of the ESP or of a medium: its path,
 * "" if there is none. hx_media_mount mounts it where hx-cards looks for one, if it is signed
 * (kit.h). */
void hx_media_find_kit(const struct hx_setup *s, char out[HX_ROOT_PATH]);
/* One device, on whatever bus, below HX_MEDIA by its last name. device: a whole path. */
int hx_media_mount_device(const struct hx_setup *s, const char *device,
                          struct hx_error *err) HX_MUST;
/* Waits a while for a path below HX_MEDIA: at power-on a stick takes some seconds to come up. */
void hx_media_await(struct hx_setup *s, const char *path);
/* A file at the top of the ESP or of a medium: its path, "" if none has it. */
void hx_media_find(const struct hx_setup *s, const char *name, char out[HX_ROOT_PATH]);

#endif
