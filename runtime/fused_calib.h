/* convert --calib TEXT: the exact path over a text while its model is being converted (convert/live_calib.h).
 *
 * All windows of the text pass through a layer before the next one, each from an empty state. What they
 * carry lies in scratch files beside the conversion's journal:
 *
 *   calib.stream.0/1   [tokens][hidden]     running sums before a layer, and after it: the two in turn
 *   calib.bank.J       [tokens][hidden + 1] banked vector J of the attention residuals, and its rms
 *   calib.latent       [tokens][latent]     inputs of the experts of the layer in progress; mapped
 *   calib.pairs        [tokens][top_k][latent]  their outputs, in router order; mapped
 *
 * The sums are those of `calibrate` over a lossless pack of the same source with covariances of each
 * expert, bit for bit, and so is the pack that comes out; a covariance lasts as long as its expert, so
 * full-size models have them too. */
#ifndef SL_RUNTIME_FUSED_CALIB_H
#define SL_RUNTIME_FUSED_CALIB_H

#include "convert/live_calib.h"

struct sl_fused;
/* text: a file as `calibrate` reads it; ids instead: *.u16, *.u32 or text. tokens 0: all. Both names
 * must outlive it. */
struct sl_fused_opts {
    const char *text, *ids;
    int64_t tokens, window;
};
int sl_fused_open(struct sl_fused **out, const struct sl_fused_opts *o, struct sl_err *err);
void sl_fused_close(struct sl_fused *f); /* NULL is fine */
const struct sl_live_calib *sl_fused_calls(struct sl_fused *f);

#endif
