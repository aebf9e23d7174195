/* A folder or a block device that may hold parts of a model: opened for reading alone, nothing on
 * it is followed or executed. */
#ifndef HX_FETCH_MEDIUM_H
#define HX_FETCH_MEDIUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hx/error.h>

#include "fetch/plan.h"

struct hx_medium {
    char *path;       /* as given */
    int fd;           /* its top folder */
    bool fat;         /* cannot hold files of 4 GiB and more */
    char mounted[64]; /* mount point of a device, "" */
};

#define HX_MEDIUM_INIT ((struct hx_medium){.fd = -1})

/* A block device is mounted read-only, nosuid, nodev, noexec in a mount namespace of this process
 * (needs root); the file system's type is found out. */
int hx_medium_open(const char *path, struct hx_medium *out, struct hx_error *err) HX_MUST;
void hx_medium_close(struct hx_medium *m);

enum hx_medium_form {
    HX_MEDIUM_SOURCE, /* the file as its repository has it */
    HX_MEDIUM_OUTPUT, /* as the finished model folder has it */
};

/* Looks for a file of the plan: under the source's id, its repository's name or at the top by the
 * source's path, then by its place in a finished folder. A regular file of the right size, reached
 * without symbolic links. -ENOENT: none (the message says where it was looked for and if one of the
 * wrong size was found). */
int hx_medium_find(const struct hx_medium *m, const struct hx_plan_file *file, int *fd,
                   enum hx_medium_form *form, struct hx_error *err) HX_MUST;

#endif
