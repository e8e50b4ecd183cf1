/* Integer products on the GPU: packing bit by bit against sl_act_pack; products bit by bit against the C
 * reference where no float operation rounds (which proves every integer sum), and within the bound of
 * cuda_mul.h against sums in double elsewhere; plain matrices against sums in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/reference.h"
#include "tests/cuda/cuda_check.h"

static const enum sl_fmt fmts[] = {SL_FMT_T8,  SL_FMT_T6,  SL_FMT_T4,  SL_FMT_MXFP4, SL_FMT_M4,
                                   SL_FMT_W26, SL_FMT_W36, SL_FMT_P36, SL_FMT_W16};
enum { N_FMTS = sizeof fmts / sizeof fmts[0], MAX_JOBS = 3 };

static void packing(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    for (int turn = 0; turn < 60; turn++) {
        const int cols = 1 + kc_below(300), n_tok = 1 + kc_below(20), planes = 1 + turn % 2;
        const enum sl_cuda_order order = turn % 3 ? SL_CUDA_NATURAL : SL_CUDA_WOVEN;
        const size_t nb = ((size_t)cols + 31) / 32, plane = nb * 32, n = (size_t)n_tok;
        const size_t ldx = (size_t)cols + 3;
        float *x = malloc(n * ldx * sizeof *x), *scale = malloc(nb * sizeof *scale);
        int8_t *q = malloc(2 * (size_t)planes * plane), *got = malloc(n * (size_t)planes * plane);
        for (size_t i = 0; i < n * ldx; i++)
            x[i] = kc_float(kc_below(9) ? KC_TAME : kc_below(9) ? KC_SUBNORMAL : KC_WIDE);
        for (size_t t = 0; t < n; t++)
            if (!kc_below(3)) x[t * ldx + (size_t)kc_below(cols)] = kc_below(2) ? NAN : INFINITY;
        struct sl_cuda_act a = {.order = order,
                                .cols = cols,
                                .n_tok = n_tok,
                                .planes = planes,
                                .ld_scale = sl_cuda_ld_scale(n_tok)};
        const size_t n_scale = nb * (size_t)a.ld_scale;
        float *got_scale = malloc(n_scale * sizeof *got_scale), *dx = cu_up(x, n * ldx * sizeof *x);
        a.q = cu_room(n * (size_t)planes * plane);
        a.scale = cu_room(n_scale * sizeof *a.scale);
        sl_cuda_act_pack(d, &a, dx, ldx);
        cu_down(got, a.q, n * (size_t)planes * plane);
        cu_down(got_scale, a.scale, n_scale * sizeof *a.scale);
        for (size_t t = 0; t < n; t++) {
            sl_act_pack(SL_ACT_NATURAL, planes, x + t * ldx, cols, q, scale);
            for (size_t b = 0; b < nb; b++)
                kc_same(&scale[b], &got_scale[b * (size_t)a.ld_scale + t], 1, "gpu", "scale %zu",
                        b);
            for (size_t p = 0; p < (size_t)planes; p++)
                for (size_t i = 0; i < plane; i++)
                    assert_int_equal(
                        got[(t * (size_t)planes + p) * plane + i],
                        q[2 * p * plane + i / 32 * 32 + (size_t)cu_column(order, (int)(i % 32))]);
        }
        free(x);
        free(scale);
        free(q);
        free(got);
        free(got_scale);
        cu_free(dx);
        cu_free(a.q);
        cu_free(a.scale);
    }
}

struct setup {
    enum sl_fmt fmt;
    int rows, cols, n_tok, planes, jobs, n_act;
    bool dual, fine;
    enum cu_fill fill;
};

/* y of one row and token in double, and the sum of the magnitudes of its terms. */
static double in_double(const struct sl_mat *w, int r, const int8_t *q, const float *scale,
                        int planes, double *terms)
{
    const size_t nb = ((size_t)w->cols + 31) / 32;
    float *row = malloc((size_t)w->cols * sizeof *row);
    double sum = 0;
    *terms = 0;
    sl_mat_decode_row(w, r, row);
    for (int c = 0; c < w->cols; c++) {
        const double x = planes == 2 ? 256.0 * q[c] + q[nb * 32 + (size_t)c] : (double)q[c];
        const double v = (double)row[c] * (x * (double)scale[c / 32]);
        sum += v;
        *terms += fabs(v);
    }
    free(row);
    return sum;
}

static void check_job(const struct setup *s, const struct cu_matrix w[2], const struct cu_act *a,
                      int tok, const int8_t *q, const float *scale, const float *got, size_t ldy)
{
    const size_t nb = ((size_t)s->cols + 31) / 32, rows = (size_t)s->rows;
    const size_t per_tok = (size_t)s->planes * nb * 32;
    float *want[2];
    struct sl_act part = a->host;
    part.n_tok = s->n_tok;
    part.q += (size_t)tok * 2 * per_tok;
    part.scale += (size_t)tok * nb;
    for (int m = 0; m < 2; m++) want[m] = calloc((size_t)s->n_tok * rows, sizeof **want);
    for (int m = 0; m < (s->dual ? 2 : 1); m++)
        sl_mul_a8_c(&w[m].host, 0, s->rows, &part, want[m], rows);
    for (size_t t = 0; t < (size_t)s->n_tok; t++)
        for (size_t r = 0; r < rows; r++) {
            const float y = got[t * ldy + r];
            float exact = want[0][t * rows + r];
            if (s->dual)
                sl_situ_c(&exact, &want[0][t * rows + r], &want[1][t * rows + r], 1, 4, 25);
            if (s->fill == CU_EXACT) {
                kc_same(&exact, &y, 1, "gpu", "%s %d x %d, token %zu of %d row %zu planes %d %s",
                        sl_fmt_name(s->fmt), s->rows, s->cols, t, s->n_tok, r, s->planes,
                        s->dual ? "dual" : "");
                continue;
            }
            double terms;
            if (s->dual) { /* slopes of SiTU: below 30 in the gate, below 5 in the other */
                double bound = 1e-4;
                for (int m = 0; m < 2; m++) {
                    in_double(&w[m].host, (int)r, q + ((size_t)tok + t) * per_tok,
                              scale + ((size_t)tok + t) * nb, s->planes, &terms);
                    bound += (m ? 5 : 30) * 2 * ((double)nb + 6) * 0x1p-24 * terms;
                }
                assert_true(fabs((double)y - (double)exact) <= bound);
                continue;
            }
            const double sum = in_double(&w[0].host, (int)r, q + ((size_t)tok + t) * per_tok,
                                         scale + ((size_t)tok + t) * nb, s->planes, &terms);
            const double off = fabs((double)y - sum);
            if (!(off <= ((double)nb + 6) * 0x1p-24 * terms + 0x1p-140))
                fail_msg("%s %d x %d token %zu of %d row %zu planes %d: %g, expected %g, terms %g",
                         sl_fmt_name(s->fmt), s->rows, s->cols, t, s->n_tok, r, s->planes,
                         (double)y, sum, terms);
        }
    for (int m = 0; m < 2; m++) free(want[m]);
}

static void one(const struct setup *s)
{
    struct sl_cuda *d = cu_need();
    const size_t nb = ((size_t)s->cols + 31) / 32, n = (size_t)s->n_act, np = (size_t)s->planes;
    int8_t *q = calloc(n * np, nb * 32);
    float *scale = calloc(n * nb, sizeof *scale);
    const bool exact = s->fill == CU_EXACT;
    for (size_t t = 0; t < n; t++) {
        for (size_t i = 0; i < np * nb * 32; i++) {
            const bool coarse = i < nb * 32 && np == 2 && exact;
            if (i % (nb * 32) < (size_t)s->cols)
                q[t * np * nb * 32 + i] = (int8_t)(coarse ? kc_below(5) - 2 : kc_below(255) - 127);
        }
        for (size_t b = 0; b < nb; b++)
            scale[t * nb + b] =
                exact ? 0x1p-9f
                      : ldexpf(1.0f + (float)kc_below(999) * 1e-3f, s->fill == CU_ENDS ? 6 : -14);
    }
    struct cu_act a = cu_act(s->fmt, s->cols, s->n_act, s->planes, q, scale);
    struct cu_matrix w[MAX_JOBS][2];
    struct sl_cuda_product p[MAX_JOBS];
    const size_t ldy = (size_t)s->rows + 5, ny = (size_t)s->n_tok * ldy;
    float *y = malloc(ny * sizeof *y);
    memset(p, 0, sizeof p);
    for (int i = 0; i < s->jobs; i++) {
        for (int m = 0; m < (s->dual ? 2 : 1); m++)
            w[i][m] = cu_matrix(s->fmt, s->rows, s->cols, s->fill, s->fine);
        p[i].w = w[i][0].gpu;
        if (s->dual) p[i].w2 = w[i][1].gpu;
        p[i].tok = s->n_act > s->n_tok ? kc_below(s->n_act - s->n_tok + 1) : 0;
        p[i].y = cu_room(ny * sizeof *y);
        p[i].ldy = ldy;
    }
    sl_cuda_mul_a8(d, p, s->jobs, &a.gpu, s->n_tok, 4, 25);
    for (int i = 0; i < s->jobs; i++) {
        cu_down(y, p[i].y, ny * sizeof *y);
        check_job(s, w[i], &a, p[i].tok, q, scale, y, ldy);
        for (size_t k = 0; k < ny; k++) /* what is not a row of a token stays as it was */
            if (k % ldy >= (size_t)s->rows) assert_true(isnan(y[k]));
        for (int m = 0; m < (s->dual ? 2 : 1); m++) cu_matrix_free(&w[i][m]);
        cu_free(p[i].y);
    }
    cu_act_free(&a);
    free(q);
    free(scale);
    free(y);
}

static void products(void **state)
{
    (void)state;
    static const int tokens[] = {1, 2, 3, 5, 8, 9, 16};
    cu_need();
    for (int f = 0; f < N_FMTS; f++)
        for (int k = 0; k < 7; k++)
            for (int turn = 0; turn < 12; turn++) {
                struct setup s = {.fmt = fmts[f],
                                  .n_tok = tokens[k],
                                  .planes = 1 + turn % 2,
                                  .dual = turn % 4 > 1,
                                  .fine = kc_below(2),
                                  .fill = turn % 3 == 0 ? CU_EXACT : CU_RANDOM,
                                  .jobs = 1 + kc_below(MAX_JOBS)};
                const bool exact = s.fill == CU_EXACT;
                /* exact: whole sums below 2^24 units; other lengths up to several steps of a warp */
                const int blocks = 1 + kc_below(exact ? (s.planes == 2 ? 2 : 6) : 180);
                s.cols = blocks * 32;
                /* whole chunks of eight blocks take a path of their own */
                if (!exact && kc_below(2)) s.cols = 256 * (1 + kc_below(20));
                if (exact && s.planes == 1 && kc_below(2)) s.cols = 256;
                if (!sl_fmt_is_expert(s.fmt)) s.cols -= kc_below(4) ? 0 : kc_below(32);
                s.rows = 1 + kc_below(kc_below(2) ? 20 : 150);
                s.n_act = s.n_tok + (kc_below(2) ? kc_below(6) : 0);
                if (s.dual && !exact)
                    s.cols = kc_below(2) ? 64 : 256; /* keep gate and up in SiTU's range */
                one(&s);
            }
}

static void extremes(void **state)
{
    (void)state;
    cu_need();
    for (int f = 0; f < N_FMTS; f++)
        for (int k = 0; k < 3; k++) {
            const struct setup s = {.fmt = fmts[f],
                                    .rows = 33,
                                    .cols = 7 * 32,
                                    .n_tok = k == 0   ? 1
                                             : k == 1 ? 2
                                                      : 11,
                                    .n_act = k == 0   ? 1
                                             : k == 1 ? 2
                                                      : 11,
                                    .planes = 2,
                                    .jobs = 1,
                                    .fine = true,
                                    .fill = CU_ENDS};
            one(&s);
        }
}

static void plain(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    static const enum sl_fmt kinds[] = {SL_FMT_F32, SL_FMT_BF16, SL_FMT_F16};
    for (int turn = 0; turn < 45; turn++) {
        const enum sl_fmt fmt = kinds[turn % 3];
        const int rows = 1 + kc_below(40), cols = 1 + kc_below(900), n_tok = 1 + kc_below(16);
        const size_t nw = (size_t)rows * (size_t)cols, nx = (size_t)n_tok * (size_t)cols;
        const size_t size = fmt == SL_FMT_F32 ? 4 : 2;
        float *x = malloc(nx * sizeof *x), *row = malloc((size_t)cols * sizeof *row);
        float *y = malloc((size_t)n_tok * (size_t)rows * sizeof *y);
        uint8_t *bytes = malloc(nw * size);
        kc_fill(x, nx, KC_TAME);
        for (size_t i = 0; i < nw * size; i++) bytes[i] = (uint8_t)kc_rnd();
        for (size_t i = size - 1; i < nw * size; i += size)
            bytes[i] = (uint8_t)(0x38 + kc_below(8) + (kc_below(2) ? 0x80 : 0));
        struct sl_mat w = {.fmt = fmt, .rows = rows, .cols = cols, .codes = bytes};
        struct sl_mat g = w;
        void *dw = cu_up(bytes, nw * size);
        float *dx = cu_up(x, nx * sizeof *x);
        float *dy = cu_room((size_t)n_tok * (size_t)rows * sizeof *y);
        g.codes = dw;
        sl_cuda_mul_plain(d, &g, dx, (size_t)cols, n_tok, dy, (size_t)rows);
        cu_down(y, dy, (size_t)n_tok * (size_t)rows * sizeof *y);
        for (int r = 0; r < rows; r++) {
            sl_mat_decode_row(&w, r, row);
            for (int t = 0; t < n_tok; t++) {
                double sum = 0, terms = 0;
                for (int c = 0; c < cols; c++) {
                    const double v = (double)row[c] * (double)x[t * cols + c];
                    sum += v;
                    terms += fabs(v);
                }
                assert_true(fabs((double)y[t * rows + r] - sum) <= 64 * 0x1p-24 * terms);
            }
        }
        free(x);
        free(row);
        free(y);
        free(bytes);
        cu_free(dw);
        cu_free(dx);
        cu_free(dy);
    }
}

/* The same bytes each time, whatever ran before. */
static void repeats(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    enum { ROWS = 600, COLS = 3584, TOKENS = 5 };
    static int8_t q[TOKENS * 2 * COLS];
    static float scale[TOKENS * COLS / 32], y[2][TOKENS * ROWS];
    for (size_t i = 0; i < sizeof q; i++) q[i] = (int8_t)(kc_below(255) - 127);
    for (int i = 0; i < TOKENS * COLS / 32; i++) scale[i] = (float)kc_below(1000) * 0x1p-20f;
    for (int f = 0; f < N_FMTS; f++) {
        struct cu_matrix w = cu_matrix(fmts[f], ROWS, COLS, CU_RANDOM, true);
        struct cu_act a = cu_act(fmts[f], COLS, TOKENS, 2, q, scale);
        float *dy = cu_room(sizeof y[0]);
        const struct sl_cuda_product p = {.w = w.gpu, .y = dy, .ldy = ROWS};
        for (int n_tok = 1; n_tok <= TOKENS; n_tok += 4) {
            for (int i = 0; i < 2; i++) {
                sl_cuda_fill(d, dy, 0xff, sizeof y[0]);
                sl_cuda_mul_a8(d, &p, 1, &a.gpu, n_tok, 4, 25);
                cu_down(y[i], dy, sizeof y[0]);
            }
            assert_memory_equal(y[0], y[1], sizeof y[0]);
        }
        cu_free(dy);
        cu_act_free(&a);
        cu_matrix_free(&w);
    }
}

int main(int argc, char **argv)
{
    cu_start(argc, argv, "test_cuda_mul");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing), cmocka_unit_test(products), cmocka_unit_test(extremes),
        cmocka_unit_test(plain),   cmocka_unit_test(repeats),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    cu_end();
    return rc;
}
