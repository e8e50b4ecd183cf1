/* Kimi K3 in GGUF: hyper-parameters as values, tensors by their names there (spec 9).
 *
 * Both directions from the same tables. Inventory items are those of SL_FORM_FUSED: GGUF stores norm
 * times projection of an attention residual, and -exp(A_log), so the separate factors are gone. */
#ifndef SL_CONVERT_GGUF_MODEL_H
#define SL_CONVERT_GGUF_MODEL_H

#include "convert/gguf.h"
#include "convert/gguf_put.h"
#include "convert/inventory.h"

#define SL_GGUF_ARCH      "kimi-k3"
#define SL_GGUF_SYNTHETIC "sluice.synthetic" /* bool: weights are made up */

/* Another architecture is refused by its name before any other value is read. SL_E_SOURCE. */
int sl_gguf_config_read(struct sl_config *c, const struct sl_gguf *g, struct sl_err *err);

/* SL_E_SOURCE, naming the field, for a config that GGUF has no values for; file is what errors name. */
int sl_gguf_config_check(const struct sl_config *c, const char *file, struct sl_err *err);
void sl_gguf_config_put(struct sl_gguf_put *p, const struct sl_config *c);

/* Name of a trunk item there ("blk.3.attn_q.weight"), and whether it is stored as f32. kv_b, which is
 * stored as two tensors, has the name of the unsplit one; k_b and v_b are its halves. */
struct sl_gguf_name {
    char name[64];
    char k_b[64], v_b[64]; /* "" unless the item is kv_b */
    bool f32;
};
/* false: the item has no place in GGUF. */
bool sl_gguf_name_item(const struct sl_config *c, const struct sl_item *it,
                       struct sl_gguf_name *out);
/* "blk.3.ffn_gate_exps.weight", "ffn_up_exps", "ffn_down_exps" for matrix m (SL_GATE, ...). */
void sl_gguf_name_experts(int layer, int m, char out[64]);

#endif
