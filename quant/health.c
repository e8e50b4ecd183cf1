/* Loads and quantiles (health.h). */
#include "quant/health.h"

#include <math.h>

double sl_health_bias(const uint32_t *margins, double want)
{
    const double width = 1.0 / SL_MARGIN_BINS;
    double above = 0;
    for (int i = SL_MARGIN_BINS - 1; i >= 0; i--) {
        const double low = -0.5 + i * width;
        if (above + margins[i] >= want) {
            const double part = margins[i] ? (want - above) / margins[i] : 0;
            return -(low + width * (1 - part));
        }
        above += margins[i];
    }
    return 0.5;
}

static double sum_of(const uint64_t *v, int n)
{
    double sum = 0;
    for (int e = 0; e < n; e++) sum += (double)v[e];
    return sum;
}

void sl_health_layer(struct sl_health_layer *out, const uint64_t *before, const uint64_t *after,
                     const uint32_t *margins_after, int n)
{
    const double a = sum_of(before, n), b = sum_of(after, n);
    double squares = 0;
    double most = -1;
    *out = (struct sl_health_layer){0};
    if (!(a > 0) || !(b > 0)) return;
    for (int e = 0; e < n; e++) {
        const double was = (double)before[e] / a, is = (double)after[e] / b;
        const double bias = sl_health_bias(margins_after + (size_t)e * SL_MARGIN_BINS, was * b);
        out->moved += fabs(is - was) / 2;
        if (was * n > out->most_before) out->most_before = was * n;
        if (is * n > out->most_after) out->most_after = is * n;
        squares += bias * bias;
        if (fabs(bias) > out->bias_most) out->bias_most = fabs(bias);
        if (fabs(is - was) <= most) continue;
        most = fabs(is - was);
        out->most_moved = e;
        out->most_moved_before = was;
        out->most_moved_after = is;
    }
    out->bias_rms = sqrt(squares / n);
}
