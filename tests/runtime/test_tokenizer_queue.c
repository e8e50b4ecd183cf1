/* The queue of merges: whatever goes in comes out smallest first, along lanes and heap alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/tokenizer_queue.h"
#include "tests/runtime/tokenizer_case.h"

enum { ROOM = 500 };

/* The plain way: an unordered array. */
struct bag {
    uint64_t v[ROOM];
    size_t n;
};

static uint64_t take_smallest(struct bag *b)
{
    size_t at = 0;
    if (!b->n) return SL_QUEUE_NONE;
    for (size_t i = 1; i < b->n; i++)
        if (b->v[i] < b->v[at]) at = i;
    uint64_t x = b->v[at];
    b->v[at] = b->v[--b->n];
    return x;
}

/* Ascending runs broken now and then, several interleaved, or no order at all. */
static void run_mix(struct sl_queue *q, struct tok_rng *r, int order, size_t room)
{
    static struct bag b;
    b.n = 0;
    assert_true(sl_queue_reset(q, room));
    uint64_t stream[5] = {0};
    for (int step = 0; step < 4000; step++) {
        bool push = b.n < room && (b.n == 0 || tok_below(r, 100) < (step % 1000 < 500 ? 60u : 40u));
        if (push) {
            uint64_t x = (uint64_t)tok_below(r, 1u << 31) << 20;
            if (order > 0) { /* that many ascending streams */
                uint64_t *s = &stream[tok_below(r, (uint32_t)order)];
                if (tok_below(r, 200) == 0) *s = tok_below(r, 1000);
                x = *s += tok_below(r, 3);
            }
            b.v[b.n++] = x;
            sl_queue_push(q, x);
        } else {
            assert_true(sl_queue_pop(q) == take_smallest(&b));
        }
    }
    while (b.n) assert_true(sl_queue_pop(q) == take_smallest(&b));
    assert_true(sl_queue_pop(q) == SL_QUEUE_NONE);
}

static void test_any_order(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    struct sl_queue q = {0};
    for (int round = 0; round < 60; round++)
        run_mix(&q, &r, round % 6, round % 3 ? ROOM : 1 + tok_below(&r, ROOM));
    sl_queue_free(&q);
}

/* Filled to the brim in ascending and descending order: lanes overflow into the heap. */
static void test_full(void **state)
{
    (void)state;
    struct sl_queue q = {0};
    for (int up = 0; up < 2; up++) {
        for (size_t n = 1; n <= ROOM; n += n < 20 ? 1 : 37) {
            assert_true(sl_queue_reset(&q, n));
            for (size_t i = 0; i < n; i++) sl_queue_push(&q, up ? i : n - 1 - i);
            for (size_t i = 0; i < n; i++) assert_int_equal(sl_queue_pop(&q), i);
            assert_true(sl_queue_pop(&q) == SL_QUEUE_NONE);
        }
    }
    sl_queue_free(&q);
    assert_false(sl_queue_reset(&q, SIZE_MAX / 2));
    sl_queue_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
