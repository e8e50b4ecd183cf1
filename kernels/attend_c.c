/* Reference of the running-softmax attention (attend.h). */
#include <math.h>
#include "kernels/attend.h"
#include "kernels/reference.h"

enum { BLOCK = SL_ATTEND_BLOCK };

static bool sees(const struct sl_attend *p, int query, int pos)
{
    return !p->seen || pos < p->seen[query];
}

static void block(const struct sl_attend *p, const float *keys, const float *values, int first,
                  int n)
{
    float *s = p->scratch, shrink;
    const struct sl_mm scores = {keys,   p->q, s,          p->ldk, 1,    p->ldq,
                                 p->ldq, n,    p->n_query, p->kd,  false};
    sl_mm_c(&scores);
    for (int c = 0; c < p->n_query; c++) {
        float max = p->max[c], sum = 0.0f;
        for (int i = 0; i < n; i++) {
            float *x = s + (size_t)i * p->ldq + (size_t)c;
            *x = sees(p, c, first + i) ? *x * p->scale : -INFINITY;
            max = max < *x ? *x : max;
        }
        shrink = p->max[c] - max;
        sl_exp_c(&shrink, &shrink, 1);
        p->max[c] = max;
        for (int i = 0; i < n; i++) {
            float *x = s + (size_t)i * p->ldq + (size_t)c;
            *x = *x - max;
            sl_exp_c(x, x, 1);
            sum = sum + *x;
        }
        p->sum[c] = p->sum[c] * shrink + sum;
        float *acc = p->acc + (size_t)c * (size_t)p->vd;
        for (int j = 0; j < p->vd; j++) acc[j] = acc[j] * shrink;
    }
    const struct sl_mm sums = {s,          values, p->acc, 1,   p->ldq, p->ldv, (size_t)p->vd,
                               p->n_query, p->vd,  n,      true};
    sl_mm_c(&sums);
}

void sl_attend_c(const struct sl_attend *p, const float *keys, const float *values, int n_pos)
{
    for (int s = 0; s < n_pos; s += BLOCK)
        block(p, keys + (size_t)s * p->ldk, values + (size_t)s * p->ldv, s,
              n_pos - s < BLOCK ? n_pos - s : BLOCK);
}
