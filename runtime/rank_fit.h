/* Measuring a plan of ranks (offload/rank_plan.h): which layers gain by reading experts whole.
 *
 * A text goes window by window through a reference and through the pack: all base, all whole, and with
 * each layer alone whole. What the mean KL to the reference falls by is the layer's drop; the shares of
 * ranks are means of squared router weights on the way. Plans at a quarter, half and three quarters of
 * the bits between are then measured themselves, so that what is printed for a plan is no sum of parts. */
#ifndef SL_RUNTIME_RANK_FIT_H
#define SL_RUNTIME_RANK_FIT_H

#include "offload/rank_plan.h"
#include "runtime/sluice.h"

struct sl_rank_text {
    const int32_t *ids;
    size_t n, window; /* whole windows only: n >= window */
};

/* s and ref: sessions of the pack with p36 experts and of its reference; both are left reset. The plan's
 * default target is `bits`, 0: the middle. SL_E_ARG when the pack has nothing to choose. */
int sl_rank_fit(struct sl_rank_plan **out, sluice_session *s, sluice_session *ref,
                const struct sl_rank_text *text, double bits, sluice_error *err);

#endif
