#include "fetch/token.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

#define MAX_TOKEN 4096

/* Where systemd puts the credentials of a service; NULL without one. */
static char *credential(void)
{
    const char *dir = getenv("CREDENTIALS_DIRECTORY");
    struct stat st;
    if (!dir || *dir != '/')
        return NULL;
    char *path = hx_path_join(dir, "hub_token");
    if (path && stat(path, &st) < 0) {
        free(path);
        return NULL;
    }
    return path;
}

static int check_mode(const char *path, bool credential, struct hx_error *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return hx_fail_errno(err, errno, "token file %s", path);
    /* The manager's own folder already keeps others out. */
    if (!credential && (st.st_mode & (S_IRWXG | S_IRWXO)))
        return hx_fail(err, -EPERM, "token file %s: others may read it; chmod 600 it", path);
    return 0;
}

int hx_fetch_token_read(const char *path, char **out, struct hx_error *err)
{
    char *from_manager = *path ? NULL : credential(), *text = NULL;
    size_t n = 0;
    *out = NULL;
    if (*path == '\0' && !from_manager)
        return 0;
    if (from_manager)
        path = from_manager;
    int r = check_mode(path, from_manager != NULL, err);
    if (r == 0) {
        r = hx_file_read(path, MAX_TOKEN, &text, &n, err);
        if (r < 0)
            hx_wrap(err, r, "token file");
    }
    if (r == 0) {
        while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
            text[--n] = '\0';
        bool plain = n > 0;
        for (size_t i = 0; i < n; i++)
            plain &= text[i] > 0x20 && text[i] < 0x7F;
        if (!plain)
            r = hx_fail(err, -EINVAL, "token file %s: expected one line of visible ASCII", path);
    }
    if (r == 0)
        *out = text;
    else
        hx_fetch_token_free(text);
    free(from_manager);
    return r;
}

void hx_fetch_token_free(char *token)
{
    if (token)
        explicit_bzero(token, strlen(token));
    free(token);
}
