/* log softmax of one row and its largest entries (see serve_logprob.h). */
#include "runtime/serve_logprob.h"

#include <assert.h>
#include <math.h>

/* Keeps top[0..*m) sorted; a later id never passes an equal one. */
static void offer(struct sl_serve_logprob *top, int *m, int n_top, int32_t id, float logit)
{
    if (*m == n_top && logit <= top[n_top - 1].logprob) return;
    int i = *m < n_top ? (*m)++ : n_top - 1;
    for (; i > 0 && top[i - 1].logprob < logit; i--) top[i] = top[i - 1];
    top[i] = (struct sl_serve_logprob){id, logit};
}

void sl_serve_logprob(struct sl_serve_token *out, const float *logits, int n, int32_t id, int n_top)
{
    assert(id >= 0 && id < n && n_top >= 0);
    if (n_top > n) n_top = n;
    if (n_top > SL_SERVE_TOP_LOGPROBS) n_top = SL_SERVE_TOP_LOGPROBS;
    out->n_top = 0;
    float max = logits[0];
    for (int i = 0; i < n; i++) {
        if (logits[i] > max) max = logits[i];
        if (n_top) offer(out->top, &out->n_top, n_top, i, logits[i]);
    }
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp((double)logits[i] - (double)max);
    /* cppcheck-suppress invalidFunctionArg ; sum is 1 or more, the largest is in it */
    double log_sum = (double)max + log(sum);
    out->self = (struct sl_serve_logprob){id, (float)((double)logits[id] - log_sum)};
    for (int i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - log_sum);
}
