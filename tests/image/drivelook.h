/* What firmware, boot loader and first program would make of a drive, judged from its bytes. */
#ifndef HX_TESTS_IMAGE_DRIVELOOK_H
#define HX_TESTS_IMAGE_DRIVELOOK_H

#include <stdbool.h>
#include <stdint.h>

#include <hx/error.h>

enum hx_drive_verdict {
    HX_DRIVE_BLANK,  /* nothing that firmware would start */
    HX_DRIVE_BOOTS,  /* every boot entry is whole and finds its whole root */
    HX_DRIVE_BROKEN, /* an entry that would be tried and cannot come up */
};

/* Kernel images that may be there: anything else is a torn one. */
struct hx_drive_known {
    char sha256[65];
    char version[40];
};

/* Proofs of slots that were made; valid until something is written there. */
struct hx_drive_memory {
    struct {
        bool valid, good;
        uint64_t at, n_bytes; /* root and hash tree lie one behind the other */
        char hash[65];
    } slot[2];
};

struct hx_drive_look {
    enum hx_drive_verdict verdict;
    unsigned n_entries;
    char versions[160]; /* of the entries, with their counters */
    char why[300];      /* of BLANK and BROKEN */
};

/* Something was written to [at, at + n_bytes) of the drive. */
void hx_drive_wrote(struct hx_drive_memory *memory, uint64_t at, uint64_t n_bytes);
/* The error is one of reading; what the drive holds is the verdict. sector: 512 or 4096. */
int hx_drive_look(const char *path, unsigned sector, const struct hx_drive_known *known,
                  unsigned n_known, struct hx_drive_memory *memory, struct hx_drive_look *out,
                  struct hx_error *err) HX_MUST;

#endif
