/* Jobs: see the header. The pool's tasks cannot fail, so failure is kept here, beside it. */
#define _GNU_SOURCE
#include "convert/jobs.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/size.h"

int sl_jobs_open(struct sl_jobs **out, int n, uint64_t buf_bytes, uint64_t budget, const char *what,
                 struct sl_err *err)
{
    *out = NULL;
    buf_bytes = sl_align_up(buf_bytes ? buf_bytes : 1, 4096);
    if (buf_bytes > budget)
        return sl_fail(err, SL_E_BUDGET, NULL, what,
                       "one job needs %llu bytes of memory, more than the %llu allowed",
                       (unsigned long long)buf_bytes, (unsigned long long)budget);
    if (n <= 0) n = sl_cpu_count();
    if ((uint64_t)n > budget / buf_bytes) n = (int)(budget / buf_bytes);
    struct sl_jobs *j = calloc(1, sizeof *j);
    if (!j) return sl_fail(err, SL_E_NOMEM, NULL, what, "out of memory");
    if (pthread_mutex_init(&j->lock, NULL)) {
        free(j);
        return sl_fail(err, SL_E_NOMEM, NULL, what, "no lock");
    }
    j->n = n;
    j->buf_bytes = buf_bytes;
    j->memory = mmap(NULL, (size_t)n * buf_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int rc;
    if (j->memory == MAP_FAILED) {
        j->memory = NULL;
        rc = sl_fail(err, SL_E_NOMEM, NULL, what, "no memory for %d buffers of %llu bytes", n,
                     (unsigned long long)buf_bytes);
        goto fail;
    }
    rc = sl_pool_open(&j->pool, n, err);
    if (rc) goto fail;
    *out = j;
    return 0;
fail:
    sl_jobs_close(j);
    return rc;
}

void sl_jobs_close(struct sl_jobs *j)
{
    if (!j) return;
    sl_pool_close(j->pool);
    if (j->memory) munmap(j->memory, (size_t)j->n * j->buf_bytes);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

struct region {
    struct sl_jobs *j;
    sl_job_fn fn;
    void *ctx;
};

static void run_task(void *ctx, int task, int worker)
{
    struct region *r = ctx;
    struct sl_jobs *j = r->j;
    struct sl_err err = {0};

    if (atomic_load_explicit(&j->failed, memory_order_relaxed) < task) return;
    int rc = sl_interrupted()
                 ? sl_fail(&err, SL_E_INTR, NULL, NULL, "interrupted")
                 : r->fn(r->ctx, task, j->memory + (size_t)worker * j->buf_bytes, &err);
    if (!rc) return;
    pthread_mutex_lock(&j->lock);
    if (task < atomic_load(&j->failed)) {
        j->rc = rc;
        j->err = err;
        atomic_store(&j->failed, task);
    }
    pthread_mutex_unlock(&j->lock);
}

int sl_jobs_run(struct sl_jobs *j, int n_tasks, sl_job_fn fn, void *ctx, struct sl_err *err)
{
    struct region r = {j, fn, ctx};
    j->rc = 0;
    atomic_store(&j->failed, INT_MAX);
    sl_pool_run(j->pool, n_tasks, run_task, &r);
    if (j->rc && err) *err = j->err;
    return j->rc;
}
