/* faultfs mounted over a folder, from C tests. */
#ifndef HX_TEST_ENGRAM_MOUNT_H
#define HX_TEST_ENGRAM_MOUNT_H

#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct mount {
    char control[320], point[320];
    pid_t pid;
};

/* NULL: file systems can be mounted here; else why not. */
static inline const char *mount_refused(void)
{
    return access("/dev/fuse", R_OK | W_OK) != 0 ? "no access to /dev/fuse" : NULL;
}

/* Lines of faultfs's control file; NULL: no faults. */
static inline void mount_faults(const struct mount *m, const char *lines)
{
    char fresh[340];
    snprintf(fresh, sizeof(fresh), "%s.new", m->control);
    FILE *f = fopen(fresh, "w");
    assert_non_null(f);
    assert_true(!lines || fputs(lines, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(fresh, m->control), 0);
}

/* folder/name.mnt shows folder/name. The program lies beside the test. */
static inline void mount_start(struct mount *m, const char *folder, const char *name)
{
    char program[512], real[320];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 16);
    assert_true(n > 0);
    program[n] = 0;
    snprintf(strrchr(program, '/'), 16, "/faultfs");
    snprintf(real, sizeof(real), "%s/%s", folder, name);
    snprintf(m->control, sizeof(m->control), "%s/%s.ctl", folder, name);
    snprintf(m->point, sizeof(m->point), "%s/%s.mnt", folder, name);
    assert_int_equal(mkdir(m->point, 0755), 0);
    mount_faults(m, NULL);
    m->pid = fork();
    assert_true(m->pid >= 0);
    if (m->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* a test that crashes leaves no mount */
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 2);
        execl(program, program, real, m->control, m->point, (char *)NULL);
        _exit(127);
    }
    struct stat above, here;
    assert_int_equal(stat(folder, &above), 0);
    for (int i = 0; i < 1000; i++) {
        if (stat(m->point, &here) == 0 && here.st_dev != above.st_dev)
            return;
        usleep(10000);
    }
    fail_msg("%s is not mounted after 10 s", m->point);
}

static inline void mount_stop(struct mount *m)
{
    kill(m->pid, SIGTERM);
    waitpid(m->pid, NULL, 0);
    unlink(m->control);
    rmdir(m->point);
}

#endif
