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
#include <string.h>
#include <unistd.h>

#include "base/file.h"

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

/* First line of root/dir/name without its newline; false when it cannot be read. */
static bool read_line(const char *root, const char *dir, const char *name, char *line, size_t n)
{
    char path[SL_PATH_MAX];
    int len = snprintf(path, sizeof path, "%s%s/%s", root, dir, name);
    if (len < 0 || (size_t)len >= sizeof path) return false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(line, (int)n, f) != NULL;
    fclose(f);
    if (ok) line[strcspn(line, "\n")] = '\0';
    return ok;
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
        if (!read_line(root, dir, "cpu.max", line, sizeof line)) return 0;
        if (sscanf(line, "%lf %lf", &quota, &period) != 2) return 0; /* "max 100000" */
        return quota_cores(quota, period);
    }
    if (!read_line(root, dir, "cpu.cfs_quota_us", line, sizeof line)) return 0;
    double quota = strtod(line, NULL);
    if (!read_line(root, dir, "cpu.cfs_period_us", line, sizeof line)) return 0;
    return quota_cores(quota, strtod(line, NULL));
}

/* Smallest limit from mount/group up to mount itself; 0 when there is none. */
static int limit_up_tree(const char *root, const char *mount, const char *group, bool v2)
{
    char dir[SL_PATH_MAX];
    int n = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof dir) return 0;
    size_t keep = strlen(mount);
    int least = 0;
    for (;;) {
        int limit = limit_of_group(root, dir, v2);
        if (limit && (!least || limit < least)) least = limit;
        char *slash = strrchr(dir + keep, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

static bool has_controller(const char *list, size_t len, const char *name)
{
    size_t want = strlen(name);
    for (size_t at = 0; at < len;) {
        size_t n = strcspn(list + at, ",:");
        if (n == want && !memcmp(list + at, name, n)) return true;
        at += n + 1;
    }
    return false;
}

int sl_cpu_quota(const char *root)
{
    char path[SL_PATH_MAX];
    int len = snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = len > 0 && (size_t)len < sizeof path ? fopen(path, "re") : NULL;
    if (!f) return 0;
    int least = 0;
    char line[SL_PATH_MAX];
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *group = list ? strchr(list + 1, ':') : NULL;
        if (!group) continue;
        size_t list_len = (size_t)(group - ++list);
        group++;
        bool v2 = list_len == 0;
        if (!v2 && !has_controller(list, list_len, "cpu")) continue;
        static const char *const v1_mounts[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
        static const char *const v2_mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
        for (int i = 0; i < 2; i++) {
            int limit = limit_up_tree(root, v2 ? v2_mounts[i] : v1_mounts[i], group, v2);
            if (limit && (!least || limit < least)) least = limit;
        }
    }
    fclose(f);
    return least;
}

int sl_cpu_count(void)
{
    int cores = affinity_count();
    int quota = sl_cpu_quota("");
    return quota && quota < cores ? quota : cores;
}
