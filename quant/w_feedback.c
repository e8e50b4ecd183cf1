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

/* row := row * U^-1 for the upper triangular diagonal block U at (b, b) of C. */
static void solve_block(double row[B], const double *C, int n, int b)
{
    for (int j = 0; j < B; j++) {
        double s = row[j];
        for (int k = 0; k < j; k++) s -= row[k] * C[(size_t)(b + k) * (size_t)n + (size_t)(b + j)];
        row[j] = s / C[(size_t)(b + j) * (size_t)n + (size_t)(b + j)];
    }
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
    if (!factor(H, cols))
        return sl_fail(err, SL_E_ARG, NULL, "covariance",
                       "not positive definite after damping by %g", damp);
    f->cols = cols;
    f->carry = calloc(n * n, sizeof *f->carry);
    f->metric = calloc(n * B, sizeof *f->metric);
    if (!f->carry || !f->metric) {
        sl_w_feedback_close(f);
        return sl_fail(err, SL_E_NOMEM, NULL, "covariance", "no memory for %d columns", cols);
    }
    for (size_t b = 0; b < n; b += B) {
        for (size_t a = 0; a < b; a++) {
            double row[B];
            memcpy(row, H + a * n + b, sizeof row);
            solve_block(row, H, cols, (int)b);
            for (size_t j = 0; j < B; j++) f->carry[a * n + b + j] = (float)row[j];
        }
        for (size_t i = 0; i < B; i++)
            for (size_t j = 0; j < B; j++) {
                double s = 0;
                for (size_t k = i > j ? i : j; k < B; k++)
                    s += H[(b + i) * n + b + k] * H[(b + j) * n + b + k];
                f->metric[b * B + i * B + j] = (float)s;
            }
    }
    return 0;
}

void sl_w_feedback_close(struct sl_w_feedback *f)
{
    free(f->carry);
    free(f->metric);
    memset(f, 0, sizeof *f);
}
