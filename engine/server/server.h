/* Inside of the server: shared state of routes, preparation, generations and metrics. */
#ifndef HX_SERVER_SERVER_H
#define HX_SERVER_SERVER_H

#include <hx/chat.h>
#include <hx/engine.h>
#include <hx/request.h>
#include <hx/tokenizer.h>

#include "server/http.h"
#include "server/metrics.h"
#include "server/options.h"

#define HX_MODEL_NAME "deepseek-v4.1-flash"

struct hx_generation;
struct hx_prep;

enum hx_server_state { HX_SERVER_LOADING, HX_SERVER_READY, HX_SERVER_DRAINING, HX_SERVER_FAILED };

struct hx_server {
    struct hx_server_options opt;
    char key[256]; /* bearer key, empty: none */
    struct hx_http *http;
    struct hx_prep *prep;
    struct hx_metrics metrics;
    int64_t created; /* unix seconds */
    int state;       /* enum hx_server_state, atomic */
    int progress;    /* of loading, 1/1000, atomic */
    /* Set before the state becomes READY. */
    struct hx_engine *engine;
    struct hx_engine_info info;
    struct hx_tokenizer *tokenizer;
    int32_t end_token[16];
    size_t n_end_tokens;
    char failure[1024];
    /* http thread */
    struct hx_generation *running;
    int64_t drain_until; /* 0: not draining */
};

/* Routes (http thread): security checks, dispatch, the tick. */
extern const struct hx_http_ops hx_server_http_ops;

/* ---- errors in the shape of OpenAI's API ---- */
void hx_error_body(struct hx_buf *out, const char *type, const char *code, const char *param,
                   const char *message);
/* HTTP status of an error object; *type and *code for the body. */
int hx_error_status(const struct hx_error *err, const char **type, const char **code);
void hx_reply_failure(struct hx_server *s, struct hx_exchange *x, const struct hx_error *err);
/* status and code as given; code decides the type. */
void hx_reply_refusal(struct hx_exchange *x, int status, const char *code, const char *param,
                      const char *message);

/* ---- answers that need no generation ---- */
void hx_models_reply(struct hx_server *s, struct hx_exchange *x,
                     const char *id); /* NULL: the list */
int hx_tokenize_answer(struct hx_server *s, struct hx_jv body, struct hx_buf *out,
                       struct hx_error *err) HX_MUST;
int hx_detokenize_answer(struct hx_server *s, struct hx_jv body, struct hx_buf *out,
                         struct hx_error *err) HX_MUST;
/* "DEMO MODE: ..." if the answers are none of a model on cards, else "". For the log, the service
 * manager and /version. */
const char *hx_server_demo(const struct hx_server *s);
bool hx_model_known(const struct hx_server *s, const char *name, size_t len);

#endif
