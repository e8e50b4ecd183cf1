/* Inside of the scheduler: its seats, and what serve_sched.c (queue, thread, figures) and serve_step.c (jobs
 * and the engine) have in common. */
#ifndef SL_RUNTIME_SERVE_SCHED_PARTS_H
#define SL_RUNTIME_SERVE_SCHED_PARTS_H

#include "runtime/serve_answer.h"
#include "runtime/serve_sched.h"

struct sl_sched_seat {
    sluice_session *session;
    struct sl_serve_job *job; /* NULL: idle */
    struct sl_answer *answer;
    sluice_sampling sampling;
    bool begun;     /* the prompt's start was looked for */
    size_t fed;     /* ids of the prompt that are in */
    size_t stopped; /* of these, where a state was kept last */
    struct sl_ids out;
    struct sl_serve_usage usage;
    double idle_since;
    /* the step in progress */
    int32_t next; /* the token picked */
    size_t piece; /* ids of the prompt */
    int32_t guesses[SLUICE_MAX_GUESSES];
};

struct sl_sched {
    sluice_pack *p;
    struct sl_sched_opts o;
    struct sl_sched_seat seat[SL_SCHED_SEATS];
    int n_open; /* sessions */
    uint64_t ctx, chunk, panel;
    pthread_t thread;
    bool started;
    double published;
    size_t piece;         /* ids of prompts in a step beside answers */
    double token_seconds; /* of a step without prompts, lately; 0: none yet */

    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t work;
    bool stopping;
    struct sl_serve_job *first, **last; /* the queue */
    struct sl_serve_job *in_call;       /* whose long engine call is in progress */
    bool interrupted;                   /* that call was told to end */
    double mean_seconds;                /* of a job on its seat, lately */
    size_t alone;                       /* ids that the only prompt is being fed, 0: none */
    struct sl_sched_info info;
};

/* serve_sched.c */
void sl_sched_count(struct sl_sched_histogram *h, double seconds); /* the lock is held */
void sl_sched_publish(struct sl_sched *s, bool now);
void sl_sched_fault(struct sl_serve_fault *f, bool stopping);

/* serve_step.c: puts a job on an idle seat; ends it there; takes one step of all busy seats. */
void sl_sched_start(struct sl_sched *s, struct sl_sched_seat *t, struct sl_serve_job *j);
void sl_sched_end_stopped(struct sl_sched *s, struct sl_sched_seat *t);
void sl_sched_step(struct sl_sched *s);

#endif
