/* sluice inspect: what a checkpoint or a pack is, in figures, without reading its weights.
 *
 * A checkpoint is opened as convert opens it, so what inspect accepts convert accepts. Its table has
 * the groups of the model's description and the size of every pack that this build can make of it. A
 * pack is opened as run opens it: manifest and indexes, checked against file sizes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "convert/census.h"
#include "convert/safetensors.h"
#include "convert/source.h"
#include "offload/pack.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/report.h"

static const enum sl_fmt expert_fmts[] = {SL_FMT_MXFP4, SL_FMT_M4};
static const enum sl_fmt trunk_fmts[] = {SL_FMT_BF16, SL_FMT_T8};
enum { N_FMTS = 2 };

/* ---- shared lines ------------------------------------------------------------------------------ */

struct layer_counts {
    int kda, mla, dense, moe;
};

static struct layer_counts count_layers(const struct sl_config *c)
{
    struct layer_counts n = {0};
    for (int l = 0; l < c->n_layers; l++) {
        *(c->is_kda[l] ? &n.kda : &n.mla) += 1;
        *(sl_config_is_moe(c, l) ? &n.moe : &n.dense) += 1;
    }
    return n;
}

static const char *gb(char buf[32], uint64_t bytes)
{
    return sl_format_bytes(buf, 32, bytes);
}

static void print_model(const struct sl_config *c)
{
    struct layer_counts n = count_layers(c);
    printf("model       %d layers: %d KDA, %d MLA; %d dense, %d MoE\n", c->n_layers, n.kda, n.mla,
           n.dense, n.moe);
    printf("width       hidden %d, vocabulary %d, dense FFN %d, context %d\n", c->hidden_size,
           c->vocab_size, c->intermediate_size, c->max_position);
    printf("KDA         %d heads of %d, conv %d, log decay above %g\n", c->kda_heads,
           c->kda_head_dim, c->conv_kernel, c->gate_lower_bound);
    printf("MLA         %d heads of %d + %d, value %d, q rank %d, kv rank %d\n", c->n_heads,
           c->qk_nope_dim, c->qk_rope_dim, c->v_head_dim, c->q_lora_rank, c->kv_lora_rank);
    printf("experts     %d a layer, top %d, %d shared, latent %d, width %d\n", c->n_experts,
           c->top_k, c->n_shared_experts, c->latent_size, c->moe_intermediate_size);
}

/* ---- checkpoint -------------------------------------------------------------------------------- */

struct prices {
    uint64_t bank[N_FMTS], trunk[N_FMTS]; /* one bank; the whole trunk */
};

static int price(struct prices *p, const struct sl_config *c, struct sl_err *err)
{
    int rc = 0;
    for (int i = 0; i < N_FMTS && !rc; i++) {
        rc = sl_price_bank(c, expert_fmts[i], &p->bank[i], err);
        if (!rc) rc = sl_price_trunk(c, trunk_fmts[i], &p->trunk[i], err);
    }
    return rc;
}

static void print_count(const char *name, const struct sl_count *n)
{
    char buf[32];
    if (n->tensors)
        printf("  %-10s %8llu tensors  %17llu params  %17llu bytes  %s\n", name,
               (unsigned long long)n->tensors, (unsigned long long)n->params,
               (unsigned long long)n->bytes, gb(buf, n->bytes));
}

static void print_checkpoint(const struct sl_source *s, const struct sl_census *k,
                             const struct prices *p)
{
    char buf[32];
    char buf2[32];
    struct layer_counts n = count_layers(&s->cfg);
    printf("checkpoint  %s\n", s->dir);
    printf("identity    %s\n", s->sha256);
    print_model(&s->cfg);
    printf("files       %d shards, %llu bytes (%s); payload %llu bytes\n", s->n_shards,
           (unsigned long long)k->file_bytes, gb(buf, k->file_bytes),
           (unsigned long long)s->payload_bytes);
    printf("parameters  %llu, of which a token uses %llu\n", (unsigned long long)k->params,
           (unsigned long long)k->active_params);
    printf("tensors     %u\n", s->n_tensors);
    for (int d = SL_DT_BF16; d < SL_DT_OTHER; d++) print_count(sl_dtype_name(d), &k->dtype[d]);
    printf("matrices by group\n");
    for (int g = 0; g < SL_N_GROUPS; g++) print_count(sl_group_name(g), &k->group[g]);
    printf("vectors\n");
    print_count("bf16", &k->small_bf16);
    print_count("f32", &k->small_f32);
    printf("layers\n");
    for (int i = 0; i < SL_N_LAYER_KINDS; i++)
        if (k->kind[i].layers)
            printf("  %-10s %3d x %llu bytes (%s)\n", sl_layer_kind_name(i), k->kind[i].layers,
                   (unsigned long long)(k->kind[i].bytes / (uint64_t)k->kind[i].layers),
                   gb(buf, k->kind[i].bytes / (uint64_t)k->kind[i].layers));
    printf("routed      %llu experts of %llu bytes\n", (unsigned long long)k->experts,
           (unsigned long long)k->expert_bytes);
    printf("as a pack\n");
    for (int i = 0; i < N_FMTS; i++)
        printf("  experts %-6s %s a layer, %s\n", sl_fmt_name(expert_fmts[i]), gb(buf, p->bank[i]),
               gb(buf2, p->bank[i] * (uint64_t)n.moe));
    for (int i = 0; i < N_FMTS; i++)
        printf("  trunk   %-6s %s\n", sl_fmt_name(trunk_fmts[i]), gb(buf, p->trunk[i]));
}

/* An object inside another; NULL spoils nothing silently: *ok goes false and stays so. */
static cJSON *child(cJSON *parent, const char *key, bool *ok)
{
    cJSON *o = parent ? cJSON_AddObjectToObject(parent, key) : NULL;
    if (!o) *ok = false;
    return o;
}

static void report_model(cJSON *o, const struct sl_config *c, bool *ok)
{
    struct layer_counts n = count_layers(c);
    cJSON *layers = child(o, "layers", ok);
    sl_report_u64(layers, "total", (uint64_t)c->n_layers);
    sl_report_u64(layers, "kda", (uint64_t)n.kda);
    sl_report_u64(layers, "mla", (uint64_t)n.mla);
    sl_report_u64(layers, "dense", (uint64_t)n.dense);
    sl_report_u64(layers, "moe", (uint64_t)n.moe);
    cJSON *config = sl_config_to_json(c);
    if (!config || !o || !cJSON_AddItemToObject(o, "config", config)) {
        cJSON_Delete(config);
        *ok = false;
    }
}

static void report_count(cJSON *parent, const char *key, const struct sl_count *n, bool *ok)
{
    cJSON *o = child(parent, key, ok);
    sl_report_u64(o, "tensors", n->tensors);
    sl_report_u64(o, "params", n->params);
    sl_report_u64(o, "bytes", n->bytes);
}

/* Hands the object over to be printed; ok false means that a part of it could not be made. */
static int finish_report(cJSON *o, bool ok, struct sl_err *err)
{
    if (ok) return sl_report_print(o, err);
    cJSON_Delete(o);
    return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the report");
}

static int report_checkpoint(const struct sl_source *s, const struct sl_census *k,
                             const struct prices *p, struct sl_err *err)
{
    bool ok = true;
    struct layer_counts n = count_layers(&s->cfg);
    cJSON *o = sl_report_open(1);
    if (!o) ok = false;
    sl_report_str(o, "kind", "checkpoint");
    sl_report_str(o, "dir", s->dir);
    sl_report_str(o, "source_sha256", s->sha256);
    sl_report_str(o, "prefix", s->prefix);
    sl_report_u64(o, "shards", (uint64_t)s->n_shards);
    sl_report_u64(o, "tensors", s->n_tensors);
    sl_report_u64(o, "file_bytes", k->file_bytes);
    sl_report_u64(o, "payload_bytes", s->payload_bytes);
    sl_report_u64(o, "params", k->params);
    sl_report_u64(o, "active_params", k->active_params);
    report_model(o, &s->cfg, &ok);
    cJSON *dtypes = child(o, "dtypes", &ok);
    for (int d = SL_DT_BF16; d < SL_DT_OTHER; d++)
        report_count(dtypes, sl_dtype_name(d), &k->dtype[d], &ok);
    cJSON *groups = child(o, "groups", &ok);
    for (int g = 0; g < SL_N_GROUPS; g++)
        if (k->group[g].tensors || g != SL_GROUP_NORM)
            report_count(groups, sl_group_name(g), &k->group[g], &ok);
    cJSON *vectors = child(o, "vectors", &ok);
    report_count(vectors, "bf16", &k->small_bf16, &ok);
    report_count(vectors, "f32", &k->small_f32, &ok);
    cJSON *kinds = child(o, "layer_kinds", &ok);
    for (int i = 0; i < SL_N_LAYER_KINDS; i++) {
        cJSON *kind = child(kinds, sl_layer_kind_name(i), &ok);
        sl_report_u64(kind, "layers", (uint64_t)k->kind[i].layers);
        sl_report_u64(kind, "bytes", k->kind[i].bytes);
    }
    cJSON *experts = child(o, "experts", &ok);
    sl_report_u64(experts, "total", k->experts);
    sl_report_u64(experts, "expert_bytes", k->expert_bytes);
    cJSON *packs = child(o, "pack", &ok);
    for (int i = 0; i < N_FMTS; i++) {
        char key[48];
        snprintf(key, sizeof key, "bank_%s_bytes", sl_fmt_name(expert_fmts[i]));
        sl_report_u64(packs, key, p->bank[i]);
        snprintf(key, sizeof key, "banks_%s_bytes", sl_fmt_name(expert_fmts[i]));
        sl_report_u64(packs, key, p->bank[i] * (uint64_t)n.moe);
        snprintf(key, sizeof key, "trunk_%s_bytes", sl_fmt_name(trunk_fmts[i]));
        sl_report_u64(packs, key, p->trunk[i]);
    }
    return finish_report(o, ok, err);
}

static int inspect_checkpoint(const char *path, bool json, struct sl_err *err)
{
    struct sl_source *s;
    struct sl_census census = {0};
    struct prices prices;
    int rc = sl_source_open(&s, path, NULL, err);
    if (rc) return rc;
    rc = sl_census_take(&census, s, err);
    if (!rc) rc = price(&prices, &s->cfg, err);
    if (!rc && json) rc = report_checkpoint(s, &census, &prices, err);
    if (!rc && !json) print_checkpoint(s, &census, &prices);
    sl_source_close(s);
    return rc;
}

/* ---- pack -------------------------------------------------------------------------------------- */

enum { FMT_SLOTS = 64 }; /* format numbers are small; larger ones are refused on opening */

struct pack_counts {
    struct sl_count trunk[FMT_SLOTS];
    uint64_t mats[FMT_SLOTS]; /* expert matrices by format, aliased banks once */
    uint64_t records, record_bytes;
};

static void count_pack(struct pack_counts *n, const struct sl_pack *p)
{
    memset(n, 0, sizeof *n);
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sl_tensor *t = &p->tensors[i];
        struct sl_count *c = &n->trunk[t->fmt % FMT_SLOTS];
        uint64_t params = 1;
        for (int d = 0; d < t->n_dims; d++) params *= (uint64_t)t->shape[d];
        c->tensors++;
        c->params += params;
        c->bytes += t->bytes;
    }
    for (int b = 0; b < p->n_banks; b++)
        for (uint32_t e = 0; e < p->banks[b].n_experts; e++) {
            const struct sl_bank_entry *entry = &p->banks[b].entries[e];
            for (int m = 0; m < SL_N_MATS; m++) n->mats[entry->fmt[m] % FMT_SLOTS]++;
            n->records++;
            n->record_bytes += entry->bytes;
        }
}

static uint64_t total_bytes(const struct sl_pack *p)
{
    return p->trunk_bytes + p->vision_bytes + sl_pack_bank_bytes(p);
}

static void print_pack(const struct sl_pack *p, const struct pack_counts *n)
{
    char buf[32];
    uint64_t banks = sl_pack_bank_bytes(p);
    printf("pack        %s\n", p->dir);
    printf("made by     sluice %s\n", p->tool_version);
    printf("source      %s%s\n", p->source_sha256,
           p->synthetic ? " (synthetic: the weights are made up)" : "");
    print_model(&p->cfg);
    printf("formats     experts %s, trunk %s\n", sl_fmt_name(p->experts_fmt),
           sl_fmt_name(p->trunk_fmt));
    printf("trunk       %llu bytes (%s), %d tensors\n", (unsigned long long)p->trunk_bytes,
           gb(buf, p->trunk_bytes), p->n_tensors);
    for (int f = 0; f < FMT_SLOTS; f++) print_count(sl_fmt_name((enum sl_fmt)f), &n->trunk[f]);
    printf("experts     %llu bytes (%s) in %d banks, %llu records\n", (unsigned long long)banks,
           gb(buf, banks), p->n_banks, (unsigned long long)n->records);
    for (int f = 0; f < FMT_SLOTS; f++)
        if (n->mats[f])
            printf("  %-10s %8llu matrices\n", sl_fmt_name((enum sl_fmt)f),
                   (unsigned long long)n->mats[f]);
    printf("slot        %u bytes, the largest record\n", p->slot_bytes);
    printf("vision      %llu bytes, %d tensors%s\n", (unsigned long long)p->vision_bytes,
           p->n_vision, p->vision_fd < 0 ? " (not carried)" : "");
    printf("all         %s\n", gb(buf, total_bytes(p)));
}

static int report_pack(const struct sl_pack *p, const struct pack_counts *n, struct sl_err *err)
{
    bool ok = true;
    cJSON *o = sl_report_open(1);
    if (!o) ok = false;
    sl_report_str(o, "kind", "pack");
    sl_report_str(o, "dir", p->dir);
    sl_report_str(o, "tool_version", p->tool_version);
    sl_report_str(o, "source_sha256", p->source_sha256);
    sl_report_bool(o, "synthetic", p->synthetic);
    sl_report_str(o, "prefix", p->source_prefix);
    sl_report_str(o, "experts_format", sl_fmt_name(p->experts_fmt));
    sl_report_str(o, "trunk_format", sl_fmt_name(p->trunk_fmt));
    sl_report_u64(o, "trunk_bytes", p->trunk_bytes);
    sl_report_u64(o, "bank_bytes", sl_pack_bank_bytes(p));
    sl_report_u64(o, "vision_bytes", p->vision_bytes);
    sl_report_u64(o, "total_bytes", total_bytes(p));
    sl_report_u64(o, "slot_bytes", p->slot_bytes);
    sl_report_u64(o, "banks", (uint64_t)p->n_banks);
    sl_report_u64(o, "records", n->records);
    sl_report_u64(o, "record_bytes", n->record_bytes);
    sl_report_u64(o, "trunk_tensors", (uint64_t)p->n_tensors);
    sl_report_u64(o, "vision_tensors", (uint64_t)p->n_vision);
    report_model(o, &p->cfg, &ok);
    cJSON *trunk = child(o, "trunk", &ok);
    cJSON *mats = child(o, "expert_matrices", &ok);
    for (int f = 0; f < FMT_SLOTS; f++) {
        const char *name = sl_fmt_name((enum sl_fmt)f);
        if (n->trunk[f].tensors) report_count(trunk, name, &n->trunk[f], &ok);
        if (n->mats[f]) sl_report_u64(mats, name, n->mats[f]);
    }
    return finish_report(o, ok, err);
}

static int inspect_pack(const char *path, const struct sl_arg_list *bank_dirs, bool json,
                        struct sl_err *err)
{
    struct sl_pack *p;
    int rc = sl_pack_open(&p, path, bank_dirs->v, bank_dirs->n, err);
    if (rc) return rc;
    struct pack_counts n;
    count_pack(&n, p);
    if (json)
        rc = report_pack(p, &n, err);
    else
        print_pack(p, &n);
    sl_pack_close(p);
    return rc;
}

/* ---- command ----------------------------------------------------------------------------------- */

int sl_cmd_inspect(int argc, char **argv)
{
    bool json = false;
    struct sl_arg_list bank_dirs = {.n = 0};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--bank-dir",
         .kind = SL_ARG_REPEAT,
         .out = &bank_dirs,
         .group = "Input",
         .metavar = "DIR",
         .help = "also look for a pack's expert banks here; may be repeated"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &json,
         .group = "Output",
         .help = "one JSON object instead of the table"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "inspect",
        .about =
            "Says what a checkpoint folder or a pack holds: shape, tensors, bytes by group, and "
            "what packs of a checkpoint would take.",
        .example = "sluice inspect ~/models/Kimi-K3",
        .pos = {"PATH"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .notes =
            "No weights are read. Sizes of m4 banks are without escapes; convert --dry-run reads "
            "the scales and is exact.",
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    struct sl_err err = {0};
    char manifest[SL_PATH_MAX];
    FILE *f = sl_path_join(manifest, pos[0], "pack.json") ? fopen(manifest, "re") : NULL;
    bool is_pack = f != NULL;
    if (f) fclose(f);
    int rc = is_pack ? inspect_pack(pos[0], &bank_dirs, json, &err)
                     : inspect_checkpoint(pos[0], json, &err);
    return rc ? sl_cmd_fail(&err) : 0;
}
