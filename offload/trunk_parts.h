/* Inside the trunk: what a tensor takes in memory. Nobody else includes this. */
#ifndef SL_OFFLOAD_TRUNK_PARTS_H
#define SL_OFFLOAD_TRUNK_PARTS_H

#include "offload/trunk.h"

/* Widened are tensors that the model reads as vectors: any with other than two dimensions, with one row,
 * or with rows too short to be a matrix (convolution taps). */
bool sl_trunk_is_widened(const struct sl_tensor *t);
/* In the arena: whole pages, for direct reads, and the widened copy. */
uint64_t sl_trunk_held_bytes(const struct sl_tensor *t);

#endif
