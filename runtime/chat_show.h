/* An answer on its way to a person: content plain, thinking dimmed or left out, calls on lines of their
 * own. On a terminal control characters of the model become '?' (a model must not drive a terminal). */
#ifndef SL_RUNTIME_CHAT_SHOW_H
#define SL_RUNTIME_CHAT_SHOW_H

#include "runtime/chat_parse.h"

struct sl_show {
    bool terminal;
    bool thinking;     /* show it */
    struct sl_err err; /* of the event function: it returns err.code */
    /* private: start from 0 */
    bool dim;  /* the terminal is switched to it */
    bool said; /* something was shown of this answer */
    char last; /* last byte shown */
};

/* An sl_chat_event_fn whose ctx is a struct sl_show. */
int sl_show_event(void *ctx, const struct sl_chat_event *e);
/* The end of an answer: colours off, a newline. */
int sl_show_end(struct sl_show *s);

#endif
