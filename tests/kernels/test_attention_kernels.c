/* The fast path's attention: matrix product, KDA tile and running-softmax attention. Every rung against
 * the reference bit by bit; the reference against f64, at the ends of the decay's bound too; a tile in
 * one call against the same tile cut anywhere. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/attend.h"
#include "kernels/kda_tile.h"
#include "tests/kernels/kernel_check.h"

enum { T = SL_KDA_TILE };

static double uniform(void)
{
    return (kc_rnd() >> 8) * 0x1p-24;
}

/* ---- product */

static void mm(void **s)
{
    (void)s;
    for (int round = 0; round < 400; round++) {
        const int m = 1 + kc_below(20), n = 1 + kc_below(round % 3 ? 40 : 200);
        const int depth = kc_below(round % 5 ? 40 : 600);
        const bool turned = kc_below(2);
        const size_t lda = (size_t)(turned ? m : depth) + (size_t)kc_below(5);
        const size_t ldb = (size_t)n + (size_t)kc_below(5), ldc = (size_t)n + (size_t)kc_below(5);
        const size_t na = lda * (size_t)(turned ? depth : m), nc = (size_t)m * ldc;
        float *a = kc_floats(na + 1), *b = kc_floats((size_t)depth * ldb + 1);
        float *c0 = kc_floats(nc), *want = kc_floats(nc);
        const enum kc_fill kind = (enum kc_fill)kc_below(KC_FILLS);
        kc_fill(a, na, KC_TAME);
        kc_fill(b, (size_t)depth * ldb, kind);
        kc_fill(c0, nc, KC_TAME);
        struct sl_mm p = {.A = a,
                          .B = b,
                          .si = turned ? 1 : lda,
                          .sk = turned ? lda : 1,
                          .ldb = ldb,
                          .ldc = ldc,
                          .m = m,
                          .n = n,
                          .depth = depth,
                          .add = kc_below(2)};
        memcpy(want, c0, nc * sizeof *want);
        p.C = want;
        kc_rung(0)->mm(&p);
        for (int i = 0; i < m && kind == KC_TAME; i++)
            for (int j = 0; j < n; j++) {
                double sum = p.add ? c0[(size_t)i * ldc + (size_t)j] : 0, size = fabs(sum);
                for (int k = 0; k < depth; k++) {
                    const double x = (double)a[(size_t)i * p.si + (size_t)k * p.sk] *
                                     b[(size_t)k * ldb + (size_t)j];
                    sum += x;
                    size += fabs(x);
                }
                assert_true(fabs(want[(size_t)i * ldc + (size_t)j] - sum) <=
                            (depth + 1) * 0x1p-24 * size);
            }
        for (int r = 1; r < kc_rungs(); r++) {
            float *got = kc_floats(nc);
            memcpy(got, c0, nc * sizeof *got);
            p.C = got;
            kc_rung(r)->mm(&p);
            kc_same(want, got, nc, kc_rung_name(r), "mm %d x %d x %d, fill %d", m, n, depth,
                    (int)kind);
            kc_free(got, "C");
        }
        kc_free(a, "A");
        kc_free(b, "B");
        kc_free(c0, "start of C");
        kc_free(want, "C of the reference");
    }
}

/* ---- rows */

static void decode(void **s)
{
    (void)s;
    static const enum sl_fmt fmts[] = {SL_FMT_F32, SL_FMT_BF16, SL_FMT_F16,   SL_FMT_T8,
                                       SL_FMT_T6,  SL_FMT_T4,   SL_FMT_MXFP4, SL_FMT_M4};
    for (int round = 0; round < 200; round++) {
        const enum sl_fmt fmt = fmts[round % 8];
        const bool whole = sl_fmt_is_expert(fmt);
        const int rows = 1 + kc_below(9);
        const int cols = whole ? 32 * (1 + kc_below(20)) : 1 + kc_below(600);
        struct sl_planes size;
        assert_true(sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &size));
        uint8_t *codes = kc_bytes(size.codes), *scales = kc_bytes(size.scales + 1);
        uint8_t *row_scales = kc_bytes(size.row_scales + 1);
        for (uint64_t i = 0; i < size.codes; i++) codes[i] = (uint8_t)kc_rnd();
        for (uint64_t i = 0; i < size.scales; i++) scales[i] = (uint8_t)kc_rnd();
        for (uint64_t i = 0; i < size.row_scales; i++) row_scales[i] = (uint8_t)kc_rnd();
        const struct sl_mat w = {.fmt = fmt,
                                 .rows = rows,
                                 .cols = cols,
                                 .codes = codes,
                                 .scales = scales,
                                 .row_scales = row_scales};
        const size_t ld = ((size_t)cols + 31) / 32 * 32;
        const int row0 = kc_below(rows);
        for (int r = 0; r < kc_rungs(); r++) {
            float *got = kc_floats((size_t)rows * ld), *want = kc_floats(ld);
            kc_rung(r)->decode(&w, row0, rows, cols, got, ld);
            for (int i = row0; i < rows; i++) {
                sl_mat_decode_row(&w, i, want);
                kc_same(want, got + (size_t)(i - row0) * ld, (size_t)cols, kc_rung_name(r),
                        "row %d of %s, %d columns", i, sl_fmt_name(fmt), cols);
            }
            kc_free(got, "rows");
            kc_free(want, "row");
        }
        kc_free_bytes(codes, "codes");
        kc_free_bytes(scales, "scales");
        kc_free_bytes(row_scales, "row scales");
    }
}

/* ---- KDA */

enum decay { AT_ZERO, SLOWEST, SLOW, MIDDLE, FAST, AT_BOUND, ANY, BY_TURNS, MIXED, N_DECAYS };

static float decay_of(enum decay kind, int tok, int channel)
{
    static const float slow[] = {-1e-6f, -1e-4f, -1e-2f};
    switch (kind) {
    case AT_ZERO:
        return 0.0f;
    case SLOWEST:
        return -1e-7f;
    case SLOW:
        return slow[channel % 3];
    case MIDDLE:
        return -1.0f;
    case FAST:
        return -4.999f;
    case AT_BOUND:
        return -5.0f;
    case ANY:
        return (float)(-5 * uniform());
    case BY_TURNS: /* sums far from zero, then a step that a plain sum would round away */
        return tok % 16 < 14 ? -5.0f : -1e-3f;
    default:
        return (channel + tok) % 3 ? (float)-exp(-12 * uniform()) : -5.0f;
    }
}

/* A head's tokens: unit keys with a common direction, scaled unit queries, beta in (0, 1). */
struct tokens {
    int n, d;
    float *q, *k, *v, *g, *beta;
};

static void unit(float *x, int d, double scale)
{
    double sum = 0;
    for (int i = 0; i < d; i++) sum += (double)x[i] * x[i];
    for (int i = 0; i < d; i++) x[i] = (float)(x[i] / sqrt(sum + 1e-6) * scale);
}

static struct tokens make_tokens(int n, int d, enum decay kind)
{
    const size_t size = (size_t)n * (size_t)d;
    struct tokens t = {n,
                       d,
                       kc_floats(size),
                       kc_floats(size),
                       kc_floats(size),
                       kc_floats(size),
                       kc_floats((size_t)n)};
    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)i * (size_t)d;
        for (int c = 0; c < d; c++) {
            t.q[at + (size_t)c] = (float)(uniform() - 0.5);
            t.k[at + (size_t)c] = (float)(uniform() - 0.4);
            t.v[at + (size_t)c] = (float)(4 * uniform() - 2);
            t.g[at + (size_t)c] = decay_of(kind, i, c);
        }
        unit(t.q + at, d, 1 / sqrt((double)d));
        unit(t.k + at, d, 1);
        t.beta[i] = (float)uniform();
    }
    return t;
}

static void free_tokens(struct tokens *t)
{
    kc_free(t->q, "q");
    kc_free(t->k, "k");
    kc_free(t->v, "v");
    kc_free(t->g, "g");
    kc_free(t->beta, "beta");
}

struct head {
    float *S, *tile, *scratch;
};

static struct head open_head(int d)
{
    struct head h = {kc_floats((size_t)d * (size_t)d), kc_floats(sl_kda_tile_floats(d)),
                     kc_floats(sl_kda_scratch(d))};
    memset(h.S, 0, sizeof(float) * (size_t)d * (size_t)d);
    for (size_t i = 0; i < sl_kda_tile_floats(d); i++) h.tile[i] = NAN; /* rows not yet written */
    for (size_t i = 0; i < sl_kda_scratch(d); i++) h.scratch[i] = NAN;
    return h;
}

static void close_head(struct head *h)
{
    kc_free(h->S, "S");
    kc_free(h->tile, "tile");
    kc_free(h->scratch, "scratch");
}

/* All tokens, in calls of at most `most` rows (0: of any number); a tile that is full is committed. */
static void run_head(const struct sl_kernels *k, struct head *h, const struct tokens *t, int most,
                     float *o)
{
    for (int i = 0; i < t->n;) {
        const int at = i % T;
        int n = T - at < t->n - i ? T - at : t->n - i;
        const int cut = most ? most : 1 + kc_below(T);
        if (n > cut) n = cut;
        const size_t from = (size_t)i * (size_t)t->d;
        const struct sl_kda_rows p = {
            h->S,        h->tile,     at,          n,        t->d,         t->q + from, t->k + from,
            t->v + from, t->g + from, t->beta + i, o + from, (size_t)t->d, h->scratch};
        k->kda_rows(&p);
        i += n;
        if (i % T == 0) k->kda_commit(h->S, h->tile, T, t->d, h->scratch);
    }
    if (t->n % T) k->kda_commit(h->S, h->tile, t->n % T, t->d, h->scratch);
}

static void kda_rungs_and_cuts(void **s)
{
    (void)s;
    static const int dims[] = {1, 7, 16, 24, 33, 64, 128};
    for (size_t x = 0; x < sizeof dims / sizeof *dims; x++)
        for (int kind = 0; kind < N_DECAYS; kind++) {
            const int d = dims[x], n = 1 + kc_below(60);
            const size_t size = (size_t)n * (size_t)d, square = (size_t)d * (size_t)d;
            struct tokens t = make_tokens(n, d, (enum decay)kind);
            struct head h = open_head(d);
            float *want = kc_floats(size);
            run_head(kc_rung(0), &h, &t, T, want);
            for (int r = 0; r < kc_rungs(); r++)
                for (int cut = 0; cut < 2; cut++) { /* token by token; anyhow */
                    struct head g = open_head(d);
                    float *got = kc_floats(size);
                    run_head(kc_rung(r), &g, &t, cut ? 0 : 1, got);
                    kc_same(want, got, size, kc_rung_name(r), "kda rows, d %d, decay %d", d, kind);
                    kc_same(h.S, g.S, square, kc_rung_name(r), "kda state, d %d, decay %d", d,
                            kind);
                    kc_free(got, "o");
                    close_head(&g);
                }
            kc_free(want, "o of the reference");
            close_head(&h);
            free_tokens(&t);
        }
}

/* Spec 3.3 step 6 in f64; g is added before exp is taken, as the model means it. */
static void recurrence(const struct tokens *t, double *S, double *o)
{
    const size_t d = (size_t)t->d;
    memset(S, 0, sizeof(double) * d * d);
    for (int x = 0; x < t->n; x++) {
        const float *q = t->q + (size_t)x * d, *k = t->k + (size_t)x * d, *v = t->v + (size_t)x * d;
        for (size_t j = 0; j < d; j++) {
            double r = 0, u, out = 0;
            for (size_t i = 0; i < d; i++) {
                S[i * d + j] *= exp((double)t->g[(size_t)x * d + i]);
                r += k[i] * S[i * d + j];
            }
            u = t->beta[x] * (v[j] - r);
            for (size_t i = 0; i < d; i++) {
                S[i * d + j] += k[i] * u;
                out += q[i] * S[i * d + j];
            }
            o[(size_t)x * d + j] = out;
        }
    }
}

static double error_of(const float *got, const double *want, size_t n)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(diff / size);
}

static void kda_is_the_recurrence(void **s)
{
    (void)s;
    enum { D = 128, N = 515 };
    double *S = malloc(sizeof *S * D * D), *o = calloc(N * D, sizeof *o), worst = 0;
    assert_true(S && o);
    for (int kind = 0; kind < N_DECAYS; kind++) {
        struct tokens t = make_tokens(N, D, (enum decay)kind);
        struct head h = open_head(D);
        float *got = kc_floats((size_t)N * D);
        run_head(kc_rung(kc_rungs() - 1), &h, &t, T, got);
        recurrence(&t, S, o);
        const double eo = error_of(got, o, (size_t)N * D), es = error_of(h.S, S, (size_t)D * D);
        printf("decay %d: output %.2g, state %.2g\n", kind, eo, es);
        if (eo > worst) worst = eo;
        if (es > worst) worst = es;
        kc_free(got, "o");
        close_head(&h);
        free_tokens(&t);
    }
    assert_true(worst < 1e-6);
    free(S);
    free(o);
}

/* ---- attention */

struct scene {
    struct sl_attend p;
    float *keys, *values, *q;
    int *seen, n_pos;
};

static struct scene make_scene(int n_query, int kd, int vd, int n_pos, bool shared, bool causal)
{
    struct scene s = {.n_pos = n_pos};
    const size_t ldq = sl_attend_ldq(n_query);
    const size_t ldk = (size_t)(shared && vd > kd ? vd : kd) + 3;
    const size_t ldv = shared ? ldk : (size_t)vd + 1;
    s.keys = kc_floats((size_t)n_pos * ldk);
    s.values = shared ? s.keys : kc_floats((size_t)n_pos * ldv);
    s.q = kc_floats((size_t)kd * ldq);
    s.seen = calloc((size_t)n_query, sizeof *s.seen);
    assert_non_null(s.seen);
    kc_fill(s.keys, (size_t)n_pos * ldk, KC_TAME);
    if (!shared) kc_fill(s.values, (size_t)n_pos * ldv, KC_TAME);
    memset(s.q, 0, sizeof *s.q * (size_t)kd * ldq);
    for (int k = 0; k < kd; k++) kc_fill(s.q + (size_t)k * ldq, (size_t)n_query, KC_TAME);
    for (int i = 0; i < n_query; i++) s.seen[i] = 1 + kc_below(n_pos);
    s.p = (struct sl_attend){.n_query = n_query,
                             .kd = kd,
                             .vd = vd,
                             .ldq = ldq,
                             .q = s.q,
                             .ldk = ldk,
                             .ldv = ldv,
                             .scale = 3.0f / sqrtf((float)kd),
                             .seen = causal ? s.seen : NULL};
    return s;
}

static void free_scene(struct scene *s)
{
    if (s->values != s->keys) kc_free(s->values, "values");
    kc_free(s->keys, "keys");
    kc_free(s->q, "queries");
    free(s->seen);
}

struct answer {
    float *max, *sum, *acc;
};

/* In one call, or (cut) in calls of whole blocks. */
static struct answer attend(const struct sl_kernels *k, const struct scene *s, bool cut)
{
    struct sl_attend p = s->p;
    const size_t size = (size_t)p.n_query * (size_t)p.vd;
    struct answer a = {kc_floats(p.ldq), kc_floats(p.ldq), kc_floats(size)};
    float *scratch = kc_floats((SL_ATTEND_BLOCK + 1) * p.ldq);
    int seen[512];
    for (size_t i = 0; i < p.ldq; i++) {
        a.max[i] = SL_ATTEND_NONE;
        a.sum[i] = 0;
    }
    memset(a.acc, 0, size * sizeof *a.acc);
    p.max = a.max;
    p.sum = a.sum;
    p.acc = a.acc;
    p.scratch = scratch;
    for (int at = 0; at < s->n_pos;) {
        int n = s->n_pos - at;
        if (cut && n > SL_ATTEND_BLOCK) n = SL_ATTEND_BLOCK;
        for (int i = 0; i < p.n_query; i++) seen[i] = s->seen[i] - at;
        if (s->p.seen) p.seen = seen;
        k->attend(&p, s->keys + (size_t)at * p.ldk, s->values + (size_t)at * p.ldv, n);
        at += n;
    }
    kc_free(scratch, "scratch");
    return a;
}

static void free_answer(struct answer *a)
{
    kc_free(a->max, "max");
    kc_free(a->sum, "sum");
    kc_free(a->acc, "acc");
}

static void check_softmax(const struct scene *s, const struct answer *a)
{
    const struct sl_attend *p = &s->p;
    double *w = malloc(sizeof *w * (size_t)s->n_pos);
    assert_non_null(w);
    for (int c = 0; c < p->n_query; c++) {
        const int n = p->seen ? s->seen[c] : s->n_pos;
        double max = -INFINITY, sum = 0;
        for (int i = 0; i < n; i++) {
            w[i] = 0;
            for (int k = 0; k < p->kd; k++)
                w[i] += (double)s->keys[(size_t)i * p->ldk + (size_t)k] *
                        s->q[(size_t)k * p->ldq + (size_t)c];
            w[i] *= p->scale;
            if (w[i] > max) max = w[i];
        }
        for (int i = 0; i < n; i++) sum += w[i] = exp(w[i] - max);
        for (int j = 0; j < p->vd; j++) {
            double want = 0;
            for (int i = 0; i < n; i++)
                want += w[i] / sum * s->values[(size_t)i * p->ldv + (size_t)j];
            const double got = (double)a->acc[(size_t)c * (size_t)p->vd + (size_t)j] / a->sum[c];
            assert_true(fabs(got - want) < 1e-5);
        }
    }
    free(w);
}

static void attention(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        const int kd = 1 + kc_below(round % 4 ? 40 : 600), vd = 1 + kc_below(round % 4 ? 40 : 520);
        struct scene s = make_scene(1 + kc_below(round % 2 ? 50 : 7), kd, vd, 1 + kc_below(300),
                                    kc_below(2), kc_below(2));
        struct answer want = attend(kc_rung(0), &s, false);
        check_softmax(&s, &want);
        for (int r = 0; r < kc_rungs(); r++)
            for (int cut = 0; cut < 2; cut++) {
                struct answer got = attend(kc_rung(r), &s, cut);
                const size_t n = (size_t)s.p.n_query;
                kc_same(want.max, got.max, n, kc_rung_name(r), "maxima, round %d", round);
                kc_same(want.sum, got.sum, n, kc_rung_name(r), "sums, round %d", round);
                kc_same(want.acc, got.acc, n * (size_t)vd, kc_rung_name(r), "values, round %d",
                        round);
                free_answer(&got);
            }
        free_answer(&want);
        free_scene(&s);
    }
}

/* A NaN among the keys must not look like an answer. */
static void attention_is_loud(void **state)
{
    (void)state;
    for (int r = 0; r < kc_rungs(); r++) {
        struct scene s = make_scene(5, 20, 9, 70, false, false);
        s.keys[66 * s.p.ldk + 3] = NAN;
        struct answer a = attend(kc_rung(r), &s, false);
        for (int c = 0; c < 5; c++) assert_true(isnan(a.sum[c]) && isnan(a.acc[c * 9 + 8]));
        free_answer(&a);
        free_scene(&s);
    }
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_attention_kernels");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mm),
        cmocka_unit_test(decode),
        cmocka_unit_test(kda_rungs_and_cuts),
        cmocka_unit_test(kda_is_the_recurrence),
        cmocka_unit_test(attention),
        cmocka_unit_test(attention_is_loud),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
