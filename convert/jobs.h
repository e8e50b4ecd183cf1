/* Jobs: a thread pool whose workers own one buffer each and whose tasks may fail.
 *
 * Buffers are allocated once, before anything is written, so memory is n * buf_bytes however long the
 * work is. The first failure, or Ctrl-C, stops the tasks that have not begun. */
#ifndef SL_CONVERT_JOBS_H
#define SL_CONVERT_JOBS_H

#include <stdatomic.h>
#include <stdint.h>
#include <pthread.h>
#include "base/err.h"
#include "base/pool.h"

struct sl_jobs {
    struct sl_pool *pool;
    int n;
    uint64_t buf_bytes;
    uint8_t *memory;   /* [n][buf_bytes], page-aligned */
    atomic_int failed; /* lowest task that failed in this region, INT_MAX for none */
    pthread_mutex_t lock;
    int rc;
    struct sl_err err;
};

/* 0 or a negative SL_E_*; buf[buf_bytes] is the worker's own. */
typedef int (*sl_job_fn)(void *ctx, int task, uint8_t *buf, struct sl_err *err);

/* n: wanted number, 0 for one per core; lowered so that n * buf_bytes <= budget. SL_E_BUDGET when not
 * even one fits, naming `what`. */
int sl_jobs_open(struct sl_jobs **out, int n, uint64_t buf_bytes, uint64_t budget, const char *what,
                 struct sl_err *err);
void sl_jobs_close(struct sl_jobs *j); /* NULL is fine */

/* Runs tasks 0..n_tasks-1. Of several failures the one of the lowest task is reported,
 * whatever the number of jobs. */
int sl_jobs_run(struct sl_jobs *j, int n_tasks, sl_job_fn fn, void *ctx, struct sl_err *err);

#endif
