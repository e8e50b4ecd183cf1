/* KDA and MLA on the GPU against the formulas of the model in double (spec 3.3 and 3.4): the per-token
 * recurrence, and attention with every position at once. Decays reach both ends of their range. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/cuda/cuda_kda.h"
#include "kernels/cuda/cuda_mla.h"
#include "kernels/reference.h"
#include "tests/cuda/cuda_check.h"

static float *floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    kc_fill(x, n, KC_TAME);
    return x;
}

/* Inputs of a sequence: q k v g beta, [n][heads*d]. */
struct sequence {
    size_t n, heads, d, w;
    float *x[5], *gpu[5];
    double *S, *o; /* [heads][d][d] after all tokens; [n][heads*d] */
};
enum { Q, K, V, G, BETA };

enum decays { MIXED, SLOWEST, FASTEST };

static void unit(float *x, size_t d, double scale)
{
    double s = 0;
    for (size_t i = 0; i < d; i++) s += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < d; i++) x[i] = (float)((double)x[i] / sqrt(s + 1e-6) * scale);
}

static void recur(struct sequence *s)
{
    double *r = malloc(s->d * sizeof *r);
    memset(s->S, 0, s->heads * s->d * s->d * sizeof *s->S);
    for (size_t t = 0; t < s->n; t++)
        for (size_t h = 0; h < s->heads; h++) {
            const size_t at = t * s->w + h * s->d, d = s->d;
            double *S = s->S + h * d * d, beta = (double)s->x[BETA][t * s->heads + h];
            for (size_t j = 0; j < d; j++) r[j] = 0;
            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < d; j++) {
                    S[i * d + j] *= exp((double)s->x[G][at + i]);
                    r[j] += (double)s->x[K][at + i] * S[i * d + j];
                }
            for (size_t j = 0; j < d; j++) s->o[at + j] = 0;
            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < d; j++) {
                    S[i * d + j] +=
                        (double)s->x[K][at + i] * beta * ((double)s->x[V][at + j] - r[j]);
                    s->o[at + j] += (double)s->x[Q][at + i] * S[i * d + j];
                }
        }
    free(r);
}

static struct sequence sequence(size_t n, size_t heads, size_t d, enum decays decays)
{
    struct sequence s = {.n = n, .heads = heads, .d = d, .w = heads * d};
    for (int i = 0; i < 5; i++) s.x[i] = floats(n * (i == BETA ? heads : s.w));
    for (size_t t = 0; t < n * heads; t++) {
        unit(s.x[Q] + t * d, d, 1 / sqrt((double)d));
        unit(s.x[K] + t * d, d, 1);
        s.x[BETA][t] = (float)(0.5 + 0.5 * (double)s.x[BETA][t]);
        if (t % 5 == 0) s.x[BETA][t] = t % 2 ? 1.0f : 0.0f;
    }
    for (size_t i = 0; i < n * s.w; i++) {
        const double u = 0.5 + 0.5 * (double)s.x[G][i];
        s.x[G][i] = (float)(decays == SLOWEST   ? 0.0
                            : decays == FASTEST ? -5.0
                            : i % 3             ? -5.0 * u * u * u * u
                                                : -5.0 * u);
        s.x[V][i] *= 3.0f;
    }
    for (int i = 0; i < 5; i++)
        s.gpu[i] = cu_up(s.x[i], n * (i == BETA ? heads : s.w) * sizeof(float));
    s.S = malloc(heads * d * d * sizeof *s.S);
    s.o = malloc(n * s.w * sizeof *s.o);
    recur(&s);
    return s;
}

static void sequence_free(struct sequence *s)
{
    for (int i = 0; i < 5; i++) {
        free(s->x[i]);
        cu_free(s->gpu[i]);
    }
    free(s->S);
    free(s->o);
}

static struct sl_cuda_kda_state open_state(const struct sequence *s)
{
    const size_t tile = s->heads * 16 * s->d * sizeof(float);
    struct sl_cuda_kda_state st = {.S = cu_room(s->heads * s->d * s->d * sizeof(float)),
                                   .k = cu_room(tile),
                                   .G = cu_room(tile),
                                   .u = cu_room(tile)};
    sl_cuda_fill(cu_need(), st.S, 0, s->heads * s->d * s->d * sizeof(float));
    return st;
}

static void close_state(struct sl_cuda_kda_state *st)
{
    cu_free(st->S), cu_free(st->k), cu_free(st->G), cu_free(st->u);
}

/* |got - want| / |want| over n values. */
static double distance(const float *got, const double *want, size_t n)
{
    double e = 0, w = 0;
    for (size_t i = 0; i < n; i++) {
        e += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += want[i] * want[i];
    }
    return sqrt(e / (w > 0 ? w : 1));
}

static void step(const struct sequence *s, const struct sl_cuda_kda_state *st, size_t t, float *o)
{
    const size_t at = t * s->w;
    sl_cuda_kda_step(cu_need(), st, s->gpu[Q] + at, s->gpu[K] + at, s->gpu[V] + at, s->gpu[G] + at,
                     s->gpu[BETA] + t * s->heads, o + at, (int)s->heads, (int)s->d, (int)(t % 16));
}

static void check_kda(size_t n, size_t prefill, size_t heads, size_t d, enum decays decays)
{
    static double worst_o, worst_S;
    struct sl_cuda *dev = cu_need();
    struct sequence s = sequence(n, heads, d, decays);
    struct sl_cuda_kda_state st = open_state(&s);
    float *o = cu_room(n * s.w * sizeof *o), *got = malloc(n * s.w * sizeof *got);
    float *S = malloc(heads * d * d * sizeof *S);
    if (prefill)
        sl_cuda_kda_prefill(dev, &st, s.gpu[Q], s.gpu[K], s.gpu[V], s.gpu[G], s.gpu[BETA], o,
                            (int)heads, (int)d, (int)prefill);
    for (size_t t = prefill; t < n; t++) step(&s, &st, t, o);
    cu_down(got, o, n * s.w * sizeof *o);
    const double off = distance(got, s.o, n * s.w);
    cu_down(S, st.S, heads * d * d * sizeof *S);
    const double off_S = n % 16 ? 0 : distance(S, s.S, heads * d * d);
    if (off > worst_o || off_S > worst_S) {
        worst_o = off > worst_o ? off : worst_o;
        worst_S = off_S > worst_S ? off_S : worst_S;
        printf("kda: largest distance so far: outputs %.2e, state %.2e\n", worst_o, worst_S);
    }
    if (!(off < 4e-6 && off_S < 4e-6))
        fail_msg(
            "%zu tokens, %zu of them prefilled, %zu heads of %zu, decays %d: outputs off by %g, "
            "state by %g",
            n, prefill, heads, d, (int)decays, off, off_S);
    free(got), free(S);
    cu_free(o);
    close_state(&st);
    sequence_free(&s);
}

static void kda(void **state)
{
    (void)state;
    cu_need();
    for (int decays = MIXED; decays <= FASTEST; decays++)
        for (size_t d = 32; d <= 128; d *= 2) {
            check_kda(64, 0, 2, d, (enum decays)decays);
            check_kda(64, 64, 2, d, (enum decays)decays);
            check_kda(70, 37, 3, d, (enum decays)decays); /* steps go on in the tile left open */
            check_kda(48, 5, 1, d, (enum decays)decays);
        }
    check_kda(400, 320, 2, 128, MIXED);
}

/* A row may be overwritten as if it had never been: rows above depend on earlier ones alone. */
static void rollback(void **state)
{
    (void)state;
    cu_need();
    struct sequence s = sequence(32, 2, 64, MIXED);
    struct sl_cuda_kda_state st = open_state(&s), other = open_state(&s);
    const size_t bytes = 32 * s.w * sizeof(float);
    float *o = cu_room(bytes), *p = cu_room(bytes), *a = malloc(bytes), *b = malloc(bytes);
    for (size_t t = 0; t < 32; t++) step(&s, &st, t, o);
    for (size_t t = 0; t < 9; t++) step(&s, &other, t, p);
    for (size_t t = 20; t < 26; t++) /* tokens of another story, at rows 9 to 14 */
        sl_cuda_kda_step(cu_need(), &other, s.gpu[Q] + t * s.w, s.gpu[K] + t * s.w,
                         s.gpu[V] + t * s.w, s.gpu[G] + t * s.w, s.gpu[BETA] + t * s.heads,
                         p + t * s.w, (int)s.heads, (int)s.d, (int)(t - 20) + 9);
    for (size_t t = 9; t < 32; t++) step(&s, &other, t, p);
    cu_down(a, o, bytes);
    cu_down(b, p, bytes);
    assert_memory_equal(a, b, bytes);
    free(a), free(b);
    cu_free(o), cu_free(p);
    close_state(&st), close_state(&other);
    sequence_free(&s);
}

static void kda_inputs(void **state)
{
    (void)state;
    struct sl_cuda *dev = cu_need();
    for (int turn = 0; turn < 12; turn++) {
        const size_t heads = 1 + (size_t)kc_below(4), d = turn % 2 ? 128 : 64, w = heads * d;
        const size_t n = 1 + (size_t)kc_below(7), taps = 2 + (size_t)kc_below(4), rows = taps - 1;
        float *z[3], *conv[3], *hist = floats(3 * rows * w), *f = floats(n * w),
                               *b = floats(n * heads);
        float *A = floats(heads), *dt = floats(w), *want = malloc(w * 4), *got = malloc(n * w * 4);
        struct sl_cuda_kda_inputs in = {.hist = cu_up(hist, 3 * rows * w * 4),
                                        .exp_A = cu_up(A, heads * 4),
                                        .dt_bias = cu_up(dt, w * 4),
                                        .f = cu_up(f, n * w * 4),
                                        .b = cu_up(b, n * heads * 4),
                                        .q = cu_room(n * w * 4),
                                        .k = cu_room(n * w * 4),
                                        .v = cu_room(n * w * 4),
                                        .low = -5.0f,
                                        .eps = 1e-6f,
                                        .taps = (int)taps,
                                        .heads = (int)heads,
                                        .d = (int)d,
                                        .n_tok = (int)n};
        for (int i = 0; i < 3; i++) {
            z[i] = floats((rows + n) * w);
            memcpy(z[i], hist + (size_t)i * rows * w, rows * w * 4);
            conv[i] = floats(w * taps);
            in.z[i] = cu_up(z[i] + rows * w, n * w * 4);
            in.conv[i] = cu_up(conv[i], w * taps * 4);
        }
        sl_cuda_kda_prepare(dev, &in);
        float *const out[3] = {in.q, in.k, in.v};
        for (int i = 0; i < 3; i++) {
            cu_down(got, out[i], n * w * 4);
            for (size_t t = 0; t < n; t++) {
                sl_conv_c(want, conv[i], z[i] + t * w, w, z[i] + (t + rows) * w, (int)w, (int)taps);
                for (size_t h = 0; h < heads && i < 2; h++) {
                    const double s =
                        sqrt((double)sl_dot_c(want + h * d, want + h * d, (int)d) + 1e-6);
                    for (size_t j = h * d; j < h * d + d; j++) {
                        const double v = (double)want[j] / s / (i ? 1 : sqrt((double)d));
                        assert_true(fabs((double)got[t * w + j] - v) <= 12 * 0x1p-24 * fabs(v));
                    }
                }
                if (i == 2) kc_same(want, got + t * w, w, "gpu", "convolution");
            }
        }
        cu_down(got, in.f, n * w * 4);
        for (size_t t = 0; t < n; t++) {
            for (size_t j = 0; j < w; j++) want[j] = A[j / d] * (f[t * w + j] + dt[j]);
            sl_sigmoid_c(want, want, (int)w);
            for (size_t j = 0; j < w; j++) want[j] = -5.0f * want[j];
            kc_same(want, got + t * w, w, "gpu", "log decay");
        }
        cu_down(got, in.b, n * heads * 4);
        sl_sigmoid_c(b, b, (int)(n * heads));
        kc_same(b, got, n * heads, "gpu", "beta");
        float *now = malloc(3 * rows * w * 4);
        cu_down(now, in.hist, 3 * rows * w * 4);
        for (size_t i = 0; i < 3; i++)
            kc_same(z[i] + n * w, now + i * rows * w, rows * w, "gpu", "history %zu", i);
        for (int i = 0; i < 3; i++) {
            free(z[i]), free(conv[i]);
            cu_free((void *)in.z[i]), cu_free((void *)in.conv[i]);
        }
        free(hist), free(f), free(b), free(A), free(dt), free(want), free(got), free(now);
        cu_free(in.hist), cu_free((void *)in.exp_A), cu_free((void *)in.dt_bias), cu_free(in.f);
        cu_free(in.b), cu_free(in.q), cu_free(in.k), cu_free(in.v);
    }
}

static void kda_output(void **state)
{
    (void)state;
    enum { N = 3, HEADS = 5, D = 64, W = HEADS * D };
    struct sl_cuda *dev = cu_need();
    float *o = floats(N * W), *gate = floats(N * W), *norm = floats(D), got[N * W];
    float *d_o = cu_up(o, sizeof got), *d_gate = cu_up(gate, sizeof got),
          *d_norm = cu_up(norm, D * 4);
    sl_cuda_kda_output(dev, d_gate, d_o, d_norm, N, HEADS, D, 1e-5f);
    cu_down(got, d_gate, sizeof got);
    for (int r = 0; r < N * HEADS; r++) {
        double s = 0;
        for (int j = 0; j < D; j++) s += (double)o[r * D + j] * (double)o[r * D + j];
        for (int j = 0; j < D; j++) {
            const double v = (double)o[r * D + j] / sqrt(s / D + 1e-5) * (double)norm[j] /
                             (1 + exp(-(double)gate[r * D + j]));
            assert_true(fabs((double)got[r * D + j] - v) <= 16 * 0x1p-24 * fabs(v));
        }
    }
    free(o), free(gate), free(norm);
    cu_free(d_o), cu_free(d_gate), cu_free(d_norm);
}

static void check_mla(size_t first, size_t n_q, size_t heads, size_t lora, size_t rope, float sharp)
{
    struct sl_cuda *dev = cu_need();
    const size_t w = lora + rope, n_pos = first + n_q;
    float *q = floats(n_q * heads * w), *rows = floats(n_pos * w);
    float *got = malloc(n_q * heads * lora * 4);
    double *p = malloc(n_pos * sizeof *p);
    for (size_t i = 0; i < n_q * heads * w; i++) q[i] *= sharp;
    float *dq = cu_up(q, n_q * heads * w * 4), *drows = cu_up(rows, n_pos * w * 4);
    float *out = cu_room(n_q * heads * lora * 4);
    void *work = cu_room(sl_cuda_mla_work((int)n_q, (int)heads, (int)lora, n_pos - 1));
    const struct sl_cuda_mla a = {.q = dq,
                                  .rows = drows,
                                  .out = out,
                                  .work = work,
                                  .n_q = (int)n_q,
                                  .heads = (int)heads,
                                  .lora = (int)lora,
                                  .rope = (int)rope,
                                  .first = first,
                                  .scale = 0.07f};
    sl_cuda_mla_attend(dev, &a);
    cu_down(got, out, n_q * heads * lora * 4);
    for (size_t i = 0; i < n_q; i++)
        for (size_t h = 0; h < heads; h++) {
            const float *x = q + (i * heads + h) * w;
            double top = -INFINITY, total = 0, reach = 0;
            for (size_t s = 0; s <= first + i; s++) {
                double size = 0;
                p[s] = 0;
                for (size_t c = 0; c < w; c++) {
                    p[s] += (double)x[c] * (double)rows[s * w + c];
                    size += fabs((double)x[c] * (double)rows[s * w + c]);
                }
                p[s] *= (double)a.scale;
                reach = size * (double)a.scale > reach ? size * (double)a.scale : reach;
                top = p[s] > top ? p[s] : top;
            }
            for (size_t s = 0; s <= first + i; s++) total += p[s] = exp(p[s] - top);
            for (size_t c = 0; c < lora; c++) {
                double v = 0, size = 0;
                for (size_t s = 0; s <= first + i; s++) {
                    v += p[s] / total * (double)rows[s * w + c];
                    size += p[s] / total * fabs((double)rows[s * w + c]);
                }
                /* a score is off by 20 roundings of its terms, each weight by twice that */
                const double bound = (64 + 40 * reach) * 0x1p-24 * size;
                const double off = fabs((double)got[(i * heads + h) * lora + c] - v);
                if (!(off <= bound))
                    fail_msg("position %zu head %zu latent %zu: %g, expected %g (bound %g)",
                             first + i, h, c, (double)got[(i * heads + h) * lora + c], v, bound);
            }
        }
    free(q), free(rows), free(got), free(p);
    cu_free(dq), cu_free(drows), cu_free(out), cu_free(work);
}

static void mla(void **state)
{
    (void)state;
    cu_need();
    check_mla(0, 1, 4, 96, 32, 1);
    check_mla(0, 7, 4, 96, 32, 1);
    check_mla(63, 2, 17, 64, 32, 4);
    check_mla(500, 1, 96, 512, 64, 1);
    check_mla(5000, 1, 20, 512, 64, 6); /* several blocks of a stretch, one position counts */
    check_mla(130, 3, 5, 128, 32, 30);
    check_mla(257, 2, 3, 256, 64, 2);
}

static void gates(void **state)
{
    (void)state;
    struct sl_cuda *dev = cu_need();
    float *o = floats(1000), *gate = floats(1000), got[1000];
    float *d_o = cu_up(o, 4000), *d_gate = cu_up(gate, 4000);
    sl_cuda_gate(dev, d_gate, d_o, 1000);
    cu_down(got, d_gate, sizeof got);
    sl_sigmoid_c(gate, gate, 1000);
    sl_mulv_c(gate, o, gate, 1000);
    kc_same(gate, got, 1000, "gpu", "gate");
    free(o), free(gate);
    cu_free(d_o), cu_free(d_gate);
}

int main(int argc, char **argv)
{
    cu_start(argc, argv, "test_cuda_attn");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kda_inputs), cmocka_unit_test(kda), cmocka_unit_test(rollback),
        cmocka_unit_test(kda_output), cmocka_unit_test(mla), cmocka_unit_test(gates),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    cu_end();
    return rc;
}
