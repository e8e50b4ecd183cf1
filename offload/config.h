/* Hyper-parameters of the model, as the pack stores them and every planner and graph reads them.
 *
 * One flat struct, all sizes validated to sane bounds, so that later code may multiply them. Key names
 * in pack.json are the field names. */
#ifndef SL_OFFLOAD_CONFIG_H
#define SL_OFFLOAD_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <cjson/cJSON.h>
#include "base/err.h"

#define SL_MAX_LAYERS 1024

#define SL_MAX_TOP_K 1024 /* experts a token */

struct sl_config {
    int hidden_size, n_layers, vocab_size;
    int intermediate_size; /* dense FFN width */
    int first_k_dense;     /* layers below this have a dense FFN */
    int moe_layer_freq;    /* layers with l % freq != 0 are dense too (1 in the release) */
    double rms_norm_eps, mla_norm_eps, l2_eps;
    double situ_beta, situ_linear_beta; /* linear <= 0: not capped */
    int attn_res_block_size;
    int max_position;

    /* MLA */
    int n_heads;
    int q_lora_rank; /* 0: plain q_proj */
    int kv_lora_rank, qk_nope_dim, qk_rope_dim, v_head_dim;
    bool mla_output_gate;

    /* KDA */
    int kda_heads, kda_head_dim, conv_kernel;
    double gate_lower_bound; /* negative, -5 in the release */

    /* MoE */
    int n_experts, top_k, n_shared_experts, moe_intermediate_size;
    int latent_size; /* routed_expert_hidden_size */
    bool latent_norm, renormalize;
    double routed_scaling_factor;

    int bos_id, eos_id, pad_id;    /* -1 when absent */
    uint8_t is_kda[SL_MAX_LAYERS]; /* 1: KDA, 0: MLA */
};

static inline bool sl_config_is_moe(const struct sl_config *c, int layer)
{
    return layer >= c->first_k_dense && layer % c->moe_layer_freq == 0;
}

/* pack.json "config" object to struct and back. File named in errors; code SL_E_PACK. */
int sl_config_from_json(struct sl_config *c, const cJSON *obj, const char *file, int code,
                        struct sl_err *err);
cJSON *sl_config_to_json(const struct sl_config *c); /* NULL: no memory */
/* Cross-field checks shared by every source of a config: bounds, dims divisible by 32 where the
 * expert formats need it, top_k <= n_experts, layer kinds. */
int sl_config_check(const struct sl_config *c, const char *file, int code, struct sl_err *err);

/* Bounds of a number by field name, for readers that know it by another key; false: no such field. */
bool sl_config_bounds(const char *field, double *min, double *max);

/* Released shape (93 layers), for plan and synthetic packs. */
void sl_config_k3(struct sl_config *c);

#endif
