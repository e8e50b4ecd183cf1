/* Stop strings in a stream: text is let through as soon as it can no longer be part of one.
 *
 * The match that is complete first ends the stream; it and what follows are never shown. Held back is at most the
 * longest end of the text that begins a stop string. Where the text is cut into pieces does not change
 * what comes out in total. */
#ifndef SL_RUNTIME_SERVE_STOP_H
#define SL_RUNTIME_SERVE_STOP_H

#include "runtime/serve_text.h"

struct sl_serve_stop {
    const char *const *stop; /* [n], each 1 byte or more; the caller's */
    int n;
    struct sl_serve_text held;
    bool hit;
};

/* Takes text[len] and moves what may be shown to the end of out. 1: a stop string was met, now or before;
 * 0: go on. A failed allocation shows in held.failed or out->failed. */
int sl_serve_stop_feed(struct sl_serve_stop *s, const char *text, size_t len,
                       struct sl_serve_text *out);
/* The end of the text: what is held was no stop string. */
void sl_serve_stop_end(struct sl_serve_stop *s, struct sl_serve_text *out);
void sl_serve_stop_free(struct sl_serve_stop *s);

#endif
