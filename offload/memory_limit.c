/* How much memory this process may use, and how much it does.
 *
 * MemTotal alone kills engines: a container of 32 GiB on a host of 256 GiB ends the process, not the
 * allocation. Limits hold along the whole path from the process's control group to the root, so the
 * smallest counts.
 *
 *   v2  /proc/self/cgroup "0::/a/b"      memory.max and memory.high: bytes or "max"
 *   v1  /proc/self/cgroup "7:memory:/a"  memory.limit_in_bytes: bytes, about 2^63 for none
 *
 * The groups are found by base/cgroup.c. memory.high does not kill but throttles reclaim: as a ceiling
 * it is one. */
#define _GNU_SOURCE
#include "offload/budget.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "base/size.h"

/* v1 writes the largest page multiple of an int64 for "no limit". */
#define HUGE_LIMIT ((uint64_t)1 << 62)

#define KIB ((uint64_t)1 << 10)
#define GIB ((uint64_t)1 << 30)

/* Bytes of one limit file; SL_NO_LIMIT for "max", for a huge or malformed number, for no file. */
static uint64_t read_limit(const char *root, const char *dir, const char *name)
{
    char line[64];
    if (!sl_cgroup_line(root, dir, name, line, sizeof line)) return SL_NO_LIMIT;
    size_t digits = strspn(line, "0123456789");
    if (!digits || line[digits] || digits > 19) return SL_NO_LIMIT;
    uint64_t bytes = strtoull(line, NULL, 10);
    return bytes < HUGE_LIMIT ? bytes : SL_NO_LIMIT;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

struct least {
    const char *root;
    uint64_t bytes;
};

static void see_group(void *ctx, const char *dir, bool v2)
{
    struct least *l = ctx;
    if (v2) {
        l->bytes = smaller(l->bytes, read_limit(l->root, dir, "memory.max"));
        l->bytes = smaller(l->bytes, read_limit(l->root, dir, "memory.high"));
    } else {
        l->bytes = smaller(l->bytes, read_limit(l->root, dir, "memory.limit_in_bytes"));
    }
}

static uint64_t cgroup_limit(const char *root)
{
    struct least l = {root, SL_NO_LIMIT};
    sl_cgroup_walk(root, "memory", see_group, &l);
    return l.bytes;
}

/* Value of "KEY:   123 kB" in bytes. */
static bool read_kb_key(const char *path, const char *key, uint64_t *bytes)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    char line[256];
    size_t n = strlen(key);
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) != 0 || line[n] != ':') continue;
        unsigned long long kb;
        found = sscanf(line + n + 1, "%llu", &kb) == 1 && sl_mul_u64(kb, KIB, bytes);
    }
    fclose(f);
    return found;
}

void sl_budget_limit_of(uint64_t physical_bytes, uint64_t cgroup_bytes, uint64_t ram_bytes,
                        struct sl_memory_limit *out)
{
    *out = (struct sl_memory_limit){.physical_bytes = physical_bytes,
                                    .cgroup_bytes = cgroup_bytes,
                                    .ram_bytes = ram_bytes ? ram_bytes : SL_NO_LIMIT};
    out->limit_bytes = smaller(smaller(out->physical_bytes, out->cgroup_bytes), out->ram_bytes);
    if (out->limit_bytes == out->ram_bytes) {
        out->source = "--ram";
    } else if (out->limit_bytes == out->cgroup_bytes) {
        out->source = "cgroup limit";
        out->reserve_bytes = smaller(out->limit_bytes / 16, GIB);
    } else {
        out->source = "physical memory";
        out->reserve_bytes = smaller(out->limit_bytes / 4, 8 * GIB);
    }
}

int sl_budget_machine_limit(const char *root, uint64_t ram_bytes, struct sl_memory_limit *out,
                            struct sl_err *err)
{
    char path[SL_PATH_MAX];
    memset(out, 0, sizeof *out);
    int len = snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (len < 0 || (size_t)len >= sizeof path ||
        !read_kb_key(path, "MemTotal", &out->physical_bytes) || !out->physical_bytes)
        return sl_fail(err, SL_E_IO, "/proc/meminfo", "MemTotal",
                       "not found: cannot tell how much memory there is");
    sl_budget_limit_of(out->physical_bytes, cgroup_limit(root), ram_bytes, out);
    return 0;
}

bool sl_process_memory(uint64_t *resident_bytes, uint64_t *peak_bytes)
{
    return read_kb_key("/proc/self/status", "VmRSS", resident_bytes) &&
           read_kb_key("/proc/self/status", "VmHWM", peak_bytes);
}
