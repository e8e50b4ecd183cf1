/* KDA sublayer (spec 3.3) by the per-token recurrence, in prefill as in decode.
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
 * Traps: A_log is per head, not per channel; 1e-6 is added to the SUM of squares; the norm comes
 * before the gate. All three still read fluently (golden/test_golden_tiny). */
#include <math.h>
#include <string.h>

#include "runtime/graph_parts.h"

enum { Q, K, V };

size_t sl_graph_kda_scratch(const struct sl_config *c)
{
    return ((size_t)SL_GRAPH_BATCH + 4 + (size_t)c->conv_kernel - 1) * (size_t)c->kda_head_dim;
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
    float *alpha; /* [SL_GRAPH_BATCH][d]: f, then decay */
    float *qkv[3];
    float *o;
    float *window; /* [taps - 1][d] */
};

/* The state's row r of channel group i (q, k, v), at the head's first channel. */
static float *kept_row(const struct head *hd, size_t i, size_t r)
{
    const struct sl_config *c = hd->g->c;
    const size_t d = (size_t)c->kda_head_dim;
    const size_t rows = (size_t)c->conv_kernel - 1;
    return hd->part->st->kda_conv[hd->g->l] +
           ((i * rows + r) * (size_t)c->kda_heads + (size_t)hd->h) * d;
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
    if (t == 0) return kept_row(hd, i, 0);
    *ld = d;
    for (size_t r = 0; r < rows; r++)
        memcpy(hd->window + r * d,
               t + r < rows ? kept_row(hd, i, t + r) : fresh_row(hd, i, t + r - rows),
               sizeof(float) * d);
    return hd->window;
}

/* After the part: the state is the last taps - 1 rows seen. */
static void keep_history(const struct head *hd)
{
    const size_t d = (size_t)hd->g->c->kda_head_dim;
    const size_t rows = (size_t)hd->g->c->conv_kernel - 1;
    const size_t n = (size_t)hd->part->n;
    for (size_t i = 0; i < 3; i++)
        for (size_t r = 0; r < rows; r++)
            memcpy(kept_row(hd, i, r),
                   n + r < rows ? kept_row(hd, i, n + r) : fresh_row(hd, i, n + r - rows),
                   sizeof(float) * d);
}

static void head_token(const struct head *hd, int t, float *alpha)
{
    struct sl_graph *g = hd->g;
    const struct sl_config *c = g->c;
    const struct sl_kda_weights *w = &g->layer->attn.kda;
    const int d = c->kda_head_dim;
    const int taps = c->conv_kernel;
    const size_t channels = (size_t)c->kda_heads * (size_t)d;
    const size_t at = (size_t)hd->h * (size_t)d; /* first channel of the head */
    const size_t tok = (size_t)hd->part->tok + (size_t)t;
    for (size_t i = 0; i < 3; i++) {
        size_t ld;
        const float *before = history(hd, i, (size_t)t, &ld);
        g->k.conv(hd->qkv[i], w->conv[i] + at * (size_t)taps, before, ld,
                  fresh_row(hd, i, (size_t)t), d, taps);
    }
    unit(g, hd->qkv[Q], d, (float)(1.0 / sqrt((double)d)));
    unit(g, hd->qkv[K], d, 1.0f);

    const float *dt = w->dt_bias + at;
    const float low = (float)c->gate_lower_bound;
    for (int i = 0; i < d; i++) alpha[i] = w->exp_A[hd->h] * (alpha[i] + dt[i]);
    g->k.sigmoid(alpha, alpha, d);
    for (int i = 0; i < d; i++) alpha[i] = low * alpha[i];
    g->k.exp(alpha, alpha, d);

    float beta;
    g->k.sigmoid(&beta, g->kda.b + tok * (size_t)c->kda_heads + (size_t)hd->h, 1);
    float *S = hd->part->st->kda_S[g->l] + at * (size_t)d;
    g->k.kda_step(S, hd->qkv[Q], hd->qkv[K], hd->qkv[V], alpha, beta, hd->o, d);

    float *gate = g->kda.gate + tok * channels + at;
    g->k.rmsnorm(hd->o, hd->o, w->o_norm, d, (float)c->rms_norm_eps);
    g->k.sigmoid(gate, gate, d);
    g->k.mulv(gate, hd->o, gate, d);
}

static void head_task(void *ctx, int task, int worker)
{
    struct sl_graph *g = ctx;
    const int d = g->c->kda_head_dim;
    struct head hd = {.g = g,
                      .part = &g->part[task / g->c->kda_heads],
                      .h = task % g->c->kda_heads,
                      .alpha = sl_graph_scratch(g, worker)};
    const struct sl_mat f_b = sl_graph_rows(&g->layer->attn.kda.f_b, hd.h * d, d);
    float *next = hd.alpha + (size_t)SL_GRAPH_BATCH * (size_t)d;
    for (int i = 0; i < 3; i++, next += d) hd.qkv[i] = next;
    hd.o = next;
    hd.window = next + d;
    const float *f_a = g->kda.f_a + (size_t)hd.part->tok * (size_t)d;
    for (int t = 0; t < hd.part->n; t += SL_GRAPH_BATCH) {
        const int n = hd.part->n - t < SL_GRAPH_BATCH ? hd.part->n - t : SL_GRAPH_BATCH;
        g->k.mul(&f_b, 0, d, f_a + (size_t)t * (size_t)d, (size_t)d, n, hd.alpha, (size_t)d);
        for (int i = 0; i < n; i++) head_token(&hd, t + i, hd.alpha + (size_t)i * (size_t)d);
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
