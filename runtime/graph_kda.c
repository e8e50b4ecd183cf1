/* KDA sublayer (spec 3.3): by the per-token recurrence on the exact path, in prefill as in decode; by tiles
 * of 16 positions on the fast one (kernels/kda_tile.h), as many rows of a tile at a time as there are.
 *
 *   region 1   rows    q, k, v, f_a, beta and gate projections of all tokens
 *   region 2   heads   f_b, convolution, unit q and k, decay, recurrence, norm, gate; of each sequence
 *   region 3   rows    o_proj, added to the stream
 *
 * A head's state (64 KiB in the release) stays in the core's cache for the whole chunk. Heads share
 * nothing, tokens of a head run in order: no cut can change a bit.
 *
 * Projections of all sequences lie together. What the convolution reads before a sequence's first token
 * is its state; only the first taps - 1 tokens of a part look across that seam.
 *
 * Fast: S is read once a call and tile, written once a tile: when its first successor comes. Rows of a tile
 * depend on earlier ones alone, in one order, so that chunks do not change bits there either.
 *
 * Traps: A_log is per head, not per channel; 1e-6 is added to the SUM of squares; the norm comes
 * before the gate. All three still read fluently (golden/test_golden_tiny). */
#include <math.h>
#include <string.h>

#include "runtime/graph_parts.h"

enum { Q, K, V };

/* A worker's vectors of one head. */
struct head_bufs {
    float *g;      /* [SL_GRAPH_BATCH][d]: f, then decay (exact) or its logarithm (fast) */
    float *qkv[3]; /* [rows][d], rows of a tile or 1 */
    float *window; /* [taps - 1][d] */
    float *work;   /* of the tile kernels */
};

static size_t scratch_of(const struct sl_config *c, bool fast, float *base, struct head_bufs *b)
{
    const size_t d = (size_t)c->kda_head_dim;
    const size_t rows = fast ? SL_KDA_TILE : 1;
    const size_t sizes[6] = {SL_GRAPH_BATCH * d,
                             rows * d,
                             rows * d,
                             rows * d,
                             ((size_t)c->conv_kernel - 1) * d,
                             fast ? sl_kda_scratch(c->kda_head_dim) : d};
    float **const at[6] = {&b->g, &b->qkv[Q], &b->qkv[K], &b->qkv[V], &b->window, &b->work};
    size_t used = 0;
    for (int i = 0; i < 6; i++) {
        *at[i] = base ? base + used : NULL;
        used += (sizes[i] + 15) & ~(size_t)15;
    }
    return used;
}

size_t sl_graph_kda_scratch(const struct sl_config *c, bool fast)
{
    struct head_bufs unused;
    return scratch_of(c, fast, NULL, &unused);
}

static void project(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_kda_weights *w = &g->layer->attn.kda;
    const struct sl_kda_bufs *b = &g->kda;
    const size_t channels = (size_t)c->kda_heads * (size_t)c->kda_head_dim;
    const struct {
        const struct sl_mat *w;
        float *y;
        size_t ldy;
    } outs[] = {{&w->q, b->z[Q], channels},
                {&w->k, b->z[K], channels},
                {&w->v, b->z[V], channels},
                {&w->g, b->gate, channels},
                {&w->f_a, b->f_a, (size_t)c->kda_head_dim},
                {&w->b, b->b, (size_t)c->kda_heads}};
    const int n = (int)(sizeof outs / sizeof *outs);
    for (int i = 0; i < n; i++)
        g->segs[i] = (struct sl_seg){.w = outs[i].w,
                                     .x = g->x,
                                     .ldx = (size_t)c->hidden_size,
                                     .y = outs[i].y,
                                     .ldy = outs[i].ldy,
                                     .n_tok = g->n};
    sl_graph_mul(g, g->segs, n);
}

/* x / sqrt(sum of squares + eps) * scale */
static void unit(const struct sl_graph *g, float *x, int d, float scale)
{
    const float length = sqrtf(g->k.dot(x, x, d) + (float)g->c->l2_eps);
    for (int i = 0; i < d; i++) x[i] = x[i] / length * scale;
}

/* One head of one sequence's tokens. */
struct head {
    struct sl_graph *g;
    const struct sl_part *part;
    int h;
    struct head_bufs b;
};

/* Memory of a row of history in the state, at the head's first channel. */
static float *slot_row(const struct head *hd, size_t i, size_t slot)
{
    const struct sl_config *c = hd->g->c;
    const struct sl_state *st = hd->part->st;
    return st->kda_conv[hd->g->l] +
           ((i * (size_t)st->conv_rows + slot) * (size_t)c->kda_heads + (size_t)hd->h) *
               (size_t)c->kda_head_dim;
}

/* The state's row r of channel group i (q, k, v): r = taps - 2 is that of the token before the part. */
static float *kept_row(const struct head *hd, size_t i, size_t r)
{
    const struct sl_state *st = hd->part->st;
    if (!(st->form & SL_STATE_FAST)) return slot_row(hd, i, r);
    const uint64_t rows = (uint64_t)hd->g->c->conv_kernel - 1;
    const uint64_t p = hd->part->pos + (uint64_t)st->conv_rows - rows + r;
    return slot_row(hd, i, (size_t)sl_state_conv_slot(st, p));
}

/* The same of token t of the part. */
static float *fresh_row(const struct head *hd, size_t i, size_t t)
{
    const struct sl_config *c = hd->g->c;
    const size_t d = (size_t)c->kda_head_dim;
    return hd->g->kda.z[i] +
           (((size_t)hd->part->tok + t) * (size_t)c->kda_heads + (size_t)hd->h) * d;
}

/* The taps - 1 rows before token t, oldest first, *ld apart. */
static const float *history(const struct head *hd, size_t i, size_t t, size_t *ld)
{
    const struct sl_config *c = hd->g->c;
    const size_t d = (size_t)c->kda_head_dim;
    const size_t rows = (size_t)c->conv_kernel - 1;
    *ld = (size_t)c->kda_heads * d;
    if (t >= rows) return fresh_row(hd, i, t - rows);
    if (t == 0 && !(hd->part->st->form & SL_STATE_FAST)) return kept_row(hd, i, 0);
    *ld = d;
    for (size_t r = 0; r < rows; r++)
        memcpy(hd->b.window + r * d,
               t + r < rows ? kept_row(hd, i, t + r) : fresh_row(hd, i, t + r - rows),
               sizeof(float) * d);
    return hd->b.window;
}

/* After the part: the state has the last rows seen. */
static void keep_history(const struct head *hd)
{
    const struct sl_state *st = hd->part->st;
    const size_t d = (size_t)hd->g->c->kda_head_dim;
    const size_t rows = (size_t)st->conv_rows;
    const size_t n = (size_t)hd->part->n;
    for (size_t i = 0; i < 3; i++) {
        if (st->form & SL_STATE_FAST) { /* a ring: what is there already stays where it is */
            for (size_t t = n > rows ? n - rows : 0; t < n; t++)
                memcpy(slot_row(hd, i, (size_t)sl_state_conv_slot(st, hd->part->pos + t)),
                       fresh_row(hd, i, t), sizeof(float) * d);
            continue;
        }
        for (size_t r = 0; r < rows; r++)
            memcpy(kept_row(hd, i, r),
                   n + r < rows ? kept_row(hd, i, n + r) : fresh_row(hd, i, n + r - rows),
                   sizeof(float) * d);
    }
}

/* q, k and v of token t to row `row` of the head's vectors; f in g becomes the log decay; beta. */
static float token_inputs(const struct head *hd, int t, int row, float *g)
{
    const struct sl_graph *gr = hd->g;
    const struct sl_config *c = gr->c;
    const struct sl_kda_weights *w = &gr->layer->attn.kda;
    const int d = c->kda_head_dim;
    const int taps = c->conv_kernel;
    const size_t at = (size_t)hd->h * (size_t)d; /* first channel of the head */
    const size_t tok = (size_t)hd->part->tok + (size_t)t;
    float *qkv[3];
    for (size_t i = 0; i < 3; i++) {
        size_t ld;
        const float *before = history(hd, i, (size_t)t, &ld);
        qkv[i] = hd->b.qkv[i] + (size_t)row * (size_t)d;
        gr->k.conv(qkv[i], w->conv[i] + at * (size_t)taps, before, ld, fresh_row(hd, i, (size_t)t),
                   d, taps);
    }
    unit(gr, qkv[Q], d, (float)(1.0 / sqrt((double)d)));
    unit(gr, qkv[K], d, 1.0f);

    const float *dt = w->dt_bias + at;
    const float low = (float)c->gate_lower_bound;
    for (int i = 0; i < d; i++) g[i] = w->exp_A[hd->h] * (g[i] + dt[i]);
    gr->k.sigmoid(g, g, d);
    for (int i = 0; i < d; i++) g[i] = low * g[i];
    float beta;
    gr->k.sigmoid(&beta, gr->kda.b + tok * (size_t)c->kda_heads + (size_t)hd->h, 1);
    return beta;
}

/* Norm and gate of token t's output o, which is changed. */
static void token_output(const struct head *hd, int t, float *o)
{
    const struct sl_graph *g = hd->g;
    const struct sl_config *c = g->c;
    const int d = c->kda_head_dim;
    const size_t tok = (size_t)hd->part->tok + (size_t)t;
    float *gate = g->kda.gate + (tok * (size_t)c->kda_heads + (size_t)hd->h) * (size_t)d;
    g->k.rmsnorm(o, o, g->layer->attn.kda.o_norm, d, (float)c->rms_norm_eps);
    g->k.sigmoid(gate, gate, d);
    g->k.mulv(gate, o, gate, d);
}

static float *head_S(const struct head *hd)
{
    const size_t d = (size_t)hd->g->c->kda_head_dim;
    return hd->part->st->kda_S[hd->g->l] + (size_t)hd->h * d * d;
}

static void step_token(const struct head *hd, int t, float *g)
{
    const struct sl_graph *gr = hd->g;
    const int d = gr->c->kda_head_dim;
    const float beta = token_inputs(hd, t, 0, g);
    gr->k.exp(g, g, d);
    gr->k.kda_step(head_S(hd), hd->b.qkv[Q], hd->b.qkv[K], hd->b.qkv[V], g, beta, hd->b.work, d);
    token_output(hd, t, hd->b.work);
}

/* Tokens [t, t + n) of one tile; their f in g. */
static void tile_tokens(const struct head *hd, int t, int n, float *g)
{
    const struct sl_graph *gr = hd->g;
    const int d = gr->c->kda_head_dim;
    const uint64_t pos = hd->part->pos + (uint64_t)t;
    float beta[SL_KDA_TILE];
    const struct sl_kda_rows p = {.S = head_S(hd),
                                  .tile = hd->part->st->kda_tile[gr->l] +
                                          (size_t)hd->h * sl_kda_tile_floats(d),
                                  .at = (int)(pos % SL_KDA_TILE),
                                  .n = n,
                                  .d = d,
                                  .q = hd->b.qkv[Q],
                                  .k = hd->b.qkv[K],
                                  .v = hd->b.qkv[V],
                                  .g = g,
                                  .beta = beta,
                                  .o = hd->b.qkv[Q],
                                  .ld = (size_t)d,
                                  .scratch = hd->b.work};
    if (p.at == 0 && pos > 0) gr->k.kda_commit(head_S(hd), p.tile, SL_KDA_TILE, d, hd->b.work);
    for (int i = 0; i < n; i++) beta[i] = token_inputs(hd, t + i, i, g + (size_t)i * (size_t)d);
    gr->k.kda_rows(&p);
    for (int i = 0; i < n; i++) token_output(hd, t + i, p.o + (size_t)i * (size_t)d);
}

/* A batch's f is one product; on the fast path batches end where tiles do. */
static int batch_of(const struct head *hd, int t)
{
    int most = SL_GRAPH_BATCH;
    if (hd->part->st->form & SL_STATE_FAST)
        most -= (int)((hd->part->pos + (uint64_t)t) % SL_KDA_TILE);
    return hd->part->n - t < most ? hd->part->n - t : most;
}

_Static_assert(SL_GRAPH_BATCH % SL_KDA_TILE == 0, "batches end where tiles do");

static void head_task(void *ctx, int task, int worker)
{
    struct sl_graph *g = ctx;
    const int d = g->c->kda_head_dim;
    struct head hd = {
        .g = g, .part = &g->part[task / g->c->kda_heads], .h = task % g->c->kda_heads};
    scratch_of(g->c, g->o.fast, sl_graph_scratch(g, worker), &hd.b);
    const struct sl_mat f_b = sl_graph_rows(&g->layer->attn.kda.f_b, hd.h * d, d);
    const float *f_a = g->kda.f_a + (size_t)hd.part->tok * (size_t)d;
    for (int t = 0, n; t < hd.part->n; t += n) {
        n = batch_of(&hd, t);
        g->k.mul(&f_b, 0, d, f_a + (size_t)t * (size_t)d, (size_t)d, n, hd.b.g, (size_t)d);
        for (int i = 0; i < n; i++) {
            float *f = hd.b.g + (size_t)i * (size_t)d;
            if (!g->o.fast) {
                step_token(&hd, t + i, f);
                continue;
            }
            const int left = SL_KDA_TILE - (int)((hd.part->pos + (uint64_t)(t + i)) % SL_KDA_TILE);
            const int rows = n - i < left ? n - i : left;
            tile_tokens(&hd, t + i, rows, f);
            i += rows - 1;
        }
    }
    keep_history(&hd);
}

void sl_graph_kda(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    project(g);
    sl_graph_run(g, g->n_parts * c->kda_heads, head_task, g);
    g->segs[0] = (struct sl_seg){.w = &g->layer->attn.kda.o,
                                 .x = g->kda.gate,
                                 .ldx = (size_t)c->kda_heads * (size_t)c->kda_head_dim,
                                 .y = g->y,
                                 .ldy = (size_t)c->hidden_size,
                                 .n_tok = g->n,
                                 .post = SL_POST_RESID,
                                 .fresh = g->layer->opens_block};
    sl_graph_mul(g, g->segs, 1);
}
