/* Placement over sl_numa_ops, and libnuma behind it (see numa_place.h). */
#define _GNU_SOURCE
#include "offload/numa_place.h"

#include <pthread.h>

#ifdef SL_HAVE_NUMA
#include <numa.h>
#endif

static int one_node(void *ctx)
{
    (void)ctx;
    return 1;
}

static const struct sl_numa_ops no_nodes = {.nodes = one_node};

#ifdef SL_HAVE_NUMA
static int system_nodes(void *ctx)
{
    (void)ctx;
    return numa_num_configured_nodes();
}
static void system_bind(void *ctx, void *base, size_t bytes, int node)
{
    (void)ctx;
    numa_tonode_memory(base, bytes, node);
}
static void system_interleave(void *ctx, void *base, size_t bytes)
{
    (void)ctx;
    numa_interleave_memory(base, bytes, numa_all_nodes_ptr);
}
static void system_pin(void *ctx, int node)
{
    (void)ctx;
    if (sl_cpu_count() < numa_num_configured_cpus()) return;
    (void)numa_run_on_node(node);
}

const struct sl_numa_ops *sl_numa_system(void)
{
    static const struct sl_numa_ops ops = {system_nodes, system_bind, system_interleave, system_pin,
                                           NULL};
    return numa_available() < 0 ? &no_nodes : &ops;
}
#else
const struct sl_numa_ops *sl_numa_system(void)
{
    return &no_nodes;
}
#endif

void sl_numa_interleave(const struct sl_numa_ops *ops, void *base, size_t bytes)
{
    if (bytes && ops->nodes(ops->ctx) > 1) ops->interleave(ops->ctx, base, bytes);
}

void sl_numa_spread(const struct sl_numa_ops *ops, void *base, uint64_t unit_bytes, uint64_t n)
{
    const int nodes = ops->nodes(ops->ctx);
    if (nodes < 2) return;
    for (uint64_t i = 0; i < n;) {
        const int node = sl_numa_node_of(nodes, n, i);
        uint64_t end = i;
        while (end < n && sl_numa_node_of(nodes, n, end) == node) end++;
        ops->bind(ops->ctx, (unsigned char *)base + i * unit_bytes,
                  (size_t)((end - i) * unit_bytes), node);
        i = end;
    }
}

struct pin_job {
    const struct sl_numa_ops *ops;
    int nodes, workers;
    pthread_barrier_t all; /* a worker that waits takes no second task: each gets one */
};

static void pin_task(void *ctx, int task, int worker)
{
    (void)task;
    struct pin_job *j = ctx;
    if (worker > 0)
        j->ops->pin(j->ops->ctx, sl_numa_node_of(j->nodes, (uint64_t)j->workers, (uint64_t)worker));
    pthread_barrier_wait(&j->all);
}

void sl_numa_pin_workers(const struct sl_numa_ops *ops, struct sl_pool *pool)
{
    struct pin_job j = {
        .ops = ops, .nodes = ops->nodes(ops->ctx), .workers = sl_pool_threads(pool)};
    if (j.nodes < 2 || j.workers < 2) return;
    if (pthread_barrier_init(&j.all, NULL, (unsigned)j.workers)) return;
    sl_pool_run(pool, j.workers, pin_task, &j);
    pthread_barrier_destroy(&j.all);
}
