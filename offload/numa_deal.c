/* One counter a node, beside the pool's own (see numa_deal.h).
 *
 *   spans, sorted   [ node 0: a b | node 1: c | any: d e ]
 *   taken           [ 5           | 2         | 0        ]   next task of each
 *
 * The pool hands out as many tickets as there are tasks; a ticket's number means nothing. Whoever holds one
 * takes the next task of its own node, then of those without a node, then of the others in turn. */
#include "offload/numa_deal.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "offload/numa_place.h"

struct deal {
    const struct sl_numa_span *spans;
    int nodes, workers;
    int first_span[SL_NUMA_NODES + 2]; /* of each node; those without one are the last group */
    int n_tasks[SL_NUMA_NODES + 1];
    atomic_int taken[SL_NUMA_NODES + 1];
    sl_task_fn fn;
    void *ctx;
};

static int by_node(const void *a, const void *b)
{
    const struct sl_numa_span *x = a;
    const struct sl_numa_span *y = b;
    if (x->node != y->node) return x->node - y->node;
    return x->first - y->first;
}

/* The k-th task of a group. */
static int task_of(const struct deal *d, int group, int k)
{
    int lo = d->first_span[group];
    int hi = d->first_span[group + 1] - 1;
    while (lo < hi) { /* last span that starts at or before k */
        const int mid = (lo + hi + 1) / 2;
        if (d->spans[mid].start <= k)
            lo = mid;
        else
            hi = mid - 1;
    }
    return d->spans[lo].first + k - d->spans[lo].start;
}

static int take_from(struct deal *d, int group)
{
    if (atomic_load_explicit(&d->taken[group], memory_order_relaxed) >= d->n_tasks[group])
        return -1;
    const int k = atomic_fetch_add_explicit(&d->taken[group], 1, memory_order_relaxed);
    return k < d->n_tasks[group] ? task_of(d, group, k) : -1;
}

static void ticket(void *ctx, int number, int worker)
{
    (void)number;
    struct deal *d = ctx;
    const int home = sl_numa_node_of(d->nodes, (uint64_t)d->workers, (uint64_t)worker);
    int task = take_from(d, home);
    if (task < 0) task = take_from(d, d->nodes);
    for (int i = 1; task < 0 && i < d->nodes; i++) task = take_from(d, (home + i) % d->nodes);
    if (task >= 0) d->fn(d->ctx, task, worker); /* as many tickets as tasks: each is taken */
}

void sl_numa_deal(struct sl_pool *pool, int nodes, struct sl_numa_span *spans, int n_spans,
                  sl_task_fn fn, void *ctx)
{
    struct deal d = {.spans = spans, .workers = sl_pool_threads(pool), .fn = fn, .ctx = ctx};
    int total = 0;
    d.nodes = nodes < SL_NUMA_NODES ? nodes : SL_NUMA_NODES;
    for (int i = 0; i < n_spans; i++) {
        if (spans[i].node < 0)
            spans[i].node = d.nodes;
        else if (spans[i].node >= d.nodes)
            spans[i].node = d.nodes - 1;
    }
    qsort(spans, (size_t)n_spans, sizeof *spans, by_node);
    for (int g = 0, i = 0; g <= d.nodes; g++) {
        d.first_span[g] = i;
        for (; i < n_spans && spans[i].node == g; i++) {
            spans[i].start = d.n_tasks[g];
            d.n_tasks[g] += spans[i].n;
        }
        d.first_span[g + 1] = i;
        total += d.n_tasks[g];
    }
    sl_pool_run(pool, total, ticket, &d);
}
