/* Fits the maps of look-ahead (lookahead.h) on a text: the next layer's router scores from the state
 * that look-ahead reads, by ridge regression towards the plain router. */
#ifndef SL_RUNTIME_LOOKAHEAD_FIT_H
#define SL_RUNTIME_LOOKAHEAD_FIT_H

#include "runtime/engine.h"
#include "runtime/lookahead.h"

struct sl_ahead_fit;

/* Bytes of the sums of a model. */
uint64_t sl_ahead_fit_bytes(const struct sl_config *c);
/* Observes s from here on; s must outlive it. Feed windows with sluice_session_reset and sluice_feed.
 * SL_E_BUDGET when the sums take more than max_bytes. */
int sl_ahead_fit_open(struct sl_ahead_fit **out, sluice_session *s, uint64_t max_bytes,
                      struct sl_err *err);
void sl_ahead_fit_close(struct sl_ahead_fit *f); /* stops observing; NULL is fine */
/* Solves for all layers and writes the file. The same bytes for any number of threads. */
int sl_ahead_fit_save(struct sl_ahead_fit *f, const char *path, struct sl_err *err);

#endif
