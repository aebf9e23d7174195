/* hx-inspect logits: passes of the model over given token ids. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "cli/inspect.h"
#include "model/safetensors.h"
#include "run/rank.h"

#define MAX_IDS   65536
#define MAX_CHUNK 2048
#define BLOCK_TOK 64

struct request {
    const char *dir, *out, *taps;
    enum hx_mode mode;
    int32_t *id;
    int n_ids, chunk;
};

/* Copies of the values of one pass. */
struct tap_value {
    char name[64];
    void *data;
};
struct tap_set {
    struct hx_st_writer *w;
    struct tap_value *value;
    size_t n, cap;
    int r; /* first failure */
    struct hx_error err;
};

static void take(void *user, const char *name, int layer, const struct hx_tensor *t)
{
    struct tap_set *s = user;
    struct tap_value v;
    size_t size = hx_dtype_size(t->dtype);
    if (s->r < 0)
        return;
    if (layer >= 0)
        snprintf(v.name, sizeof(v.name), "L%d.%s", layer, name);
    else
        snprintf(v.name, sizeof(v.name), "%s", name);
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->value[i].name, v.name) == 0) {
            s->r = hx_fail(&s->err, -EEXIST, "value '%s' came twice in one pass", v.name);
            return;
        }
    }
    for (int i = 0; i < t->n_dims; i++)
        size *= (size_t)t->ne[i];
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256;
        struct tap_value *p = realloc(s->value, cap * sizeof(*p));
        if (!p) {
            s->r = hx_fail(&s->err, -ENOMEM, "out of memory");
            return;
        }
        s->value = p;
        s->cap = cap;
    }
    v.data = malloc(size ? size : 1);
    if (!v.data) {
        s->r = hx_fail(&s->err, -ENOMEM, "out of memory");
        return;
    }
    memcpy(v.data, t->data, size); /* the CPU back end's memory is the host's */
    s->value[s->n++] = v;
    s->r = hx_st_writer_add(s->w, v.name, t->dtype, t->n_dims, t->ne, v.data, &s->err);
}

static int write_logits(FILE *f, const char *path, const float *logits, size_t n,
                        struct hx_error *err)
{
    if (f && fwrite(logits, sizeof(float), n, f) != n)
        return hx_fail_errno(err, errno, "%s: cannot write", path);
    return 0;
}

static int run_chunks(const struct request *q, struct hx_rank *rank, FILE *f, struct tap_set *taps,
                      struct hx_error *err)
{
    size_t n_vocab = (size_t)hx_rank_hparams(rank)->n_vocab;
    struct hx_kv_seq *kv = NULL;
    float *logits = malloc((size_t)q->chunk * n_vocab * sizeof(*logits));
    int r =
        logits ? hx_kv_seq_new(hx_rank_kv(rank), &kv, err) : hx_fail(err, -ENOMEM, "out of memory");
    for (int at = 0; r == 0 && at < q->n_ids; at += q->chunk) {
        int n = q->n_ids - at < q->chunk ? q->n_ids - at : q->chunk;
        struct hx_step_seq s = {.kv = kv, .tokens = q->id + at, .n_tok = n, .n_logits = n};
        r = hx_rank_step(rank, &s, 1, logits, taps ? take : NULL, taps, err);
        if (r == 0 && taps && taps->r < 0) {
            *err = taps->err;
            r = taps->r;
        }
        if (r == 0 && taps) {
            const struct hx_tensor t = {HX_DTYPE_F32, 2, {n, (int64_t)n_vocab, 1, 1}, logits};
            take(taps, "logits", -1, &t);
        }
        if (r == 0)
            r = write_logits(f, q->out, logits, (size_t)n * n_vocab, err);
        if (r == 0)
            hx_inspect_progress("tokens", (double)(at + n) / q->n_ids);
    }
    hx_kv_seq_free(kv);
    free(logits);
    return r;
}

static void load_progress(void *user, const char *stage, double fraction)
{
    (void)user;
    hx_inspect_progress(stage, fraction);
}

static int run(const struct request *q, struct hx_error *err)
{
    int n_blocks = (q->n_ids + BLOCK_TOK - 1) / BLOCK_TOK + 1;
    const struct hx_rank_options opt = {
        .model_dir = q->dir,
        .backend = "cpu",
        .mode = q->mode,
        .max_tok = q->chunk,
        .max_seq = 1,
        .max_context = n_blocks * BLOCK_TOK,
        .kv = {.block_tok = BLOCK_TOK, .n_blocks = n_blocks, .n_seqs = 1},
        .progress = load_progress};
    struct hx_rank *rank = NULL;
    struct tap_set taps = {0};
    FILE *f = NULL;
    int r = hx_rank_open(&opt, &rank, err);
    if (r == 0 && q->taps)
        r = hx_st_writer_new(&taps.w, err);
    if (r == 0 && q->out && !(f = fopen(q->out, "wbe")))
        r = hx_fail_errno(err, errno, "%s: cannot create", q->out);
    if (r == 0)
        r = run_chunks(q, rank, f, q->taps ? &taps : NULL, err);
    if (f && fclose(f) != 0 && r == 0)
        r = hx_fail_errno(err, errno, "%s: cannot write", q->out);
    if (f && r < 0)
        remove(q->out);
    if (r == 0 && q->taps)
        r = taps.r < 0 ? (*err = taps.err, taps.r) : hx_st_writer_write(taps.w, q->taps, err);
    for (size_t i = 0; i < taps.n; i++)
        free(taps.value[i].data);
    free(taps.value);
    hx_st_writer_free(taps.w);
    hx_rank_close(rank);
    return r;
}

/* "5,6,7"; false: not that, or too many. */
static bool parse_ids(char *s, struct request *q)
{
    char *save = NULL;
    size_t n = 1;
    for (const char *c = s; *c; c++)
        n += *c == ',';
    free(q->id);
    q->n_ids = 0;
    q->id = n <= MAX_IDS ? calloc(n, sizeof(*q->id)) : NULL;
    if (!q->id)
        return false;
    for (char *w = strtok_r(s, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
        long long id;
        if (!hx_inspect_number(w, 0, INT32_MAX, &id))
            return false;
        q->id[q->n_ids++] = (int32_t)id;
    }
    return q->n_ids > 0;
}

static int parse(int argc, char **argv, struct request *q)
{
    static const struct option options[] = {
        {"ids", required_argument, NULL, 'i'},   {"mode", required_argument, NULL, 'm'},
        {"chunk", required_argument, NULL, 'c'}, {"out", required_argument, NULL, 'o'},
        {"taps", required_argument, NULL, 't'},  {0}};
    long long chunk = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'i':
            if (!parse_ids(optarg, q))
                return hx_inspect_usage("logits: --ids needs 1 to %d numbers with commas", MAX_IDS);
            break;
        case 'm':
            if (strcmp(optarg, "w8a16") != 0 && strcmp(optarg, "reference") != 0)
                return hx_inspect_usage("logits: unknown mode '%.40s'", optarg);
            q->mode = optarg[0] == 'w' ? HX_MODE_W8A16 : HX_MODE_REFERENCE;
            break;
        case 'c':
            if (!hx_inspect_number(optarg, 1, MAX_CHUNK, &chunk))
                return hx_inspect_usage("logits: --chunk needs a number from 1 to %d", MAX_CHUNK);
            break;
        case 'o': q->out = optarg; break;
        case 't': q->taps = optarg; break;
        default: return EX_USAGE;
        }
    }
    if (argc - optind != 1 || !q->id || (!q->out && !q->taps))
        return hx_inspect_usage("logits: expected one model folder, --ids, and --out or --taps");
    q->dir = argv[optind];
    q->chunk = chunk ? (int)chunk : q->n_ids < MAX_CHUNK ? q->n_ids : MAX_CHUNK;
    if (q->taps && q->chunk < q->n_ids)
        return hx_inspect_usage("logits: --taps needs all ids in one pass (at most %d, no smaller "
                                "--chunk)",
                                MAX_CHUNK);
    return EX_OK;
}

int hx_inspect_logits(int argc, char **argv)
{
    struct request q = {.mode = HX_MODE_W8A16};
    struct hx_error err;
    int status = parse(argc, argv, &q);
    if (status == EX_OK)
        status = hx_inspect_status(run(&q, &err), &err);
    free(q.id);
    return status;
}
