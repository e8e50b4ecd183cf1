/* Times what the engine leans on: parallel regions, checksums, the name table. Prints, judges nothing. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pool.h"
#include "base/strmap.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nothing(void *ctx, int task, int worker)
{
    (void)ctx;
    (void)task;
    (void)worker;
}

/* Best of several rounds: the machine may be shared. */
static void time_regions(int threads, int n_tasks, unsigned pause_us)
{
    struct sl_pool *p;
    if (sl_pool_open(&p, threads, NULL)) exit(1);
    double best = 1e9;
    const int n = pause_us ? 50 : 20000;
    for (int round = 0; round < 5; round++) {
        double spent = 0;
        for (int i = 0; i < n; i++) {
            if (pause_us) usleep(pause_us);
            double t = now();
            if (!pause_us) {
                for (int j = 0; j < n; j++) sl_pool_run(p, n_tasks, nothing, NULL);
                spent = now() - t;
                break;
            }
            sl_pool_run(p, n_tasks, nothing, NULL);
            spent += now() - t;
        }
        if (spent / n < best) best = spent / n;
    }
    printf("empty region, %d threads, %d tasks%s: %.0f ns\n", threads, n_tasks,
           pause_us ? ", workers asleep" : "", best * 1e9);
    sl_pool_close(p);
}

/* Tasks that spin for 5 us each: what a region costs beyond its longest share. */
static void five_us(void *ctx, int task, int worker)
{
    (void)ctx;
    (void)task;
    (void)worker;
    for (double end = now() + 5e-6; now() < end;) {
    }
}

static void time_overhead(int threads, int tasks_each)
{
    struct sl_pool *p;
    if (sl_pool_open(&p, threads, NULL)) exit(1);
    double best = 1e9;
    const int n = 500;
    for (int round = 0; round < 5; round++) {
        double t = now();
        for (int i = 0; i < n; i++) sl_pool_run(p, threads * tasks_each, five_us, NULL);
        double spent = (now() - t) / n - tasks_each * 5e-6;
        if (spent < best) best = spent;
    }
    printf("region of %d x %d tasks of 5 us: %.0f ns above the ideal\n", threads, tasks_each,
           best * 1e9);
    sl_pool_close(p);
}

static void time_checksums(void)
{
    const size_t n = (size_t)64 << 20;
    unsigned char *data = malloc(n);
    if (!data) exit(1);
    memset(data, 0x5a, n);
    double t = now();
    uint32_t crc = sl_crc32(0, data, n);
    printf("crc32: %.2f GB/s (%08x)\n", (double)n / (now() - t) * 1e-9, crc);
    char hex[65];
    t = now();
    struct sl_sha256 *s = sl_sha256_open();
    if (!s) exit(1);
    sl_sha256_add(s, data, n);
    sl_sha256_close(s, hex);
    printf("sha256: %.2f GB/s (%.8s)\n", (double)n / (now() - t) * 1e-9, hex);
    free(data);
}

static void time_strmap(void)
{
    const uint32_t n = 497220;
    char(*names)[80] = calloc(n, sizeof *names);
    struct sl_strmap *m = sl_strmap_open(n);
    if (!names || !m) exit(1);
    for (uint32_t i = 0; i < n; i++)
        snprintf(names[i], sizeof *names, "model.layers.%u.block_sparse_moe.experts.%u.w%u.weight",
                 i / 5400, i / 6 % 900, i % 6);
    double t = now();
    for (uint32_t i = 0; i < n; i++) sl_strmap_put(m, names[i], strlen(names[i]), i);
    double put = now() - t;
    uint32_t v;
    uint64_t sum = 0;
    t = now();
    for (uint32_t i = 0; i < n; i++)
        sum += sl_strmap_get(m, names[i], strlen(names[i]), &v) ? v : 0;
    double get = now() - t;
    printf("strmap of %u names: put %.0f ns, get %.0f ns (%llu)\n", n, put / n * 1e9, get / n * 1e9,
           (unsigned long long)sum);
    sl_strmap_close(m);
    free(names);
}

int main(void)
{
    int cores = sl_cpu_count();
    printf("cores: %d\n", cores);
    time_regions(2, 2, 0);
    time_regions(2, 16, 0);
    time_regions(2, 2, 300);
    if (cores > 2) time_regions(cores, cores, 0);
    time_regions(2 * cores, 2 * cores, 0);
    time_overhead(cores, 1);
    time_overhead(cores, 4);
    time_checksums();
    time_strmap();
    return 0;
}
