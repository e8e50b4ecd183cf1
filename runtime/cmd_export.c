/* sluice export: a lossless pack back into files that other engines read. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "convert/convert.h"
#include "convert/export_gguf.h"
#include "offload/pack.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/report.h"
#include "runtime/tokenizer.h"

static const char *token_bytes(void *ctx, int id, size_t *len)
{
    return sl_tokenizer_bytes(ctx, id, len);
}

static void print_size(const char *what, uint64_t bytes)
{
    char text[32];
    printf("  %-8s %17llu bytes  %s\n", what, (unsigned long long)bytes,
           sl_format_bytes(text, sizeof text, bytes));
}

static int print_human(const struct sl_pack *p, const char *dst, bool dry_run,
                       const struct sl_export_gguf_report *r, struct sl_err *err)
{
    char text[32];
    printf("%s %s -> %s\n", dry_run ? "would export" : "exported", p->dir, dst);
    print_size("header", r->header_bytes);
    print_size("trunk", r->trunk_bytes);
    print_size("experts", r->expert_bytes);
    print_size("file", r->total_bytes);
    printf("  %u tensors\n", r->n_tensors);
    if (dry_run) {
        print_size("free", r->free_bytes);
        if (r->missing_bytes) print_size("missing", r->missing_bytes);
    } else {
        double rate = r->seconds > 0 ? (double)r->total_bytes / r->seconds : 0;
        printf("  %s, ", sl_format_seconds(text, sizeof text, r->seconds));
        printf("%s/s\n", sl_format_bytes(text, sizeof text, (uint64_t)rate));
    }
    if (p->n_vision)
        printf("  vision tensors are left out: GGUF keeps them in a file of their own\n");
    return sl_cmd_flush(err);
}

static int print_json(const struct sl_pack *p, const char *dst, const struct sl_export_gguf_opts *o,
                      const struct sl_export_gguf_report *r, struct sl_err *err)
{
    cJSON *j = sl_report_open(o->jobs);
    sl_report_str(j, "pack", p->dir);
    sl_report_str(j, "file", dst);
    sl_report_bool(j, "dry_run", o->dry_run);
    sl_report_u64(j, "header_bytes", r->header_bytes);
    sl_report_u64(j, "trunk_bytes", r->trunk_bytes);
    sl_report_u64(j, "expert_bytes", r->expert_bytes);
    sl_report_u64(j, "total_bytes", r->total_bytes);
    sl_report_u64(j, "free_bytes", r->free_bytes);
    sl_report_u64(j, "missing_bytes", r->missing_bytes);
    sl_report_u64(j, "tensors", r->n_tensors);
    sl_report_f64(j, "seconds", r->seconds);
    return sl_report_print(j, err);
}

static int export_gguf(const struct sl_pack *p, const char *dst, struct sl_export_gguf_opts o,
                       bool json, struct sl_err *err)
{
    char dir[SL_PATH_MAX];
    struct sl_tokenizer *t = NULL;
    struct sl_export_gguf_report r;
    if (!sl_path_join(dir, p->dir, "tokenizer"))
        return sl_fail(err, SL_E_ARG, p->dir, NULL, "path too long");
    int rc = sl_tokenizer_open(&t, dir, p->cfg.vocab_size, SL_E_PACK, err);
    if (rc) return rc;
    const struct sl_gguf_vocab vocab = {.n = sl_tokenizer_n_vocab(t),
                                        .n_ordinary = sl_tokenizer_n_ordinary(t),
                                        .bytes = token_bytes,
                                        .ctx = t};
    o.vocab = &vocab;
    rc = sl_export_gguf(p, dst, &o, &r, err);
    if (!rc) rc = json ? print_json(p, dst, &o, &r, err) : print_human(p, dst, o.dry_run, &r, err);
    sl_tokenizer_close(t);
    return rc;
}

int sl_cmd_export(int argc, char **argv)
{
    const char *format = NULL;
    int64_t jobs = 0;
    struct sl_export_gguf_opts o = {.vocab = NULL};
    bool json = false;
    struct sl_arg_list bank_dirs = {.n = 0};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--format",
         .kind = SL_ARG_STRING,
         .out = &format,
         .group = "Output",
         .metavar = "NAME",
         .help = "hf: a checkpoint folder, one safetensors file a layer; gguf: one file"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &json,
         .group = "Output",
         .help = "gguf: one JSON object instead of lines"},
        {.name = "--bank-dir",
         .kind = SL_ARG_REPEAT,
         .out = &bank_dirs,
         .group = "Input",
         .metavar = "DIR",
         .help = "also look for the pack's expert banks here; may be repeated"},
        {.name = "--jobs",
         .kind = SL_ARG_INT,
         .out = &jobs,
         .group = "Run",
         .metavar = "N",
         .help = "threads",
         .def = "one per core",
         .min = 1,
         .max = 1024},
        {.name = "--dry-run",
         .kind = SL_ARG_FLAG,
         .out = &o.dry_run,
         .group = "Run",
         .help = "gguf: print exact sizes, write nothing"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "export",
        .about = "Gives a lossless pack back as the checkpoint it was made from, every tensor byte "
                 "for byte, or as a GGUF file.",
        .example = "sluice export k3.pack k3.gguf --format gguf",
        .pos = {"PACK", "DST"},
        .min_pos = 2,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .notes = "DST must be new, or an empty folder for hf. A pack is lossless when its trunk is "
                 "bf16 and its experts are m4 or mxfp4; gguf also takes a trunk of t8. A pack made "
                 "from GGUF can become GGUF again, not hf: factors are gone that hf stores.",
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    if (!format) return sl_args_usage(&cmd, "--format is needed: hf or gguf");
    bool gguf = !strcmp(format, "gguf");
    if (!gguf && strcmp(format, "hf") != 0)
        return sl_args_usage(&cmd, "--format: %s, expected hf or gguf", format);
    if (!gguf && (o.dry_run || json))
        return sl_args_usage(&cmd, "%s is for --format gguf", o.dry_run ? "--dry-run" : "--json");
    struct sl_err err = {0};
    struct sl_pack *p;
    o.jobs = (int)jobs;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of that write, not our end */
    int rc = sl_pack_open(&p, pos[0], bank_dirs.v, bank_dirs.n, &err);
    if (!rc) {
        rc =
            gguf ? export_gguf(p, pos[1], o, json, &err) : sl_export_hf(p, pos[1], (int)jobs, &err);
        sl_pack_close(p);
    }
    return rc ? sl_cmd_fail(&err) : 0;
}
