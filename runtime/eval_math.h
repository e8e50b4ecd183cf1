/* Scores of eval: log-softmax, likelihood of the text, and the distance between two models.
 *
 * All in double over f32 logits. Units: nats. */
#ifndef SL_RUNTIME_EVAL_MATH_H
#define SL_RUNTIME_EVAL_MATH_H

#include <stddef.h>
#include <stdint.h>

/* log(sum(exp(l))) of l[n], finite entries. */
double sl_eval_lse(const float *l, int n);

/* KL(p || q) of the softmaxes of two rows; never below 0 (rounding is cut off). */
double sl_eval_kl(const float *p, const float *q, int n);

/* Nearest-rank percentile (0 < percent <= 100) of v[n], n > 0; sorts v. */
double sl_eval_percentile(double *v, size_t n, double percent);

/* Sums over all windows. */
struct sl_eval_sum {
    uint64_t windows, positions, scored; /* scored: predictions with a known next token */
    double nll;                          /* sum over scored */
    uint64_t top1_text;                  /* argmax was the next token */
};
/* Adds one position: logits after a token, and the next token of the text (-1: last of the window). */
void sl_eval_add(struct sl_eval_sum *e, const float *logits, int n, int32_t next);

#endif
