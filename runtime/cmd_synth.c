/* sluice synth: a full-size pack with made-up weights. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "convert/synth.h"
#include "offload/pack.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/report.h"

/* The shape: "k3", or that of a pack; then its first n layers, 0 for all. */
static int read_shape(struct sl_config *c, const char *like, int n_layers, struct sl_err *err)
{
    if (strcmp(like, "k3") == 0) {
        sl_config_k3(c);
    } else {
        struct sl_pack *p;
        int rc = sl_pack_open(&p, like, NULL, 0, err);
        if (rc) return rc;
        *c = p->cfg;
        sl_pack_close(p);
    }
    if (n_layers > c->n_layers)
        return sl_fail(err, SL_E_ARG, NULL, "--layers", "%d, but %s has %d", n_layers, like,
                       c->n_layers);
    if (n_layers) c->n_layers = n_layers;
    if (c->first_k_dense > c->n_layers) c->first_k_dense = c->n_layers;
    return sl_config_check(c, like, SL_E_ARG, err);
}

static void print_size(const char *what, uint64_t bytes)
{
    char text[32];
    printf("  %-10s %17llu bytes  %s\n", what, (unsigned long long)bytes,
           sl_format_bytes(text, sizeof text, bytes));
}

static double rate(const struct sl_synth_report *r)
{
    return r->seconds > 0 ? (double)r->total_bytes / r->seconds : 0;
}

static int print_human(const char *dst, const char *like, const struct sl_synth_opts *o,
                       const struct sl_synth_report *r, struct sl_err *err)
{
    char text[32];
    printf("%s %s like %s: synthetic, experts %s, trunk %s, seed %llu\n",
           o->dry_run ? "would make" : "made", dst, like, sl_fmt_name(o->experts),
           sl_fmt_name(o->trunk), (unsigned long long)o->seed);
    print_size("trunk", r->trunk_bytes);
    print_size("experts", r->bank_bytes);
    print_size("pack", r->total_bytes);
    print_size("unshared", r->unshared_bytes);
    printf("  %d layers on %d of the trunk, %d MoE layers on %d banks\n", r->n_layers,
           r->n_trunk_layers, r->n_moe, r->n_banks);
    printf("  routing    Zipf exponent %.2f: %.0f %% reuse from token to token by popularity\n",
           r->zipf_exponent, 100 * r->designed_reuse);
    if (o->dry_run) {
        print_size("free", r->free_bytes);
        if (r->missing_bytes) print_size("missing", r->missing_bytes);
        return sl_cmd_flush(err);
    }
    printf("  %s, ", sl_format_seconds(text, sizeof text, r->seconds));
    printf("%s/s, %d jobs\n", sl_format_bytes(text, sizeof text, (uint64_t)rate(r)), r->jobs);
    return sl_cmd_flush(err);
}

static int print_json(const char *dst, const char *like, const struct sl_synth_opts *o,
                      const struct sl_synth_report *r, struct sl_err *err)
{
    cJSON *j = sl_report_open(r->jobs);
    sl_report_bool(j, "synthetic", true);
    sl_report_str(j, "pack", dst);
    sl_report_str(j, "like", like);
    sl_report_str(j, "experts_format", sl_fmt_name(o->experts));
    sl_report_str(j, "trunk_format", sl_fmt_name(o->trunk));
    sl_report_u64(j, "seed", o->seed);
    sl_report_bool(j, "dry_run", o->dry_run);
    sl_report_u64(j, "trunk_bytes", r->trunk_bytes);
    sl_report_u64(j, "bank_bytes", r->bank_bytes);
    sl_report_u64(j, "other_bytes", r->other_bytes);
    sl_report_u64(j, "total_bytes", r->total_bytes);
    sl_report_u64(j, "unshared_bytes", r->unshared_bytes);
    sl_report_u64(j, "free_bytes", r->free_bytes);
    sl_report_u64(j, "missing_bytes", r->missing_bytes);
    sl_report_u64(j, "layers", (uint64_t)r->n_layers);
    sl_report_u64(j, "trunk_layers", (uint64_t)r->n_trunk_layers);
    sl_report_u64(j, "moe_layers", (uint64_t)r->n_moe);
    sl_report_u64(j, "banks", (uint64_t)r->n_banks);
    sl_report_f64(j, "zipf_exponent", r->zipf_exponent);
    sl_report_f64(j, "designed_reuse", r->designed_reuse);
    sl_report_f64(j, "seconds", r->seconds);
    sl_report_f64(j, "bytes_per_s", o->dry_run ? 0 : rate(r));
    return sl_report_print(j, err);
}

int sl_cmd_synth(int argc, char **argv)
{
    static const char *const expert_formats[] = {"m4", "mxfp4", "w36", "p36", "w26", "w16", NULL};
    static const char *const trunk_formats[] = {"bf16", "t8", "t6", "t4", NULL};
    const char *like = NULL;
    const char *experts = "m4";
    const char *trunk = "t8";
    int64_t layers = 0;
    int64_t alias_banks = 0;
    int64_t alias_trunk = 0;
    int64_t seed = 1;
    int64_t jobs = 0;
    bool json = false;
    struct sl_synth_opts o = {.jobs = 0};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--like",
         .kind = SL_ARG_STRING,
         .out = &like,
         .group = "Shape",
         .metavar = "k3|PACK",
         .help = "the model's released shape, or that of a pack"},
        {.name = "--layers",
         .kind = SL_ARG_INT,
         .out = &layers,
         .group = "Shape",
         .metavar = "N",
         .help = "only the first N layers",
         .def = "all",
         .min = 1,
         .max = SL_MAX_LAYERS},
        {.name = "--experts",
         .kind = SL_ARG_STRING,
         .out = &experts,
         .group = "Shape",
         .metavar = "FMT",
         .help = "format of routed experts: m4, mxfp4, w36, p36, w26, w16",
         .def = "m4",
         .choices = expert_formats},
        {.name = "--trunk",
         .kind = SL_ARG_STRING,
         .out = &trunk,
         .group = "Shape",
         .metavar = "FMT",
         .help = "format of everything else: bf16, t8, t6, t4",
         .def = "t8",
         .choices = trunk_formats},
        {.name = "--alias-banks",
         .kind = SL_ARG_INT,
         .out = &alias_banks,
         .group = "Sharing",
         .metavar = "M",
         .help = "M banks on the drive, which MoE layers use in turn",
         .def = "one a layer",
         .min = 1,
         .max = SL_MAX_LAYERS},
        {.name = "--alias-trunk",
         .kind = SL_ARG_INT,
         .out = &alias_trunk,
         .group = "Sharing",
         .metavar = "M",
         .help =
             "M trunk layers of each kind (KDA or MLA, dense or MoE) on the drive, used in turn",
         .def = "all",
         .min = 1,
         .max = SL_MAX_LAYERS},
        {.name = "--seed",
         .kind = SL_ARG_INT,
         .out = &seed,
         .group = "Run",
         .metavar = "N",
         .help = "same seed, shape and formats: same bytes",
         .def = "1"},
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
         .help = "print exact sizes; writes nothing"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &json,
         .group = "Output",
         .help = "one JSON object instead of lines"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "synth",
        .about = "Makes a pack of any shape with made-up weights, for measuring speed and memory.",
        .example = "sluice synth big.pack --like k3 --alias-banks 2 --alias-trunk 1",
        .pos = {"DST"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .notes =
            "Layers that share a bank or a trunk layer share bytes on the drive alone. Routing is "
            "skewed as a real model's is; text, losses and look-ahead figures mean nothing.",
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    if (!like) return sl_args_usage(&cmd, "--like: say k3 or the path of a pack");
    struct sl_err err = {0};
    struct sl_config config;
    struct sl_synth_report report;
    o.cfg = &config;
    o.experts = sl_fmt_by_name(experts);
    o.trunk = sl_fmt_by_name(trunk);
    o.alias_banks = (int)alias_banks;
    o.alias_trunk = (int)alias_trunk;
    o.seed = (uint64_t)seed;
    o.jobs = (int)jobs;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of that write, not our end */
    int rc = read_shape(&config, like, (int)layers, &err);
    if (!rc) rc = sl_synth(pos[0], &o, &report, &err);
    if (!rc)
        rc = json ? print_json(pos[0], like, &o, &report, &err)
                  : print_human(pos[0], like, &o, &report, &err);
    return rc ? sl_cmd_fail(&err) : 0;
}
