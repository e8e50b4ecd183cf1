/* A request's prompt as ids: chat messages through the chat format, completions through the tokenizer.
 *
 * Runs in the connection's thread: long texts are tokenized beside the engine, not in front of it.
 * Turns that this server generated keep their ids (chat_turns.h), so that history sent back as text
 * matches what the session was fed. */
#ifndef SL_RUNTIME_SERVE_PROMPT_H
#define SL_RUNTIME_SERVE_PROMPT_H

#include "runtime/chat_format.h"
#include "runtime/chat_turns.h"
#include "runtime/serve_job.h"

/* What rendering a chat left for later: where states are worth keeping. */
struct sl_serve_prompt {
    size_t *marks;
    size_t n_marks;
};
void sl_serve_prompt_free(struct sl_serve_prompt *p); /* NULL is fine */

struct sl_serve_model {
    const sluice_pack *p;
    const struct sl_chat_format *format; /* NULL: this model's vocabulary has no chat markup */
    struct sl_chat_turns *turns;         /* may be NULL */
    uint64_t ctx;                        /* positions of a session */
    const char *name;                    /* as it is served */
};

/* Fills job->prompt, ->chat and ->thinking. body[len] is what the request was parsed from. 0, or -1 and
 * *f: a field that the chat format refuses, a prompt longer than the context. */
int sl_serve_prompt_build(struct sl_serve_job *job, const struct sl_serve_model *m,
                          const char *body, size_t len, struct sl_serve_fault *f);

#endif
