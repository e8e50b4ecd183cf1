/* Sums of calibration, taken by an observer of the graph (calibrate.h).
 *
 * Per layer and chunk: the latents arrive, then the routes, then each expert's hidden rows. Latents are
 * turned into one Gram product for the layer, split by rows over the pool, and one for each expert
 * over its own tokens, an expert a task. Each sum has one writer and grows in token order. */
#include "runtime/calibrate.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

struct sl_calibrator {
    sluice_session *s;
    struct sl_calib *sums;
    struct sl_kernels kernels;
    int chunk, n_threads;
    const float *latent; /* of the chunk in progress, [n][latent] */
    float *pack;         /* Gram work of a whole chunk, of latents or hidden rows */
    float *scratch;      /* [n_threads][scratch_floats]: rows of one expert, then its Gram work */
    size_t scratch_floats;
    int *first, *token; /* tokens by expert, as a counting sort */
    /* of the region in progress */
    struct sl_calib_layer *layer;
    int n, dim;
};

void sl_calibrate_shape(const struct sl_config *c, struct sl_calib_shape *shape, uint8_t *is_moe)
{
    *shape = (struct sl_calib_shape){.n_layers = c->n_layers,
                                     .latent = c->latent_size,
                                     .width = c->moe_intermediate_size,
                                     .n_experts = c->n_experts,
                                     .top_k = c->top_k};
    for (int l = 0; l < c->n_layers; l++) is_moe[l] = sl_config_is_moe(c, l);
}

enum { STRIP = 64 };

static void layer_task(void *ctx, int task, int worker)
{
    struct sl_calibrator *c = ctx;
    (void)worker;
    int row0 = task * STRIP, row1 = row0 + STRIP < c->dim ? row0 + STRIP : c->dim;
    sl_gram_add_f64(c->layer->latent, c->pack, c->n, c->dim, row0, row1, &c->kernels);
}

static void expert_task(void *ctx, int e, int worker)
{
    struct sl_calibrator *c = ctx;
    const size_t L = (size_t)c->sums->shape.latent;
    const int n = c->first[e + 1] - c->first[e];
    float *rows = c->scratch + c->scratch_floats * (size_t)worker,
          *work = rows + (size_t)c->chunk * L;
    double *diag = c->layer->latent_diag + (size_t)e * L;
    if (!n) return;
    for (int i = 0; i < n; i++) {
        const float *x = c->latent + (size_t)c->token[c->first[e] + i] * L;
        memcpy(rows + (size_t)i * L, x, L * sizeof *x);
        for (size_t j = 0; j < L; j++) diag[j] += (double)x[j] * (double)x[j];
    }
    if (!c->layer->latent_e) return;
    sl_gram_pack(work, rows, L, n, (int)L);
    sl_gram_add_f32(c->layer->latent_e + (size_t)e * L * L, work, n, (int)L, 0, (int)L,
                    &c->kernels);
}

/* Distance of every expert's selection score to the score that decided. */
static void add_margins(struct sl_calibrator *c, const struct sl_route *r, const float *bias)
{
    const int E = c->sums->shape.n_experts, k = c->sums->shape.top_k;
    const int last = r->ids[k - 1];
    const float in = r->scores[last] + bias[last], out = in - r->margin;
    uint8_t taken[(1 << 14) / 8] = {0}; /* experts at most: offload/config.c */
    for (int j = 0; j < k; j++) taken[r->ids[j] / 8] |= (uint8_t)(1u << r->ids[j] % 8);
    for (int e = 0; e < E; e++) {
        const bool chosen = taken[e / 8] >> e % 8 & 1;
        const float key = r->scores[e] + bias[e];
        c->layer->margins[(size_t)e * SL_MARGIN_BINS +
                          (size_t)sl_margin_bin(key - (chosen ? out : in))]++;
    }
}

static void sort_tokens(struct sl_calibrator *c, const struct sl_route *routes, int n)
{
    const int E = c->sums->shape.n_experts, k = c->sums->shape.top_k;
    memset(c->first, 0, ((size_t)E + 2) * sizeof *c->first);
    for (int t = 0; t < n; t++)
        for (int j = 0; j < k; j++) c->first[routes[t].ids[j] + 2]++;
    for (int e = 0; e < E; e++) c->first[e + 2] += c->first[e + 1];
    for (int t = 0; t < n; t++)
        for (int j = 0; j < k; j++) c->token[c->first[routes[t].ids[j] + 1]++] = t;
}

static void on_routes(struct sl_calibrator *c, int layer, int n, const struct sl_route *routes)
{
    const float *bias = c->s->p->model->layers[layer].router_bias;
    sort_tokens(c, routes, n);
    for (int e = 0; e < c->sums->shape.n_experts; e++)
        c->layer->counts[e] += (uint64_t)(c->first[e + 1] - c->first[e]);
    for (int t = 0; t < n; t++) add_margins(c, &routes[t], bias);
    c->n = n;
    c->dim = c->sums->shape.latent;
    sl_gram_pack(c->pack, c->latent, (size_t)c->dim, n, c->dim);
    sl_pool_run(c->s->pool, (c->dim + STRIP - 1) / STRIP, layer_task, c);
    sl_pool_run(c->s->pool, c->sums->shape.n_experts, expert_task, c);
}

static void on_hidden(struct sl_calibrator *c, int n, const struct sl_hidden *h)
{
    const size_t W = (size_t)c->sums->shape.width;
    double *diag = c->layer->hidden_diag + (size_t)h->expert * W;
    for (int i = 0; i < n; i++)
        for (size_t j = 0; j < W; j++) {
            double v = (double)h->rows[(size_t)i * h->ld + j];
            diag[j] += v * v;
        }
    if (!c->layer->hidden_e) return;
    sl_gram_pack(c->pack, h->rows, h->ld, n, (int)W);
    sl_gram_add_f32(c->layer->hidden_e + (size_t)h->expert * W * W, c->pack, n, (int)W, 0, (int)W,
                    &c->kernels);
}

static void see(void *ctx, enum sl_point point, int layer, uint64_t position, int n,
                const void *data)
{
    struct sl_calibrator *c = ctx;
    (void)position;
    if (point != SL_POINT_LATENT && point != SL_POINT_ROUTE && point != SL_POINT_HIDDEN) return;
    c->layer = &c->sums->layers[layer];
    if (point == SL_POINT_LATENT) c->latent = data;
    if (point == SL_POINT_ROUTE) on_routes(c, layer, n, data);
    if (point == SL_POINT_HIDDEN) on_hidden(c, n, data);
}

int sl_calibrator_open(struct sl_calibrator **out, sluice_session *s, struct sl_calib *sums,
                       struct sl_err *err)
{
    const struct sl_calib_shape *shape = &sums->shape;
    struct sl_calibrator *c = calloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    c->s = s;
    c->sums = sums;
    c->kernels = s->kernels;
    c->chunk = (int)s->plan.panel;
    c->n_threads = sl_pool_threads(s->pool);
    const int wide = shape->latent > shape->width ? shape->latent : shape->width;
    c->scratch_floats =
        (size_t)c->chunk * (size_t)shape->latent + sl_gram_work_floats(c->chunk, shape->latent);
    c->pack = malloc(sl_gram_work_floats(c->chunk, wide) * sizeof *c->pack);
    c->scratch = malloc(c->scratch_floats * (size_t)c->n_threads * sizeof *c->scratch);
    c->first = malloc(((size_t)shape->n_experts + 2) * sizeof *c->first);
    c->token = malloc((size_t)c->chunk * (size_t)shape->top_k * sizeof *c->token);
    if (!c->pack || !c->scratch || !c->first || !c->token) {
        sl_calibrator_close(c);
        return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    }
    const struct sl_observer o = {.see = see, .ctx = c, .hidden = true};
    sl_graph_observe(s->graph, &o);
    *out = c;
    return 0;
}

void sl_calibrator_close(struct sl_calibrator *c)
{
    if (!c) return;
    sl_graph_observe(c->s->graph, NULL);
    free(c->pack);
    free(c->scratch);
    free(c->first);
    free(c->token);
    free(c);
}

int sl_calibrator_window(struct sl_calibrator *c, const int32_t *ids, size_t n, sluice_error *err)
{
    sluice_session_reset(c->s);
    int rc = sluice_feed(c->s, ids, n, err);
    if (rc) return rc;
    c->sums->tokens += n;
    c->sums->windows++;
    return 0;
}
