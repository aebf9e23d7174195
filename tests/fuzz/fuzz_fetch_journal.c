/* Journal of hx-fetch: what is read from it stays inside its own header, and a valid part read
 * alone says the same. The first byte chooses: odd, every record gets the right checksum and number
 * first, so that what lies behind the checksum is reached. */
#include "fuzz.h"

#include "fetch/journal.h"

static uint32_t crc32c(const uint8_t *p, size_t n)
{
    uint32_t c = ~0u;
    while (n--) {
        c ^= *p++;
        for (int i = 0; i < 8; i++)
            c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0);
    }
    return ~c;
}

static void seal(uint8_t *p, uint64_t seq)
{
    for (int i = 0; i < 8; i++)
        p[24 + i] = (uint8_t)(seq >> (8 * i));
    uint32_t crc = crc32c(p + 4, HX_JOURNAL_RECORD - 4);
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(crc >> (8 * i));
}

static void check(const struct hx_journal_image *im, size_t n)
{
    uint64_t last = 0;
    EXPECT(im->valid_bytes <= n && im->valid_bytes == im->n_records * HX_JOURNAL_RECORD);
    EXPECT(im->n_records >= 2 && im->n_chunks <= HX_JOURNAL_MAX_CHUNKS);
    for (uint32_t i = 0; i < im->n_chunks; i++)
        EXPECT(!im->chunks[i].done ||
               (im->chunks[i].seq >= 2 && im->chunks[i].seq < im->n_records));
    for (size_t i = 0; i < im->n_hashes; i++) {
        EXPECT(im->hashes[i].n_bytes > last && im->hashes[i].n_bytes <= im->out_bytes);
        EXPECT(im->hashes[i].n_bytes % 64 == 0);
        last = im->hashes[i].n_bytes;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_journal_image im, again;
    struct hx_error err = {0};
    if (size < 1)
        return 0;
    size_t n = size - 1;
    uint8_t *p = malloc(n + 1);
    EXPECT(p);
    memcpy(p, data + 1, n);
    if (data[0] & 1) {
        if (n >= HX_JOURNAL_RECORD)
            p[10] = p[11] = 0; /* at most 65,535 chunks, so that a run takes no gigabyte */
        for (size_t i = 0; i < n / HX_JOURNAL_RECORD; i++)
            seal(p + i * HX_JOURNAL_RECORD, i);
    }
    int r = hx_journal_parse(p, n, &im, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        free(p);
        return 0;
    }
    check(&im, n);
    EXPECT(hx_journal_parse(p, im.valid_bytes, &again, &err) == 0);
    EXPECT(again.valid_bytes == im.valid_bytes && again.n_hashes == im.n_hashes);
    EXPECT(again.ready == im.ready && again.back == im.back && again.clean == im.clean);
    for (uint32_t i = 0; i < im.n_chunks; i++)
        EXPECT(again.chunks[i].done == im.chunks[i].done);
    hx_journal_image_done(&im);
    hx_journal_image_done(&again);
    free(p);
    return 0;
}
