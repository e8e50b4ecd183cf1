/* Replies in the API's JSON, streamed or whole, from the deltas of a job.
 *
 * A stream is server-sent events: one chunk a delta, then a chunk with finish_reason, then usage where
 * it was asked for, then [DONE]. The whole reply joins the same deltas. */
#ifndef SL_RUNTIME_SERVE_REPLY_H
#define SL_RUNTIME_SERVE_REPLY_H

#include "runtime/serve_job.h"
#include "runtime/serve_text.h"
#include "runtime/sluice.h"

struct sl_reply_about {
    const sluice_pack *p; /* for the text of tokens */
    const char *model;    /* name as it is served */
};

/* {"error": {message, type, param, code}} */
void sl_reply_error(struct sl_serve_text *out, const struct sl_serve_fault *f);

/* The finished job's reply; deltas: all of them. */
void sl_reply_whole(struct sl_serve_text *out, const struct sl_reply_about *about,
                    const struct sl_serve_job *job, const struct sl_delta *deltas);

/* Events of a stream, in this order: begin, delta ..., end (after the job's end). */
void sl_reply_begin(struct sl_serve_text *out, const struct sl_reply_about *about,
                    const struct sl_serve_job *job);
void sl_reply_delta(struct sl_serve_text *out, const struct sl_reply_about *about,
                    const struct sl_serve_job *job, const struct sl_delta *d);
void sl_reply_end(struct sl_serve_text *out, const struct sl_reply_about *about,
                  const struct sl_serve_job *job);

#endif
