/* Prefill: who owns which bytes when.
 *
 *   session arena   [ state | graph: one panel | logits | sampler ]           the session's, always
 *   slot arena      [ records ............................................ ]   decode, short prompts
 *                   [ records: a ring and what stays ][ chunk of a prompt ]   while a long chunk runs
 *
 * Both are taken and touched-or-promised at open; nothing grows. The lease of the slots' last bytes begins
 * before the first chunk of a prompt and ends after its last, also when that fails or is interrupted: then
 * the store has all of them again and reads what belongs there (offload/store.h, sweep_end). In between
 * they are the graph's (sl_graph_lend), and nobody else's. How many tokens and bytes is decided by
 * offload/sweep_plan.h from the plan alone, so that a plan says what a run will do. */
#ifndef SL_RUNTIME_ENGINE_PREFILL_H
#define SL_RUNTIME_ENGINE_PREFILL_H

#include "runtime/engine.h"

/* Fills plan->sweep from the rest of the plan, and info.chunk. most: tokens of any chunk. */
void sl_engine_plan_sweeps(const struct sl_pack *pack, uint64_t most, struct sl_engine_plan *plan);

/* Feeds n checked tokens. on_logits (may be NULL) as in sluice.h; without it logits of the last token are
 * left in s->rows. */
int sl_engine_feed(struct sluice_session *s, const int32_t *ids, size_t n,
                   sluice_logits_fn on_logits, void *ctx, struct sl_err *err);

#endif
