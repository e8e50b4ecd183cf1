/* The machine's own facts: cores, memory, nodes, GPU. Measurements are in probe_memory.c and
 * probe_drive.c. */
#define _GNU_SOURCE
#include "offload/probe.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/kernels.h"
#include "offload/budget.h"

int sl_probe_numa_nodes(const char *root)
{
    char path[SL_PATH_MAX];
    int n = 0;
    int len = snprintf(path, sizeof path, "%s/sys/devices/system/node", root);
    DIR *d = len > 0 && (size_t)len < sizeof path ? opendir(path) : NULL;
    if (!d) return 1;
    for (const struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, "node", 4) == 0 && e->d_name[4] &&
            strspn(e->d_name + 4, "0123456789") == strlen(e->d_name + 4))
            n++;
    closedir(d);
    return n ? n : 1;
}

int sl_probe_machine(const char *root, struct sl_board *b, struct sl_err *err)
{
    struct sl_memory_limit limit;
    int rc = sl_budget_machine_limit(root, 0, &limit, err);
    if (rc) return rc;
    b->cpu.cores = sl_cpu_count();
    (void)snprintf(b->cpu.isa, sizeof b->cpu.isa, "%s", sl_cpu_name(sl_cpu_detect()));
    b->memory.bytes = limit.physical_bytes;
    b->memory.numa_nodes = sl_probe_numa_nodes(root);
    return 0;
}

/* One direction, 10^9 bytes a second a lane, by generation (1 .. 6). */
static double lane_gbps(long gen)
{
    static const double lane[] = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
    return gen >= 1 && gen <= 6 ? lane[gen] : 0;
}

/* Copies the text before the next ", " of *line into out and steps over it. */
static bool take_part(const char **line, char *out, size_t size)
{
    size_t n = strcspn(*line, ",\n");
    if (!n || n >= size) return false;
    memcpy(out, *line, n);
    out[n] = '\0';
    *line += n;
    *line += strspn(*line, ", ");
    return true;
}

bool sl_probe_gpu_line(const char *line, struct sl_board *b)
{
    char part[4][96];
    char *end;
    for (int i = 0; i < 4; i++)
        if (!take_part(&line, part[i], sizeof part[i])) return false;
    unsigned long long mib = strtoull(part[1], &end, 10);
    if (end == part[1] || *end || !mib || mib > 1u << 24) return false;
    long gen = strtol(part[2], NULL, 10);
    long width = strtol(part[3], NULL, 10);
    memcpy(b->gpu.name, part[0], sizeof b->gpu.name);
    b->gpu.vram_bytes = mib << 20;
    b->gpu.link_gbps = width > 0 && width <= 32 ? lane_gbps(gen) * (double)width : 0;
    return true;
}

void sl_probe_gpu(struct sl_board *b)
{
    char line[512];
    FILE *f =
        popen("nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max "
              "--format=csv,noheader,nounits 2>/dev/null",
              "re");
    if (!f) return;
    if (fgets(line, sizeof line, f)) (void)sl_probe_gpu_line(line, b);
    pclose(f);
}

/* Formats whose products are timed: the plain ones, and those that packs have most. */
static const enum sl_fmt product_fmts[] = {SL_FMT_F32, SL_FMT_BF16,  SL_FMT_T8, SL_FMT_T6,
                                           SL_FMT_T4,  SL_FMT_MXFP4, SL_FMT_M4, SL_FMT_W26};
enum { N_PRODUCTS = sizeof product_fmts / sizeof product_fmts[0] };

int sl_probe_board(const struct sl_probe_opts *o, struct sl_board *b,
                   struct sl_probe_drive_report *report, struct sl_err *err)
{
    static const int depths[] = {1, 2, 4, 8};
    struct sl_pool *pool = NULL;
    double read = 0;
    double copy = 0;
    memset(b, 0, sizeof *b);
    (void)snprintf(b->name, sizeof b->name, "this-machine");
    (void)snprintf(b->title, sizeof b->title, "This machine, %s",
                   o->quick ? "probed quickly" : "probed");
    b->measured = true;
    int rc = sl_probe_machine("", b, err);
    if (!rc) rc = sl_pool_open(&pool, o->threads, err);
    if (rc) return rc;
    if (o->threads) b->cpu.cores = o->threads;
    uint64_t bytes = (uint64_t)(o->quick ? 128 : 512) << 20;
    if (bytes > b->memory.bytes / 16) bytes = b->memory.bytes / 16;
    double seconds = o->quick ? 0.1 : 0.5;
    rc = sl_probe_memory(pool, bytes, seconds, &read, &copy, err);
    if (!rc) rc = sl_probe_products(pool, product_fmts, N_PRODUCTS, bytes / 2, seconds / 2, b, err);
    sl_pool_close(pool);
    b->memory.read_gbps = read * 1e-9;
    b->memory.copy_gbps = copy * 1e-9;
    sl_probe_gpu(b);
    if (!rc && o->drive_path) {
        const struct sl_probe_drive d = {.path = o->drive_path,
                                         .record_bytes = o->record_bytes,
                                         .temp_bytes = (uint64_t)(o->quick ? 256 : 1024) << 20,
                                         .seconds = o->quick ? 0.2 : 1.0,
                                         .depths = o->quick ? depths + 2 : depths,
                                         .n_depths = o->quick ? 1 : 4};
        rc = sl_probe_drive(&d, &b->drive[0], report, err);
        b->n_drives = 1;
    }
    (void)snprintf(
        b->source, sizeof b->source,
        "sluice probe: drive read at record size around the page cache%s; memory read and "
        "products by %d threads, best pass; %s",
        report && report->counted ? ", confirmed by the kernel's account of fetched bytes" : "",
        b->cpu.cores,
        b->gpu.name[0] ? "GPU as its driver reports it, not measured" : "no GPU found");
    return rc;
}
