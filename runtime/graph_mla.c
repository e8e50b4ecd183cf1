/* Gated MLA sublayer (spec 3.4); its attention here is the exact path's, expanded: keys and values of every
 * position, in position order. The fast path's is graph_latent.c, in place of region 4.
 *
 *   region 1   rows    q_a, kv_a and gate projections of all tokens
 *   region 2   tokens  norms of q_a and of the latent, which goes into its sequence's rows
 *   region 3   rows    q_b: the queries of all heads and tokens
 *   region 4   heads   expansion of keys and values, scores, softmax, weighted values, gate; of each
 *                      sequence
 *   region 5   rows    o_proj, added to the stream
 *
 * No region but the heads' needs a whole matrix at a time, and a head needs its own rows of kv_b alone:
 * so each matrix may come strip by strip from the drive, one after the other.
 *
 *   key of head h at s   K[s] = [ W_kvb[h] rows 0..nope-1 . latent[s] | shared part of row s ]
 *   score                K[s] . q_h * (nope + rope)^-0.5       the "rope" part is scored, not rotated
 *
 * The keys of a head are one f32 matrix, so scores are a matrix product. With the state's expanded
 * cache each position is expanded once; without it a head expands what it needs into scratch, by the
 * same products, so the bits are the same (runtime/test_graph_bits). Values are summed in tiles of
 * SL_GRAPH_TILE positions counted from position 0, tile sums added in order: the order depends on the
 * query's position alone, not on chunk or strip. */
#include <math.h>
#include <string.h>

#include "runtime/graph_parts.h"

_Static_assert(SL_GRAPH_STRIP % SL_GRAPH_TILE == 0, "strips start on tiles");

/* A worker's scratch. */
struct head_bufs {
    float *part;   /* [v]: sum of one tile */
    float *out;    /* [SL_GRAPH_QUERIES][v] */
    float *scores; /* [SL_GRAPH_QUERIES][ctx] */
    float *keys;   /* [strip][nope + rope], without a cache */
    float *values; /* [strip][v] */
};

/* Heads [first, first + kv_b->rows / rows of a head) of a layer: all of them, or those of a strip. */
struct heads {
    struct sl_graph *g;
    struct sl_mat kv_b;
    int first;
};

struct head {
    struct sl_graph *g;
    const struct sl_part *part; /* one sequence's tokens */
    int h;
    struct sl_mat w_k, w_v; /* this head's rows of kv_b */
    struct head_bufs b;
    float *keys, *values; /* of all positions when they fit (cache or scratch), else NULL */
    size_t n_pos;         /* positions after the part */
    size_t kd, vd;        /* width of a key, of a value */
};

static size_t strip_rows(uint64_t max_ctx)
{
    return max_ctx < SL_GRAPH_STRIP ? (size_t)max_ctx : SL_GRAPH_STRIP;
}

static size_t scratch_of(const struct sl_config *c, uint64_t max_ctx, float *base,
                         struct head_bufs *b)
{
    const size_t kd = (size_t)c->qk_nope_dim + (size_t)c->qk_rope_dim;
    const size_t vd = (size_t)c->v_head_dim;
    const size_t sizes[5] = {vd, SL_GRAPH_QUERIES * vd, SL_GRAPH_QUERIES * (size_t)max_ctx,
                             strip_rows(max_ctx) * kd, strip_rows(max_ctx) * vd};
    float **const at[5] = {&b->part, &b->out, &b->scores, &b->keys, &b->values};
    size_t used = 0;
    for (int i = 0; i < 5; i++) {
        *at[i] = base ? base + used : NULL;
        used += (sizes[i] + 15) & ~(size_t)15;
    }
    return used;
}

size_t sl_graph_mla_scratch(const struct sl_config *c, uint64_t max_ctx)
{
    struct head_bufs unused;
    return scratch_of(c, max_ctx, NULL, &unused);
}

static size_t row_floats(const struct sl_config *c)
{
    return (size_t)c->kv_lora_rank + (size_t)c->qk_rope_dim;
}

static float *latent_row(const struct sl_graph *g, const struct sl_part *p, uint64_t pos)
{
    return p->st->mla_rows[g->l] + pos * row_floats(g->c);
}

static void project(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_mla_weights *w = &g->layer->attn.mla;
    const struct sl_seg in = {.x = g->x, .ldx = (size_t)c->hidden_size, .n_tok = g->n};
    int n = 0;
    if (c->mla_output_gate) {
        g->segs[n] = in;
        g->segs[n].w = &w->g;
        g->segs[n].y = g->mla.gate;
        g->segs[n++].ldy = (size_t)c->n_heads * (size_t)c->v_head_dim;
    }
    if (c->q_lora_rank) {
        g->segs[n] = in;
        g->segs[n].w = &w->q_a;
        g->segs[n].y = g->mla.q_a;
        g->segs[n++].ldy = (size_t)c->q_lora_rank;
    }
    g->segs[n] = in;
    g->segs[n].w = &w->kv_a;
    g->segs[n].y = g->mla.kv;
    g->segs[n++].ldy = row_floats(c);
    sl_graph_mul(g, g->segs, n);
}

static void norm_task(void *ctx, int task, int worker)
{
    (void)worker;
    struct sl_graph *g = ctx;
    const struct sl_config *c = g->c;
    const struct sl_mla_weights *w = &g->layer->attn.mla;
    const float eps = (float)c->mla_norm_eps; /* 1e-6 here, not rms_norm_eps */
    const int to = (task + 1) * SL_GRAPH_TOKENS < g->n ? (task + 1) * SL_GRAPH_TOKENS : g->n;
    for (int t = task * SL_GRAPH_TOKENS; t < to; t++) {
        const struct sl_part *p = sl_graph_part_of(g, t);
        const float *kv = g->mla.kv + (size_t)t * row_floats(c);
        float *row = latent_row(g, p, sl_graph_position(g, t));
        g->k.rmsnorm(row, kv, w->kv_a_norm, c->kv_lora_rank, eps);
        memcpy(row + c->kv_lora_rank, kv + c->kv_lora_rank, sizeof(float) * (size_t)c->qk_rope_dim);
        if (!c->q_lora_rank) continue;
        float *q_a = g->mla.q_a + (size_t)t * (size_t)c->q_lora_rank;
        g->k.rmsnorm(q_a, q_a, w->q_a_norm, c->q_lora_rank, eps);
    }
}

static void expand_keys(const struct head *hd, size_t pos, size_t n, float *out)
{
    const struct sl_graph *g = hd->g;
    const struct sl_config *c = g->c;
    const float *rows = latent_row(g, hd->part, pos);
    const size_t ld = row_floats(c);
    const size_t nope = (size_t)c->qk_nope_dim;
    g->k.mul(&hd->w_k, 0, c->qk_nope_dim, rows, ld, (int)n, out, hd->kd);
    for (size_t s = 0; s < n; s++)
        memcpy(out + s * hd->kd + nope, rows + s * ld + c->kv_lora_rank,
               sizeof(float) * (hd->kd - nope));
}

static void expand_values(const struct head *hd, size_t pos, size_t n, float *out)
{
    const struct sl_graph *g = hd->g;
    g->k.mul(&hd->w_v, 0, g->c->v_head_dim, latent_row(g, hd->part, pos), row_floats(g->c), (int)n,
             out, hd->vd);
}

/* Puts all keys and values in one place: the cache, topped up; or scratch when they fit. */
static void gather(struct head *hd)
{
    const struct sl_graph *g = hd->g;
    const struct sl_config *c = g->c;
    const struct sl_state *st = hd->part->st;
    const size_t ctx = (size_t)st->ctx;
    size_t from = 0;
    if (st->mla_expanded) {
        float *cache = st->mla_expanded[g->l];
        hd->keys = cache + (size_t)hd->h * ctx * hd->kd;
        hd->values = cache + (size_t)c->n_heads * ctx * hd->kd + (size_t)hd->h * ctx * hd->vd;
        from = (size_t)hd->part->n_expanded;
    } else if (hd->n_pos <= strip_rows(g->o.max_ctx)) {
        hd->keys = hd->b.keys;
        hd->values = hd->b.values;
    } else {
        return;
    }
    expand_keys(hd, from, hd->n_pos - from, hd->keys + from * hd->kd);
    expand_values(hd, from, hd->n_pos - from, hd->values + from * hd->vd);
}

/* Scores of the queries of the part's tokens [t, t + n). */
static void score(const struct head *hd, int t, int n, size_t n_pos)
{
    const struct sl_graph *g = hd->g;
    const size_t ldq = (size_t)g->c->n_heads * hd->kd;
    const float *q = g->mla.q + (size_t)(hd->part->tok + t) * ldq + (size_t)hd->h * hd->kd;
    const size_t ctx = (size_t)g->o.max_ctx;
    const size_t strip = hd->keys ? n_pos : SL_GRAPH_STRIP;
    for (size_t s = 0; s < n_pos; s += strip) {
        const size_t rows = n_pos - s < strip ? n_pos - s : strip;
        if (!hd->keys) expand_keys(hd, s, rows, hd->b.keys);
        const float *keys = hd->keys ? hd->keys : hd->b.keys;
        const struct sl_mat w = {.fmt = SL_FMT_F32,
                                 .rows = (int)rows,
                                 .cols = (int)hd->kd,
                                 .codes = (const uint8_t *)keys};
        g->k.mul(&w, 0, (int)rows, q, ldq, n, hd->b.scores + s, ctx);
    }
}

/* out += values of [s0, s1) weighted with p, tile by tile; s0 is on a tile. */
static void add_tiles(const struct head *hd, float *out, const float *p, size_t s0, size_t s1,
                      const float *values)
{
    const struct sl_graph *g = hd->g;
    const int vd = (int)hd->vd;
    for (size_t s = s0; s < s1; s += SL_GRAPH_TILE) {
        const size_t rows = s1 - s < SL_GRAPH_TILE ? s1 - s : SL_GRAPH_TILE;
        const float *v = values + (s - s0) * hd->vd;
        if (s == 0) {
            g->k.weighted_rows(out, p, v, hd->vd, (int)rows, vd);
            continue;
        }
        g->k.weighted_rows(hd->b.part, p + s, v, hd->vd, (int)rows, vd);
        g->k.add(out, out, hd->b.part, vd);
    }
}

/* Queries of the part's tokens [t, t + n), all at once. */
static void attend(const struct head *hd, int t, int n)
{
    const struct sl_graph *g = hd->g;
    const size_t ctx = (size_t)g->o.max_ctx;
    const size_t first = (size_t)hd->part->pos + (size_t)t + 1; /* positions the first query sees */
    const size_t n_pos = first + (size_t)n - 1;
    score(hd, t, n, n_pos);
    const float scale = (float)(1.0 / sqrt((double)hd->kd));
    for (int i = 0; i < n; i++)
        g->k.softmax(hd->b.scores + (size_t)i * ctx, (int)(first + (size_t)i), scale);
    const size_t strip = hd->values ? n_pos : SL_GRAPH_STRIP;
    for (size_t s = 0; s < n_pos; s += strip) {
        const size_t end = n_pos - s < strip ? n_pos : s + strip;
        if (!hd->values) expand_values(hd, s, end - s, hd->b.values);
        const float *values = hd->values ? hd->values : hd->b.values;
        for (int i = 0; i < n; i++) {
            const size_t seen = first + (size_t)i;
            if (seen > s)
                add_tiles(hd, hd->b.out + (size_t)i * hd->vd, hd->b.scores + (size_t)i * ctx, s,
                          seen < end ? seen : end, values);
        }
    }
}

static void gate_rows(const struct head *hd, int t, int n)
{
    const struct sl_graph *g = hd->g;
    const int vd = (int)hd->vd;
    const size_t width = (size_t)g->c->n_heads * hd->vd;
    for (int i = 0; i < n; i++) {
        float *gate =
            g->mla.gate + (size_t)(hd->part->tok + t + i) * width + (size_t)hd->h * hd->vd;
        const float *o = hd->b.out + (size_t)i * hd->vd;
        if (!g->c->mla_output_gate) {
            memcpy(gate, o, sizeof(float) * hd->vd);
            continue;
        }
        g->k.sigmoid(gate, gate, vd);
        g->k.mulv(gate, o, gate, vd);
    }
}

static void head_task(void *ctx, int task, int worker)
{
    const struct heads *hs = ctx;
    struct sl_graph *g = hs->g;
    const struct sl_config *c = g->c;
    const int kv_rows = c->qk_nope_dim + c->v_head_dim;
    const int n_heads = hs->kv_b.rows / kv_rows;
    const int at = task % n_heads;
    const struct sl_part *part = &g->part[task / n_heads];
    struct head hd = {.g = g,
                      .part = part,
                      .h = hs->first + at,
                      .n_pos = (size_t)part->pos + (size_t)part->n,
                      .kd = (size_t)(c->qk_nope_dim + c->qk_rope_dim),
                      .vd = (size_t)c->v_head_dim};
    scratch_of(c, g->o.max_ctx, sl_graph_scratch(g, worker), &hd.b);
    hd.w_k = sl_graph_rows(&hs->kv_b, at * kv_rows, c->qk_nope_dim);
    hd.w_v = sl_graph_rows(&hs->kv_b, at * kv_rows + c->qk_nope_dim, c->v_head_dim);
    gather(&hd);
    for (int t = 0; t < part->n; t += SL_GRAPH_QUERIES) {
        const int n = part->n - t < SL_GRAPH_QUERIES ? part->n - t : SL_GRAPH_QUERIES;
        attend(&hd, t, n);
        gate_rows(&hd, t, n);
    }
}

/* All heads; those of a strip of kv_b at a time when it streams. */
static void run_heads(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_mat *kv_b = &g->layer->attn.mla.kv_b;
    const int rows = c->qk_nope_dim + c->v_head_dim;
    struct heads hs = {.g = g, .kv_b = *kv_b};
    if (!kv_b->stream) {
        sl_graph_run(g, g->n_parts * c->n_heads, head_task, &hs);
        return;
    }
    while (hs.first < c->n_heads && sl_graph_take_strip(g, kv_b, hs.first * rows, &hs.kv_b)) {
        sl_graph_run(g, g->n_parts * (hs.kv_b.rows / rows), head_task, &hs);
        hs.first += hs.kv_b.rows / rows;
        sl_graph_put_strip(g);
    }
}

void sl_graph_mla(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_mla_weights *w = &g->layer->attn.mla;
    project(g);
    sl_graph_run(g, (g->n + SL_GRAPH_TOKENS - 1) / SL_GRAPH_TOKENS, norm_task, g);
    g->segs[0] = (struct sl_seg){.w = &w->q_b,
                                 .x = c->q_lora_rank ? g->mla.q_a : g->x,
                                 .ldx = (size_t)w->q_b.cols,
                                 .y = g->mla.q,
                                 .ldy = (size_t)w->q_b.rows,
                                 .n_tok = g->n};
    sl_graph_mul(g, g->segs, 1);
    if (g->o.fast)
        sl_graph_latent(g);
    else
        run_heads(g);
    g->segs[0] = (struct sl_seg){.w = &w->o,
                                 .x = g->mla.gate,
                                 .ldx = (size_t)c->n_heads * (size_t)c->v_head_dim,
                                 .y = g->y,
                                 .ldy = (size_t)c->hidden_size,
                                 .n_tok = g->n,
                                 .post = SL_POST_RESID,
                                 .fresh = g->layer->opens_block};
    sl_graph_mul(g, g->segs, 1);
}
