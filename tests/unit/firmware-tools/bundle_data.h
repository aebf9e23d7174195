/* Shared by the tests of driver bundles: fixture folders copied into a scratch folder. */
#ifndef HX_TEST_BUNDLE_DATA_H
#define HX_TEST_BUNDLE_DATA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "bundle/check.h"
#include "bundle/tree.h"

#define BUNDLES "tests/vectors/bundles"

static struct hx_error err;

/* A new empty folder; free with drop_folder. */
static inline char *new_folder(void)
{
    char *path = strdup("/tmp/hx-bundle-XXXXXX");
    assert_non_null(path);
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void drop_folder(char *path)
{
    assert_int_equal(hx_tree_remove(AT_FDCWD, path, &err), 0);
    free(path);
}

static inline int copy_one(void *ctx, const char *path, int fd, struct hx_error *e)
{
    int *to = ctx;
    struct stat st;
    if (strcmp(path, "expected.json") == 0 || strcmp(path, "host.json") == 0)
        return 0;
    char from[64];
    snprintf(from, sizeof(from), "/proc/self/fd/%d", fd);
    char *text;
    size_t len;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(hx_file_read(from, 1 << 20, &text, &len, e), 0);
    int out;
    assert_int_equal(hx_tree_create(*to, path, st.st_mode & 0777, &out, e), 0);
    assert_int_equal(hx_tree_write(out, path, text, len, e), 0);
    close(out);
    free(text);
    return 0;
}

/* The bundle of a fixture, without what describes the test. */
static inline void copy_bundle(const char *name, const char *to)
{
    char path[512];
    snprintf(path, sizeof(path), BUNDLES "/%s", name);
    int from = open(path, O_RDONLY | O_DIRECTORY), dir = open(to, O_RDONLY | O_DIRECTORY);
    assert_true(from >= 0 && dir >= 0);
    assert_int_equal(hx_tree_walk(from, copy_one, &dir, &err), 0);
    close(from);
    close(dir);
}

static inline struct hx_json *read_json(const char *dir, const char *name)
{
    char path[512], *text;
    size_t len;
    struct hx_json *doc;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (hx_file_read(path, 1 << 20, &text, &len, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(hx_json_parse(text, len, &HX_JSON_LIMITS_DEFAULT, &doc, &err), 0);
    free(text);
    return doc;
}

static inline void text_of(struct hx_jv v, char *out, size_t size)
{
    size_t len;
    const char *s = hx_jv_str(v, &len);
    assert_non_null(s);
    snprintf(out, size, "%.*s", (int)len, s);
}

#endif
