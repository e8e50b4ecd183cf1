/* Counting goes through the inventory, which knows each tensor's group, and through the source, which
 * knows its bytes; vision tensors are whatever else was accepted. */
#include "convert/census.h"

#include <string.h>

#include "base/size.h"
#include "convert/safetensors.h"
#include "offload/pack_layout.h"

const char *sl_layer_kind_name(enum sl_layer_kind kind)
{
    static const char *const names[SL_N_LAYER_KINDS] = {"dense+kda", "dense+mla", "moe+kda",
                                                        "moe+mla"};
    return (unsigned)kind < SL_N_LAYER_KINDS ? names[kind] : "?";
}

static enum sl_layer_kind kind_of(const struct sl_config *c, int layer)
{
    bool moe = sl_config_is_moe(c, layer);
    if (c->is_kda[layer]) return moe ? SL_LAYER_MOE_KDA : SL_LAYER_DENSE_KDA;
    return moe ? SL_LAYER_MOE_MLA : SL_LAYER_DENSE_MLA;
}

static void count(struct sl_count *c, uint64_t params, uint64_t bytes)
{
    c->tensors++;
    c->params += params;
    c->bytes += bytes;
}

struct taking {
    struct sl_census *out;
    const struct sl_source *s;
};

static int take_item(void *ctx, const struct sl_item *it)
{
    struct taking *k = ctx;
    const struct sl_src_tensor *t = sl_source_find(k->s, it->name);
    if (!t) return 0; /* opening has seen every one */
    uint64_t elements = t->bytes / (uint64_t)sl_dtype_bytes(t->dtype);
    if (it->layer >= 0) k->out->kind[kind_of(&k->s->cfg, it->layer)].bytes += t->bytes;
    if (it->group == SL_GROUP_EXPERT) {
        bool codes = strstr(it->name, ".weight_packed") != NULL;
        count(&k->out->group[SL_GROUP_EXPERT], codes ? elements * 2 : 0, t->bytes);
    } else if (it->dtype == SL_DT_F32) {
        count(&k->out->small_f32, elements, t->bytes);
    } else if (it->n_dims == 2 && it->shape[0] > 1) {
        count(&k->out->group[it->group], elements, t->bytes);
    } else {
        count(&k->out->small_bf16, elements, t->bytes);
    }
    return 0;
}

int sl_census_take(struct sl_census *out, const struct sl_source *s, struct sl_err *err)
{
    const struct sl_config *c = &s->cfg;
    struct taking k = {out, s};
    memset(out, 0, sizeof *out);
    sl_inventory_trunk(c, take_item, &k);
    int n_moe = 0;
    for (int l = 0; l < c->n_layers; l++) {
        out->kind[kind_of(c, l)].layers++;
        if (!sl_config_is_moe(c, l)) continue;
        if (sl_interrupted()) return sl_fail(err, SL_E_INTR, s->dir, NULL, "interrupted");
        n_moe++;
        for (int e = 0; e < c->n_experts; e++) sl_inventory_experts(c, l, e, take_item, &k);
    }
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        const struct sl_src_tensor *t = &s->tensors[i];
        uint64_t elements = t->bytes / (uint64_t)sl_dtype_bytes(t->dtype);
        count(&out->dtype[t->dtype], elements, t->bytes);
        if (sl_source_is_vision(t->name)) count(&out->group[SL_GROUP_VISION], elements, t->bytes);
    }
    for (int i = 0; i < s->n_shards; i++) out->file_bytes += s->shards[i].bytes;
    out->params = out->small_bf16.params + out->small_f32.params;
    for (int g = 0; g < SL_N_GROUPS; g++) {
        if (g == SL_GROUP_VISION) continue;
        out->params += out->group[g].params;
        if (g != SL_GROUP_EXPERT && g != SL_GROUP_EMBED) out->active_params += out->group[g].params;
    }
    out->experts = (uint64_t)n_moe * (uint64_t)c->n_experts;
    if (out->experts) {
        uint64_t of_one = out->group[SL_GROUP_EXPERT].params / out->experts;
        out->active_params += of_one * (uint64_t)c->top_k * (uint64_t)n_moe;
        out->expert_bytes = out->group[SL_GROUP_EXPERT].bytes / out->experts;
    }
    return 0;
}

int sl_price_bank(const struct sl_config *c, enum sl_fmt experts, uint64_t *bytes,
                  struct sl_err *err)
{
    struct sl_bank_entry e;
    const enum sl_fmt fmt[SL_N_MATS] = {experts, experts, experts};
    int rc = sl_record_layout(&e, fmt, c->latent_size, c->moe_intermediate_size, err);
    if (rc) return rc;
    *bytes =
        sl_bank_first_record((uint32_t)c->n_experts) + (uint64_t)e.bytes * (uint64_t)c->n_experts;
    return 0;
}

struct pricing {
    enum sl_fmt trunk;
    uint64_t bytes;
};

static int price_item(void *ctx, const struct sl_item *it)
{
    struct pricing *p = ctx;
    uint64_t n = (uint64_t)sl_dtype_bytes(it->dtype);
    if (it->quantize)
        n = sl_fmt_row_bytes(p->trunk, (uint64_t)it->shape[1]) * (uint64_t)it->shape[0];
    else
        for (int i = 0; i < it->n_dims; i++) n *= (uint64_t)it->shape[i];
    p->bytes += sl_align_up(n, SL_PAGE); /* every tensor starts on a page */
    return 0;
}

int sl_price_trunk(const struct sl_config *c, enum sl_fmt trunk, uint64_t *bytes,
                   struct sl_err *err)
{
    if (!sl_fmt_is_trunk(trunk))
        return sl_fail(err, SL_E_ARG, NULL, "trunk", "%s is no trunk format of this build",
                       sl_fmt_name(trunk));
    struct pricing p = {.trunk = trunk};
    int rc = sl_inventory_trunk(c, price_item, &p);
    *bytes = p.bytes;
    return rc;
}
