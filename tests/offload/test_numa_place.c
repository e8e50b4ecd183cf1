/* Placement on made-up topologies: every byte gets one node, nodes get equal shares, each worker of a
 * pool is pinned once and the caller never; on one node nothing is called at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "offload/numa_place.h"

enum { MAX_NODES = 8, PAGE = 4096 };

struct machine {
    int n_nodes;
    size_t interleaved;
    unsigned char *base;
    size_t bytes;
    uint8_t *node_of; /* [pages] 1 + node */
    _Atomic int pins[MAX_NODES];
    _Atomic int calls;
};

static int nodes(void *ctx)
{
    return ((struct machine *)ctx)->n_nodes;
}
static void bind(void *ctx, void *base, size_t bytes, int node)
{
    struct machine *m = ctx;
    size_t at = (size_t)((unsigned char *)base - m->base);
    assert_true(at % PAGE == 0 && bytes % PAGE == 0 && at + bytes <= m->bytes);
    for (size_t i = at / PAGE; i < (at + bytes) / PAGE; i++) {
        assert_int_equal(m->node_of[i], 0); /* one node only */
        m->node_of[i] = (uint8_t)(1 + node);
    }
    m->calls++;
}
static void interleave(void *ctx, void *base, size_t bytes)
{
    (void)base;
    ((struct machine *)ctx)->interleaved += bytes;
    ((struct machine *)ctx)->calls++;
}
static void pin(void *ctx, int node)
{
    struct machine *m = ctx;
    m->pins[node]++;
    m->calls++;
}

static void slots_are_spread(void **state)
{
    (void)state;
    for (int n_nodes = 1; n_nodes <= 5; n_nodes++) {
        for (uint64_t n = 0; n <= 23; n++) {
            const uint64_t unit = 3 * PAGE;
            struct machine m = {.n_nodes = n_nodes, .bytes = (size_t)(n * unit)};
            m.base = aligned_alloc(PAGE, m.bytes + PAGE);
            m.node_of = calloc(1, m.bytes / PAGE + 1);
            assert_true(m.base && m.node_of);
            const struct sl_numa_ops ops = {nodes, bind, interleave, pin, &m};
            sl_numa_spread(&ops, m.base, unit, n);
            if (n_nodes == 1) assert_int_equal(m.calls, 0);
            int count[MAX_NODES] = {0};
            for (uint64_t i = 0; i < n && n_nodes > 1; i++) {
                int node = sl_numa_node_of(n_nodes, n, i);
                assert_true(node >= 0 && node < n_nodes);
                for (int k = 0; k < 3; k++)
                    assert_int_equal(m.node_of[i * 3 + (uint64_t)k], 1 + node);
                count[node]++;
            }
            for (int k = 0; k < n_nodes && n_nodes > 1; k++) /* shares differ by one at most */
                assert_true(count[k] * n_nodes > (int)n - n_nodes &&
                            count[k] * n_nodes < (int)n + n_nodes);
            free(m.base);
            free(m.node_of);
        }
    }
}

static void weights_are_interleaved(void **state)
{
    (void)state;
    struct machine m = {.n_nodes = 2};
    const struct sl_numa_ops ops = {nodes, bind, interleave, pin, &m};
    sl_numa_interleave(&ops, NULL, 12345);
    assert_int_equal(m.interleaved, 12345);
    sl_numa_interleave(&ops, NULL, 0);
    m.n_nodes = 1;
    sl_numa_interleave(&ops, NULL, 777);
    assert_int_equal(m.interleaved, 12345);
    assert_int_equal(m.calls, 1);
}

static void workers_are_pinned_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 6; threads++) {
        struct machine m = {.n_nodes = 2};
        const struct sl_numa_ops ops = {nodes, bind, interleave, pin, &m};
        struct sl_pool *pool;
        struct sl_err err = {0};
        assert_int_equal(sl_pool_open(&pool, threads, &err), 0);
        sl_numa_pin_workers(&ops, pool);
        assert_int_equal(m.calls, threads - 1);
        int want[2] = {0, 0};
        for (int w = 1; w < threads; w++)
            want[sl_numa_node_of(2, (uint64_t)threads, (uint64_t)w)]++;
        assert_true(m.pins[0] == want[0] && m.pins[1] == want[1]);
        m.n_nodes = 1;
        sl_numa_pin_workers(&ops, pool);
        assert_int_equal(m.calls, threads - 1);
        sl_pool_close(pool);
    }
}

/* Whatever this machine is, its own calls do no harm. */
static void this_machine(void **state)
{
    (void)state;
    const struct sl_numa_ops *ops = sl_numa_system();
    struct sl_pool *pool;
    struct sl_err err = {0};
    const size_t bytes = 64 * PAGE;
    unsigned char *base = aligned_alloc(PAGE, bytes);
    assert_non_null(base);
    assert_true(ops->nodes(ops->ctx) >= 1);
    sl_numa_interleave(ops, base, bytes);
    sl_numa_spread(ops, base, PAGE, 64);
    memset(base, 7, bytes);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(base[i], 7);
    assert_int_equal(sl_pool_open(&pool, 2, &err), 0);
    sl_numa_pin_workers(ops, pool);
    sl_pool_close(pool);
    free(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_spread),
        cmocka_unit_test(weights_are_interleaved),
        cmocka_unit_test(workers_are_pinned_once),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
