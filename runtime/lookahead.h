/* Look-ahead: the router of the next layer run early, to read its likely experts before they are asked
 * for (design section 6).
 *
 * After a layer's own experts are requested, and before they are computed, the next layer's FFN mix and
 * norm are applied to the stream as it is then, and its router is run on that: of the states that are
 * known so early this one names best (docs/results/lookahead.md). With PACK/calib/lookahead.stats the
 * router is replaced by the map that calibration fitted: a product of the same size, so it costs nothing
 * more. The best few go to sl_store_prefetch. In decode only: in prefill nearly all experts are read
 * anyway. What is named changes what is resident, never a bit of the result.
 *
 * File (docs/formats/stats.md): a statistics container with the sections `lookahead` and, for every layer
 * whose next layer has experts, L###.ahead (bf16 [n_experts][hidden]) and L###.ahead_bias (f32). */
#ifndef SL_RUNTIME_LOOKAHEAD_H
#define SL_RUNTIME_LOOKAHEAD_H

#include "base/arena.h"
#include "runtime/model.h"

#define SL_LOOKAHEAD_MAX  64 /* experts named a layer, at most */
#define SL_LOOKAHEAD_FILE "calib/lookahead.stats"

/* z = w x + bias: router scores of the next layer before the sigmoid. */
struct sl_ahead_map {
    struct sl_mat w; /* codes NULL: no map */
    const float *bias;
};

/* Whether layer l can name experts of the next. */
static inline bool sl_ahead_has(const struct sl_config *c, int l)
{
    return l + 1 < c->n_layers && sl_config_is_moe(c, l + 1);
}

/* Bytes that sl_ahead_maps_open takes from the arena; 0 when the pack has no maps. */
uint64_t sl_ahead_maps_bytes(const struct sl_pack *p);
/* *maps [n_layers], NULL when the pack has none. SL_E_PACK: the file is damaged or another model's. */
int sl_ahead_maps_open(const struct sl_ahead_map **maps, const struct sl_pack *p,
                       struct sl_arena *arena, struct sl_err *err);
/* Writes them; w of each map that there is holds bf16. */
int sl_ahead_maps_save(const struct sl_ahead_map *maps, const struct sl_config *c,
                       const char *source_sha256, const char *path, struct sl_err *err);

/* Named: experts predicted. Right: those that the router chose then. Queued: those whose reads were
 * queued; the others were resident, or no slot was free. What the reads brought: sl_store_stats. */
struct sl_lookahead_stats {
    uint64_t named, right, queued;
};

struct sl_lookahead {
    const struct sl_model *m;
    const struct sl_ahead_map *maps; /* NULL: plain routers */
    int n;                           /* experts named a layer */
    float *x;                        /* [hidden] */
    float *scores;                   /* [n_experts] */
    int ids[SL_LOOKAHEAD_MAX];       /* of `layer`, best first */
    int layer, n_named;
    struct sl_lookahead_stats stats;
};
uint64_t sl_lookahead_bytes(const struct sl_config *c);
/* All from the arena, which outlives it. 1 <= n <= SL_LOOKAHEAD_MAX. */
int sl_lookahead_open(struct sl_lookahead **out, const struct sl_model *m,
                      const struct sl_ahead_map *maps, int n, struct sl_arena *arena,
                      struct sl_err *err);

struct sl_graph;
/* From here on single tokens name experts of coming layers; NULL: no more. */
void sl_graph_look_ahead(struct sl_graph *g, struct sl_lookahead *la);

#endif
