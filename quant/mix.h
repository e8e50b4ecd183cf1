/* Choosing formats under a budget of bits: a knapsack with one choice for each unit.
 *
 * A unit is a matrix of one expert; its options are formats with a size and a harm (what the choice adds
 * to the distance from the original, in any unit that adds up). Options above the lower convex hull of
 * (size, harm) are never taken; along the hull every step buys less for its bits than the one before,
 * so steps of all units, taken in order of what they buy, are the optimum but for the last step that no
 * longer fits. */
#ifndef SL_QUANT_MIX_H
#define SL_QUANT_MIX_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define SL_MIX_OPTIONS 8 /* of a unit, at most */

struct sl_mix_option {
    double bits, harm; /* both >= 0 */
};

struct sl_mix_result {
    double bits, harm; /* of what was chosen */
};

/* options [n][k], bits rising within a unit, 1 <= k <= SL_MIX_OPTIONS; choice [n] receives an option each.
 * Everything begins with its smallest option. SL_E_ARG when even that exceeds the budget, with the bits
 * it takes; SL_E_NOMEM. Ties go to the lower unit: the result follows from the numbers alone. */
int sl_mix_choose(const struct sl_mix_option *options, size_t n, int k, double budget,
                  uint8_t *choice, struct sl_mix_result *out, struct sl_err *err);

#endif
