/* Guesses come from the last repetition; the balance guesses where it pays and stops where it does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "runtime/draft.h"

static void lookups(void **state)
{
    (void)state;
    int32_t out[8];
    const int32_t text[] = {1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2};
    /* ... 1 2 | 3: three ids stand at the start; the last "2 3" alone would have said 7 8 */
    assert_int_equal(sl_draft_guess(text, 12, 3, 4, out), 4);
    assert_memory_equal(out, ((int32_t[]){4, 5, 9, 2}), 16);
    assert_int_equal(sl_draft_guess(text, 12, 3, 2, out), 2);
    /* ... 9 2 | 3 has no third, but the pair "2 3" before it */
    assert_int_equal(sl_draft_guess(text, 7, 3, 4, out), 4);
    assert_memory_equal(out, ((int32_t[]){4, 5, 9, 2}), 16);
    assert_int_equal(sl_draft_guess(text, 12, 6, 4, out), 0); /* never seen */
    assert_int_equal(sl_draft_guess(text, 12, 8, 4, out), 0); /* seen, not after a 2 */
    /* A loop: the guess may go on to the token that is not in the text yet. */
    const int32_t loop[] = {5, 6, 5, 6, 5};
    assert_int_equal(sl_draft_guess(loop, 5, 6, 8, out), 2);
    assert_memory_equal(out, ((int32_t[]){5, 6}), 8);
    assert_int_equal(sl_draft_guess(loop, 0, 6, 8, out), 0);
    assert_int_equal(sl_draft_guess(loop, 1, 6, 8, out), 0);
    assert_int_equal(sl_draft_guess(loop, 5, 6, 0, out), 0);
}

/* Chances out of 200 that are taken when a guess adds `extra` of a token's time and holds so often. */
static int taken(double extra, double holds)
{
    struct sl_draft d = {.automatic = true};
    int n = 0;
    double due = 0;
    for (int i = 0; i < 200; i++) {
        const bool guess = sl_draft_wants(&d);
        size_t held = 0;
        if (guess) {
            due += 4 * holds;
            held = (size_t)due;
            due -= (double)held;
            n++;
        }
        sl_draft_learn(&d, guess ? 1 + 4 * extra : 1, 1, guess ? 4 : 0, held);
    }
    return n;
}

static void balance(void **state)
{
    (void)state;
    assert_true(taken(0.1, 0.5) > 190);
    assert_true(taken(0.6, 0.9) > 190);
    assert_in_range(taken(0.5, 0.25), 3, 12);
    assert_in_range(taken(0.1, 0), 3, 12);
    struct sl_draft always = {0};
    assert_true(sl_draft_wants(&always));
    struct sl_draft fresh = {.automatic = true}; /* nothing to compare with yet */
    assert_false(sl_draft_wants(&fresh));
}

/* Text that starts to repeat itself is noticed. */
static void comes_back(void **state)
{
    (void)state;
    struct sl_draft d = {.automatic = true};
    int early = 0, late = 0;
    for (int i = 0; i < 600; i++) {
        const bool guess = sl_draft_wants(&d);
        const size_t held = guess && i >= 200 ? 4 : 0;
        sl_draft_learn(&d, guess ? 1.8 : 1, 1, guess ? 4 : 0, held);
        early += guess && i < 200;
        late += guess && i >= 400;
    }
    assert_in_range(early, 3, 12);
    assert_true(late > 190);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lookups), cmocka_unit_test(balance),
                                       cmocka_unit_test(comes_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
