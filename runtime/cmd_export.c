/* sluice export: a lossless pack back into files that other engines read. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>

#include "convert/convert.h"
#include "offload/pack.h"
#include "runtime/args.h"
#include "runtime/commands.h"

int sl_cmd_export(int argc, char **argv)
{
    const char *format = NULL;
    int64_t jobs = 0;
    struct sl_arg_list bank_dirs = {.n = 0};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--format",
         .kind = SL_ARG_STRING,
         .out = &format,
         .group = "Output",
         .metavar = "NAME",
         .help = "hf: a checkpoint folder, one safetensors file a layer"},
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
    };
    const struct sl_arg_cmd cmd = {
        .name = "export",
        .about = "Gives a lossless pack back as the checkpoint it was made from, every tensor byte "
                 "for byte.",
        .example = "sluice export k3.pack Kimi-K3-again --format hf",
        .pos = {"PACK", "DST"},
        .min_pos = 2,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .notes = "DST must be new or empty. A pack is lossless when its trunk is bf16 and its "
                 "experts are m4 or mxfp4.",
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    if (!format) return sl_args_usage(&cmd, "--format is needed: hf");
    if (!strcmp(format, "gguf"))
        return sl_args_usage(&cmd, "--format: gguf is not available in this build, hf is");
    if (strcmp(format, "hf") != 0) return sl_args_usage(&cmd, "--format: %s, expected hf", format);
    struct sl_err err = {0};
    struct sl_pack *p;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of that write, not our end */
    int rc = sl_pack_open(&p, pos[0], bank_dirs.v, bank_dirs.n, &err);
    if (!rc) {
        rc = sl_export_hf(p, pos[1], (int)jobs, &err);
        sl_pack_close(p);
    }
    return rc ? sl_cmd_fail(&err) : 0;
}
