/* Health of a router after its experts were quantized: how far each expert's load moved, and the bias that
 * would move it back.
 *
 * From histograms of margins (quant/calib.h): a margin is the distance of an expert's selection score to
 * the score that decided, at every token, so an expert is chosen where its margin is above zero. Adding a
 * bias shifts its whole histogram; the bias that gives it the load it had is a quantile, found directly,
 * with the other experts' scores as they are. Counts add over parts of a text, so histograms of several
 * runs may be added first. */
#ifndef SL_QUANT_HEALTH_H
#define SL_QUANT_HEALTH_H

#include "quant/calib.h"

/* The bias that makes `want` of the tokens in margins[SL_MARGIN_BINS] lie above zero: straight lines inside
 * a bin, at most half a unit either way. */
double sl_health_bias(const uint32_t *margins, double want);

struct sl_health_layer {
    double moved;                   /* share of the layer's choices that went to another expert */
    double most_before, most_after; /* busiest expert's load over the mean */
    double bias_rms, bias_most;     /* of the biases that would restore the loads */
    int most_moved;                 /* the expert whose share changed most */
    double most_moved_before, most_moved_after; /* its share of the layer's choices */
};

/* Counts and margins of n experts, before and after, over texts of the same tokens. */
void sl_health_layer(struct sl_health_layer *out, const uint64_t *before, const uint64_t *after,
                     const uint32_t *margins_after, int n);

#endif
