/* Parallel regions on machines with several memory nodes: a task is taken by a thread of the node that
 * holds its data, or by any thread that has nothing left to do at home.
 *
 * Who runs a task never changes what it computes, so placement cannot change a bit; and nobody waits for
 * a slower node, so an uneven deal costs bandwidth, not idle threads. */
#ifndef SL_OFFLOAD_NUMA_DEAL_H
#define SL_OFFLOAD_NUMA_DEAL_H

#include "base/pool.h"

#define SL_NUMA_NODES 64 /* told apart; further ones count with the last */

/* Tasks [first, first + n) read memory of `node`; -1: of all nodes alike. */
struct sl_numa_span {
    int first, n, node;
    int start; /* set by sl_numa_deal: of its tasks among those of its node */
};

/* Runs fn for every task of the spans as sl_pool_run does. Worker w of the pool is of node
 * sl_numa_node_of(nodes, workers, w), as sl_numa_pin_workers puts it. Reorders spans. nodes >= 1. */
void sl_numa_deal(struct sl_pool *pool, int nodes, struct sl_numa_span *spans, int n_spans,
                  sl_task_fn fn, void *ctx);

#endif
