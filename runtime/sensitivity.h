/* Sensitivity of layers: how far the model moves when a layer's experts are a little wrong.
 *
 * Every output of a routed expert of one layer is moved by eps times its own rms, up or down, entry by
 * entry, as independent errors of quantized weights would; the mean KL to the unmoved model over eps^2 is
 * the layer's sensitivity. The signs follow from layer, position, rank and entry: nothing is drawn. Used
 * by convert to spread bits over layers (convert/mix_plan.h).
 *
 * eps 0.3 is about what 2 bits a weight leave at the outputs. */
#ifndef SL_RUNTIME_SENSITIVITY_H
#define SL_RUNTIME_SENSITIVITY_H

#include "runtime/rank_fit.h"

#define SL_SENSITIVITY_EPS 0.3f

/* kl [n_layers], 0 for layers without experts. s is left reset. */
int sl_sensitivity_measure(double *kl, sluice_session *s, const struct sl_rank_text *text,
                           sluice_error *err);
/* A statistics file with sections "source" (64 hex digits) and "sensitivity" (f64 [n_layers]). */
int sl_sensitivity_save(const double *kl, const sluice_session *s, const char *path,
                        struct sl_err *err);

#endif
