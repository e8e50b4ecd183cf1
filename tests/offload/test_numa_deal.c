/* Dealt tasks: each runs once, whoever is free; nobody leaves home while there is work; on made-up nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "offload/numa_deal.h"
#include "offload/numa_place.h"

enum { TASKS = 400, THREADS = 7 };

struct log {
    int node_of[TASKS];
    atomic_int runs[TASKS];
    int nodes;
    bool away[THREADS]; /* the worker's own node had nothing left */
    atomic_int wrong, at_home;
};

static void task(void *ctx, int t, int worker)
{
    struct log *l = ctx;
    const int home = sl_numa_node_of(l->nodes, THREADS, (uint64_t)worker);
    atomic_fetch_add(&l->runs[t], 1);
    if (l->node_of[t] == home) {
        if (l->away[worker]) atomic_fetch_add(&l->wrong, 1);
        atomic_fetch_add(&l->at_home, 1);
    } else {
        l->away[worker] = true; /* also for tasks of no node: they come second */
    }
    for (volatile int i = 0; i < 2000 + 500 * (t % 7); i++) {
    }
}

/* Spans of odd sizes, dealt to nodes by `skew`; some of no node, some empty. */
static int make(struct log *l, struct sl_numa_span *spans, int nodes, int skew)
{
    int n = 0;
    memset(l, 0, sizeof *l);
    l->nodes = nodes;
    for (int at = 0; at < TASKS; n++) {
        int size = n * 5 % 13;
        if (size > TASKS - at) size = TASKS - at;
        const int node = n % 9 == 8 ? -1 : skew ? n * n % (nodes + 1) % nodes : n % nodes;
        spans[n] = (struct sl_numa_span){.first = at, .n = size, .node = node};
        for (int i = 0; i < size; i++) l->node_of[at + i] = node;
        at += size;
    }
    return n;
}

static void each_once_and_home_first(void **state)
{
    (void)state;
    struct sl_pool *pool;
    struct sl_err err = {0};
    struct log l;
    struct sl_numa_span spans[TASKS];
    assert_int_equal(sl_pool_open(&pool, THREADS, &err), 0);
    for (int nodes = 1; nodes <= 5; nodes++)
        for (int skew = 0; skew < 2; skew++)
            for (int round = 0; round < 20; round++) {
                const int n = make(&l, spans, nodes, skew);
                sl_numa_deal(pool, nodes, spans, n, task, &l);
                for (int t = 0; t < TASKS; t++) assert_int_equal(l.runs[t], 1);
                assert_int_equal(l.wrong, 0);
            }
    sl_pool_close(pool);
}

/* One thread does everything, and nodes beyond the machine's count with the last. */
static void corners(void **state)
{
    (void)state;
    struct log l;
    struct sl_numa_span spans[TASKS];
    const int n = make(&l, spans, 3, 0);
    for (int i = 0; i < n; i++)
        if (spans[i].node == 2) spans[i].node = 1000;
    sl_numa_deal(NULL, 3, spans, n, task, &l);
    for (int t = 0; t < TASKS; t++) assert_int_equal(l.runs[t], 1);
    sl_numa_deal(NULL, 2, spans, 0, task, &l);
    for (int t = 0; t < TASKS; t++) assert_int_equal(l.runs[t], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_once_and_home_first),
        cmocka_unit_test(corners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
