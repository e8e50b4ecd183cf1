/* Maps of look-ahead from a text (lookahead_fit.h).
 *
 * A layer's early state is kept until the next layer's FFN input arrives; what that layer's router makes
 * of the one is regressed on the other, less what it makes of the state itself: the penalty pulls the
 * map towards the plain router. Sums grow in token order. */
#include "runtime/lookahead_fit.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "quant/ridge.h"

/* Penalty relative to the mean square of the inputs. */
#define LAMBDA 0.003

enum { ROWS = 32 }; /* of the sums, a task */

struct sl_ahead_fit {
    sluice_session *s;
    const struct sl_config *c;
    struct sl_ridge *ridge; /* [n_layers]; zeroed where there is no map */
    float *early;           /* [chunk][hidden] of the layer before */
    float *goal, *plain;    /* [chunk][n_experts] */
    float *work;
    /* of the region in progress */
    int layer, n;
    const float *x;
};

uint64_t sl_ahead_fit_bytes(const struct sl_config *c)
{
    uint64_t sum = 0;
    for (int l = 0; l < c->n_layers; l++)
        if (sl_ahead_has(c, l) &&
            !sl_add_u64(sum, sl_ridge_bytes(c->hidden_size, c->n_experts), &sum))
            return UINT64_MAX;
    return sum;
}

/* Scores of ROWS experts, of the layer's input and of the early state. */
static void scores_task(void *ctx, int task, int worker)
{
    (void)worker;
    struct sl_ahead_fit *f = ctx;
    const struct sl_mat *router = &f->s->p->model->layers[f->layer + 1].router;
    const size_t hidden = (size_t)f->c->hidden_size, E = (size_t)f->c->n_experts;
    const int row0 = task * ROWS, row1 = row0 + ROWS < (int)E ? row0 + ROWS : (int)E;
    f->s->kernels.mul(router, row0, row1, f->x, hidden, f->n, f->goal, E);
    f->s->kernels.mul(router, row0, row1, f->early, hidden, f->n, f->plain, E);
}

static void sums_task(void *ctx, int task, int worker)
{
    (void)worker;
    struct sl_ahead_fit *f = ctx;
    const int d = f->c->hidden_size + 1;
    const int row0 = task * ROWS, row1 = row0 + ROWS < d ? row0 + ROWS : d;
    sl_ridge_add(&f->ridge[f->layer], f->work, f->n, row0, row1, &f->s->kernels);
}

static void add(struct sl_ahead_fit *f, int layer, int n, const float *x)
{
    const size_t E = (size_t)f->c->n_experts, hidden = (size_t)f->c->hidden_size;
    f->layer = layer;
    f->n = n;
    f->x = x;
    sl_pool_run(f->s->pool, ((int)E + ROWS - 1) / ROWS, scores_task, f);
    for (size_t i = 0; i < (size_t)n * E; i++) f->goal[i] -= f->plain[i];
    sl_ridge_pack(&f->ridge[layer], f->work, f->early, hidden, f->goal, E, n);
    sl_pool_run(f->s->pool, ((int)hidden + 1 + ROWS - 1) / ROWS, sums_task, f);
}

static void see(void *ctx, enum sl_point point, int layer, uint64_t position, int n,
                const void *data)
{
    struct sl_ahead_fit *f = ctx;
    (void)position;
    if (point == SL_POINT_FFN_IN && layer > 0 && sl_ahead_has(f->c, layer - 1))
        add(f, layer - 1, n, data);
    if (point == SL_POINT_AHEAD)
        memcpy(f->early, data, (size_t)n * (size_t)f->c->hidden_size * sizeof(float));
}

int sl_ahead_fit_open(struct sl_ahead_fit **out, sluice_session *s, uint64_t max_bytes,
                      struct sl_err *err)
{
    const struct sl_config *c = &s->p->pack->cfg;
    const uint64_t sums = sl_ahead_fit_bytes(c);
    const size_t chunk = (size_t)s->plan.panel, E = (size_t)c->n_experts;
    *out = NULL;
    if (sums > max_bytes)
        return sl_fail(err, SL_E_BUDGET, NULL, "look-ahead maps",
                       "their sums take %llu bytes, more than the %llu allowed (--expert-memory)",
                       (unsigned long long)sums, (unsigned long long)max_bytes);
    struct sl_ahead_fit *f = calloc(1, sizeof *f);
    if (!f) return sl_fail(err, SL_E_NOMEM, NULL, "look-ahead maps", "out of memory");
    f->s = s;
    f->c = c;
    f->ridge = calloc((size_t)c->n_layers, sizeof *f->ridge);
    f->early = malloc(chunk * (size_t)c->hidden_size * sizeof *f->early);
    f->goal = malloc(chunk * E * sizeof *f->goal);
    f->plain = malloc(chunk * E * sizeof *f->plain);
    f->work = malloc(sl_ridge_work_floats((int)chunk, c->hidden_size, (int)E) * sizeof *f->work);
    int rc = 0;
    if (!f->ridge || !f->early || !f->goal || !f->plain || !f->work)
        rc = sl_fail(err, SL_E_NOMEM, NULL, "look-ahead maps", "out of memory");
    for (int l = 0; l < c->n_layers && !rc; l++)
        if (sl_ahead_has(c, l)) rc = sl_ridge_open(&f->ridge[l], c->hidden_size, (int)E, err);
    if (rc) {
        sl_ahead_fit_close(f);
        return rc;
    }
    const struct sl_observer o = {.see = see, .ctx = f, .ahead = true};
    sl_graph_observe(s->graph, &o);
    *out = f;
    return 0;
}

void sl_ahead_fit_close(struct sl_ahead_fit *f)
{
    if (!f) return;
    sl_graph_observe(f->s->graph, NULL);
    for (int l = 0; f->ridge && l < f->c->n_layers; l++) sl_ridge_close(&f->ridge[l]);
    free(f->ridge);
    free(f->early);
    free(f->goal);
    free(f->plain);
    free(f->work);
    free(f);
}

/* To the nearest, ties to even; v is finite. */
static uint16_t to_bf16(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Router plus fitted correction. */
static int solve(struct sl_ahead_fit *f, int layer, uint16_t *codes, float *bias,
                 struct sl_err *err)
{
    const size_t hidden = (size_t)f->c->hidden_size;
    const struct sl_mat *router = &f->s->p->model->layers[layer + 1].router;
    float *W = malloc((size_t)f->c->n_experts * hidden * sizeof *W);
    float *row = malloc(hidden * sizeof *row);
    int rc = 0;
    if (!W || !row) rc = sl_fail(err, SL_E_NOMEM, NULL, "look-ahead maps", "out of memory");
    if (!rc) rc = sl_ridge_solve(&f->ridge[layer], LAMBDA, f->s->pool, W, bias, err);
    for (int e = 0; e < f->c->n_experts && !rc; e++) {
        sl_mat_decode_row(router, e, row);
        for (size_t i = 0; i < hidden; i++)
            codes[(size_t)e * hidden + i] = to_bf16(W[(size_t)e * hidden + i] + row[i]);
    }
    free(W);
    free(row);
    return rc;
}

int sl_ahead_fit_save(struct sl_ahead_fit *f, const char *path, struct sl_err *err)
{
    const struct sl_config *c = f->c;
    const size_t E = (size_t)c->n_experts, codes_bytes = E * (size_t)c->hidden_size * 2;
    const size_t each = sl_align_up(codes_bytes + E * sizeof(float), 64);
    struct sl_ahead_map *maps = calloc((size_t)c->n_layers, sizeof *maps);
    unsigned char *all = malloc(each * (size_t)c->n_layers);
    int rc = 0;
    if (!maps || !all) rc = sl_fail(err, SL_E_NOMEM, NULL, "look-ahead maps", "out of memory");
    for (int l = 0; l < c->n_layers && !rc; l++) {
        if (!sl_ahead_has(c, l)) continue;
        float *bias = (float *)(all + each * (size_t)l); /* first: aligned for any width */
        uint16_t *codes = (uint16_t *)(bias + E);
        rc = solve(f, l, codes, bias, err);
        maps[l].w.codes = (const uint8_t *)codes;
        maps[l].bias = bias;
    }
    if (!rc) rc = sl_ahead_maps_save(maps, c, f->s->p->pack->source_sha256, path, err);
    free(maps);
    free(all);
    return rc;
}
