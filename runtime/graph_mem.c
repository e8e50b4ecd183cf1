/* Memory of the graph: one block, carved the same way for the price and for the real thing.
 *
 * Sublayers follow each other, so their buffers share one range as long as the longest. Between two
 * feeds the graph can be lent memory for longer chunks than its own buffers hold:
 *
 *   own block    [ struct | stream rms routes x y | sublayers for one panel | scratch ]
 *   lent         [ stream rms routes latent outputs routing of every token ]   panels in the own block
 *   lent, wide   [ the same and sublayers, for every token ]     where a panel would cost a pass over
 *                                                                weights that come from the drive
 */
#include "base/size.h"
#include "runtime/graph_parts.h"

#define ALIGN 64

struct carver {
    unsigned char *base; /* NULL: only counts */
    uint64_t used;
};

static void *carve(struct carver *c, uint64_t n, uint64_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += sl_align_up(n * size, ALIGN);
    return p;
}

static float *floats(struct carver *c, uint64_t a, uint64_t b)
{
    return carve(c, a * b, sizeof(float));
}

static int *ints(struct carver *c, uint64_t a, uint64_t b)
{
    return carve(c, a * b, sizeof(int));
}

static void lay_out_kda(struct sl_kda_bufs *b, const struct sl_config *c, uint64_t n,
                        struct carver *m)
{
    const uint64_t channels = (uint64_t)c->kda_heads * (uint64_t)c->kda_head_dim;
    for (int i = 0; i < 3; i++) b->z[i] = floats(m, n, channels);
    b->f_a = floats(m, n, (uint64_t)c->kda_head_dim);
    b->b = floats(m, n, (uint64_t)c->kda_heads);
    b->gate = floats(m, n, channels);
}

static void lay_out_mla(struct sl_mla_bufs *b, const struct sl_config *c, uint64_t n,
                        struct carver *m)
{
    b->kv = floats(m, n, (uint64_t)c->kv_lora_rank + (uint64_t)c->qk_rope_dim);
    b->q_a = floats(m, n, (uint64_t)c->q_lora_rank);
    b->q = floats(m, n, (uint64_t)c->n_heads * (uint64_t)(c->qk_nope_dim + c->qk_rope_dim));
    b->gate = floats(m, n, (uint64_t)c->n_heads * (uint64_t)c->v_head_dim);
}

/* What the experts of a whole chunk read and write. */
static void lay_out_pairs(struct sl_moe_bufs *b, const struct sl_config *c, uint64_t n,
                          struct carver *m)
{
    const uint64_t k = (uint64_t)c->top_k;
    const uint64_t latent = (uint64_t)c->latent_size;
    b->latent = floats(m, n, latent);
    b->out = floats(m, n * k, latent);
    b->weights = floats(m, n, k);
    b->ids = ints(m, n, k);
    b->pair_of = ints(m, n, k);
    b->token_of = ints(m, n, k);
}

static void lay_out_moe(struct sl_graph *g, struct sl_moe_bufs *b, uint64_t n, struct carver *m)
{
    const struct sl_config *c = g->c;
    const uint64_t pairs = (uint64_t)g->n_pairs;
    const uint64_t width = (uint64_t)c->moe_intermediate_size;
    const uint64_t n_experts = (uint64_t)c->n_experts;
    lay_out_pairs(b, c, n, m);
    b->scores = floats(m, n, n_experts);
    b->in_rows = floats(m, pairs, (uint64_t)c->latent_size);
    for (int i = 0; i < 2; i++) b->hidden[i] = floats(m, pairs, width);
    for (int i = 0; i < 2; i++) b->shared[i] = floats(m, n, width * (uint64_t)c->n_shared_experts);
    b->shared_out = floats(m, n, (uint64_t)c->hidden_size);
    b->first = ints(m, n_experts + 1, 1);
    b->base_row = ints(m, n_experts, 1);
    b->cursor = ints(m, n_experts, 1);
    b->wanted = ints(m, n_experts, 1);
    b->whole = carve(m, n_experts, sizeof *b->whole);
    b->routes = carve(m, n, sizeof *b->routes);
}

static void lay_out_dense(struct sl_dense_bufs *b, const struct sl_config *c, uint64_t n,
                          struct carver *m)
{
    for (int i = 0; i < 2; i++) b->hidden[i] = floats(m, n, (uint64_t)c->intermediate_size);
}

/* Sublayers for panels of n tokens. */
static void lay_out_sublayers(struct sl_graph *g, struct sl_graph_bufs *b, uint64_t n,
                              struct carver *m)
{
    const struct sl_config *c = g->c;
    const uint64_t start = m->used;
    uint64_t end = start;
    struct carver part = *m;
    if (g->has.kda) lay_out_kda(&b->kda, c, n, &part);
    if (part.used > end) end = part.used;
    part.used = start;
    if (g->has.mla) lay_out_mla(&b->mla, c, n, &part);
    if (part.used > end) end = part.used;
    part.used = start;
    if (g->has.moe) lay_out_moe(g, &b->moe, n, &part);
    if (part.used > end) end = part.used;
    part.used = start;
    if (g->has.dense) lay_out_dense(&b->dense, c, n, &part);
    if (part.used > end) end = part.used;
    m->used = end;
}

/* What every chunk needs for each of its tokens, whatever the panels. */
static void lay_out_stream(struct sl_graph *g, struct sl_graph_bufs *b, uint64_t n,
                           struct carver *m)
{
    b->n = (int)n;
    b->stream = floats(m, n, g->ld_stream);
    b->rms = floats(m, n, (uint64_t)g->n_slots);
    if (g->has.moe)
        b->kept = carve(m, (uint64_t)g->c->n_layers * n * (uint64_t)g->c->top_k, sizeof *b->kept);
}

/* Chunks of one panel of n tokens. */
static void lay_out_panel(struct sl_graph *g, struct sl_graph_bufs *b, uint64_t n, struct carver *m)
{
    const uint64_t hidden = (uint64_t)g->c->hidden_size;
    lay_out_stream(g, b, n, m);
    b->n_panel = (int)n;
    b->x = floats(m, n, hidden);
    b->y = floats(m, n, hidden);
    b->with_logits = ints(m, n, 1);
    lay_out_sublayers(g, b, n, m);
}

/* Chunks of n tokens in the panels that b has already. */
static void lay_out_long(struct sl_graph *g, struct sl_graph_bufs *b, uint64_t n, struct carver *m)
{
    lay_out_stream(g, b, n, m);
    if (g->has.moe) lay_out_pairs(&b->moe, g->c, n, m);
}

static void set_shape(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    for (int l = 0; l < c->n_layers; l++) {
        *(c->is_kda[l] ? &g->has.kda : &g->has.mla) = true;
        *(sl_config_is_moe(c, l) ? &g->has.moe : &g->has.dense) = true;
    }
    g->n_slots = (c->n_layers + c->attn_res_block_size - 1) / c->attn_res_block_size + 1;
    g->ld_stream = (size_t)g->n_slots * (size_t)c->hidden_size;
    g->n_pairs = c->top_k > SL_GRAPH_PAIRS ? c->top_k : SL_GRAPH_PAIRS;
}

uint64_t sl_graph_lay_out(struct sl_graph *g, unsigned char *base)
{
    const struct sl_config *c = g->c;
    struct carver m = {0};
    m.base = base;
    carve(&m, 1, sizeof *g); /* the struct itself comes first */
    set_shape(g);
    g->segs = carve(&m, (uint64_t)g->n_pairs + 8, sizeof *g->segs);
    lay_out_panel(g, &g->own, (uint64_t)g->o.max_chunk, &m);

    size_t scratch = sl_graph_embed_scratch(c);
    const size_t needs[3] = {g->has.kda ? sl_graph_kda_scratch(c, g->o.fast) : 0,
                             !g->has.mla ? 0
                             : g->o.fast ? sl_graph_latent_scratch(c)
                                         : sl_graph_mla_scratch(c, g->o.max_ctx),
                             g->has.moe ? sl_graph_moe_scratch(c) : 0};
    for (int i = 0; i < 3; i++)
        if (needs[i] > scratch) scratch = needs[i];
    g->ld_scratch = sl_align_up(scratch, ALIGN / sizeof(float));
    g->scratch = floats(&m, (uint64_t)g->n_threads, g->ld_scratch);
    if (g->has.mla && g->o.fast) {
        const uint64_t n = sl_graph_latent_floats(c, g->o.max_ctx, &g->latent, NULL);
        sl_graph_latent_floats(c, g->o.max_ctx, &g->latent, floats(&m, n, 1));
    }
    if (g->has.moe) g->held = carve(&m, 2 * (uint64_t)c->n_experts, sizeof *g->held);
    if (g->has.moe)
        g->spans =
            carve(&m, 2 * (uint64_t)c->n_experts + (uint64_t)g->n_pairs + 8, sizeof *g->spans);
    if (g->o.fast) {
        g->packed = carve(&m, 2 * (uint64_t)g->n_pairs + 8, sizeof *g->packed);
        g->pack_bytes = sl_graph_pack_bytes(c, g->n_pairs);
        g->pack_mem = carve(&m, g->pack_bytes, 1);
    }
    g->use = g->own;
    return m.used;
}

/* ---- lent memory */

static uint64_t lay_out_lent(struct sl_graph *g, struct sl_graph_bufs *b, int n_tokens, bool wide,
                             unsigned char *base)
{
    struct carver m = {0};
    m.base = base;
    (wide ? lay_out_panel : lay_out_long)(g, b, (uint64_t)n_tokens, &m);
    return m.used;
}

uint64_t sl_graph_lent_bytes(const struct sl_config *c, int n_tokens, bool wide)
{
    if (n_tokens < 1 || n_tokens > SL_GRAPH_CHUNK_MAX) return UINT64_MAX;
    struct sl_graph g = {.c = c};
    struct sl_graph_bufs b = {0};
    set_shape(&g);
    return lay_out_lent(&g, &b, n_tokens, wide, NULL);
}

int sl_graph_lend(struct sl_graph *g, void *mem, uint64_t bytes, int n_tokens, bool wide,
                  struct sl_err *err)
{
    g->use = g->own;
    if (!mem) return 0;
    const uint64_t need = sl_graph_lent_bytes(g->c, n_tokens, wide);
    if (need > bytes || (uintptr_t)mem % ALIGN)
        return sl_fail(err, SL_E_BUDGET, NULL, "activations",
                       "a chunk of %d tokens takes %llu bytes, %llu are lent", n_tokens,
                       (unsigned long long)need, (unsigned long long)bytes);
    lay_out_lent(g, &g->use, n_tokens, wide, mem);
    return 0;
}

bool sl_graph_wants_panels(const struct sl_graph *g)
{
    return g->observer.hidden || g->observer.ahead;
}

int sl_graph_chunk(const struct sl_graph *g)
{
    return g->use.n;
}

const uint16_t *sl_graph_routes(const struct sl_graph *g)
{
    return g->use.kept;
}

/* What of each sequence lies in view. Before its first token here are those of earlier panels, whose keys
 * are expanded by now. */
static void view_parts(struct sl_graph *g)
{
    g->n_parts = 0;
    for (int i = 0; i < g->n_seqs; i++) {
        const struct sl_part *s = &g->seq[i];
        const int from = s->tok > g->at ? s->tok : g->at;
        const int to = s->tok + s->n < g->at + g->n ? s->tok + s->n : g->at + g->n;
        if (from >= to) continue;
        const uint64_t pos = s->pos + (uint64_t)(from - s->tok);
        g->part[g->n_parts++] = (struct sl_part){.st = s->st,
                                                 .tok = from - g->at,
                                                 .n = to - from,
                                                 .pos = pos,
                                                 .n_expanded = from > s->tok ? pos : s->n_expanded};
    }
}

void sl_graph_view(struct sl_graph *g, int at, int n)
{
    const struct sl_graph_bufs *b = &g->use;
    const size_t k = (size_t)g->c->top_k;
    const size_t t = (size_t)at;
    g->at = at;
    g->n = n;
    view_parts(g);
    g->stream = b->stream + t * g->ld_stream;
    g->rms = b->rms + t * (size_t)g->n_slots;
    g->x = b->x;
    g->y = b->y;
    g->kda = b->kda;
    g->mla = b->mla;
    g->dense = b->dense;
    g->moe = b->moe;
    if (!g->has.moe) return;
    g->moe.latent += t * (size_t)g->c->latent_size;
    g->moe.weights += t * k;
    g->moe.ids += t * k;
    g->moe.pair_of += t * k;
}
