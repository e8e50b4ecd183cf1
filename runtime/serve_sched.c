/* Queue, seats, steps (see serve_sched.h). */
#include "runtime/serve_sched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/chat_parse.h"
#include "runtime/engine_error.h"
#include "runtime/serve_answer.h"
#include "runtime/serve_logprob.h"
#include "runtime/serve_prompt.h"

static const double PUBLISH_SECONDS = 0.1;

const double sl_sched_bounds[SL_SCHED_BINS] = {0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 1800};

struct seat {
    sluice_session *session;
    struct sl_serve_job *job; /* NULL: idle */
    struct sl_answer *answer;
    sluice_sampling sampling;
    size_t fed; /* ids of the prompt that are in */
    struct sl_ids out;
    struct sl_serve_usage usage;
    double idle_since;
};

struct sl_sched {
    sluice_pack *p;
    struct sl_sched_opts o;
    struct seat seat[SL_SCHED_SEATS];
    int n_open; /* sessions */
    uint64_t ctx, chunk;
    pthread_t thread;
    bool started;
    double published;

    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t work;
    bool stopping;
    struct sl_serve_job *first, **last; /* the queue */
    struct sl_serve_job *in_call;       /* whose long engine call is in progress */
    bool interrupted;                   /* that call was told to end */
    double mean_seconds;                /* of a job on its seat, lately */
    struct sl_sched_info info;
};

/* ---------------------------------------------------------------- the queue */

static void count(struct sl_sched_histogram *h, double seconds)
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

static void fault_of(struct sl_serve_fault *f, const struct sl_sched *s, bool stopping)
{
    (void)s;
    if (stopping)
        (void)sl_serve_refuse(f, 503, "server_error", "shutting_down", NULL,
                              "the server is shutting down");
    else
        (void)sl_serve_refuse(f, 499, "cancelled", "cancelled", NULL, "the client is gone");
}

/* A job that never came to a seat. */
static void drop(struct sl_sched *s, struct sl_serve_job *j, bool stopping)
{
    struct sl_serve_fault f;
    fault_of(&f, s, stopping);
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
    if (waiting) drop(s, j, false);
}

void sl_sched_stop(struct sl_sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    sluice_interrupt();
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

/* ---------------------------------------------------------------- engine calls */

/* False: the job is not to go on. Otherwise leave_call() follows. Only a long call is interrupted when its
 * job is cancelled: that spoils the session's state, while one token later it is still of use. */
static bool enter_call(struct sl_sched *s, struct sl_serve_job *j, bool is_long)
{
    pthread_mutex_lock(&s->lock);
    bool go = !s->stopping && !atomic_load(&j->cancelled);
    if (go && is_long) s->in_call = j;
    pthread_mutex_unlock(&s->lock);
    return go;
}

static void leave_call(struct sl_sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->in_call = NULL;
    if (s->interrupted && !s->stopping) sluice_interrupt_clear();
    s->interrupted = false;
    pthread_mutex_unlock(&s->lock);
}

/* ---------------------------------------------------------------- one job on a seat */

/* Keeps what a later turn of this conversation can go on from. Nothing depends on it: a failure costs
 * time then, not correctness, and is not reported. */
static void keep_turn(struct sl_sched *s, struct seat *t)
{
    struct sl_chat_parser *parser = t->answer ? sl_answer_parser(t->answer) : NULL;
    struct sl_err err = {0};
    sluice_error e;
    if (!parser || !t->out.n) return;
    struct sl_ids ids = {0};
    for (size_t i = 0; i < t->out.n; i++)
        if (sl_ids_push(&ids, t->out.v[i], &err)) goto end;
    if (sl_chat_parser_closing(parser, &ids, &err)) goto end;
    if (s->o.turns)
        (void)sl_chat_turns_put(s->o.turns, s->o.format, t->job->thinking, ids.v, ids.n, &err);
    (void)sluice_prefix_keep(t->session, &e);
end:
    sl_ids_free(&ids);
}

static void publish(struct sl_sched *s, bool now);

static void end_job(struct sl_sched *s, struct seat *t, enum sl_finish finish,
                    const struct sl_serve_fault *fault)
{
    struct sl_serve_job *j = t->job;
    bool cancelled = fault && fault->status == 499;
    bool failed = fault && fault->status >= 500;
    t->usage.completion = t->out.n;
    t->usage.reasoning = t->answer ? sl_answer_reasoning_tokens(t->answer) : 0;
    pthread_mutex_lock(&j->lock);
    j->usage = t->usage;
    pthread_mutex_unlock(&j->lock);

    sl_answer_close(t->answer);
    t->answer = NULL;
    t->job = NULL;
    t->out.n = 0;
    t->idle_since = sl_serve_now();
    double seconds = t->idle_since - j->started_at;
    pthread_mutex_lock(&s->lock);
    s->info.running--;
    s->info.prompt_tokens += t->usage.prompt;
    s->info.cached_tokens += t->usage.cached;
    s->info.completion_tokens += t->usage.completion;
    if (cancelled)
        s->info.cancelled++;
    else if (failed)
        s->info.failed++;
    else
        s->info.finished++;
    s->mean_seconds = s->mean_seconds > 0 ? 0.8 * s->mean_seconds + 0.2 * seconds : seconds;
    if (!cancelled && !failed) count(&s->info.whole, t->idle_since - j->queued_at);
    pthread_mutex_unlock(&s->lock);
    publish(s, true);
    /* last, so that who has read the answer finds it counted */
    sl_job_finish(j, finish, fault);
    sl_job_put(j);
}

static void end_with(struct sl_sched *s, struct seat *t, int status, const char *type,
                     const char *code, const char *text)
{
    struct sl_serve_fault f;
    (void)sl_serve_refuse(&f, status, type, code, NULL, "%s", text);
    end_job(s, t, SL_FINISH_ERROR, &f);
}

static void end_stopped(struct sl_sched *s, struct seat *t)
{
    struct sl_serve_fault f;
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    fault_of(&f, s, stopping);
    end_job(s, t, SL_FINISH_ERROR, &f);
}

static void end_failed(struct sl_sched *s, struct seat *t, int code, const char *text)
{
    if (code == SL_E_INTR) {
        end_stopped(s, t);
        return;
    }
    fprintf(stderr, "sluice serve: %s: %s\n", t->job->id, text);
    end_with(s, t, 500, "server_error", "engine_error", text);
}

/* The answer is over: stop_id is the stop token that ended it, or -1. */
static void complete(struct sl_sched *s, struct seat *t, enum sl_finish finish, int32_t stop_id)
{
    struct sl_serve_fault f = {0};
    struct sl_err err = {0};
    int rc = sl_answer_end(t->answer, stop_id, &finish, &f, &err);
    if (rc) {
        end_failed(s, t, rc, err.text);
        return;
    }
    keep_turn(s, t);
    end_job(s, t, finish, f.status ? &f : NULL);
}

static void start_job(struct sl_sched *s, struct seat *t, struct sl_serve_job *j)
{
    const struct sl_serve_request *r = &j->req;
    struct sl_err err = {0};
    t->job = j;
    t->fed = 0;
    t->out.n = 0;
    t->usage = (struct sl_serve_usage){.prompt = j->prompt.n};
    t->sampling = (sluice_sampling){r->temperature, r->top_p, r->seed, r->ignore_eos};
    pthread_mutex_lock(&j->lock);
    j->state = SL_JOB_RUNNING;
    j->started_at = sl_serve_now();
    pthread_mutex_unlock(&j->lock);
    int rc = sl_answer_open(&t->answer, j, s->p, s->o.format, &err);
    if (rc) end_failed(s, t, rc, err.text);
}

/* A prompt in one call, which is one sweep of the experts; where seats share the engine in pieces, so
 * that one long prompt does not silence the others for its whole length. */
static void step_prompt(struct sl_sched *s, struct seat *t)
{
    struct sl_serve_job *j = t->job;
    size_t n = j->prompt.n;
    size_t cached = 0;
    sluice_error e = {0};
    if (s->o.seats > 1) {
        size_t from = t->fed;
        if (!from && sluice_position(t->session) < n) from = (size_t)sluice_position(t->session);
        if (n - from > s->chunk) n = from + s->chunk;
    }
    const size_t *marks = j->chat ? j->chat->marks : NULL;
    size_t n_marks = j->chat ? j->chat->n_marks : 0;
    while (n_marks && marks[n_marks - 1] > n) n_marks--;
    if (!enter_call(s, j, true)) {
        end_stopped(s, t);
        return;
    }
    int rc = sluice_prompt(t->session, j->prompt.v, n, marks, n_marks, &cached, &e);
    leave_call(s);
    if (rc) {
        end_failed(s, t, e.code, e.text);
        return;
    }
    if (!t->fed) t->usage.cached = cached;
    t->fed = n;
    if (n < j->prompt.n) return;
    if (j->req.max_tokens == 0) complete(s, t, SL_FINISH_LENGTH, -1);
}

static void note_first_token(struct sl_sched *s, const struct sl_serve_job *j)
{
    double seconds = sl_serve_now() - j->queued_at;
    pthread_mutex_lock(&s->lock);
    count(&s->info.first_token, seconds);
    pthread_mutex_unlock(&s->lock);
}

static void step_token(struct sl_sched *s, struct seat *t)
{
    struct sl_serve_job *j = t->job;
    sluice_error e = {0};
    struct sl_err err = {0};
    int32_t id = 0;
    int rc = sluice_pick(t->session, &t->sampling, &id, &e);
    if (rc < 0) {
        end_failed(s, t, e.code, e.text);
        return;
    }
    if (rc == 1) {
        complete(s, t, SL_FINISH_STOP, id);
        return;
    }
    struct sl_serve_token token = {0};
    if (j->req.logprobs)
        sl_serve_logprob(&token, sluice_logits(t->session), sluice_vocab_size(s->p), id,
                         j->req.top_logprobs);
    if (!t->out.n) note_first_token(s, j);
    rc = sl_ids_push(&t->out, id, &err);
    enum sl_finish finish = SL_FINISH_NONE;
    if (!rc) rc = sl_answer_token(t->answer, id, j->req.logprobs ? &token : NULL, &finish, &err);
    if (rc < 0) {
        end_failed(s, t, rc, err.text);
        return;
    }
    if (rc == 0 && ((j->req.max_tokens >= 0 && (int64_t)t->out.n >= j->req.max_tokens) ||
                    sluice_position(t->session) == s->ctx)) {
        finish = SL_FINISH_LENGTH;
        rc = 1;
    }
    if (rc) {
        complete(s, t, finish, -1);
        return;
    }
    if (!enter_call(s, j, false)) {
        end_stopped(s, t);
        return;
    }
    rc = sluice_feed(t->session, &id, 1, &e);
    leave_call(s);
    if (rc) end_failed(s, t, e.code, e.text);
}

static void step(struct sl_sched *s, struct seat *t)
{
    struct sl_serve_job *j = t->job;
    if (atomic_load(&j->cancelled)) {
        keep_turn(s, t); /* who stops an answer often goes on from there */
        end_stopped(s, t);
    } else if (s->o.answer_seconds > 0 && sl_serve_now() - j->started_at > s->o.answer_seconds) {
        end_with(s, t, 200, "timeout", "time_limit",
                 "the answer took longer than the server allows (--answer-timeout)");
    } else if (t->fed < j->prompt.n) {
        step_prompt(s, t);
    } else {
        step_token(s, t);
    }
}

/* ---------------------------------------------------------------- the thread */

/* Ids at which the idle seat's session could go on with this prompt. */
static size_t common_start(const struct seat *t, const struct sl_ids *prompt)
{
    uint64_t at = sluice_position(t->session);
    if (!at || at > prompt->n || !sluice_logits(t->session)) return 0;
    return memcmp(sluice_ids(t->session), prompt->v, (size_t)at * sizeof *prompt->v) == 0
               ? (size_t)at
               : 0;
}

static struct seat *best_seat(struct sl_sched *s, const struct sl_ids *prompt)
{
    struct seat *best = NULL;
    size_t most = 0;
    for (int i = 0; i < s->o.seats; i++) {
        struct seat *t = &s->seat[i];
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
        start_job(s, best_seat(s, &j->prompt), j);
        pthread_mutex_lock(&s->lock);
    }
    bool go = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return go;
}

/* One step of every busy seat; an engine that batches takes them together here. */
static void sched_round(struct sl_sched *s)
{
    for (int i = 0; i < s->o.seats; i++)
        if (s->seat[i].job) step(s, &s->seat[i]);
}

static void *run(void *arg)
{
    struct sl_sched *s = arg;
    while (take_jobs(s)) {
        sched_round(s);
        publish(s, false);
    }
    for (int i = 0; i < s->o.seats; i++)
        if (s->seat[i].job) end_stopped(s, &s->seat[i]);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct sl_serve_job *j = s->first;
        if (j) (void)unqueue(s, j);
        pthread_mutex_unlock(&s->lock);
        if (!j) break;
        drop(s, j, true);
    }
    return NULL;
}

/* ---------------------------------------------------------------- figures */

static void add_stats(sluice_stats *sum, const sluice_stats *b)
{
    sum->expert_bytes_read += b->expert_bytes_read;
    sum->expert_hits += b->expert_hits;
    sum->expert_misses += b->expert_misses;
    sum->prefill_tokens += b->prefill_tokens;
    sum->decode_tokens += b->decode_tokens;
    sum->prefill_seconds += b->prefill_seconds;
    sum->decode_seconds += b->decode_seconds;
    sum->stall_seconds += b->stall_seconds;
    sum->expert_bytes_used += b->expert_bytes_used;
    for (int i = 0; i < sum->n_drives && i < b->n_drives; i++) {
        sum->drives[i].reads += b->drives[i].reads;
        sum->drives[i].bytes += b->drives[i].bytes;
        sum->drives[i].errors += b->drives[i].errors;
        sum->drives[i].busy_seconds += b->drives[i].busy_seconds;
    }
}

/* Groups that every session has for itself; the rest is there once. */
static bool shared_group(const char *name)
{
    static const char *const once[] = {"trunk",     "trunk ring", "tables",
                                       "tokenizer", "process",    "prefix cache"};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        if (strcmp(name, once[i]) == 0) return true;
    return false;
}

/* The sessions belong to this thread, so their figures are copied out here, ten times a second. */
static void publish(struct sl_sched *s, bool now)
{
    double t = sl_serve_now();
    if (!now && t - s->published < PUBLISH_SECONDS) return;
    s->published = t;
    sluice_plan_info plan;
    sluice_stats sum;
    sluice_prefix_stats prefix;
    sluice_session_plan(s->seat[0].session, &plan);
    sluice_get_stats(s->seat[0].session, &sum);
    sluice_get_prefix_stats(s->seat[0].session, &prefix);
    for (int i = 1; i < s->o.seats; i++) {
        sluice_stats one;
        sluice_plan_info own;
        sluice_get_stats(s->seat[i].session, &one);
        sluice_session_plan(s->seat[i].session, &own);
        add_stats(&sum, &one);
        for (int g = 0; g < plan.n_groups; g++) {
            if (shared_group(plan.groups[g].name)) continue;
            plan.groups[g].planned_bytes += own.groups[g].planned_bytes;
            plan.groups[g].measured_bytes += own.groups[g].measured_bytes;
        }
        plan.planned_peak_bytes = own.planned_peak_bytes; /* the last one saw all before it */
    }
    pthread_mutex_lock(&s->lock);
    s->info.plan = plan;
    s->info.engine = sum;
    s->info.prefix = prefix;
    pthread_mutex_unlock(&s->lock);
}

void sl_sched_get_info(struct sl_sched *s, struct sl_sched_info *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->info;
    pthread_mutex_unlock(&s->lock);
}

uint64_t sl_sched_ctx(const struct sl_sched *s)
{
    return s->ctx;
}

/* ---------------------------------------------------------------- open and close */

/* The memory that each of several sessions may take: what is left after the shared parts, in equal
 * shares. The planner counts what this process holds already, so the ceiling grows with each one. */
static int open_seat(struct sl_sched *s, const sluice_options *engine, uint64_t *share,
                     sluice_error *e)
{
    sluice_options o = *engine;
    struct seat *t = &s->seat[s->n_open];
    if (s->o.seats > 1) {
        sluice_plan_info plan;
        int rc = sluice_plan(s->p, &o, &plan, e);
        if (rc && !s->n_open) return rc;
        uint64_t held = 0;
        for (int g = 0; g < plan.n_groups; g++)
            if (shared_group(plan.groups[g].name)) held += plan.groups[g].planned_bytes;
        if (!s->n_open)
            *share = plan.limit_bytes > held ? (plan.limit_bytes - held) / (uint64_t)s->o.seats : 0;
        o.ram_bytes = held + *share;
    }
    o.trace = s->n_open ? NULL : engine->trace;
    int rc = sluice_session_open(&t->session, s->p, &o, e);
    if (!rc) s->n_open++;
    return rc;
}

int sl_sched_open(struct sl_sched **out, sluice_pack *p, const sluice_options *engine,
                  const struct sl_sched_opts *o, sluice_error *error)
{
    struct sl_err err = {0};
    uint64_t share = 0;
    *out = NULL;
    struct sl_sched *s = calloc(1, sizeof *s);
    if (!s) return sl_engine_give(error, &err, sl_fail(&err, SL_E_NOMEM, NULL, NULL, "no memory"));
    s->p = p;
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    s->last = &s->first;
    int rc = 0;
    while (!rc && s->n_open < o->seats) rc = open_seat(s, engine, &share, error);
    if (!rc) {
        sluice_plan_info plan;
        sluice_session_plan(s->seat[0].session, &plan);
        s->ctx = plan.ctx;
        s->chunk = plan.chunk;
        s->info.seats = o->seats;
        s->info.queue_max = o->queue;
        publish(s, true);
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
