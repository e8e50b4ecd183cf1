/* A recorded trace against a cache of n slots: what the store would have hit, and what nobody could beat.
 *
 * Steps are those of the engine: records of one layer that follow each other (one in decode, a chunk's
 * in prefill) are one request for their distinct experts in id order; hits first, misses in order, and
 * nothing is evicted that the same request needs. The policies are the store's own code (evict.h), so in
 * decode without look-ahead its counters and a replay agree exactly. "belady" evicts what is asked for
 * again last: with the whole trace known, the best there is. */
#ifndef SL_OFFLOAD_TRACE_REPLAY_H
#define SL_OFFLOAD_TRACE_REPLAY_H

#include "offload/trace.h"

#define SL_REPLAY_BEST "belady"

/* The requests of a trace, made once and replayed often. */
struct sl_replay;
int sl_replay_open(struct sl_replay **out, const struct sl_trace *t, struct sl_err *err);
void sl_replay_close(struct sl_replay *r);              /* NULL is fine */
uint64_t sl_replay_requests(const struct sl_replay *r); /* experts asked for, all steps together */
uint64_t sl_replay_distinct(const struct sl_replay *r); /* (layer, expert) pairs ever asked for */
uint64_t sl_replay_largest(const struct sl_replay *r);  /* experts of the largest step */

/* policy: a name of evict.h, NULL for the default, or SL_REPLAY_BEST. Steps larger than n_slots are
 * asked for in parts, as the engine does. hits + misses = requests. SL_E_ARG, SL_E_NOMEM. */
int sl_replay_run(const struct sl_replay *r, const char *policy, uint32_t n_slots, uint64_t *hits,
                  struct sl_err *err);

#endif
