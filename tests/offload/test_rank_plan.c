/* Plans of ranks: the best (layer, rank) pairs for a target, the manifest's object and what it refuses,
 * and replacing it without touching anything else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "tests/offload/pack_maker.h"

/* Layers 1 to 3 of p36, top 2; layer 0 is dense. */
static struct pm_pack maker;

static int set_up(void **state)
{
    (void)state;
    pm_make(&maker, &(struct pm_spec){.n_experts = 6, .latent = 128, .two_planes = true});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    pm_free(&maker);
    return 0;
}

static struct sl_rank_plan *example(const struct sl_config *c)
{
    struct sl_rank_plan *r;
    assert_int_equal(sl_rank_plan_new(&r, c, NULL), 0);
    static const double drop[] = {0, 0.001, 0.01, 0.004};
    for (int l = 1; l < 4; l++) {
        r->drop[l] = drop[l];
        r->share[2 * l] = 0.75;
        r->share[2 * l + 1] = 0.25;
    }
    r->tokens = 4096;
    r->points[0] = (struct sl_rank_point){2, 0.05};
    r->points[1] = (struct sl_rank_point){3, 0.01};
    r->n_points = 2;
    r->bits = 2.4;
    return r;
}

static void the_best_pairs_are_taken(void **state)
{
    (void)state;
    struct sl_pack *p = pm_open(&maker);
    struct sl_rank_plan *r = example(&p->cfg);
    struct sl_rank_choice *c = malloc(sizeof *c);
    struct sl_err err = {0};
    assert_non_null(c);
    /* 4 of 6 experts are p36: a rank of one of three layers is 4 / 6 / 2 / 3 of a bit, 1/9. Gains in
     * order: layer 2 rank 0 (.0075), layer 3 rank 0 (.003), layer 2 rank 1 (.0025), layer 3 rank 1
     * (.001), layer 1 rank 0 (.00075), layer 1 rank 1. */
    static const struct {
        int taken, ranks[4];
    } steps[] = {{0, {2, 0, 0, 0}}, {1, {2, 0, 1, 0}}, {2, {2, 0, 1, 1}}, {3, {2, 0, 2, 1}},
                 {4, {2, 0, 2, 2}}, {5, {2, 1, 2, 2}}, {6, {2, 2, 2, 2}}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        double bits = 2.125 + steps[i].taken / 9.0;
        for (int more = 0; more < 2; more++) { /* what does not fill another rank changes nothing */
            assert_int_equal(sl_rank_choose(p, r, bits + more * 0.1, c, &err), 0);
            assert_memory_equal(c->ranks, steps[i].ranks, sizeof steps[i].ranks);
            assert_float_equal(c->bits, bits, 1e-9);
            assert_float_equal(c->kl,
                               bits >= 3   ? 0.01
                               : bits <= 2 ? 0.05
                                           : 0.05 - 0.04 * (bits - 2),
                               1e-9);
        }
    }
    /* Bytes: base planes of two experts a layer, and the refinement of each rank taken. */
    const struct sl_bank *b = &p->banks[0];
    double base = 0, whole = 0;
    for (uint32_t x = 0; x < 6; x++) {
        base += b->entries[x].base_bytes / 6.0;
        whole += b->entries[x].bytes / 6.0;
    }
    assert_int_equal(sl_rank_choose(p, r, 2.125 + 2 / 9.0, c, &err), 0);
    assert_float_equal((double)c->token_bytes, 4 * base + 2 * whole, 1);
    /* The default target is the plan's. */
    assert_int_equal(sl_rank_choose(p, r, 0, c, &err), 0);
    assert_float_equal(c->bits, 2.125 + 2 / 9.0, 1e-9);
    free(c);
    sl_rank_plan_close(r);
    sl_pack_close(p);
}

static void without_a_plan_only_the_ends(void **state)
{
    (void)state;
    struct sl_pack *p = pm_open(&maker);
    struct sl_rank_choice *c = malloc(sizeof *c);
    struct sl_err err = {0};
    assert_non_null(c);
    assert_int_equal(sl_rank_choose(p, NULL, 0, c, &err), 0);
    assert_float_equal(c->bits, 2.125 + 4 / 6.0, 1e-9);
    assert_true(c->kl < 0);
    for (int l = 0; l < 4; l++) assert_int_equal(c->ranks[l], 2);
    assert_int_equal(sl_rank_choose(p, NULL, 2.125, c, &err), 0);
    assert_float_equal(c->bits, 2.125, 1e-9);
    for (int l = 1; l < 4; l++) assert_int_equal(c->ranks[l], 0);
    assert_int_equal(sl_rank_choose(p, NULL, 2.4, c, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "no plan of ranks between 2.125 and 2.79167"));
    free(c);
    sl_pack_close(p);
}

static void a_plan_is_saved_read_and_replaced(void **state)
{
    (void)state;
    struct sl_err err = {0};
    size_t before_len, after_len;
    struct sl_pack *p = pm_open(&maker);
    struct sl_rank_plan *r = example(&p->cfg);
    assert_null(p->ranks);
    char *before = (char *)pm_read(pm_path(&maker, "pack.json"), &before_len);
    for (int round = 0; round < 2; round++) {
        r->drop[1] = 0.001 + round;
        if (sl_rank_plan_save(r, maker.dir, &err)) fail_msg("%s", err.text);
        struct sl_pack *q = pm_open(&maker);
        assert_non_null(q->ranks);
        assert_int_equal(q->ranks->tokens, 4096);
        assert_float_equal(q->ranks->drop[1], r->drop[1], 1e-5);
        assert_float_equal(q->ranks->share[5], 0.25, 1e-5);
        assert_int_equal(q->ranks->n_points, 2);
        assert_float_equal(q->ranks->points[1].kl, 0.01, 1e-6);
        sl_pack_close(q);
        /* All that stood before the closing brace stands there still. */
        char *after = (char *)pm_read(pm_path(&maker, "pack.json"), &after_len);
        size_t same = (size_t)(strrchr(before, '}') - before);
        assert_memory_equal(before, after, same);
        char *member = strstr(after, "\n\"ranks\":");
        assert_non_null(member);
        assert_null(strstr(member + 1, "\n\"ranks\":"));
        free(after);
    }
    pm_write(pm_path(&maker, "pack.json"), before, before_len);
    free(before);
    sl_rank_plan_close(r);
    sl_pack_close(p);
}

static void broken_plans_are_refused(void **state)
{
    (void)state;
#define LAYERS "\"layers\":[null,{\"drop\":1,\"share\":[1,0]},{\"drop\":1,\"share\":[1,0]},"
#define LAST   "{\"drop\":0,\"share\":[0.5,0.5]}]"
    static const struct {
        const char *text, *says; /* NULL: sound, the control */
    } cases[] = {
        {"{\"version\":1,\"tokens\":5,\"bits\":2.5,\"points\":[[2,0.1],[3,0]]," LAYERS LAST "}",
         NULL},
        {"5", "ranks"},
        {"{\"version\":2,\"tokens\":5,\"bits\":2.5,\"points\":[]," LAYERS LAST "}", "version"},
        {"{\"version\":1,\"tokens\":-5,\"bits\":2.5,\"points\":[]," LAYERS LAST "}", "tokens"},
        {"{\"version\":1,\"tokens\":5,\"bits\":1e9,\"points\":[]," LAYERS LAST "}", "bits"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[[2,0.1],[2,0]]," LAYERS LAST "}",
         "rise"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[[2]]," LAYERS LAST "}", "points"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[[2,-1]]," LAYERS LAST "}", "points"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[[1,0],[2,0],[3,0],[4,0],[5,0],[6,0],"
         "[7,0],[8,0],[9,0]]," LAYERS LAST "}",
         "more than 8"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[]," LAYERS "null]}", "layers[3]"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[],\"layers\":[null]}", "layers"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[]," LAYERS
         "{\"drop\":0,\"share\":[1]}]}",
         "layers[3]"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[]," LAYERS
         "{\"drop\":0,\"share\":[1,2]}]}",
         "layers[3]"},
        {"{\"version\":1,\"tokens\":5,\"bits\":2,\"points\":[]," LAYERS
         "{\"drop\":-1,\"share\":[1,0]}]}",
         "drop"},
    };
    struct sl_pack *p = pm_open(&maker);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_err err = {0};
        struct sl_rank_plan *r = NULL;
        cJSON *tree;
        assert_int_equal(
            sl_json_parse(&tree, cases[i].text, strlen(cases[i].text), "t", SL_E_PACK, &err), 0);
        int rc = sl_rank_plan_read(&r, tree, &p->cfg, "t", &err);
        if (rc != (cases[i].says ? SL_E_PACK : 0) ||
            (cases[i].says && !strstr(err.text, cases[i].says)))
            fail_msg("case %zu: %d, \"%s\"", i, rc, err.text);
        assert_true((r == NULL) == (cases[i].says != NULL));
        sl_rank_plan_close(r);
        cJSON_Delete(tree);
    }
    sl_pack_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_pairs_are_taken),
        cmocka_unit_test(without_a_plan_only_the_ends),
        cmocka_unit_test(a_plan_is_saved_read_and_replaced),
        cmocka_unit_test(broken_plans_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
