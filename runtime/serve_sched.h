/* The scheduler: a bounded queue of jobs in front of one engine.
 *
 *   submit -> [ queue, first come first served ] -> seats (a session each) -> deltas
 *
 * One thread owns all sessions, which are sequences of one engine, and takes one step after the other:
 * a token of every answer and pieces of prompts, all in one pass over the weights (serve_step.c). On the
 * exact path what a step computes for a seat does not depend on the others, so answers do not either.
 *
 * Reuse: a prompt goes to the idle seat that already stands at the longest start of it, and from there
 * sluice_prompt() looks further.
 *
 * Cancel: for a step a flag is enough. In a prompt that is computed alone the process-wide interrupt ends
 * the engine's call within a layer; it is cleared before the next call, so only that request feels it.
 *
 * Threads: everything may be called from any thread, open and close once. */
#ifndef SL_RUNTIME_SERVE_SCHED_H
#define SL_RUNTIME_SERVE_SCHED_H

#include "runtime/chat_format.h"
#include "runtime/chat_turns.h"
#include "runtime/serve_job.h"
#include "runtime/sluice.h"

#define SL_SCHED_SEATS SLUICE_MAX_SEATS

struct sl_sched_opts {
    int seats;                           /* 1 to SL_SCHED_SEATS */
    int queue;                           /* jobs waiting at most, 0 or more */
    double answer_seconds;               /* of one answer, from its first step; 0: no limit */
    const struct sl_chat_format *format; /* NULL: completions only */
    struct sl_chat_turns *turns;         /* may be NULL */
};

/* Upper bounds in seconds of the histogram's bins; the last one has none. */
#define SL_SCHED_BINS 9
extern const double sl_sched_bounds[SL_SCHED_BINS];
struct sl_sched_histogram {
    uint64_t n[SL_SCHED_BINS + 1];
    double sum;
};

/* What /stats and /metrics tell; counters only grow. */
struct sl_sched_info {
    int seats, running, queued, queue_max;
    uint64_t finished, failed, cancelled, refused; /* requests; refused: the queue was full */
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    struct sl_sched_histogram first_token, whole; /* seconds since the request was queued */
    uint64_t steps[SL_SCHED_SEATS];               /* of the engine, by sequences in them, from 1 */
    uint64_t step_tokens;
    struct {
        uint64_t tokens, done; /* done: computed, or found */
    } prompts[SL_SCHED_SEATS]; /* in progress */
    int n_prompts;
    sluice_plan_info plan;
    sluice_stats engine;
    sluice_prefix_stats prefix; /* of the pack's store */
};

struct sl_sched;
/* Opens the sessions (opts of the engine as given to sluice_pack_open) and starts the thread. */
int sl_sched_open(struct sl_sched **out, sluice_pack *p, const sluice_options *engine,
                  const struct sl_sched_opts *o, sluice_error *error);
/* Cancels everything, waits for the thread, closes the sessions. NULL is fine. */
void sl_sched_close(struct sl_sched *s);
/* Ends all jobs with "shutting_down" and takes no more; returns at once. */
void sl_sched_stop(struct sl_sched *s);

/* 0: taken (with a reference of its own). 1: the queue is full, *retry_seconds is a guess at when it is
 * not. -1: shutting down. */
int sl_sched_submit(struct sl_sched *s, struct sl_serve_job *j, int *retry_seconds);
/* The client is gone. The job ends soon; the caller keeps its reference. */
void sl_sched_cancel(struct sl_sched *s, struct sl_serve_job *j);

uint64_t sl_sched_ctx(const struct sl_sched *s);
void sl_sched_get_info(struct sl_sched *s, struct sl_sched_info *out);
/* For statistics at the end, after sl_sched_stop(). */
sluice_session *sl_sched_join(struct sl_sched *s);

#endif
