/* Arguments: one table for parsing and help. */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hw/wanted.h"

enum kind { FLAG, TEXT, NUMBER, MILLIS, YES_NO, ACCEPT };

static const struct {
    const char *name;
    enum kind kind;
    size_t offset;
    const char *value, *help;
} rows[] = {
#define O(field) offsetof(struct hx_cards_options, field)
    {"json", FLAG, O(json), NULL, "results as JSON on standard output"},
    {"explain", TEXT, O(explain), "ID", "what a check or a remedy means"},
    {"root", TEXT, O(root_dir), "DIR", "read and write below DIR instead of /"},
    {"state", TEXT, O(state), "DIR", "driver folder inside the root"},
    {"config", TEXT, O(config), "FILE", "settings (/etc/hx170/cards.conf)"},
    {"kit", TEXT, O(kit), "DIR", "build kit: compiler, tools and kernel headers"},
    {"kernel", TEXT, O(kernel), "RELEASE", "kernel that modules are for (the running one)"},
    {"accept", ACCEPT, 0, "ID", "the owner accepts this licence; may be repeated"},
    {"sha256", TEXT, O(sha256), "HEX", "what the archive has to hash to"},
    {"all", FLAG, O(all), NULL, "bundle remove: the active slot too"},
    {"yes", FLAG, O(yes), NULL, "bundle remove: do it"},
    {"was-off", YES_NO, O(confirmed_off), "yes|no", "bundle start: whether power was off for 30 s"},
    {"checks", TEXT, O(checks), "FILE", "result of p2p_check (/var/lib/hx170/check/p2p.json)"},
    {"output", TEXT, O(output), "FILE", "state: keep the result here (cards.json)"},
    {"tool-timeout", MILLIS, O(tool_timeout_ms), "SECONDS", "limit of each driver call (20)"},
    {"redact", FLAG, O(redact), NULL, "list, state: no identifiers of cards and machine"},
    {"once", FLAG, O(once), NULL, "watch: one look"},
    {"nvml", TEXT, O(nvml), "LIBRARY", "management library"},
    {"commands", TEXT, O(commands), "FILE", "recorded answers instead of tools"},
    {"kernel-log", TEXT, O(kernel_log), "FILE", "instead of the kernel's own log"},
    {"now", NUMBER, O(now), "SECONDS", "clock of a recorded machine (with --root)"},
    {"help", FLAG, O(help), NULL, "this text"},
    {"version", FLAG, O(version), NULL, "version and build"},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

void hx_cards_help(void)
{
    puts("usage: hx-cards [COMMAND] [OPTIONS]\n"
         "\n"
         "  list                       cards, their state and the driver (default)\n"
         "  state                      the axes memory, link, module and bundle\n"
         "  bundle verify SOURCE       whether a driver bundle may be installed; changes nothing\n"
         "  bundle install SOURCE      build it, install it beside the present one, arm it\n"
         "  bundle status              slots, journal, what the next start loads\n"
         "  bundle rollback            back to the previous slot\n"
         "  bundle remove              the slots that are not active; --all: everything\n"
         "  bundle start | stop        at start and stop of the machine (hx-driver.service)\n"
         "  bundle confirm             judge the slot on trial: commit or roll back\n"
         "  watch                      watch the health of the cards\n");
    for (size_t i = 0; i < N_ROWS; i++) {
        char left[64];
        snprintf(left, sizeof(left), "--%s%s%s", rows[i].name, rows[i].value ? " " : "",
                 rows[i].value ? rows[i].value : "");
        printf("  %-24s %s\n", left, rows[i].help);
    }
    puts("\nExit status: 0 ready or done, 1 degraded, 2 not ready or refused, 3 unsupported (no\n"
         "CMP 170HX), 4 internal error or time-out, 64 usage. See hx-cards(1).");
}

static int usage(const char *what, const char *found)
{
    fprintf(stderr, "hx-cards: %s: found '%s'; see hx-cards --help\n", what, found);
    return HX_EXIT_USAGE;
}

static int take(struct hx_cards_options *o, size_t row, const char *value)
{
    void *to = (char *)o + rows[row].offset;
    uint64_t n;
    double seconds;
    switch (rows[row].kind) {
    case FLAG: *(bool *)to = true; return 0;
    case TEXT: *(const char **)to = value; return 0;
    case NUMBER:
        if (!hx_parse_u64(value, strlen(value), INT64_MAX, &n))
            return usage("--now: expected seconds since 1970", value);
        *(int64_t *)to = (int64_t)n;
        return 0;
    case MILLIS:
        if (!hx_parse_real(value, strlen(value), &seconds) || seconds < 0.01 || seconds > 600)
            return usage("--tool-timeout: expected 0.01 to 600 seconds", value);
        *(int *)to = (int)(seconds * 1000);
        return 0;
    case YES_NO:
        if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
            return usage("--was-off: expected yes or no", value);
        *(int *)to = strcmp(value, "yes") == 0;
        return 0;
    case ACCEPT:
        if (o->accepted.n == HX_ACCEPT_MAX)
            return usage("--accept: too many licences", value);
        o->accept[o->accepted.n] = strdup(value);
        return o->accept[o->accepted.n++] ? 0 : HX_EXIT_INTERNAL;
    }
    return HX_EXIT_USAGE;
}

int hx_cards_options_read(int argc, char **argv, struct hx_cards_options *o)
{
    struct option long_rows[N_ROWS + 1] = {{0}};
    memset(o, 0, sizeof(*o));
    o->confirmed_off = -1;
    o->accepted.item = o->accept;
    for (size_t i = 0; i < N_ROWS; i++)
        long_rows[i] = (struct option){rows[i].name, rows[i].value ? 1 : 0, NULL, 0};
    opterr = 0;
    for (;;) {
        int row = -1, c = getopt_long(argc, argv, ":", long_rows, &row);
        if (c < 0)
            break;
        if (c != 0)
            return usage(c == ':' ? "an option lacks its value" : "unknown option",
                         argv[optind - 1]);
        int r = take(o, (size_t)row, optarg);
        if (r)
            return r;
    }
    for (int i = optind; i < argc; i++) {
        if (o->n_words == HX_WORDS_MAX)
            return usage("too many words", argv[i]);
        o->word[o->n_words++] = argv[i];
    }
    if (o->now && (!o->root_dir || strcmp(o->root_dir, "/") == 0))
        return usage("--now is for recorded machines and needs --root DIR", "no --root");
    if (o->state && (o->state[0] != '/' || strstr(o->state, "..") || strlen(o->state) > 200))
        return usage("--state: expected an absolute folder", o->state);
    return 0;
}

int hx_cards_options_open(struct hx_cards_options *o, struct hx_error *err)
{
    int r = hx_root_open(o->root_dir, &o->root, err);
    if (r == 0 && (o->commands || hx_root_is_fake(o->root)))
        r = hx_commands_table(o->commands, &o->tools, err);
    else if (r == 0)
        r = hx_commands_real(&o->tools, err);
    return r;
}

void hx_cards_options_done(struct hx_cards_options *o)
{
    hx_commands_free(o->tools);
    hx_root_close(o->root);
    for (size_t i = 0; i < o->accepted.n; i++)
        free(o->accept[i]);
}

int hx_cards_error(int code, const struct hx_error *err)
{
    fprintf(stderr, "hx-cards: %s\n", err->text);
    return code;
}
