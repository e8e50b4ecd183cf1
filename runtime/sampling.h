/* Picking the next token from logits: greedy, or temperature and nucleus with a seed.
 *
 * The same logits, options, seed and draw number give the same token on every machine: exp is the
 * kernels' own (bits equal on every ISA), sums run in one order in double, equal probabilities are
 * ordered by id, and the random number is a pure function of (seed, draw). There is no generator state
 * to save: a resumed session draws what the uninterrupted one would have drawn. */
#ifndef SL_RUNTIME_SAMPLING_H
#define SL_RUNTIME_SAMPLING_H

#include <stdint.h>
#include "kernels/kernels.h"

/* Scratch of one session; both arrays belong to the caller, [n] each. */
struct sl_sampler {
    int n;          /* vocabulary */
    float *weight;  /* exp((logit - max) / temperature) */
    int32_t *order; /* candidates */
};
/* Bytes for the two arrays. */
static inline uint64_t sl_sampler_bytes(int n)
{
    return (uint64_t)n * 8;
}

/* Largest logit, the lowest id where several are equal. */
int32_t sl_sample_argmax(const float *logits, int n);

/* The smallest set of most likely tokens whose weight is at least top_p of the total: fills s->weight
 * and returns the set's size m and its weight. Its members are s->order[n-1], [n-2], ... [n-m], most
 * likely first. temperature > 0, 0 < top_p <= 1. */
int sl_sample_nucleus(const struct sl_kernels *k, struct sl_sampler *s, const float *logits,
                      double temperature, double top_p, double *weight);

/* temperature 0: argmax. Otherwise draws from the nucleus with the draw-th number of the seed's
 * sequence. Logits are finite. */
int32_t sl_sample(const struct sl_kernels *k, struct sl_sampler *s, const float *logits,
                  double temperature, double top_p, uint64_t seed, uint64_t draw);

/* The draw-th number of a seed, uniform in [0, 1) with 53 bits. */
double sl_sample_uniform(uint64_t seed, uint64_t draw);

#endif
