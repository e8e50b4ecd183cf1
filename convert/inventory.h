/* Every tensor that a config implies: name, dtype, shape (spec 2.2). One list serves the checkpoint
 * check, the pack writer, the export and the maker of sparse test checkpoints' totals. */
#ifndef SL_CONVERT_INVENTORY_H
#define SL_CONVERT_INVENTORY_H

#include "convert/source.h"

enum sl_group {
    SL_GROUP_KDA, /* KDA projections and small tensors */
    SL_GROUP_MLA,
    SL_GROUP_LATENT, /* routed_expert_down/up_proj and norm */
    SL_GROUP_SHARED, /* shared experts */
    SL_GROUP_ROUTER, /* gate and its bias */
    SL_GROUP_DENSE,  /* dense FFN */
    SL_GROUP_NORM,   /* layer norms and attention-residual vectors */
    SL_GROUP_EMBED,
    SL_GROUP_HEAD,   /* lm_head, final norm, output mix */
    SL_GROUP_EXPERT, /* routed experts */
    SL_GROUP_VISION,
    SL_N_GROUPS
};
const char *sl_group_name(enum sl_group g);

struct sl_item {
    char name[128]; /* without prefix */
    enum sl_group group;
    enum sl_dtype dtype;
    int n_dims;
    int64_t shape[4];
    int layer;     /* -1 for globals */
    bool quantize; /* a large matrix that --trunk t8 and below may store at low bits */
};

/* Two spellings of the same model. FUSED is what remains of a checkpoint that came through GGUF: for
 * each pair of an attention residual the product norm * proj as f32 ("attn_res_score", "ffn_res_score",
 * "model.output_res_score"), and "self_attn.ssm_a" = -exp(A_log), one f32 a head. */
enum sl_form { SL_FORM_RELEASED = 0, SL_FORM_FUSED };

/* Calls fn for every non-expert text tensor, by layer, then globals, in the order of trunk.bin; and
 * for the experts with sl_inventory_experts. A non-zero return stops and is returned. Shapes that have
 * two accepted spellings (conv [C,1,k] or [C,k], A_log longer than the heads) carry the released one;
 * sl_item_accepts() knows the others. */
int sl_inventory_trunk(const struct sl_config *c, int (*fn)(void *ctx, const struct sl_item *it),
                       void *ctx); /* SL_FORM_RELEASED */
int sl_inventory_form(const struct sl_config *c, enum sl_form form,
                      int (*fn)(void *ctx, const struct sl_item *it), void *ctx);
int sl_inventory_experts(const struct sl_config *c, int layer, int expert,
                         int (*fn)(void *ctx, const struct sl_item *it), void *ctx);
/* A FUSED trunk may also hold any plain type in place of another, and packed matrices. */
bool sl_item_accepts_shape(const struct sl_item *it, const struct sl_config *c, int n_dims,
                           const int64_t *shape);
bool sl_item_accepts(const struct sl_item *it, const struct sl_config *c, int dtype, int n_dims,
                     const int64_t *shape);

#endif
