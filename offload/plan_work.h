/* What one token costs in bytes and multiplications, layer by layer, from the shapes of a pack.
 *
 * Times come later (plan_cost.h) and only from this: the same counts serve every board. A layer's work
 * is split where the engine's order forces a wait:
 *
 *   attention  ->  router, latent in  ->  [ shared experts | routed experts ]  ->  latent out
 *
 * Only the bracket runs beside the reads of its own layer: what the router asks for is not known
 * before. */
#ifndef SL_OFFLOAD_PLAN_WORK_H
#define SL_OFFLOAD_PLAN_WORK_H

#include "offload/pack.h"

enum { SL_WORK_FMTS = 32 }; /* format numbers are below this */

struct sl_work {
    uint64_t bytes;                 /* of weights and state that cross the memory bus once */
    uint64_t weights[SL_WORK_FMTS]; /* multiplications for one token, by format */
};

struct sl_layer_work {
    bool is_kda, is_moe;
    struct sl_work attn;       /* projections and recurrence; without attention over positions */
    struct sl_work before;     /* router and latent input, or nothing */
    struct sl_work ffn;        /* shared experts, or the dense FFN */
    struct sl_work after;      /* latent output, or nothing */
    struct sl_work expert;     /* one routed expert */
    uint64_t state_bytes;      /* KDA: state read and written, part of no tensor */
    uint64_t record_bytes;     /* of the layer's bank: mean that a token reads of an expert */
    uint64_t fine_bytes;       /* refinement planes of a mean record; 0 without p36 */
    int whole_ranks;           /* of a token's experts, those that are read with them */
    uint64_t position_weights; /* MLA: f32 multiplications a position that is looked back at */
    uint64_t position_bytes;   /* MLA: bytes of its expanded keys and values */
    uint64_t expand_weights;   /* MLA: to expand one position's keys and values again */
    enum sl_fmt expand_fmt;
    uint64_t latent_weights; /* MLA on the fast path: multiplications a position, absorbed */
    uint64_t latent_bytes;   /* MLA: a position's latent row */
};

struct sl_pack_work {
    int n_layers, n_moe, top_k, n_experts;
    struct sl_layer_work *layers; /* [n_layers] */
    struct sl_work head;
    uint64_t row_bytes;          /* of the embedding: one row a token */
    uint64_t trunk_token_bytes;  /* of trunk weights that a token uses, embedding row included */
    uint64_t expert_token_bytes; /* of the records that a token's experts fill */
    uint64_t expert_records;     /* of all layers */
    uint64_t expert_bytes;       /* of all their records */
    uint64_t active_weights;     /* multiplied a token */
};

/* SL_E_PACK names a tensor that belongs to no part of the model; SL_E_NOMEM. */
int sl_pack_work_open(struct sl_pack_work **out, const struct sl_pack *p, struct sl_err *err);
/* Bytes as they are with the first ranks[l] of a token's experts read whole, the others by base planes. */
void sl_pack_work_ranks(struct sl_pack_work *w, const int *ranks);
/* Mean bytes of the records that a sweep for n tokens reads of a layer. */
double sl_work_sweep_bytes(const struct sl_pack_work *w, int layer, double n_tokens);
void sl_pack_work_close(struct sl_pack_work *w); /* NULL is fine */

/* Distinct experts of one layer that n tokens ask for, when the choice is uniform: the most that a
 * router of that shape can need on average. */
double sl_distinct_experts(int n_experts, int top_k, double n_tokens);

#endif
