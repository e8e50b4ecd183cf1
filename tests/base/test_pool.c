/* Thread pool: every task once, by one worker at a time, in the region it belongs to.
 *
 * Thread-sanitizer runs this file too: the counters below are plain on purpose where the pool
 * promises order. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pool.h"

#define MAX_TASKS   1000
#define MAX_WORKERS 8

struct region {
    int id, n_tasks, n_workers;
    int runs[MAX_TASKS];            /* plain: each task is run once, by one thread */
    int of_worker[MAX_WORKERS][16]; /* plain: a worker number is used by one thread at a time */
    atomic_int wrong;
};

static void count_task(void *ctx, int task, int worker)
{
    struct region *r = ctx;
    if (task < 0 || task >= r->n_tasks || worker < 0 || worker >= r->n_workers) {
        atomic_fetch_add(&r->wrong, 1);
        return;
    }
    r->runs[task] += 1 + r->id;
    r->of_worker[worker][0]++;
}

/* Another function over the same memory: a worker that mixed two regions would show. */
static void count_task_twice(void *ctx, int task, int worker)
{
    count_task(ctx, task, worker);
    count_task(ctx, task, worker);
}

static void check_region(struct sl_pool *p, struct region *r, int id, int n_tasks)
{
    memset(r, 0, sizeof *r);
    r->id = id;
    r->n_tasks = n_tasks;
    r->n_workers = sl_pool_threads(p);
    int times = 1 + id % 2;
    sl_pool_run(p, n_tasks, times == 2 ? count_task_twice : count_task, r);
    assert_int_equal(atomic_load(&r->wrong), 0);
    int sum = 0;
    for (int w = 0; w < MAX_WORKERS; w++) sum += r->of_worker[w][0];
    assert_int_equal(sum, n_tasks * times);
    for (int t = 0; t < n_tasks; t++) {
        if (r->runs[t] != times * (1 + id)) fail_msg("region %d task %d: %d", id, t, r->runs[t]);
    }
}

static void every_task_runs_once(void **state)
{
    (void)state;
    struct region *r = malloc(2 * sizeof *r);
    assert_non_null(r);
    for (int threads = 1; threads <= MAX_WORKERS; threads++) {
        struct sl_pool *p;
        struct sl_err e = {0};
        assert_int_equal(sl_pool_open(&p, threads, &e), 0);
        assert_int_equal(sl_pool_threads(p), threads);
        for (int i = 0; i < 300; i++) check_region(p, &r[i & 1], i, i * 37 % (MAX_TASKS + 1));
        sl_pool_close(p);
    }
    free(r);
}

/* Tiny regions, back to back: late workers meet newer regions all the time. */
static void many_tiny_regions(void **state)
{
    (void)state;
    struct region *r = malloc(2 * sizeof *r);
    assert_non_null(r);
    for (int threads = 2; threads <= MAX_WORKERS; threads += 2) {
        struct sl_pool *p;
        assert_int_equal(sl_pool_open(&p, threads, NULL), 0);
        for (int i = 0; i < 5000; i++) check_region(p, &r[i & 1], i, 1 + i % 9);
        sl_pool_close(p);
    }
    free(r);
}

static void sleepers_wake_up(void **state)
{
    (void)state;
    struct region r;
    struct sl_pool *p;
    assert_int_equal(sl_pool_open(&p, 4, NULL), 0);
    for (int i = 0; i < 20; i++) {
        usleep(2000); /* longer than any spin */
        check_region(p, &r, i, 4);
    }
    sl_pool_close(p);
}

/* With as many tasks as threads, each waiting for all others, only real parallelism ends. */
struct meeting {
    atomic_int here;
    int want;
};

static void meet(void *ctx, int task, int worker)
{
    (void)task;
    (void)worker;
    struct meeting *m = ctx;
    atomic_fetch_add(&m->here, 1);
    while (atomic_load(&m->here) < m->want) sched_yield();
}

static void all_workers_take_part(void **state)
{
    (void)state;
    for (int threads = 1; threads <= MAX_WORKERS; threads++) {
        struct sl_pool *p;
        assert_int_equal(sl_pool_open(&p, threads, NULL), 0);
        for (int i = 0; i < 20; i++) {
            struct meeting m = {.want = threads};
            sl_pool_run(p, threads, meet, &m);
            assert_int_equal(atomic_load(&m.here), threads);
        }
        sl_pool_close(p);
    }
}

/* Region i reads what any task of region i-1 wrote: plain memory, ordered by the pool. */
struct chain {
    int from[64], to[64];
};

static void rotate(void *ctx, int task, int worker)
{
    (void)worker;
    struct chain *c = ctx;
    c->to[task] = c->from[(task + 1) % 64] + 1;
}

static void regions_see_each_other(void **state)
{
    (void)state;
    struct sl_pool *p;
    assert_int_equal(sl_pool_open(&p, 4, NULL), 0);
    struct chain c = {{0}, {0}};
    for (int i = 0; i < 64; i++) c.from[i] = i;
    for (int step = 0; step < 640; step++) {
        sl_pool_run(p, 64, rotate, &c);
        memcpy(c.from, c.to, sizeof c.from);
    }
    for (int i = 0; i < 64; i++) assert_int_equal(c.from[i], i + 640);
    sl_pool_close(p);
}

static void no_pool_and_no_tasks(void **state)
{
    (void)state;
    struct region r;
    check_region(NULL, &r, 3, 100);
    struct sl_pool *p;
    assert_int_equal(sl_pool_open(&p, 3, NULL), 0);
    check_region(p, &r, 4, 0);
    sl_pool_run(p, -1, count_task, &r);
    sl_pool_close(p); /* after no region at all: the next one */
    assert_int_equal(sl_pool_open(&p, 3, NULL), 0);
    sl_pool_close(p);
    sl_pool_close(NULL);
    assert_int_equal(sl_pool_threads(NULL), 1);
}

static void thread_counts(void **state)
{
    (void)state;
    struct sl_err e = {0};
    struct sl_pool *p;
    assert_int_equal(sl_pool_open(&p, -1, &e), SL_E_ARG);
    assert_null(p);
    assert_string_equal(e.text, "threads: -1 is not in 1..1024");
    assert_int_equal(sl_pool_open(&p, 1025, &e), SL_E_ARG);
    assert_int_equal(sl_pool_open(&p, 0, &e), 0);
    assert_int_equal(sl_pool_threads(p), sl_cpu_count());
    sl_pool_close(p);
}

static void affinity_is_respected(void **state)
{
    (void)state;
    cpu_set_t old;
    cpu_set_t one;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    int first = 0;
    while (!CPU_ISSET(first, &old)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    int n = sl_cpu_count();
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
    assert_int_equal(n, 1);
    assert_in_range(sl_cpu_count(), 1, CPU_COUNT(&old));
}

static char tree[64];

static void put(const char *path, const char *text)
{
    char full[SL_PATH_MAX];
    char dir[SL_PATH_MAX];
    assert_true(sl_path_join(full, tree, path));
    strcpy(dir, full);
    *strrchr(dir, '/') = '\0';
    assert_int_equal(sl_make_dirs(dir, NULL), 0);
    assert_int_equal(sl_write_file(full, text, strlen(text), NULL), 0);
}

static void quota_of_both_cgroup_versions(void **state)
{
    (void)state;
    strcpy(tree, "/tmp/sluice_test_XXXXXX");
    assert_non_null(mkdtemp(tree));
    assert_int_equal(sl_cpu_quota(tree), 0); /* no /proc at all */
    put("proc/self/cgroup", "0::/a/b\n");
    assert_int_equal(sl_cpu_quota(tree), 0);
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(sl_cpu_quota(tree), 0);
    put("sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
    assert_int_equal(sl_cpu_quota(tree), 8);
    put("sys/fs/cgroup/a/cpu.max", "350000 100000\n"); /* a parent is tighter: 3.5 */
    assert_int_equal(sl_cpu_quota(tree), 4);
    put("sys/fs/cgroup/a/cpu.max", "20000 100000\n"); /* a fifth of a core is still one thread */
    assert_int_equal(sl_cpu_quota(tree), 1);
    put("sys/fs/cgroup/a/cpu.max", "garbage\n");
    assert_int_equal(sl_cpu_quota(tree), 8);

    put("proc/self/cgroup", "9:cpuset:/z\n4:cpu,cpuacct:/c\n3:memory:/m\n0::/\n");
    assert_int_equal(sl_cpu_quota(tree), 0);
    put("sys/fs/cgroup/cpuset/z/cpu.cfs_quota_us", "100000\n"); /* not the cpu controller */
    put("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
    assert_int_equal(sl_cpu_quota(tree), 0);
    put("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "600000\n");
    assert_int_equal(sl_cpu_quota(tree), 6);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(sl_cpu_quota(tree), 2);
    put("proc/self/cgroup", "no colons here\n4:cpu\n");
    assert_int_equal(sl_cpu_quota(tree), 0);
    sl_remove_tree(tree);
}

/* A signal lands in the caller's thread even when the workers are the ones awake. */
static _Thread_local int is_caller;
static volatile sig_atomic_t handled, handled_elsewhere;

static void on_signal(int sig)
{
    (void)sig;
    handled = 1;
    if (!is_caller) handled_elsewhere = 1;
}

static void workers_take_no_signals(void **state)
{
    (void)state;
    is_caller = 1;
    struct sl_pool *p;
    assert_int_equal(sl_pool_open(&p, 4, NULL), 0);
    signal(SIGUSR1, on_signal);
    for (int i = 0; i < 50; i++) {
        handled = 0;
        kill(getpid(), SIGUSR1);
        struct region r;
        check_region(p, &r, i, 8);
        while (!handled) sched_yield();
    }
    assert_int_equal(handled_elsewhere, 0);
    signal(SIGUSR1, SIG_DFL);
    sl_pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(many_tiny_regions),
        cmocka_unit_test(sleepers_wake_up),
        cmocka_unit_test(all_workers_take_part),
        cmocka_unit_test(regions_see_each_other),
        cmocka_unit_test(no_pool_and_no_tasks),
        cmocka_unit_test(thread_counts),
        cmocka_unit_test(affinity_is_respected),
        cmocka_unit_test(quota_of_both_cgroup_versions),
        cmocka_unit_test(workers_take_no_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
