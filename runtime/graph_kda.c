/* KDA sublayer (spec 3.3) by the per-token recurrence, in prefill as in decode.
 *
 *   region 1   rows    q, k, v, f_a, beta and gate projections of all tokens
 *   region 2   heads   f_b, convolution, unit q and k, decay, recurrence, norm, gate
 *   region 3   rows    o_proj, added to the stream
 *
 * A head's state (64 KiB in the release) stays in the core's cache for the whole chunk. Heads share
 * nothing, tokens of a head run in order: no cut can change a bit.
 *
 * Traps: A_log is per head, not per channel; 1e-6 is added to the SUM of squares; the norm comes
 * before the gate. All three still read fluently (golden/test_golden_tiny). */
#include <math.h>
#include <string.h>

#include "runtime/graph_parts.h"

enum { Q, K, V };

size_t sl_graph_kda_scratch(const struct sl_config *c)
{
    return (size_t)SL_GRAPH_BATCH * (size_t)c->kda_head_dim + 4 * (size_t)c->kda_head_dim;
}

static void project(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_kda_weights *w = &g->layer->attn.kda;
    const struct sl_kda_bufs *b = &g->kda;
    const size_t channels = (size_t)c->kda_heads * (size_t)c->kda_head_dim;
    const size_t history = ((size_t)c->conv_kernel - 1) * channels;
    const struct {
        const struct sl_mat *w;
        float *y;
        size_t ldy;
    } outs[] = {{&w->q, b->z[Q] + history, channels},       {&w->k, b->z[K] + history, channels},
                {&w->v, b->z[V] + history, channels},       {&w->g, b->gate, channels},
                {&w->f_a, b->f_a, (size_t)c->kda_head_dim}, {&w->b, b->b, (size_t)c->kda_heads}};
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

/* Before the chunk: its first taps - 1 rows are the state's. After: the state is its last ones. */
static void move_history(struct sl_graph *g, int head, bool out)
{
    const struct sl_config *c = g->c;
    const size_t d = (size_t)c->kda_head_dim;
    const size_t channels = (size_t)c->kda_heads * d;
    const size_t rows = (size_t)c->conv_kernel - 1;
    float *conv = g->st->kda_conv[g->l] + (size_t)head * d;
    for (size_t i = 0; i < 3; i++) {
        for (size_t r = 0; r < rows; r++) {
            float *kept = conv + (i * rows + r) * channels;
            float *z = g->kda.z[i] + (out ? r + (size_t)g->n : r) * channels + (size_t)head * d;
            memcpy(out ? kept : z, out ? z : kept, sizeof(float) * d);
        }
    }
}

struct head_vectors {
    float *alpha; /* [SL_GRAPH_BATCH][d]: f, then decay */
    float *qkv[3];
    float *o;
};

static void head_token(struct sl_graph *g, int head, int tok, float *alpha,
                       const struct head_vectors *hv)
{
    const struct sl_config *c = g->c;
    const struct sl_kda_weights *w = &g->layer->attn.kda;
    const int d = c->kda_head_dim;
    const int taps = c->conv_kernel;
    const size_t channels = (size_t)c->kda_heads * (size_t)d;
    const size_t at = (size_t)head * (size_t)d; /* first channel of the head */
    for (int i = 0; i < 3; i++) {
        const float *z = g->kda.z[i] + (size_t)tok * channels + at;
        g->k.conv(hv->qkv[i], w->conv[i] + at * (size_t)taps, z, channels,
                  z + (size_t)(taps - 1) * channels, d, taps);
    }
    unit(g, hv->qkv[Q], d, (float)(1.0 / sqrt((double)d)));
    unit(g, hv->qkv[K], d, 1.0f);

    const float *dt = w->dt_bias + at;
    const float low = (float)c->gate_lower_bound;
    for (int i = 0; i < d; i++) alpha[i] = w->exp_A[head] * (alpha[i] + dt[i]);
    g->k.sigmoid(alpha, alpha, d);
    for (int i = 0; i < d; i++) alpha[i] = low * alpha[i];
    g->k.exp(alpha, alpha, d);

    float beta;
    g->k.sigmoid(&beta, g->kda.b + (size_t)tok * (size_t)c->kda_heads + head, 1);
    float *S = g->st->kda_S[g->l] + at * (size_t)d;
    g->k.kda_step(S, hv->qkv[Q], hv->qkv[K], hv->qkv[V], alpha, beta, hv->o, d);

    float *gate = g->kda.gate + (size_t)tok * channels + at;
    g->k.rmsnorm(hv->o, hv->o, w->o_norm, d, (float)c->rms_norm_eps);
    g->k.sigmoid(gate, gate, d);
    g->k.mulv(gate, hv->o, gate, d);
}

static void head_task(void *ctx, int head, int worker)
{
    struct sl_graph *g = ctx;
    const int d = g->c->kda_head_dim;
    const struct sl_mat f_b = sl_graph_rows(&g->layer->attn.kda.f_b, head * d, d);
    struct head_vectors hv = {.alpha = sl_graph_scratch(g, worker)};
    float *next = hv.alpha + (size_t)SL_GRAPH_BATCH * (size_t)d;
    for (int i = 0; i < 3; i++, next += d) hv.qkv[i] = next;
    hv.o = next;
    move_history(g, head, false);
    for (int t = 0; t < g->n; t += SL_GRAPH_BATCH) {
        const int n = g->n - t < SL_GRAPH_BATCH ? g->n - t : SL_GRAPH_BATCH;
        g->k.mul(&f_b, 0, d, g->kda.f_a + (size_t)t * (size_t)d, (size_t)d, n, hv.alpha, (size_t)d);
        for (int i = 0; i < n; i++)
            head_token(g, head, t + i, hv.alpha + (size_t)i * (size_t)d, &hv);
    }
    move_history(g, head, true);
}

void sl_graph_kda(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    project(g);
    sl_graph_run(g, c->kda_heads, head_task, g);
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
