#include "image/lane.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"

enum state { WAITING, RUNNING, ENDED };

struct job {
    enum state state;
    pid_t pid;
    int64_t start;
    FILE *said; /* output of the scenario */
};

/* What a scenario's process leaves; in memory that all of them share. */
struct outcome {
    int r;
    struct hx_error err;
};

static int run_one(const struct hx_lane *lane, const struct hx_scenario *sc, struct hx_error *err)
{
    struct hx_scene *s = calloc(1, sizeof(*s));
    if (!s)
        return hx_fail(err, -ENOMEM, "out of memory");
    s->build = lane->build;
    s->work = lane->work;
    s->vm.log_fd = s->vm.console_fd = -1;
    s->deadline = hx_child_clock() + (int64_t)sc->seconds * lane->patience * 1000;
    snprintf(s->stick, sizeof(s->stick), "%s/image/work/out/stick.img", lane->build);
    snprintf(s->served, sizeof(s->served), "%s/served.disk", lane->work);
    snprintf(s->installed, sizeof(s->installed), "%s/installed.disk", lane->work);
    int r = 0;
    if (access(s->stick, R_OK) < 0)
        r = hx_fail(err, HX_SCENE_SKIP, "%s is missing: make image", s->stick);
    else if (!hx_vm_available(err))
        r = HX_SCENE_SKIP;
    if (!r)
        r = sc->run(s, err);
    hx_ssh_close(&s->ssh);
    hx_vm_close(&s->vm);
    free(s);
    return r;
}

static _Noreturn void be_scenario(const struct hx_lane *lane, int i, FILE *said,
                                  struct outcome *outcome)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    hx_scene_count_targets(lane->jobs == 1 || lane->scenarios[i].uses & HX_LANE_HOST);
    if (dup2(fileno(said), STDOUT_FILENO) < 0)
        outcome->r = hx_fail_errno(&outcome->err, errno, "output");
    else
        outcome->r = run_one(lane, &lane->scenarios[i], &outcome->err);
    fflush(stdout);
    _exit(0);
}

static bool may_start(const struct hx_lane *lane, const struct job *jobs, int i)
{
    const struct hx_scenario *sc = &lane->scenarios[i];
    for (int k = 0; k < lane->n; k++) {
        const struct hx_scenario *other = &lane->scenarios[k];
        if (!lane->chosen[k] || k == i)
            continue;
        if (sc->needs && !strcmp(other->id, sc->needs) && jobs[k].state != ENDED)
            return false;
        if (jobs[k].state == RUNNING &&
            ((sc->uses | other->uses) & HX_LANE_HOST || sc->uses & other->uses))
            return false;
        /* Whoever needs the host for itself does not wait for ever. */
        if (k < i && jobs[k].state == WAITING && other->uses & HX_LANE_HOST)
            return false;
    }
    return true;
}

static int start(const struct hx_lane *lane, struct job *job, int i, struct outcome *outcome)
{
    job->said = tmpfile();
    if (!job->said)
        return hx_fail_errno(&outcome->err, errno, "temporary file");
    outcome->r = hx_fail(&outcome->err, -ECHILD, "its process ended without a result");
    fflush(NULL);
    job->start = hx_child_clock();
    job->pid = fork();
    if (job->pid == 0)
        be_scenario(lane, i, job->said, outcome);
    if (job->pid < 0)
        return hx_fail_errno(&outcome->err, errno, "fork");
    job->state = RUNNING;
    return 0;
}

/* ---- what has passed ------------------------------------------------------------------------- */

/* WORK/passed: the fingerprint of image and test program, then the line of each scenario. */
static void passed_path(const struct hx_lane *lane, char *path, size_t size)
{
    snprintf(path, size, "%s/passed", lane->work);
}

static int fingerprint(const struct hx_lane *lane, char *out, size_t out_size, struct hx_error *err)
{
    char path[300], program[HX_SHA256_HEX], *root;
    size_t len;
    uint64_t size;
    snprintf(path, sizeof(path), "%s/image/work/out/root.hash", lane->build);
    int r = hx_sha256_file("/proc/self/exe", program, &size, err);
    if (!r)
        r = hx_file_read(path, HX_SHA256_HEX, &root, &len, err);
    if (r)
        return r;
    snprintf(out, out_size, "%s %.*s\n", program, (int)strcspn(root, "\n"), root);
    free(root);
    return 0;
}

/* The scenario's line of an earlier run, and that it need not run. */
static void take_passed(const struct hx_lane *lane, const char *line, struct job *jobs,
                        int counts[3])
{
    size_t len = strcspn(line, " ");
    for (int i = 0; i < lane->n; i++) {
        const char *id = lane->scenarios[i].id;
        if (!lane->chosen[i] || strlen(id) != len || strncmp(id, line, len) != 0)
            continue;
        jobs[i].state = ENDED;
        counts[0]++;
        printf("%.*s, before\n", (int)strcspn(line, "\n"), line);
    }
}

/* Begins the file anew unless it is one to go on with. */
static int open_passed(const struct hx_lane *lane, struct job *jobs, int counts[3],
                       struct hx_error *err)
{
    char path[300], now[2 * HX_SHA256_HEX + 1], *text = NULL;
    size_t len;
    passed_path(lane, path, sizeof(path));
    int r = fingerprint(lane, now, sizeof(now), err);
    if (r)
        return r == -ENOENT ? 0 : r; /* no image: all will be skipped */
    if (lane->goes_on && hx_file_read(path, 1 << 16, &text, &len, err) == 0 &&
        !strncmp(text, now, strlen(now))) {
        for (const char *line = text + strlen(now); strchr(line, '\n');
             line = strchr(line, '\n') + 1)
            take_passed(lane, line, jobs, counts);
    } else {
        if (lane->goes_on)
            printf("nothing has passed yet with this image and these tests\n");
        r = hx_file_replace(path, now, strlen(now), err);
    }
    free(text);
    return r;
}

static void add_passed(const struct hx_lane *lane, const char *line)
{
    char path[300];
    passed_path(lane, path, sizeof(path));
    FILE *f = fopen(path, "ae");
    if (!f || fputs(line, f) < 0)
        fprintf(stderr, "image-test: %s: %s\n", path, strerror(errno));
    if (f)
        fclose(f);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Its output, then its line. Processor time with that of all it waited for, QEMU above all: on a
 * busy host the wall clock says nothing about how long a scenario takes on a quiet one. */
static void report(const struct hx_lane *lane, int i, struct job *job,
                   const struct outcome *outcome, const struct rusage *u, int counts[3])
{
    const struct hx_scenario *sc = &lane->scenarios[i];
    double seconds = (double)(hx_child_clock() - job->start) / 1000;
    double cpu = (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
                 (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) / 1e6;
    char line[512];
    if (job->said) {
        rewind(job->said);
        while (fgets(line, sizeof(line), job->said))
            fputs(line, stdout);
        fclose(job->said);
        job->said = NULL;
    }
    if (outcome->r == 0) {
        snprintf(line, sizeof(line), "%-10s passed, %.0f s, %.0f s of processor time\n", sc->id,
                 seconds, cpu);
        fputs(line, stdout);
        add_passed(lane, line);
    } else if (outcome->r == HX_SCENE_SKIP)
        printf("%-10s skipped: %s\n", sc->id, outcome->err.text);
    else
        printf("%-10s FAILED after %.0f s: %s\n", sc->id, seconds, outcome->err.text);
    counts[outcome->r == 0 ? 0 : outcome->r == HX_SCENE_SKIP ? 2 : 1]++;
    job->state = ENDED;
    fflush(stdout);
}

static void run_jobs(const struct hx_lane *lane, struct job *jobs, struct outcome *outcomes,
                     int counts[3])
{
    int n_running = 0;
    for (;;) {
        for (int i = 0; i < lane->n && n_running < lane->jobs; i++) {
            if (!lane->chosen[i] || jobs[i].state != WAITING || !may_start(lane, jobs, i))
                continue;
            if (start(lane, &jobs[i], i, &outcomes[i]) == 0)
                n_running++;
            else
                report(lane, i, &jobs[i], &outcomes[i], &(struct rusage){0}, counts);
        }
        if (!n_running)
            return;
        struct rusage usage;
        pid_t pid = wait4(-1, NULL, 0, &usage);
        if (pid < 0 && errno != EINTR) {
            printf("image-test: wait: %s\n", strerror(errno));
            counts[1] += n_running;
            return;
        }
        for (int i = 0; i < lane->n; i++)
            if (jobs[i].state == RUNNING && jobs[i].pid == pid) {
                report(lane, i, &jobs[i], &outcomes[i], &usage, counts);
                n_running--;
            }
    }
}

bool hx_lane_run(const struct hx_lane *lane)
{
    int counts[3] = {0};
    size_t size = (size_t)lane->n * sizeof(struct outcome);
    struct job *jobs = calloc((size_t)lane->n, sizeof(*jobs));
    struct outcome *outcomes =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!jobs || outcomes == MAP_FAILED || !hx_scene_share_targets()) {
        fprintf(stderr, "image-test: out of memory\n");
        free(jobs);
        return false;
    }
    struct hx_error err;
    if (open_passed(lane, jobs, counts, &err) == 0) {
        run_jobs(lane, jobs, outcomes, counts);
    } else {
        printf("image-test: %s\n", err.text);
        counts[1]++;
    }
    hx_scene_targets();
    if (counts[1])
        printf("serial logs: %s/*.serial\n", lane->work);
    printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
    munmap(outcomes, size);
    free(jobs);
    return counts[1] == 0 && counts[0] + counts[2] > 0;
}
