/* Counting: tensors to stages by name, experts by their records (see plan_work.h). */
#include "offload/plan_work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add(struct sl_work *w, const struct sl_tensor *t)
{
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= (uint64_t)t->shape[i];
    w->bytes += t->bytes;
    /* Vectors cost bytes but next to no time to multiply. */
    if (t->n_dims == 2 && t->shape[0] > 1 && (unsigned)t->fmt < SL_WORK_FMTS)
        w->weights[t->fmt] += n;
}

static bool starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* The part of a layer that a tensor belongs to, by its name inside the layer; NULL: none. */
static struct sl_work *part_of(struct sl_layer_work *l, const char *name)
{
    if (starts(name, "block_sparse_moe.shared_experts.")) return &l->ffn;
    if (starts(name, "block_sparse_moe.routed_expert_up_proj")) return &l->after;
    if (starts(name, "block_sparse_moe.routed_expert_norm")) return &l->after;
    if (starts(name, "block_sparse_moe.")) return &l->before;
    if (starts(name, "mlp.")) return &l->ffn;
    if (starts(name, "mlp_res_") || starts(name, "post_attention")) return &l->before;
    if (starts(name, "self_attn.") || starts(name, "self_attention") || starts(name, "input_"))
        return &l->attn;
    return NULL;
}

static int count_tensor(struct sl_pack_work *w, const struct sl_tensor *t, struct sl_err *err)
{
    static const char layers[] = "model.layers.";
    if (!starts(t->name, layers)) {
        if (starts(t->name, "model.embed_tokens."))
            w->row_bytes = t->shape[0] > 0 ? t->bytes / (uint64_t)t->shape[0] : 0;
        else
            add(&w->head, t);
        return 0;
    }
    char *end;
    long layer = strtol(t->name + strlen(layers), &end, 10);
    struct sl_work *part = layer >= 0 && layer < w->n_layers && *end == '.'
                               ? part_of(&w->layers[layer], end + 1)
                               : NULL;
    if (!part)
        return sl_fail(err, SL_E_PACK, "pack.json", t->name, "belongs to no part of the model");
    add(part, t);
    if (strstr(t->name, ".kv_b_proj.")) {
        w->layers[layer].expand_weights = (uint64_t)t->shape[0] * (uint64_t)t->shape[1];
        w->layers[layer].expand_fmt = t->fmt;
    }
    return 0;
}

static void count_state(struct sl_layer_work *l, const struct sl_config *c)
{
    const uint64_t d = (uint64_t)c->kda_head_dim;
    const uint64_t heads = (uint64_t)c->kda_heads;
    if (l->is_kda) {
        /* Decay, read with k, update, read with q: three passes of multiplications, the state is
         * read and written. */
        l->attn.weights[SL_FMT_F32] += 3 * heads * d * d;
        l->state_bytes = 2 * heads * d * d * sizeof(float);
        return;
    }
    l->position_weights =
        (uint64_t)c->n_heads * (uint64_t)(c->qk_nope_dim + c->qk_rope_dim + c->v_head_dim);
    l->position_bytes = l->position_weights * sizeof(float);
    l->latent_weights =
        (uint64_t)c->n_heads * (uint64_t)(c->kv_lora_rank + c->kv_lora_rank + c->qk_rope_dim);
    l->latent_bytes = (uint64_t)(c->kv_lora_rank + c->qk_rope_dim) * sizeof(float);
}

static void count_experts(struct sl_pack_work *w, const struct sl_pack *p, int layer)
{
    struct sl_layer_work *l = &w->layers[layer];
    const struct sl_bank *b = &p->banks[p->bank_of[layer]];
    const uint64_t weights = (uint64_t)p->cfg.latent_size * (uint64_t)p->cfg.moe_intermediate_size;
    uint64_t bytes = 0;
    uint64_t fine = 0;
    for (uint32_t e = 0; e < b->n_experts; e++) {
        bytes += b->entries[e].bytes;
        fine += b->entries[e].bytes - b->entries[e].base_bytes;
    }
    l->whole_ranks = w->top_k;
    l->fine_bytes = b->n_experts ? fine / b->n_experts : 0;
    l->record_bytes = b->n_experts ? bytes / b->n_experts : 0;
    l->expert.bytes = l->record_bytes;
    /* A mean expert: formats may differ from one to the next. */
    uint64_t mats[SL_WORK_FMTS] = {0};
    for (uint32_t e = 0; e < b->n_experts; e++)
        for (int m = 0; m < SL_N_MATS; m++)
            if (b->entries[e].fmt[m] < SL_WORK_FMTS) mats[b->entries[e].fmt[m]]++;
    for (int f = 0; f < SL_WORK_FMTS && b->n_experts; f++)
        l->expert.weights[f] = (uint64_t)((double)mats[f] / b->n_experts * (double)weights);
    w->n_moe++;
    w->expert_records += b->n_experts;
    w->expert_bytes += bytes;
    w->expert_token_bytes += (uint64_t)w->top_k * l->record_bytes;
}

static uint64_t all_weights(const struct sl_work *w)
{
    uint64_t n = 0;
    for (int f = 0; f < SL_WORK_FMTS; f++) n += w->weights[f];
    return n;
}

int sl_pack_work_open(struct sl_pack_work **out, const struct sl_pack *p, struct sl_err *err)
{
    const struct sl_config *c = &p->cfg;
    struct sl_pack_work *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w) w->layers = calloc((size_t)c->n_layers, sizeof *w->layers);
    if (!w || !w->layers) {
        free(w);
        return sl_fail(err, SL_E_NOMEM, NULL, "plan", "out of memory");
    }
    w->n_layers = c->n_layers;
    w->top_k = c->top_k;
    w->n_experts = c->n_experts;
    int rc = 0;
    for (int i = 0; i < p->n_tensors && !rc; i++) rc = count_tensor(w, &p->tensors[i], err);
    if (rc) {
        sl_pack_work_close(w);
        return rc;
    }
    w->trunk_token_bytes = w->row_bytes + w->head.bytes;
    w->active_weights = all_weights(&w->head);
    for (int l = 0; l < c->n_layers; l++) {
        struct sl_layer_work *x = &w->layers[l];
        x->is_kda = c->is_kda[l];
        x->is_moe = p->bank_of[l] >= 0;
        const struct sl_work *const parts[] = {&x->attn, &x->before, &x->ffn, &x->after};
        for (int i = 0; i < 4; i++) {
            w->trunk_token_bytes += parts[i]->bytes;
            w->active_weights += all_weights(parts[i]);
        }
        count_state(x, c); /* after the sums: state is no trunk weight */
        if (x->is_moe) count_experts(w, p, l);
        w->active_weights += (uint64_t)w->top_k * all_weights(&x->expert);
    }
    *out = w;
    return 0;
}

void sl_pack_work_ranks(struct sl_pack_work *w, const int *ranks)
{
    w->expert_token_bytes = 0;
    for (int l = 0; l < w->n_layers; l++) {
        struct sl_layer_work *x = &w->layers[l];
        if (!x->is_moe) continue;
        const int base = w->top_k - ranks[l];
        const uint64_t whole = x->record_bytes; /* as it was counted */
        x->whole_ranks = ranks[l];
        x->record_bytes = whole - x->fine_bytes * (uint64_t)base / (uint64_t)w->top_k;
        x->expert.bytes = x->record_bytes;
        w->expert_token_bytes += (uint64_t)w->top_k * x->record_bytes;
    }
}

double sl_work_sweep_bytes(const struct sl_pack_work *w, int layer, double n_tokens)
{
    const struct sl_layer_work *x = &w->layers[layer];
    const uint64_t base = w->top_k - x->whole_ranks > 0 ? (uint64_t)(w->top_k - x->whole_ranks) : 0;
    const uint64_t whole = x->record_bytes + x->fine_bytes * base / (uint64_t)w->top_k;
    return sl_distinct_experts(w->n_experts, w->top_k, n_tokens) * (double)(whole - x->fine_bytes) +
           sl_distinct_experts(w->n_experts, x->whole_ranks, n_tokens) * (double)x->fine_bytes;
}

void sl_pack_work_close(struct sl_pack_work *w)
{
    if (!w) return;
    free(w->layers);
    free(w);
}

double sl_distinct_experts(int n_experts, int top_k, double n_tokens)
{
    if (n_experts <= 0 || n_tokens <= 0) return 0;
    double left = pow(1 - (double)top_k / n_experts, n_tokens);
    return n_experts * (1 - left);
}
