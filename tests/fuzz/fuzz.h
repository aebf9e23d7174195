/* Shared by the fuzz targets. */
#ifndef HX_TEST_FUZZ_H
#define HX_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hx/error.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold, holds; unlike assert in every build. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A refusal is a negative errno with a message of one line. */
static inline void expect_refusal(int r, const struct hx_error *err)
{
    EXPECT(r < 0);
    EXPECT(err->text[0] != '\0');
    EXPECT(!strchr(err->text, '\n'));
}

#endif
