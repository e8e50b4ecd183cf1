/* Placing tensors and banks: the part of the plan that needs no weights.
 *
 *   trunk.bin  [ layer 0 | layer 1 | ... | globals ]    a tensor starts on a page, zeros between
 *
 * Inventory order is file order, so a layer is one contiguous range and nothing depends on the order
 * in which the source stores its tensors. */
#define _GNU_SOURCE
#include "convert/plan_pack.h"
#include "convert/calib_bank.h"
#include "convert/mix_plan.h"
#include "convert/trellis_bank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "offload/pack_sums.h"
#include "quant/w_device.h"

struct builder {
    struct sl_plan *p;
    struct sl_err *err;
    int room; /* tensors allocated */
};

static int no_memory(const struct sl_plan *p, struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, p->dst, "plan", "out of memory");
}

/* Appends a tensor to a file; the caller has filled src and wants it stored as fmt. */
static int append(struct sl_plan *p, struct sl_plan_file *f, int *room, struct sl_in_tensor *src,
                  enum sl_fmt fmt, struct sl_err *err)
{
    if (f->n_tensors == *room) {
        int more = *room ? *room * 2 : 256;
        struct sl_plan_tensor *t = realloc(f->tensors, (size_t)more * sizeof *t);
        if (!t) return no_memory(p, err);
        f->tensors = t;
        *room = more;
    }
    struct sl_plan_tensor *t = &f->tensors[f->n_tensors];
    memset(t, 0, sizeof *t);
    t->src = *src;
    t->fmt = fmt;
    t->units = src->bytes;
    t->src_unit = t->dst_unit = 1;
    if (src->dtype == SL_DT_BF16 && sl_fmt_is_trunk(fmt) && fmt != SL_FMT_BF16) {
        t->cols = (int)src->shape[1];
        t->units = (uint64_t)src->shape[0];
        t->src_unit = 2 * (uint64_t)src->shape[1];
        t->dst_unit = sl_fmt_row_bytes(fmt, (uint64_t)src->shape[1]);
    }
    t->offset = f->bytes;
    uint64_t end;
    if (!sl_mul_u64(t->units, t->dst_unit, &t->bytes) || !sl_add_u64(f->bytes, t->bytes, &end) ||
        end > INT64_MAX - SL_PAGE)
        return sl_fail(err, SL_E_SOURCE, p->dst, src->name, "larger than any file");
    f->bytes = sl_align_up(end, SL_PAGE);
    f->n_tensors++;
    return 0;
}

static void extend(struct sl_plan_range *r, const struct sl_plan_file *f)
{
    const struct sl_plan_tensor *t = &f->tensors[f->n_tensors - 1];
    if (!r->n++) {
        r->first = f->n_tensors - 1;
        r->offset = t->offset;
    }
    r->bytes = f->bytes - r->offset;
}

static int add_trunk(void *ctx, const struct sl_item *it)
{
    struct builder *b = ctx;
    struct sl_plan *p = b->p;
    struct sl_in_tensor src;
    if (!p->in->ops->find(p->in, it->name, &src))
        return sl_fail(b->err, SL_E_SOURCE, it->name, NULL, "missing tensor");
    bool low = it->quantize && src.dtype == SL_DT_BF16;
    const enum sl_fmt own = (enum sl_fmt)p->trunk_of[it->group];
    enum sl_fmt fmt = !low ? sl_fmt_of_dtype(src.dtype) : own != SL_FMT_NONE ? own : p->trunk_fmt;
    int rc = append(p, &p->trunk, &b->room, &src, fmt, b->err);
    if (rc) return rc;
    extend(it->layer < 0 ? &p->globals : &p->layers[it->layer], &p->trunk);
    return 0;
}

static int add_vision(struct sl_plan *p, struct sl_err *err)
{
    int room = 0;
    for (int i = 0; i < p->in->n_vision; i++) {
        struct sl_in_tensor src;
        p->in->ops->vision(p->in, i, &src);
        int rc = append(p, &p->vision, &room, &src, sl_fmt_of_dtype(src.dtype), err);
        if (rc) return rc;
        extend(&p->vision_range, &p->vision);
    }
    return 0;
}

static int add_banks(struct sl_plan *p, const struct sl_convert_opts *o, struct sl_err *err)
{
    const struct sl_config *c = &p->in->cfg;
    char folder[SL_PATH_MAX];
    char path[SL_PATH_MAX];
    char file[32];

    for (int l = 0; l < c->n_layers; l++) {
        p->bank_of[l] = -1;
        if (!sl_config_is_moe(c, l)) continue;
        /* A folder of the user's is absolute by now: packs are opened from anywhere. */
        const char *dir = o->n_bank_dirs ? o->bank_dirs[p->n_banks % o->n_bank_dirs] : "experts";
        snprintf(file, sizeof file, "L%03d.bank", l);
        bool fits = o->n_bank_dirs
                        ? sl_path_join(path, dir, file)
                        : sl_path_join(folder, p->dst, dir) && sl_path_join(path, folder, file);
        if (!fits) return sl_fail(err, SL_E_ARG, p->dst, NULL, "path too long");
        struct sl_plan_bank *b = &p->banks[p->n_banks];
        p->bank_of[l] = p->n_banks++;
        b->layer = l;
        b->dir = strdup(dir);
        b->path = strdup(path);
        b->escape = calloc((size_t)c->n_experts, 1);
        if (!b->dir || !b->path || !b->escape) return no_memory(p, err);
    }
    return 0;
}

/* A record's layout for each set of matrices that m4 may turn out not to hold, or each set of formats of a
 * mix; other formats have one. */
static int lay_out_records(struct sl_plan *p, struct sl_err *err)
{
    const struct sl_config *c = &p->in->cfg;
    p->n_layouts = p->experts == SL_FMT_M4    ? 1 << SL_N_MATS
                   : p->experts == SL_FMT_MIX ? SL_PLAN_LAYOUTS
                                              : 1;
    for (int bits = 0; p->n_banks && bits < p->n_layouts; bits++) {
        enum sl_fmt fmt[SL_N_MATS];
        for (int m = 0; m < SL_N_MATS; m++) fmt[m] = bits >> m & 1 ? SL_FMT_MXFP4 : p->experts;
        if (p->experts == SL_FMT_MIX) sl_mix_code_formats(bits, fmt);
        int rc =
            sl_record_layout(&p->layout[bits], fmt, c->latent_size, c->moe_intermediate_size, err);
        if (rc) return rc;
        if (p->layout[bits].bytes > p->record_max) p->record_max = p->layout[bits].bytes;
    }
    return 0;
}

static int add_extras(struct sl_plan *p, struct sl_err *err)
{
    p->extra_bytes = calloc((size_t)p->in->n_extra + 1, sizeof *p->extra_bytes);
    if (!p->extra_bytes) return no_memory(p, err);
    for (int i = 0; i < p->in->n_extra; i++) {
        int rc = sl_file_size(p->in->extra_paths[i], &p->extra_bytes[i], SL_E_SOURCE, err);
        if (rc) return rc;
    }
    return 0;
}

int sl_plan_open(struct sl_plan **out, const struct sl_input *in, const char *dst,
                 const struct sl_convert_opts *o, struct sl_err *err)
{
    struct sl_plan *p = calloc(1, sizeof *p);
    int rc;

    *out = NULL;
    if (!p) return sl_fail(err, SL_E_NOMEM, dst, "plan", "out of memory");
    p->in = in;
    p->experts = o->experts;
    p->mix_bits = o->mix_bits;
    p->trunk_fmt = o->trunk;
    memcpy(p->trunk_of, o->trunk_of, sizeof p->trunk_of);
    p->task_bytes = o->task_bytes ? o->task_bytes : SL_TASK_BYTES;
    size_t n_layers = (size_t)in->cfg.n_layers;
    p->dst = strdup(dst);
    p->layers = calloc(n_layers, sizeof *p->layers);
    p->banks = calloc(n_layers, sizeof *p->banks);
    p->bank_of = calloc(n_layers, sizeof *p->bank_of);
    if (!p->dst || !p->layers || !p->banks || !p->bank_of) {
        rc = no_memory(p, err);
        goto fail;
    }
    struct builder b = {.p = p, .err = err};
    rc = sl_inventory_form(&in->cfg, in->form, add_trunk, &b);
    if (!rc && !o->drop_vision) rc = add_vision(p, err);
    if (!rc) rc = add_banks(p, o, err);
    if (!rc) rc = lay_out_records(p, err);
    if (!rc) rc = add_extras(p, err);
    if (rc) goto fail;
    *out = p;
    return 0;
fail:
    sl_plan_close(p);
    return rc;
}

void sl_plan_close(struct sl_plan *p)
{
    if (!p) return;
    sl_w_device_close(p->device);
    for (int i = 0; i < p->n_banks; i++) {
        free(p->banks[i].dir);
        free(p->banks[i].path);
        free(p->banks[i].escape);
    }
    free(p->banks);
    free(p->bank_of);
    free(p->layers);
    free(p->trunk.tensors);
    free(p->vision.tensors);
    free(p->extra_bytes);
    free(p->manifest);
    free(p->dst);
    sl_calib_file_close(p->calib);
    free(p);
}

int sl_plan_fix_sizes(struct sl_plan *p, struct sl_err *err)
{
    const struct sl_config *c = &p->in->cfg;
    uint64_t first = sl_bank_first_record((uint32_t)c->n_experts);

    p->escapes = 0;
    p->slot_bytes = 0;
    for (int i = 0; i < p->n_banks; i++) {
        struct sl_plan_bank *b = &p->banks[i];
        b->file_bytes = first;
        for (int x = 0; x < c->n_experts; x++) {
            const struct sl_bank_entry *e = &p->layout[b->escape[x]];
            if (!sl_add_u64(b->file_bytes, e->bytes, &b->file_bytes) || b->file_bytes > INT64_MAX)
                return sl_fail(err, SL_E_SOURCE, b->path, NULL, "larger than any file");
            if (e->bytes > p->slot_bytes) p->slot_bytes = e->bytes;
            if (p->experts == SL_FMT_M4) p->escapes += (uint64_t)__builtin_popcount(b->escape[x]);
        }
    }
    const char *text;
    size_t len;
    int rc = sl_plan_manifest(p, &text, &len, err);
    p->manifest_bytes = len;
    return rc;
}

int sl_plan_group(const struct sl_plan *p)
{
    uint64_t n = p->record_max ? p->task_bytes / p->record_max : 1;
    if (n > (uint64_t)p->in->cfg.n_experts) n = (uint64_t)p->in->cfg.n_experts;
    return n ? (int)n : 1;
}

static uint64_t strip_bytes(const struct sl_plan *p, const struct sl_plan_file *f)
{
    uint64_t most = p->task_bytes + SL_PAGE;
    for (int i = 0; i < f->n_tensors; i++) {
        const struct sl_plan_tensor *t = &f->tensors[i];
        if (t->dst_unit == 1) continue;
        uint64_t n = p->task_bytes / t->src_unit;
        uint64_t need = (n ? n : 1) * (t->src_unit + t->dst_unit) + 2 * (uint64_t)SL_PAGE;
        if (need > most) most = need;
    }
    return most;
}

uint64_t sl_plan_job_bytes(const struct sl_plan *p)
{
    uint64_t scales = 0;
    uint64_t a = strip_bytes(p, &p->trunk);
    uint64_t b = strip_bytes(p, &p->vision);
    for (int m = 0; m < SL_N_MATS; m++)
        if (sl_mat_scales_bytes(&p->in->cfg, m) > scales)
            scales = sl_mat_scales_bytes(&p->in->cfg, m);
    if (sl_trellis_work_bytes(p) > scales) scales = sl_trellis_work_bytes(p);
    uint64_t bank = sl_align_up(p->in->scratch_bytes, SL_PAGE) + sl_align_up(scales, SL_PAGE) +
                    (uint64_t)sl_plan_group(p) * p->record_max;
    if (b > a) a = b;
    return sl_align_up(bank > a ? bank : a, SL_PAGE);
}

uint64_t sl_plan_bank_bytes(const struct sl_plan *p)
{
    uint64_t n = 0;
    for (int i = 0; i < p->n_banks; i++) n += p->banks[i].file_bytes;
    return n;
}

uint64_t sl_plan_sums_bytes(const struct sl_plan *p)
{
    uint64_t n = sl_sums_line_bytes("pack.json");
    for (int i = 0; i < p->in->n_extra; i++)
        n += sl_sums_line_bytes("tokenizer/") + strlen(p->in->extra_names[i]);
    return n;
}

uint64_t sl_plan_other_bytes(const struct sl_plan *p)
{
    uint64_t n = p->manifest_bytes + sl_plan_sums_bytes(p);
    for (int i = 0; i < p->in->n_extra; i++) n += p->extra_bytes[i];
    return n;
}

uint64_t sl_plan_total_bytes(const struct sl_plan *p)
{
    return p->trunk.bytes + p->vision.bytes + sl_plan_bank_bytes(p) + sl_plan_other_bytes(p);
}

int sl_plan_n_units(const struct sl_plan *p)
{
    return 2 * p->in->cfg.n_layers + 2;
}

void sl_plan_unit(struct sl_plan *p, int i, struct sl_unit *u)
{
    int layer = i / 2;
    memset(u, 0, sizeof *u);
    if (layer < p->in->cfg.n_layers && i % 2) {
        if (p->bank_of[layer] < 0) return;
        u->kind = SL_UNIT_BANK;
        u->bank = &p->banks[p->bank_of[layer]];
        u->bytes = u->bank->file_bytes;
        snprintf(u->name, sizeof u->name, "bank %d", layer);
        return;
    }
    bool globals = layer >= p->in->cfg.n_layers;
    bool vision = globals && i % 2;
    u->range = vision ? &p->vision_range : globals ? &p->globals : &p->layers[layer];
    if (!u->range->n) return;
    u->kind = vision ? SL_UNIT_VISION : SL_UNIT_TRUNK;
    u->file = vision ? &p->vision : &p->trunk;
    u->bytes = u->range->bytes;
    if (globals)
        snprintf(u->name, sizeof u->name, "%s", vision ? "vision" : "globals");
    else
        snprintf(u->name, sizeof u->name, "trunk %d", layer);
}

void sl_plan_shard_use(struct sl_plan *p, int *last)
{
    const struct sl_source *s = p->in->source;
    for (int i = 0; i < s->n_shards; i++) last[i] = -1;
    for (int i = 0; i < sl_plan_n_units(p); i++) {
        struct sl_unit u;
        sl_plan_unit(p, i, &u);
        if (u.range)
            for (int k = 0; k < u.range->n; k++)
                last[u.file->tensors[u.range->first + k].src.shard] = i;
        if (!u.bank) continue;
        for (int x = 0; x < p->in->cfg.n_experts; x++) {
            const struct sl_src_tensor *t[6];
            sl_source_expert(s, u.bank->layer, x, t);
            for (int k = 0; k < 6; k++) last[t[k]->shard] = i;
        }
    }
}
