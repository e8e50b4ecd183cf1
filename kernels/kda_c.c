/* Reference of the KDA convolution and recurrence (spec 3.3).
 *
 * Value channels are independent of each other: each of them adds its key channels in ascending
 * order from +0.0, so any number of value channels may run side by side. */
#include <assert.h>
#include "kernels/reference.h"

enum { VALUES = 64, CHANNELS = 64, MAX_TAPS = 8 };

void sl_conv_c(float *y, const float *taps, const float *hist, size_t ldh, const float *x, int n,
               int k)
{
    assert(k >= 1 && k <= MAX_TAPS);
    for (int c = 0; c < n; c++) {
        float sum = 0.0f;
        for (int j = 0; j < k - 1; j++)
            sum = sum + taps[c * k + j] * hist[(size_t)j * ldh + (size_t)c];
        y[c] = sum + taps[c * k + k - 1] * x[c];
    }
    sl_silu_c(y, y, n);
}

/* The state is decayed twice, once for each read: cheaper than storing it in between. */
static void step(float *S, const float *q, const float *k, const float *v, const float *alpha,
                 float beta, float *o, int d, int n)
{
    float r[VALUES] = {0}, u[VALUES], out[VALUES] = {0};
    for (int i = 0; i < d; i++) {
        const float *row = S + (size_t)i * (size_t)d;
        for (int j = 0; j < n; j++) r[j] = r[j] + k[i] * (row[j] * alpha[i]);
    }
    for (int j = 0; j < n; j++) u[j] = beta * (v[j] - r[j]);
    for (int i = 0; i < d; i++) {
        float *row = S + (size_t)i * (size_t)d;
        for (int j = 0; j < n; j++) {
            float s = row[j] * alpha[i] + k[i] * u[j];
            row[j] = s;
            out[j] = out[j] + q[i] * s;
        }
    }
    for (int j = 0; j < n; j++) o[j] = out[j];
}

void sl_kda_step_c(float *S, const float *q, const float *k, const float *v, const float *alpha,
                   float beta, float *o, int d)
{
    for (int j = 0; j < d; j += VALUES)
        step(S + j, q, k, v + j, alpha, beta, o + j, d, d - j < VALUES ? d - j : VALUES);
}
