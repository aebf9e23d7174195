#include "image/drivelook.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/sha256.h"
#include "disk/verity.h"
#include "image/fatview.h"
#include "init/gpt.h"

#define KERNEL_MAX ((size_t)64 << 20)
#define ESP_TYPE   "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"

struct looking {
    struct hx_disk disk;
    struct hx_gpt table;
    struct hx_fatview esp;
    const struct hx_drive_known *known;
    unsigned n_known;
    struct hx_drive_memory *memory;
    struct hx_drive_look *out;
    struct hx_buf content;
    struct hx_error *err;
};

void hx_drive_wrote(struct hx_drive_memory *memory, uint64_t at, uint64_t n_bytes)
{
    for (int i = 0; i < 2; i++)
        if (memory->slot[i].valid && at < memory->slot[i].at + memory->slot[i].n_bytes &&
            memory->slot[i].at < at + n_bytes)
            memory->slot[i].valid = false;
}

static int verdict(struct looking *l, enum hx_drive_verdict what, const char *fmt, ...)
    HX_PRINTF(3, 4);

/* Always 1: the search ends here. */
static int verdict(struct looking *l, enum hx_drive_verdict what, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vsnprintf(l->out->why, sizeof(l->out->why), fmt, list);
    va_end(list);
    l->out->verdict = what;
    return 1;
}

/* The half of a root hash as the text of a GUID. */
static void half_guid(const char *hash, char out[37])
{
    snprintf(out, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hash, hash + 8, hash + 12, hash + 16, hash + 20);
}

static const struct hx_gpt_entry *part_of(const struct looking *l, const char *half)
{
    char text[37];
    uint8_t guid[HX_GPT_GUID];
    half_guid(half, text);
    return hx_gpt_guid_parse(text, guid) ? NULL : hx_gpt_find(&l->table, guid);
}

static bool slot_is_good(struct looking *l, const struct hx_gpt_entry *root,
                         const struct hx_gpt_entry *tree, const char *hash)
{
    uint64_t sector = l->disk.sector, at = root->first * sector;
    int free_slot = 0;
    for (int i = 0; i < 2; i++) {
        if (!l->memory->slot[i].valid)
            free_slot = i;
        else if (l->memory->slot[i].at == at && !strcmp(l->memory->slot[i].hash, hash))
            return l->memory->slot[i].good;
    }
    struct hx_extent data = {&l->disk, at, (root->last - root->first + 1) * sector};
    struct hx_extent hashes = {&l->disk, tree->first * sector,
                               (tree->last - tree->first + 1) * sector};
    struct hx_error ignored;
    bool good = hx_verity_check(&data, &hashes, hash, NULL, NULL, &ignored) == 0;
    l->memory->slot[free_slot].valid = true;
    l->memory->slot[free_slot].good = good;
    l->memory->slot[free_slot].at = at;
    l->memory->slot[free_slot].n_bytes = hashes.offset + hashes.n_bytes - at;
    snprintf(l->memory->slot[free_slot].hash, 65, "%s", hash);
    return good;
}

static const char *version_of(struct looking *l)
{
    uint8_t digest[HX_SHA256_BYTES];
    char hex[HX_SHA256_HEX];
    if (hx_sha256_data(l->content.data, l->content.len, digest))
        return NULL;
    hx_sha256_to_hex(digest, hex);
    for (unsigned i = 0; i < l->n_known; i++)
        if (!strcmp(l->known[i].sha256, hex))
            return l->known[i].version;
    return NULL;
}

/* One file of EFI/Linux. 1: the verdict is there. */
static int look_at_entry(void *ctx, const struct hx_fatview_file *f)
{
    struct looking *l = ctx;
    static const char line[] = "roothash=";
    size_t len = strlen(f->name);
    if (f->is_folder || len < 5 || strcasecmp(f->name + len - 4, ".efi") != 0)
        return 0;
    /* Without a PE header it is none for the boot loader. */
    if (!f->n_bytes)
        return 0;
    struct hx_error error;
    l->out->n_entries++;
    size_t have = strlen(l->out->versions);
    snprintf(l->out->versions + have, sizeof(l->out->versions) - have, " %s", f->name);
    int r = hx_fatview_read(&l->esp, f, &l->content, &error);
    if (r == -EBADMSG || r == -EMSGSIZE)
        return verdict(l, HX_DRIVE_BROKEN, "%s: %s", f->name, error.text);
    if (r)
        return hx_wrap(l->err, r, "%s", f->name);
    if (!version_of(l))
        return verdict(l, HX_DRIVE_BROKEN, "%s (%u bytes) is no kernel image that was built",
                       f->name, f->n_bytes);
    const uint8_t *p = memmem(l->content.data, l->content.len, line, sizeof(line) - 1);
    if (!p || (size_t)(l->content.data + l->content.len - p) < sizeof(line) + 64)
        return verdict(l, HX_DRIVE_BROKEN, "%s has no root hash", f->name);
    char hash[65];
    snprintf(hash, sizeof(hash), "%.64s", (const char *)p + sizeof(line) - 1);
    const struct hx_gpt_entry *root = part_of(l, hash), *tree = part_of(l, hash + 32);
    if (!root || !tree)
        return verdict(l, HX_DRIVE_BROKEN, "%s: no partition of its root %.16s...", f->name, hash);
    if (!slot_is_good(l, root, tree, hash))
        return verdict(l, HX_DRIVE_BROKEN, "%s: its root in partition %u is damaged", f->name,
                       root->number);
    return 0;
}

static int look(struct looking *l)
{
    const struct hx_gpt_entry *esp = NULL;
    uint8_t type[HX_GPT_GUID];
    struct hx_fatview_file loader;
    struct hx_error error;
    int r = hx_gpt_read(l->disk.fd, l->disk.n_bytes, l->disk.sector, &l->table, &error);
    if (r)
        return verdict(l, HX_DRIVE_BLANK, "no partition table: %s", error.text);
    r = hx_gpt_guid_parse(ESP_TYPE, type);
    for (unsigned i = 0; !r && !esp && i < l->table.n_entries; i++)
        if (!memcmp(l->table.entries[i].type, type, sizeof(type)))
            esp = &l->table.entries[i];
    if (!esp)
        return verdict(l, HX_DRIVE_BLANK, "no ESP");
    uint64_t sector = l->disk.sector;
    r = hx_fatview_open(&l->esp, l->disk.fd, esp->first * sector,
                        (esp->last - esp->first + 1) * sector, &error);
    if (r)
        return verdict(l, HX_DRIVE_BLANK, "ESP: %s", error.text);
    if (hx_fatview_find(&l->esp, "EFI/BOOT/BOOTX64.EFI", &loader, &error))
        return verdict(l, HX_DRIVE_BLANK, "no boot loader");
    r = hx_fatview_list(&l->esp, "EFI/Linux", look_at_entry, l, &error);
    if (r == -ENOENT || (!r && !l->out->n_entries))
        return verdict(l, HX_DRIVE_BLANK, "no kernel image");
    if (r == -EBADMSG)
        return verdict(l, HX_DRIVE_BROKEN, "EFI/Linux: %s", error.text);
    if (!r)
        return verdict(l, HX_DRIVE_BOOTS, "%s", "");
    return r;
}

int hx_drive_look(const char *path, unsigned sector, const struct hx_drive_known *known,
                  unsigned n_known, struct hx_drive_memory *memory, struct hx_drive_look *out,
                  struct hx_error *err)
{
    struct looking *l = calloc(1, sizeof(*l));
    if (!l)
        return hx_fail(err, -ENOMEM, "out of memory");
    *out = (struct hx_drive_look){.verdict = HX_DRIVE_BLANK};
    l->known = known;
    l->n_known = n_known;
    l->memory = memory;
    l->out = out;
    l->err = err;
    l->content = HX_BUF_INIT(KERNEL_MAX);
    l->disk.fd = -1;
    int r = hx_disk_open(path, HX_DISK_READ, sector, &l->disk, err);
    if (!r)
        r = look(l);
    hx_disk_close(&l->disk);
    hx_buf_done(&l->content);
    free(l);
    return r < 0 ? r : 0;
}
