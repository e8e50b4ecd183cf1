/* The hyper-parameters as a table: one row a field serves reading, writing and bounds.
 *
 * A config reaches us from a checkpoint's config.json (convert/hf_config.c), from pack.json, or from
 * sl_config_k3(); all three end in sl_config_check(), so that planners, graph and writers may multiply
 * any two fields in 64 bits without another look. The bounds are some sixteen times the release: far
 * from any model of this family, near enough to keep every product harmless. */
#include "offload/config.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum kind { KIND_INT, KIND_F64, KIND_BOOL };

struct field {
    const char *key;
    enum kind kind;
    size_t at; /* offset in struct sl_config */
    double min, max;
};

#define FIELD(name, kind, min, max)                                                                \
    {                                                                                              \
#name, kind, offsetof(struct sl_config, name), min, max                                    \
    }
#define WIDTH_MAX (1 << 20) /* a product of heads and head width, or an FFN width */

/* The KDA bound: a tile of 16 tokens multiplies by exp(16 |b|) and exp(-16 |b|) without rescaling, so
 * both must be normal numbers in f32 and bf16 (e^-87.3 .. e^88.7): |b| < 87 / 16 (spec 3.3.1). A model
 * with a lower bound would run and be wrong only for tokens that forget fast. */
#define GATE_MIN (-87.0 / 16)

static const struct field fields[] = {
    FIELD(hidden_size, KIND_INT, 1, 1 << 16),
    FIELD(n_layers, KIND_INT, 1, SL_MAX_LAYERS),
    FIELD(vocab_size, KIND_INT, 1, 1 << 24),
    FIELD(intermediate_size, KIND_INT, 1, WIDTH_MAX),
    FIELD(first_k_dense, KIND_INT, 0, SL_MAX_LAYERS),
    FIELD(moe_layer_freq, KIND_INT, 1, SL_MAX_LAYERS),
    FIELD(rms_norm_eps, KIND_F64, 1e-30, 1),
    FIELD(mla_norm_eps, KIND_F64, 1e-30, 1),
    FIELD(l2_eps, KIND_F64, 1e-30, 1),
    FIELD(situ_beta, KIND_F64, 1e-3, 1e6),
    FIELD(situ_linear_beta, KIND_F64, -1e6, 1e6),
    FIELD(attn_res_block_size, KIND_INT, 1, SL_MAX_LAYERS),
    FIELD(max_position, KIND_INT, 1, 1 << 30),
    FIELD(n_heads, KIND_INT, 1, 1 << 12),
    FIELD(q_lora_rank, KIND_INT, 0, 1 << 16),
    FIELD(kv_lora_rank, KIND_INT, 1, 1 << 16),
    FIELD(qk_nope_dim, KIND_INT, 1, 1 << 12),
    FIELD(qk_rope_dim, KIND_INT, 0, 1 << 12),
    FIELD(v_head_dim, KIND_INT, 1, 1 << 12),
    FIELD(mla_output_gate, KIND_BOOL, 0, 1),
    FIELD(kda_heads, KIND_INT, 1, 1 << 12),
    FIELD(kda_head_dim, KIND_INT, 1, 1 << 12),
    FIELD(conv_kernel, KIND_INT, 2, 16),
    FIELD(gate_lower_bound, KIND_F64, GATE_MIN, -1e-6),
    FIELD(n_experts, KIND_INT, 1, 1 << 14),
    FIELD(top_k, KIND_INT, 1, SL_MAX_TOP_K),
    FIELD(n_shared_experts, KIND_INT, 1, 1 << 10),
    FIELD(moe_intermediate_size, KIND_INT, 1, WIDTH_MAX),
    FIELD(latent_size, KIND_INT, 1, 1 << 16),
    FIELD(latent_norm, KIND_BOOL, 0, 1),
    FIELD(renormalize, KIND_BOOL, 0, 1),
    FIELD(routed_scaling_factor, KIND_F64, 1e-6, 1e6),
    FIELD(bos_id, KIND_INT, -1, (1 << 24) - 1),
    FIELD(eos_id, KIND_INT, -1, (1 << 24) - 1),
    FIELD(pad_id, KIND_INT, -1, (1 << 24) - 1),
};
#define N_FIELDS (sizeof fields / sizeof *fields)

bool sl_config_bounds(const char *field, double *min, double *max)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (strcmp(fields[i].key, field) != 0) continue;
        *min = fields[i].min;
        *max = fields[i].max;
        return true;
    }
    return false;
}

static int *int_at(struct sl_config *c, const struct field *f)
{
    return (int *)((char *)c + f->at);
}
static double *f64_at(struct sl_config *c, const struct field *f)
{
    return (double *)((char *)c + f->at);
}
static bool *bool_at(struct sl_config *c, const struct field *f)
{
    return (bool *)((char *)c + f->at);
}

static int read_kinds(struct sl_config *c, const cJSON *obj, const char *file, int code,
                      struct sl_err *err)
{
    const cJSON *list = NULL;
    int rc = sl_json_arr(obj, "is_kda", &list, file, code, err);
    if (rc) return rc;
    int n = 0;
    for (const cJSON *v = list->child; v; v = v->next, n++) {
        bool ok = cJSON_IsNumber(v) && (v->valuedouble == 0 || v->valuedouble == 1);
        if (!ok) return sl_fail(err, code, file, "is_kda", "entry %d must be 0 or 1", n);
        if (n < c->n_layers) c->is_kda[n] = v->valuedouble == 1;
    }
    if (n != c->n_layers)
        return sl_fail(err, code, file, "is_kda", "%d entries for %d layers", n, c->n_layers);
    return 0;
}

int sl_config_from_json(struct sl_config *c, const cJSON *obj, const char *file, int code,
                        struct sl_err *err)
{
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        int64_t n = 0;
        int rc;
        if (f->kind == KIND_INT) {
            rc = sl_json_int(obj, f->key, (int64_t)f->min, (int64_t)f->max, &n, file, code, err);
            *int_at(c, f) = (int)n;
        } else if (f->kind == KIND_F64) {
            rc = sl_json_f64(obj, f->key, f->min, f->max, f64_at(c, f), file, code, err);
        } else {
            rc = sl_json_bool(obj, f->key, bool_at(c, f), file, code, err);
        }
        if (rc) return rc;
    }
    int rc = read_kinds(c, obj, file, code, err);
    return rc ? rc : sl_config_check(c, file, code, err);
}

/* cJSON prints 15 digits when they come near enough for it; bits must come back here, so a value that
 * needs 17 is spelled by us. */
static bool add_f64(cJSON *obj, const char *key, double v)
{
    char text[40];
    snprintf(text, sizeof text, "%.15g", v);
    if (strtod(text, NULL) == v) return cJSON_AddNumberToObject(obj, key, v);
    snprintf(text, sizeof text, "%.17g", v);
    return cJSON_AddRawToObject(obj, key, text);
}

cJSON *sl_config_to_json(const struct sl_config *c)
{
    struct sl_config copy = *c; /* the accessors want a writable struct */
    cJSON *obj = cJSON_CreateObject();
    if (!obj) return NULL;
    bool ok = true;
    for (size_t i = 0; i < N_FIELDS && ok; i++) {
        const struct field *f = &fields[i];
        if (f->kind == KIND_INT)
            ok = cJSON_AddNumberToObject(obj, f->key, *int_at(&copy, f));
        else if (f->kind == KIND_F64)
            ok = add_f64(obj, f->key, *f64_at(&copy, f));
        else
            ok = cJSON_AddBoolToObject(obj, f->key, *bool_at(&copy, f));
    }
    cJSON *list = ok ? cJSON_AddArrayToObject(obj, "is_kda") : NULL;
    ok = ok && list;
    for (int l = 0; l < c->n_layers && ok; l++) {
        cJSON *v = cJSON_CreateNumber(c->is_kda[l]);
        ok = v && cJSON_AddItemToArray(list, v);
        if (!ok) cJSON_Delete(v);
    }
    if (ok) return obj;
    cJSON_Delete(obj);
    return NULL;
}

static int check_bounds(const struct sl_config *c, const char *file, int code, struct sl_err *err)
{
    struct sl_config copy = *c;
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (f->kind == KIND_BOOL) continue;
        double v = f->kind == KIND_INT ? *int_at(&copy, f) : *f64_at(&copy, f);
        if (!(v >= f->min && v <= f->max)) /* NaN fails too */
            return sl_fail(err, code, file, f->key, "%.17g is outside %g to %g", v, f->min, f->max);
    }
    return 0;
}

static int check_product(int a, int b, const char *what, const char *file, int code,
                         struct sl_err *err)
{
    if ((int64_t)a * b <= WIDTH_MAX) return 0;
    return sl_fail(err, code, file, what, "%d x %d is more than the %d allowed", a, b, WIDTH_MAX);
}

static int check_id(int id, const char *key, int vocab, const char *file, int code,
                    struct sl_err *err)
{
    if (id < vocab) return 0;
    return sl_fail(err, code, file, key, "%d is outside the vocabulary of %d", id, vocab);
}

int sl_config_check(const struct sl_config *c, const char *file, int code, struct sl_err *err)
{
    int rc = check_bounds(c, file, code, err);
    if (rc) return rc;
    int qk = c->qk_nope_dim + c->qk_rope_dim;
    const struct {
        int a, b;
        const char *what;
    } widths[] = {
        {c->n_heads, qk, "n_heads x (qk_nope_dim + qk_rope_dim)"},
        {c->n_heads, c->qk_nope_dim + c->v_head_dim, "n_heads x (qk_nope_dim + v_head_dim)"},
        {c->kda_heads, c->kda_head_dim, "kda_heads x kda_head_dim"},
        {c->n_shared_experts, c->moe_intermediate_size,
         "n_shared_experts x moe_intermediate_size"}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        rc = check_product(widths[i].a, widths[i].b, widths[i].what, file, code, err);
        if (rc) return rc;
    }
    if (c->first_k_dense > c->n_layers)
        return sl_fail(err, code, file, "first_k_dense", "%d of %d layers", c->first_k_dense,
                       c->n_layers);
    if (c->top_k > c->n_experts)
        return sl_fail(err, code, file, "top_k", "%d of %d experts", c->top_k, c->n_experts);
    /* Both are the columns of an expert matrix, and a block is 32 columns. */
    if (c->latent_size % 32)
        return sl_fail(err, code, file, "latent_size", "%d is not a multiple of 32",
                       c->latent_size);
    if (c->moe_intermediate_size % 32)
        return sl_fail(err, code, file, "moe_intermediate_size", "%d is not a multiple of 32",
                       c->moe_intermediate_size);
    for (int l = 0; l < c->n_layers; l++)
        if (c->is_kda[l] > 1)
            return sl_fail(err, code, file, "is_kda", "layer %d: %d is neither 0 nor 1", l,
                           c->is_kda[l]);
    rc = check_id(c->bos_id, "bos_id", c->vocab_size, file, code, err);
    if (!rc) rc = check_id(c->eos_id, "eos_id", c->vocab_size, file, code, err);
    if (!rc) rc = check_id(c->pad_id, "pad_id", c->vocab_size, file, code, err);
    return rc;
}

void sl_config_k3(struct sl_config *c)
{
    *c = (struct sl_config){
        .hidden_size = 7168,
        .n_layers = 93,
        .vocab_size = 163840,
        .intermediate_size = 33792,
        .first_k_dense = 1,
        .moe_layer_freq = 1,
        .rms_norm_eps = 1e-5,
        .mla_norm_eps = 1e-6,
        .l2_eps = 1e-6,
        .situ_beta = 4,
        .situ_linear_beta = 25,
        .attn_res_block_size = 12,
        .max_position = 1048576,
        .n_heads = 96,
        .q_lora_rank = 1536,
        .kv_lora_rank = 512,
        .qk_nope_dim = 128,
        .qk_rope_dim = 64,
        .v_head_dim = 128,
        .mla_output_gate = true,
        .kda_heads = 96,
        .kda_head_dim = 128,
        .conv_kernel = 4,
        .gate_lower_bound = -5,
        .n_experts = 896,
        .top_k = 16,
        .n_shared_experts = 2,
        .moe_intermediate_size = 3072,
        .latent_size = 3584,
        .latent_norm = true,
        .renormalize = true,
        .routed_scaling_factor = 1,
        .bos_id = 163584,
        .eos_id = 163586,
        .pad_id = 163839,
    };
    /* Every fourth layer is MLA, and so is the last: 91 and 92 both are (spec 0). */
    for (int l = 0; l < c->n_layers; l++) c->is_kda[l] = l % 4 != 3 && l != c->n_layers - 1;
    assert(!sl_config_check(c, NULL, SL_E_ARG, NULL));
}
