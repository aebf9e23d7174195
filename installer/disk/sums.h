/* Sums of the files of a stick's ESP, which no hash tree covers: hx170/sums, lines as sha256sum
 * writes them. They tell a bad stick from a good one, not an honest one from a forged one. */
#ifndef HX_DISK_SUMS_H
#define HX_DISK_SUMS_H

#include <hx/error.h>

#define HX_SUMS_FILE "hx170/sums"

/* Reads every file that is listed. -EBADMSG: one has other bytes; -ENOENT: one, or the list, is
 * missing; -EINVAL: the list is damaged itself. Other files may be there, too. */
int hx_sums_check(const char *esp, struct hx_error *err) HX_MUST;

#endif
