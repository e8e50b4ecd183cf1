/* sluice probe: measures this machine and writes a board file.
 *
 * The drive is that of --path: a pack's own banks when it is one, else a temporary file there, whose
 * size is said before it is written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/size.h"
#include "offload/pack.h"
#include "offload/probe.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/probe_path.h"
#include "runtime/report.h"

struct probe_flags {
    const char *path, *out;
    uint64_t record_bytes;
    int64_t threads;
    bool quick, json;
};

static void print_board(const struct sl_board *b, const struct sl_probe_drive_report *r)
{
    char size[32];
    printf("cores     %d, %s\n", b->cpu.cores, b->cpu.isa);
    printf("memory    %s, %d node%s; read %.1f GB/s, copy %.1f GB/s\n",
           sl_format_bytes(size, sizeof size, b->memory.bytes), b->memory.numa_nodes,
           b->memory.numa_nodes == 1 ? "" : "s", b->memory.read_gbps, b->memory.copy_gbps);
    for (int i = 0; i < b->cpu.n_muls; i++)
        printf("%-9s %-6s decode %7.2f G weights/s, prefill %7.2f\n", i ? "" : "products",
               sl_fmt_name(b->cpu.mul[i].fmt), b->cpu.mul[i].decode, b->cpu.mul[i].prefill);
    for (int i = 0; i < b->n_drives; i++) {
        const struct sl_board_drive *d = &b->drive[i];
        printf("drive     %s, records of %s, direct I/O %s\n", d->path,
               sl_format_bytes(size, sizeof size, d->record_bytes), r->direct ? "yes" : "no");
        for (int k = 0; k < d->n_depths; k++)
            printf("          depth %-3d %7.2f GB/s\n", d->read[k].depth, d->read[k].gbps);
        if (r->counted && r->bytes_read)
            printf("          the kernel fetched %.1f %% of the bytes read\n",
                   100 * (double)r->kernel_bytes / (double)r->bytes_read);
        else
            printf("          this kernel keeps no account of fetched bytes: not cross-checked\n");
    }
    if (b->gpu.name[0])
        printf("gpu       %s, %s, link %.1f GB/s by its generation and width\n", b->gpu.name,
               sl_format_bytes(size, sizeof size, b->gpu.vram_bytes), b->gpu.link_gbps);
}

static int save_board(const struct sl_board *b, const char *path, struct sl_err *err)
{
    cJSON *obj = sl_board_to_json(b);
    char *text = obj ? cJSON_Print(obj) : NULL;
    cJSON_Delete(obj);
    if (!text) return sl_fail(err, SL_E_NOMEM, path, NULL, "no memory for the board file");
    size_t n = strlen(text);
    text[n] = '\n'; /* instead of the NUL: the file ends with a line */
    int rc = sl_write_file(path, text, n + 1, err);
    cJSON_free(text);
    return rc;
}

static int probe(const struct probe_flags *f, struct sl_err *err)
{
    struct sl_board b;
    struct sl_probe_drive_report r = {0};
    struct sl_probe_path target;
    int rc = sl_probe_path_find(&target, f->path, f->record_bytes, err);
    if (rc) return rc;
    if (target.writes)
        fprintf(stderr, "sluice: writing a temporary file of at most %s in %s\n",
                f->quick ? "268 MB" : "1.07 GB", target.path);
    const struct sl_probe_opts o = {.drive_path = target.path,
                                    .record_bytes = target.record_bytes,
                                    .threads = (int)f->threads,
                                    .quick = f->quick};
    rc = sl_probe_board(&o, &b, &r, err);
    if (!rc && f->out) rc = save_board(&b, f->out, err);
    if (rc) return rc;
    if (!f->json) {
        print_board(&b, &r);
        return sl_cmd_flush(err);
    }
    cJSON *obj = sl_report_open(b.cpu.cores);
    cJSON *board = sl_board_to_json(&b);
    if (obj && board) {
        cJSON_AddItemToObject(obj, "board", board);
        sl_report_bool(obj, "direct_io", r.direct);
        sl_report_bool(obj, "kernel_counted", r.counted);
        sl_report_u64(obj, "bytes_read", r.bytes_read);
        sl_report_u64(obj, "kernel_bytes_fetched", r.kernel_bytes);
        sl_report_u64(obj, "temporary_file_bytes", r.written_bytes);
    } else {
        cJSON_Delete(board);
    }
    return sl_report_print(obj, err);
}

int sl_cmd_probe(int argc, char **argv)
{
    struct probe_flags f = {.path = "."};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--path",
         .kind = SL_ARG_STRING,
         .out = &f.path,
         .group = "What",
         .metavar = "DIR",
         .help = "folder on the drive to measure; of a pack its own banks are read",
         .def = "."},
        {.name = "--record",
         .kind = SL_ARG_SIZE,
         .out = &f.record_bytes,
         .group = "What",
         .metavar = "BYTES",
         .help = "size of one read",
         .def = "the pack's record, or 17.04 MB: an m4 expert of K3"},
        {.name = "--threads",
         .kind = SL_ARG_INT,
         .out = &f.threads,
         .group = "What",
         .metavar = "N",
         .help = "threads that stream through memory and multiply",
         .def = "one per core",
         .min = 1,
         .max = 1024},
        {.name = "--quick",
         .kind = SL_ARG_FLAG,
         .out = &f.quick,
         .group = "What",
         .help = "two seconds instead of ten, a smaller file, one queue depth"},
        {.name = "-o",
         .kind = SL_ARG_STRING,
         .out = &f.out,
         .group = "Output",
         .metavar = "F",
         .help = "write the board file that plan --board reads"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f.json,
         .group = "Output",
         .help = "one JSON object on stdout"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "probe",
        .about = "Measures drive, memory and kernels of this machine.",
        .example = "sluice probe --path /data/k3.pack -o here.json",
        .pos = {NULL},
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    struct sl_err err = {0};
    return probe(&f, &err) ? sl_cmd_fail(&err) : 0;
}
