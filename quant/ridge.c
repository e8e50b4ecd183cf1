/* Ridge regression out of streamed sums (ridge.h).
 *
 * The rows [x 1 y] go through the Gram product of calibration as one matrix; of its result only the rows
 * of [x 1] are kept. The solve is a row-oriented Cholesky: every inner loop is a dot product of two rows
 * that lie in memory as they are read, eight partial sums side by side. Outputs are solved one task each. */
#include "quant/ridge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "quant/calib.h"

static int total(const struct sl_ridge *r)
{
    return r->n_in + 1 + r->n_out;
}

uint64_t sl_ridge_bytes(int n_in, int n_out)
{
    uint64_t bytes;
    const uint64_t d = (uint64_t)n_in + 1;
    if (n_in < 1 || n_out < 1 || !sl_mul_u64(d, d + (uint64_t)n_out, &bytes) ||
        !sl_mul_u64(bytes, sizeof(double), &bytes))
        return UINT64_MAX;
    return bytes;
}

int sl_ridge_open(struct sl_ridge *r, int n_in, int n_out, struct sl_err *err)
{
    const uint64_t bytes = sl_ridge_bytes(n_in, n_out);
    *r = (struct sl_ridge){.n_in = n_in, .n_out = n_out};
    if (bytes <= SIZE_MAX / 2) r->sums = calloc(1, (size_t)bytes);
    if (!r->sums)
        return sl_fail(err, SL_E_NOMEM, NULL, "regression", "no memory for %llu bytes of sums",
                       (unsigned long long)bytes);
    return 0;
}

void sl_ridge_close(struct sl_ridge *r)
{
    free(r->sums);
    memset(r, 0, sizeof *r);
}

size_t sl_ridge_work_floats(int n, int n_in, int n_out)
{
    return sl_gram_work_floats(n, n_in + 1 + n_out);
}

void sl_ridge_pack(const struct sl_ridge *r, float *work, const float *x, size_t ldx,
                   const float *y, size_t ldy, int n)
{
    static const float one = 1.0f;
    const size_t column = sl_gram_work_floats(n, 1); /* of one value, padded */
    const size_t d = (size_t)r->n_in;
    sl_gram_pack(work, x, ldx, n, r->n_in);
    sl_gram_pack(work + d * column, &one, 0, n, 1);
    sl_gram_pack(work + (d + 1) * column, y, ldy, n, r->n_out);
}

void sl_ridge_add(struct sl_ridge *r, const float *work, int n, int row0, int row1,
                  const struct sl_kernels *k)
{
    sl_gram_add_f64(r->sums, work, n, total(r), row0, row1, k);
}

/* ---- solve */

static double dot(const double *a, const double *b, size_t n)
{
    double s[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += a[i + (size_t)j] * b[i + (size_t)j];
    for (; i < n; i++) s[0] += a[i] * b[i];
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

struct solver {
    const struct sl_ridge *r;
    size_t d;     /* n_in + 1 */
    double *low;  /* [d][d], lower triangle; the diagonal holds 1 / L_ii */
    double *work; /* [threads][d] */
    float *W, *b;
    size_t column; /* of the factorisation in progress */
};

enum { ROWS = 32 };

/* Rows below the column: L_ic = (A_ic - L_i . L_c) / L_cc. */
static void column_task(void *ctx, int task, int worker)
{
    (void)worker;
    const struct solver *s = ctx;
    const size_t c = s->column, d = s->d;
    const double *of = s->low + c * d;
    size_t row = c + 1 + (size_t)task * ROWS;
    const size_t end = row + ROWS < d ? row + ROWS : d;
    for (; row < end; row++) {
        double *at = s->low + row * d;
        at[c] = (at[c] - dot(at, of, c)) * of[c];
    }
}

static void run(struct sl_pool *pool, int n_tasks, sl_task_fn fn, void *ctx)
{
    if (pool && n_tasks > 1)
        sl_pool_run(pool, n_tasks, fn, ctx);
    else
        for (int i = 0; i < n_tasks; i++) fn(ctx, i, 0);
}

/* Column by column; false: not positive definite to the precision of f64. */
static bool factorise(struct solver *s, struct sl_pool *pool)
{
    for (size_t c = 0; c < s->d; c++) {
        double *at = s->low + c * s->d;
        const double pivot = at[c] - dot(at, at, c);
        if (!(pivot > at[c] * 1e-13)) return false; /* NaN too */
        at[c] = 1 / sqrt(pivot);
        s->column = c;
        run(pool, (int)((s->d - c - 1 + ROWS - 1) / ROWS), column_task, s);
    }
    return true;
}

static void output_task(void *ctx, int out, int worker)
{
    const struct solver *s = ctx;
    const size_t d = s->d, ld = (size_t)total(s->r);
    double *x = s->work + (size_t)worker * d;
    for (size_t i = 0; i < d; i++) {
        const double *at = s->low + i * d;
        x[i] = (s->r->sums[i * ld + d + (size_t)out] - dot(at, x, i)) * at[i];
    }
    for (size_t i = d; i-- > 0;) { /* L' by columns, which are rows of L */
        const double *at = s->low + i * d;
        x[i] *= at[i];
        for (size_t j = 0; j < i; j++) x[j] -= at[j] * x[i];
    }
    float *row = s->W + (size_t)out * (d - 1);
    for (size_t i = 0; i + 1 < d; i++) row[i] = (float)x[i];
    s->b[out] = (float)x[d - 1];
}

static void load(struct solver *s, double lambda)
{
    const size_t d = s->d, ld = (size_t)total(s->r);
    double trace = 0;
    for (size_t i = 0; i < d; i++) {
        memcpy(s->low + i * d, s->r->sums + i * ld, (i + 1) * sizeof(double));
        if (i + 1 < d) trace += s->low[i * d + i];
    }
    const double penalty = lambda * trace / (double)(d - 1);
    for (size_t i = 0; i + 1 < d; i++) s->low[i * d + i] += penalty;
}

int sl_ridge_solve(const struct sl_ridge *r, double lambda, struct sl_pool *pool, float *W,
                   float *b, struct sl_err *err)
{
    struct solver s = {.r = r, .d = (size_t)r->n_in + 1, .W = W, .b = b};
    const size_t threads = pool ? (size_t)sl_pool_threads(pool) : 1;
    const double n = r->sums[(s.d - 1) * (size_t)total(r) + s.d - 1]; /* 1 x 1, summed */
    if (!(lambda >= 0) || !(n > 0))
        return sl_fail(err, SL_E_ARG, NULL, "regression", "%g rows, lambda %g", n, lambda);
    s.low = malloc(s.d * s.d * sizeof(double));
    s.work = malloc(threads * s.d * sizeof(double));
    int rc = 0;
    if (!s.low || !s.work)
        rc = sl_fail(err, SL_E_NOMEM, NULL, "regression", "no memory for %zu inputs", s.d);
    if (!rc) {
        load(&s, lambda);
        if (factorise(&s, pool))
            run(pool, r->n_out, output_task, &s);
        else
            rc = sl_fail(err, SL_E_ARG, NULL, "regression",
                         "the inputs are linearly dependent at lambda %g", lambda);
    }
    free(s.low);
    free(s.work);
    return rc;
}
