/* hx-bench engram: how fast Engram rows come from a drive, and how long steps would wait for them.
 */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rand.h"
#include "cli/bench.h"
#include "cli/bench_engram.h"
#include "model/bind.h"
#include "run/feed.h"

#include <hx/tokenizer.h>

#define MADE_OFFSET 664 /* where rows begin in a file of --make, as in a released shard */
#define MADE_ROW    256
#define MADE_SCALES 8
#define PIECE_ROWS  16384 /* of --make, written at once */
#define MAX_TEXT    ((size_t)256 << 20)

static const char usage[] =
    "Usage: hx-bench engram [options] MODEL_DIR\n"
    "       hx-bench engram [options] --file FILE\n"
    "       hx-bench engram --make SIZE --file FILE\n"
    "Reads random rows of the Engram tables of a model folder, or of a file that --make wrote.\n"
    "  --kinds K,K,...   rows: rows/s and latency by reads in flight; bare: the same reads\n"
    "                    without the streamer; batch: time of whole batches; decode, prefill, "
    "mixed: waits of simulated steps; text: hit\n"
    "                    rates (with --text). Default: rows,batch,decode,prefill,mixed\n"
    "  --depths N,N,...  reads in flight for rows (default 1,32,64,128,256,512)\n"
    "  --seconds S       of each measurement, after a tenth of that to warm up (default 10)\n"
    "  --repeat N        of each measurement, median and range are shown (1-99, default 1)\n"
    "  --align N         of direct reads: 512 or 4096 (default: what the file system says)\n"
    "  --buffered        through the page cache\n"
    "  --level N         best way to read: 0 io_uring with registered buffers, 1 io_uring,\n"
    "                    2 threads, 3 threads through the page cache\n"
    "  --users N         decoding sequences (default 8), of --tokens N each (default 6)\n"
    "  --layer-us N      time of one layer while decoding (default 1370)\n"
    "  --layers N        of a step, at least 16 (default 43: the model's and the drafter's)\n"
    "  --chunk-ms N      time of one prefill chunk of 2048 tokens (default 848)\n"
    "  --text FILE       text for hit rates, with the folder's tokenizer\n"
    "  --caches S,S,...  cache sizes for hit rates (default 0,256M,1G,4G)\n"
    "  --verify          compare every row of a file of --make with what was written\n"
    "  --json            one JSON object a line\n"
    "  --help            this text\n";

/* ---- sources ---- */

static uint64_t word_of(int64_t row, int i)
{
    uint64_t x = hx_mix64((uint64_t)row * 32 + (uint64_t)i);
    /* No byte is 0x7F or 0xFF: bit 0 of each byte is cleared. */
    return x & 0xFEFEFEFEFEFEFEFEu;
}

void hx_bench_made_row(int64_t row, uint8_t out[MADE_ROW])
{
    for (int i = 0; i < MADE_ROW / 8; i++) {
        uint64_t x = word_of(row, i);
        memcpy(out + 8 * i, &x, 8);
    }
}

static struct hx_engram_table made_table(const char *path, uint64_t size)
{
    int64_t n = size > MADE_OFFSET ? (int64_t)((size - MADE_OFFSET) / (MADE_ROW + MADE_SCALES)) : 0;
    return (struct hx_engram_table){.path = path,
                                    .data_offset = MADE_OFFSET,
                                    .scale_offset = MADE_OFFSET + (uint64_t)n * MADE_ROW,
                                    .n_rows = n,
                                    .row_bytes = MADE_ROW,
                                    .scale_bytes = MADE_SCALES};
}

static int make_file(const char *path, uint64_t size, struct hx_error *err)
{
    struct hx_engram_table t = made_table(path, size);
    uint8_t *piece = malloc((size_t)PIECE_ROWS * MADE_ROW);
    if (!piece)
        return hx_fail(err, -ENOMEM, "out of memory");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644), r = 0;
    if (fd < 0) {
        free(piece);
        return hx_fail_errno(err, errno, "%s: cannot make it", path);
    }
    for (int64_t at = 0; r == 0 && at < t.n_rows; at += PIECE_ROWS) {
        int64_t n = t.n_rows - at < PIECE_ROWS ? t.n_rows - at : PIECE_ROWS;
        for (int64_t i = 0; i < n; i++)
            hx_bench_made_row(at + i, piece + i * MADE_ROW);
        r = hx_file_pwrite(fd, path, piece, (size_t)n * MADE_ROW,
                           t.data_offset + (uint64_t)at * MADE_ROW, err);
    }
    memset(piece, 127, (size_t)PIECE_ROWS * MADE_SCALES);
    for (int64_t at = 0; r == 0 && at < t.n_rows; at += PIECE_ROWS) {
        int64_t n = t.n_rows - at < PIECE_ROWS ? t.n_rows - at : PIECE_ROWS;
        r = hx_file_pwrite(fd, path, piece, (size_t)n * MADE_SCALES,
                           t.scale_offset + (uint64_t)at * MADE_SCALES, err);
    }
    if (r == 0 && fsync(fd) < 0)
        r = hx_fail_errno(err, errno, "%s: cannot write it", path);
    close(fd);
    free(piece);
    if (r < 0)
        unlink(path);
    return r;
}

static int open_file(struct hx_bench_engram *b, struct hx_error *err)
{
    struct stat st;
    if (stat(b->file, &st) < 0)
        return hx_fail_errno(err, errno, "%s", b->file);
    b->so.n_tables = 1;
    b->so.n_copies[0] = 1;
    b->so.table[0][0] = made_table(b->file, (uint64_t)st.st_size);
    return 0;
}

static int open_folder(struct hx_bench_engram *b, struct hx_error *err)
{
    struct hx_binding *bound = calloc(1, sizeof(*bound));
    if (!bound)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_bind_folder(b->dir, bound, err);
    if (r == 0 && bound->hp.n_engram == 0)
        r = hx_fail(err, -EINVAL, "%s: a model without Engram", b->dir);
    for (int t = 0; r == 0 && t < bound->hp.n_engram; t++) {
        struct hx_row_file f;
        struct hx_engram_table *to = &b->so.table[t][0];
        hx_binding_engram_file(bound, t, &f);
        r = hx_feed_table(&f, bound->hp.engram_layer[t], to, err);
        if (r == 0 && !(to->path = b->path[t] = strdup(to->path)))
            r = hx_fail(err, -ENOMEM, "out of memory");
        b->so.n_tables = t + 1;
        b->so.n_copies[t] = 1;
    }
    if (r == 0)
        r = hx_token_map_load(b->dir, &bound->hp, &b->map, err);
    if (r == 0)
        r = hx_feed_hash(&bound->hp, b->map, &b->hash, err);
    b->so.n_heads = bound->hp.engram_n_head;
    hx_binding_done(bound);
    free(bound);
    return r;
}

static int read_text(struct hx_bench_engram *b, struct hx_error *err)
{
    struct hx_tokenizer *t = NULL;
    char *path = hx_path_join(b->dir, "tokenizer.json"), *text = NULL;
    size_t len;
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_tokenizer_open(path, &t, err);
    free(path);
    if (r == 0)
        r = hx_file_read(b->text, MAX_TEXT, &text, &len, err);
    if (r == 0)
        r = hx_tokenizer_encode(t, text, len, &(struct hx_encode_options){0}, &b->ids, err);
    if (r == 0 && b->ids.len < 2)
        r = hx_fail(err, -EINVAL, "%s: no text", b->text);
    free(text);
    hx_tokenizer_close(t);
    return r;
}

/* ---- options ---- */

const char *const hx_bench_kind_names[HX_BENCH_KINDS] = {"rows",    "bare",  "batch", "decode",
                                                         "prefill", "mixed", "text"};

static bool read_kinds(struct hx_bench_engram *b, const char *text)
{
    memset(b->kind, 0, sizeof(b->kind));
    while (*text) {
        size_t len = strcspn(text, ",");
        int k = 0;
        while (k < HX_BENCH_KINDS && (strlen(hx_bench_kind_names[k]) != len ||
                                      memcmp(hx_bench_kind_names[k], text, len) != 0))
            k++;
        if (k == HX_BENCH_KINDS) {
            fprintf(stderr,
                    "hx-bench: --kinds: '%.40s': expected rows, bare, batch, decode, "
                    "prefill, mixed or text, with commas between\n",
                    text);
            return false;
        }
        b->kind[k] = true;
        text += len + (text[len] == ',');
    }
    return true;
}

static bool read_sizes(const char *name, const char *text, int64_t max, int64_t *out, int *n)
{
    *n = 0;
    for (;; text++) {
        const char *end;
        int64_t v;
        bool ok = *n < HX_BENCH_LIST && hx_bench_number(text, 0, max, &end, &v);
        int shift = !ok ? 0 : *end == 'k' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        end += ok && shift > 0;
        if (!ok || (*end && *end != ',') || v > max >> shift) {
            fprintf(stderr,
                    "hx-bench: --%s: '%.40s': expected up to %d sizes up to %lld (k, M, G) "
                    "with commas between\n",
                    name, text, HX_BENCH_LIST, (long long)max);
            return false;
        }
        out[(*n)++] = v << shift;
        text = end;
        if (*text == 0)
            return true;
    }
}

static bool read_one(const char *name, const char *text, int64_t min, int64_t max, int64_t *out)
{
    const char *end;
    if (hx_bench_number(text, min, max, &end, out) && *end == 0)
        return true;
    fprintf(stderr, "hx-bench: --%s is '%.40s': expected %lld to %lld\n", name, text,
            (long long)min, (long long)max);
    return false;
}

static int read_options(struct hx_bench_engram *b, int argc, char **argv, bool *stop)
{
    enum {
        KINDS = 256,
        DEPTHS,
        SECONDS,
        REPEAT,
        ALIGN,
        BUFFERED,
        LEVEL,
        USERS,
        TOKENS,
        LAYER,
        LAYERS,
        CHUNK,
        TEXT,
        CACHES,
        VERIFY,
        MAKE,
        PATH,
        JSON,
        HELP
    };
    static const struct option rows[] = {{"kinds", required_argument, NULL, KINDS},
                                         {"depths", required_argument, NULL, DEPTHS},
                                         {"seconds", required_argument, NULL, SECONDS},
                                         {"repeat", required_argument, NULL, REPEAT},
                                         {"align", required_argument, NULL, ALIGN},
                                         {"buffered", no_argument, NULL, BUFFERED},
                                         {"level", required_argument, NULL, LEVEL},
                                         {"users", required_argument, NULL, USERS},
                                         {"tokens", required_argument, NULL, TOKENS},
                                         {"layer-us", required_argument, NULL, LAYER},
                                         {"layers", required_argument, NULL, LAYERS},
                                         {"chunk-ms", required_argument, NULL, CHUNK},
                                         {"text", required_argument, NULL, TEXT},
                                         {"caches", required_argument, NULL, CACHES},
                                         {"verify", no_argument, NULL, VERIFY},
                                         {"make", required_argument, NULL, MAKE},
                                         {"file", required_argument, NULL, PATH},
                                         {"json", no_argument, NULL, JSON},
                                         {"help", no_argument, NULL, HELP},
                                         {NULL, 0, NULL, 0}};
    bool ok = true;
    int64_t v = 0;
    int n;
    *stop = true;
    optind = 1;
    for (int o; ok && (o = getopt_long(argc, argv, "", rows, NULL)) != -1;) {
        switch (o) {
        case KINDS: ok = read_kinds(b, optarg); break;
        case DEPTHS: ok = read_sizes("depths", optarg, 4096, b->depth, &b->n_depths); break;
        case SECONDS: ok = read_one("seconds", optarg, 1, 86400, &b->seconds); break;
        case REPEAT: ok = read_one("repeat", optarg, 1, 99, &b->repeat); break;
        case ALIGN:
            ok = read_one("align", optarg, 512, 4096, &v);
            b->so.align = (int)v;
            break;
        case BUFFERED: b->so.buffered = true; break;
        case LEVEL:
            ok = read_one("level", optarg, 0, HX_ENGRAM_LEVELS - 1, &v);
            b->so.best = (enum hx_engram_level)v;
            break;
        case USERS: ok = read_one("users", optarg, 1, 64, &b->users); break;
        case TOKENS: ok = read_one("tokens", optarg, 1, 16, &b->tokens); break;
        case LAYER: ok = read_one("layer-us", optarg, 1, 10000000, &b->layer_us); break;
        case LAYERS: ok = read_one("layers", optarg, 16, 1000, &b->layers); break;
        case CHUNK: ok = read_one("chunk-ms", optarg, 1, 100000, &b->chunk_ms); break;
        case TEXT: b->text = optarg; break;
        case CACHES:
            ok = read_sizes("caches", optarg, (int64_t)1 << 40, b->cache, &b->n_caches);
            break;
        case VERIFY: b->verify = true; break;
        case MAKE: ok = read_sizes("make", optarg, (int64_t)1 << 40, &b->make, &n) && n == 1; break;
        case PATH: b->file = optarg; break;
        case JSON: b->json = true; break;
        case HELP: fputs(usage, stdout); return EX_OK;
        default: ok = false;
        }
    }
    b->dir = optind < argc ? argv[optind] : NULL;
    if (ok && (optind + 1 < argc || !b->dir == !b->file)) {
        fprintf(stderr, "hx-bench: expected one model folder, or --file\n");
        ok = false;
    } else if (ok && (b->make || b->verify) && !b->file) {
        fprintf(stderr, "hx-bench: --make and --verify need --file\n");
        ok = false;
    } else if (ok && b->kind[HX_BENCH_TEXT] && !(b->text && b->dir)) {
        fprintf(stderr, "hx-bench: kind text needs --text and a model folder\n");
        ok = false;
    }
    for (int i = 0; ok && i < b->n_depths; i++) {
        if (b->depth[i] < 1) {
            fprintf(stderr, "hx-bench: --depths: expected 1 or more\n");
            ok = false;
        }
    }
    if (!ok) {
        fprintf(stderr, "Try 'hx-bench engram --help'.\n");
        return EX_USAGE;
    }
    *stop = false;
    return 0;
}

int hx_bench_engram(int argc, char **argv)
{
    struct hx_bench_engram b = {.depth = {1, 32, 64, 128, 256, 512},
                                .n_depths = 6,
                                .cache = {0, 256 << 20, 1 << 30, (int64_t)4 << 30},
                                .n_caches = 4,
                                .seconds = 10,
                                .repeat = 1,
                                .users = 8,
                                .tokens = 6,
                                .layer_us = 1370,
                                .layers = 43,
                                .chunk_ms = 848,
                                .kind = {true, false, true, true, true, true, false}};
    struct hx_error err = {0};
    bool stop;
    int code = read_options(&b, argc, argv, &stop);
    if (stop)
        return code;
    int r = b.make   ? make_file(b.file, (uint64_t)b.make, &err)
            : b.file ? open_file(&b, &err)
                     : open_folder(&b, &err);
    if (r == 0 && b.kind[HX_BENCH_TEXT])
        r = read_text(&b, &err);
    if (r == 0 && !b.make)
        r = hx_bench_engram_run(&b, &err);
    if (r < 0)
        fprintf(stderr, "hx-bench: %s\n", err.text);
    hx_ids_done(&b.ids);
    hx_engram_hash_free(b.hash);
    free(b.map);
    for (int t = 0; t < HX_ENGRAM_MAX_TABLES; t++)
        free(b.path[t]);
    return hx_bench_exit(r);
}
