/* Skewed routing of a synthetic pack: which experts are popular, and the router biases that make them so.
 *
 * With uniform routing the hit rate of any cache is the share of the experts that it holds and no
 * look-ahead can work, so nothing measured would say anything of the real model. Here expert use follows
 * a Zipf law p(r) = min(0.98, C / r^a), scaled so that top_k experts are chosen a token, with the
 * exponent that gives the wanted reuse: if tokens chose independently, an expert of one token would be
 * among those of the next with probability sum p^2 / top_k. */
#ifndef SL_CONVERT_SYNTH_ROUTES_H
#define SL_CONVERT_SYNTH_ROUTES_H

/* Reuse that the popularity alone gives. Tokens that resemble each other add to it: what a whole run
 * shows is docs/results/synth.md. */
#define SL_SYNTH_REUSE 0.30

/* p[n], most popular first, sum k. Returns the exponent a: 0 (uniform) when k / n exceeds reuse already,
 * or when n is so small that the law cannot be met. Plain arithmetic: the same on every machine. */
double sl_synth_popularity(double *p, int n, int k, double reuse);

/* Bias of an expert chosen with probability p when its router logit is normal with deviation `sd` and an
 * expert is chosen if sigmoid(logit) + bias exceeds 0. */
double sl_synth_bias(double p, double sd);

#endif
