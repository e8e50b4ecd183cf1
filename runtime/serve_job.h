/* One request on its way through the server: what the connection's thread and the engine's thread share.
 *
 *   connection thread                          scheduler thread
 *     create, submit  ------- queue ------->     start: restore, feed, pick
 *     wait, take deltas <---- deltas --------    append
 *     cancel (client gone) -- flag --------->    looks between two tokens; an engine call is interrupted
 *     put                                        put
 *
 * A delta is a piece of the answer: some text of one channel, in whole UTF-8 characters. Both kinds of
 * reply, streamed or not, are written from the same deltas, so they cannot differ. The list is bounded
 * by the context's length, so a slow reader costs memory, never the engine's time.
 *
 * Threads: fields above the line are set before submit and only read after; those below are guarded by
 * `lock`, but for the flag. Freed with the last of two references. */
#ifndef SL_RUNTIME_SERVE_JOB_H
#define SL_RUNTIME_SERVE_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "runtime/serve_request.h"
#include "runtime/tokenizer.h"

enum sl_delta_kind {
    SL_DELTA_REASONING,
    SL_DELTA_CONTENT, /* the text of a completion, too */
    SL_DELTA_CALL,    /* a tool call begins: text is the tool's name */
    SL_DELTA_ARGS     /* more of its arguments, JSON text */
};

struct sl_serve_logprob {
    int32_t id;
    float logprob;
};
/* A token of the visible text: itself, then the n_top most likely ones. */
struct sl_serve_token {
    uint64_t at, at_char; /* byte and character of the text at which it begins */
    int n_top;
    struct sl_serve_logprob self, top[SL_SERVE_TOP_LOGPROBS];
};

struct sl_delta {
    struct sl_delta *next;
    enum sl_delta_kind kind;
    int call; /* of CALL and ARGS, from 0 */
    struct sl_serve_token *tokens;
    size_t n_tokens;
    size_t len;
    char text[];
};

enum sl_finish {
    SL_FINISH_NONE,
    SL_FINISH_STOP,   /* end token or stop string */
    SL_FINISH_LENGTH, /* max_tokens, or the context is full */
    SL_FINISH_CALLS,  /* "tool_calls" */
    SL_FINISH_ERROR   /* the answer is not what was asked for; fault says why */
};

struct sl_serve_usage {
    uint64_t prompt, cached, completion, reasoning; /* tokens; cached <= prompt */
};

enum sl_job_state { SL_JOB_QUEUED, SL_JOB_RUNNING, SL_JOB_DONE };

struct sl_serve_job {
    struct sl_serve_request req;
    struct sl_ids prompt;
    struct sl_serve_prompt *chat; /* how the prompt was made, for reuse; NULL: a completion */
    bool thinking;                /* the generation prompt opened the reasoning channel */
    char id[40];                  /* "chatcmpl-..." */
    int64_t created;              /* seconds of the epoch */
    /* ---- */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int refs;
    atomic_bool cancelled;
    enum sl_job_state state;
    struct sl_delta *first, **last;
    enum sl_finish finish;
    struct sl_serve_usage usage;
    struct sl_serve_fault fault;           /* status 0: none */
    double queued_at, started_at, done_at; /* monotonic seconds */
    struct sl_serve_job *next;             /* in the queue; of the scheduler */
};

/* One reference, state QUEUED; takes the request over. NULL: no memory, the request stays the caller's. */
struct sl_serve_job *sl_job_new(struct sl_serve_request *req);
void sl_job_ref(struct sl_serve_job *j);
void sl_job_put(struct sl_serve_job *j); /* NULL is fine */

/* Appends; takes d over. */
struct sl_delta *sl_delta_new(enum sl_delta_kind kind, int call, const char *text, size_t len);
void sl_delta_free(struct sl_delta *d);
void sl_job_append(struct sl_serve_job *j, struct sl_delta *d);
/* Ends the job; fault may be NULL. The second end of a job is ignored. */
void sl_job_finish(struct sl_serve_job *j, enum sl_finish finish,
                   const struct sl_serve_fault *fault);

/* Waits until there are deltas, or the job is done (*done), or so many seconds have passed (NULL and not
 * done). The caller frees the list. */
struct sl_delta *sl_job_take(struct sl_serve_job *j, double seconds, bool *done);
void sl_job_wait_done(struct sl_serve_job *j);

double sl_serve_now(void); /* monotonic seconds */

#endif
