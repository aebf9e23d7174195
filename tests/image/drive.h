/* What the scenario `drive`, its disk and its program in the machine agree on. */
#ifndef HX_TESTS_IMAGE_DRIVE_H
#define HX_TESTS_IMAGE_DRIVE_H

#include <stdint.h>

#define DRIVE_TABLES  2
#define DRIVE_ROWS    40000 /* of each table */
#define DRIVE_OFFSET  664   /* where rows begin, as in a released shard */
#define DRIVE_BYTES   256
#define DRIVE_SCALES  8
#define DRIVE_BAD_ROW 12345 /* of table 0: the drive cannot read it */
#define DRIVE_MOUNT   "/drive/mnt"

/* The program's lines begin so; with WANTS it asks for something and waits for a key. */
#define DRIVE_SAYS   "drive-test: "
#define DRIVE_WANTS  DRIVE_SAYS "wants a "
#define DRIVE_FAILED DRIVE_SAYS "FAILED: "
#define DRIVE_PASSED DRIVE_SAYS "passed"

/* Byte i of a row; no two rows are alike, none is a NaN. */
static inline uint8_t drive_byte(int64_t row, int i)
{
    return (uint8_t)(16 + (((row >> 4 * (i % 8)) + i / 8) & 15));
}

#endif
