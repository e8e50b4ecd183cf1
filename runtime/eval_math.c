/* Scores of eval (see eval_math.h). */
#include "runtime/eval_math.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include "runtime/sampling.h"

double sl_eval_lse(const float *l, int n)
{
    double max = l[sl_sample_argmax(l, n)];
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp((double)l[i] - max);
    /* cppcheck-suppress invalidFunctionArg ; sum is 1 or more, the largest is in it */
    return max + log(sum);
}

double sl_eval_kl(const float *p, const float *q, int n)
{
    double lp = sl_eval_lse(p, n);
    double lq = sl_eval_lse(q, n);
    double kl = 0;
    for (int i = 0; i < n; i++) {
        double a = (double)p[i] - lp;
        kl += exp(a) * (a - ((double)q[i] - lq));
    }
    return kl > 0 ? kl : 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double sl_eval_percentile(double *v, size_t n, double percent)
{
    assert(n > 0 && percent > 0 && percent <= 100);
    qsort(v, n, sizeof *v, by_value);
    size_t rank = (size_t)ceil(percent / 100 * (double)n);
    return v[rank < 1 ? 0 : rank > n ? n - 1 : rank - 1];
}

void sl_eval_add(struct sl_eval_sum *e, const float *logits, int n, int32_t next)
{
    e->positions++;
    if (next < 0) return;
    e->scored++;
    e->nll += sl_eval_lse(logits, n) - (double)logits[next];
    e->top1_text += sl_sample_argmax(logits, n) == next;
}
