/* The weights of one layer out of a source, whole in memory: the trunk of a model that is not a pack yet.
 *
 * Tensors are read when the layer is bound (model.h, sl_weight_source) and freed together. Their formats
 * are those that a lossless pack would hold, so that a layer computes the same bits. */
#ifndef SL_RUNTIME_LAYER_WEIGHTS_H
#define SL_RUNTIME_LAYER_WEIGHTS_H

#include "convert/input.h"
#include "runtime/model.h"

#define SL_LAYER_TENSORS 64 /* more than a layer has, its experts left out */

struct sl_layer_weights {
    const struct sl_input *in;
    void *held[SL_LAYER_TENSORS];
    int n_held;
};

/* For sl_model_bind_layer; w must outlive it. Errors name the tensor: SL_E_SOURCE, of a pack SL_E_PACK. */
struct sl_weight_source sl_layer_weights_source(struct sl_layer_weights *w);
void sl_layer_weights_free(struct sl_layer_weights *w);
/* Bytes that the largest layer takes. */
uint64_t sl_layer_weights_bytes(const struct sl_input *in);

#endif
