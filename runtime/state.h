/* Everything a sequence carries from token to token (spec 4.1).
 *
 *   KDA layer: S [heads][d][d] f32 (key channel, value channel), conv history [3][k-1][heads*d] f32,
 *              oldest first, projections before SiLU (q, k, v)
 *   MLA layer: rows [ctx][kv_lora + rope] f32: latent after its norm, then the shared key part.
 *              expanded [ctx][n_heads][nope + v] f32 is a cache of W_kvb * latent, rows computed once
 *              per position; NULL when memory is short: then they are recomputed, bits unchanged.
 *
 * Attention residuals live inside one forward call and are not state. */
#ifndef SL_RUNTIME_STATE_H
#define SL_RUNTIME_STATE_H

#include "base/arena.h"
#include "offload/config.h"

struct sl_state {
    const struct sl_config *cfg;
    uint64_t position, ctx;
    float **kda_S;    /* [n_layers], NULL for MLA layers */
    float **kda_conv; /* [n_layers] */
    float **mla_rows; /* [n_layers], NULL for KDA layers */
    float **mla_expanded; /* [n_layers], may be NULL */
};

struct sl_state_bytes { uint64_t kda, conv, mla_rows, mla_expanded, tables; };
void sl_state_price(const struct sl_config *c, uint64_t ctx, bool expanded, struct sl_state_bytes *out);
int sl_state_open(struct sl_state **out, const struct sl_config *c, uint64_t ctx, bool expanded, struct sl_arena *arena, struct sl_err *err);
void sl_state_reset(struct sl_state *s);

#endif
