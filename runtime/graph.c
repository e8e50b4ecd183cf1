/* The forward pass of one chunk, layer by layer: what runs in which order, and nothing else.
 *
 *   embed -> [ mix -> norm -> KDA or MLA -> mix -> norm -> dense or MoE ] x layers -> mix -> norm -> head
 *
 * All memory is taken at open. A chunk is checked whole (ids, room in the context) before the state
 * changes; after an error inside it the state is spoiled, as the header says. A value that is not
 * finite stops the chunk with the layer named: it would spread to every later token. */
#include "runtime/graph.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/graph_parts.h"

/* Bounds that keep every product of sizes far from overflow. */
static bool opts_fit(const struct sl_graph_opts *o)
{
    return o->max_chunk >= 1 && o->max_chunk <= SL_GRAPH_CHUNK_MAX && o->max_ctx >= 1 &&
           o->max_ctx <= (uint64_t)INT32_MAX;
}

uint64_t sl_graph_bytes(const struct sl_config *cfg, const struct sl_graph_opts *o, int n_threads)
{
    if (!opts_fit(o)) return UINT64_MAX;
    struct sl_graph g = {.c = cfg, .o = *o, .n_threads = n_threads};
    return sl_graph_lay_out(&g, NULL);
}

int sl_graph_open(struct sl_graph **out, const struct sl_model *m, const struct sl_kernels *k,
                  struct sl_pool *pool, struct sl_store *store, struct sl_arena *arena,
                  const struct sl_graph_opts *o, struct sl_err *err)
{
    *out = NULL;
    if (!opts_fit(o))
        return sl_fail(err, SL_E_ARG, NULL, "chunk and ctx",
                       "%d tokens and %llu positions; 1 to %d and 1 to %d are possible",
                       o->max_chunk, (unsigned long long)o->max_ctx, SL_GRAPH_CHUNK_MAX, INT32_MAX);
    for (int l = 0; l < m->cfg.n_layers; l++)
        if (m->layers[l].is_moe && (!store || sl_store_max_request(store) < 1))
            return sl_fail(err, SL_E_ARG, NULL, "expert slots", "layer %d needs some", l);
    const int n_threads = pool ? sl_pool_threads(pool) : 1;
    const uint64_t bytes = sl_graph_bytes(&m->cfg, o, n_threads);
    unsigned char *base = sl_arena_alloc(arena, bytes, 64);
    if (!base)
        return sl_fail(err, SL_E_BUDGET, NULL, "activations", "%llu bytes do not fit the arena",
                       (unsigned long long)bytes);
    struct sl_graph *g = (struct sl_graph *)base;
    memset(g, 0, sizeof *g);
    g->m = m;
    g->c = &m->cfg;
    g->k = *k;
    g->pool = pool;
    g->store = store;
    g->o = *o;
    g->n_threads = n_threads;
    g->mul_a8 = sl_mul_a8_for(k->cpu);
    g->pack = sl_act_pack_for(k->cpu);
    g->n_nodes = store ? sl_store_nodes(store) : 1;
    sl_graph_lay_out(g, base);
    *out = g;
    return 0;
}

void sl_graph_close(struct sl_graph *g)
{
    (void)g; /* all of it lies in the arena */
}

void sl_graph_observe(struct sl_graph *g, const struct sl_observer *o)
{
    g->observer = o ? *o : (struct sl_observer){0};
}

void sl_graph_force_routes(struct sl_graph *g, sl_routes_fn fn, void *ctx)
{
    g->routes_fn = fn;
    g->routes_ctx = ctx;
}

void sl_graph_note_failure(struct sl_graph *g, int rc, const struct sl_err *err)
{
    bool before = false;
    if (!atomic_compare_exchange_strong(&g->failed, &before, true)) return;
    g->fail_rc = rc;
    g->fail = *err;
}

static int failure(const struct sl_graph *g, struct sl_err *err)
{
    if (!atomic_load_explicit(&g->failed, memory_order_relaxed)) return 0;
    if (err) *err = g->fail;
    return g->fail_rc;
}

int sl_graph_check(struct sl_graph *g, int layer, const char *what, struct sl_err *err)
{
    if (failure(g, err)) return g->fail_rc;
    if (atomic_load_explicit(&g->stopped, memory_order_relaxed))
        return sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    const int tok = atomic_load_explicit(&g->bad, memory_order_relaxed);
    if (tok == INT_MAX) return 0;
    const unsigned long long pos = sl_graph_position(g, tok);
    char field[64];
    if (layer < 0)
        snprintf(field, sizeof field, "model");
    else
        snprintf(field, sizeof field, "layer %d", layer);
    return sl_fail(err, SL_E_PACK, NULL, field,
                   "%s is not finite at position %llu; the pack's weights are damaged", what, pos);
}

struct region {
    struct sl_graph *g;
    sl_task_fn fn;
    void *ctx;
};

static void region_task(void *ctx, int task, int worker)
{
    const struct region *r = ctx;
    if (sl_interrupted()) {
        atomic_store_explicit(&r->g->stopped, true, memory_order_relaxed);
        return;
    }
    r->fn(r->ctx, task, worker);
}

void sl_graph_run(struct sl_graph *g, int n_tasks, sl_task_fn fn, void *ctx)
{
    struct region r = {g, fn, ctx};
    if (n_tasks == 1)
        region_task(&r, 0, 0);
    else
        sl_pool_run(g->pool, n_tasks, region_task, &r);
}

void sl_graph_deal(struct sl_graph *g, int n_spans, sl_task_fn fn, void *ctx)
{
    struct region r = {g, fn, ctx};
    sl_numa_deal(g->pool, g->n_nodes, g->spans, n_spans, region_task, &r);
}

/* Bytes of one token's row. */
static size_t point_bytes(const struct sl_graph *g, enum sl_point point)
{
    if (point == SL_POINT_ROUTE) return sizeof(struct sl_route);
    return sizeof(float) *
           (size_t)(point == SL_POINT_LATENT ? g->c->latent_size : g->c->hidden_size);
}

void sl_graph_see(struct sl_graph *g, enum sl_point point, int layer, const void *data)
{
    if (!g->observer.see) return;
    for (int i = 0; i < g->n_parts; i++) {
        const struct sl_part *p = &g->part[i];
        g->seen = p->st;
        g->observer.see(g->observer.ctx, point, layer, p->pos, p->n,
                        (const unsigned char *)data + (size_t)p->tok * point_bytes(g, point));
    }
}

const struct sl_state *sl_graph_seen(const struct sl_graph *g)
{
    return g->seen;
}

/* The stream after the layer, token by token in one piece (y is free then). */
static void see_resid(struct sl_graph *g)
{
    if (!g->observer.see) return;
    const size_t hidden = (size_t)g->c->hidden_size;
    for (int t = 0; t < g->n; t++)
        memcpy(g->y + (size_t)t * hidden, sl_graph_partial(g, t), sizeof(float) * hidden);
    sl_graph_see(g, SL_POINT_RESID, g->l, g->y);
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void sl_graph_get_stages(const struct sl_graph *g, struct sl_stage_seconds *out)
{
    *out = g->stages;
}

void sl_graph_set_ranks(struct sl_graph *g, const int *ranks)
{
    g->ranks = ranks;
}

void sl_graph_move_experts(struct sl_graph *g, int layer, float eps)
{
    g->moved_layer = layer;
    g->moved_eps = layer < 0 ? 0 : eps;
}

static double stalled(const struct sl_graph *g)
{
    struct sl_store_stats st = {0};
    if (g->store) sl_store_get_stats(g->store, &st);
    return st.stall_seconds + st.stream_stall_seconds;
}

static int run_attention(struct sl_graph *g, struct sl_err *err)
{
    int rc = sl_graph_attn_in(g, err);
    if (rc) return rc;
    sl_graph_see(g, SL_POINT_ATTN_IN, g->l, g->x);
    if (g->layer->is_kda)
        sl_graph_kda(g);
    else
        sl_graph_mla(g);
    sl_graph_see(g, SL_POINT_ATTN_OUT, g->l, g->y);
    return 0;
}

static void see_ffn(struct sl_graph *g)
{
    sl_graph_see(g, SL_POINT_FFN_OUT, g->l, g->y);
    see_resid(g);
}

/* Up to the routes; all of a dense layer. */
static int begin_ffn(struct sl_graph *g, struct sl_err *err)
{
    int rc = sl_graph_ffn_in(g, err);
    if (rc) return rc;
    sl_graph_see(g, SL_POINT_FFN_IN, g->l, g->x);
    sl_graph_see_ahead(g);
    if (g->layer->is_moe) return sl_graph_moe_route(g, err);
    sl_graph_dense(g);
    see_ffn(g);
    return 0;
}

int sl_graph_layer_front(struct sl_graph *g, struct sl_err *err)
{
    int rc = run_attention(g, err);
    return rc ? rc : begin_ffn(g, err);
}

static int panel_after(const struct sl_graph *g, int at)
{
    return g->n_chunk - at < g->use.n_panel ? g->n_chunk - at : g->use.n_panel;
}

/* What a layer does panel by panel before its experts are known. */
static int run_panels(struct sl_graph *g, struct sl_err *err)
{
    const int n_banked = g->n_banked;
    int rc = 0;
    for (int at = 0; at < g->n_chunk && !rc; at += g->use.n_panel) {
        const double start = now_seconds();
        const double stall = stalled(g);
        sl_graph_view(g, at, panel_after(g, at));
        g->n_banked = n_banked;
        rc = run_attention(g, err);
        const double middle = now_seconds();
        const double waited = stalled(g) - stall;
        if (!rc) rc = begin_ffn(g, err);
        const double all_waited = stalled(g) - stall;
        g->stages.attention += middle - start - waited;
        g->stages.experts += now_seconds() - middle - (all_waited - waited);
        g->stages.waiting += all_waited;
    }
    return rc;
}

static int run_experts(struct sl_graph *g, struct sl_err *err)
{
    const double start = now_seconds();
    const double stall = stalled(g);
    sl_graph_view(g, 0, g->n_chunk);
    int rc = sl_graph_moe_experts(g, err);
    for (int at = 0; at < g->n_chunk && !rc; at += g->use.n_panel) {
        sl_graph_view(g, at, panel_after(g, at));
        rc = sl_graph_moe_out(g, err);
        if (!rc) see_ffn(g);
    }
    const double waited = stalled(g) - stall;
    g->stages.experts += now_seconds() - start - waited;
    g->stages.waiting += waited;
    return rc;
}

static int run_layer(struct sl_graph *g, int l, struct sl_err *err)
{
    if (sl_interrupted()) return sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    g->l = l;
    g->layer = &g->m->layers[l];
    int rc = run_panels(g, err);
    if (!rc && g->layer->is_moe) rc = run_experts(g, err);
    return rc ? rc : failure(g, err);
}

/* Tokens in view whose logits are asked for, to toks. */
static int list_logits(const struct sl_graph *g, int *toks)
{
    int n = 0;
    for (int i = 0; i < g->n_seqs; i++) {
        const struct sl_part *s = &g->seq[i];
        const int end = s->tok + s->n - g->at;
        int t = end - s->n_logits;
        for (t = t < 0 ? 0 : t; t < end && t < g->n; t++) toks[n++] = t;
    }
    return n;
}

/* Final mix, norm and head of n tokens of the panel in view (all tokens of the mix when someone looks). */
static int run_head(struct sl_graph *g, const int *toks, int n, float *logits, struct sl_err *err)
{
    const bool seen = g->observer.see != NULL;
    if (!n && !seen) return 0;
    int rc = sl_graph_final(g, seen ? NULL : toks, seen ? g->n : n, err);
    if (rc) return rc;
    sl_graph_see(g, SL_POINT_FINAL, g->c->n_layers, g->x);
    if (!n) return 0;
    const size_t hidden = (size_t)g->c->hidden_size;
    for (int i = 0; seen && i < n; i++) /* toks[i] >= i, and rising */
        memmove(g->x + (size_t)i * hidden, g->x + (size_t)toks[i] * hidden, sizeof(float) * hidden);
    g->segs[0] = (struct sl_seg){.w = &g->m->head,
                                 .x = g->x,
                                 .ldx = hidden,
                                 .ldy = (size_t)g->c->vocab_size,
                                 .n_tok = n,
                                 .post = SL_POST_FINITE};
    g->segs[0].y = logits;
    sl_graph_mul(g, g->segs, 1);
    return sl_graph_check(g, -1, "a logit", err);
}

static int run_heads(struct sl_graph *g, float *logits, struct sl_err *err)
{
    const double start = now_seconds();
    const double stall = stalled(g);
    int rc = 0;
    for (int at = 0; at < g->n_chunk && !rc; at += g->use.n_panel) {
        sl_graph_view(g, at, panel_after(g, at));
        const int n = list_logits(g, g->use.with_logits);
        rc = run_head(g, g->use.with_logits, n, logits, err);
        if (n) logits += (size_t)n * (size_t)g->c->vocab_size;
    }
    const double waited = stalled(g) - stall;
    g->stages.head += now_seconds() - start - waited;
    g->stages.waiting += waited;
    return rc;
}

/* Which matrices the chunk will use, and how often: a panel passes over a layer's once. */
static void begin_stream(struct sl_graph *g)
{
    if (!g->store) return;
    const int panels = (g->n_chunk + g->use.n_panel - 1) / g->use.n_panel;
    int heads = 0; /* panels with logits */
    for (int at = 0; at < g->n_chunk; at += g->use.n_panel) {
        sl_graph_view(g, at, panel_after(g, at));
        heads += list_logits(g, g->use.with_logits) > 0;
    }
    const bool head = heads && g->m->n_parts > g->m->n_layer_parts;
    const struct sl_stream_pass pass = {.n_parts = head ? g->m->n_parts : g->m->n_layer_parts,
                                        .rounds = panels,
                                        .last_rounds = head ? heads : panels};
    sl_stream_begin(g->store, &pass);
}

static int check_seq(const struct sl_graph *g, const struct sl_graph_seq *s, const int32_t *ids,
                     struct sl_err *err)
{
    const struct sl_state *st = s->st;
    if (s->n < 1 || s->n > g->use.n)
        return sl_fail(err, SL_E_ARG, NULL, "chunk", "%d tokens is outside 1 to %d", s->n,
                       g->use.n);
    if (s->n_logits < 0 || s->n_logits > s->n)
        return sl_fail(err, SL_E_ARG, NULL, "logits", "%d rows of %d tokens", s->n_logits, s->n);
    if (g->o.fast != ((st->form & SL_STATE_FAST) != 0))
        return sl_fail(err, SL_E_ARG, NULL, "state", "of the %s path, the graph runs the other one",
                       g->o.fast ? "exact" : "fast");
    if (st->ctx > g->o.max_ctx)
        return sl_fail(err, SL_E_ARG, NULL, "ctx", "a state of %llu positions, a graph of %llu",
                       (unsigned long long)st->ctx, (unsigned long long)g->o.max_ctx);
    if (st->position > st->ctx || (uint64_t)s->n > st->ctx - st->position)
        return sl_fail(err, SL_E_CTX, NULL, "ctx",
                       "%d tokens after position %llu do not fit the context of %llu", s->n,
                       (unsigned long long)st->position, (unsigned long long)st->ctx);
    unsigned long long pos = st->position;
    for (int i = 0; i < s->n; i++, pos++)
        if (ids[i] < 0 || ids[i] >= g->c->vocab_size)
            return sl_fail(err, SL_E_ARG, NULL, "token id",
                           "%d at position %llu is outside 0 to %d", ids[i], pos,
                           g->c->vocab_size - 1);
    return 0;
}

/* Lays the sequences out as parts of the chunk. */
static int take_seqs(struct sl_graph *g, const struct sl_graph_seq *seqs, int n_seqs,
                     const int32_t *ids, bool logits, struct sl_err *err)
{
    if (n_seqs < 1 || n_seqs > SL_GRAPH_SEQS)
        return sl_fail(err, SL_E_ARG, NULL, "sequences", "%d is outside 1 to %d", n_seqs,
                       SL_GRAPH_SEQS);
    if (n_seqs > 1 && g->observer.hidden)
        return sl_fail(err, SL_E_ARG, NULL, "sequences", "%d while inner rows are observed",
                       n_seqs);
    int n = 0;
    for (int i = 0; i < n_seqs; i++) {
        const struct sl_graph_seq *s = &seqs[i];
        int rc = check_seq(g, s, ids + n, err);
        if (rc) return rc;
        if (n > g->use.n - s->n)
            return sl_fail(err, SL_E_ARG, NULL, "chunk", "more than %d tokens of %d sequences",
                           g->use.n, n_seqs);
        for (int j = 0; j < i; j++)
            if (seqs[j].st == s->st)
                return sl_fail(err, SL_E_ARG, NULL, "sequences", "%d and %d are one state", j, i);
        g->seq[i] = (struct sl_part){.st = s->st,
                                     .tok = n,
                                     .n = s->n,
                                     .pos = s->st->position,
                                     .n_expanded = s->st->n_expanded,
                                     .n_logits = logits ? s->n_logits : 0};
        if (s->st->n_expanded > s->st->position) /* rewound: refill */
            g->seq[i].n_expanded = s->st->position;
        n += s->n;
    }
    g->n_seqs = n_seqs;
    g->n_chunk = n;
    return 0;
}

int sl_graph_feed_many(struct sl_graph *g, const struct sl_graph_seq *seqs, int n_seqs,
                       const int32_t *ids, float *logits, struct sl_err *err)
{
    int rc = take_seqs(g, seqs, n_seqs, ids, logits != NULL, err);
    if (rc) return rc;
    atomic_store_explicit(&g->bad, INT_MAX, memory_order_relaxed);
    atomic_store_explicit(&g->bad_routes, false, memory_order_relaxed);
    atomic_store_explicit(&g->stopped, false, memory_order_relaxed);
    atomic_store_explicit(&g->failed, false, memory_order_relaxed);
    begin_stream(g);
    const double at = now_seconds();
    sl_graph_view(g, 0, g->n_chunk);
    sl_graph_embed(g, ids);
    g->stages.attention += now_seconds() - at;
    for (int l = 0; l < g->c->n_layers && !rc; l++) {
        atomic_store_explicit(&g->layers_done, l, memory_order_relaxed);
        rc = run_layer(g, l, err);
    }
    if (!rc) rc = run_heads(g, logits, err);
    if (!rc && atomic_load_explicit(&g->stopped, memory_order_relaxed))
        rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    if (rc) return rc;
    for (int i = 0; i < n_seqs; i++) {
        seqs[i].st->position += (uint64_t)seqs[i].n;
        seqs[i].st->n_expanded = seqs[i].st->position;
    }
    return 0;
}

int sl_graph_layers_done(const struct sl_graph *g)
{
    return atomic_load_explicit(&g->layers_done, memory_order_relaxed);
}

int sl_graph_feed(struct sl_graph *g, struct sl_state *st, const int32_t *ids, int n, float *logits,
                  int n_logits, struct sl_err *err)
{
    const struct sl_graph_seq one = {st, n, logits ? n_logits : 0};
    return sl_graph_feed_many(g, &one, 1, ids, logits, err);
}
