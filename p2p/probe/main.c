/* hx-probe: runs the steps, shows progress, keeps the result on disk up to date. */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "probe/guard.h"
#include "probe/supervise.h"

#include <hx/build_facts.h>

#define RESULT_MAX     ((size_t)1 << 20)
#define GRACE_MS       3000
#define FLAGS_MS       5000
#define COLLECTIVE_MS  5000
#define PATTERN_FULL_S 300
#define PROGRESS_S     2.0
#define GUARD_S        0.25

struct program {
    struct hx_probe_options options;
    const char *steps; /* comma list, NULL: all */
    const char *devices, *output;
    bool quiet;
    double shown[HX_PROBE_DEVICES + 1]; /* when progress was last printed, seconds of the step */
    const struct hx_probe_step *last;
    const char *nvml; /* library, NULL: the standard one */
    struct hx_probe_guard *guard;
    struct hx_probe_shared *sh;
    double looked; /* when the guard was last asked, seconds of the step */
    struct hx_error save_error;
    bool save_failed;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

static const char help[] =
    "usage: hx-probe [options]\n"
    "Measures the cards with CUDA and prints one JSON document. Judges nothing: p2p_check does.\n"
    "\n"
    "  --quick             three copy sizes, patterns once (default)\n"
    "  --full              all copy sizes, rounds of patterns, an abnormal exit\n"
    "  --pattern-seconds N rounds of patterns for so long (default with --full: 300)\n"
    "  --steps A,B         only these steps (enumerate, context and access run with any)\n"
    "  --list              the steps\n"
    "  --devices UUID,...  only these cards (default: all)\n"
    "  --memory MIB        most memory that the memory tests take (default: all but a reserve)\n"
    "  --nvml FILE         management library (default: the driver's)\n"
    "  --no-nccl           without NCCL, even if it is installed\n"
    "  --self-test         pair tests between streams and buffers of one card\n"
    "  --output FILE       JSON into FILE, replaced after every step (default: standard output)\n"
    "  --quiet             no progress on standard error\n"
    "  --help, --version\n";

enum {
    OPT_QUICK = 256,
    OPT_FULL,
    OPT_PATTERN,
    OPT_STEPS,
    OPT_LIST,
    OPT_DEVICES,
    OPT_MEMORY,
    OPT_NVML,
    OPT_NO_NCCL,
    OPT_SELF_TEST,
    OPT_OUTPUT,
    OPT_QUIET,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"quick", no_argument, NULL, OPT_QUICK},
    {"full", no_argument, NULL, OPT_FULL},
    {"pattern-seconds", required_argument, NULL, OPT_PATTERN},
    {"steps", required_argument, NULL, OPT_STEPS},
    {"list", no_argument, NULL, OPT_LIST},
    {"devices", required_argument, NULL, OPT_DEVICES},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"nvml", required_argument, NULL, OPT_NVML},
    {"no-nccl", no_argument, NULL, OPT_NO_NCCL},
    {"self-test", no_argument, NULL, OPT_SELF_TEST},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"quiet", no_argument, NULL, OPT_QUIET},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0}};

/* A whole number in [low, high]. */
static bool number(const char *text, uintmax_t low, uintmax_t high, uintmax_t *out)
{
    char *end = NULL;
    errno = 0;
    const uintmax_t v = strtoumax(text, &end, 10);
    if (errno != 0 || end == text || *end || text[0] == '-' || v < low || v > high)
        return false;
    *out = v;
    return true;
}

/* Whether the comma list names the step; every name has to be one. */
static bool list_has(const char *list, const char *name)
{
    const size_t len = strlen(name);
    for (const char *at = list; at && *at;) {
        const char *end = strchrnul(at, ',');
        if ((size_t)(end - at) == len && memcmp(at, name, len) == 0)
            return true;
        at = *end ? end + 1 : NULL;
    }
    return false;
}

/* The first name of the list that is no step, in name. */
static bool list_unknown(const char *list, char *name, size_t size)
{
    for (const char *at = list; at && *at;) {
        const char *end = strchrnul(at, ',');
        snprintf(name, size, "%.*s", (int)(end - at), at);
        bool known = false;
        for (size_t i = 0; i < hx_probe_n_steps; i++)
            known = known || strcmp(hx_probe_steps[i].name, name) == 0;
        if (!known)
            return true;
        at = *end ? end + 1 : NULL;
    }
    return false;
}

static int HX_PRINTF(1, 2) usage(const char *fmt, ...)
{
    va_list args;
    fprintf(stderr, "hx-probe: ");
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "; hx-probe --help shows the options\n");
    return EX_USAGE;
}

/* EX_OK: go on; -1: all done; else the exit code. */
static int parse(struct program *p, int argc, char **argv)
{
    char name[64];
    uintmax_t v = 0;
    int c;
    while ((c = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        switch (c) {
        case OPT_QUICK:
            p->options.full = false;
            p->options.pattern_s = 0;
            break;
        case OPT_FULL:
            p->options.full = true;
            p->options.pattern_s = PATTERN_FULL_S;
            break;
        case OPT_PATTERN:
            if (!number(optarg, 0, 7 * 86400, &v))
                return usage("--pattern-seconds %s: a whole number up to 604800 is needed", optarg);
            p->options.pattern_s = (unsigned)v;
            break;
        case OPT_STEPS: p->steps = optarg; break;
        case OPT_LIST:
            for (size_t i = 0; i < hx_probe_n_steps; i++)
                printf("%-12s %s\n", hx_probe_steps[i].name, hx_probe_steps[i].title);
            if (hx_probe_n_steps == 0)
                printf("%s: no steps\n", hx_probe_without);
            return -1;
        case OPT_DEVICES: p->devices = optarg; break;
        case OPT_MEMORY:
            if (!number(optarg, 64, 1u << 20, &v))
                return usage("--memory %s: 64 to 1048576 MiB are possible", optarg);
            p->options.memory_bytes = (uint64_t)v << 20;
            break;
        case OPT_NVML: p->nvml = optarg; break;
        case OPT_NO_NCCL: p->options.nccl = NULL; break;
        case OPT_SELF_TEST: p->options.one_device = true; break;
        case OPT_OUTPUT: p->output = optarg; break;
        case OPT_QUIET: p->quiet = true; break;
        case OPT_HELP: fputs(help, stdout); return -1;
        case OPT_VERSION:
            printf("hx-probe %s%s%s\n", HX_BUILD_VERSION, hx_probe_without[0] ? ", " : "",
                   hx_probe_without);
            return -1;
        case ':': return usage("option %s needs a value", argv[optind - 1]);
        default: return usage("unknown option %s", argv[optind - 1]);
        }
    }
    if (optind < argc)
        return usage("unexpected argument %s", argv[optind]);
    if (hx_probe_n_steps && p->steps && list_unknown(p->steps, name, sizeof(name)))
        return usage("--steps: no step is called '%s' (hx-probe --list)", name);
    return EX_OK;
}

static int save(struct program *p, const struct hx_probe_result *r, struct hx_error *err)
{
    struct hx_buf out = HX_BUF_INIT(RESULT_MAX);
    int e = hx_probe_result_write(r, &out, err);
    if (e == 0 && p->output)
        e = hx_file_replace(p->output, out.data, out.len, err);
    else if (e == 0 && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0))
        e = hx_fail_errno(err, errno, "standard output");
    hx_buf_done(&out);
    return e;
}

static bool watch(void *ctx, const struct hx_probe_shared *sh, const struct hx_probe_step *step,
                  int device, double seconds, bool done)
{
    struct program *p = ctx;
    const int slot = hx_probe_slot(device);
    if (p->last != step) {
        p->last = step;
        p->looked = 0;
        memset(p->shown, 0, sizeof(p->shown));
    }
    if (p->guard && seconds - p->looked >= GUARD_S) {
        p->looked = seconds;
        hx_probe_guard_look(p->guard, p->sh);
    }
    if (!p->quiet && !done && seconds - p->shown[slot] >= PROGRESS_S) {
        const unsigned part = atomic_load(&sh->permille[slot]);
        p->shown[slot] = seconds;
        if (device >= 0)
            fprintf(stderr, "hx-probe: card %d, %s: %.0f s, %u %%\n", device, step->title, seconds,
                    part / 10);
        else
            fprintf(stderr, "hx-probe: %s: %.0f s, %u %%\n", step->title, seconds, part / 10);
    }
    if (done && p->output && !p->save_failed)
        p->save_failed = save(p, &sh->result, &p->save_error) != 0;
    return !interrupted && !p->save_failed;
}

/* Steps that the others stand on run with any selection. */
static bool wanted(const struct program *p, const struct hx_probe_step *s)
{
    return !p->steps || s->scope == HX_PROBE_ONCE || strcmp(s->name, "context") == 0 ||
           (s->scope == HX_PROBE_PAIRS && strcmp(s->name, "access") == 0) ||
           list_has(p->steps, s->name);
}

/* Access is only of use for a step of pairs that is wanted too. */
static bool wants_pairs(const struct program *p)
{
    if (!p->steps)
        return true;
    for (size_t i = 0; i < hx_probe_n_steps; i++) {
        if (hx_probe_steps[i].scope >= HX_PROBE_PAIRS && list_has(p->steps, hx_probe_steps[i].name))
            return true;
    }
    return false;
}

static int probe(struct program *p, struct hx_probe_shared *sh)
{
    struct hx_probe_run run = {
        .options = &p->options, .watch = watch, .ctx = p, .grace_ms = GRACE_MS};
    struct hx_error err = {0};
    for (size_t i = 0; i < hx_probe_n_steps; i++) {
        const struct hx_probe_step *s = &hx_probe_steps[i];
        const int limits = run.n_limits, bad = run.n_bad;
        if (!wanted(p, s) || (s->scope >= HX_PROBE_PAIRS && !wants_pairs(p)))
            continue;
        if (strcmp(s->name, "pattern") == 0 &&
            hx_probe_guard_start(p->nvml, sh, &p->guard, &err) != 0)
            fprintf(stderr, "hx-probe: %s\n", err.text);
        const int r = hx_probe_run_step(&run, sh, s, &err);
        hx_probe_guard_stop(p->guard, sh);
        p->guard = NULL;
        if (r != 0) {
            fprintf(stderr, "hx-probe: %s\n", err.text);
            return EX_OSERR;
        }
        if (run.n_limits > limits || run.n_bad > bad)
            fprintf(stderr, "hx-probe: %s\n", run.last_error);
        if (s->scope == HX_PROBE_ONCE && sh->result.n_devices == 0)
            return EX_UNAVAILABLE;
    }
    if (run.any_stuck)
        fprintf(stderr, "hx-probe: a test is stuck inside the driver; it is left alone. Shut down "
                        "and start cold.\n");
    return run.stopped || run.n_limits || run.n_bad ? EX_TEMPFAIL : EX_OK;
}

int main(int argc, char **argv)
{
    struct program p = {.options = {.n_ranks = 4,
                                    .flags_limit_ms = FLAGS_MS,
                                    .collective_limit_ms = COLLECTIVE_MS,
                                    .nccl = "libnccl.so.2"}};
    struct hx_probe_shared *sh = NULL;
    struct hx_error err = {0};
    int code = parse(&p, argc, argv);
    if (code != EX_OK)
        return code < 0 ? EX_OK : code;
    /* The numbering of the management library, and only the chosen cards. */
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    if (p.devices)
        setenv("CUDA_VISIBLE_DEVICES", p.devices, 1);
    if (hx_probe_shared_new(&sh, &err) != 0) {
        fprintf(stderr, "hx-probe: %s\n", err.text);
        return EX_OSERR;
    }
    p.sh = sh;
    const struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (hx_probe_n_steps == 0) {
        fprintf(stderr, "hx-probe: %s; nothing can be measured\n", hx_probe_without);
        code = EX_UNAVAILABLE;
    } else {
        code = probe(&p, sh);
    }
    if (p.save_failed) {
        fprintf(stderr, "hx-probe: %s\n", p.save_error.text);
        code = EX_IOERR;
    } else if (save(&p, &sh->result, &err) != 0) {
        fprintf(stderr, "hx-probe: %s\n", err.text);
        code = EX_IOERR;
    }
    hx_probe_shared_free(sh);
    return code;
}
