/* Which slot goes next: eviction policies behind one small interface.
 *
 *   lrfu   (default) the slot whose key has the least recent use: every request adds to a key's score,
 *          old ones fade, and the score outlives the slot
 *   lru    the slot asked for longest ago
 *
 * A policy sees slots and keys (layer and expert in one number), never bytes. It is told of every
 * request in the order the engine makes them, so its decisions are a function of the requests alone,
 * never of timing. `sluice replay` runs this code on recorded traces. One thread at a time. */
#ifndef SL_OFFLOAD_EVICT_H
#define SL_OFFLOAD_EVICT_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

#define SL_EVICT_NONE UINT32_MAX

struct sl_evict;

/* Names of the policies, NULL at the end; the first is the default. */
extern const char *const sl_evict_names[];

/* name NULL: the default. Keys are below n_keys. SL_E_ARG names an unknown one. */
int sl_evict_open(struct sl_evict **out, const char *name, uint32_t n_slots, uint64_t n_keys,
                  struct sl_err *err);
void sl_evict_close(struct sl_evict *e); /* NULL is fine */
/* What a policy takes at most, for planners. */
uint64_t sl_evict_bytes(uint64_t n_slots, uint64_t n_keys);

/* slot holds `key` from now on (it was empty, or held it already) and is asked for now. */
void sl_evict_use(struct sl_evict *e, uint32_t slot, uint64_t key);
/* slot holds `key` from now on, though nobody has asked for it yet. */
void sl_evict_put(struct sl_evict *e, uint32_t slot, uint64_t key);
/* slot is empty now; the policy may remember the key. */
void sl_evict_drop(struct sl_evict *e, uint32_t slot);
/* How much the policy thinks of a key now, 1 for one use just made, fading by half in half_life requests
 * (sums of both for several uses). A policy that does not score says 0; the half-life then is a guess. */
double sl_evict_score(const struct sl_evict *e, uint64_t key);
double sl_evict_half_life(const struct sl_evict *e);
/* The slot to give up, among those with may(ctx, slot); SL_EVICT_NONE when there is none. The slot
 * stays known until sl_evict_drop. */
uint32_t sl_evict_victim(const struct sl_evict *e, bool (*may)(void *ctx, uint32_t slot),
                         void *ctx);

#endif
