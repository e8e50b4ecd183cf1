/* Which state of a token names a later layer's experts best, and what a fitted map adds.
 *
 *   tool_lookahead PACK CALIB VALID [calib tokens] [valid tokens] [lambda]     ids as u16, or a text
 *
 * Windows of 256 tokens, exact path. For each MoE layer l and target t = l + 1 or l + 2, the router of t
 * is run on several states; then with maps fitted on CALIB (towards the plain router), and scored on
 * VALID. A line is the mean over layers; --layers adds a line each. Figures: share of the first 1, 6 and
 * top_k named that were then chosen, and share of the chosen among the first 2 * top_k named. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "quant/ridge.h"
#include "runtime/cli_input.h"
#include "runtime/engine.h"

enum { WINDOW = 256, RANK = 16, MAX_K = 64 };

enum state {
    FFN_IN,
    ATTN_IN,
    MIX_EARLY,
    RESID_EARLY,
    RESID_LATE,
    MIX_LATE,
    NEXT_ATTN_IN,
    N_STATES
};
static const char *const state_names[] = {"FFN input",
                                          "attention input",
                                          "mix of the target, before the FFN",
                                          "residual, before the FFN",
                                          "residual, after the layer",
                                          "mix of the target, after the layer",
                                          "next layer's attention input"};
enum map { PLAIN, DIAG, LOW, FULL, N_MAPS };
static const char *const map_names[] = {"plain", "diagonal", "rank 16", "full"};

static sluice_session *ses;
static const struct sl_model *model;
static const struct sl_config *cfg;
static size_t H, E;
static int K, N;                      /* tokens of the window in hand */
static float *seen[4][SL_MAX_LAYERS]; /* attn_in, ffn_in, ffn_out, resid: [WINDOW][H] */
static float *embedded;               /* [WINDOW][H] */
static int *chosen[SL_MAX_LAYERS];    /* [WINDOW][K] */

static void *get(size_t n)
{
    void *p = calloc(n, 1);
    if (!p) exit(1);
    return p;
}

static void see(void *ctx, enum sl_point point, int layer, uint64_t position, int n,
                const void *data)
{
    (void)ctx;
    static const int of[] = {[SL_POINT_ATTN_IN] = 1,
                             [SL_POINT_FFN_IN] = 2,
                             [SL_POINT_FFN_OUT] = 3,
                             [SL_POINT_RESID] = 4,
                             [SL_POINT_HIDDEN] = 0};
    if (point == SL_POINT_ROUTE) {
        const struct sl_route *r = data;
        for (int t = 0; t < n; t++)
            memcpy(chosen[layer] + (position + (size_t)t) * (size_t)K, r[t].ids,
                   (size_t)K * sizeof(int));
    } else if (of[point]) {
        memcpy(seen[of[point] - 1][layer] + position * H, data, (size_t)n * H * sizeof(float));
    }
}

static void feed(const int32_t *ids, int n)
{
    sluice_error e = {0};
    N = n;
    sluice_session_reset(ses);
    if (sluice_feed(ses, ids, (size_t)n, &e)) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    for (int t = 0; t < n; t++) sl_mat_decode_row(&model->embed, ids[t], embedded + (size_t)t * H);
}

/* p of token t before the FFN of layer l, or after the layer. */
static void stream_of(float *p, int l, int t, bool late)
{
    memcpy(p, seen[3][l] + (size_t)t * H, H * sizeof(float));
    for (size_t i = 0; i < H && !late; i++) p[i] -= seen[2][l][(size_t)t * H + i];
}

static void mix(float *x, int l, int target, int t, bool late)
{
    static float *v;
    float s[SL_MAX_LAYERS + 1];
    int n = 0;
    const struct sl_layer *w = &model->layers[target];
    if (!v) v = get((SL_MAX_LAYERS + 1) * H * sizeof(float));
    for (int b = 0; b <= l; b++)
        if (model->layers[b].opens_block)
            memcpy(v + (size_t)n++ * H, (b ? seen[3][b - 1] : embedded) + (size_t)t * H,
                   H * sizeof(float));
    stream_of(v + (size_t)n++ * H, l, t, late);
    for (int i = 0; i < n; i++) {
        const float *row = v + (size_t)i * H;
        const float rms =
            sqrtf(ses->kernels.dot(row, row, (int)H) / (float)H + (float)cfg->rms_norm_eps);
        s[i] = ses->kernels.dot(w->ffn_mix, row, (int)H) / rms;
    }
    ses->kernels.softmax(s, n, 1.0f);
    ses->kernels.weighted_rows(x, s, v, H, n, (int)H);
    ses->kernels.rmsnorm(x, x, w->post_norm, (int)H, (float)cfg->rms_norm_eps);
}

static void state_row(float *x, enum state s, int l, int target, int t)
{
    const float *to = model->layers[target].post_norm;
    const float *from = s == FFN_IN ? model->layers[l].post_norm
                        : s == ATTN_IN
                            ? model->layers[l].input_norm
                            : model->layers[l + 1 < cfg->n_layers ? l + 1 : l].input_norm;
    const float *row = s == FFN_IN ? seen[1][l] : s == ATTN_IN ? seen[0][l] : seen[0][l + 1];
    switch (s) {
    case MIX_EARLY:
    case MIX_LATE:
        mix(x, l, target, t, s == MIX_LATE);
        return;
    case RESID_EARLY:
    case RESID_LATE:
        stream_of(x, l, t, s == RESID_LATE);
        ses->kernels.rmsnorm(x, x, to, (int)H, (float)cfg->rms_norm_eps);
        return;
    default: /* the norm that the target would have used in place of the one that was */
        for (size_t i = 0; i < H; i++)
            x[i] = fabsf(from[i]) > 1e-6f ? row[(size_t)t * H + i] * to[i] / from[i] : 0;
    }
}

struct fit {
    struct sl_ridge ridge;
    double *xx, *xy; /* [H]: of the diagonal map */
    float *W[N_MAPS], *b[N_MAPS];
    double named[N_MAPS][4]; /* at 1, 6, K, 2K */
};

static void add_fit(struct fit *f, const float *x, const float *goal, const float *plain,
                    const float *next)
{
    static float *work, *y;
    if (!work) {
        work = get(sl_ridge_work_floats(WINDOW, (int)H, (int)E) * sizeof(float));
        y = get(WINDOW * E * sizeof(float));
    }
    for (size_t i = 0; i < (size_t)N * E; i++) y[i] = goal[i] - plain[i];
    sl_ridge_pack(&f->ridge, work, x, H, y, E, N);
    sl_ridge_add(&f->ridge, work, N, 0, (int)H + 1, &ses->kernels);
    for (size_t t = 0; t < (size_t)N; t++)
        for (size_t i = 0; i < H; i++) {
            f->xx[i] += (double)x[t * H + i] * (double)x[t * H + i];
            f->xy[i] += (double)x[t * H + i] * (double)next[t * H + i];
        }
}

/* low = the part of `corr` [E][H] in the best RANK directions of its outputs, by orthogonal iteration
 * on C = corr G corr', G the Gram matrix of the inputs. */
static void lower(float *low, const float *corr, const struct sl_ridge *r)
{
    const size_t ld = H + 1 + E;
    double *cg = get(E * H * sizeof *cg), *C = get(E * E * sizeof *C);
    double *U = get(RANK * E * sizeof *U), *V = get(RANK * E * sizeof *V);
    for (size_t e = 0; e < E; e++)
        for (size_t i = 0; i < H; i++)
            for (size_t j = 0; j < H; j++)
                cg[e * H + j] += (double)corr[e * H + i] * r->sums[i * ld + j];
    for (size_t e = 0; e < E; e++)
        for (size_t f = 0; f < E; f++)
            for (size_t j = 0; j < H; j++) C[e * E + f] += cg[e * H + j] * (double)corr[f * H + j];
    for (size_t i = 0; i < RANK * E; i++) U[i] = (double)((i * 2654435761u) % 1000) / 500 - 1;
    for (int round = 0; round < 60; round++) {
        for (size_t q = 0; q < RANK; q++) {
            double *v = V + q * E, norm = 0;
            for (size_t e = 0; e < E; e++) {
                v[e] = 0;
                for (size_t f = 0; f < E; f++) v[e] += C[e * E + f] * U[q * E + f];
            }
            for (size_t p = 0; p < q; p++) {
                double d = 0;
                for (size_t e = 0; e < E; e++) d += v[e] * V[p * E + e];
                for (size_t e = 0; e < E; e++) v[e] -= d * V[p * E + e];
            }
            for (size_t e = 0; e < E; e++) norm += v[e] * v[e];
            for (size_t e = 0; e < E; e++) v[e] /= sqrt(norm) + 1e-300;
        }
        memcpy(U, V, RANK * E * sizeof *U);
    }
    for (size_t i = 0; i < H; i++)
        for (size_t q = 0; q < RANK; q++) {
            double d = 0;
            for (size_t e = 0; e < E; e++) d += U[q * E + e] * (double)corr[e * H + i];
            for (size_t e = 0; e < E; e++) low[e * H + i] += (float)(d * U[q * E + e]);
        }
    free(cg);
    free(C);
    free(U);
    free(V);
}

static void solve_fit(struct fit *f, int target, double lambda)
{
    struct sl_err err = {0};
    float *router = get(E * H * sizeof(float));
    for (int e = 0; e < (int)E; e++)
        sl_mat_decode_row(&model->layers[target].router, e, router + (size_t)e * H);
    for (int m = 0; m < N_MAPS; m++) {
        f->W[m] = get(E * H * sizeof(float));
        f->b[m] = get(E * sizeof(float));
    }
    if (sl_ridge_solve(&f->ridge, lambda, ses->pool, f->W[FULL], f->b[FULL], &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    lower(f->W[LOW], f->W[FULL], &f->ridge);
    memcpy(f->b[LOW], f->b[FULL], E * sizeof(float));
    for (size_t i = 0; i < E * H; i++) {
        f->W[PLAIN][i] = router[i];
        f->W[LOW][i] += router[i];
        f->W[FULL][i] += router[i];
        f->W[DIAG][i] = router[i] * (float)(f->xy[i % H] / (f->xx[i % H] + 1e-30));
    }
    free(router);
}

static void score(struct fit *f, int m, int target, const float *x)
{
    static float *z;
    if (!z) z = get(WINDOW * E * sizeof(float));
    const struct sl_mat W = {
        .fmt = SL_FMT_F32, .rows = (int)E, .cols = (int)H, .codes = (const uint8_t *)f->W[m]};
    ses->kernels.mul(&W, 0, (int)E, x, H, N, z, E);
    const int most = 2 * K < (int)E ? 2 * K : (int)E, at[4] = {1, 6, K, most};
    for (int t = 0; t < N; t++) {
        float *key = z + (size_t)t * E;
        const int *right = chosen[target] + t * K;
        for (size_t e = 0; e < E; e++) key[e] += f->b[m][e];
        ses->kernels.sigmoid(key, key, (int)E);
        for (size_t e = 0; e < E; e++) key[e] += model->layers[target].router_bias[e];
        int hits = 0;
        for (int rank = 0; rank < most; rank++) {
            size_t best = 0;
            for (size_t e = 1; e < E; e++)
                if (key[e] > key[best]) best = e;
            key[best] = -INFINITY;
            for (int j = 0; j < K; j++) hits += right[j] == (int)best;
            for (int i = 0; i < 4; i++)
                if (at[i] == rank + 1) f->named[m][i] += (double)hits / (i == 3 ? K : rank + 1);
        }
    }
}

static struct fit *fits; /* [layer][ahead - 1][state] */

static struct fit *fit_at(int l, int ahead, int s)
{
    return &fits[(l * 2 + ahead - 1) * N_STATES + s];
}

static bool wanted(int l, int ahead, int s)
{
    if (l + ahead >= cfg->n_layers || !model->layers[l].is_moe) return false;
    return ahead == 1 || s == FFN_IN || s == MIX_EARLY; /* two ahead: what is known early */
}

static void all(bool fitting)
{
    static float *x, *goal, *plain;
    if (!x) {
        x = get(WINDOW * H * sizeof(float));
        goal = get(WINDOW * E * sizeof(float));
        plain = get(WINDOW * E * sizeof(float));
    }
    for (int l = 0; l < cfg->n_layers; l++)
        for (int ahead = 1; ahead <= 2; ahead++)
            for (int s = 0; s < N_STATES; s++) {
                if (!wanted(l, ahead, s)) continue;
                const struct sl_mat *router = &model->layers[l + ahead].router;
                for (int t = 0; t < N; t++)
                    state_row(x + (size_t)t * H, (enum state)s, l, l + ahead, t);
                if (fitting) {
                    ses->kernels.mul(router, 0, (int)E, seen[1][l + ahead], H, N, goal, E);
                    ses->kernels.mul(router, 0, (int)E, x, H, N, plain, E);
                    add_fit(fit_at(l, ahead, s), x, goal, plain, seen[1][l + ahead]);
                }
                for (int m = 0; m < N_MAPS && !fitting; m++)
                    score(fit_at(l, ahead, s), m, l + ahead, x);
            }
}

static void report(bool layers, double n)
{
    printf("| ahead | state | map | @1 | @6 | @%d | chosen in first %d "
           "|\n|---|---|---|---|---|---|---|\n",
           K, 2 * K);
    for (int ahead = 1; ahead <= 2; ahead++)
        for (int s = 0; s < N_STATES; s++)
            for (int m = 0; m < N_MAPS; m++) {
                double sum[4] = {0};
                int count = 0;
                for (int l = 0; l < cfg->n_layers; l++) {
                    if (!wanted(l, ahead, s)) continue;
                    const double *v = fit_at(l, ahead, s)->named[m];
                    count++;
                    for (int i = 0; i < 4; i++) sum[i] += v[i] / n;
                    if (layers)
                        printf("| %d, layer %d | %s | %s | %.1f | %.1f | %.1f | %.1f |\n", ahead, l,
                               state_names[s], map_names[m], 100 * v[0] / n, 100 * v[1] / n,
                               100 * v[2] / n, 100 * v[3] / n);
                }
                if (count)
                    printf("| %d | %s | %s | %.1f | %.1f | %.1f | %.1f |\n", ahead, state_names[s],
                           map_names[m], 100 * sum[0] / count, 100 * sum[1] / count,
                           100 * sum[2] / count, 100 * sum[3] / count);
            }
}

static size_t load(struct sl_ids *ids, const sluice_pack *p, const char *path)
{
    struct sl_err err = {0};
    char *text;
    size_t len;
    int rc;
    if (strstr(path, ".u16")) {
        rc = sl_input_ids_file(ids, path, sluice_vocab_size(p), &err);
    } else {
        rc = sl_input_text(&text, &len, path, &err);
        if (!rc) rc = sl_input_documents(ids, p, text, len, path, &err);
    }
    if (rc) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return ids->n / WINDOW;
}

int main(int argc, char **argv)
{
    sluice_pack *p;
    sluice_error e = {0};
    struct sl_ids calib = {0}, valid = {0};
    const sluice_options o = {.chunk = WINDOW, .ctx = WINDOW};
    const bool layers = argc > 1 && strcmp(argv[1], "--layers") == 0;
    argc -= layers;
    argv += layers;
    if (argc < 4) {
        fprintf(stderr, "usage: tool_lookahead [--layers] PACK CALIB VALID [calib tokens] [valid "
                        "tokens] [lambda]\n");
        return 2;
    }
    if (sluice_pack_open(&p, argv[1], &o, &e) || sluice_session_open(&ses, p, &o, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    model = p->model;
    cfg = &model->cfg;
    H = (size_t)cfg->hidden_size;
    E = (size_t)cfg->n_experts;
    K = cfg->top_k;
    size_t n[2] = {load(&calib, p, argv[2]), load(&valid, p, argv[3])};
    for (int i = 0; i < 2; i++) {
        const size_t most = argc > 4 + i ? strtoull(argv[4 + i], NULL, 10) / WINDOW : 40;
        if (most < n[i]) n[i] = most;
    }
    const double lambda = argc > 6 ? strtod(argv[6], NULL) : 1e-3;
    embedded = get(WINDOW * H * sizeof(float));
    fits = get((size_t)cfg->n_layers * 2 * N_STATES * sizeof *fits);
    for (int l = 0; l < cfg->n_layers; l++) {
        for (int i = 0; i < 4; i++) seen[i][l] = get(WINDOW * H * sizeof(float));
        chosen[l] = get(WINDOW * (size_t)K * sizeof(int));
        for (int ahead = 1; ahead <= 2; ahead++)
            for (int s = 0; s < N_STATES; s++) {
                struct fit *f = fit_at(l, ahead, s);
                if (!wanted(l, ahead, s)) continue;
                if (sl_ridge_open(&f->ridge, (int)H, (int)E, NULL)) return 1;
                f->xx = get(H * sizeof(double));
                f->xy = get(H * sizeof(double));
            }
    }
    const struct sl_observer see_all = {.see = see};
    sl_graph_observe(ses->graph, &see_all);
    for (size_t w = 0; w < n[0]; w++) {
        feed(calib.v + w * WINDOW, WINDOW);
        all(true);
    }
    for (int l = 0; l < cfg->n_layers; l++)
        for (int ahead = 1; ahead <= 2; ahead++)
            for (int s = 0; s < N_STATES; s++)
                if (wanted(l, ahead, s)) solve_fit(fit_at(l, ahead, s), l + ahead, lambda);
    for (size_t w = 0; w < n[1]; w++) {
        feed(valid.v + w * WINDOW, WINDOW);
        all(false);
    }
    printf("%zu calibration tokens, %zu validation tokens, lambda %g\n\n", n[0] * WINDOW,
           n[1] * WINDOW, lambda);
    report(layers, (double)(n[1] * WINDOW));
    sluice_session_close(ses);
    sluice_pack_close(p);
    return 0;
}
