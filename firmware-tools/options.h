/* Arguments of hx-cards. */
#ifndef HX_CARDS_OPTIONS_H
#define HX_CARDS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bundle/manifest.h"
#include "hw/command.h"
#include "hw/root.h"

/* Exit codes (hardware.md 4). */
enum hx_cards_exit {
    HX_EXIT_READY = 0,
    HX_EXIT_DEGRADED = 1,
    HX_EXIT_NOT_READY = 2,
    HX_EXIT_UNSUPPORTED = 3,
    HX_EXIT_INTERNAL = 4,
    HX_EXIT_USAGE = 64,
};

#define HX_ACCEPT_MAX 32
#define HX_WORDS_MAX  4

struct hx_cards_options {
    const char *word[HX_WORDS_MAX]; /* command and what it is given */
    int n_words;
    bool json, all, yes, once, redact, help, version;
    const char *root_dir, *state, *kit, *kernel, *nvml, *commands, *kernel_log, *checks, *explain,
        *sha256, *config, *output;
    int tool_timeout_ms; /* 0: the standard 20 s */
    int64_t now;         /* 0: the clock */
    int confirmed_off;   /* -1 not told */
    char *accept[HX_ACCEPT_MAX];
    struct hx_strings accepted;
    /* opened from the above */
    struct hx_root *root;
    struct hx_commands *tools;
};

/* 0, or HX_EXIT_USAGE after a message on standard error. */
int hx_cards_options_read(int argc, char **argv, struct hx_cards_options *o);
int hx_cards_options_open(struct hx_cards_options *o, struct hx_error *err) HX_MUST;
void hx_cards_options_done(struct hx_cards_options *o);
void hx_cards_help(void);

/* One command each; the exit code. */
int hx_cards_bundle(const struct hx_cards_options *o);
int hx_cards_list(const struct hx_cards_options *o);
int hx_cards_state(const struct hx_cards_options *o);
int hx_cards_explain(const char *id);
int hx_cards_confirm(const struct hx_cards_options *o);
int hx_cards_watch(const struct hx_cards_options *o);

/* "hx-cards: TEXT" on standard error; returns code. */
int hx_cards_error(int code, const struct hx_error *err);

#endif
