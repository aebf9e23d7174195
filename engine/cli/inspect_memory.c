/* hx-inspect memory: what a model takes on the cards and on the host, before anything is loaded. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "base/json_write.h"
#include "cli/inspect.h"
#include "model/manifest.h"
#include "run/memory_plan.h"

struct request {
    const char *dir; /* NULL: the released shape */
    enum hx_layout layout;
    int bits; /* of the experts of the released shape; 0: FP4 */
    bool has_bits, json;
    int64_t card, reserve, host, cache, kv_tokens;
    int context, sequences, chunk, drafts;
};

/* "64G", "512M", "1234"; powers of 1024. */
static bool read_size(const char *s, int64_t *out)
{
    static const char units[] = "kMGT";
    char *end;
    errno = 0;
    if (*s < '0' || *s > '9')
        return false;
    double v = strtod(s, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit)
        v = ldexp(v, 10 * (int)(unit - units + 1));
    if (errno != 0 || (*end && (!unit || end[1])) || !(v <= 0x1p60))
        return false;
    *out = (int64_t)v;
    return true;
}

static int parse(int argc, char **argv, struct request *q)
{
    static const struct option options[] = {{"layout", required_argument, NULL, 'l'},
                                            {"experts", required_argument, NULL, 'e'},
                                            {"card", required_argument, NULL, 'c'},
                                            {"reserve", required_argument, NULL, 'r'},
                                            {"host", required_argument, NULL, 'o'},
                                            {"cache", required_argument, NULL, 'a'},
                                            {"context", required_argument, NULL, 'n'},
                                            {"sequences", required_argument, NULL, 's'},
                                            {"chunk", required_argument, NULL, 'k'},
                                            {"drafts", required_argument, NULL, 'd'},
                                            {"kv-tokens", required_argument, NULL, 't'},
                                            {"json", no_argument, NULL, 'j'},
                                            {0}};
    const struct {
        int letter;
        const char *name;
        long long lo, hi;
        int *to;
    } numbers[] = {{'n', "context", 1, INT32_MAX, &q->context},
                   {'s', "sequences", 1, 64, &q->sequences},
                   {'k', "chunk", 1, 65536, &q->chunk},
                   {'d', "drafts", 0, 7, &q->drafts}};
    const struct {
        int letter;
        const char *name;
        int64_t *to;
    } sizes[] = {{'c', "card", &q->card},
                 {'r', "reserve", &q->reserve},
                 {'o', "host", &q->host},
                 {'a', "cache", &q->cache}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        long long v;
        if (c == '?')
            return EX_USAGE;
        if (c == 'j')
            q->json = true;
        if (c == 'l' && (q->layout = hx_layout_parse(optarg)) == HX_LAYOUT_MAX)
            return hx_inspect_usage("memory: unknown layout '%.40s'", optarg);
        if (c == 'e') {
            q->has_bits = true;
            if (strcmp(optarg, "fp4") == 0)
                q->bits = 0;
            else if (hx_inspect_number(optarg, 1, 8, &v))
                q->bits = (int)v;
            else
                return hx_inspect_usage("memory: --experts is '%.40s': expected fp4 or 1 to 8",
                                        optarg);
        }
        if (c == 't') {
            if (!hx_inspect_number(optarg, 0, INT32_MAX, &v))
                return hx_inspect_usage("memory: --kv-tokens is '%.40s': expected 0 to %d", optarg,
                                        INT32_MAX);
            q->kv_tokens = v;
        }
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            if (c == numbers[i].letter &&
                !hx_inspect_number(optarg, numbers[i].lo, numbers[i].hi, &v))
                return hx_inspect_usage("memory: --%s is '%.40s': expected %lld to %lld",
                                        numbers[i].name, optarg, numbers[i].lo, numbers[i].hi);
            if (c == numbers[i].letter)
                *numbers[i].to = (int)v;
        }
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            if (c == sizes[i].letter && !read_size(optarg, sizes[i].to))
                return hx_inspect_usage("memory: --%s is '%.40s': expected a size such as 64G",
                                        sizes[i].name, optarg);
        }
    }
    if (argc - optind > 1)
        return hx_inspect_usage(
            "memory: expected one model folder, or none for the released shape");
    q->dir = argc > optind ? argv[optind] : NULL;
    if (q->dir && q->has_bits)
        return hx_inspect_usage("memory: --experts is for the released shape; the folder '%.200s' "
                                "has its own",
                                q->dir);
    if (q->layout == HX_LAYOUT_PP4)
        return hx_inspect_usage("memory: layout pp4 has no memory plan yet");
    return EX_OK;
}

/* ---- output ---- */

static void text(struct hx_buf *out, const struct request *q, const struct hx_memory_plan *p)
{
    hx_buf_printf(out, "%s, layout %s, bytes\n%-14s", q->dir ? q->dir : "released shape",
                  hx_layout_name(q->layout), "");
    for (int r = 0; r < p->n_ranks; r++)
        hx_buf_printf(out, " %14s%d", "rank ", r);
    for (int i = 0; i < HX_MEMORY_HOST; i++) {
        hx_buf_printf(out, "\n%-14s", hx_memory_row_name((enum hx_memory_row)i));
        for (int r = 0; r < p->n_ranks; r++)
            hx_buf_printf(out, " %15lld", (long long)p->bytes[r][i]);
    }
    hx_buf_printf(out, "\n%-14s", "total");
    for (int r = 0; r < p->n_ranks; r++)
        hx_buf_printf(out, " %15lld", (long long)p->total[r]);
    if (q->card > 0) {
        hx_buf_printf(out, "\n%-14s", "left");
        for (int r = 0; r < p->n_ranks; r++)
            hx_buf_printf(out, " %15lld", (long long)(q->card - p->total[r]));
    }
    hx_buf_printf(out, "\nhost\n");
    for (int i = HX_MEMORY_HOST; i < HX_MEMORY_ROWS; i++)
        hx_buf_printf(out, "%-14s %15lld\n", hx_memory_row_name((enum hx_memory_row)i),
                      (long long)p->host[i]);
    hx_buf_printf(out, "KV pool: %lld tokens in %d blocks of %lld bytes\n", (long long)p->kv_tokens,
                  p->n_blocks, (long long)p->kv_block);
}

static void member(struct hx_json_writer *w, const char *key, int64_t v)
{
    hx_jw_key(w, key);
    hx_jw_int(w, v);
}

/* The row's name with underscores. */
static void row(struct hx_json_writer *w, enum hx_memory_row row, int64_t v)
{
    char key[32];
    snprintf(key, sizeof(key), "%s", hx_memory_row_name(row));
    for (char *c = key; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    member(w, key, v);
}

static void json(struct hx_buf *out, const struct request *q, const struct hx_memory_plan *p,
                 bool fits, const struct hx_error *err)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "layout");
    hx_jw_str(&w, hx_layout_name(q->layout));
    hx_jw_key(&w, "fits");
    hx_jw_bool(&w, fits);
    if (!fits) {
        hx_jw_key(&w, "reason");
        hx_jw_str(&w, err->text);
    }
    hx_jw_key(&w, "ranks");
    hx_jw_array(&w);
    for (int r = 0; r < p->n_ranks; r++) {
        hx_jw_object(&w);
        for (int i = 0; i < HX_MEMORY_HOST; i++)
            row(&w, (enum hx_memory_row)i, p->bytes[r][i]);
        member(&w, "total", p->total[r]);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    hx_jw_key(&w, "host");
    hx_jw_object(&w);
    for (int i = HX_MEMORY_HOST; i < HX_MEMORY_ROWS; i++)
        row(&w, (enum hx_memory_row)i, p->host[i]);
    member(&w, "total", p->host_total);
    hx_jw_end_object(&w);
    member(&w, "device_bytes", q->card);
    member(&w, "kv_tokens", p->kv_tokens);
    member(&w, "kv_blocks", p->n_blocks);
    member(&w, "kv_block_bytes", p->kv_block);
    hx_jw_end_object(&w);
    hx_buf_putc(out, '\n');
}

/* ---- command ---- */

static int place(const struct request *q, struct hx_hparams *hp, struct hx_maps *maps,
                 struct hx_placement *p, struct hx_error *err)
{
    struct hx_manifest m;
    uint8_t bits[HX_MAX_LAYERS];
    int r = 0;
    if (q->dir) {
        r = hx_manifest_load(q->dir, &m, err);
        if (r == 0)
            r = hx_hparams_load(q->dir, hp, err);
    } else {
        hx_hparams_released(hp);
    }
    if (r == 0)
        r = hx_maps_derive(hp, maps, err);
    if (r < 0)
        return r;
    memset(bits, q->bits, sizeof(bits));
    return q->dir ? hx_place_folder(q->dir, q->layout, p, err)
                  : hx_place_config(hp, maps, q->bits ? bits : NULL, q->layout, p, err);
}

int hx_inspect_memory(int argc, char **argv)
{
    struct request q = {.layout = HX_LAYOUT_TP4,
                        .bits = 3,
                        .card = -1,
                        .reserve = (int64_t)1 << 30,
                        .cache = (int64_t)4 << 30,
                        .context = 262144,
                        .sequences = 8,
                        .chunk = 2048,
                        .drafts = 5};
    struct hx_hparams hp;
    struct hx_maps maps;
    struct hx_placement p;
    struct hx_memory_plan plan;
    struct hx_error err;
    int status = parse(argc, argv, &q);
    if (status != EX_OK)
        return status;
    bool cards = q.layout != HX_LAYOUT_CPU;
    if (q.card < 0)
        q.card = cards ? (int64_t)64 << 30 : 0;
    int r = place(&q, &hp, &maps, &p, &err);
    if (r < 0)
        return hx_inspect_status(r, &err);
    if (q.context > hp.max_positions)
        q.context = (int)hp.max_positions;
    int n = q.sequences;
    const struct hx_memory_wish wish = {
        .max_tok = q.chunk + n * (1 + q.drafts),
        .max_seq = n,
        .drafts = q.drafts > 0,
        .kv = {.block_tok = HX_KV_BLOCK_TOK,
               .n_blocks = (int)((q.kv_tokens + HX_KV_BLOCK_TOK - 1) / HX_KV_BLOCK_TOK),
               .n_seqs = n,
               .n_snapshots = n * HX_KV_SNAPSHOTS_EACH},
        .max_tokens = q.card > 0 ? INT64_MAX / 2 : (int64_t)q.context * n,
        .device_bytes = q.card,
        .host_bytes = q.host,
        .kernel_bytes = cards ? (int64_t)HX_CUDA_SCRATCH : 0,
        .graph_bytes = cards ? q.reserve : 0,
        .cache_bytes = q.cache};
    r = hx_memory_plan(&hp, &maps, &p, &wish, &plan, &err);
    if (r == 0 && q.kv_tokens == 0 && plan.kv_tokens < q.context)
        r = hx_fail(&err, -ENOMEM,
                    "the pool holds %lld tokens, fewer than one context of %d: lower --context, or "
                    "use more cards or smaller experts",
                    (long long)plan.kv_tokens, q.context);
    if (r < 0 && r != -ENOMEM)
        return hx_inspect_status(r, &err);
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    if (q.json)
        json(&out, &q, &plan, r == 0, &err);
    else
        text(&out, &q, &plan);
    status = hx_inspect_print(&out);
    if (r == 0 || status != EX_OK)
        return status;
    fprintf(stderr, "hx-inspect: it does not fit: %s\n", err.text);
    return EX_UNAVAILABLE;
}
