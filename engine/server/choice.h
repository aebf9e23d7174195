/* One choice of a generation: tokens in, ordered pieces of reasoning, content and calls out. */
#ifndef HX_SERVER_CHOICE_H
#define HX_SERVER_CHOICE_H

#include <hx/chat.h>
#include <hx/request.h>

#include "server/metrics.h"
#include "server/params.h"

enum hx_piece_type { HX_PIECE_REASONING, HX_PIECE_CONTENT, HX_PIECE_CALL, HX_PIECE_ARGS };

struct hx_piece {
    enum hx_piece_type type;
    int call;
    char id[32];        /* CALL */
    struct hx_buf text; /* CALL: the function's name */
};

struct hx_choice_options {
    const struct hx_tokenizer *tokenizer;
    const struct hx_params *params;
    struct hx_metrics *metrics; /* NULL: nothing is counted */
    bool raw;                   /* no reasoning, no calls: text as it is */
    const int32_t *end_tokens;  /* of a chat: with ignore_eos they come as tokens too */
    size_t n_end_tokens;
    struct hx_reply_options reply;
};

struct hx_choice {
    struct hx_choice_options opt;
    struct hx_reply *reply;
    struct hx_detok detok;
    struct hx_buf text, hold; /* hold: content that may become a stop string */
    struct hx_piece *piece;   /* since the last clear; neighbours of one type are joined */
    size_t n_pieces, cap_pieces;
    /* JSON list items, without brackets. Chat: logprobs; completions: all four. */
    struct hx_buf logprobs, token_logprobs, top_logprobs, offsets;
    int64_t n_chars;         /* of text so far */
    int64_t n_reasoning_tok; /* </think> included */
    bool stopped;            /* a stop string, a finished block: what comes is dropped */
    bool stop_string;
    bool role_sent, finish_sent, any_token;
    const char *finish; /* finish_reason, NULL: not at the end */
    struct hx_usage usage;
};

int hx_choice_init(struct hx_choice *c, const struct hx_choice_options *opt,
                   struct hx_error *err) HX_MUST;
void hx_choice_done(struct hx_choice *c);
/* 0, 1: the engine need not go on with this choice, or negative: -ENOMEM, -ECANCELED (ended by
 * others), or the engine's error. */
int hx_choice_event(struct hx_choice *c, const struct hx_event *ev, struct hx_error *err) HX_MUST;
/* Forgets the pieces that were sent. */
void hx_choice_clear(struct hx_choice *c);
/* One item of logprobs.content: token, logprob, bytes; open: the object is not closed. */
void hx_choice_token_json(const struct hx_choice *c, int32_t token, double logprob, bool open,
                          struct hx_buf *out);

#endif
