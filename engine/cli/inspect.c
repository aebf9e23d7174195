/* hx-inspect: looks at model folders, tokenisation, prompts and single passes of the model. */
#include "cli/inspect.h"

#include <hx/build_facts.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage, *about;
} commands[] = {
    {"headers", hx_inspect_headers, "DIR|FILE [--json]", "tensors of safetensors files"},
    {"plan", hx_inspect_plan, "DIR [--layout cpu|tp2|tp4|pp4] [--json]",
     "check a model folder and show which bytes lie on which rank"},
    {"memory", hx_inspect_memory,
     "[DIR] [--layout cpu|tp2|tp4] [--experts fp4|1..8] [--card SIZE] [--reserve SIZE]\n"
     "         [--host SIZE] [--cache SIZE] [--context N] [--sequences N] [--chunk N]\n"
     "         [--drafts N] [--kv-tokens N] [--json]",
     "memory of every rank to the byte, and the KV pool that is left (no DIR: released shape)"},
    {"tokens", hx_inspect_tokens, "--tokenizer FILE|DIR [--plain] TEXT|-",
     "token ids of a text (-: standard input)"},
    {"prompt", hx_inspect_prompt, "[DIR] REQUEST.json",
     "prompt of a chat request, and its token ids if a model folder is named"},
    {"tiny", hx_inspect_tiny, "DIR [--tokenizer FILE] [--map FILE] [--seed N]",
     "write the demo model (random weights)"},
    {"logits", hx_inspect_logits,
     "DIR --ids 5,6,7 [--mode w8a16|reference] [--chunk N] [--out FILE] [--taps FILE]",
     "run the model over token ids; float32 logits of every row, values inside the pass"},
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void help(FILE *to)
{
    fprintf(to, "usage: hx-inspect COMMAND ...\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %s %s\n        %s\n", commands[i].name, commands[i].usage,
                commands[i].about);
    fprintf(to, "\n  --help, --version\n\nExit status: 0, or one of sysexits.h (64 usage, 65 bad "
                "data, 66 no input or not readable, 69 does not\nfit, 71 no memory, 73 cannot "
                "create, 74 input or "
                "output, 77 no "
                "permission).\n");
}

int hx_inspect_status(int r, const struct hx_error *err)
{
    if (r >= 0)
        return EX_OK;
    fprintf(stderr, "hx-inspect: %s\n", err->text);
    switch (-r) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES: return EX_NOINPUT;
    case ENOMEM:
    case EMFILE:
    case ENFILE: return EX_OSERR;
    case EPERM: return EX_NOPERM;
    case EEXIST:
    case EROFS: return EX_CANTCREAT;
    case EIO:
    case ENOSPC:
    case EFBIG:
    case EDQUOT: return EX_IOERR;
    default: return EX_DATAERR;
    }
}

int hx_inspect_usage(const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "hx-inspect: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "; see hx-inspect --help\n");
    return EX_USAGE;
}

int hx_inspect_print(struct hx_buf *out)
{
    struct hx_error err;
    int r = 0;
    if (out->failed)
        r = hx_fail(&err, -ENOMEM, "out of memory");
    else if (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0)
        r = hx_fail_errno(&err, errno ? errno : EIO, "cannot write to standard output");
    hx_buf_done(out);
    return hx_inspect_status(r, &err);
}

void hx_inspect_progress(const char *stage, double fraction)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%s %3.0f %%%s", stage, fraction * 100, fraction >= 1 ? "\n" : "");
    else if (fraction >= 1)
        fprintf(stderr, "%s: done\n", stage);
}

bool hx_inspect_number(const char *s, long long lo, long long hi, long long *out)
{
    char *end;
    if (*s == '\0' || strspn(s, "0123456789") != strlen(s))
        return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno != 0 || *end != '\0' || v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return EX_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("hx-inspect %s (%s)\n", HX_BUILD_VERSION, HX_BUILD_VARIANT);
        return EX_OK;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 && (i == 1 || strcmp(argv[1], "tokens") != 0)) {
            help(stdout);
            return EX_OK;
        }
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    return hx_inspect_usage("unknown command '%.60s'", argv[1]);
}
