/* A generation: one API request that runs on the engine, from its parsed fields to its last byte.
 */
#ifndef HX_SERVER_GENERATION_H
#define HX_SERVER_GENERATION_H

#include "base/json_write.h"
#include "server/choice.h"
#include "server/server.h"

struct hx_generation;

/* What differs between endpoints. */
struct hx_format {
    const char *object; /* of the whole answer */
    const char *chunk_object;
    const char *id_prefix;
    /* The choice's pieces, and its end once it has one, as events. */
    void (*chunks)(struct hx_generation *g, int index, struct hx_buf *out);
    /* The choice as an item of the whole answer. */
    void (*whole)(struct hx_generation *g, int index, struct hx_json_writer *w);
    /* The choice's log-probabilities as one JSON value; the items move out of it. */
    void (*logprobs)(struct hx_choice *c, struct hx_buf *out);
};

struct hx_generation {
    struct hx_server *server;
    struct hx_exchange *x; /* NULL: not attached yet */
    const struct hx_format *format;
    struct hx_params params;
    struct hx_chat chat; /* chat only */
    bool has_chat;
    char id[64], request_id[129];
    int64_t created; /* unix seconds */
    struct hx_ids prompt[HX_MAX_CHOICES];
    int n_prompts;
    struct hx_ids forced, forbidden;
    int32_t force_after;
    struct hx_request *request[HX_MAX_CHOICES]; /* one a prompt, params.n choices each */
    struct hx_choice choice[HX_MAX_CHOICES];
    int n_choices;
    int64_t started, first_token, last_write; /* microseconds, monotonic */
    struct hx_generation *prev, *next;
};

struct hx_generation *hx_generation_new(struct hx_server *s, const struct hx_format *format,
                                        const char *request_id);
/* Sets up the choices and queues the requests. On failure nothing runs. */
int hx_generation_submit(struct hx_generation *g, struct hx_error *err) HX_MUST;
void hx_generation_free(struct hx_generation *g); /* cancels what runs */

/* The last members of a choice in a whole answer: logprobs and finish_reason; closes its object. */
void hx_whole_end(struct hx_generation *g, struct hx_choice *c, struct hx_json_writer *w);

/* ---- http thread ---- */
/* Takes the exchange; headers of a stream go out now. */
void hx_generation_attach(struct hx_generation *g, struct hx_exchange *x, int64_t now);
/* Moves events to the client. false: the answer is complete, free g. */
bool hx_generation_pump(struct hx_generation *g, int64_t now);
/* Ends with an error, before or inside the answer. Free g afterwards. */
void hx_generation_fail(struct hx_generation *g, const struct hx_error *err);
/* The client is gone: counts the phase. Free g afterwards. */
void hx_generation_gone(struct hx_generation *g);

/* ---- pieces of answers ---- */
void hx_chunk_begin(struct hx_generation *g, int index, struct hx_buf *out,
                    struct hx_json_writer *w); /* up to inside choices[0], index written */
/* Closes the choice and the chunk. finish NULL: null. logprobs: as JSON, NULL: left out. */
void hx_chunk_end(struct hx_generation *g, struct hx_json_writer *w, const char *finish,
                  const struct hx_buf *logprobs);

int hx_chat_prepare(struct hx_server *s, struct hx_jv body, const char *request_id,
                    const struct hx_encode_options *enc, struct hx_generation **out,
                    struct hx_error *err) HX_MUST;
int hx_completion_prepare(struct hx_server *s, struct hx_jv body, const char *request_id,
                          const struct hx_encode_options *enc, struct hx_generation **out,
                          struct hx_error *err) HX_MUST;
void hx_params_limits_of(const struct hx_server *s, struct hx_params_limits *out);
/* -EINVAL with slug model_not_found. */
int hx_model_check(struct hx_server *s, struct hx_jv body, struct hx_error *err) HX_MUST;

#endif
