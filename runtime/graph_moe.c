/* FFN sublayers (spec 3.5): the dense one, and the latent mixture of experts.
 *
 *   panel   region 1   rows     router logits and the latent input
 *           region 2   tokens   sigmoid, choice of top_k, weights
 *   chunk   ...        experts  graph_experts.c: one output row a (token, expert) pair
 *   panel   region 3   tokens   weighted sum in router order, norm of the AGGREGATE
 *           region 4   rows     up projection, shared experts added, stream updated
 *
 * Pairs are grouped by expert, so that an expert is read once a chunk and used for all its tokens. The
 * sum is taken in the order of the router's ranks: neither the order in which experts arrive nor the
 * other tokens of the chunk can change it. The bias takes part in the choice only, never in the
 * weights; a tie goes to the lower id. */
#include <math.h>
#include <string.h>

#include "runtime/graph_parts.h"

void sl_graph_dense(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_ffn_weights *w = &g->layer->ffn;
    sl_graph_name_ahead(g);
    g->segs[0] = (struct sl_seg){.w = &w->gate,
                                 .w2 = &w->up,
                                 .x = g->x,
                                 .ldx = (size_t)c->hidden_size,
                                 .y = g->dense.hidden[0],
                                 .y2 = g->dense.hidden[1],
                                 .ldy = (size_t)c->intermediate_size,
                                 .n_tok = g->n,
                                 .post = SL_POST_SITU};
    sl_graph_mul(g, g->segs, 1);
    g->segs[0] = (struct sl_seg){.w = &w->down,
                                 .x = g->dense.hidden[0],
                                 .ldx = (size_t)c->intermediate_size,
                                 .y = g->y,
                                 .ldy = (size_t)c->hidden_size,
                                 .n_tok = g->n,
                                 .post = SL_POST_RESID};
    sl_graph_mul(g, g->segs, 1);
}

/* The best of n entries so far, best first; equal keys keep the order in which they came. */
struct best {
    int *ids;
    float keys[1 + 1024]; /* top_k + 1 at most */
    int n, max;
};

static void offer(struct best *b, int id, float key)
{
    int at = b->n;
    while (at > 0 && b->keys[at - 1] < key) at--;
    if (at == b->max) return;
    if (b->n < b->max) b->n++;
    for (int i = b->n - 1; i > at; i--) {
        b->keys[i] = b->keys[i - 1];
        b->ids[i] = b->ids[i - 1];
    }
    b->keys[at] = key;
    b->ids[at] = id;
}

static void weigh(const struct sl_config *c, const float *scores, const int *ids, float *weights)
{
    const int k = c->top_k;
    float sum = 0.0f;
    for (int j = 0; j < k; j++) {
        weights[j] = scores[ids[j]];
        sum += weights[j];
    }
    const float scale = (float)c->routed_scaling_factor;
    for (int j = 0; j < k; j++) {
        if (c->renormalize && k > 1) weights[j] /= sum + 1e-20f;
        weights[j] *= scale;
    }
}

/* Ids from outside into chosen; false: none for this token. What cannot be is noted and replaced. */
static bool forced(struct sl_graph *g, int tok, int *chosen)
{
    const int k = g->c->top_k;
    if (!g->routes_fn || !g->routes_fn(g->routes_ctx, g->l, sl_graph_position(g, tok), chosen))
        return false;
    for (int j = 0; j < k; j++) {
        bool ok = chosen[j] >= 0 && chosen[j] < g->c->n_experts;
        for (int i = 0; i < j; i++) ok &= chosen[i] != chosen[j];
        if (ok) continue;
        atomic_store_explicit(&g->bad_routes, true, memory_order_relaxed);
        return false;
    }
    return true;
}

static void route_token(struct sl_graph *g, int tok, int *chosen)
{
    const struct sl_config *c = g->c;
    const struct sl_moe_bufs *b = &g->moe;
    const int k = c->top_k;
    float *scores = b->scores + (size_t)tok * (size_t)c->n_experts;
    bool bad = false;
    for (int e = 0; e < c->n_experts; e++) bad |= !isfinite(scores[e]);
    if (bad) sl_graph_note_bad(g, tok);
    g->k.sigmoid(scores, scores, c->n_experts);
    float margin = 0.0f;
    if (!forced(g, tok, chosen)) {
        /* One more than needed: its distance is the margin of the choice. */
        struct best best = {.ids = chosen, .max = k < c->n_experts ? k + 1 : k};
        const float *bias = g->layer->router_bias;
        for (int e = 0; e < c->n_experts; e++) offer(&best, e, scores[e] + bias[e]);
        margin = best.n > k ? best.keys[k - 1] - best.keys[k] : INFINITY;
    }
    int *ids = b->ids + (size_t)tok * (size_t)k;
    float *weights = b->weights + (size_t)tok * (size_t)k;
    memcpy(ids, chosen, sizeof(int) * (size_t)k);
    weigh(c, scores, ids, weights);
    b->routes[tok] =
        (struct sl_route){.ids = ids, .weights = weights, .margin = margin, .scores = scores};
}

static void route_task(void *ctx, int task, int worker)
{
    struct sl_graph *g = ctx;
    int *chosen = (int *)sl_graph_scratch(g, worker);
    const int to = (task + 1) * SL_GRAPH_TOKENS < g->n ? (task + 1) * SL_GRAPH_TOKENS : g->n;
    for (int t = task * SL_GRAPH_TOKENS; t < to; t++) route_token(g, t, chosen);
}

/* Counting sort of the chunk's pairs by expert, those of the ranks read whole first. Returns the number
 * of distinct experts. */
static int group_pairs(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_moe_bufs *b = &g->moe;
    const int n_pairs = g->n * c->top_k;
    const int ranks = sl_graph_ranks(g, g->l);
    memset(b->first, 0, sizeof(int) * ((size_t)c->n_experts + 1));
    memset(b->base_row, 0, sizeof(int) * (size_t)c->n_experts);
    for (int i = 0; i < n_pairs; i++) {
        b->first[b->ids[i] + 1]++;
        b->base_row[b->ids[i]] += i % c->top_k < ranks;
    }
    int n_wanted = 0;
    for (int e = 0; e < c->n_experts; e++) {
        if (b->first[e + 1]) {
            b->whole[n_wanted] = b->base_row[e] > 0;
            b->wanted[n_wanted++] = e;
        }
        b->first[e + 1] += b->first[e];
        b->cursor[e] = b->base_row[e] += b->first[e];
    }
    for (int i = n_pairs - 1; i >= 0; i--) { /* backwards, so that the whole ones end at first[e] */
        const int e = b->ids[i];
        if (i % c->top_k < ranks) b->pair_of[i] = --b->cursor[e];
    }
    memcpy(b->cursor, b->base_row, sizeof(int) * (size_t)c->n_experts);
    for (int i = 0; i < n_pairs; i++) {
        const int e = b->ids[i];
        if (i % c->top_k >= ranks) b->pair_of[i] = b->cursor[e]++;
        b->token_of[b->pair_of[i]] = i / c->top_k;
    }
    return n_wanted;
}

/* Bits of (layer, position, rank, 64 entries): a fixed scramble, nothing is drawn. */
static uint64_t signs(int layer, uint64_t position, int rank, int part)
{
    uint64_t z = (position << 20 ^ (uint64_t)layer << 10 ^ (uint64_t)rank << 4) +
                 (uint64_t)(part + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void move_row(const struct sl_graph *g, int tok, int rank, float *row)
{
    const int n = g->c->latent_size;
    float sum = 0;
    for (int i = 0; i < n; i++) sum += row[i] * row[i];
    const float by = g->moved_eps * sqrtf(sum / (float)n);
    for (int i = 0; i < n; i += 64) {
        const uint64_t s = signs(g->l, sl_graph_position(g, tok), rank, i / 64);
        for (int j = 0; j < 64 && i + j < n; j++) row[i + j] += s >> j & 1 ? by : -by;
    }
}

static void sum_task(void *ctx, int task, int worker)
{
    (void)worker;
    struct sl_graph *g = ctx;
    const struct sl_config *c = g->c;
    const struct sl_moe_bufs *b = &g->moe;
    const size_t latent = (size_t)c->latent_size;
    const int to = (task + 1) * SL_GRAPH_TOKENS < g->n ? (task + 1) * SL_GRAPH_TOKENS : g->n;
    for (int t = task * SL_GRAPH_TOKENS; t < to; t++) {
        float *sum = b->latent + (size_t)t * latent;
        memset(sum, 0, sizeof(float) * latent);
        for (int j = 0; j < c->top_k; j++) {
            const int i = t * c->top_k + j;
            if (g->moved_eps > 0 && g->moved_layer == g->l)
                move_row(g, t, j, b->out + (size_t)b->pair_of[i] * latent);
            g->k.axpy(sum, b->weights[i], b->out + (size_t)b->pair_of[i] * latent, c->latent_size);
        }
        if (c->latent_norm)
            g->k.rmsnorm(sum, sum, g->layer->latent_norm, c->latent_size, (float)c->rms_norm_eps);
    }
}

static void project_in(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_seg in = {.x = g->x, .ldx = (size_t)c->hidden_size, .n_tok = g->n};
    g->segs[0] = in;
    g->segs[0].w = &g->layer->latent_down;
    g->segs[0].y = g->moe.latent;
    g->segs[0].ldy = (size_t)c->latent_size;
    g->segs[1] = in;
    g->segs[1].w = &g->layer->router;
    g->segs[1].y = g->moe.scores;
    g->segs[1].ldy = (size_t)c->n_experts;
    sl_graph_mul(g, g->segs, 2);
}

/* For the store, which learns of them when the chunk is done (store.h). */
static void keep_routes(struct sl_graph *g)
{
    const size_t k = (size_t)g->c->top_k;
    uint16_t *to = g->use.kept + ((size_t)g->l * (size_t)g->n_chunk + (size_t)g->at) * k;
    for (size_t i = 0; i < (size_t)g->n * k; i++) to[i] = (uint16_t)g->moe.ids[i];
}

int sl_graph_moe_route(struct sl_graph *g, struct sl_err *err)
{
    const struct sl_config *c = g->c;
    project_in(g);
    sl_graph_run(g, (g->n + SL_GRAPH_TOKENS - 1) / SL_GRAPH_TOKENS, route_task, g);
    int rc = sl_graph_check(g, g->l, "a router score", err);
    if (rc) return rc;
    if (atomic_load_explicit(&g->bad_routes, memory_order_relaxed))
        return sl_fail(err, SL_E_ARG, NULL, "routes", "layer %d: ids outside 0 to %d, or repeated",
                       g->l, c->n_experts - 1);
    keep_routes(g);
    sl_graph_see(g, SL_POINT_LATENT, g->l, g->moe.latent);
    sl_graph_see(g, SL_POINT_ROUTE, g->l, g->moe.routes);
    sl_graph_judge_ahead(g);
    return 0;
}

int sl_graph_moe_experts(struct sl_graph *g, struct sl_err *err)
{
    return sl_graph_experts(g, group_pairs(g), sl_graph_one_panel(g), err);
}

static void finish(struct sl_graph *g)
{
    sl_graph_run(g, (g->n + SL_GRAPH_TOKENS - 1) / SL_GRAPH_TOKENS, sum_task, g);
    g->segs[0] = (struct sl_seg){.w = &g->layer->latent_up,
                                 .x = g->moe.latent,
                                 .ldx = (size_t)g->c->latent_size,
                                 .y = g->y,
                                 .ldy = (size_t)g->c->hidden_size,
                                 .n_tok = g->n,
                                 .post = SL_POST_RESID,
                                 .extra = g->moe.shared_out};
    sl_graph_mul(g, g->segs, 1);
}

int sl_graph_moe_late(struct sl_graph *g, struct sl_err *err)
{
    /* x of this panel is long gone; the stream is as it was, so it comes out the same. */
    int rc = sl_graph_ffn_in(g, err);
    if (rc) return rc;
    sl_graph_shared(g);
    finish(g);
    return 0;
}

int sl_graph_moe_out(struct sl_graph *g, struct sl_err *err)
{
    if (!sl_graph_one_panel(g)) return sl_graph_moe_late(g, err);
    finish(g);
    return 0;
}
