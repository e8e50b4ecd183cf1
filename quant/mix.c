/* Knapsack along convex hulls (mix.h). */
#include "quant/mix.h"

#include <stdlib.h>

struct step {
    double rate, bits, harm; /* harm that falls a bit; the differences */
    size_t unit;
    uint8_t order, to; /* of the steps of its unit; the option it leads to */
};

/* The hull of one unit from its smallest option on, as steps of falling rate. Returns their number. */
static int add_hull(struct step *s, const struct sl_mix_option *o, int k, size_t unit)
{
    int n = 0;
    for (int at = 0; at < k - 1;) {
        int best = -1;
        double rate = 0;
        for (int i = at + 1; i < k; i++) {
            double r = (o[at].harm - o[i].harm) / (o[i].bits - o[at].bits);
            if (!(o[i].bits > o[at].bits) || !(r > rate)) continue;
            best = i;
            rate = r;
        }
        if (best < 0) break; /* more bits bring nothing */
        s[n] = (struct step){
            rate,         o[best].bits - o[at].bits, o[at].harm - o[best].harm, unit, (uint8_t)n,
            (uint8_t)best};
        n++;
        at = best;
    }
    return n;
}

static int by_rate(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    if (x->rate != y->rate) return x->rate > y->rate ? -1 : 1;
    if (x->unit != y->unit) return x->unit < y->unit ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

int sl_mix_choose(const struct sl_mix_option *options, size_t n, int k, double budget,
                  uint8_t *choice, struct sl_mix_result *out, struct sl_err *err)
{
    struct step *steps = malloc((n ? n : 1) * (size_t)(k > 1 ? k - 1 : 1) * sizeof *steps);
    uint8_t *taken = calloc(n ? n : 1, 1);
    size_t n_steps = 0;
    *out = (struct sl_mix_result){0};
    if (!steps || !taken) {
        free(steps);
        free(taken);
        return sl_fail(err, SL_E_NOMEM, NULL, "mix", "no memory for %zu matrices", n);
    }
    for (size_t u = 0; u < n; u++) {
        const struct sl_mix_option *o = options + u * (size_t)k;
        choice[u] = 0;
        out->bits += o->bits;
        out->harm += o->harm;
        n_steps += (size_t)add_hull(steps + n_steps, o, k, u);
    }
    /* A hair of rounding in a sum of many must not cost a step. */
    const double room = budget * (1 + 1e-12);
    int rc = 0;
    if (out->bits > room)
        rc = sl_fail(err, SL_E_ARG, NULL, "mix",
                     "the smallest formats take %.6g bits, allowed are %.6g", out->bits, budget);
    qsort(steps, n_steps, sizeof *steps, by_rate);
    for (size_t i = 0; i < n_steps && !rc; i++) {
        const struct step *s = &steps[i];
        if (taken[s->unit] != s->order || out->bits + s->bits > room) continue;
        taken[s->unit]++;
        choice[s->unit] = s->to;
        out->bits += s->bits;
        out->harm -= s->harm;
    }
    free(steps);
    free(taken);
    return rc;
}
