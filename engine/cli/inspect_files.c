/* hx-inspect headers, plan, tiny. */
#include <dirent.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

#include "base/file.h"
#include "base/json_write.h"
#include "cli/inspect.h"
#include "engram/engram.h"
#include "model/model.h"
#include "model/place.h"
#include "model/safetensors.h"
#include "model/tiny.h"

#define MAX_OUTPUT (1u << 30)

/* ---- headers ----------------------------------------------------------------------------------
 */

static void put_json(struct hx_json_writer *w, const struct hx_st_file *f,
                     const struct hx_st_tensor *t)
{
    hx_jw_object(w);
    hx_jw_key(w, "file");
    hx_jw_str(w, hx_st_path(f));
    hx_jw_key(w, "name");
    hx_jw_str(w, t->name);
    hx_jw_key(w, "dtype");
    hx_jw_str(w, hx_dtype_name(t->dtype));
    hx_jw_key(w, "shape");
    hx_jw_array(w);
    for (int i = 0; i < t->n_dims; i++)
        hx_jw_int(w, t->ne[i]);
    hx_jw_end_array(w);
    hx_jw_key(w, "offset");
    hx_jw_uint(w, t->offset);
    hx_jw_key(w, "size");
    hx_jw_uint(w, t->size);
    hx_jw_end_object(w);
}

static void put_line(struct hx_buf *out, const struct hx_st_tensor *t)
{
    char shape[96] = "[";
    size_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n += (size_t)snprintf(shape + n, sizeof(shape) - n, "%s%lld", i ? ", " : "",
                              (long long)t->ne[i]);
    snprintf(shape + n, sizeof(shape) - n, "]");
    hx_buf_printf(out, "  %-56s %-8s %-22s %14llu\n", t->name, hx_dtype_name(t->dtype), shape,
                  (unsigned long long)t->size);
}

struct listing {
    struct hx_buf out;
    struct hx_json_writer w;
    bool json;
    int n_files;
    uint64_t n_tensors, bytes;
};

static int list_file(struct listing *l, const char *path, struct hx_error *err)
{
    struct hx_st_file *f;
    int r = hx_st_open(path, &f, err);
    if (r < 0)
        return r;
    if (!l->json)
        hx_buf_printf(&l->out, "%s: %zu tensors\n", path, hx_st_count(f));
    for (size_t i = 0; i < hx_st_count(f); i++) {
        const struct hx_st_tensor *t = hx_st_at(f, i);
        if (l->json)
            put_json(&l->w, f, t);
        else
            put_line(&l->out, t);
        l->n_tensors++;
        l->bytes += t->size;
    }
    l->n_files++;
    hx_st_close(f);
    return 0;
}

static int is_shard(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0;
}

static int list_folder(struct listing *l, const char *dir, struct hx_error *err)
{
    struct dirent **entry;
    int n = scandir(dir, &entry, is_shard, alphasort), r = 0;
    if (n < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? 0
                   : hx_fail_errno(err, errno, "%s: cannot read the folder", dir);
    for (int i = 0; i < n; i++) {
        char *path = r == 0 ? hx_path_join(dir, entry[i]->d_name) : NULL;
        if (r == 0)
            r = path ? list_file(l, path, err) : hx_fail(err, -ENOMEM, "out of memory");
        free(path);
        free(entry[i]);
    }
    free(entry);
    return r;
}

static int list_model(struct listing *l, const char *dir, struct hx_error *err)
{
    static const char *const folders[] = {"dense", "engram", "experts"};
    int r = list_folder(l, dir, err);
    for (int i = 0; r == 0 && i < 3; i++) {
        char *path = hx_path_join(dir, folders[i]);
        r = path ? list_folder(l, path, err) : hx_fail(err, -ENOMEM, "out of memory");
        free(path);
    }
    if (r == 0 && l->n_files == 0)
        r = hx_fail(err, -ENOENT, "%s: no .safetensors file", dir);
    return r;
}

int hx_inspect_headers(int argc, char **argv)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'}, {0}};
    struct listing l = {.out = HX_BUF_INIT(MAX_OUTPUT)};
    struct hx_error err;
    struct stat st;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c != 'j')
            return EX_USAGE;
        l.json = true;
    }
    if (argc - optind != 1)
        return hx_inspect_usage("headers: expected one folder or file");
    const char *path = argv[optind];
    if (l.json) {
        hx_jw_init(&l.w, &l.out, false);
        hx_jw_array(&l.w);
    }
    int r;
    if (stat(path, &st) < 0)
        r = hx_fail_errno(&err, errno, "%s", path);
    else
        r = S_ISDIR(st.st_mode) ? list_model(&l, path, &err) : list_file(&l, path, &err);
    if (r < 0) {
        hx_buf_done(&l.out);
        return hx_inspect_status(r, &err);
    }
    if (l.json) {
        hx_jw_end_array(&l.w);
        hx_buf_putc(&l.out, '\n');
    } else {
        hx_buf_printf(&l.out, "%d files, %llu tensors, %llu bytes\n", l.n_files,
                      (unsigned long long)l.n_tensors, (unsigned long long)l.bytes);
    }
    return hx_inspect_print(&l.out);
}

/* ---- plan -------------------------------------------------------------------------------------
 */

static int64_t rank_total(const struct hx_placement *p, int rank)
{
    int64_t sum = 0;
    for (int c = 0; c < HX_COMP_MAX; c++)
        sum += p->rank_bytes[rank][c];
    return sum;
}

static void plan_text(struct hx_buf *out, const struct hx_placement *p)
{
    int64_t n = 0, bytes = 0;
    hx_buf_printf(out, "layout %s, bytes of weights\n%-18s %8s %16s", hx_layout_name(p->layout),
                  "component", "tensors", "stored");
    for (int r = 0; r < p->n_ranks; r++)
        hx_buf_printf(out, " %14s%d", "rank ", r);
    hx_buf_putc(out, '\n');
    for (int c = 0; c < HX_COMP_MAX; c++) {
        hx_buf_printf(out, "%-18s %8lld %16lld", hx_component_name((enum hx_component)c),
                      (long long)p->n_tensors[c], (long long)p->bytes[c]);
        for (int r = 0; r < p->n_ranks; r++)
            hx_buf_printf(out, " %15lld", (long long)p->rank_bytes[r][c]);
        hx_buf_putc(out, '\n');
        n += p->n_tensors[c];
        bytes += p->bytes[c];
    }
    hx_buf_printf(out, "%-18s %8lld %16lld", "total", (long long)n, (long long)bytes);
    for (int r = 0; r < p->n_ranks; r++)
        hx_buf_printf(out, " %15lld", (long long)rank_total(p, r));
    hx_buf_printf(out, "\non the drive (Engram): %lld, of it scales also in memory: %lld\n",
                  (long long)p->file_bytes, (long long)p->host_bytes);
}

static void plan_json(struct hx_buf *out, const struct hx_placement *p)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, false);
    hx_jw_object(&w);
    hx_jw_key(&w, "layout");
    hx_jw_str(&w, hx_layout_name(p->layout));
    hx_jw_key(&w, "components");
    hx_jw_array(&w);
    for (int c = 0; c < HX_COMP_MAX; c++) {
        hx_jw_object(&w);
        hx_jw_key(&w, "name");
        hx_jw_str(&w, hx_component_name((enum hx_component)c));
        hx_jw_key(&w, "tensors");
        hx_jw_int(&w, p->n_tensors[c]);
        hx_jw_key(&w, "bytes");
        hx_jw_int(&w, p->bytes[c]);
        hx_jw_key(&w, "ranks");
        hx_jw_array(&w);
        for (int r = 0; r < p->n_ranks; r++)
            hx_jw_int(&w, p->rank_bytes[r][c]);
        hx_jw_end_array(&w);
        hx_jw_end_object(&w);
    }
    hx_jw_end_array(&w);
    hx_jw_key(&w, "rank_bytes");
    hx_jw_array(&w);
    for (int r = 0; r < p->n_ranks; r++)
        hx_jw_int(&w, rank_total(p, r));
    hx_jw_end_array(&w);
    hx_jw_key(&w, "file_bytes");
    hx_jw_int(&w, p->file_bytes);
    hx_jw_key(&w, "host_bytes");
    hx_jw_int(&w, p->host_bytes);
    hx_jw_end_object(&w);
    hx_buf_putc(out, '\n');
}

/* The token map, and the row counts of the tables against the bucket sizes. */
static int check_engram(const char *dir, struct hx_error *err)
{
    struct hx_hparams h;
    struct hx_engram_hash *hash = NULL;
    int32_t *map = NULL;
    int r = hx_hparams_load(dir, &h, err);
    if (r == 0)
        r = hx_token_map_load(dir, &h, &map, err);
    if (r == 0 && h.n_engram > 0) {
        struct hx_engram_hash_config c = {.n_table = h.n_engram,
                                          .n_gram = h.engram_ngram,
                                          .n_head = h.engram_n_head,
                                          .first_bucket = h.engram_vocab,
                                          .n_compressed = h.engram_compressed,
                                          .pad_token = h.engram_pad,
                                          .token_map = map,
                                          .n_vocab = h.n_vocab};
        for (int i = 0; i < h.n_engram; i++) {
            c.layer[i] = h.engram_layer[i];
            c.declared_rows[i] = h.engram_rows[i];
        }
        r = hx_engram_hash_new(&c, &hash, err);
    }
    hx_engram_hash_free(hash);
    free(map);
    return r;
}

int hx_inspect_plan(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"layout", required_argument, NULL, 'l'}, {0}};
    enum hx_layout layout = HX_LAYOUT_TP4;
    bool json = false;
    struct hx_placement p;
    struct hx_manifest m;
    struct hx_error err;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?')
            return EX_USAGE;
        if (c == 'j')
            json = true;
        else if ((layout = hx_layout_parse(optarg)) == HX_LAYOUT_MAX)
            return hx_inspect_usage("plan: unknown layout '%.40s'", optarg);
    }
    if (argc - optind != 1)
        return hx_inspect_usage("plan: expected one model folder");
    int r = hx_manifest_load(argv[optind], &m, &err);
    if (r == 0)
        r = hx_place_folder(argv[optind], layout, &p, &err);
    if (r == 0)
        r = check_engram(argv[optind], &err);
    if (r < 0)
        return hx_inspect_status(r, &err);
    struct hx_buf out = HX_BUF_INIT(1 << 20);
    if (json)
        plan_json(&out, &p);
    else
        plan_text(&out, &p);
    return hx_inspect_print(&out);
}

/* ---- tiny -------------------------------------------------------------------------------------
 */

static void tiny_progress(void *user, double fraction)
{
    (void)user;
    hx_inspect_progress("writing the demo model", fraction);
}

int hx_inspect_tiny(int argc, char **argv)
{
    static const struct option options[] = {{"tokenizer", required_argument, NULL, 't'},
                                            {"map", required_argument, NULL, 'm'},
                                            {"seed", required_argument, NULL, 's'},
                                            {0}};
    struct hx_tiny_options opt = {.seed = 1, .progress = tiny_progress};
    struct hx_error err;
    long long seed;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?')
            return EX_USAGE;
        if (c == 't')
            opt.tokenizer = optarg;
        else if (c == 'm')
            opt.token_map = optarg;
        else if (hx_inspect_number(optarg, 0, INT64_MAX, &seed))
            opt.seed = (uint64_t)seed;
        else
            return hx_inspect_usage("tiny: --seed needs a whole number, found '%.40s'", optarg);
    }
    if (argc - optind != 1)
        return hx_inspect_usage("tiny: expected one folder");
    opt.dir = argv[optind];
    return hx_inspect_status(hx_tiny_write(&opt, &err), &err);
}
