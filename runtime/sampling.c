/* Sampling: see sampling.h for what is promised.
 *
 * The nucleus is a few hundred tokens out of 163,840, so candidates come off a heap one by one instead
 * of a full sort; the heap's order (weight down, then id up) is total, so the result is the sorted one.
 * Random numbers are SplitMix64 entered at any place: its n-th output is a mix of seed + n * gamma. */
#include "runtime/sampling.h"

#include <assert.h>

static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double sl_sample_uniform(uint64_t seed, uint64_t draw)
{
    /* The seed is mixed first: neighbouring seeds must not give shifted copies of one sequence. */
    uint64_t start = mix64(seed + 0x9e3779b97f4a7c15u);
    uint64_t x = mix64(start + (draw + 1) * 0x9e3779b97f4a7c15u);
    return (double)(x >> 11) * 0x1p-53;
}

int32_t sl_sample_argmax(const float *logits, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static bool before(const float *weight, int32_t a, int32_t b)
{
    return weight[a] > weight[b] || (a < b && weight[a] == weight[b]);
}

static void sift_down(const float *weight, int32_t *heap, int at, int n)
{
    int32_t id = heap[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && before(weight, heap[child + 1], heap[child])) child++;
        if (!before(weight, heap[child], id)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = id;
}

/* Fills s->weight and returns its sum. */
static double weigh(const struct sl_kernels *k, struct sl_sampler *s, const float *logits,
                    double temperature)
{
    float max = logits[sl_sample_argmax(logits, s->n)];
    /* Divided in double: a tiny temperature gives exp(0) and exp(-inf), not 0/0. */
    for (int i = 0; i < s->n; i++) s->weight[i] = (float)((double)(logits[i] - max) / temperature);
    k->exp(s->weight, s->weight, s->n);
    double total = 0;
    for (int i = 0; i < s->n; i++) total += (double)s->weight[i];
    return total;
}

int sl_sample_nucleus(const struct sl_kernels *k, struct sl_sampler *s, const float *logits,
                      double temperature, double top_p, double *weight)
{
    assert(temperature > 0 && top_p > 0 && top_p <= 1);
    double total = weigh(k, s, logits, temperature);
    for (int i = 0; i < s->n; i++) s->order[i] = i;
    for (int i = s->n / 2 - 1; i >= 0; i--) sift_down(s->weight, s->order, i, s->n);
    double want = top_p * total;
    double got = 0;
    int left = s->n;
    while (left > 0 && got < want) {
        int32_t id = s->order[0];
        if (s->weight[id] == 0) break; /* only impossible tokens are left */
        got += (double)s->weight[id];
        s->order[0] = s->order[--left];
        if (left > 0) sift_down(s->weight, s->order, 0, left);
        s->order[left] = id;
    }
    *weight = got;
    return s->n - left;
}

/* Without a cut no order is needed: ids ascending. */
static int32_t draw_from_all(const struct sl_sampler *s, double target)
{
    double sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->weight[i] == 0) continue;
        sum += (double)s->weight[i];
        last = i;
        if (sum > target) break;
    }
    return last;
}

int32_t sl_sample(const struct sl_kernels *k, struct sl_sampler *s, const float *logits,
                  double temperature, double top_p, uint64_t seed, uint64_t draw)
{
    if (temperature == 0) return sl_sample_argmax(logits, s->n);
    double u = sl_sample_uniform(seed, draw);
    double sum = 0;
    if (top_p >= 1) return draw_from_all(s, u * weigh(k, s, logits, temperature));
    double weight;
    int m = sl_sample_nucleus(k, s, logits, temperature, top_p, &weight);
    double target = u * weight;
    for (int i = 1; i < m; i++) {
        int32_t id = s->order[s->n - i];
        sum += (double)s->weight[id];
        if (sum > target) return id;
    }
    return s->order[s->n - m];
}
