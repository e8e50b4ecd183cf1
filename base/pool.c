/* Thread pool for regions of a few microseconds.
 *
 * One 64-bit ticket says everything about who may take what:
 *
 *   ticket  [ region number : 32 | tasks left : 32 ]
 *
 * A task is taken by lowering the ticket with a compare-and-swap, so a worker that wakes up late, with
 * an old region number in hand, cannot take a task of a newer region. Hence the caller waits for
 * *tasks*, never for workers: one that sleeps or was scheduled away costs nothing, which matters on
 * shared machines. A worker counts its tasks and reports them in one addition at the end.
 *
 * Reading fn, ctx and n_tasks before the swap is sound: if the swap succeeds the region was still
 * open, so nobody had begun to write the next one. They are atomics because a losing reader may race.
 * The ticket counts *down* for that reason: an index counting up to a separate n_tasks lets a late
 * worker pair the used-up ticket of one region with the task count of the next, and run a task too
 * many. Test: base/test_pool under the thread sanitizer.
 *
 * Idle workers spin, then sleep on a futex; the caller wakes them only if some sleep. With more
 * threads than cores nobody spins. 2 threads on 2 shared EPYC cores (tests/base/bench_base.c): an
 * empty region 20 to 600 ns, 2 to 4 us when the worker must be woken, 0.3 us above the ideal for two
 * tasks of 5 us. */
#define _GNU_SOURCE
#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 1024
#define SPINS       2000 /* pauses before sleep: about 30 to 100 us */

struct worker {
    struct sl_pool *pool;
    pthread_t thread;
    int index;
};

struct sl_pool {
    int n_threads;
    int n_started; /* threads to join */
    int spins;
    struct worker *workers;
    _Atomic(sl_task_fn) fn;
    void *_Atomic ctx;
    atomic_int n_tasks;
    atomic_bool stop;
    atomic_bool busy; /* inside sl_pool_run: catches nesting */

    alignas(64) _Atomic uint64_t ticket;
    alignas(64) _Atomic uint32_t region; /* futex: equals the ticket's upper half */
    _Atomic uint32_t sleepers;
    alignas(64) _Atomic uint32_t done; /* futex: tasks reported in this region */
    _Atomic uint32_t caller_sleeps;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* "yield" is a no-op on most cores */
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Takes and runs tasks of `region` until none is left or the region is over. */
static uint32_t run_tasks(struct sl_pool *p, uint32_t region, int worker)
{
    uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    sl_task_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
    void *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
    uint32_t n = (uint32_t)atomic_load_explicit(&p->n_tasks, memory_order_relaxed);
    uint32_t count = 0;
    while ((uint32_t)(ticket >> 32) == region && (uint32_t)ticket > 0) {
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket - 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        fn(ctx, (int)(n - (uint32_t)ticket), worker);
        count++;
        ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
    return count;
}

/* Returns the number of a region newer than `last`. */
static uint32_t await_region(struct sl_pool *p, uint32_t last)
{
    uint32_t now;
    for (int i = 0; i < p->spins; i++) {
        now = atomic_load_explicit(&p->region, memory_order_acquire);
        if (now != last) return now;
        pause_cpu();
    }
    /* Announce, then look again: the caller raises the number first and looks for sleepers second,
     * so one of the two sees the other (both sequentially consistent). */
    atomic_fetch_add(&p->sleepers, 1);
    while ((now = atomic_load(&p->region)) == last) futex_wait(&p->region, last);
    atomic_fetch_sub(&p->sleepers, 1);
    return now;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct sl_pool *p = w->pool;
    uint32_t region = 0;
    for (;;) {
        region = await_region(p, region);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        uint32_t count = run_tasks(p, region, w->index);
        if (!count) continue;
        atomic_fetch_add(&p->done, count);
        if (atomic_load(&p->caller_sleeps)) futex_wake(&p->done, 1);
    }
}

/* Opens the next region. Everything written before is visible to whoever sees its number. */
static uint32_t open_region(struct sl_pool *p, uint32_t n_tasks)
{
    uint32_t region = atomic_load_explicit(&p->region, memory_order_relaxed) + 1;
    atomic_store_explicit(&p->ticket, (uint64_t)region << 32 | n_tasks, memory_order_release);
    atomic_store(&p->region, region);
    return region;
}

static void await_done(struct sl_pool *p, uint32_t want)
{
    uint32_t seen;
    for (int i = 0; i < p->spins; i++) {
        if (atomic_load_explicit(&p->done, memory_order_acquire) == want) return;
        pause_cpu();
    }
    atomic_store(&p->caller_sleeps, 1);
    while ((seen = atomic_load(&p->done)) != want) futex_wait(&p->done, seen);
    atomic_store(&p->caller_sleeps, 0);
}

void sl_pool_run(struct sl_pool *p, int n_tasks, sl_task_fn fn, void *ctx)
{
    if (n_tasks <= 0) return;
    if (!p || p->n_threads == 1 || n_tasks == 1) {
        for (int t = 0; t < n_tasks; t++) fn(ctx, t, 0);
        return;
    }
    bool nested = atomic_exchange_explicit(&p->busy, true, memory_order_relaxed);
    assert(!nested);
    (void)nested;
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&p->n_tasks, n_tasks, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    uint32_t region = open_region(p, (uint32_t)n_tasks);
    if (atomic_load(&p->sleepers)) futex_wake(&p->region, n_tasks - 1);
    uint32_t mine = run_tasks(p, region, 0);
    uint32_t want = (uint32_t)n_tasks - mine;
    if (want) await_done(p, want);
    atomic_store_explicit(&p->busy, false, memory_order_relaxed);
}

static int start_workers(struct sl_pool *p, struct sl_err *err)
{
    /* Signals belong to the caller's threads: workers never run a handler. */
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = 0;
    for (int i = 1; i < p->n_threads && !e; i++) {
        p->workers[i] = (struct worker){.pool = p, .index = i};
        e = pthread_create(&p->workers[i].thread, NULL, work, &p->workers[i]);
        if (!e) p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!e) return 0;
    char what[64];
    snprintf(what, sizeof what, "start thread %d of %d", p->n_started + 2, p->n_threads);
    return sl_fail_errno(err, SL_E_NOMEM, e, NULL, what);
}

int sl_pool_open(struct sl_pool **out, int n_threads, struct sl_err *err)
{
    *out = NULL;
    int cores = sl_cpu_count();
    if (!n_threads) n_threads = cores;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return sl_fail(err, SL_E_ARG, NULL, "threads", "%d is not in 1..%d", n_threads,
                       MAX_THREADS);
    struct sl_pool *p = aligned_alloc(64, sizeof *p);
    if (!p) return sl_fail(err, SL_E_NOMEM, NULL, "threads", "out of memory");
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->spins = n_threads <= cores ? SPINS : 0;
    p->workers = calloc((size_t)n_threads, sizeof *p->workers);
    int rc = p->workers ? start_workers(p, err)
                        : sl_fail(err, SL_E_NOMEM, NULL, "threads", "out of memory");
    if (rc) {
        sl_pool_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void sl_pool_close(struct sl_pool *p)
{
    if (!p) return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    open_region(p, 0);
    futex_wake(&p->region, MAX_THREADS);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
}

int sl_pool_threads(const struct sl_pool *p)
{
    return p ? p->n_threads : 1;
}
