/* Everything a sequence carries from token to token (spec 4.1).
 *
 *   KDA layer: S [heads][d][d] f32 (key channel, value channel), conv history [3][k-1][heads*d] f32,
 *              oldest first, projections before SiLU (q, k, v)
 *   MLA layer: rows [ctx][kv_lora + rope] f32: latent after its norm, then the shared key part.
 *              expanded: K [n_heads][ctx][nope + rope], then V [n_heads][ctx][v] f32, so that a head's
 *              keys are one matrix. A cache of W_kvb * latent (and the shared key part), filled once a
 *              position; NULL when memory is short: then it is recomputed, bits unchanged.
 *
 * Form of the fast path (SL_STATE_FAST): S is committed at a multiple of 16, and beside it lies the open
 * tile of the tokens since, [heads][3][16][d] (kernels/kda_tile.h). A full tile is committed with the next
 * token, so that a state at any position but 0 has 1 to 16 open rows: which, the position alone says. The
 * convolution history is a ring: the row of position p is p modulo its rows. With SL_STATE_REWIND it is 16
 * rows longer, and tokens of the open tile can be taken back. The two forms are not converted into each
 * other: an exact state has no rows to open a tile with, and a committed one would differ from the exact
 * path's in rounding, which its promise excludes.
 *
 * Attention residuals live inside one forward call and are not state. */
#ifndef SL_RUNTIME_STATE_H
#define SL_RUNTIME_STATE_H

#include "base/arena.h"
#include "kernels/kda_tile.h"
#include "offload/config.h"

/* What a state is made for; a plain `true` is the exact path with the expanded cache. */
enum { SL_STATE_EXPANDED = 1, SL_STATE_FAST = 2, SL_STATE_REWIND = 4 /* with FAST */ };

struct sl_state {
    const struct sl_config *cfg;
    uint64_t position, ctx;
    unsigned form;
    int conv_rows;        /* of the convolution history, a channel group */
    uint64_t oldest;      /* no way back below this position; see sl_state_rollback */
    float **kda_S;        /* [n_layers], NULL for MLA layers */
    float **kda_conv;     /* [n_layers] */
    float **kda_tile;     /* [n_layers]; all NULL in the exact form */
    float **mla_rows;     /* [n_layers], NULL for KDA layers */
    float **mla_expanded; /* [n_layers], may be NULL */
    uint64_t
        n_expanded; /* positions below this are in the expanded cache; the graph fills the rest */
};

/* Bytes a group takes from the arena, exactly; UINT64_MAX where the product does not fit 64 bits. */
struct sl_state_bytes {
    uint64_t kda, conv, mla_rows, mla_expanded, tables;
};
void sl_state_price(const struct sl_config *c, uint64_t ctx, unsigned form,
                    struct sl_state_bytes *out);
/* Empty state at position 0. c must outlive it. SL_E_BUDGET when the arena is too small, SL_E_ARG for
 * a ctx of 0 or beyond 2^31. Freed with the arena. */
int sl_state_open(struct sl_state **out, const struct sl_config *c, uint64_t ctx, unsigned form,
                  struct sl_arena *arena, struct sl_err *err);
void sl_state_reset(struct sl_state *s);

/* Before another sequence's memory is put here: where it stands. Nothing before that can be rolled back to. */
void sl_state_place(struct sl_state *s, uint64_t position);

/* Takes back the last n tokens, as if they had never been fed, bit for bit. Only those of the open tile:
 * SL_E_ARG when n is more than sl_state_rollback_room(), which is 0 without SL_STATE_REWIND. Moves no
 * data. */
int sl_state_rollback(struct sl_state *s, uint64_t n, struct sl_err *err);
uint64_t sl_state_rollback_room(const struct sl_state *s);
/* Tokens that may be fed now and all but the first taken back again: those to the end of the tile. */
uint64_t sl_state_rewind_span(const struct sl_state *s);

/* Rows of the open tile at a position. */
static inline int sl_state_tile_rows(uint64_t position)
{
    return position ? (int)((position - 1) % SL_KDA_TILE) + 1 : 0;
}
/* Where the ring keeps position p (p + the ring's rows for those before the sequence, p < 0). */
static inline int sl_state_conv_slot(const struct sl_state *s, uint64_t p)
{
    return (int)(p % (uint64_t)s->conv_rows);
}

/* Calls fn for every piece of memory that defines the sequence at s->position, in one fixed order (by
 * layer: S, conv and rows of the open tile; or the rows of [0, position)), so that a state can be
 * compared, saved and restored. Who restores calls sl_state_place first (the expanded cache is derived,
 * and refilled). A non-zero return of fn stops and is returned. */
int sl_state_each(struct sl_state *s, int (*fn)(void *ctx, void *data, uint64_t bytes), void *ctx);

/* The same in two parts, for stores that share rows: what is of one size at any position (S, conv and the
 * whole tile of each KDA layer), and the rows of positions [from, to), to <= ctx, of each MLA layer. Bytes of the
 * first, and of one position of the second, over all layers. */
int sl_state_each_recurrent(struct sl_state *s, int (*fn)(void *ctx, void *data, uint64_t bytes),
                            void *ctx);
int sl_state_each_row(struct sl_state *s, uint64_t from, uint64_t to,
                      int (*fn)(void *ctx, void *data, uint64_t bytes), void *ctx);
uint64_t sl_state_recurrent_bytes(const struct sl_config *c, unsigned form);
uint64_t sl_state_row_bytes(const struct sl_config *c);

#endif
