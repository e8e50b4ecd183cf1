/* Where memory lies on machines with several memory nodes: weights interleaved, slots spread, threads
 * kept on their node. On one node, or without libnuma, nothing happens.
 *
 * A token reads every trunk weight with all threads, so trunk and session are interleaved page by page:
 * each node serves its share. Expert slots are dealt out in one run a node, so that the drive's writes
 * and the reads of a layer's experts use the memory of all nodes; an expert is then computed by threads
 * of its node as far as they have time (numa_deal.h). Placement never changes a result. */
#ifndef SL_OFFLOAD_NUMA_PLACE_H
#define SL_OFFLOAD_NUMA_PLACE_H

#include <stddef.h>
#include <stdint.h>
#include "base/pool.h"

/* What the machine can do; tests put a made-up topology here. */
struct sl_numa_ops {
    int (*nodes)(void *ctx); /* 1: nothing to place */
    void (*bind)(void *ctx, void *base, size_t bytes, int node);
    void (*interleave)(void *ctx, void *base, size_t bytes);
    void (*pin)(void *ctx, int node); /* the calling thread */
    void *ctx;
};

/* libnuma where it is built in and the kernel has it; else a machine of one node. Pinning is left out
 * when the process was given less than the whole machine: whoever chose its cores knew better. */
const struct sl_numa_ops *sl_numa_system(void);

/* Memory that no page has been touched of yet. */
void sl_numa_interleave(const struct sl_numa_ops *ops, void *base, size_t bytes);
/* n units of unit_bytes, a multiple of 4096: unit i lies on node sl_numa_node_of(nodes, n, i). */
void sl_numa_spread(const struct sl_numa_ops *ops, void *base, uint64_t unit_bytes, uint64_t n);
static inline int sl_numa_node_of(int nodes, uint64_t n, uint64_t i)
{
    return n ? (int)(i * (uint64_t)nodes / n) : 0;
}
/* Worker w of the pool goes to node w * nodes / workers. The calling thread is the host's and stays
 * where it is. */
void sl_numa_pin_workers(const struct sl_numa_ops *ops, struct sl_pool *pool);

#endif
