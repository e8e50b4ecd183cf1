/* Calibration: the exact path over a text, its sums taken on the way (quant/calib.h).
 *
 * The text is cut into windows, state empty at the start of each, fed in order. Sums depend on the
 * pack's weights, the ids and the window alone. */
#ifndef SL_RUNTIME_CALIBRATE_H
#define SL_RUNTIME_CALIBRATE_H

#include "quant/calib.h"
#include "runtime/engine.h"

struct sl_calibrator;

/* Fills shape and is_moe[n_layers] of a model. */
void sl_calibrate_shape(const struct sl_config *c, struct sl_calib_shape *shape, uint8_t *is_moe);

/* Observes s from here on and adds to sums, whose shape is the model's. Both must outlive it. */
int sl_calibrator_open(struct sl_calibrator **out, sluice_session *s, struct sl_calib *sums,
                       struct sl_err *err);
void sl_calibrator_close(struct sl_calibrator *c); /* stops observing; NULL is fine */
/* Feeds one window of n ids from an empty state and counts it. */
int sl_calibrator_window(struct sl_calibrator *c, const int32_t *ids, size_t n, sluice_error *err);

#endif
