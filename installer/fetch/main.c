/* hx-fetch: options and the table of sub-commands. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include <hx/build_facts.h>

#include "fetch/commands.h"

#define CONF_FILE   "/etc/hx170/fetch.conf"
#define CONF_FOLDER "/run/hx170/fetch.conf.d"

static const struct {
    const char *name;
    int (*run)(struct hx_fetch_cli *cli);
    const char *usage, *about;
} commands[] = {
    {"plan", hx_fetch_cmd_plan, "[--probe]", "what would be downloaded, from where and to where"},
    {"run", hx_fetch_cmd_run, "",
     "downloads, verifies and publishes the model; resumes where it stopped"},
    {"lock", hx_fetch_cmd_lock, "--official OWNER/NAME@COMMIT --exl3 OWNER/NAME@COMMIT --out FILE",
     "make a lock file from what the repositories say about themselves"},
    {"verify", hx_fetch_cmd_verify, "[MODEL] [--check] [--sample PERCENT] [--stamp FILE]",
     "reads the model again; damaged pieces are fetched again by the next run"},
    {"import", hx_fetch_cmd_import, "FOLDER|DEVICE",
     "takes files from a folder or a drive instead of the network"},
    {"status", hx_fetch_cmd_status, "", "how far a download is"},
    {"gc", hx_fetch_cmd_gc, "[FILE]", "delete a download that is not finished, or one file of it"},
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void help(FILE *to)
{
    fprintf(to, "usage: hx-fetch COMMAND [options]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %s %s\n        %s\n", commands[i].name, commands[i].usage,
                commands[i].about);
    fprintf(
        to,
        "\nOptions of every command:\n"
        "  --lock FILE            lock file\n"
        "  --models DIR           folder of the models\n"
        "  --groups LIST          small,dense,experts,engram; all by default\n"
        "  --accept-lock SHA256   use a lock file that nobody signed, if it has this hash\n"
        "  --accept-licences      the licences have been read and are accepted\n"
        "  --json                 results for machines\n"
        "  --force                go on where a check has a way round\n"
        "  --config FILE          instead of " CONF_FILE " and " CONF_FOLDER "\n"
        "  --fetch.KEY=VALUE      any option of fetch.conf\n"
        "  --dump-config           the options in force\n"
        "  --help, --version\n\n"
        "Exit status: 0, or one of sysexits.h: 64 usage, 65 bad data or upstream changed, 66 no "
        "input,\n69 servers not available, 71 system, 73 no room on the disk, 74 input or "
        "output, 75 busy or\ninterrupted: run again, 77 consent or permission missing, 78 "
        "configuration.\n");
}

/* Where options of the command line end up. */
static char *text_option(struct hx_fetch_conf *conf, const char *name, size_t *size)
{
    if (strcmp(name, "--lock") == 0) {
        *size = sizeof(conf->lock);
        return conf->lock;
    }
    if (strcmp(name, "--models") == 0) {
        *size = sizeof(conf->models);
        return conf->models;
    }
    if (strcmp(name, "--groups") == 0) {
        *size = sizeof(conf->groups);
        return conf->groups;
    }
    return NULL;
}

static int read_conf(struct hx_fetch_cli *cli, const char *conf_file, struct hx_error *err)
{
    int r;
    hx_conf_defaults(hx_fetch_options, hx_fetch_n_options, &cli->conf);
    if (conf_file)
        return hx_conf_file(hx_fetch_options, hx_fetch_n_options, &cli->conf, conf_file, err);
    r = hx_conf_file(hx_fetch_options, hx_fetch_n_options, &cli->conf, CONF_FILE, err);
    if (r == 0 || r == -ENOENT)
        r = hx_conf_folder(hx_fetch_options, hx_fetch_n_options, &cli->conf, CONF_FOLDER, err);
    return r;
}

/* The configuration is read first, so that the rest of the line may override it. */
static int find_conf(int argc, char **argv, const char **file)
{
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            *file = argv[i] + 9;
        if (strcmp(argv[i], "--config") == 0) {
            if (i + 1 == argc)
                return hx_fetch_usage("--config needs a file");
            *file = argv[++i];
        }
    }
    return EX_OK;
}

static int take_text_option(struct hx_fetch_cli *cli, int argc, char **argv, int *i)
{
    size_t n = strcspn(argv[*i], "="), size = 0;
    char name[40];
    snprintf(name, sizeof(name), "%.*s", n > 39 ? 39 : (int)n, argv[*i]);
    char *to = text_option(&cli->conf, name, &size);
    bool accept = strcmp(name, "--accept-lock") == 0;
    if (!to && !accept)
        return 0;
    const char *value = argv[*i][n] ? argv[*i] + n + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (!value)
        return -hx_fetch_usage("%s needs a value", name);
    if (accept) {
        cli->accept_lock = value;
        return 1;
    }
    struct hx_error err;
    int r = hx_conf_set(hx_fetch_options, hx_fetch_n_options, &cli->conf, "fetch", name + 2, value,
                        name, &err);
    return r < 0 ? -hx_fetch_usage("%s", err.text) : 1;
}

/* Takes the common options out of the line; exit status. */
static int parse_line(struct hx_fetch_cli *cli, int argc, char **argv, bool *dump_config)
{
    struct hx_error err;
    for (int i = 2; i < argc; i++) {
        int r = take_text_option(cli, argc, argv, &i);
        if (r < 0)
            return -r;
        if (r > 0)
            continue;
        if (strcmp(argv[i], "--json") == 0)
            cli->json = true;
        else if (strcmp(argv[i], "--force") == 0)
            cli->force = true;
        else if (strcmp(argv[i], "--accept-licences") == 0)
            cli->yes = true;
        else if (strcmp(argv[i], "--dump-config") == 0)
            *dump_config = true;
        else if (strcmp(argv[i], "--config") == 0)
            i++;
        else if (strncmp(argv[i], "--config=", 9) != 0) {
            r = hx_conf_argument(hx_fetch_options, hx_fetch_n_options, &cli->conf, argv[i], &err);
            if (r < 0)
                return hx_fetch_usage("%s", err.text);
            if (r == 0)
                cli->args[cli->n_args++] = argv[i];
        }
    }
    return EX_OK;
}

static int reread(const struct hx_fetch_cli *cli, struct hx_fetch_conf *out, struct hx_error *err)
{
    struct hx_fetch_cli again = {.command = cli->command};
    bool dump_config = false;
    int r = read_conf(&again, cli->conf_file, err);
    if (r < 0)
        return r;
    again.args = calloc((size_t)cli->n_line, sizeof(*again.args));
    if (!again.args)
        return hx_fail(err, -ENOMEM, "out of memory");
    if (parse_line(&again, cli->n_line, cli->line, &dump_config) != EX_OK)
        r = hx_fail(err, -EINVAL, "the command line");
    free(again.args);
    if (r == 0)
        *out = again.conf;
    return r;
}

static int run_command(size_t which, int argc, char **argv)
{
    struct hx_fetch_cli cli = {
        .command = commands[which].name, .reread = reread, .line = argv, .n_line = argc};
    struct hx_error err = {0};
    bool dump_config = false;
    int status = find_conf(argc, argv, &cli.conf_file);
    if (status != EX_OK)
        return status;
    if (read_conf(&cli, cli.conf_file, &err) < 0) {
        fprintf(stderr, "hx-fetch: %s\n", err.text);
        return EX_CONFIG;
    }
    cli.args = calloc((size_t)argc, sizeof(*cli.args));
    if (!cli.args) {
        fprintf(stderr, "hx-fetch: out of memory\n");
        return EX_OSERR;
    }
    status = parse_line(&cli, argc, argv, &dump_config);
    if (status == EX_OK && dump_config)
        hx_conf_dump(hx_fetch_options, hx_fetch_n_options, &cli.conf, true, stdout);
    else if (status == EX_OK)
        status = commands[which].run(&cli);
    free(cli.args);
    return status;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        help(stderr);
        return EX_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("hx-fetch %s (%s)\n", HX_BUILD_VERSION, HX_BUILD_VARIANT);
        return EX_OK;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            help(stdout);
            return EX_OK;
        }
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            return run_command(i, argc, argv);
    }
    return hx_fetch_usage("unknown command '%.60s'", argv[1]);
}
