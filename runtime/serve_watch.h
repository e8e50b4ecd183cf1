/* Connections under watch: who has gone, who is too slow.
 *
 * The HTTP library tells of a lost client only when it next writes to it; a request that waits or
 * computes would go on for nobody. So one thread polls the sockets of waiting requests for a hang-up
 * and calls back at once. A client that closes its sending half counts as gone.
 *
 * The same thread ends connections that pass their deadline: one rule for those that dawdle over a
 * request, idle between two, or stop reading an answer.
 *
 * Threads: all functions may be called from any; the callback runs with the watch locked and must not
 * call it. The watch keeps descriptors of its own (dup), so that a number reused by somebody else is
 * never shut down. */
#ifndef SL_RUNTIME_SERVE_WATCH_H
#define SL_RUNTIME_SERVE_WATCH_H

#include "base/err.h"

struct sl_watch;
struct sl_watch_conn;

int sl_watch_open(struct sl_watch **out, void (*on_gone)(void *ctx, void *what), void *ctx,
                  struct sl_err *err);
void sl_watch_close(struct sl_watch *w); /* after the last connection was removed; NULL is fine */

/* NULL: no memory or descriptors. seconds: first deadline, 0: none. */
struct sl_watch_conn *sl_watch_add(struct sl_watch *w, int fd, double seconds);
void sl_watch_remove(struct sl_watch *w, struct sl_watch_conn *c); /* c NULL is fine */

/* Ends the connection unless the deadline is moved within so many seconds; 0: no deadline. */
void sl_watch_deadline(struct sl_watch *w, struct sl_watch_conn *c, double seconds);
/* While `what` is set, a hang-up calls on_gone(ctx, what), once. NULL ends that; after the return no
 * call is in progress. */
void sl_watch_set(struct sl_watch *w, struct sl_watch_conn *c, void *what);
int sl_watch_count(struct sl_watch *w);

#endif
