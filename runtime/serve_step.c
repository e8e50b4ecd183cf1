/* Jobs on their seats, and the step that the engine takes for all of them.
 *
 *   step   prompts: find where to go on from       answers: pick a token, pass it on
 *          one step of the engine: a token of every answer, with guesses behind it; pieces of prompts
 *          prompts: keep states at their marks     answers: pass on the guesses that held
 *
 * A prompt alone is fed as far as it goes: long chunks are few sweeps of the experts, and the call can be
 * interrupted. Beside answers it comes in pieces, so that these go on: as many ids as keep the step within
 * a few times the time of one without prompts, shared evenly between the prompts. Such a step is not
 * interrupted when a client leaves, because the others' states would be lost: it is short.
 *
 * What a session computes does not depend on the others on the exact path, so answers do not either. */
#include "runtime/serve_sched_parts.h"

#include <stdio.h>
#include <string.h>
#include "runtime/chat_parse.h"
#include "runtime/engine_error.h"
#include "runtime/serve_logprob.h"
#include "runtime/serve_prompt.h"

/* A step with prompts may take so many times one without, or so many seconds if that is more. */
static const double STEP_TIMES = 3, STEP_SECONDS = 0.1;
enum { PIECE_LEAST = 8 };

/* ---------------------------------------------------------------- engine calls */

/* False: the job is not to go on. Otherwise leave_call() follows. A call of j alone is interrupted when j is
 * cancelled; j NULL: a step, which is not, because it would spoil every session in it. */
static bool enter_call(struct sl_sched *s, struct sl_serve_job *j)
{
    pthread_mutex_lock(&s->lock);
    bool go = !s->stopping && !(j && atomic_load(&j->cancelled));
    if (go) s->in_call = j;
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
static void keep_turn(struct sl_sched *s, struct sl_sched_seat *t)
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

static void end_job(struct sl_sched *s, struct sl_sched_seat *t, enum sl_finish finish,
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
    if (!cancelled && !failed) sl_sched_count(&s->info.whole, t->idle_since - j->queued_at);
    pthread_mutex_unlock(&s->lock);
    sl_sched_publish(s, true);
    /* last, so that who has read the answer finds it counted */
    sl_job_finish(j, finish, fault);
    sl_job_put(j);
}

static void end_with(struct sl_sched *s, struct sl_sched_seat *t, int status, const char *type,
                     const char *code, const char *text)
{
    struct sl_serve_fault f;
    (void)sl_serve_refuse(&f, status, type, code, NULL, "%s", text);
    end_job(s, t, SL_FINISH_ERROR, &f);
}

void sl_sched_end_stopped(struct sl_sched *s, struct sl_sched_seat *t)
{
    struct sl_serve_fault f;
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    sl_sched_fault(&f, stopping);
    end_job(s, t, SL_FINISH_ERROR, &f);
}

static void end_failed(struct sl_sched *s, struct sl_sched_seat *t, int code, const char *text)
{
    if (code == SL_E_INTR) {
        sl_sched_end_stopped(s, t);
        return;
    }
    fprintf(stderr, "sluice serve: %s: %s\n", t->job->id, text);
    end_with(s, t, 500, "server_error", "engine_error", text);
}

/* The answer is over: stop_id is the stop token that ended it, or -1. */
static void complete(struct sl_sched *s, struct sl_sched_seat *t, enum sl_finish finish,
                     int32_t stop_id)
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

void sl_sched_start(struct sl_sched *s, struct sl_sched_seat *t, struct sl_serve_job *j)
{
    const struct sl_serve_request *r = &j->req;
    struct sl_err err = {0};
    t->job = j;
    t->begun = false;
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

static void note_first_token(struct sl_sched *s, const struct sl_serve_job *j)
{
    double seconds = sl_serve_now() - j->queued_at;
    pthread_mutex_lock(&s->lock);
    sl_sched_count(&s->info.first_token, seconds);
    pthread_mutex_unlock(&s->lock);
}

/* For /stats: prompts in progress before a step; alone: ids that the only one of them is fed at once. */
static void show_prompts(struct sl_sched *s, size_t alone)
{
    pthread_mutex_lock(&s->lock);
    s->alone = alone;
    s->info.n_prompts = 0;
    for (int i = 0; i < s->o.seats; i++) {
        const struct sl_sched_seat *t = &s->seat[i];
        if (!t->job || !t->begun || t->fed == t->job->prompt.n) continue;
        s->info.prompts[s->info.n_prompts].tokens = t->job->prompt.n;
        s->info.prompts[s->info.n_prompts++].done = t->fed;
    }
    pthread_mutex_unlock(&s->lock);
}

static void note_step(struct sl_sched *s, int sequences, uint64_t tokens)
{
    pthread_mutex_lock(&s->lock);
    s->info.steps[sequences - 1]++;
    s->info.step_tokens += tokens;
    pthread_mutex_unlock(&s->lock);
}

/* ---------------------------------------------------------------- prompts */

static size_t prompt_stop(const struct sl_sched_seat *t)
{
    const struct sl_serve_job *j = t->job;
    return sluice_prompt_stop(t->session, j->prompt.n, j->chat ? j->chat->marks : NULL,
                              j->chat ? j->chat->n_marks : 0, t->stopped);
}

static void begin_prompt(struct sl_sched *s, struct sl_sched_seat *t)
{
    sluice_error e = {0};
    size_t at;
    t->begun = true;
    if (sluice_prompt_begin(t->session, t->job->prompt.v, t->job->prompt.n, &at, &e)) {
        end_failed(s, t, e.code, e.text);
        return;
    }
    t->usage.cached = t->fed = t->stopped = at;
}

/* After a feed that brought the prompt to t->fed. */
static void advance_prompt(struct sl_sched *s, struct sl_sched_seat *t, size_t stop)
{
    sluice_error e = {0};
    if (t->fed == t->job->prompt.n) {
        if (t->job->req.max_tokens == 0) complete(s, t, SL_FINISH_LENGTH, -1);
        return;
    }
    if (t->fed < stop) return;
    t->stopped = t->fed;
    if (sluice_prefix_keep(t->session, &e)) end_failed(s, t, e.code, e.text);
}

/* The only busy seat: as much as one call of the engine takes. */
static void feed_prompt_alone(struct sl_sched *s, struct sl_sched_seat *t)
{
    struct sl_serve_job *j = t->job;
    sluice_error e = {0};
    const size_t stop = prompt_stop(t);
    size_t to = stop;
    if (s->o.seats > 1 && to - t->fed > s->chunk) to = t->fed + s->chunk;
    if (!enter_call(s, j)) {
        sl_sched_end_stopped(s, t);
        return;
    }
    show_prompts(s, to - t->fed);
    const int rc = sluice_feed(t->session, j->prompt.v + t->fed, to - t->fed, &e);
    leave_call(s);
    show_prompts(s, 0);
    if (rc) {
        end_failed(s, t, e.code, e.text);
        return;
    }
    note_step(s, 1, to - t->fed);
    t->fed = to;
    advance_prompt(s, t, stop);
}

/* ---------------------------------------------------------------- answers */

/* Passes a token on. False: the job has ended. */
static bool pass_on(struct sl_sched *s, struct sl_sched_seat *t, int32_t id)
{
    struct sl_serve_job *j = t->job;
    struct sl_err err = {0};
    struct sl_serve_token token = {0};
    if (j->req.logprobs)
        sl_serve_logprob(&token, sluice_logits(t->session), sluice_vocab_size(s->p), id,
                         j->req.top_logprobs);
    if (!t->out.n) note_first_token(s, j);
    int rc = sl_ids_push(&t->out, id, &err);
    enum sl_finish finish = SL_FINISH_NONE;
    if (!rc) rc = sl_answer_token(t->answer, id, j->req.logprobs ? &token : NULL, &finish, &err);
    if (rc < 0) {
        end_failed(s, t, rc, err.text);
        return false;
    }
    if (rc == 0 && ((j->req.max_tokens >= 0 && (int64_t)t->out.n >= j->req.max_tokens) ||
                    j->prompt.n + t->out.n > s->ctx)) {
        finish = SL_FINISH_LENGTH;
        rc = 1;
    }
    if (rc) complete(s, t, finish, -1);
    return !rc;
}

/* The next token, to t->next. False: the job has ended. */
static bool pick(struct sl_sched *s, struct sl_sched_seat *t)
{
    sluice_error e = {0};
    const int rc = sluice_pick(t->session, &t->sampling, &t->next, &e);
    if (rc < 0)
        end_failed(s, t, e.code, e.text);
    else if (rc == 1)
        complete(s, t, SL_FINISH_STOP, t->next);
    return !rc && pass_on(s, t, t->next);
}

/* ---------------------------------------------------------------- the step */

/* What may have ended since the last one; false: the seat is idle now. */
static bool still_wanted(struct sl_sched *s, struct sl_sched_seat *t)
{
    struct sl_serve_job *j = t->job;
    if (atomic_load(&j->cancelled)) {
        if (t->begun && t->fed == j->prompt.n)
            keep_turn(s, t); /* who stops an answer often goes on from there */
        sl_sched_end_stopped(s, t);
    } else if (s->o.answer_seconds > 0 && sl_serve_now() - j->started_at > s->o.answer_seconds) {
        end_with(s, t, 200, "timeout", "time_limit",
                 "the answer took longer than the server allows (--answer-timeout)");
    }
    return t->job != NULL;
}

static bool in_prompt(const struct sl_sched_seat *t)
{
    return t->fed < t->job->prompt.n;
}

/* How many ids of prompts the next step beside answers takes. */
static void learn_piece(struct sl_sched *s, double seconds, bool answers, bool prompts)
{
    if (!prompts) {
        s->token_seconds = s->token_seconds > 0 ? 0.8 * s->token_seconds + 0.2 * seconds : seconds;
        return;
    }
    if (!answers) return;
    double most = STEP_TIMES * s->token_seconds;
    if (most < STEP_SECONDS) most = STEP_SECONDS;
    if (seconds > most)
        s->piece = s->piece / 2 > PIECE_LEAST ? s->piece / 2 : PIECE_LEAST;
    else if (s->piece < s->panel)
        s->piece += (s->piece + 1) / 2;
}

/* What may come behind the token picked. Not where log-probabilities are wanted: of a guess that held there
 * are none. */
static void guess(struct sl_sched_seat *t, sluice_part *p)
{
    const struct sl_serve_request *r = &t->job->req;
    if (r->logprobs) return;
    p->guesses = t->guesses;
    p->n_guesses = sluice_guess(t->session, t->next, t->guesses);
    const int64_t left = r->max_tokens - (int64_t)t->out.n;
    if (r->max_tokens >= 0 && (int64_t)p->n_guesses > left) p->n_guesses = (size_t)left;
}

/* One step of the engine for the seats listed: those in a prompt with a piece of it. */
static void step_together(struct sl_sched *s, struct sl_sched_seat *const *seats, int n,
                          int n_prompts)
{
    sluice_part parts[SL_SCHED_SEATS];
    size_t stop[SL_SCHED_SEATS] = {0};
    sluice_error e = {0};
    uint64_t tokens = 0;
    const size_t room = n_prompts == n ? (size_t)s->panel : s->piece;
    const size_t share = room / (size_t)(n_prompts ? n_prompts : 1);
    for (int i = 0; i < n; i++) {
        struct sl_sched_seat *t = seats[i];
        parts[i] = (sluice_part){.session = t->session, .ids = &t->next, .n = 1};
        if (in_prompt(t)) {
            stop[i] = prompt_stop(t);
            const size_t left = stop[i] - t->fed;
            t->piece = left < share ? left : share ? share : 1;
            parts[i].ids = t->job->prompt.v + t->fed;
            parts[i].n = t->piece;
        }
        parts[i].sampling = &t->sampling;
        if (!n_prompts) guess(t, &parts[i]);
        tokens += parts[i].n + parts[i].n_guesses;
    }
    if (!enter_call(s, NULL)) return; /* the thread ends, and the jobs with it */
    show_prompts(s, 0);
    const double start = sl_serve_now();
    const int rc = sluice_step(parts, (size_t)n, &e);
    leave_call(s);
    if (!rc) {
        learn_piece(s, sl_serve_now() - start, n_prompts<n, n_prompts> 0);
        note_step(s, n, tokens);
    }
    for (int i = 0; i < n; i++) {
        struct sl_sched_seat *t = seats[i];
        if (rc) {
            end_failed(s, t, e.code, e.text);
        } else if (in_prompt(t)) {
            t->fed += t->piece;
            advance_prompt(s, t, stop[i]);
        }
        for (size_t k = 0; !rc && t->job && k < parts[i].accepted; k++)
            (void)pass_on(s, t, t->guesses[k]);
    }
}

void sl_sched_step(struct sl_sched *s)
{
    struct sl_sched_seat *busy[SL_SCHED_SEATS];
    int n = 0;
    int n_prompts = 0;
    for (int i = 0; i < s->o.seats; i++) {
        struct sl_sched_seat *t = &s->seat[i];
        if (!t->job || !still_wanted(s, t)) continue;
        if (!t->begun) begin_prompt(s, t);
        if (!t->job) continue;
        if (!in_prompt(t) && !pick(s, t)) continue;
        n_prompts += in_prompt(t);
        busy[n++] = t;
    }
    if (n == 1 && n_prompts == 1)
        feed_prompt_alone(s, busy[0]);
    else if (n)
        step_together(s, busy, n, n_prompts);
}
