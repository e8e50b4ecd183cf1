/* Jobs and their deltas (see serve_job.h). */
#include "runtime/serve_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include "runtime/serve_prompt.h"

double sl_serve_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Not to be guessed, so that one client cannot name another's answer. */
static void make_id(char *out, size_t n, enum sl_serve_kind kind)
{
    unsigned char r[12];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r) memset(r, 0, sizeof r);
    int at = snprintf(out, n, "%s", kind == SL_SERVE_CHAT ? "chatcmpl-" : "cmpl-");
    for (size_t i = 0; i < sizeof r && at > 0 && (size_t)at + 3 < n; i++)
        at += snprintf(out + at, n - (size_t)at, "%02x", r[i]);
}

struct sl_serve_job *sl_job_new(struct sl_serve_request *req)
{
    struct sl_serve_job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    j->req = *req;
    *req = (struct sl_serve_request){0};
    make_id(j->id, sizeof j->id, j->req.kind);
    j->created = (int64_t)time(NULL);
    pthread_mutex_init(&j->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&j->changed, &clock);
    pthread_condattr_destroy(&clock);
    j->refs = 1;
    j->last = &j->first;
    j->queued_at = sl_serve_now();
    return j;
}

void sl_job_ref(struct sl_serve_job *j)
{
    pthread_mutex_lock(&j->lock);
    j->refs++;
    pthread_mutex_unlock(&j->lock);
}

void sl_job_put(struct sl_serve_job *j)
{
    if (!j) return;
    pthread_mutex_lock(&j->lock);
    int left = --j->refs;
    pthread_mutex_unlock(&j->lock);
    if (left) return;
    sl_delta_free(j->first);
    sl_serve_prompt_free(j->chat);
    sl_ids_free(&j->prompt);
    sl_serve_request_free(&j->req);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

struct sl_delta *sl_delta_new(enum sl_delta_kind kind, int call, const char *text, size_t len)
{
    struct sl_delta *d = malloc(sizeof *d + len + 1);
    if (!d) return NULL;
    *d = (struct sl_delta){.kind = kind, .call = call, .len = len};
    if (len) memcpy(d->text, text, len);
    d->text[len] = 0;
    return d;
}

void sl_delta_free(struct sl_delta *d)
{
    while (d) {
        struct sl_delta *next = d->next;
        free(d->tokens);
        free(d);
        d = next;
    }
}

void sl_job_append(struct sl_serve_job *j, struct sl_delta *d)
{
    pthread_mutex_lock(&j->lock);
    *j->last = d;
    while (*j->last) j->last = &(*j->last)->next;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
}

void sl_job_finish(struct sl_serve_job *j, enum sl_finish finish,
                   const struct sl_serve_fault *fault)
{
    pthread_mutex_lock(&j->lock);
    if (j->state != SL_JOB_DONE) {
        j->state = SL_JOB_DONE;
        j->finish = finish;
        if (fault) j->fault = *fault;
        j->done_at = sl_serve_now();
        pthread_cond_broadcast(&j->changed);
    }
    pthread_mutex_unlock(&j->lock);
}

struct sl_delta *sl_job_take(struct sl_serve_job *j, double seconds, bool *done)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&j->lock);
    while (!j->first && j->state != SL_JOB_DONE)
        if (pthread_cond_timedwait(&j->changed, &j->lock, &until)) break;
    struct sl_delta *d = j->first;
    j->first = NULL;
    j->last = &j->first;
    *done = j->state == SL_JOB_DONE;
    pthread_mutex_unlock(&j->lock);
    return d;
}

void sl_job_wait_done(struct sl_serve_job *j)
{
    pthread_mutex_lock(&j->lock);
    while (j->state != SL_JOB_DONE) pthread_cond_wait(&j->changed, &j->lock);
    pthread_mutex_unlock(&j->lock);
}
