/* Does the model's arithmetic bear low precision? The figures of docs/stability.md.
 *
 *   tool_stability                      synthetic inputs
 *   tool_stability PACK IDS [tokens]    activations of a lossless pack on a text (ids as u16), and a drift of
 *                                       100,000 tokens over them; tokens 1024
 *
 * Activations: int8 with one scale per 32 and one scale per row, after SiTU-GLU and after SwiGLU on the
 * same pre-activations. KDA: tiles of 16 against the recurrence in f64, at decays inside the bound and
 * outside; states in f32 and bf16 over 100,000 tokens. Errors are rms of the difference over rms. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/input.h"
#include "kernels/act.h"
#include "runtime/cli_input.h"
#include "runtime/engine.h"
#include "tests/runtime/kda_variants.h"

enum { DRIFT = 100000, STREAM = 1024 };

static struct sl_kernels kern;

static void *get(size_t n)
{
    void *p = calloc(n, 1);
    if (!p) exit(1);
    return p;
}

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(seed >> 11) + 0.5) * 0x1p-53;
}

static float normal(void)
{
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

/* ---- activations */

struct act_error {
    double block, block2, row; /* squared errors: a8, a8x2, one int8 scale a row */
    double norm, peak;         /* peak: sum over rows of (max / rms)^2 */
    long rows;
};

static void add_act(struct act_error *e, const float *x, int n)
{
    const int nb = (n + 31) / 32;
    int8_t *q = get((size_t)nb * 128);
    float *scale = get((size_t)nb * sizeof *scale), top = 0;
    double norm = 0;
    for (int i = 0; i < n; i++) {
        top = fmaxf(top, fabsf(x[i]));
        norm += (double)x[i] * (double)x[i];
    }
    if (norm > 0) {
        const double step = (double)top / 127;
        for (int planes = 1; planes <= 2; planes++) {
            sl_act_pack(SL_ACT_NATURAL, planes, x, n, q, scale);
            for (int i = 0; i < n; i++) {
                double s = (double)scale[i / 32];
                double v = planes == 1 ? s * q[i] : s * (256.0 * q[i] + q[nb * 64 + i]);
                *(planes == 1 ? &e->block : &e->block2) += (v - (double)x[i]) * (v - (double)x[i]);
            }
        }
        for (int i = 0; i < n; i++) {
            double d = rint((double)x[i] / step) * step - (double)x[i];
            e->row += d * d;
        }
        e->norm += norm;
        e->peak += (double)top * (double)top / (norm / n);
        e->rows++;
    }
    free(q);
    free(scale);
}

static void print_act(const char *what, const char *act, const struct act_error *e)
{
    printf("| %s | %s | %.1f | %.3f %% | %.4f %% | %.3f %% |\n", what, act,
           sqrt(e->peak / (double)e->rows), 100 * sqrt(e->block / e->norm),
           100 * sqrt(e->block2 / e->norm), 100 * sqrt(e->row / e->norm));
}

static void swiglu(float *y, const float *g, const float *u, int n)
{
    kern.silu(y, g, n);
    for (int i = 0; i < n; i++) y[i] *= u[i];
}

static void act_head(void)
{
    printf("| pre-activations | after | peak / rms | a8 | a8x2 | int8 a row "
           "|\n|---|---|---|---|---|---|\n");
}

static void synthetic_acts(void)
{
    enum { N = 3072, ROWS = 32 };
    static float g[N], u[N], y[N], wide[N];
    act_head();
    for (int i = 0; i < N; i++) wide[i] = expf(normal());
    for (int tails = 0; tails < 2; tails++)
        for (int power = 0; power <= 6; power += 2) {
            const float s = (float)(1 << power);
            struct act_error e[2] = {{0}};
            char what[64];
            for (int r = 0; r < ROWS; r++) {
                for (int i = 0; i < N; i++) {
                    g[i] = s * normal() * (tails ? wide[i] : 1);
                    u[i] = s * normal() * (tails ? wide[i] : 1);
                }
                kern.situ(y, g, u, N, 4, 25);
                add_act(&e[0], y, N);
                swiglu(y, g, u, N);
                add_act(&e[1], y, N);
            }
            snprintf(what, sizeof what, "normal, sigma %g%s", (double)s,
                     tails ? ", lognormal channels" : "");
            print_act(what, "SiTU", &e[0]);
            print_act("", "SwiGLU", &e[1]);
        }
}

/* ---- KDA on synthetic tokens */

struct stream {
    struct kda_tokens t;
    float *data;
};

static struct stream new_stream(int d, int n)
{
    const size_t m = (size_t)d * (size_t)n;
    struct stream s = {.data = get((4 * m + (size_t)n) * sizeof(float))};
    s.t = (struct kda_tokens){
        d, n, s.data, s.data + m, s.data + 2 * m, s.data + 3 * m, s.data + 4 * m};
    return s;
}

static void unit_row(float *x, int d, float length)
{
    float s = 0;
    for (int i = 0; i < d; i++) s += x[i] * x[i];
    for (int i = 0; i < d; i++) x[i] *= length / sqrtf(s + 1e-6f);
}

/* Decays drawn evenly from [low, high]; keys share a direction, as real ones do. */
static struct stream synthetic(int d, int n, float low, float high)
{
    struct stream s = new_stream(d, n);
    const size_t m = (size_t)d * (size_t)n;
    float common[256], *q = s.data, *k = q + m, *v = k + m, *g = v + m, *beta = g + m;
    for (int i = 0; i < d; i++) common[i] = normal();
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < d; c++) {
            const size_t at = (size_t)i * (size_t)d + (size_t)c;
            q[at] = normal() + 0.5f * common[c];
            k[at] = normal() + 0.5f * common[c];
            v[at] = normal();
            g[at] = low + (high - low) * (float)uniform();
        }
        unit_row(q + (size_t)i * (size_t)d, d, 1 / sqrtf((float)d));
        unit_row(k + (size_t)i * (size_t)d, d, 1);
        beta[i] = (float)uniform();
    }
    return s;
}

static double output_error(enum kda_how how, const struct kda_tokens *t, const double *want)
{
    const size_t n = (size_t)t->d * (size_t)t->n;
    struct kda_head h;
    double *o = get(n * sizeof *o);
    if (!kda_open(&h, how, t->d)) exit(1);
    kda_run(&h, &kern, t, o);
    const double e = kda_error(o, want, n);
    kda_close(&h);
    free(o);
    return e;
}

static void print_error(double e)
{
    if (isfinite(e))
        printf(" %.2g |", e);
    else
        printf(" not finite |");
}

static void decays(void)
{
    static const float ranges[][2] = {{-1e-4f, -1e-4f}, {-0.01f, -0.01f}, {-0.1f, -0.1f}, {-1, -1},
                                      {-2, -2},         {-3, -3},         {-4, -4},       {-5, -5},
                                      {-5, 0},          {-5.5f, -5.5f},   {-5.6f, -5.6f}, {-6, -6},
                                      {-8, -8},         {-12, -12},       {-8, 0},        {-20, 0}};
    enum { D = 128, N = 512 };
    printf("\n| log decay a token | largest e^-G of a tile | f32 recurrence | tile f32 | tile bf16 "
           "|\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const float low = ranges[i][0], high = ranges[i][1];
        struct stream s = synthetic(D, N, low, high);
        double *want = get((size_t)D * N * sizeof *want), lowest = 0;
        struct kda_head ref;
        if (!kda_open(&ref, KDA_F64, D)) exit(1);
        kda_run(&ref, &kern, &s.t, want);
        for (int c = 0; c < D; c++)
            for (int t = 0; t < N; t += KDA_TILE) {
                double G = 0;
                for (int j = 0; j < KDA_TILE; j++) G += (double)s.t.g[(t + j) * D + c];
                lowest = fmin(lowest, G);
            }
        if (low < high)
            printf("| %g to %g |", (double)low, (double)high);
        else
            printf("| %g |", (double)low);
        printf(" e^%.0f |", -lowest);
        print_error(output_error(KDA_F32, &s.t, want));
        print_error(output_error(KDA_TILE_F32, &s.t, want));
        print_error(output_error(KDA_TILE_BF16, &s.t, want));
        printf("\n");
        kda_close(&ref);
        free(want);
        free(s.data);
    }
}

/* The stream over and over up to DRIFT tokens, errors of the last 1,024 at four lengths. */
static void drift(const char *name, const struct kda_tokens *t)
{
    static const enum kda_how hows[] = {KDA_F32,        KDA_STATE_BF16, KDA_COMMIT,
                                        KDA_DECAY_BF16, KDA_TILE_F32,   KDA_TILE_BF16};
    enum { HOWS = sizeof hows / sizeof *hows };
    struct kda_head ref, h[HOWS];
    const size_t n = (size_t)t->d * (size_t)t->n;
    double *want = get(n * sizeof *want), *o = get(n * sizeof *o);
    if (!kda_open(&ref, KDA_F64, t->d)) exit(1);
    for (int i = 0; i < HOWS; i++)
        if (!kda_open(&h[i], hows[i], t->d)) exit(1);
    const int last = (DRIFT + t->n - 1) / t->n;
    for (int r = 1; r <= last; r++) {
        const bool shown = r == 1 || r == 10 || r == last;
        kda_run(&ref, &kern, t, want);
        if (shown) printf("| %s | %d |", name, r * t->n);
        for (int i = 0; i < HOWS; i++) {
            kda_run(&h[i], &kern, t, o);
            if (shown) print_error(kda_error(o, want, n));
        }
        if (shown) {
            print_error(kda_state_error(&h[0], &ref));
            print_error(kda_state_error(&h[1], &ref));
            printf("\n");
        }
        name = "";
    }
    kda_close(&ref);
    for (int i = 0; i < HOWS; i++) kda_close(&h[i]);
    free(want);
    free(o);
}

static void drift_head(void)
{
    printf("\n| tokens of a head | tokens | f32 | bf16 state | bf16 state every 16 | bf16 decay | "
           "tile f32 | "
           "tile bf16 | state, f32 | state, bf16 |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n");
}

static void synthetic_drift(void)
{
    static const float decay[] = {-1e-6f, -1e-4f, -0.01f, -1};
    for (size_t i = 0; i < sizeof decay / sizeof *decay; i++) {
        char name[48];
        struct stream s = synthetic(64, STREAM, decay[i], decay[i]);
        snprintf(name, sizeof name, "synthetic, log decay %g", (double)decay[i]);
        drift(name, &s.t);
        free(s.data);
    }
}

/* ---- a model's own values */

struct seen {
    const struct sl_model *m;
    float *attn[SL_MAX_LAYERS], *latent[SL_MAX_LAYERS]; /* [tokens][..] */
    int *ids[SL_MAX_LAYERS];                            /* [tokens][top_k] */
};

static void see(void *ctx, enum sl_point point, int layer, uint64_t position, int n,
                const void *data)
{
    struct seen *s = ctx;
    const struct sl_config *c = &s->m->cfg;
    const size_t H = (size_t)c->hidden_size, L = (size_t)c->latent_size, K = (size_t)c->top_k;
    if (point == SL_POINT_ATTN_IN)
        memcpy(s->attn[layer] + position * H, data, (size_t)n * H * sizeof(float));
    if (point == SL_POINT_LATENT)
        memcpy(s->latent[layer] + position * L, data, (size_t)n * L * sizeof(float));
    const struct sl_route *r = data;
    for (int t = 0; t < n && point == SL_POINT_ROUTE; t++)
        memcpy(s->ids[layer] + (position + (size_t)t) * K, r[t].ids, K * sizeof(int));
}

/* Every 16th expert of every layer, on the tokens routed to it. */
static void real_acts(const struct seen *s, const char *pack, int n_tok)
{
    const struct sl_config *c = &s->m->cfg;
    const int L = c->latent_size, W = c->moe_intermediate_size;
    struct sl_input *in;
    struct sl_err err;
    if (sl_input_open(&in, pack, NULL, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    uint8_t *scratch = get(in->scratch_bytes);
    float *g = get((size_t)W * 3 * sizeof *g), *u = g + W, *y = u + W;
    act_head();
    struct act_error all[2] = {{0}};
    for (int l = 0; l < c->n_layers; l++) {
        struct act_error e[2] = {{0}};
        double g2 = 0;
        for (int x = 0; x < c->n_experts && sl_config_is_moe(c, l); x += 16) {
            struct sl_in_expert ex;
            if (in->ops->read_expert(in, l, x, scratch, &ex, &err)) exit(1);
            const struct sl_mat gate = {.fmt = SL_FMT_MXFP4,
                                        .rows = W,
                                        .cols = L,
                                        .codes = ex.codes[SL_GATE],
                                        .scales = ex.scales[SL_GATE]};
            const struct sl_mat up = {.fmt = SL_FMT_MXFP4,
                                      .rows = W,
                                      .cols = L,
                                      .codes = ex.codes[SL_UP],
                                      .scales = ex.scales[SL_UP]};
            for (int t = 0; t < n_tok; t++) {
                const int *ids = s->ids[l] + (size_t)t * (size_t)c->top_k;
                int k = 0;
                while (k < c->top_k && ids[k] != x) k++;
                if (k == c->top_k) continue;
                const float *lat = s->latent[l] + (size_t)t * (size_t)L;
                kern.mul(&gate, 0, W, lat, (size_t)L, 1, g, (size_t)W);
                kern.mul(&up, 0, W, lat, (size_t)L, 1, u, (size_t)W);
                for (int i = 0; i < W; i++) g2 += (double)g[i] * (double)g[i] / W;
                kern.situ(y, g, u, W, (float)c->situ_beta, (float)c->situ_linear_beta);
                for (int a = 0; a < 2; a++) {
                    if (a) swiglu(y, g, u, W);
                    add_act(&e[a], y, W);
                    add_act(&all[a], y, W);
                }
            }
        }
        if (!e[0].rows) continue;
        char what[48];
        snprintf(what, sizeof what, "layer %d, gate rms %.2f", l, sqrt(g2 / (double)e[0].rows));
        print_act(what, "SiTU", &e[0]);
        print_act("", "SwiGLU", &e[1]);
    }
    print_act("all layers", "SiTU", &all[0]);
    print_act("", "SwiGLU", &all[1]);
    free(g);
    free(scratch);
    sl_input_close(in);
}

/* What head `head` of layer l is given, token by token: spec 3.3 steps 1 to 5. */
static struct stream real_head(const struct seen *s, int l, int head, int n)
{
    const struct sl_config *c = &s->m->cfg;
    const struct sl_kda_weights *w = &s->m->layers[l].attn.kda;
    const int d = c->kda_head_dim, H = c->hidden_size, taps = c->conv_kernel;
    const size_t m = (size_t)d * (size_t)n, at = (size_t)head * (size_t)d;
    struct stream st = new_stream(d, n);
    const struct sl_mat *mats[3] = {&w->q, &w->k, &w->v};
    float *z = get((m + (size_t)(taps - 1) * (size_t)d) * sizeof *z), *f = get(4096 * sizeof *f);
    for (int i = 0; i < 3; i++) {
        float *to = st.data + (size_t)i * m, *rows = z + (size_t)(taps - 1) * (size_t)d;
        for (int t = 0; t < n; t++) {
            float *wide = get((size_t)mats[i]->rows * sizeof *wide);
            kern.mul(mats[i], 0, mats[i]->rows, s->attn[l] + (size_t)t * (size_t)H, (size_t)H, 1,
                     wide, (size_t)mats[i]->rows);
            memcpy(rows + (size_t)t * (size_t)d, wide + at, (size_t)d * sizeof *wide);
            free(wide);
        }
        for (int t = 0; t < n; t++) {
            float *row = to + (size_t)t * (size_t)d, *past = z + (size_t)t * (size_t)d;
            kern.conv(row, w->conv[i] + at * (size_t)taps, past, (size_t)d,
                      past + (size_t)(taps - 1) * (size_t)d, d, taps);
            if (i < 2) unit_row(row, d, i ? 1 : 1 / sqrtf((float)d));
        }
    }
    float *g = st.data + 3 * m, *beta = st.data + 4 * m;
    float *all = get((size_t)w->f_b.rows * sizeof *all);
    for (int t = 0; t < n; t++) {
        const float *x = s->attn[l] + (size_t)t * (size_t)H;
        kern.mul(&w->f_a, 0, w->f_a.rows, x, (size_t)H, 1, f, (size_t)w->f_a.rows);
        kern.mul(&w->f_b, 0, w->f_b.rows, f, (size_t)w->f_a.rows, 1, all, (size_t)w->f_b.rows);
        float *row = g + (size_t)t * (size_t)d;
        for (int i = 0; i < d; i++)
            row[i] = w->exp_A[head] * (all[at + (size_t)i] + w->dt_bias[at + (size_t)i]);
        kern.sigmoid(row, row, d);
        for (int i = 0; i < d; i++) row[i] *= (float)c->gate_lower_bound;
        kern.mul(&w->b, 0, w->b.rows, x, (size_t)H, 1, f, (size_t)w->b.rows);
        kern.sigmoid(beta + t, f + head, 1);
    }
    free(all);
    free(f);
    free(z);
    return st;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void real_kda(const struct seen *s, int n)
{
    const struct sl_config *c = &s->m->cfg;
    printf("\n| layer, head | log decay: least, median, largest | f32 recurrence | tile f32 | tile "
           "bf16 |\n|---|---|---|---|---|\n");
    for (int l = 0; l < c->n_layers; l++) {
        if (!s->m->layers[l].is_kda) continue;
        for (int head = 0; head < c->kda_heads; head += 3) {
            struct stream st = real_head(s, l, head, n);
            const size_t m = (size_t)st.t.d * (size_t)n;
            double *want = get(m * sizeof *want);
            struct kda_head ref;
            float *g = get(m * sizeof *g);
            memcpy(g, st.t.g, m * sizeof *g);
            qsort(g, m, sizeof *g, by_value);
            if (!kda_open(&ref, KDA_F64, st.t.d)) exit(1);
            kda_run(&ref, &kern, &st.t, want);
            printf("| %d, %d | %.3g, %.3g, %.3g |", l, head, (double)g[0], (double)g[m / 2],
                   (double)g[m - 1]);
            print_error(output_error(KDA_F32, &st.t, want));
            print_error(output_error(KDA_TILE_F32, &st.t, want));
            print_error(output_error(KDA_TILE_BF16, &st.t, want));
            printf("\n");
            kda_close(&ref);
            free(g);
            free(want);
            free(st.data);
        }
    }
    drift_head();
    for (int l = 0; l < c->n_layers; l++) {
        char name[48];
        if (!s->m->layers[l].is_kda) continue;
        struct stream st = real_head(s, l, 0, n);
        snprintf(name, sizeof name, "layer %d, head 0", l);
        drift(name, &st.t);
        free(st.data);
    }
}

static int real(char **argv, int argc)
{
    sluice_pack *p;
    sluice_session *ses;
    sluice_error e = {0};
    struct sl_err err = {0};
    struct sl_ids ids = {0};
    const int n = argc > 3 ? atoi(argv[3]) & ~(KDA_TILE - 1) : STREAM;
    if (n < KDA_TILE || n > 1 << 16) return 2;
    const sluice_options o = {.ctx = (uint64_t)n};
    if (sluice_pack_open(&p, argv[1], &o, &e) || sluice_session_open(&ses, p, &o, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    if (sl_input_ids_file(&ids, argv[2], sluice_vocab_size(p), &err) || ids.n < (size_t)n) {
        fprintf(stderr, "%s: %s\n", argv[2], err.text[0] ? err.text : "too few ids");
        return 1;
    }
    struct seen s = {.m = p->model};
    const struct sl_config *c = &p->model->cfg;
    for (int l = 0; l < c->n_layers; l++) {
        s.attn[l] = get((size_t)n * (size_t)c->hidden_size * sizeof(float));
        s.latent[l] = get((size_t)n * (size_t)c->latent_size * sizeof(float));
        s.ids[l] = get((size_t)n * (size_t)c->top_k * sizeof(int));
    }
    const struct sl_observer observer = {.see = see, .ctx = &s};
    sl_graph_observe(ses->graph, &observer);
    if (sluice_feed(ses, ids.v, (size_t)n, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    real_acts(&s, argv[1], n);
    real_kda(&s, n);
    for (int l = 0; l < c->n_layers; l++) {
        free(s.attn[l]);
        free(s.latent[l]);
        free(s.ids[l]);
    }
    sl_ids_free(&ids);
    sluice_session_close(ses);
    sluice_pack_close(p);
    return 0;
}

int main(int argc, char **argv)
{
    sl_kernels_init(&kern, sl_cpu_detect());
    if (argc > 2) return real(argv, argc);
    if (argc > 1) {
        fprintf(stderr, "usage: tool_stability [PACK IDS [tokens]]\n");
        return 2;
    }
    synthetic_acts();
    decays();
    drift_head();
    synthetic_drift();
    return 0;
}
