/* Zipf law and normal quantiles in plain arithmetic: libm's last bits differ between libraries, and a
 * pack has to be the same bytes for a seed everywhere. Series and bisection are exact enough (1e-12) and
 * run a few thousand times a pack. */
#include "convert/synth_routes.h"

#include <math.h>

#define P_MAX 0.98 /* a quantile must exist */

static double exp_of(double y)
{
    int squares = 0;
    while (fabs(y) > 0.0625) {
        y *= 0.5;
        squares++;
    }
    double sum = 1;
    double term = 1;
    for (int i = 1; i < 12; i++) {
        term *= y / i;
        sum += term;
    }
    while (squares--) sum *= sum;
    return sum;
}

static double log_of(double x)
{
    int e;
    double m = frexp(x, &e);
    double z = (m - 1) / (m + 1);
    double z2 = z * z;
    double sum = 0;
    for (int i = 39; i > 0; i -= 2) sum = sum * z2 + 1.0 / i;
    return e * 0.69314718055994530942 + 2 * z * sum;
}

/* Share of a standard normal below x, |x| <= 6. */
static double normal_below(double x)
{
    double sum = 0;
    double term = x;
    for (int k = 1; k < 200; k++) {
        sum += term;
        term *= x * x / (2 * k + 1);
    }
    return 0.5 + 0.39894228040143267794 * exp_of(-0.5 * x * x) * sum;
}

static double quantile(double q)
{
    double low = -6;
    double high = 6;
    for (int i = 0; i < 60; i++) {
        double mid = 0.5 * (low + high);
        if (normal_below(mid) < q)
            low = mid;
        else
            high = mid;
    }
    return 0.5 * (low + high);
}

/* p[r] = min(P_MAX, c / r^a) with sum k; returns the sum of squares. */
static double zipf(double *p, int n, int k, double a)
{
    double low = 0;
    double high = 1;
    for (int r = 0; r < n; r++) p[r] = exp_of(-a * log_of(r + 1.0));
    while (high * p[n - 1] < P_MAX) high *= 2;
    for (int i = 0; i < 80; i++) {
        double c = 0.5 * (low + high);
        double sum = 0;
        for (int r = 0; r < n; r++) sum += c * p[r] < P_MAX ? c * p[r] : P_MAX;
        if (sum < k)
            low = c;
        else
            high = c;
    }
    double squares = 0;
    for (int r = 0; r < n; r++) {
        p[r] = high * p[r] < P_MAX ? high * p[r] : P_MAX;
        squares += p[r] * p[r];
    }
    return squares;
}

double sl_synth_popularity(double *p, int n, int k, double reuse)
{
    double low = 0;
    double high = 3;
    if (k >= n || (double)k / n > reuse) {
        for (int r = 0; r < n; r++) p[r] = k < n ? (double)k / n : P_MAX;
        return 0;
    }
    for (int i = 0; i < 40; i++) {
        double a = 0.5 * (low + high);
        if (zipf(p, n, k, a) < reuse * k)
            low = a;
        else
            high = a;
    }
    (void)zipf(p, n, k, high);
    return high;
}

double sl_synth_bias(double p, double sd)
{
    if (p > P_MAX) p = P_MAX;
    return -1 / (1 + exp_of(-sd * quantile(1 - p)));
}
