/* Cores that this process may really use.
 *
 * Affinity alone overstates it in a container: a cgroup may allow 200 ms of CPU per 100 ms on a
 * machine of 64 cores, and 64 spinning threads would then be throttled most of the time. Limits apply
 * along the whole path from the process's group to the root, so the smallest one counts.
 *
 *   v2  /proc/self/cgroup "0::/a/b"          cpu.max "200000 100000" or "max 100000"
 *   v1  /proc/self/cgroup "4:cpu,cpuacct:/a" cpu.cfs_quota_us (-1: none), cpu.cfs_period_us */
#define _GNU_SOURCE
#include "base/pool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cgroup.h"

static int affinity_count(void)
{
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        int n = sched_getaffinity(0, bytes, set) ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (n > 0) return n;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* quota/period in cores, to the nearest, at least 1; 0 when there is no limit. */
static int quota_cores(double quota, double period)
{
    if (!(quota > 0 && period > 0)) return 0;
    double cores = quota / period + 0.5;
    return cores < 1 ? 1 : cores > 1e6 ? 0 : (int)cores;
}

static int limit_of_group(const char *root, const char *dir, bool v2)
{
    char line[64];
    if (v2) {
        double quota = 0;
        double period = 0;
        if (!sl_cgroup_line(root, dir, "cpu.max", line, sizeof line)) return 0;
        if (sscanf(line, "%lf %lf", &quota, &period) != 2) return 0; /* "max 100000" */
        return quota_cores(quota, period);
    }
    if (!sl_cgroup_line(root, dir, "cpu.cfs_quota_us", line, sizeof line)) return 0;
    double quota = strtod(line, NULL);
    if (!sl_cgroup_line(root, dir, "cpu.cfs_period_us", line, sizeof line)) return 0;
    return quota_cores(quota, strtod(line, NULL));
}

struct least {
    const char *root;
    int cores; /* 0: no limit so far */
};

static void see_group(void *ctx, const char *dir, bool v2)
{
    struct least *l = ctx;
    const int limit = limit_of_group(l->root, dir, v2);
    if (limit && (!l->cores || limit < l->cores)) l->cores = limit;
}

int sl_cpu_quota(const char *root)
{
    struct least l = {root, 0};
    sl_cgroup_walk(root, "cpu", see_group, &l);
    return l.cores;
}

int sl_cpu_count(void)
{
    int cores = affinity_count();
    int quota = sl_cpu_quota("");
    return quota && quota < cores ? quota : cores;
}
