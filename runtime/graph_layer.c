/* One layer of a feed on its own (graph.h, sl_graph_layer_place): the same steps over buffers that the
 * caller fills and empties, for passes that finish a layer for many sequences before the next. */
#include <limits.h>
#include <string.h>

#include "runtime/graph_parts.h"

void sl_graph_layer_place(struct sl_graph *g, struct sl_layer_place *out)
{
    *out = (struct sl_layer_place){.stream = g->use.stream,
                                   .rms = g->use.rms,
                                   .n_slots = g->n_slots,
                                   .latent = g->use.moe.latent,
                                   .routes = g->use.moe.routes};
}

/* A chunk of one sequence in view, as a feed would have it at this layer. */
static int enter(struct sl_graph *g, struct sl_state *st, int layer, int n, int n_banked,
                 struct sl_err *err)
{
    if (n < 1 || n > g->use.n_panel)
        return sl_fail(err, SL_E_ARG, NULL, "window", "%d tokens is outside 1 to %d", n,
                       g->use.n_panel);
    g->seq[0] = (struct sl_part){.st = st, .n = n};
    g->n_seqs = 1;
    g->n_chunk = n;
    atomic_store_explicit(&g->bad, INT_MAX, memory_order_relaxed);
    atomic_store_explicit(&g->bad_routes, false, memory_order_relaxed);
    atomic_store_explicit(&g->stopped, false, memory_order_relaxed);
    atomic_store_explicit(&g->failed, false, memory_order_relaxed);
    sl_graph_view(g, 0, n);
    g->l = layer;
    g->layer = &g->m->layers[layer];
    g->n_banked = n_banked;
    return 0;
}

static int leave(struct sl_graph *g, int rc, struct sl_err *err)
{
    return rc ? rc : sl_graph_check(g, g->l, "a sum", err);
}

int sl_graph_layer_begin(struct sl_graph *g, struct sl_state *st, int layer, int n, int *n_banked,
                         struct sl_err *err)
{
    int rc = enter(g, st, layer, n, *n_banked, err);
    if (!rc) rc = leave(g, sl_graph_layer_front(g, err), err);
    *n_banked = g->n_banked;
    return rc;
}

int sl_graph_layer_end(struct sl_graph *g, struct sl_state *st, int layer, int n, int n_banked,
                       const float *weights, const float *outputs, struct sl_err *err)
{
    const size_t pairs = (size_t)n * (size_t)g->c->top_k;
    int rc = enter(g, st, layer, n, n_banked, err);
    if (rc) return rc;
    memcpy(g->moe.weights, weights, pairs * sizeof *weights);
    memcpy(g->moe.out, outputs, pairs * (size_t)g->c->latent_size * sizeof *outputs);
    for (size_t i = 0; i < pairs; i++) g->moe.pair_of[i] = (int)i;
    return leave(g, sl_graph_moe_late(g, err), err);
}
