/* Log-probabilities of a picked token and of the most likely ones, as the API reports them: of the
 * model's own distribution (temperature 1, no nucleus), whatever the token was drawn with. */
#ifndef SL_RUNTIME_SERVE_LOGPROB_H
#define SL_RUNTIME_SERVE_LOGPROB_H

#include "runtime/serve_job.h"

/* logits[n] are finite, id is in [0, n). Fills self, and the n_top (at most n and
 * SL_SERVE_TOP_LOGPROBS) most likely tokens, most likely first, the lower id where two are equal. The
 * sum runs in double over ids ascending, so the same logits give the same figures everywhere. */
void sl_serve_logprob(struct sl_serve_token *out, const float *logits, int n, int32_t id,
                      int n_top);

#endif
