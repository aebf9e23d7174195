#include "disk/sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/sha256.h"
#include "disk/io.h"

#define LIST_MAX (256u << 10)
#define HEX      (HX_SHA256_HEX - 1)

/* "SUM  path", path below the ESP. */
static int check_line(const char *esp, const char *line, size_t len, int number,
                      struct hx_error *err)
{
    char path[HX_DISK_PATH], hex[HX_SHA256_HEX];
    const char *name = line + HEX + 2;
    if (len < HEX + 3 || strspn(line, "0123456789abcdef") != HEX ||
        memcmp(line + HEX, "  ", 2) != 0 || *name == '/' || memmem(name, len - HEX - 2, "..", 2))
        return hx_fail(err, -EINVAL, HX_SUMS_FILE " line %d is damaged", number);
    int n = (int)(len - HEX - 2);
    if (snprintf(path, sizeof(path), "%s/%.*s", esp, n, name) >= (int)sizeof(path))
        return hx_fail(err, -EINVAL, HX_SUMS_FILE " line %d: the path is too long", number);
    uint64_t size;
    int r = hx_sha256_file(path, hex, &size, err);
    if (r < 0)
        return hx_wrap(err, r, "ESP file '%.*s'", n, name);
    if (strncmp(hex, line, HEX) != 0)
        return hx_fail(err, -EBADMSG, "ESP file '%.*s' is damaged: SHA-256 %s, expected %.64s", n,
                       name, hex, line);
    return 0;
}

int hx_sums_check(const char *esp, struct hx_error *err)
{
    char path[HX_DISK_PATH], *text;
    size_t len;
    if (snprintf(path, sizeof(path), "%s/" HX_SUMS_FILE, esp) >= (int)sizeof(path))
        return hx_fail(err, -ENAMETOOLONG, "%.80s...: path is too long", esp);
    int r = hx_file_read(path, LIST_MAX, &text, &len, err);
    if (r == -ENOENT)
        return hx_fail(err, -ENOENT, HX_SUMS_FILE " is missing on the stick");
    if (r < 0)
        return r;
    int number = 0;
    for (const char *line = text; r == 0 && *line;) {
        size_t n = strcspn(line, "\n");
        if (n)
            r = check_line(esp, line, n, ++number, err);
        line += n + (line[n] == '\n');
    }
    if (r == 0 && number == 0)
        r = hx_fail(err, -EINVAL, HX_SUMS_FILE " is empty");
    free(text);
    return r;
}
