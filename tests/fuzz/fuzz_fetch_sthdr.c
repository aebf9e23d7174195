/* First bytes of a shard as a server sent them: length, kind, then the header by the rules. The
 * first four bytes are the size of the data area. */
#include "fuzz.h"

#include "fetch/sthdr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    uint32_t area;
    uint64_t header = 0;
    struct hx_st_file *st = NULL;
    struct hx_error err = {0};
    memcpy(&area, data, 4);
    data += 4;
    size -= 4;
    uint64_t file_size = size + (uint64_t)area;
    int r = hx_sthdr_length("fuzz", data, size, file_size, &header, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return 0;
    }
    EXPECT(header >= 10 && header <= file_size && header <= 8 + HX_ST_MAX_HEADER);
    if (header > size)
        return 0;
    r = hx_sthdr_parse("fuzz", data, header, file_size, &st, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        EXPECT(!st);
        return 0;
    }
    uint64_t at = header;
    for (size_t i = 0; i < hx_st_count(st); i++) {
        const struct hx_st_tensor *t = hx_st_at(st, i);
        EXPECT(t->offset == at);
        at += t->size;
    }
    EXPECT(at == file_size);
    hx_st_close(st);
    return 0;
}
