/* Ids from users and the scores of eval, on cases worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "runtime/cli_input.h"
#include "runtime/eval_math.h"

static int read_ids(struct sl_ids *ids, const char *text, struct sl_err *err)
{
    sl_ids_free(ids);
    *ids = (struct sl_ids){0};
    memset(err, 0, sizeof *err);
    return sl_input_ids(ids, text, strlen(text), 100, "--ids", SL_E_ARG, err);
}

static void test_id_lists(void **state)
{
    (void)state;
    struct sl_ids ids = {0};
    struct sl_err err;
    const char *good[] = {"1,2,30", " 1 ,2,\n30\n", "{\"ids\": [1, 2, 30]}",
                          "\n{\"version\": \"x\", \"ids\": [1,2,30], \"n\": {}}\n"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(read_ids(&ids, good[i], &err), 0);
        assert_int_equal(ids.n, 3);
        assert_int_equal(ids.v[0] * 10000 + ids.v[1] * 100 + ids.v[2], 10230);
    }
    assert_int_equal(read_ids(&ids, "", &err), 0);
    assert_int_equal(ids.n, 0);
    assert_int_equal(read_ids(&ids, "{\"ids\": []}", &err), 0);
    assert_int_equal(read_ids(&ids, "99", &err), 0); /* the last of the vocabulary */

    const struct {
        const char *text, *says;
    } bad[] = {
        {"100", "--ids: id 0: 100 is outside the vocabulary of 100"},
        {"1,-2", "id 1: '-2' is not a token id"},
        {"1,,2", "id 1: '' is not a token id"},
        {"1 2", "id 0: '1 2' is not a token id"},
        {"1,2,", "id 2 is missing after the comma"},
        {"0x5", "is not a token id"},
        {"99999999999999999999999", "is outside the vocabulary"},
        {"{\"ids\": [1, 2.5]}", "entry 1 is not a token id"},
        {"{\"ids\": [1, \"2\"]}", "entry 1 is not a token id"},
        {"{\"ids\": [1, -2]}", "id 1: -2 is outside"},
        {"{\"ids\": [1e300]}", "entry 0 is not a token id"},
        {"{\"ids\": [1e9]}", "id 0: 1000000000 is outside"},
        {"{\"ids\": 5}", "ids"},
        {"{\"id\": [5]}", "ids"},
        {"{\"ids\": [5]", "--ids"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(read_ids(&ids, bad[i].text, &err), SL_E_ARG);
        if (!strstr(err.text, bad[i].says))
            fail_msg("'%s' gives '%s', not '%s'", bad[i].text, err.text, bad[i].says);
    }
    sl_ids_free(&ids);
}

static void near(double got, double want)
{
    if (!(fabs(got - want) < 1e-6)) fail_msg("%.9g, expected %.9g", got, want);
}

static void test_scores(void **state)
{
    (void)state;
    /* p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): KL = 1/2 log 2 - 1/4 log 2 = 1/4 log 2 */
    const float p[3] = {(float)log(2), 0, 0};
    const float q[3] = {0, 0, (float)log(2)};
    near(sl_eval_lse(p, 3), log(4));
    near(sl_eval_kl(p, q, 3), log(2) / 4);
    assert_true(sl_eval_kl(p, p, 3) == 0);
    /* A shift of all logits changes nothing; nothing overflows. */
    const float far[3] = {p[0] + 1000, p[1] + 1000, p[2] + 1000};
    /* f32 steps are 6e-5 wide there */
    assert_true(fabs(sl_eval_lse(far, 3) - 1000 - log(4)) < 1e-4);
    assert_true(fabs(sl_eval_kl(far, q, 3) - log(2) / 4) < 1e-4);

    struct sl_eval_sum e = {0};
    sl_eval_add(&e, p, 3, 0);  /* the best token: log 2 */
    sl_eval_add(&e, p, 3, 2);  /* log 4 */
    sl_eval_add(&e, p, 3, -1); /* last of a window: not scored */
    assert_int_equal(e.positions, 3);
    assert_int_equal(e.scored, 2);
    assert_int_equal(e.top1_text, 1);
    near(e.nll, 3 * log(2));

    double v[200];
    for (int i = 0; i < 200; i++) v[i] = (i * 77) % 200 + 1; /* 1..200, shuffled */
    assert_true(sl_eval_percentile(v, 200, 99) == 198);
    assert_true(sl_eval_percentile(v, 200, 50) == 100);
    assert_true(sl_eval_percentile(v, 200, 100) == 200);
    double one[1] = {5};
    assert_true(sl_eval_percentile(one, 1, 99) == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_id_lists),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
