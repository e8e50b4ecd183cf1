/* Thread pool: one parallel region at a time, tasks taken from a shared counter.
 *
 * The caller takes part, so a pool of n has n-1 threads. Tasks are numbered; a result may depend on
 * the task number, never on the worker or the order: that is what makes results independent of
 * --threads. Workers spin briefly between regions (a decode step has hundreds), then sleep. */
#ifndef SL_BASE_POOL_H
#define SL_BASE_POOL_H

#include "base/err.h"

struct sl_pool;
typedef void (*sl_task_fn)(void *ctx, int task, int worker);

/* n_threads >= 1, 0 = one per core this process may use (cgroup quota and affinity respected). */
int sl_pool_open(struct sl_pool **out, int n_threads, struct sl_err *err);
void sl_pool_close(struct sl_pool *p); /* NULL is fine */
int sl_pool_threads(const struct sl_pool *p);

/* Runs fn(ctx, 0..n_tasks-1, worker), worker in [0, threads); returns when all have finished. Memory
 * written by tasks is visible to the caller. p may be NULL: then it runs inline. Not reentrant. */
void sl_pool_run(struct sl_pool *p, int n_tasks, sl_task_fn fn, void *ctx);

/* Cores this process may use: affinity and cgroup quota (v1 and v2, up the tree), at least 1. */
int sl_cpu_count(void);
/* The quota part, in cores, 0 for no limit. root is "" for this machine, or a folder that holds
 * proc/ and sys/ (tests). */
int sl_cpu_quota(const char *root);

#endif
