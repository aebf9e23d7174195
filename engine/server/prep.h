/* Worker threads that turn request bodies into generations (or plain answers): JSON, template,
 * tokens. */
#ifndef HX_SERVER_PREP_H
#define HX_SERVER_PREP_H

#include "server/server.h"

enum hx_job_kind { HX_JOB_CHAT, HX_JOB_COMPLETION, HX_JOB_TOKENIZE, HX_JOB_DETOKENIZE };

struct hx_job {
    enum hx_job_kind kind;
    struct hx_exchange *x; /* http thread only; NULL: the client is gone */
    int cancelled;         /* atomic */
    char id[129];
    uint8_t *body;
    size_t len;
    /* result */
    int status; /* 0 or negative with err */
    struct hx_error err;
    struct hx_buf answer;
    struct hx_generation *generation;
    struct hx_job *next;
};

int hx_prep_open(struct hx_server *s, int n_threads, int max_jobs, struct hx_prep **out,
                 struct hx_error *err) HX_MUST;
void hx_prep_close(struct hx_prep *p);
/* Takes the job; -EAGAIN: too many wait. */
int hx_prep_submit(struct hx_prep *p, struct hx_job *job);
/* A finished job or NULL; the server's http thread is woken when there is one. */
struct hx_job *hx_prep_finished(struct hx_prep *p);
void hx_job_free(struct hx_job *job);

#endif
