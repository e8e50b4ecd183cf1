/* Attention residuals (spec 3.2): what each sublayer reads is a softmax mix of the banked vectors and
 * the running partial sum.
 *
 *   s_i = (V_i . w) / sqrt(mean(V_i^2) + eps)     the score looks at the normed vector
 *   out = sum_i softmax(s)_i V_i                  the sum takes the raw one
 *
 * Mixing normed vectors, banking the mix instead of p, or leaving out the mix before the head all
 * still read fluently; golden/test_golden_tiny compares resid and final with a trace.
 *
 * The square root belongs to a vector, not to w, so it is kept beside each banked vector. Computing
 * it is also where a value that is not finite is found, in the sublayer that made it. */
#include <math.h>
#include <string.h>

#include "runtime/graph_parts.h"

#define TOKENS_A_TASK 4

struct mix_job {
    struct sl_graph *g;
    const float *w;    /* [hidden] mix weight; NULL: take p as it is (nothing is banked) */
    const float *norm; /* [hidden] weight of the norm that follows */
    const int *toks;   /* [n] these tokens alone, x one behind the other; NULL: tokens 0..n-1 */
    int n;
};

/* Root mean square of p, kept; notes a token whose p is not finite. */
static void measure(struct sl_graph *g, int tok)
{
    const int hidden = g->c->hidden_size;
    const float *p = sl_graph_partial(g, tok);
    const float sum = g->k.dot(p, p, hidden);
    if (!isfinite(sum)) sl_graph_note_bad(g, tok);
    g->rms[(size_t)tok * (size_t)g->n_slots + (size_t)g->n_banked] =
        sqrtf(sum / (float)hidden + (float)g->c->rms_norm_eps);
}

static void mix_token(const struct mix_job *job, int tok, int row)
{
    struct sl_graph *g = job->g;
    const int hidden = g->c->hidden_size;
    const int n = g->n_banked + 1;
    const float *v = g->stream + (size_t)tok * g->ld_stream;
    const float *rms = g->rms + (size_t)tok * (size_t)g->n_slots;
    float *x = g->x + (size_t)row * (size_t)hidden;
    measure(g, tok);
    if (!job->w) {
        g->k.rmsnorm(x, sl_graph_partial(g, tok), job->norm, hidden, (float)g->c->rms_norm_eps);
        return;
    }
    float s[SL_MAX_LAYERS + 1];
    const struct sl_mat rows = {
        .fmt = SL_FMT_F32, .rows = n, .cols = hidden, .codes = (const uint8_t *)v};
    g->k.mul(&rows, 0, n, job->w, (size_t)hidden, 1, s, (size_t)n);
    for (int i = 0; i < n; i++) s[i] /= rms[i];
    g->k.softmax(s, n, 1.0f);
    g->k.weighted_rows(x, s, v, (size_t)hidden, n, hidden);
    g->k.rmsnorm(x, x, job->norm, hidden, (float)g->c->rms_norm_eps);
}

static void mix_task(void *ctx, int task, int worker)
{
    (void)worker;
    const struct mix_job *job = ctx;
    const int from = task * TOKENS_A_TASK;
    const int to = from + TOKENS_A_TASK < job->n ? from + TOKENS_A_TASK : job->n;
    for (int i = from; i < to; i++) mix_token(job, job->toks ? job->toks[i] : i, i);
}

static void run_mix(struct mix_job *job)
{
    sl_graph_run(job->g, (job->n + TOKENS_A_TASK - 1) / TOKENS_A_TASK, mix_task, job);
}

struct embed_job {
    struct sl_graph *g;
    const int32_t *ids;
};

/* Rows from the drive, a few tokens a task: each waits for its own read. */
static void embed_task(void *ctx, int task, int worker)
{
    const struct embed_job *job = ctx;
    struct sl_graph *g = job->g;
    uint8_t *page = (uint8_t *)sl_graph_scratch(g, worker);
    page += -(uintptr_t)page & (SL_PAGE - 1);
    const int from = task * TOKENS_A_TASK;
    const int to = from + TOKENS_A_TASK < g->n ? from + TOKENS_A_TASK : g->n;
    for (int t = from; t < to; t++) {
        struct sl_err err = {0};
        struct sl_mat row = g->m->embed;
        int rc =
            sl_trunk_read_row(g->m->trunk, g->m->embed_tensor, job->ids[t], page, &row.codes, &err);
        if (rc) {
            sl_graph_note_failure(g, rc, &err);
            return;
        }
        row.rows = 1;
        sl_mat_decode_row(&row, 0, sl_graph_partial(g, t));
    }
}

size_t sl_graph_embed_scratch(const struct sl_config *c)
{
    const uint64_t row = (uint64_t)c->hidden_size * sizeof(float); /* f32 is the widest */
    return (size_t)(SL_PAGE + sl_trunk_row_room(row)) / sizeof(float);
}

void sl_graph_embed(struct sl_graph *g, const int32_t *ids)
{
    g->n_banked = 0;
    if (!g->m->embed.codes) {
        struct embed_job job = {g, ids};
        sl_graph_run(g, (g->n + TOKENS_A_TASK - 1) / TOKENS_A_TASK, embed_task, &job);
        return;
    }
    for (int t = 0; t < g->n; t++) sl_mat_decode_row(&g->m->embed, ids[t], sl_graph_partial(g, t));
}

int sl_graph_attn_in(struct sl_graph *g, struct sl_err *err)
{
    const struct sl_layer *w = g->layer;
    struct mix_job job = {g, g->n_banked ? w->attn_mix : NULL, w->input_norm, NULL, g->n};
    run_mix(&job);
    if (w->opens_block)
        g->n_banked++; /* p as it was is banked; a new one starts in the next slot */
    return sl_graph_check(g, g->l - 1, g->l ? "output of the FFN" : "embedding", err);
}

int sl_graph_ffn_in(struct sl_graph *g, struct sl_err *err)
{
    struct mix_job job = {g, g->layer->ffn_mix, g->layer->post_norm, NULL, g->n};
    run_mix(&job);
    return sl_graph_check(g, g->l, "output of attention", err);
}

int sl_graph_final(struct sl_graph *g, const int *toks, int n, struct sl_err *err)
{
    struct mix_job job = {g, g->m->out_mix, g->m->final_norm, toks, n};
    run_mix(&job);
    return sl_graph_check(g, g->c->n_layers - 1, "output of the FFN", err);
}

/* ---- look-ahead */

/* The rms of every vector is there: sl_graph_ffn_in measured the last. */
void sl_graph_mix_ahead(const struct sl_graph *g, int tok, float *out)
{
    const struct sl_layer *next = &g->m->layers[g->l + 1];
    const int hidden = g->c->hidden_size;
    const int n = g->n_banked + 1;
    const float *v = g->stream + (size_t)tok * g->ld_stream;
    const float *rms = g->rms + (size_t)tok * (size_t)g->n_slots;
    float s[SL_MAX_LAYERS + 1];
    for (int i = 0; i < n; i++)
        s[i] = g->k.dot(next->ffn_mix, v + (size_t)i * (size_t)hidden, hidden) / rms[i];
    g->k.softmax(s, n, 1.0f);
    g->k.weighted_rows(out, s, v, (size_t)hidden, n, hidden);
    g->k.rmsnorm(out, out, next->post_norm, hidden, (float)g->c->rms_norm_eps);
}

static void see_ahead_task(void *ctx, int tok, int worker)
{
    (void)worker;
    struct sl_graph *g = ctx;
    sl_graph_mix_ahead(g, tok, g->y + (size_t)tok * (size_t)g->c->hidden_size);
}

void sl_graph_see_ahead(struct sl_graph *g)
{
    if (!g->observer.ahead || !sl_ahead_has(g->c, g->l)) return;
    sl_graph_run(g, g->n, see_ahead_task, g);
    sl_graph_see(g, SL_POINT_AHEAD, g->l, g->y);
}
