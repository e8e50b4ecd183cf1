/* The config object of pack.json: there and back, and every field out of bounds. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "offload/config.h"

static cJSON *k3_json(void)
{
    struct sl_config c;
    sl_config_k3(&c);
    cJSON *obj = sl_config_to_json(&c);
    assert_non_null(obj);
    return obj;
}

static int reread(cJSON *obj, struct sl_config *c, struct sl_err *err)
{
    char *text = cJSON_PrintUnformatted(obj);
    assert_non_null(text);
    cJSON_Delete(obj);
    cJSON *tree = cJSON_Parse(text);
    assert_non_null(tree);
    cJSON_free(text);
    int rc = sl_config_from_json(c, tree, "pack.json", SL_E_PACK, err);
    cJSON_Delete(tree);
    return rc;
}

static void there_and_back(void **state)
{
    (void)state;
    struct sl_config c;
    struct sl_config back;
    struct sl_err err = {0};
    sl_config_k3(&c);
    assert_int_equal(sl_config_check(&c, "k3", SL_E_ARG, &err), 0);
    if (reread(k3_json(), &back, &err)) fail_msg("%s", err.text);
    assert_memory_equal(&c, &back, sizeof c);
    /* Doubles that decimal cannot say, absent ids, no low-rank query, no cap. */
    c.rms_norm_eps = 1.0 / 3e5;
    c.gate_lower_bound = -4.9999999999999991;
    c.routed_scaling_factor = 0.1;
    c.situ_linear_beta = 0;
    c.bos_id = c.eos_id = c.pad_id = -1;
    c.q_lora_rank = 0;
    c.mla_output_gate = false;
    if (reread(sl_config_to_json(&c), &back, &err)) fail_msg("%s", err.text);
    assert_memory_equal(&c, &back, sizeof c);
}

static void every_key_is_required(void **state)
{
    (void)state;
    cJSON *all = k3_json();
    int n = cJSON_GetArraySize(all);
    cJSON_Delete(all);
    assert_true(n > 30);
    for (int i = 0; i < n; i++) {
        struct sl_config c;
        struct sl_err err = {0};
        cJSON *obj = k3_json();
        char key[64];
        snprintf(key, sizeof key, "%s", cJSON_GetArrayItem(obj, i)->string);
        cJSON_DeleteItemFromArray(obj, i);
        assert_int_equal(reread(obj, &c, &err), SL_E_PACK);
        char want[128];
        snprintf(want, sizeof want, "pack.json: %s: missing", key);
        assert_string_equal(err.text, want);
    }
}

static void wrong_types(void **state)
{
    (void)state;
    cJSON *all = k3_json();
    int n = cJSON_GetArraySize(all);
    cJSON_Delete(all);
    for (int i = 0; i < n; i++) {
        struct sl_config c;
        struct sl_err err = {0};
        cJSON *obj = k3_json();
        char key[64];
        snprintf(key, sizeof key, "%s", cJSON_GetArrayItem(obj, i)->string);
        cJSON_ReplaceItemInArray(obj, i, cJSON_CreateString("7"));
        /* ReplaceItemInArray keeps no name */
        cJSON *item = cJSON_DetachItemFromArray(obj, i);
        cJSON_AddItemToObject(obj, key, item);
        assert_int_equal(reread(obj, &c, &err), SL_E_PACK);
        assert_non_null(strstr(err.text, key));
    }
}

static void every_number_is_bounded(void **state)
{
    (void)state;
    cJSON *all = k3_json();
    int numbers = 0;
    for (const cJSON *v = all->child; v; v = v->next) {
        if (!cJSON_IsNumber(v)) continue;
        numbers++;
        double min = 0;
        double max = 0;
        assert_true(sl_config_bounds(v->string, &min, &max));
        assert_true(v->valuedouble >= min && v->valuedouble <= max);
        const double bad[] = {min - (fabs(min) < 1 ? 1 : fabs(min)), max * 2 + 2, 1e300, -1e300};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            struct sl_config c;
            struct sl_err err = {0};
            cJSON *obj = k3_json();
            cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(obj, v->string), bad[i]);
            if (!reread(obj, &c, &err)) fail_msg("%s = %g was accepted", v->string, bad[i]);
            assert_non_null(strstr(err.text, v->string));
        }
    }
    assert_true(numbers > 25);
    cJSON_Delete(all);
    double x;
    assert_false(sl_config_bounds("no_such_field", &x, &x));
}

static void set_kinds(cJSON *obj, const char *json)
{
    cJSON_DeleteItemFromObjectCaseSensitive(obj, "is_kda");
    assert_true(cJSON_AddItemToObject(obj, "is_kda", cJSON_Parse(json)));
}

static void layer_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *json, *part;
    } cases[] = {
        {"[1,0]", NULL},
        {"[1]", "1 entries for 2 layers"},
        {"[1,0,1]", "3 entries for 2 layers"},
        {"[1,2]", "entry 1 must be 0 or 1"},
        {"[1,0.5]", "entry 1 must be 0 or 1"},
        {"[true,0]", "entry 0 must be 0 or 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_config c;
        struct sl_err err = {0};
        cJSON *obj = k3_json();
        cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(obj, "n_layers"), 2);
        set_kinds(obj, cases[i].json);
        int rc = reread(obj, &c, &err);
        assert_int_equal(rc, cases[i].part ? SL_E_PACK : 0);
        if (cases[i].part) assert_non_null(strstr(err.text, cases[i].part));
    }
}

struct edit {
    void (*apply)(struct sl_config *c);
    const char *part;
};

static void more_taken_than_there(struct sl_config *c)
{
    c->top_k = c->n_experts + 1;
}
static void half_a_block_latent(struct sl_config *c)
{
    c->latent_size = 3568;
}
static void half_a_block_width(struct sl_config *c)
{
    c->moe_intermediate_size = 3088;
}
static void too_dense(struct sl_config *c)
{
    c->first_k_dense = 94;
}
static void eos_outside(struct sl_config *c)
{
    c->eos_id = c->vocab_size;
}
static void wide_heads(struct sl_config *c)
{
    c->n_heads = c->qk_nope_dim = 4096;
}
static void wide_kda(struct sl_config *c)
{
    c->kda_heads = c->kda_head_dim = 4096;
}
static void wide_shared(struct sl_config *c)
{
    c->n_shared_experts = 1024;
}
static void kind_two(struct sl_config *c)
{
    c->is_kda[7] = 2;
}
static void not_a_number(struct sl_config *c)
{
    c->situ_beta = NAN;
}

static void checks_across_fields(void **state)
{
    (void)state;
    const struct edit edits[] = {
        {more_taken_than_there, "top_k: "},
        {half_a_block_latent, "latent_size: 3568 is not a multiple of 32"},
        {half_a_block_width, "moe_intermediate_size: 3088 is not a multiple of 32"},
        {too_dense, "first_k_dense: 94 of 93"},
        {eos_outside, "eos_id: 163840 is outside the vocabulary"},
        {wide_heads, "n_heads x "},
        {wide_kda, "kda_heads x "},
        {wide_shared, "n_shared_experts x "},
        {kind_two, "is_kda: layer 7"},
        {not_a_number, "situ_beta: "},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct sl_config c;
        struct sl_err err = {0};
        sl_config_k3(&c);
        edits[i].apply(&c);
        assert_int_equal(sl_config_check(&c, "file", SL_E_SOURCE, &err), SL_E_SOURCE);
        if (!strstr(err.text, edits[i].part)) fail_msg("no \"%s\" in: %s", edits[i].part, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back), cmocka_unit_test(every_key_is_required),
        cmocka_unit_test(wrong_types),    cmocka_unit_test(every_number_is_bounded),
        cmocka_unit_test(layer_kinds),    cmocka_unit_test(checks_across_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
