/* Everything a sequence carries from token to token (spec 4.1).
 *
 *   KDA layer: S [heads][d][d] f32 (key channel, value channel), conv history [3][k-1][heads*d] f32,
 *              oldest first, projections before SiLU (q, k, v)
 *   MLA layer: rows [ctx][kv_lora + rope] f32: latent after its norm, then the shared key part.
 *              expanded: K [n_heads][ctx][nope + rope], then V [n_heads][ctx][v] f32, so that a head's
 *              keys are one matrix. A cache of W_kvb * latent (and the shared key part), filled once a
 *              position; NULL when memory is short: then it is recomputed, bits unchanged.
 *
 * Attention residuals live inside one forward call and are not state. */
#ifndef SL_RUNTIME_STATE_H
#define SL_RUNTIME_STATE_H

#include "base/arena.h"
#include "offload/config.h"

struct sl_state {
    const struct sl_config *cfg;
    uint64_t position, ctx;
    float **kda_S;        /* [n_layers], NULL for MLA layers */
    float **kda_conv;     /* [n_layers] */
    float **mla_rows;     /* [n_layers], NULL for KDA layers */
    float **mla_expanded; /* [n_layers], may be NULL */
    uint64_t
        n_expanded; /* positions below this are in the expanded cache; the graph fills the rest */
};

/* Bytes a group takes from the arena, exactly; UINT64_MAX where the product does not fit 64 bits. */
struct sl_state_bytes {
    uint64_t kda, conv, mla_rows, mla_expanded, tables;
};
void sl_state_price(const struct sl_config *c, uint64_t ctx, bool expanded,
                    struct sl_state_bytes *out);
/* Empty state at position 0. c must outlive it. SL_E_BUDGET when the arena is too small, SL_E_ARG for
 * a ctx of 0 or beyond 2^31. Freed with the arena. */
int sl_state_open(struct sl_state **out, const struct sl_config *c, uint64_t ctx, bool expanded,
                  struct sl_arena *arena, struct sl_err *err);
void sl_state_reset(struct sl_state *s);

/* Calls fn for every piece of memory that defines the sequence at s->position, in one fixed order (by
 * layer: S, conv; or the rows of [0, position)), so that a state can be compared, saved and restored.
 * Who restores sets position first and n_expanded to 0: the cache is derived. A non-zero return of fn
 * stops and is returned. */
int sl_state_each(struct sl_state *s, int (*fn)(void *ctx, void *data, uint64_t bytes), void *ctx);

/* The same in two parts, for stores that share rows: what is of one size at any position (S and conv of
 * each KDA layer), and the rows of positions [from, to), to <= ctx, of each MLA layer. Bytes of the
 * first, and of one position of the second, over all layers. */
int sl_state_each_recurrent(struct sl_state *s, int (*fn)(void *ctx, void *data, uint64_t bytes),
                            void *ctx);
int sl_state_each_row(struct sl_state *s, uint64_t from, uint64_t to,
                      int (*fn)(void *ctx, void *data, uint64_t bytes), void *ctx);
uint64_t sl_state_recurrent_bytes(const struct sl_config *c);
uint64_t sl_state_row_bytes(const struct sl_config *c);

#endif
