/* Configuration files: refused with file and line, or their effective form reads back the same. */
#include "fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/conf.h"

struct options {
    char text[17];
    int64_t count, bytes, us;
    double real;
    bool flag;
    int choice;
};

#define O(field) offsetof(struct options, field)
static const struct hx_conf_option rows[] = {
    {"a", "text", HX_CONF_STRING, O(text), 0, 16, "x", NULL, "a text"},
    {"a", "count", HX_CONF_INT, O(count), -5, 1e12, "3", NULL, "a number"},
    {"a", "bytes", HX_CONF_SIZE, O(bytes), 0, 1e15, "64M", NULL, "bytes"},
    {"b", "time", HX_CONF_TIME, O(us), 0, 1e15, "30s", NULL, "time"},
    {"b", "real", HX_CONF_REAL, O(real), -1, 2, "0.5", NULL, "a real"},
    {"b", "flag", HX_CONF_BOOL, O(flag), 0, 0, "no", NULL, "yes or no"},
    {"b", "choice", HX_CONF_CHOICE, O(choice), 0, 0, "two", "one two three", "one of three"},
};
#define N_ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

static int load(int fd, struct options *o, struct hx_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    memset(o, 0, sizeof(*o));
    hx_conf_defaults(rows, N_ROWS, o);
    return hx_conf_file(rows, N_ROWS, o, path, err);
}

static int file_of(const void *data, size_t size)
{
    int fd = memfd_create("conf", MFD_CLOEXEC);
    EXPECT(fd >= 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct options o, again;
    struct hx_error err = {0};
    char *dump = NULL;
    size_t len = 0;
    int fd = file_of(data, size), r = load(fd, &o, &err);
    close(fd);
    if (r < 0) {
        expect_refusal(r, &err);
        return 0;
    }
    EXPECT(memchr(o.text, 0, sizeof(o.text)));
    EXPECT(o.count >= -5 && o.count <= 1000000000000 && o.bytes >= 0 && o.us >= 0);
    EXPECT(o.real >= -1 && o.real <= 2 && o.choice >= 0 && o.choice < 3);
    FILE *f = open_memstream(&dump, &len);
    EXPECT(f);
    hx_conf_dump(rows, N_ROWS, &o, true, f);
    fclose(f);
    fd = file_of(dump, len);
    r = load(fd, &again, &err);
    close(fd);
    if (r < 0)
        fprintf(stderr, "%s\n%s", err.text, dump);
    EXPECT(r == 0);
    EXPECT(strcmp(o.text, again.text) == 0 && o.count == again.count && o.bytes == again.bytes &&
           o.us == again.us && o.real == again.real && o.flag == again.flag &&
           o.choice == again.choice);
    free(dump);
    return 0;
}
