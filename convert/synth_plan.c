/* Places of a synthetic pack, shared layers pointing at the bytes of the layer that they repeat.
 *
 * A layer may stand for another one of its kind: attention (KDA, MLA) and FFN (dense, MoE) must agree,
 * because the tensors are paired in inventory order. The n-th layer of a kind stands for number
 * n mod M of that kind, the n-th MoE layer takes bank n mod M. */
#define _GNU_SOURCE
#include "convert/synth_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"

#define N_KINDS 4

struct placing {
    struct sl_synth_plan *s;
    int n, first[SL_MAX_LAYERS]; /* tensors so far; first of each layer */
    int room;
    struct sl_err *err;
};

static int no_memory(struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, NULL, "synth", "out of memory");
}

static int count_item(void *ctx, const struct sl_item *it)
{
    (void)it;
    ++*(int *)ctx;
    return 0;
}

static void pair_layers(struct sl_synth_plan *s, int alias)
{
    const struct sl_config *c = &s->in.cfg;
    int seen[N_KINDS] = {0};
    int lead[N_KINDS][SL_MAX_LAYERS];
    for (int l = 0; l < c->n_layers; l++) {
        int kind = 2 * c->is_kda[l] + sl_config_is_moe(c, l);
        int n = seen[kind]++;
        bool distinct = !alias || n < alias;
        if (distinct) lead[kind][n] = l;
        s->layer_same[l] = distinct ? l : lead[kind][n % alias];
        s->n_trunk_layers += distinct;
    }
}

static void extend(struct sl_plan_range *r, const struct sl_plan_tensor *t, int i)
{
    uint64_t end = sl_align_up(t->offset + t->bytes, SL_PAGE);
    if (!r->n++) {
        r->first = i;
        r->offset = t->offset;
    }
    r->bytes = end - r->offset;
}

static int place_item(void *ctx, const struct sl_item *it)
{
    struct placing *b = ctx;
    struct sl_synth_plan *s = b->s;
    struct sl_plan *p = s->plan;
    const int i = b->n++;
    struct sl_plan_tensor *t = &p->trunk.tensors[i];
    memcpy(s->names[i], it->name, sizeof s->names[i]);
    t->src = (struct sl_in_tensor){
        .name = s->names[i], .dtype = (uint8_t)it->dtype, .n_dims = (uint8_t)it->n_dims};
    memcpy(t->src.shape, it->shape, sizeof t->src.shape);
    t->fmt = it->dtype == SL_DT_F32 ? SL_FMT_F32 : it->quantize ? p->trunk_fmt : SL_FMT_BF16;
    t->cols = (int)it->shape[it->n_dims - 1];
    t->units = 1;
    for (int d = 0; d + 1 < it->n_dims; d++) t->units *= (uint64_t)it->shape[d];
    t->dst_unit = sl_fmt_row_bytes(t->fmt, (uint64_t)t->cols);
    t->bytes = t->units * t->dst_unit; /* sizes of a checked config stay far below 2^64 */
    s->unshared_bytes += sl_align_up(t->bytes, SL_PAGE);
    s->same[i] = i;
    if (it->layer >= 0) {
        if (b->first[it->layer] < 0) b->first[it->layer] = i;
        s->same[i] = b->first[s->layer_same[it->layer]] + i - b->first[it->layer];
    }
    if (s->same[i] == i) {
        t->offset = p->trunk.bytes;
        p->trunk.bytes = sl_align_up(t->offset + t->bytes, SL_PAGE);
    } else {
        t->offset = p->trunk.tensors[s->same[i]].offset;
    }
    p->trunk.n_tensors = b->n;
    extend(it->layer < 0 ? &p->globals : &p->layers[it->layer], t, i);
    return 0;
}

static int place_banks(struct sl_synth_plan *s, int alias, struct sl_err *err)
{
    const struct sl_config *c = &s->in.cfg;
    struct sl_plan *p = s->plan;
    const enum sl_fmt fmts[SL_N_MATS] = {p->experts, p->experts, p->experts};
    char file[32];
    char path[SL_PATH_MAX];
    char folder[SL_PATH_MAX];
    for (int l = 0; l < c->n_layers; l++) {
        p->bank_of[l] = -1;
        if (!sl_config_is_moe(c, l)) continue;
        const int i = p->n_banks;
        struct sl_plan_bank *b = &p->banks[i];
        s->bank_same[i] = alias ? i % alias : i;
        b->layer = l;
        snprintf(file, sizeof file, "L%03d.bank", p->banks[s->bank_same[i]].layer);
        if (!sl_path_join(folder, p->dst, "experts") || !sl_path_join(path, folder, file))
            return sl_fail(err, SL_E_ARG, p->dst, NULL, "path too long");
        p->bank_of[l] = p->n_banks++; /* the bank is the plan's to free from here on */
        b->dir = strdup("experts");
        b->path = strdup(path);
        b->escape = calloc((size_t)c->n_experts, 1);
        if (!b->dir || !b->path || !b->escape) return no_memory(err);
        s->n_banks += s->bank_same[i] == i;
    }
    if (!p->n_banks) return 0;
    int rc = sl_record_layout(&p->layout[0], fmts, c->latent_size, c->moe_intermediate_size, err);
    p->record_max = p->layout[0].bytes;
    return rc;
}

/* The identity is a hash of all that fixes the bytes. */
static int identify(struct sl_synth_plan *s, const struct sl_synth_opts *o, struct sl_err *err)
{
    char text[160];
    cJSON *tree = sl_config_to_json(&s->in.cfg);
    char *config = tree ? cJSON_PrintUnformatted(tree) : NULL;
    struct sl_sha256 *h = config ? sl_sha256_open() : NULL;
    int rc = h ? 0 : no_memory(err);
    if (h) {
        int n = snprintf(text, sizeof text, "synthetic 1 %" PRIu64 " %s %s %d %d ", o->seed,
                         sl_fmt_name(o->experts), sl_fmt_name(o->trunk), o->alias_banks,
                         o->alias_trunk);
        sl_sha256_add(h, text, (size_t)n);
        sl_sha256_add(h, config, strlen(config));
        sl_sha256_close(h, s->in.sha256);
        if (asprintf(&s->in.source_json,
                     "{\"sha256\":\"%s\",\"prefix\":\"\",\"payload_bytes\":0,\"synthetic\":true,"
                     "\"seed\":\"%" PRIu64 "\"}",
                     s->in.sha256, o->seed) < 0) {
            s->in.source_json = NULL;
            rc = no_memory(err);
        }
    }
    cJSON_free(config);
    cJSON_Delete(tree);
    return rc;
}

int sl_synth_plan_open(struct sl_synth_plan *s, const char *dst, const struct sl_synth_opts *o,
                       struct sl_err *err)
{
    memset(s, 0, sizeof *s);
    s->in.cfg = *o->cfg;
    const size_t n_layers = (size_t)s->in.cfg.n_layers;
    int n = 0;
    (void)sl_inventory_trunk(&s->in.cfg, count_item, &n);
    struct sl_plan *p = s->plan = calloc(1, sizeof *p);
    struct placing *b = calloc(1, sizeof *b);
    s->names = calloc((size_t)n, sizeof *s->names);
    s->same = calloc((size_t)n, sizeof *s->same);
    s->layer_same = calloc(n_layers, sizeof *s->layer_same);
    s->bank_same = calloc(n_layers, sizeof *s->bank_same);
    int rc = 0;
    if (p) {
        p->in = &s->in;
        p->experts = o->experts;
        p->trunk_fmt = o->trunk;
        p->task_bytes = SL_TASK_BYTES;
        p->dst = strdup(dst);
        p->layers = calloc(n_layers, sizeof *p->layers);
        p->banks = calloc(n_layers, sizeof *p->banks);
        p->bank_of = calloc(n_layers, sizeof *p->bank_of);
        p->trunk.tensors = calloc((size_t)n, sizeof *p->trunk.tensors);
    }
    if (!p || !b || !s->names || !s->same || !s->layer_same || !s->bank_same || !p->dst ||
        !p->layers || !p->banks || !p->bank_of || !p->trunk.tensors) {
        rc = no_memory(err);
        goto out;
    }
    memset(b->first, 0xff, sizeof b->first); /* -1 */
    b->s = s;
    b->err = err;
    pair_layers(s, o->alias_trunk);
    rc = sl_inventory_trunk(&s->in.cfg, place_item, b);
    if (!rc) rc = place_banks(s, o->alias_banks, err);
    if (!rc) rc = identify(s, o, err);
    if (!rc) rc = sl_plan_fix_sizes(p, err);
    for (int i = 0; i < p->n_banks && !rc; i++) {
        s->unshared_bytes += p->banks[i].file_bytes;
        if (s->bank_same[i] == i) s->bank_bytes += p->banks[i].file_bytes;
    }
out:
    free(b);
    return rc;
}

void sl_synth_plan_close(struct sl_synth_plan *s)
{
    sl_plan_close(s->plan);
    free(s->names);
    free(s->same);
    free(s->layer_same);
    free(s->bank_same);
    free(s->in.source_json);
    memset(s, 0, sizeof *s);
}
