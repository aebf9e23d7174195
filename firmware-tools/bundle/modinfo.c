/* ELF sections of a module, read with every offset checked. */
#include "bundle/modinfo.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIGNATURE_END "~Module signature appended~\n"

static bool inside(uint64_t offset, uint64_t n, size_t len)
{
    return offset <= len && n <= len - offset;
}

static void keep(const char *record, size_t n, const char *key, char *out, size_t size)
{
    size_t k = strlen(key);
    if (n > k && record[k] == '=' && memcmp(record, key, k) == 0 && !out[0])
        snprintf(out, size, "%.*s", (int)(n - k - 1 < size ? n - k - 1 : size), record + k + 1);
}

static void read_records(const char *s, size_t len, struct hx_modinfo *out)
{
    while (len) {
        size_t n = strnlen(s, len);
        keep(s, n, "name", out->name, sizeof(out->name));
        keep(s, n, "vermagic", out->vermagic, sizeof(out->vermagic));
        keep(s, n, "depends", out->depends, sizeof(out->depends));
        keep(s, n, "srcversion", out->srcversion, sizeof(out->srcversion));
        keep(s, n, "version", out->version, sizeof(out->version));
        n += n < len; /* its NUL */
        s += n;
        len -= n;
    }
}

int hx_modinfo_parse(const uint8_t *data, size_t len, struct hx_modinfo *out, struct hx_error *err)
{
    Elf64_Ehdr h;
    Elf64_Shdr names, s;
    struct hx_modinfo info = {.is_signed = false};
    bool found = false;
    if (len < sizeof(h))
        return hx_fail(err, -EINVAL, "is too short for a kernel module");
    memcpy(&h, data, sizeof(h));
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
        h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_type != ET_REL || h.e_machine != EM_X86_64)
        return hx_fail(err, -EINVAL, "is not a kernel module for x86_64");
    if (h.e_shentsize != sizeof(s) || h.e_shstrndx >= h.e_shnum ||
        !inside(h.e_shoff, (uint64_t)h.e_shnum * sizeof(s), len))
        return hx_fail(err, -EINVAL, "has a damaged section table");
    memcpy(&names, data + h.e_shoff + (uint64_t)h.e_shstrndx * sizeof(s), sizeof(s));
    if (!inside(names.sh_offset, names.sh_size, len))
        return hx_fail(err, -EINVAL, "has a damaged section table");
    for (unsigned i = 0; i < h.e_shnum && !found; i++) {
        static const char want[] = ".modinfo";
        memcpy(&s, data + h.e_shoff + (uint64_t)i * sizeof(s), sizeof(s));
        if (s.sh_type == SHT_NOBITS || !inside(s.sh_name, sizeof(want), names.sh_size) ||
            memcmp(data + names.sh_offset + s.sh_name, want, sizeof(want)) != 0)
            continue;
        if (!inside(s.sh_offset, s.sh_size, len))
            return hx_fail(err, -EINVAL, "has a damaged section table");
        read_records((const char *)data + s.sh_offset, (size_t)s.sh_size, &info);
        found = true;
    }
    if (!found || !info.vermagic[0])
        return hx_fail(err, -EINVAL, "has no version record, so it is not a kernel module");
    size_t n = sizeof(SIGNATURE_END) - 1;
    info.is_signed = len >= n && memcmp(data + len - n, SIGNATURE_END, n) == 0;
    *out = info;
    return 0;
}

int hx_modinfo_read(int fd, const char *path, struct hx_modinfo *out, struct hx_error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return hx_fail_errno(err, errno, "%s: cannot stat", path);
    if (st.st_size <= 0 || st.st_size > HX_MODULE_MAX)
        return hx_fail(err, -EINVAL, "%s: %lld bytes, at most %u", path, (long long)st.st_size,
                       HX_MODULE_MAX);
    size_t len = (size_t)st.st_size, done = 0;
    uint8_t *data = malloc(len);
    if (!data)
        return hx_fail(err, -ENOMEM, "%s: out of memory", path);
    int r = 0;
    while (r == 0 && done < len) {
        ssize_t n = pread(fd, data + done, len - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            r = n < 0 ? hx_fail_errno(err, errno, "%s: cannot read", path)
                      : hx_fail(err, -EIO, "%s: became shorter", path);
        else
            done += (size_t)n;
    }
    if (r == 0) {
        r = hx_modinfo_parse(data, len, out, err);
        if (r < 0)
            hx_wrap(err, r, "%s", path);
    }
    free(data);
    return r;
}

bool hx_modinfo_fits(const struct hx_modinfo *info, const char *release)
{
    size_t n = strlen(release);
    return strncmp(info->vermagic, release, n) == 0 && info->vermagic[n] == ' ';
}
