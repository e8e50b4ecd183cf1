/* Factors an input covariance for block error feedback.
 *
 * H = C C' with C upper triangular, so e H e' = |e C|^2 and block B of e C is
 * e_B C_BB + sum over earlier blocks of e_A C_AB. Encoding w_B + (sum e_A C_AB) C_BB^-1 instead of w_B
 * makes that e' C_BB with e' the error against the corrected target: blocks decouple, and each is
 * searched in its own metric C_BB C_BB' (beyond-plain: -17 to -19 % KL at the same bytes). */
#include "quant/w_encode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 32 };

/* In place: H becomes C, upper triangular with H = C C'; from the last column up. False when a pivot is
 * not positive. */
static bool factor(double *H, int n)
{
    for (int j = n - 1; j >= 0; j--) {
        double *cj = H + (size_t)j * (size_t)n;
        double d = cj[j];
        for (int k = j + 1; k < n; k++) d -= cj[k] * cj[k];
        if (!(d > 0) || !isfinite(d)) return false;
        d = sqrt(d);
        cj[j] = d;
        for (int i = 0; i < j; i++) {
            double *ci = H + (size_t)i * (size_t)n;
            double s = ci[j];
            for (int k = j + 1; k < n; k++) s -= ci[k] * cj[k];
            ci[j] = s / d;
        }
        for (int i = j + 1; i < n; i++) H[(size_t)i * (size_t)n + (size_t)j] = 0;
    }
    return true;
}

/* row := row * U^-1 for the upper triangular U [B][ld]. */
static void solve_upper(double row[B], const double *U, size_t ld)
{
    for (size_t j = 0; j < B; j++) {
        double s = row[j];
        for (size_t k = 0; k < j; k++) s -= row[k] * U[k * ld + j];
        row[j] = s / U[j * ld + j];
    }
}

/* row := row * U'^-1. */
static void solve_lower(double row[B], const double *U, size_t ld)
{
    for (size_t j = B; j-- > 0;) {
        double s = row[j];
        for (size_t k = j + 1; k < B; k++) s -= row[k] * U[j * ld + k];
        row[j] = s / U[j * ld + j];
    }
}

/* Block at column b from its factor U [B][ld]. */
static void put_metric(struct sl_w_metric *m, size_t b, const double *U, size_t ld)
{
    for (size_t i = 0; i < B; i++) {
        m->weight[b + i] = (float)(U[i * ld + i] * U[i * ld + i]);
        for (size_t j = 0; j < B; j++) {
            double s = 0;
            for (size_t k = i > j ? i : j; k < B; k++) s += U[i * ld + k] * U[j * ld + k];
            m->full[(b + i) * B + j] = (float)s;
            m->next[(b + i) * B + j] = j > i ? (float)(U[i * ld + j] / U[j * ld + j]) : 0.0f;
        }
    }
}

static bool open_metric(struct sl_w_metric *m, size_t n)
{
    m->full = calloc(n * B, sizeof *m->full);
    m->weight = calloc(n, sizeof *m->weight);
    m->next = calloc(n * B, sizeof *m->next);
    return m->full && m->weight && m->next;
}

static void close_metric(struct sl_w_metric *m)
{
    free(m->full);
    free(m->weight);
    free(m->next);
}

/* rest and alone, from H before it is factored. */
static bool fill_rest(struct sl_w_feedback *f, const double *H, size_t n)
{
    for (size_t b = 0; b < n; b += B) {
        double U[B * B], row[B];
        for (size_t i = 0; i < B; i++) memcpy(U + i * B, H + (b + i) * n + b, B * sizeof *U);
        if (!factor(U, B)) return false;
        put_metric(&f->alone, b, U, B);
        for (size_t a = 0; a < n; a++) {
            if (a >= b && a < b + B) continue;
            memcpy(row, H + a * n + b, sizeof row);
            solve_lower(row, U, B);
            solve_upper(row, U, B);
            for (size_t j = 0; j < B; j++) f->rest[a * n + b + j] = (float)row[j];
        }
    }
    return true;
}

int sl_w_feedback_open(struct sl_w_feedback *f, double *H, int cols, double damp,
                       struct sl_err *err)
{
    memset(f, 0, sizeof *f);
    if (cols <= 0 || cols % B)
        return sl_fail(err, SL_E_ARG, NULL, "covariance", "%d columns, not a multiple of 32", cols);
    size_t n = (size_t)cols;
    double mean = 0;
    for (size_t i = 0; i < n; i++) mean += H[i * n + i];
    mean /= (double)cols;
    for (size_t i = 0; i < n; i++) H[i * n + i] += damp * mean;
    f->cols = cols;
    f->carry = calloc(n * n, sizeof *f->carry);
    f->rest = calloc(n * n, sizeof *f->rest);
    bool room = open_metric(&f->ahead, n);
    room = open_metric(&f->alone, n) && room;
    if (!f->carry || !f->rest || !room) {
        sl_w_feedback_close(f);
        return sl_fail(err, SL_E_NOMEM, NULL, "covariance", "no memory for %d columns", cols);
    }
    if (!fill_rest(f, H, n) || !factor(H, cols)) {
        sl_w_feedback_close(f);
        return sl_fail(err, SL_E_ARG, NULL, "covariance",
                       "not positive definite after damping by %g", damp);
    }
    for (size_t b = 0; b < n; b += B) {
        put_metric(&f->ahead, b, H + b * n + b, n);
        for (size_t a = 0; a < b; a++) {
            double row[B];
            memcpy(row, H + a * n + b, sizeof row);
            solve_upper(row, H + b * n + b, n);
            for (size_t j = 0; j < B; j++) f->carry[a * n + b + j] = (float)row[j];
        }
    }
    return 0;
}

void sl_w_feedback_close(struct sl_w_feedback *f)
{
    free(f->carry);
    free(f->rest);
    close_metric(&f->ahead);
    close_metric(&f->alone);
    memset(f, 0, sizeof *f);
}
