/* Two tables: keys that set a field, and keys that must hold the one value we implement.
 *
 * Order of refusal: family, then missing or unsupported keys in the order of the tables, then what
 * only makes sense across fields. Constants of the reference code that no key carries (the eps of the
 * two MLA inner norms and of the L2 norm, spec 3.0) are set here, once. */
#include "convert/hf_config.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

struct where {
    const cJSON *top, *text, *linear; /* whole file, text model, its linear_attn_config */
    const char *file;
    struct sl_err *err;
};

static int refuse(const struct where *w, const char *key, const char *found, const char *want)
{
    return sl_fail(w->err, SL_E_SOURCE, w->file, key, "%s, expected %s", found, want);
}

static bool one_of(const char *s, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(s, *list)) return true;
    return false;
}

/* ---- family ------------------------------------------------------------------------------------ */

static int check_type(const struct where *w, const cJSON *obj, const char *key,
                      const char *const *accepted)
{
    const char *type = NULL;
    int rc = sl_json_str(obj, "model_type", &type, w->file, SL_E_SOURCE, w->err);
    if (rc) return rc;
    return one_of(type, accepted) ? 0 : refuse(w, key, type, accepted[0]);
}

static int check_architectures(const struct where *w, const cJSON *obj, const char *key,
                               const char *const *accepted)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(obj, "architectures");
    if (!list || cJSON_IsNull(list)) return 0; /* model_type has spoken already */
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    if (!first || !cJSON_IsString(first)) return refuse(w, key, "not a list of names", accepted[0]);
    return one_of(first->valuestring, accepted) ? 0
                                                : refuse(w, key, first->valuestring, accepted[0]);
}

/* Says which object holds the text model. */
static int check_family(struct where *w)
{
    static const char *const nested_types[] = {"kimi_k3", NULL};
    static const char *const text_types[] = {"kimi_linear", NULL};
    static const char *const flat_types[] = {"kimi_k3", "kimi_linear", NULL};
    static const char *const nested_archs[] = {"KimiK3ForConditionalGeneration", NULL};
    static const char *const text_archs[] = {"KimiLinearForCausalLM", NULL};
    static const char *const flat_archs[] = {
        "KimiLinearForCausalLM", "KimiK3ForConditionalGeneration", "KimiK3ForCausalLM", NULL};
    if (!cJSON_IsObject(w->top))
        return sl_fail(w->err, SL_E_SOURCE, w->file, NULL, "must be an object");
    bool nested = cJSON_GetObjectItemCaseSensitive(w->top, "text_config") != NULL;
    int rc = check_type(w, w->top, "model_type", nested ? nested_types : flat_types);
    if (!rc)
        rc = check_architectures(w, w->top, "architectures", nested ? nested_archs : flat_archs);
    w->text = w->top;
    if (rc || !nested) return rc;
    rc = sl_json_obj(w->top, "text_config", &w->text, w->file, SL_E_SOURCE, w->err);
    if (!rc) rc = check_type(w, w->text, "text_config.model_type", text_types);
    if (!rc) rc = check_architectures(w, w->text, "text_config.architectures", text_archs);
    return rc;
}

/* ---- keys that set a field --------------------------------------------------------------------- */

enum key_kind { KEY_INT, KEY_INT_OR_NULL, KEY_F64, KEY_F64_OR_NULL, KEY_BOOL };

struct key {
    const char *name;
    bool linear; /* in linear_attn_config */
    enum key_kind kind;
    size_t at;
    const char *field;
};
#define KEY(name, field, linear, kind)                                                             \
    {                                                                                              \
        name, linear, kind, offsetof(struct sl_config, field), #field                              \
    }

static const struct key keys[] = {
    KEY("hidden_size", hidden_size, false, KEY_INT),
    KEY("num_hidden_layers", n_layers, false, KEY_INT),
    KEY("vocab_size", vocab_size, false, KEY_INT),
    KEY("intermediate_size", intermediate_size, false, KEY_INT),
    KEY("first_k_dense_replace", first_k_dense, false, KEY_INT),
    KEY("moe_layer_freq", moe_layer_freq, false, KEY_INT),
    KEY("rms_norm_eps", rms_norm_eps, false, KEY_F64),
    KEY("activation_situ_beta", situ_beta, false, KEY_F64),
    KEY("activation_situ_linear_beta", situ_linear_beta, false, KEY_F64_OR_NULL),
    KEY("attn_res_block_size", attn_res_block_size, false, KEY_INT),
    KEY("max_position_embeddings", max_position, false, KEY_INT),
    KEY("num_attention_heads", n_heads, false, KEY_INT),
    KEY("q_lora_rank", q_lora_rank, false, KEY_INT_OR_NULL),
    KEY("kv_lora_rank", kv_lora_rank, false, KEY_INT),
    KEY("qk_nope_head_dim", qk_nope_dim, false, KEY_INT),
    KEY("qk_rope_head_dim", qk_rope_dim, false, KEY_INT),
    KEY("v_head_dim", v_head_dim, false, KEY_INT),
    KEY("mla_use_output_gate", mla_output_gate, false, KEY_BOOL),
    KEY("num_heads", kda_heads, true, KEY_INT),
    KEY("head_dim", kda_head_dim, true, KEY_INT),
    KEY("short_conv_kernel_size", conv_kernel, true, KEY_INT),
    KEY("gate_lower_bound", gate_lower_bound, true, KEY_F64),
    KEY("num_experts", n_experts, false, KEY_INT),
    KEY("num_experts_per_token", top_k, false, KEY_INT),
    KEY("num_shared_experts", n_shared_experts, false, KEY_INT),
    KEY("moe_intermediate_size", moe_intermediate_size, false, KEY_INT),
    KEY("routed_expert_hidden_size", latent_size, false, KEY_INT),
    KEY("latent_moe_use_norm", latent_norm, false, KEY_BOOL),
    KEY("moe_renormalize", renormalize, false, KEY_BOOL),
    KEY("routed_scaling_factor", routed_scaling_factor, false, KEY_F64),
};

static int read_key(const struct where *w, const struct key *k, struct sl_config *c)
{
    const cJSON *obj = k->linear ? w->linear : w->text;
    char *at = (char *)c + k->at;
    if (k->kind == KEY_INT_OR_NULL || k->kind == KEY_F64_OR_NULL) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(obj, k->name);
        if (v && cJSON_IsNull(v)) return 0; /* 0: no low-rank query, no cap */
    }
    double min = 0;
    double max = 0;
    sl_config_bounds(k->field, &min, &max);
    int64_t n = 0;
    int rc;
    switch (k->kind) {
    case KEY_F64:
    case KEY_F64_OR_NULL:
        return sl_json_f64(obj, k->name, min, max, (double *)at, w->file, SL_E_SOURCE, w->err);
    case KEY_BOOL:
        return sl_json_bool(obj, k->name, (bool *)at, w->file, SL_E_SOURCE, w->err);
    default:
        rc =
            sl_json_int(obj, k->name, (int64_t)min, (int64_t)max, &n, w->file, SL_E_SOURCE, w->err);
        *(int *)at = (int)n;
        return rc;
    }
}

/* ---- keys with one supported value ------------------------------------------------------------- */

struct fixed {
    const char *name;
    bool linear, required;
    const char *text; /* the string wanted, or NULL: */
    int number;       /* the number wanted, or: */
    int truth;        /* 1 true, 0 false, -1: not a boolean */
};

static const struct fixed fixed_keys[] = {
    {"hidden_act", false, true, "situ", 0, -1},
    {"mla_use_nope", false, true, NULL, 0, 1}, /* no rotation is implemented */
    {"moe_router_activation_func", false, true, "sigmoid", 0, -1},
    {"topk_method", false, true, "noaux_tc", 0, -1},
    {"num_expert_group", false, true, NULL, 1, -1},
    {"topk_group", false, true, NULL, 1, -1},
    {"use_full_rank_gate", true, true, NULL, 0, 1}, /* g_proj is one matrix */
    {"num_nextn_predict_layers", false, false, NULL, 0, -1},
    {"tie_word_embeddings", false, false, NULL, 0, 0},
};

/* A value as JSON spells it, cut to n. */
static void spell(const cJSON *v, char *buf, size_t n)
{
    char *text = cJSON_PrintUnformatted(v);
    snprintf(buf, n, "%.*s%s", (int)n - 8, text ? text : "?",
             text && strlen(text) > n - 8 ? "..." : "");
    cJSON_free(text);
}

static int check_fixed(const struct where *w, const cJSON *obj, const struct fixed *f)
{
    char key[96];
    snprintf(key, sizeof key, "%s%s%s", obj == w->top ? "" : obj->string, obj == w->top ? "" : ".",
             f->name);
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(obj, f->name);
    if (!v) return f->required ? sl_fail(w->err, SL_E_SOURCE, w->file, key, "missing") : 0;
    char want[64];
    bool ok;
    if (f->text) {
        ok = cJSON_IsString(v) && !strcmp(v->valuestring, f->text);
        snprintf(want, sizeof want, "\"%s\"", f->text);
    } else if (f->truth >= 0) {
        ok = f->truth ? cJSON_IsTrue(v) : cJSON_IsFalse(v);
        snprintf(want, sizeof want, "%s", f->truth ? "true" : "false");
    } else {
        ok = cJSON_IsNumber(v) && v->valuedouble == f->number;
        snprintf(want, sizeof want, "%d", f->number);
    }
    if (ok) return 0;
    char found[80];
    spell(v, found, sizeof found);
    return sl_fail(w->err, SL_E_SOURCE, w->file, key, "%s is not supported, expected %s", found,
                   want);
}

/* Experts are read as MXFP4. Which tensors are packed is decided by their names: the ignore list of
 * the released file leaves out matrices that are plain (spec 1). */
static int check_quantization(const struct where *w, const cJSON *obj)
{
    const cJSON *q = cJSON_GetObjectItemCaseSensitive(obj, "quantization_config");
    if (!q || cJSON_IsNull(q)) return 0;
    const char *format = NULL;
    int rc = sl_json_str(q, "format", &format, w->file, SL_E_SOURCE, w->err);
    if (rc) return rc;
    if (strcmp(format, "mxfp4-pack-quantized") != 0)
        return refuse(w, "quantization_config.format", format, "mxfp4-pack-quantized");
    const cJSON *groups = cJSON_GetObjectItemCaseSensitive(q, "config_groups");
    for (const cJSON *g = groups ? groups->child : NULL; g; g = g->next) {
        const cJSON *weights = cJSON_GetObjectItemCaseSensitive(g, "weights");
        if (!weights) continue;
        static const struct fixed wanted[] = {{"num_bits", false, false, NULL, 4, -1},
                                              {"group_size", false, false, NULL, 32, -1}};
        for (int i = 0; i < 2 && !rc; i++) rc = check_fixed(w, weights, &wanted[i]);
        if (rc) return rc;
    }
    return 0;
}

/* ---- across keys ------------------------------------------------------------------------------- */

/* Numbers from 1 of one layer list; kind[] says where a layer was seen: 0 nowhere, 1 MLA, 2 KDA. */
static int read_layer_list(const struct where *w, const char *name, uint8_t kind_value,
                           int n_layers, uint8_t *kind)
{
    const cJSON *list = NULL;
    int rc = sl_json_arr(w->linear, name, &list, w->file, SL_E_SOURCE, w->err);
    if (rc) return rc;
    char key[64];
    snprintf(key, sizeof key, "linear_attn_config.%s", name);
    for (const cJSON *v = list->child; v; v = v->next) {
        double d = v->valuedouble;
        if (!cJSON_IsNumber(v) || !(d >= 1 && d <= n_layers) || d != (int)d) {
            char found[64];
            spell(v, found, sizeof found);
            return sl_fail(w->err, SL_E_SOURCE, w->file, key,
                           "%s is not a layer number from 1 to %d", found, n_layers);
        }
        int layer = (int)d - 1;
        if (kind[layer])
            return sl_fail(w->err, SL_E_SOURCE, w->file, key, "layer %d is listed twice",
                           layer + 1);
        kind[layer] = kind_value;
    }
    return 0;
}

static int read_layer_kinds(const struct where *w, struct sl_config *c)
{
    uint8_t kind[SL_MAX_LAYERS] = {0};
    int rc = read_layer_list(w, "full_attn_layers", 1, c->n_layers, kind);
    if (!rc) rc = read_layer_list(w, "kda_layers", 2, c->n_layers, kind);
    if (rc) return rc;
    for (int l = 0; l < c->n_layers; l++) {
        if (!kind[l])
            return sl_fail(w->err, SL_E_SOURCE, w->file, "linear_attn_config",
                           "layer %d is in neither kda_layers nor full_attn_layers", l + 1);
        c->is_kda[l] = kind[l] == 2;
    }
    return 0;
}

/* Token ids may stand at the top, in the text model, or nowhere; where both speak they must agree. */
static int read_token_id(const struct where *w, const char *name, int *id)
{
    *id = -1;
    const cJSON *places[] = {w->top, w->text};
    for (int i = 0; i < (w->text == w->top ? 1 : 2); i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(places[i], name);
        if (!v || cJSON_IsNull(v)) continue;
        int64_t n = 0;
        int rc = sl_json_int(places[i], name, 0, INT32_MAX, &n, w->file, SL_E_SOURCE, w->err);
        if (rc) return rc;
        if (*id >= 0 && *id != n)
            return sl_fail(w->err, SL_E_SOURCE, w->file, name, "%d at the top, %lld in text_config",
                           *id, (long long)n);
        *id = (int)n;
    }
    return 0;
}

/* What sl_config_check() would refuse by our field names, said by the file's. */
static int check_shapes(const struct where *w, const struct sl_config *c)
{
    const struct {
        const char *key;
        int value;
    } columns[] = {{"routed_expert_hidden_size", c->latent_size},
                   {"moe_intermediate_size", c->moe_intermediate_size}};
    for (int i = 0; i < 2; i++)
        if (columns[i].value % 32)
            return sl_fail(w->err, SL_E_SOURCE, w->file, columns[i].key,
                           "%d is not a multiple of 32, the width of an MXFP4 block",
                           columns[i].value);
    if (c->top_k > c->n_experts)
        return sl_fail(w->err, SL_E_SOURCE, w->file, "num_experts_per_token",
                       "%d of num_experts %d", c->top_k, c->n_experts);
    if (c->first_k_dense > c->n_layers)
        return sl_fail(w->err, SL_E_SOURCE, w->file, "first_k_dense_replace",
                       "%d of num_hidden_layers %d", c->first_k_dense, c->n_layers);
    return 0;
}

static int read_all(struct where *w, struct sl_config *c)
{
    int rc = check_family(w);
    if (!rc) rc = check_quantization(w, w->text);
    if (!rc && w->text != w->top) rc = check_quantization(w, w->top);
    if (!rc)
        rc = sl_json_obj(w->text, "linear_attn_config", &w->linear, w->file, SL_E_SOURCE, w->err);
    for (size_t i = 0; !rc && i < sizeof fixed_keys / sizeof *fixed_keys; i++)
        rc = check_fixed(w, fixed_keys[i].linear ? w->linear : w->text, &fixed_keys[i]);
    if (!rc && w->text != w->top) {
        static const struct fixed untied = {"tie_word_embeddings", false, false, NULL, 0, 0};
        rc = check_fixed(w, w->top, &untied);
    }
    for (size_t i = 0; !rc && i < sizeof keys / sizeof *keys; i++) rc = read_key(w, &keys[i], c);
    if (!rc) rc = read_layer_kinds(w, c);
    if (!rc) rc = check_shapes(w, c);
    int64_t kv_heads = 0;
    if (!rc)
        rc = sl_json_int(w->text, "num_key_value_heads", 1, INT32_MAX, &kv_heads, w->file,
                         SL_E_SOURCE, w->err);
    if (!rc && kv_heads != c->n_heads)
        rc = sl_fail(w->err, SL_E_SOURCE, w->file, "num_key_value_heads",
                     "%lld is not supported, expected num_attention_heads (%d)",
                     (long long)kv_heads, c->n_heads);
    if (!rc) rc = read_token_id(w, "bos_token_id", &c->bos_id);
    if (!rc) rc = read_token_id(w, "eos_token_id", &c->eos_id);
    if (!rc) rc = read_token_id(w, "pad_token_id", &c->pad_id);
    return rc;
}

int sl_hf_config_parse(struct sl_config *c, const char *text, size_t len, const char *file,
                       struct sl_err *err)
{
    memset(c, 0, sizeof *c);
    cJSON *tree;
    int rc = sl_json_parse(&tree, text, len, file, SL_E_SOURCE, err);
    if (rc) return rc;
    struct where w = {.top = tree, .file = file, .err = err};
    c->mla_norm_eps = 1e-6; /* the reference builds both inner norms with its class default */
    c->l2_eps = 1e-6;       /* added to the sum of squares, not to the mean */
    rc = read_all(&w, c);
    cJSON_Delete(tree);
    return rc ? rc : sl_config_check(c, file, SL_E_SOURCE, err);
}
