#include "setup/media.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "setup/kit.h"

#define BLOCK   "/sys/class/block"
#define KIT     "/run/hx170/kit"
#define VERSION "/usr/share/hx170/version"
#define AWAIT_S 20

static bool on_usb(const struct hx_root *root, const char *name)
{
    char link[HX_ROOT_PATH], at[HX_ROOT_PATH];
    if (snprintf(link, sizeof(link), BLOCK "/%s", name) >= (int)sizeof(link) ||
        hx_root_resolve(root, link, at) < 0)
        return false;
    return strstr(at, "/usb") != NULL;
}

static bool has_file(const struct hx_root *root, const char *name, const char *file)
{
    char at[HX_ROOT_PATH];
    return snprintf(at, sizeof(at), BLOCK "/%s/%s", name, file) < (int)sizeof(at) &&
           hx_root_exists(root, at);
}

/* A disk whose partitions are listed is none itself. */
static bool has_partitions(const struct hx_root *root, const struct hx_names *all, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < all->n; i++) {
        if (strncmp(all->name[i], name, n) == 0 && all->name[i][n] &&
            has_file(root, all->name[i], "partition"))
            return true;
    }
    return false;
}

int hx_media_list(const struct hx_root *root, char names[HX_MEDIA_MAX][64])
{
    struct hx_names all = {0};
    struct hx_error err;
    int n = 0;
    if (hx_root_list(root, BLOCK, &all, &err) < 0)
        return 0;
    for (size_t i = 0; i < all.n && n < HX_MEDIA_MAX; i++) {
        const char *name = all.name[i];
        if (strlen(name) >= 64 || !on_usb(root, name))
            continue;
        if (has_file(root, name, "partition") || !has_partitions(root, &all, name))
            snprintf(names[n++], 64, "%.63s", name);
    }
    hx_names_done(&all);
    return n;
}

static bool usable(const struct hx_setup *s)
{
    return !*s->root_dir && geteuid() == 0;
}

/* Trying one type after the other would make the kernel complain on the consoles, over the
 * wizard's windows. NULL: none of these. A disk that another service has mounted for itself is read
 * all the same: whether it may be mounted once more is the kernel's to say. */
static const char *type_of(const char *device)
{
    static const struct {
        size_t at;
        const char *magic, *type;
    } rows[] = {
        {54, "FAT", "vfat"},      {82, "FAT32", "vfat"},    {1080, "\x53\xEF", "ext4"},
        {3, "EXFAT   ", "exfat"}, {3, "NTFS    ", "ntfs3"}, {0, "XFSB", "xfs"},
    };
    char head[2048];
    int fd = open(device, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    ssize_t n = pread(fd, head, sizeof(head), 0);
    close(fd);
    for (size_t i = 0; n == sizeof(head) && i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (memcmp(head + rows[i].at, rows[i].magic, strlen(rows[i].magic)) == 0)
            return rows[i].type;
    }
    return NULL;
}

/* name: as it is called below HX_MEDIA. False: it cannot be mounted. */
static bool mount_one(const char *device, const char *name)
{
    char at[120];
    struct stat here, above;
    struct hx_error err;
    if (snprintf(at, sizeof(at), HX_MEDIA "/%s", name) >= (int)sizeof(at) ||
        hx_setup_folders(at, &err) < 0 || (mkdir(at, 0755) < 0 && errno != EEXIST))
        return false;
    if (stat(at, &here) < 0 || stat(HX_MEDIA, &above) < 0)
        return false;
    bool mounted = here.st_dev != above.st_dev; /* already */
    const char *type = mounted ? NULL : type_of(device);
    if (type)
        mounted = mount(device, at, type, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0;
    if (!mounted)
        rmdir(at);
    return mounted;
}

void hx_media_find_kit(const struct hx_setup *s, char out[HX_ROOT_PATH])
{
    char version[64], name[96];
    out[0] = '\0';
    if (hx_root_text(s->root, VERSION, version, sizeof(version)) < 0)
        return;
    snprintf(name, sizeof(name), "hx170-%s.kit", version);
    hx_media_find(s, name, out);
}

/* The kernel reads an erofs out of a file. A kit that is not this system's is left alone; hx-cards
 * says what a bundle lacks, and the wizard why. */
static void mount_kit(struct hx_setup *s)
{
    char kit[HX_ROOT_PATH], version[64];
    struct stat here, above;
    struct hx_error err;
    hx_media_find_kit(s, kit);
    if (!*kit || *s->kit_refused || (mkdir(KIT, 0755) < 0 && errno != EEXIST) ||
        stat(KIT, &here) < 0 || stat(KIT "/..", &above) < 0 || here.st_dev != above.st_dev)
        return;
    hx_root_text(s->root, VERSION, version, sizeof(version));
    if (isatty(STDOUT_FILENO))
        printf("Checking the build kit on the stick ...\n");
    if (hx_kit_check(s->root, kit, version, &err) < 0) {
        snprintf(s->kit_refused, sizeof(s->kit_refused), "%.390s", err.text);
        fprintf(stderr, "hx-setup: %s is not used: %s\n", kit, err.text);
        rmdir(KIT);
        return;
    }
    if (mount(kit, KIT, "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
        rmdir(KIT);
}

void hx_media_mount(struct hx_setup *s)
{
    char names[HX_MEDIA_MAX][64];
    int n = usable(s) ? hx_media_list(s->root, names) : 0;
    for (int i = 0; i < n; i++) {
        char device[80];
        snprintf(device, sizeof(device), "/dev/%s", names[i]);
        (void)mount_one(device, names[i]);
    }
    if (usable(s))
        mount_kit(s);
}

int hx_media_mount_device(const struct hx_setup *s, const char *device, struct hx_error *err)
{
    if (usable(s) && !mount_one(device, strrchr(device, '/') + 1))
        return hx_fail(err, -EINVAL, "%s: no file system on it that can be read", device);
    return 0;
}

void hx_media_await(struct hx_setup *s, const char *path)
{
    if (*s->root_dir || strncmp(path, HX_MEDIA "/", sizeof(HX_MEDIA)) != 0)
        return;
    for (int i = 0; i < AWAIT_S && !hx_root_exists(s->root, path); i++) {
        sleep(1);
        hx_media_mount(s);
    }
}

void hx_media_find(const struct hx_setup *s, const char *name, char out[HX_ROOT_PATH])
{
    struct hx_names media = {0};
    struct hx_error err;
    snprintf(out, HX_ROOT_PATH, "/efi/%s", name);
    bool found = hx_root_exists(s->root, out);
    if (!found && hx_root_list(s->root, HX_MEDIA, &media, &err) == 0) {
        for (size_t i = 0; !found && i < media.n; i++) {
            snprintf(out, HX_ROOT_PATH, HX_MEDIA "/%s/%s", media.name[i], name);
            found = hx_root_exists(s->root, out);
        }
        hx_names_done(&media);
    }
    if (!found)
        out[0] = '\0';
}
