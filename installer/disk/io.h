/* One disk, or an image file in its place, that the installer and the updater write to. Every
 * write and every flush is shown to a watcher first, which drives progress displays and lets tests
 * stop at any of them, as a power cut would. */
#ifndef HX_DISK_IO_H
#define HX_DISK_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#define HX_DISK_PATH  1024
#define HX_DISK_CHUNK (1u << 20) /* bytes written at a time */
#define HX_DISK_MIB   (1ull << 20)
#define HX_DISK_GIB   (1ull << 30)

enum hx_disk_act {
    HX_DISK_WRITE, /* data at offset */
    HX_DISK_FLUSH, /* what was written before survives a power cut from here on */
    HX_DISK_FILE,  /* a file of the ESP is written, renamed or removed; path says which */
};

struct hx_disk_event {
    enum hx_disk_act act;
    const char *path;
    uint64_t offset;
    const void *data; /* len bytes, only for WRITE */
    size_t len;
};

struct hx_disk_watch {
    void *ctx;
    /* Before the act; a negative value stops everything there and is what the caller gets. */
    int (*before)(void *ctx, const struct hx_disk_event *event, struct hx_error *err);
};

struct hx_disk {
    int fd; /* -1: closed */
    char path[HX_DISK_PATH];
    uint64_t n_bytes;
    unsigned sector; /* bytes: 512 or 4096 */
    bool is_device;
    const struct hx_disk_watch *watch; /* NULL: none */
};

enum hx_disk_mode {
    HX_DISK_READ,
    HX_DISK_ALONE,  /* for writing; -EBUSY if anything of the device is mounted */
    HX_DISK_SHARED, /* for writing beside mounted partitions of the same device */
};

/* sector: of an image file (0: 512); a device says itself. -EINVAL: neither file nor block device,
 * or odd sectors. */
int hx_disk_open(const char *path, enum hx_disk_mode mode, unsigned sector, struct hx_disk *out,
                 struct hx_error *err) HX_MUST;
void hx_disk_close(struct hx_disk *d);

int hx_disk_read(const struct hx_disk *d, void *to, size_t len, uint64_t offset,
                 struct hx_error *err) HX_MUST;
int hx_disk_write(struct hx_disk *d, const void *data, size_t len, uint64_t offset,
                  struct hx_error *err) HX_MUST;
int hx_disk_zero(struct hx_disk *d, uint64_t offset, uint64_t len, struct hx_error *err) HX_MUST;
int hx_disk_flush(struct hx_disk *d, struct hx_error *err) HX_MUST;
/* The page cache forgets the disk, so that what is read next comes from it. */
void hx_disk_forget(const struct hx_disk *d);
/* Asks the kernel to read the partition table again; not fatal, the next start reads it anyway. */
void hx_disk_reread(const struct hx_disk *d);

/* For files of the ESP: the same question to the watcher. */
int hx_disk_announce(const struct hx_disk_watch *watch, const struct hx_disk_event *event,
                     struct hx_error *err) HX_MUST;

#endif
