/* Preparation threads: a bounded queue in, a list of finished jobs out. */
#include "server/prep.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "server/generation.h"

#define MAX_THREADS 8

struct list {
    struct hx_job *first, *last;
    int n;
};

struct hx_prep {
    struct hx_server *server;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct list waiting, finished;
    int max_jobs, n_threads;
    bool stop;
    pthread_t thread[MAX_THREADS];
};

static void append(struct list *l, struct hx_job *job)
{
    job->next = NULL;
    if (l->last)
        l->last->next = job;
    else
        l->first = job;
    l->last = job;
    l->n++;
}

static struct hx_job *take(struct list *l)
{
    struct hx_job *job = l->first;
    if (!job)
        return NULL;
    l->first = job->next;
    if (!l->first)
        l->last = NULL;
    l->n--;
    return job;
}

static bool is_cancelled(void *user)
{
    return __atomic_load_n(&((struct hx_job *)user)->cancelled, __ATOMIC_ACQUIRE);
}

static int run_parsed(struct hx_server *s, struct hx_job *job, struct hx_jv body)
{
    struct hx_encode_options enc = {.cancelled = is_cancelled, .user = job};
    int r;
    if (hx_jv_type(body) != HX_JSON_OBJECT)
        return hx_fail_param(&job->err, -EINVAL, NULL, "invalid_type",
                             "the body must be a JSON object, not %s.",
                             hx_json_type_name(hx_jv_type(body)));
    switch (job->kind) {
    case HX_JOB_TOKENIZE: return hx_tokenize_answer(s, body, &job->answer, &job->err);
    case HX_JOB_DETOKENIZE: return hx_detokenize_answer(s, body, &job->answer, &job->err);
    case HX_JOB_CHAT:
        r = hx_chat_prepare(s, body, job->id, &enc, &job->generation, &job->err);
        break;
    default: r = hx_completion_prepare(s, body, job->id, &enc, &job->generation, &job->err);
    }
    if (r == 0 && is_cancelled(job))
        r = hx_fail(&job->err, -ECANCELED, "cancelled");
    return r < 0 ? r : hx_generation_submit(job->generation, &job->err);
}

static void run(struct hx_server *s, struct hx_job *job)
{
    struct hx_json_limits limits = HX_JSON_LIMITS_DEFAULT;
    struct hx_json *doc = NULL;
    limits.max_bytes = (size_t)s->opt.max_body;
    if (s->opt.log_prompts)
        hx_log(HX_LOG_INFO, "server", "%s: %.*s", job->id, (int)(job->len < 4096 ? job->len : 4096),
               (const char *)job->body);
    job->status = hx_json_parse((const char *)job->body, job->len, &limits, &doc, &job->err);
    if (job->status == 0)
        job->status = run_parsed(s, job, hx_json_root(doc));
    else if (job->status != -ENOMEM)
        snprintf(job->err.slug, sizeof(job->err.slug), "invalid_json");
    hx_json_free(doc);
    free(job->body);
    job->body = NULL;
    if (job->status == 0 && job->answer.failed)
        job->status = hx_fail(&job->err, -ENOMEM, "out of memory");
}

static void *work(void *arg)
{
    struct hx_prep *p = arg;
    pthread_setname_np(pthread_self(), "hx-prep");
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        struct hx_job *job = take(&p->waiting);
        if (!job) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        run(p->server, job);
        pthread_mutex_lock(&p->lock);
        append(&p->finished, job);
        hx_http_wake(p->server->http);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int hx_prep_open(struct hx_server *s, int n_threads, int max_jobs, struct hx_prep **out,
                 struct hx_error *err)
{
    struct hx_prep *p = calloc(1, sizeof(*p));
    if (!p)
        return hx_fail(err, -ENOMEM, "out of memory");
    p->server = s;
    p->max_jobs = max_jobs;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    while (p->n_threads < n_threads && p->n_threads < MAX_THREADS) {
        int r = pthread_create(&p->thread[p->n_threads], NULL, work, p);
        if (r != 0) {
            hx_prep_close(p);
            return hx_fail_errno(err, r, "cannot start a thread");
        }
        p->n_threads++;
    }
    *out = p;
    return 0;
}

void hx_prep_close(struct hx_prep *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    for (struct hx_job *j = p->waiting.first; j; j = j->next)
        __atomic_store_n(&j->cancelled, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->thread[i], NULL);
    for (struct hx_job *j; (j = take(&p->waiting)) || (j = take(&p->finished));)
        hx_job_free(j);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int hx_prep_submit(struct hx_prep *p, struct hx_job *job)
{
    int r = -EAGAIN;
    pthread_mutex_lock(&p->lock);
    if (p->waiting.n < p->max_jobs) {
        append(&p->waiting, job);
        pthread_cond_signal(&p->work);
        r = 0;
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

struct hx_job *hx_prep_finished(struct hx_prep *p)
{
    pthread_mutex_lock(&p->lock);
    struct hx_job *job = take(&p->finished);
    pthread_mutex_unlock(&p->lock);
    return job;
}

void hx_job_free(struct hx_job *job)
{
    if (!job)
        return;
    free(job->body);
    hx_buf_done(&job->answer);
    hx_generation_free(job->generation);
    free(job);
}
