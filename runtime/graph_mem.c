/* Memory of the graph: one block, carved the same way for the price and for the real thing.
 *
 * Sublayers follow each other, so their buffers share one range as long as the longest. */
#include <string.h>

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
    for (int i = 0; i < 3; i++) b->z[i] = floats(m, n + (uint64_t)c->conv_kernel - 1, channels);
    b->f_a = floats(m, n, (uint64_t)c->kda_head_dim);
    b->b = floats(m, n, (uint64_t)c->kda_heads);
    b->gate = floats(m, n, channels);
}

static void lay_out_mla(struct sl_mla_bufs *b, const struct sl_config *c, uint64_t n,
                        struct carver *m)
{
    b->q_a = floats(m, n, (uint64_t)c->q_lora_rank);
    b->q = floats(m, n, (uint64_t)c->n_heads * (uint64_t)(c->qk_nope_dim + c->qk_rope_dim));
    b->gate = floats(m, n, (uint64_t)c->n_heads * (uint64_t)c->v_head_dim);
}

static void lay_out_moe(struct sl_graph *g, uint64_t n, struct carver *m)
{
    struct sl_moe_bufs *b = &g->moe;
    const struct sl_config *c = g->c;
    const uint64_t k = (uint64_t)c->top_k;
    const uint64_t pairs = (uint64_t)g->n_pairs;
    const uint64_t latent = (uint64_t)c->latent_size;
    const uint64_t width = (uint64_t)c->moe_intermediate_size;
    const uint64_t n_experts = (uint64_t)c->n_experts;
    b->scores = floats(m, n, n_experts);
    b->latent = floats(m, n, latent);
    b->out = floats(m, n * k, latent);
    b->in_rows = floats(m, pairs, latent);
    for (int i = 0; i < 2; i++) b->hidden[i] = floats(m, pairs, width);
    for (int i = 0; i < 2; i++) b->shared[i] = floats(m, n, width * (uint64_t)c->n_shared_experts);
    b->shared_out = floats(m, n, (uint64_t)c->hidden_size);
    b->weights = floats(m, n, k);
    b->ids = ints(m, n, k);
    b->pair_of = ints(m, n, k);
    b->token_of = ints(m, n, k);
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

static void lay_out_sublayers(struct sl_graph *g, uint64_t n, struct carver *m)
{
    const struct sl_config *c = g->c;
    bool has_kda = false;
    bool has_mla = false;
    bool has_moe = false;
    bool has_dense = false;
    for (int l = 0; l < c->n_layers; l++) {
        *(c->is_kda[l] ? &has_kda : &has_mla) = true;
        *(sl_config_is_moe(c, l) ? &has_moe : &has_dense) = true;
    }
    const uint64_t start = m->used;
    uint64_t end = start;
    struct carver part = *m;
    if (has_kda) lay_out_kda(&g->kda, c, n, &part);
    if (part.used > end) end = part.used;
    part.used = start;
    if (has_mla) lay_out_mla(&g->mla, c, n, &part);
    if (part.used > end) end = part.used;
    part.used = start;
    if (has_moe) lay_out_moe(g, n, &part);
    if (part.used > end) end = part.used;
    part.used = start;
    if (has_dense) lay_out_dense(&g->dense, c, n, &part);
    if (part.used > end) end = part.used;
    m->used = end;

    size_t scratch = 0;
    const size_t needs[3] = {has_kda ? sl_graph_kda_scratch(c) : 0,
                             has_mla ? sl_graph_mla_scratch(c, g->o.max_ctx) : 0,
                             has_moe ? sl_graph_moe_scratch(c) : 0};
    for (int i = 0; i < 3; i++)
        if (needs[i] > scratch) scratch = needs[i];
    g->ld_scratch = sl_align_up(scratch, ALIGN / sizeof(float));
    g->scratch = floats(m, (uint64_t)g->n_threads, g->ld_scratch);
    if (has_moe) g->held = carve(m, 2 * (uint64_t)c->n_experts, sizeof *g->held);
}

uint64_t sl_graph_lay_out(struct sl_graph *g, unsigned char *base)
{
    const struct sl_config *c = g->c;
    const uint64_t n = (uint64_t)g->o.max_chunk;
    const uint64_t hidden = (uint64_t)c->hidden_size;
    struct carver m = {0};
    m.base = base;
    carve(&m, 1, sizeof *g); /* the struct itself comes first */
    g->n_slots = (c->n_layers + c->attn_res_block_size - 1) / c->attn_res_block_size + 1;
    g->ld_stream = (size_t)g->n_slots * hidden;
    g->n_pairs = c->top_k > SL_GRAPH_PAIRS ? c->top_k : SL_GRAPH_PAIRS;
    g->stream = floats(&m, n, g->ld_stream);
    g->rms = floats(&m, n, (uint64_t)g->n_slots);
    g->x = floats(&m, n, hidden);
    g->y = floats(&m, n, hidden);
    g->segs = carve(&m, (uint64_t)g->n_pairs + 8, sizeof *g->segs);
    lay_out_sublayers(g, n, &m);
    return m.used;
}
