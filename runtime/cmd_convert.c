/* sluice convert: a checkpoint, or a lossless pack, into a pack. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/size.h"
#include "convert/convert.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/report.h"
#include "runtime/tokenizer.h"

static uint64_t peak_bytes(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : (uint64_t)u.ru_maxrss * 1024;
}

static void print_size(const char *what, uint64_t bytes)
{
    char text[32];
    printf("  %-10s %17llu bytes  %s\n", what, (unsigned long long)bytes,
           sl_format_bytes(text, sizeof text, bytes));
}

static double rate(const struct sl_convert_report *r)
{
    return r->seconds > 0 ? (double)r->total_bytes / r->seconds : 0;
}

static int print_human(const char *src, const char *dst, const struct sl_convert_opts *o,
                       const struct sl_convert_report *r, struct sl_err *err)
{
    char text[32];
    printf("%s %s -> %s  experts %s, trunk %s\n", o->dry_run ? "would convert" : "converted", src,
           dst, sl_fmt_name(o->experts), sl_fmt_name(o->trunk));
    if (r->source_bytes) print_size("source", r->source_bytes);
    print_size("trunk", r->trunk_bytes);
    print_size("experts", r->bank_bytes);
    if (r->vision_bytes) print_size("vision", r->vision_bytes);
    print_size("other", r->other_bytes);
    print_size("pack", r->total_bytes);
    printf("  %d layers, %d banks, %llu experts", r->n_layers, r->n_banks,
           (unsigned long long)r->experts);
    if (o->experts == SL_FMT_M4)
        printf(", %llu matrices kept as mxfp4", (unsigned long long)r->m4_escapes);
    printf("\n");
    if (o->dry_run) {
        print_size("free", r->free_bytes);
        if (r->missing_bytes) print_size("missing", r->missing_bytes);
        return sl_cmd_flush(err);
    }
    if (r->freed_bytes) print_size("freed", r->freed_bytes);
    printf("  %s%s, %s/s", r->resumed ? "resumed; " : "",
           sl_format_seconds(text, sizeof text, r->seconds),
           sl_format_bytes((char[32]){0}, 32, (uint64_t)rate(r)));
    printf(", %s of memory at the peak, %d jobs\n",
           sl_format_bytes(text, sizeof text, peak_bytes()), r->jobs);
    return sl_cmd_flush(err);
}

static int print_json(const char *src, const char *dst, const struct sl_convert_opts *o,
                      const struct sl_convert_report *r, struct sl_err *err)
{
    cJSON *j = sl_report_open(r->jobs);
    sl_report_str(j, "source", src);
    sl_report_str(j, "pack", dst);
    sl_report_str(j, "experts_format", sl_fmt_name(o->experts));
    sl_report_str(j, "trunk_format", sl_fmt_name(o->trunk));
    sl_report_bool(j, "dry_run", o->dry_run);
    sl_report_bool(j, "resumed", r->resumed);
    sl_report_u64(j, "source_bytes", r->source_bytes);
    sl_report_u64(j, "trunk_bytes", r->trunk_bytes);
    sl_report_u64(j, "bank_bytes", r->bank_bytes);
    sl_report_u64(j, "vision_bytes", r->vision_bytes);
    sl_report_u64(j, "other_bytes", r->other_bytes);
    sl_report_u64(j, "total_bytes", r->total_bytes);
    sl_report_u64(j, "free_bytes", r->free_bytes);
    sl_report_u64(j, "missing_bytes", r->missing_bytes);
    sl_report_u64(j, "freed_bytes", r->freed_bytes);
    sl_report_u64(j, "layers", (uint64_t)r->n_layers);
    sl_report_u64(j, "banks", (uint64_t)r->n_banks);
    sl_report_u64(j, "experts", r->experts);
    sl_report_u64(j, "m4_escapes", r->m4_escapes);
    sl_report_u64(j, "buffer_bytes", r->buffer_bytes);
    sl_report_u64(j, "measured_peak_bytes", peak_bytes());
    sl_report_f64(j, "seconds", r->seconds);
    sl_report_f64(j, "bytes_per_s", o->dry_run ? 0 : rate(r));
    return sl_report_print(j, err);
}

static int check_tokenizer(const char *dir, const struct sl_config *cfg, int code,
                           struct sl_err *err)
{
    struct sl_tokenizer *t = NULL;
    int rc = sl_tokenizer_open(&t, dir, cfg->vocab_size, code, err);
    sl_tokenizer_close(t);
    return rc;
}

int sl_cmd_convert(int argc, char **argv)
{
    static const char *const expert_formats[] = {"m4", "mxfp4", "w36", "p36", "w26", "w16", NULL};
    static const char *const trunk_formats[] = {"bf16", "t8", "t6", "t4", NULL};
    const char *experts = "m4";
    const char *trunk = "bf16";
    int64_t jobs = 0;
    struct sl_arg_list bank_dirs = {.n = 0};
    bool json = false;
    struct sl_convert_opts o = {.check_tokenizer = check_tokenizer};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--experts",
         .kind = SL_ARG_STRING,
         .out = &experts,
         .group = "Formats",
         .metavar = "FMT",
         .help =
             "routed experts: m4 (4.125 bits a weight, lossless), mxfp4 (4.25, as released), w36 "
             "(3.125), p36 (3.125, readable at 2.125), w26 (2.125), w16 (1.125)",
         .def = "m4",
         .choices = expert_formats},
        {.name = "--trunk",
         .kind = SL_ARG_STRING,
         .out = &trunk,
         .group = "Formats",
         .metavar = "FMT",
         .help = "everything else: bf16 (as released), t8 (8.5 bits a weight), t6 (6.5), t4 (4.5)",
         .def = "bf16",
         .choices = trunk_formats},
        {.name = "--calib",
         .kind = SL_ARG_STRING,
         .out = &o.calib,
         .group = "Formats",
         .metavar = "STATS",
         .help = "statistics of `sluice calibrate` for w36, p36, w26, w16"},
        {.name = "--drop-vision",
         .kind = SL_ARG_FLAG,
         .out = &o.drop_vision,
         .group = "Formats",
         .help = "leave the vision tower and projector out"},
        {.name = "--bank-dir",
         .kind = SL_ARG_REPEAT,
         .out = &bank_dirs,
         .group = "Places",
         .metavar = "DIR",
         .help = "write expert banks here, layers in turn when repeated",
         .def = "DST/experts"},
        {.name = "--free-source",
         .kind = SL_ARG_FLAG,
         .out = &o.free_source,
         .group = "Places",
         .help = "remove each shard of SRC once all of it is safely in the pack"},
        {.name = "--jobs",
         .kind = SL_ARG_INT,
         .out = &jobs,
         .group = "Run",
         .metavar = "N",
         .help = "threads; memory stays under 2 GiB for any number",
         .def = "one per core",
         .min = 1,
         .max = 1024},
        {.name = "--dry-run",
         .kind = SL_ARG_FLAG,
         .out = &o.dry_run,
         .group = "Run",
         .help = "check the source and print exact sizes; writes nothing"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &json,
         .group = "Output",
         .help = "one JSON object instead of lines"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "convert",
        .about = "Turns a checkpoint folder into a pack, or a lossless pack into one of another "
                 "format.",
        .example = "sluice convert ~/models/Kimi-K3 k3.pack",
        .pos = {"SRC", "DST"},
        .min_pos = 2,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .notes = "Interrupted or killed, the same command takes up where it stopped and gives the "
                 "same bytes.",
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    struct sl_err err = {0};
    struct sl_convert_report report;
    o.experts = sl_fmt_by_name(experts);
    o.trunk = sl_fmt_by_name(trunk);
    o.jobs = (int)jobs;
    o.bank_dirs = bank_dirs.v;
    o.n_bank_dirs = bank_dirs.n;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of that write, not our end */
    int rc = sl_convert(pos[0], pos[1], &o, &report, &err);
    if (!rc)
        rc = json ? print_json(pos[0], pos[1], &o, &report, &err)
                  : print_human(pos[0], pos[1], &o, &report, &err);
    return rc ? sl_cmd_fail(&err) : 0;
}
