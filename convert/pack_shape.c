/* Shapes to a struct sl_pack: inventory order, page alignment, one record layout for all experts. */
#define _GNU_SOURCE
#include "convert/pack_shape.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "convert/inventory.h"

struct shaper {
    struct sl_pack *p;
    enum sl_fmt trunk;
    int room;
    struct sl_err *err;
};

static int no_memory(struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, NULL, "pack shape", "out of memory");
}

static uint64_t tensor_bytes(const struct sl_item *it, enum sl_fmt fmt)
{
    uint64_t rows = 1;
    uint64_t cols = (uint64_t)it->shape[it->n_dims - 1];
    for (int i = 0; i + 1 < it->n_dims; i++) rows *= (uint64_t)it->shape[i];
    return rows * sl_fmt_row_bytes(fmt, cols); /* sizes of a checked config stay far below 2^64 */
}

static int add_tensor(void *ctx, const struct sl_item *it)
{
    struct shaper *s = ctx;
    struct sl_pack *p = s->p;
    if (p->n_tensors == s->room) {
        int more = s->room ? s->room * 2 : 512;
        struct sl_tensor *t = realloc(p->tensors, (size_t)more * sizeof *t);
        if (!t) return no_memory(s->err);
        p->tensors = t;
        s->room = more;
    }
    bool f32 = it->dtype == SL_DT_F32;
    struct sl_tensor *t = &p->tensors[p->n_tensors];
    memset(t, 0, sizeof *t);
    t->fmt = f32 ? SL_FMT_F32 : it->quantize ? s->trunk : SL_FMT_BF16;
    t->n_dims = it->n_dims;
    memcpy(t->shape, it->shape, sizeof t->shape);
    t->offset = p->trunk_bytes;
    t->bytes = tensor_bytes(it, t->fmt);
    p->trunk_bytes = sl_align_up(t->offset + t->bytes, SL_PAGE);
    uint64_t *at = it->layer < 0 ? &p->globals_range.offset : &p->layer_range[it->layer].offset;
    uint64_t *n = it->layer < 0 ? &p->globals_range.bytes : &p->layer_range[it->layer].bytes;
    if (!*n) *at = t->offset;
    *n = p->trunk_bytes - *at;
    if (sl_strmap_put(p->by_name, it->name, strlen(it->name) + 1, (uint32_t)p->n_tensors) < 1)
        return no_memory(s->err);
    p->n_tensors++;
    return 0;
}

static int add_bank(struct sl_pack *p, int layer, const struct sl_bank_entry *record,
                    struct sl_err *err)
{
    uint32_t n = (uint32_t)p->cfg.n_experts;
    struct sl_bank *b = &p->banks[p->n_banks];
    b->fd = -1;
    b->n_experts = n;
    b->entries = calloc(n, sizeof *b->entries);
    if (!b->entries) return no_memory(err);
    b->file_bytes = sl_bank_first_record(n);
    for (uint32_t e = 0; e < n; e++) {
        b->entries[e] = *record;
        b->entries[e].offset = b->file_bytes;
        b->file_bytes += record->bytes;
    }
    p->bank_of[layer] = p->n_banks++;
    return 0;
}

static int shape_it(struct shaper *s, enum sl_fmt experts)
{
    struct sl_pack *p = s->p;
    const struct sl_config *c = &p->cfg;
    const enum sl_fmt fmts[SL_N_MATS] = {experts, experts, experts};
    struct sl_bank_entry record;
    int rc = sl_inventory_trunk(c, add_tensor, s);
    for (int i = 0; i < p->n_tensors; i++) {
        size_t len;
        p->tensors[i].name = sl_strmap_key(p->by_name, (size_t)i, &len);
    }
    if (!rc) rc = sl_record_layout(&record, fmts, c->latent_size, c->moe_intermediate_size, s->err);
    for (int l = 0; l < c->n_layers && !rc; l++) {
        p->bank_of[l] = -1;
        if (!sl_config_is_moe(c, l)) continue;
        p->slot_bytes = record.bytes;
        rc = add_bank(p, l, &record, s->err);
    }
    return rc;
}

int sl_pack_of_shape(struct sl_pack **out, const struct sl_config *c, enum sl_fmt experts,
                     enum sl_fmt trunk, struct sl_err *err)
{
    *out = NULL;
    if (!sl_fmt_is_expert(experts))
        return sl_fail(err, SL_E_ARG, NULL, "--experts",
                       "'%s' is not an expert format of this build", sl_fmt_name(experts));
    if (!sl_fmt_is_trunk(trunk) || !sl_fmt_row_bytes(trunk, 32))
        return sl_fail(err, SL_E_ARG, NULL, "--trunk", "'%s' is not a trunk format of this build",
                       sl_fmt_name(trunk));
    struct sl_pack *p = calloc(1, sizeof *p);
    if (!p) return no_memory(err);
    p->cfg = *c;
    p->trunk_fd = p->vision_fd = -1;
    p->experts_fmt = experts;
    p->trunk_fmt = trunk;
    p->by_name = sl_strmap_open(4096);
    p->banks = calloc((size_t)c->n_layers, sizeof *p->banks);
    struct shaper s = {.p = p, .trunk = trunk, .err = err};
    int rc = p->by_name && p->banks ? shape_it(&s, experts) : no_memory(err);
    if (rc) {
        sl_pack_close(p);
        return rc;
    }
    *out = p;
    return 0;
}
