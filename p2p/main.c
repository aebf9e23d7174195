/* p2p_check: one verdict on cards, links and traffic between cards. */
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include <hx/build_facts.h>

#include "base/file.h"
#include "base/json_write.h"
#include "bench_log.h"
#include "key.h"
#include "launch.h"
#include "output.h"

#define EXIT_INTERNAL 4
#define RESULT_MAX    (4u << 20)
#define LOG_MAX       (1u << 20)
#define BUSY_MIB      1024

#define REPLAY_SAMPLES 6
#define REPLAY_STEP_MS 5000

struct program {
    struct hx_collect_options collect;
    const char *probe_file, *probe_program, *output, *show, *read_log;
    bool full, no_probe, json, all, redact, progress, list;
    int probe_limit_s;
};

static const char help[] =
    "usage: p2p_check [--quick | --full] [options]\n"
    "       p2p_check --explain ID | --list | --show [FILE] | --read-log FILE\n"
    "Says whether the cards of this machine can serve the model, in which layout, and what to do.\n"
    "\n"
    "  --quick              what a start needs, under a minute on sound links (default)\n"
    "  --full               longer memory test, all copy sizes, an aborted process\n"
    "  --no-probe           only what can be read without using the cards\n"
    "  --json               the result as JSON\n"
    "  --all                also what passed and what was skipped\n"
    "  --redact             without UUIDs, addresses and boot id, to be shared\n"
    "  --progress           show the progress of long tests (default on a terminal); --quiet: "
    "never\n"
    "  --output FILE        keep the result there (default " HX_P2P_RESULT ",\n"
    "                       if its folder is there); '' keeps none\n"
    "  --explain ID         what a check or remedy means\n"
    "  --list               every check\n"
    "  --show [FILE]        print a kept result\n"
    "  --read-log FILE      judge a log of p2pBandwidthLatencyTest\n"
    "\n"
    "Where to look:\n"
    "  --root DIR           files of the machine below DIR; tools only from --commands\n"
    "  --config FILE        what the box is meant to be, as JSON\n"
    "  --nvml LIBRARY       management library; --nvml-load LIBRARY: its answers under load\n"
    "  --commands FILE      recorded answers of tools\n"
    "  --kernel-log FILE    kernel log\n"
    "  --probe FILE         judge this result of hx-probe, measure nothing\n"
    "  --probe-program PATH hx-probe; --probe-limit SECONDS: for all of its work\n"
    "  --tool-timeout SECONDS  for answers of the driver (default 20)\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 ready, 1 degraded, 2 not ready, 3 no CMP 170HX, 4 the check itself failed,\n"
    "64 wrong usage.\n";

enum {
    OPT_QUICK = 256,
    OPT_FULL,
    OPT_NO_PROBE,
    OPT_JSON,
    OPT_ALL,
    OPT_REDACT,
    OPT_PROGRESS,
    OPT_QUIET,
    OPT_OUTPUT,
    OPT_EXPLAIN,
    OPT_LIST,
    OPT_SHOW,
    OPT_READ_LOG,
    OPT_ROOT,
    OPT_CONFIG,
    OPT_NVML,
    OPT_NVML_LOAD,
    OPT_COMMANDS,
    OPT_KERNEL_LOG,
    OPT_PROBE,
    OPT_PROBE_PROGRAM,
    OPT_PROBE_LIMIT,
    OPT_TOOL_TIMEOUT,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"quick", no_argument, NULL, OPT_QUICK},
    {"full", no_argument, NULL, OPT_FULL},
    {"no-probe", no_argument, NULL, OPT_NO_PROBE},
    {"json", no_argument, NULL, OPT_JSON},
    {"all", no_argument, NULL, OPT_ALL},
    {"redact", no_argument, NULL, OPT_REDACT},
    {"progress", no_argument, NULL, OPT_PROGRESS},
    {"quiet", no_argument, NULL, OPT_QUIET},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"explain", required_argument, NULL, OPT_EXPLAIN},
    {"list", no_argument, NULL, OPT_LIST},
    {"show", optional_argument, NULL, OPT_SHOW},
    {"read-log", required_argument, NULL, OPT_READ_LOG},
    {"root", required_argument, NULL, OPT_ROOT},
    {"config", required_argument, NULL, OPT_CONFIG},
    {"nvml", required_argument, NULL, OPT_NVML},
    {"nvml-load", required_argument, NULL, OPT_NVML_LOAD},
    {"commands", required_argument, NULL, OPT_COMMANDS},
    {"kernel-log", required_argument, NULL, OPT_KERNEL_LOG},
    {"probe", required_argument, NULL, OPT_PROBE},
    {"probe-program", required_argument, NULL, OPT_PROBE_PROGRAM},
    {"probe-limit", required_argument, NULL, OPT_PROBE_LIMIT},
    {"tool-timeout", required_argument, NULL, OPT_TOOL_TIMEOUT},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0}};

static int HX_PRINTF(1, 2) usage(const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "p2p_check: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "; p2p_check --help shows the options\n");
    return EX_USAGE;
}

static int internal(const struct hx_error *err)
{
    fprintf(stderr, "p2p_check: %s\n", err->text);
    return EXIT_INTERNAL;
}

static int explain(const char *id)
{
    if (hx_output_explain(id, stdout))
        return EX_OK;
    return usage("--explain %s: there is no check or remedy of this name (p2p_check --list)", id);
}

static void list_checks(void)
{
    for (int i = 0; i < hx_n_checks; i++)
        printf("%-7s %s %s\n", hx_checks[i].id, hx_checks[i].gate ? "gate" : "    ",
               hx_checks[i].title);
}

static bool seconds(const char *text, double low, double high, double *out)
{
    return hx_parse_real(text, strlen(text), out) && *out >= low && *out <= high;
}

/* EX_OK: go on; -1: all done; else the exit code. */
static int parse(struct program *p, int argc, char **argv)
{
    int c;
    double v;
    while ((c = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        switch (c) {
        case OPT_QUICK: p->full = false; break;
        case OPT_FULL: p->full = true; break;
        case OPT_NO_PROBE: p->no_probe = true; break;
        case OPT_JSON: p->json = true; break;
        case OPT_ALL: p->all = true; break;
        case OPT_REDACT: p->redact = true; break;
        case OPT_PROGRESS: p->progress = true; break;
        case OPT_QUIET: p->progress = false; break;
        case OPT_OUTPUT: p->output = optarg; break;
        case OPT_EXPLAIN: c = explain(optarg); return c ? c : -1;
        case OPT_LIST: p->list = true; break;
        case OPT_SHOW: p->show = optarg ? optarg : HX_P2P_RESULT; break;
        case OPT_READ_LOG: p->read_log = optarg; break;
        case OPT_ROOT: p->collect.root = optarg; break;
        case OPT_CONFIG: p->collect.config = optarg; break;
        case OPT_NVML: p->collect.nvml = optarg; break;
        case OPT_NVML_LOAD: p->collect.nvml_load = optarg; break;
        case OPT_COMMANDS: p->collect.commands = optarg; break;
        case OPT_KERNEL_LOG: p->collect.kernel_log = optarg; break;
        case OPT_PROBE: p->probe_file = optarg; break;
        case OPT_PROBE_PROGRAM: p->probe_program = optarg; break;
        case OPT_PROBE_LIMIT:
            if (!seconds(optarg, 1, 86400, &v))
                return usage("--probe-limit %s: 1 to 86400 seconds are possible", optarg);
            p->probe_limit_s = (int)v;
            break;
        case OPT_TOOL_TIMEOUT:
            if (!seconds(optarg, 0.05, 600, &v))
                return usage("--tool-timeout %s: 0.05 to 600 seconds are possible", optarg);
            p->collect.tool_timeout_ms = (int)(v * 1000);
            break;
        case OPT_HELP: fputs(help, stdout); return -1;
        case OPT_VERSION: printf("p2p_check %s\n", HX_BUILD_VERSION); return -1;
        case ':': return usage("option %s needs a value", argv[optind - 1]);
        default: return usage("unknown option %s", argv[optind - 1]);
        }
    }
    if (p->show && optind == argc - 1 && strcmp(p->show, HX_P2P_RESULT) == 0)
        p->show = argv[optind++];
    if (optind < argc)
        return usage("unexpected argument %s", argv[optind]);
    if (p->probe_file && p->full)
        return usage("--full measures, --probe judges an earlier measurement: choose one");
    return EX_OK;
}

static int read_log(const char *path, bool json)
{
    struct hx_error err = {0};
    struct hx_bench_log log;
    char *text;
    size_t len;
    if (hx_file_read(path, LOG_MAX, &text, &len, &err) < 0)
        return internal(&err);
    int r = hx_bench_log_parse(text, len, &log, &err);
    free(text);
    if (r < 0) {
        hx_wrap(&err, r, "%s", path);
        return internal(&err);
    }
    if (json) {
        struct hx_buf out = HX_BUF_INIT(4096);
        struct hx_json_writer w;
        hx_jw_init(&w, &out, false);
        hx_jw_object(&w);
        hx_jw_key(&w, "verdict");
        hx_jw_str(&w, log.verdict);
        hx_jw_key(&w, "min_on_gbps");
        hx_jw_finite(&w, log.min_on);
        hx_jw_key(&w, "ratio_on_off");
        hx_jw_finite(&w, round(log.ratio_on_off * 100) / 100);
        hx_jw_key(&w, "latency_us");
        hx_jw_finite(&w, log.latency_on_us);
        hx_jw_end_object(&w);
        printf("%s\n", out.failed ? "" : hx_buf_cstr(&out));
        hx_buf_done(&out);
    } else {
        printf("Direct copies are %s: slowest pair %.2f GB/s, %.2f times the rate through the "
               "host.\nA good latency says nothing: it looks perfect on broken links too, and this "
               "log proves no content.\n",
               log.verdict, log.min_on, log.ratio_on_off);
    }
    return strcmp(log.verdict, "fast") == 0 ? HX_READY : HX_DEGRADED;
}

static int show(const struct program *p)
{
    struct hx_error err = {0};
    char *text;
    size_t len;
    if (hx_file_read(p->show, RESULT_MAX, &text, &len, &err) < 0)
        return internal(&err);
    int r = 0;
    if (p->json)
        r = fwrite(text, 1, len, stdout) == len ? 0 : hx_fail(&err, -EIO, "standard output");
    else
        r = hx_output_text(text, len, p->all, stdout, &err);
    free(text);
    return r < 0 ? internal(&err) : EX_OK;
}

/* The installed probe, else the one beside this program (a build folder). */
static const char *find_probe(void)
{
    static char beside[1024];
    ssize_t n;
    if (access(HX_PROBE_PROGRAM, X_OK) == 0)
        return HX_PROBE_PROGRAM;
    n = readlink("/proc/self/exe", beside, sizeof(beside) - 16);
    char *slash = n > 0 ? memrchr(beside, '/', (size_t)n) : NULL;
    if (!slash)
        return HX_PROBE_PROGRAM;
    memcpy(slash + 1, "hx-probe", 9);
    return access(beside, X_OK) == 0 ? beside : HX_PROBE_PROGRAM;
}

static void stamp(char out[32])
{
    time_t now = time(NULL);
    struct tm tm;
    if (!gmtime_r(&now, &tm) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
        out[0] = '\0';
}

/* A card with work on it: an engine runs, or somebody else's program. */
static bool is_busy(const struct hx_facts *f)
{
    for (int i = 0; i < f->n_cards; i++) {
        int n = f->card[i].nvml;
        if (n >= 0 && f->nvml.device[n].memory_used_mib != HX_UNKNOWN &&
            f->nvml.device[n].memory_used_mib >= BUSY_MIB)
            return true;
    }
    return false;
}

/* Judging recorded answers: counters count from the start of the machine. */
static int replay(const struct program *p, struct hx_facts *f, struct hx_error *err)
{
    int r = hx_measured_read(p->probe_file, &f->probe, err);
    if (r < 0)
        return hx_wrap(err, r, "--probe");
    f->measured = true;
    if (p->collect.nvml_load && f->nvml.state == HX_NVML_OK) {
        r = hx_nvml_replay(p->collect.nvml_load, REPLAY_SAMPLES, REPLAY_STEP_MS,
                           p->collect.tool_timeout_ms > 0 ? p->collect.tool_timeout_ms
                                                          : hx_hw_limits.tool_timeout_ms,
                           &f->load, err);
        f->has_load = r == 0 && f->load.state == HX_NVML_OK && f->load.n_samples > 0;
    }
    for (int i = 0; r == 0 && i < f->n_cards; i++) {
        f->card[i].aer_new = f->card[i].aer.correctable;
        if (f->card[i].nvml >= 0)
            f->card[i].replays_new = f->nvml.device[f->card[i].nvml].replays;
    }
    hx_facts_pair(f);
    return r;
}

static int measure(const struct program *p, struct hx_root *root, struct hx_facts *f,
                   char note[160], struct hx_error *err)
{
    struct hx_launch launch = {p->probe_program, p->full, p->progress, p->probe_limit_s,
                               p->collect.nvml_load ? p->collect.nvml_load : p->collect.nvml};
    struct hx_nvml_snapshot *after = NULL;
    if (!f->n_cards)
        return 0;
    if (p->no_probe || f->nvml.state != HX_NVML_OK) {
        snprintf(f->unmeasured, sizeof(f->unmeasured), "%s",
                 p->no_probe ? "not measured (--no-probe)" : "the driver does not answer");
        return 0;
    }
    f->busy = is_busy(f);
    if (f->busy) {
        snprintf(f->unmeasured, sizeof(f->unmeasured), "not measured: the cards are in use");
        return 0;
    }
    int r = hx_launch_probe(&launch, root, f, note, err);
    if (r < 0 || !f->measured)
        return r;
    r = hx_facts_refresh(&p->collect, root, f, err);
    after = calloc(1, sizeof(*after));
    if (r == 0 && !after)
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_nvml_snapshot(p->collect.nvml, hx_hw_limits.tool_timeout_ms, after, err);
    if (r == 0 && after->state == HX_NVML_HUNG) {
        f->nvml.state = HX_NVML_HUNG; /* the test itself wedged the driver */
    } else if (r == 0 && after->state == HX_NVML_OK && after->n_devices == f->nvml.n_devices) {
        for (int i = 0; i < f->n_cards; i++) {
            int n = f->card[i].nvml;
            if (n < 0)
                continue;
            if (after->device[n].replays >= 0 && f->nvml.device[n].replays >= 0)
                f->card[i].replays_new = after->device[n].replays - f->nvml.device[n].replays;
            f->nvml.device[n].recovery = after->device[n].recovery;
        }
    }
    free(after);
    return r;
}

/* Where the result goes: NULL if nowhere. A machine of its own folder keeps nothing unasked. */
static const char *result_path(const struct program *p, const struct hx_facts *f)
{
    if (p->output)
        return p->output[0] ? p->output : NULL;
    if (p->collect.root || p->probe_file || f->busy || p->no_probe)
        return NULL;
    return access("/var/lib/hx170/check", W_OK) == 0 ? HX_P2P_RESULT : NULL;
}

static int finish(const struct program *p, const struct hx_facts *f, const struct hx_judgement *j,
                  struct hx_run_facts *run)
{
    struct hx_error err = {0};
    struct hx_buf kept = HX_BUF_INIT(RESULT_MAX), shown = HX_BUF_INIT(RESULT_MAX);
    const char *path = result_path(p, f);
    stamp(run->finished);
    int r = hx_output_json(f, j, run, p->redact, &shown, &err);
    if (r == 0 && path) {
        r = hx_output_json(f, j, run, false, &kept, &err);
        if (r == 0)
            r = hx_file_replace(path, kept.data, kept.len, &err);
        if (r == 0 && p->full &&
            (strcmp(j->axes.p2p, "verified") == 0 || strcmp(j->axes.p2p, "slow") == 0))
            r = hx_key_release(path, &err);
    }
    if (r == 0 && p->json)
        r = fwrite(shown.data, 1, shown.len, stdout) == shown.len && fflush(stdout) == 0
                ? 0
                : hx_fail_errno(&err, errno, "standard output");
    else if (r == 0)
        r = hx_output_text((const char *)shown.data, shown.len, p->all, stdout, &err);
    hx_buf_done(&kept);
    hx_buf_done(&shown);
    return r < 0 ? internal(&err) : (int)j->overall;
}

static int check(struct program *p, struct hx_facts *f, struct hx_judgement *j)
{
    struct hx_error err = {0};
    struct hx_root *root;
    struct hx_run_facts run = {.mode = p->probe_file ? "judge" : p->full ? "full" : "quick"};
    char note[160] = "";
    stamp(run.started);
    if (hx_root_open(p->collect.root, &root, &err) < 0)
        return internal(&err);
    int r = hx_facts_collect(&p->collect, root, f, &err);
    if (r == 0)
        r = p->probe_file ? replay(p, f, &err) : measure(p, root, f, note, &err);
    if (r == 0)
        r = hx_key_of(f, p->probe_file ? NULL : p->probe_program, run.key, &err);
    hx_root_close(root);
    if (r < 0)
        return internal(&err);
    if (!p->full && !p->probe_file)
        hx_key_lock(p->output && p->output[0] ? p->output : HX_P2P_RESULT, run.key, f->p2p_lock);
    run.locked = f->p2p_lock[0] != '\0';
    run.probe_note = note;
    hx_judge(f, j);
    return finish(p, f, j, &run);
}

int main(int argc, char **argv)
{
    struct program p = {
        .probe_program = find_probe(),
        .collect = {.cards_conf = "/etc/hx170/cards.conf",
                    .cards_conf_dir = "/run/hx170/cards.conf.d",
                    .active = "/var/lib/hx170/driver/active.json"},
        .progress = isatty(2) == 1,
    };
    int code = parse(&p, argc, argv);
    if (code != EX_OK)
        return code < 0 ? EX_OK : code;
    signal(SIGPIPE, SIG_IGN);
    if (p.list) {
        list_checks();
        return EX_OK;
    }
    if (p.show)
        return show(&p);
    if (p.read_log)
        return read_log(p.read_log, p.json);
    struct hx_facts *f = calloc(1, sizeof(*f));
    struct hx_judgement *j = calloc(1, sizeof(*j));
    if (!f || !j) {
        fprintf(stderr, "p2p_check: out of memory\n");
        code = EXIT_INTERNAL;
    } else {
        code = check(&p, f, j);
    }
    free(f);
    free(j);
    return code;
}
