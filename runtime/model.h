/* The model bound to memory: which matrix is which, per layer, as the graph reads it (spec 2.2, 3).
 *
 * Built once from a pack's trunk; immutable; shared by sessions. Vectors that a formula folds are
 * folded here (attention-residual weight = norm * proj, exp(A_log)). */
#ifndef SL_RUNTIME_MODEL_H
#define SL_RUNTIME_MODEL_H

#include "base/arena.h"
#include "offload/pack.h"
#include "offload/stream.h"
#include "offload/trunk.h"

struct sl_kda_weights {
    struct sl_mat q, k, v, f_a, f_b, b, g, o;
    const float *conv[3]; /* q, k, v taps: [channels][conv_kernel], last tap = current token */
    const float *exp_A;   /* [kda_heads]; A_log is per HEAD, the file pads it */
    const float *dt_bias; /* [kda_heads * kda_head_dim] */
    const float *o_norm;  /* [kda_head_dim] */
};

struct sl_mla_weights {
    struct sl_mat q_a, q_b; /* q_a unused (codes NULL) when q_lora_rank is 0: q_b is then q_proj */
    struct sl_mat kv_a, kv_b, g, o;
    const float *q_a_norm, *kv_a_norm;
};

struct sl_ffn_weights {
    struct sl_mat gate, up, down; /* dense FFN, or the shared experts */
};

struct sl_layer {
    bool is_kda, is_moe, opens_block;
    const float *input_norm, *post_norm; /* [hidden] */
    const float *attn_mix, *ffn_mix;     /* [hidden], norm * proj; attn_mix of layer 0 is unused */
    union {
        struct sl_kda_weights kda;
        struct sl_mla_weights mla;
    } attn;
    struct sl_ffn_weights ffn; /* dense or shared */
    struct sl_mat router, latent_down, latent_up;
    const float *router_bias, *latent_norm;
};

struct sl_model {
    const struct sl_pack *pack;
    const struct sl_trunk *trunk;
    struct sl_config cfg;
    /* Matrices that are not held, in the order in which a pass over the model uses them; the head, if it
     * is one of them, comes last. Their struct sl_mat has codes NULL and `stream` set. */
    struct sl_stream_part *parts;
    int n_parts, n_layer_parts; /* all; without the head */
    struct sl_mat embed, head;  /* embed: codes NULL when rows are read one by one */
    const struct sl_tensor *embed_tensor;
    const float *final_norm, *out_mix;
    struct sl_layer *layers; /* [n_layers] */
};

/* Bytes sl_model_open takes from the arena beyond the trunk itself (folded vectors, layer table). */
uint64_t sl_model_bytes(const struct sl_pack *p);
int sl_model_open(struct sl_model **out, const struct sl_pack *p, const struct sl_trunk *t,
                  struct sl_arena *arena, struct sl_err *err);

/* Where a layer's weights come from when it is no pack (fused calibration). As sl_trunk_mat and
 * sl_trunk_vec; all matrices are in memory. */
struct sl_weight_source {
    void *ctx;
    int (*mat)(void *ctx, const char *name, int64_t rows, int64_t cols, struct sl_mat *out,
               struct sl_err *err);
    int (*vec)(void *ctx, const char *name, int64_t n, const float **out, struct sl_err *err);
    bool (*has)(void *ctx, const char *name);
};
/* Binds one layer, without its experts. own: sl_model_layer_bytes on a line of 64, for folded vectors; it
 * and what the source gave must outlive w. */
uint64_t sl_model_layer_bytes(const struct sl_config *c);
int sl_model_bind_layer(struct sl_layer *w, int layer, const struct sl_config *c,
                        const struct sl_weight_source *from, void *own, struct sl_err *err);

#endif
