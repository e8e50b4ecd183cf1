/* Queue, seats, steps (see serve_sched.h). */
#include "runtime/serve_sched_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/engine_error.h"

static const double PUBLISH_SECONDS = 0.1;
enum { PIECE_FIRST = 32 };

const double sl_sched_bounds[SL_SCHED_BINS] = {0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 1800};

/* ---------------------------------------------------------------- the queue */

void sl_sched_count(struct sl_sched_histogram *h, double seconds)
{
    int i = 0;
    while (i < SL_SCHED_BINS && seconds > sl_sched_bounds[i]) i++;
    h->n[i]++;
    h->sum += seconds;
}

int sl_sched_submit(struct sl_sched *s, struct sl_serve_job *j, int *retry_seconds)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (s->stopping) {
        rc = -1;
    } else if (s->info.queued >= s->o.queue && s->info.running + s->info.queued >= s->o.seats) {
        double wait = s->mean_seconds * (1 + s->info.queued) / s->o.seats;
        *retry_seconds = wait < 1 ? 1 : wait > 600 ? 600 : (int)ceil(wait);
        s->info.refused++;
        rc = 1;
    } else {
        sl_job_ref(j);
        j->next = NULL;
        *s->last = j;
        s->last = &j->next;
        s->info.queued++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Takes j out of the queue; false: it is not there. The lock is held. */
static bool unqueue(struct sl_sched *s, struct sl_serve_job *j)
{
    struct sl_serve_job **at = &s->first;
    while (*at && *at != j) at = &(*at)->next;
    if (!*at) return false;
    *at = j->next;
    if (!*at) s->last = at;
    s->info.queued--;
    return true;
}

void sl_sched_fault(struct sl_serve_fault *f, bool stopping)
{
    if (stopping)
        (void)sl_serve_refuse(f, 503, "server_error", "shutting_down", NULL,
                              "the server is shutting down");
    else
        (void)sl_serve_refuse(f, 499, "cancelled", "cancelled", NULL, "the client is gone");
}

/* A job that never came to a seat. */
static void drop(struct sl_serve_job *j, bool stopping)
{
    struct sl_serve_fault f;
    sl_sched_fault(&f, stopping);
    sl_job_finish(j, SL_FINISH_ERROR, &f);
    sl_job_put(j);
}

void sl_sched_cancel(struct sl_sched *s, struct sl_serve_job *j)
{
    atomic_store(&j->cancelled, true);
    pthread_mutex_lock(&s->lock);
    bool waiting = unqueue(s, j);
    if (waiting) s->info.cancelled++;
    if (s->in_call == j && !s->interrupted) {
        s->interrupted = true;
        sluice_interrupt();
    }
    pthread_mutex_unlock(&s->lock);
    if (waiting) drop(j, false);
}

void sl_sched_stop(struct sl_sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    sluice_interrupt();
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

/* ---------------------------------------------------------------- the thread */

/* Ids at which the idle seat's session could go on with this prompt. */
static size_t common_start(const struct sl_sched_seat *t, const struct sl_ids *prompt)
{
    uint64_t at = sluice_position(t->session);
    if (!at || at > prompt->n || !sluice_logits(t->session)) return 0;
    return memcmp(sluice_ids(t->session), prompt->v, (size_t)at * sizeof *prompt->v) == 0
               ? (size_t)at
               : 0;
}

static struct sl_sched_seat *best_seat(struct sl_sched *s, const struct sl_ids *prompt)
{
    struct sl_sched_seat *best = NULL;
    size_t most = 0;
    for (int i = 0; i < s->o.seats; i++) {
        struct sl_sched_seat *t = &s->seat[i];
        if (t->job) continue;
        size_t n = common_start(t, prompt);
        if (best && (n < most || (n == most && t->idle_since >= best->idle_since))) continue;
        best = t;
        most = n;
    }
    return best;
}

/* Fills idle seats from the queue. False: shutting down. Waits where there is nothing to do. */
static bool take_jobs(struct sl_sched *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->stopping && !s->first && !s->info.running) pthread_cond_wait(&s->work, &s->lock);
    while (!s->stopping && s->first && s->info.running < s->o.seats) {
        struct sl_serve_job *j = s->first;
        (void)unqueue(s, j);
        s->info.running++;
        pthread_mutex_unlock(&s->lock);
        sl_sched_start(s, best_seat(s, &j->prompt), j);
        pthread_mutex_lock(&s->lock);
    }
    bool go = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return go;
}

static void *run(void *arg)
{
    struct sl_sched *s = arg;
    while (take_jobs(s)) {
        sl_sched_step(s);
        sl_sched_publish(s, false);
    }
    for (int i = 0; i < s->o.seats; i++)
        if (s->seat[i].job) sl_sched_end_stopped(s, &s->seat[i]);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct sl_serve_job *j = s->first;
        if (j) (void)unqueue(s, j);
        pthread_mutex_unlock(&s->lock);
        if (!j) break;
        drop(j, true);
    }
    return NULL;
}

/* ---------------------------------------------------------------- figures */

/* The sessions belong to this thread, so their figures are copied out here, ten times a second. */
void sl_sched_publish(struct sl_sched *s, bool now)
{
    double t = sl_serve_now();
    if (!now && t - s->published < PUBLISH_SECONDS) return;
    s->published = t;
    sluice_plan_info plan;
    sluice_stats engine;
    sluice_prefix_stats prefix;
    sluice_session_plan(s->seat[0].session, &plan);
    sluice_get_stats(s->seat[0].session, &engine);
    sluice_get_prefix_stats(s->seat[0].session, &prefix);
    pthread_mutex_lock(&s->lock);
    s->info.plan = plan;
    s->info.engine = engine;
    s->info.prefix = prefix;
    pthread_mutex_unlock(&s->lock);
}

void sl_sched_get_info(struct sl_sched *s, struct sl_sched_info *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->info;
    if (s->alone)
        out->prompts[0].done += (uint64_t)((double)s->alone * sluice_progress(s->seat[0].session));
    pthread_mutex_unlock(&s->lock);
}

uint64_t sl_sched_ctx(const struct sl_sched *s)
{
    return s->ctx;
}

/* ---------------------------------------------------------------- open and close */

static int open_seat(struct sl_sched *s, const sluice_options *engine, sluice_error *e)
{
    struct sl_sched_seat *t = &s->seat[s->n_open];
    sluice_options o = *engine;
    o.seats = s->o.seats;
    int rc = s->n_open ? sluice_session_join(&t->session, s->seat[0].session, e)
                       : sluice_session_open(&t->session, s->p, &o, e);
    if (!rc) s->n_open++;
    return rc;
}

int sl_sched_open(struct sl_sched **out, sluice_pack *p, const sluice_options *engine,
                  const struct sl_sched_opts *o, sluice_error *error)
{
    struct sl_err err = {0};
    *out = NULL;
    struct sl_sched *s = calloc(1, sizeof *s);
    if (!s) return sl_engine_give(error, &err, sl_fail(&err, SL_E_NOMEM, NULL, NULL, "no memory"));
    s->p = p;
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    s->last = &s->first;
    int rc = 0;
    while (!rc && s->n_open < o->seats) rc = open_seat(s, engine, error);
    if (!rc) {
        sluice_plan_info plan;
        sluice_session_plan(s->seat[0].session, &plan);
        s->ctx = plan.ctx;
        s->chunk = plan.chunk;
        s->panel = plan.panel;
        s->piece = PIECE_FIRST;
        s->info.seats = o->seats;
        s->info.queue_max = o->queue;
        sl_sched_publish(s, true);
        int sys = pthread_create(&s->thread, NULL, run, s);
        s->started = !sys;
        if (sys)
            rc = sl_engine_give(error, &err,
                                sl_fail_errno(&err, SL_E_NOMEM, sys, NULL, "start a thread"));
    }
    if (rc) {
        sl_sched_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

sluice_session *sl_sched_join(struct sl_sched *s)
{
    if (s->started) pthread_join(s->thread, NULL);
    s->started = false;
    return s->seat[0].session;
}

void sl_sched_close(struct sl_sched *s)
{
    if (!s) return;
    if (s->started) sl_sched_stop(s);
    (void)sl_sched_join(s);
    for (int i = 0; i < s->n_open; i++) {
        sluice_session_close(s->seat[i].session);
        sl_ids_free(&s->seat[i].out);
    }
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
