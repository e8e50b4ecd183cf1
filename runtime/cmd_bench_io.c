/* sluice bench io: what the store's own reads get from a drive.
 *
 * Whole records at random places through the code of a run, beside the kernel's account of what was
 * fetched. Rounds of all depths take turns, so that a slow second of the drive falls on all of them;
 * the median is reported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/size.h"
#include "offload/store_bench.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/eval_math.h"
#include "runtime/probe_path.h"
#include "runtime/report.h"

enum { ROUNDS_MAX = 99, TEMP_RECORDS = 64, DEPTH_MAX = 64 };

struct bench_io_flags {
    const char *path, *io;
    uint64_t record_bytes;
    int64_t depth, rounds;
    double seconds;
    bool json;
};

struct arm {
    int depth;
    double rate[ROUNDS_MAX]; /* bytes a second, by round */
    uint64_t bytes_read, kernel_bytes;
    struct sl_bench_io_report last;
};

static enum sl_io method_of(const char *name)
{
    static const enum sl_io all[] = {SL_IO_AUTO, SL_IO_URING, SL_IO_PREAD, SL_IO_MMAP};
    for (int i = 0; i < 4; i++)
        if (strcmp(sl_io_name(all[i]), name) == 0) return all[i];
    return SL_IO_AUTO;
}

static int run_rounds(const struct bench_io_flags *f, const struct sl_probe_path *where,
                      struct arm *arms, int n_arms, struct sl_err *err)
{
    for (int r = 0; r < f->rounds; r++) {
        for (int i = 0; i < n_arms; i++) {
            struct arm *a = &arms[i];
            /* A temporary file must hold more records than are in flight. */
            uint64_t records = 2 * (uint64_t)a->depth + 2;
            if (records < TEMP_RECORDS) records = TEMP_RECORDS;
            const struct sl_bench_io_opts o = {.path = where->path,
                                               .record_bytes = where->record_bytes,
                                               .temp_bytes = where->record_bytes * records,
                                               .depth = a->depth,
                                               .seconds = f->seconds,
                                               .io = method_of(f->io)};
            int rc = sl_bench_io(&o, &a->last, err);
            if (rc) return rc;
            a->rate[r] = a->last.bytes_per_second;
            a->bytes_read += a->last.bytes_read;
            a->kernel_bytes += a->last.kernel_bytes;
        }
    }
    return 0;
}

static int print_json(const struct bench_io_flags *f, const struct sl_probe_path *where,
                      struct arm *arms, int n_arms, struct sl_err *err)
{
    cJSON *o = sl_report_open(1);
    if (!o) return sl_report_print(o, err);
    sl_report_str(o, "bench", "io");
    sl_report_str(o, "path", where->path);
    sl_report_u64(o, "record_bytes", arms[0].last.record_bytes);
    sl_report_str(o, "io", sl_io_name(arms[0].last.io));
    sl_report_bool(o, "direct_io", arms[0].last.direct);
    sl_report_bool(o, "kernel_counted", arms[0].last.counted);
    sl_report_u64(o, "rounds", (uint64_t)f->rounds);
    cJSON *list = cJSON_AddArrayToObject(o, "depths");
    for (int i = 0; i < n_arms && list; i++) {
        size_t n = (size_t)f->rounds;
        cJSON *v = cJSON_CreateObject();
        sl_report_u64(v, "depth", (uint64_t)arms[i].depth);
        sl_report_f64(v, "gbps", sl_eval_percentile(arms[i].rate, n, 50) * 1e-9);
        sl_report_f64(v, "gbps_p10", sl_eval_percentile(arms[i].rate, n, 10) * 1e-9);
        sl_report_f64(v, "gbps_p90", sl_eval_percentile(arms[i].rate, n, 90) * 1e-9);
        sl_report_u64(v, "bytes_read", arms[i].bytes_read);
        sl_report_u64(v, "kernel_bytes_fetched", arms[i].kernel_bytes);
        cJSON_AddItemToArray(list, v);
    }
    return sl_report_print(o, err);
}

static int print_text(const struct bench_io_flags *f, const struct sl_probe_path *where,
                      struct arm *arms, int n_arms, struct sl_err *err)
{
    char size[32];
    const struct sl_bench_io_report *r = &arms[0].last;
    printf("%s  records of %s, %s, direct I/O %s, %lld rounds of %.2g s\n", where->path,
           sl_format_bytes(size, sizeof size, r->record_bytes), sl_io_name(r->io),
           r->direct ? "yes" : "no", (long long)f->rounds, f->seconds);
    for (int i = 0; i < n_arms; i++) {
        size_t n = (size_t)f->rounds;
        struct arm *a = &arms[i];
        printf("depth %-3d  median %6.2f GB/s (p10 %.2f, p90 %.2f)", a->depth,
               sl_eval_percentile(a->rate, n, 50) * 1e-9, sl_eval_percentile(a->rate, n, 10) * 1e-9,
               sl_eval_percentile(a->rate, n, 90) * 1e-9);
        if (r->counted && a->bytes_read)
            printf(", the kernel fetched %.1f %%",
                   100 * (double)a->kernel_bytes / (double)a->bytes_read);
        printf("\n");
    }
    return sl_cmd_flush(err);
}

static int bench_io(const struct bench_io_flags *f, struct sl_err *err)
{
    static const int all[] = {1, 2, 4, 8, 16};
    struct sl_probe_path where;
    int n_arms = f->depth ? 1 : (int)(sizeof all / sizeof all[0]);
    int rc = sl_probe_path_find(&where, f->path, f->record_bytes, err);
    if (rc) return rc;
    struct arm *arms = calloc((size_t)n_arms, sizeof *arms);
    if (!arms) return sl_fail(err, SL_E_NOMEM, NULL, "bench io", "out of memory");
    for (int i = 0; i < n_arms; i++) arms[i].depth = f->depth ? (int)f->depth : all[i];
    rc = run_rounds(f, &where, arms, n_arms, err);
    if (!rc)
        rc = f->json ? print_json(f, &where, arms, n_arms, err)
                     : print_text(f, &where, arms, n_arms, err);
    free(arms);
    return rc;
}

int sl_cmd_bench_io(int argc, char **argv)
{
    static const char *const methods[] = {"auto", "uring", "pread", "mmap", NULL};
    struct bench_io_flags f = {.path = ".", .io = "auto", .rounds = 3, .seconds = 1};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--path",
         .kind = SL_ARG_STRING,
         .out = &f.path,
         .group = "What",
         .metavar = "DIR",
         .help = "folder on the drive, or a file; of a pack its largest bank is read, else a "
                 "temporary file",
         .def = "."},
        {.name = "--record",
         .kind = SL_ARG_SIZE,
         .out = &f.record_bytes,
         .group = "What",
         .metavar = "BYTES",
         .help = "size of one record",
         .def = "the pack's, or 17.04 MB: an m4 expert of K3"},
        {.name = "--depth",
         .kind = SL_ARG_INT,
         .out = &f.depth,
         .group = "What",
         .metavar = "N",
         .help = "records wanted at a time",
         .def = "1, 2, 4, 8 and 16 in turn",
         .min = 1,
         .max = DEPTH_MAX},
        {.name = "--io",
         .kind = SL_ARG_STRING,
         .out = &f.io,
         .group = "What",
         .metavar = "NAME",
         .help = "how records are read: auto, uring, pread, mmap",
         .def = "auto",
         .choices = methods},
        {.name = "--rounds",
         .kind = SL_ARG_INT,
         .out = &f.rounds,
         .group = "Work",
         .metavar = "N",
         .help = "rounds; the median is reported",
         .def = "3",
         .min = 1,
         .max = ROUNDS_MAX},
        {.name = "--seconds",
         .kind = SL_ARG_FLOAT,
         .out = &f.seconds,
         .group = "Work",
         .metavar = "S",
         .help = "time of one depth in one round, about; at least one record",
         .def = "1",
         .min = 0,
         .max = 3600},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f.json,
         .group = "Output",
         .help = "one JSON object"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "bench io",
        .about = "Times whole-record reads of a drive through the store.",
        .example = "sluice bench io --path /data/k3.pack --depth 4",
        .pos = {NULL},
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    struct sl_err err = {0};
    return bench_io(&f, &err) ? sl_cmd_fail(&err) : 0;
}
