/* Reference norms, sums and softmax: one float operation a step, in the order written. */
#include <math.h>
#include "kernels/lanes.h"
#include "kernels/reference.h"

void sl_rmsnorm_c(float *y, const float *x, const float *w, int n, float eps)
{
    float d = sqrtf(sl_dot_c(x, x, n) / (float)n + eps);
    for (int i = 0; i < n; i++) {
        float v = x[i] / d;
        y[i] = w ? v * w[i] : v;
    }
}

void sl_axpy_c(float *y, float a, const float *x, int n)
{
    for (int i = 0; i < n; i++) y[i] = y[i] + a * x[i];
}

void sl_add_c(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++) y[i] = a[i] + b[i];
}

void sl_mulv_c(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++) y[i] = a[i] * b[i];
}

/* Rows outside, columns inside: every column still adds its rows in ascending order from +0.0. */
void sl_weighted_rows_c(float *y, const float *p, const float *v, size_t ldv, int n_rows, int n)
{
    for (int j = 0; j < n; j++) y[j] = 0.0f;
    for (int s = 0; s < n_rows; s++)
        for (int j = 0; j < n; j++) y[j] = y[j] + p[s] * v[(size_t)s * ldv + (size_t)j];
}

/* A NaN or +inf among the scores makes the sum a NaN and so every entry: never a silent zero. */
void sl_softmax_c(float *x, int n, float scale)
{
    float max = -INFINITY, lane[SL_LANES] = {0};
    for (int i = 0; i < n; i++) {
        x[i] = x[i] * scale;
        max = max < x[i] ? x[i] : max;
    }
    for (int i = 0; i < n; i++) x[i] = x[i] - max;
    sl_exp_c(x, x, n);
    for (int i = 0; i < n; i++) lane[i % SL_LANES] += x[i];
    float sum = sl_lanes_sum(lane);
    for (int i = 0; i < n; i++) x[i] = x[i] / sum;
}
