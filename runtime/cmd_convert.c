/* sluice convert: a checkpoint, or a lossless pack, into a pack. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/size.h"
#include "convert/convert.h"
#include "convert/mix_plan.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/fused_calib.h"
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

/* What a mix chose and why: a line a layer. Counts are of experts, in gate/up/down. */
static void print_mix(const struct sl_mix_report *r)
{
    printf("mix of %.4g bits: %.3f stored, %.3f read a token%s", r->target, r->bits, r->read_bits,
           r->measured ? "" : "; layers alike: no --sensitivity was given\n");
    if (r->measured) printf("; estimate of the KL %.4f\n", r->harm);
    printf("%-6s %11s %6s  %-16s %-16s %-16s %s\n", "layer", "sensitivity", "bits", "w16", "w26",
           "w36", "error of w16, w26, w36 in gate");
    for (int i = 0; i < r->n_layers; i++) {
        const struct sl_mix_layer *l = &r->layers[i];
        printf("%-6d %11.4g %6.3f ", l->layer, l->sensitivity, l->bits);
        for (int f = 0; f < SL_MIX_FORMATS; f++) {
            char text[48];
            snprintf(text, sizeof text, "%u/%u/%u", l->experts[SL_GATE][f], l->experts[SL_UP][f],
                     l->experts[SL_DOWN][f]);
            printf(" %-16s", text);
        }
        printf(" %.3f %.3f %.3f%s\n", sqrt(l->error[SL_GATE][0]), sqrt(l->error[SL_GATE][1]),
               sqrt(l->error[SL_GATE][2]), l->unseen ? ", some experts unseen" : "");
    }
}

static void report_mix(cJSON *j, const struct sl_mix_report *r)
{
    cJSON *m = cJSON_AddObjectToObject(j, "mix");
    sl_report_f64(m, "target_bits", r->target);
    sl_report_f64(m, "stored_bits", r->bits);
    sl_report_f64(m, "read_bits", r->read_bits);
    sl_report_bool(m, "sensitivity_measured", r->measured);
    sl_report_f64(m, "harm", r->harm);
    cJSON *layers = cJSON_AddArrayToObject(m, "layers");
    for (int i = 0; layers && i < r->n_layers; i++) {
        const struct sl_mix_layer *l = &r->layers[i];
        cJSON *v = cJSON_CreateObject();
        sl_report_u64(v, "layer", (uint64_t)l->layer);
        sl_report_f64(v, "sensitivity", l->sensitivity);
        sl_report_f64(v, "bits", l->bits);
        sl_report_f64(v, "read_bits", l->read_bits);
        sl_report_f64(v, "harm", l->harm);
        sl_report_u64(v, "unseen_experts", l->unseen);
        for (int k = 0; k < SL_N_MATS; k++) {
            static const char *const names[SL_N_MATS] = {"gate", "up", "down"};
            cJSON *mat = cJSON_AddObjectToObject(v, names[k]);
            for (int f = 0; f < SL_MIX_FORMATS; f++) {
                cJSON *one = cJSON_AddObjectToObject(mat, sl_fmt_name(sl_mix_formats[f]));
                sl_report_u64(one, "experts", l->experts[k][f]);
                sl_report_f64(one, "error", sqrt(l->error[k][f]));
            }
        }
        cJSON_AddItemToArray(layers, v);
    }
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
    if (r->mix) print_mix(r->mix);
    if (r->live.tokens) {
        printf("  calibrated on %llu tokens on the way", (unsigned long long)r->live.tokens);
        printf("; %s of memory and %s a job, ",
               sl_format_bytes(text, sizeof text, r->live.memory_bytes),
               sl_format_bytes((char[32]){0}, 32, r->live.job_bytes));
        printf("scratch files of %s", sl_format_bytes(text, sizeof text, r->live.scratch_bytes));
        printf("; the forward pass takes about %s\n",
               sl_format_seconds(text, sizeof text, r->live.seconds));
    }
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
    if (r->mix) report_mix(j, r->mix);
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
    if (r->live.tokens) {
        sl_report_u64(j, "calib_tokens", r->live.tokens);
        sl_report_u64(j, "calib_memory_bytes", r->live.memory_bytes);
        sl_report_u64(j, "calib_job_bytes", r->live.job_bytes);
        sl_report_u64(j, "calib_scratch_bytes", r->live.scratch_bytes);
        sl_report_f64(j, "calib_seconds", r->live.seconds);
    }
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

/* --calib is a text unless it begins as a statistics file does. */
static int open_text(struct sl_convert_opts *o, struct sl_fused_opts *text, struct sl_fused **out,
                     struct sl_err *err)
{
    static const char magic[8] = "SLSTATS";
    char head[sizeof magic] = "";
    if (o->calib && text->ids)
        return sl_fail(err, SL_E_ARG, NULL, "--calib-ids", "is in place of --calib");
    if (o->calib) {
        FILE *f = fopen(o->calib, "rb");
        if (!f) return sl_fail_errno(err, SL_E_SOURCE, errno, o->calib, "open");
        const bool stats =
            fread(head, 1, sizeof head, f) == sizeof head && memcmp(head, magic, sizeof magic) == 0;
        fclose(f);
        if (stats) return 0;
        text->text = o->calib;
        o->calib = NULL;
    }
    if (!text->text && !text->ids) return 0;
    int rc = sl_fused_open(out, text, err);
    if (!rc) o->live = sl_fused_calls(*out);
    return rc;
}

/* A format, or mix:BITS. */
static bool read_experts(const char *s, struct sl_convert_opts *o)
{
    if (strncmp(s, "mix:", 4) == 0) {
        char *end;
        o->experts = SL_FMT_MIX;
        o->mix_bits = strtod(s + 4, &end);
        return end != s + 4 && !*end && o->mix_bits > 0 && o->mix_bits < 32;
    }
    o->experts = sl_fmt_by_name(s);
    return sl_fmt_is_expert(o->experts);
}

static bool read_trunk_format(const char *s, size_t n, enum sl_fmt *out)
{
    char name[8] = "";
    if (n >= sizeof name) return false;
    memcpy(name, s, n);
    *out = sl_fmt_by_name(name);
    return sl_fmt_is_trunk(*out);
}

/* GROUP=FMT; a group twice is no list of groups that differ. */
static bool read_trunk_group(const char *s, size_t n, struct sl_convert_opts *o)
{
    static const enum sl_group groups[] = {SL_GROUP_KDA,    SL_GROUP_MLA,   SL_GROUP_LATENT,
                                           SL_GROUP_SHARED, SL_GROUP_DENSE, SL_GROUP_EMBED,
                                           SL_GROUP_HEAD};
    const char *is = memchr(s, '=', n);
    enum sl_fmt fmt;
    if (!is || !read_trunk_format(is + 1, n - (size_t)(is + 1 - s), &fmt)) return false;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const char *name = sl_group_name(groups[i]);
        if (strlen(name) != (size_t)(is - s) || memcmp(name, s, (size_t)(is - s)) != 0) continue;
        if (o->trunk_of[groups[i]] != SL_FMT_NONE) return false;
        o->trunk_of[groups[i]] = (uint8_t)fmt;
        return true;
    }
    return false;
}

/* FMT[,GROUP=FMT]... */
static bool read_trunk(const char *s, struct sl_convert_opts *o)
{
    size_t n = strcspn(s, ",");
    if (!read_trunk_format(s, n, &o->trunk)) return false;
    while (s[n]) {
        s += n + 1;
        n = strcspn(s, ",");
        if (!read_trunk_group(s, n, o)) return false;
    }
    return true;
}

int sl_cmd_convert(int argc, char **argv)
{
    static const char *const devices[] = {"cpu", "cuda", NULL};
    const char *device = "cpu";
    const char *experts = "m4";
    const char *trunk = "bf16";
    int64_t jobs = 0;
    struct sl_arg_list bank_dirs = {.n = 0};
    bool json = false;
    struct sl_convert_opts o = {.check_tokenizer = check_tokenizer};
    struct sl_fused_opts text = {.window = 512};
    struct sl_fused *fused = NULL;
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--experts",
         .kind = SL_ARG_STRING,
         .out = &experts,
         .group = "Formats",
         .metavar = "FMT",
         .help =
             "routed experts: m4 (4.125 bits a weight, lossless), mxfp4 (4.25, as released), w36 "
             "(3.125), p36 (3.125, readable at 2.125), w26 (2.125), w16 (1.125), or mix:X: w16, "
             "w26 and "
             "w36 chosen by expert and matrix for X bits a weight, with --calib",
         .def = "m4"},
        {.name = "--trunk",
         .kind = SL_ARG_STRING,
         .out = &trunk,
         .group = "Formats",
         .metavar = "FMT",
         .help =
             "everything else: bf16 (as released), t8 (8.5 bits a weight), t6 (6.5), t4 (4.5); "
             "then, after commas, groups that differ: t6,embed=t4,head=t8; groups are kda, mla, "
             "latent, shared, dense, embed, head",
         .def = "bf16"},
        {.name = "--calib",
         .kind = SL_ARG_STRING,
         .out = &o.calib,
         .group = "Formats",
         .metavar = "F",
         .help =
             "for w36, p36, w26, w16: a text, which passes through each layer as it is converted, "
             "or statistics of `sluice calibrate`"},
        {.name = "--calib-ids",
         .kind = SL_ARG_STRING,
         .out = &text.ids,
         .group = "Formats",
         .metavar = "F",
         .help = "token ids instead of a text: *.u16 or *.u32 (little-endian), or text"},
        {.name = "--tokens",
         .kind = SL_ARG_INT,
         .out = &text.tokens,
         .group = "Formats",
         .metavar = "N",
         .help = "calibrate on the first N tokens",
         .def = "all",
         .min = 1,
         .max = 1e15},
        {.name = "--window",
         .kind = SL_ARG_INT,
         .out = &text.window,
         .group = "Formats",
         .metavar = "W",
         .help = "tokens a window of calibration; the state is empty at the start of each",
         .def = "512",
         .min = 2,
         .max = 1 << 16},
        {.name = "--sensitivity",
         .kind = SL_ARG_STRING,
         .out = &o.sensitivity,
         .group = "Formats",
         .metavar = "F",
         .help = "of `sluice calibrate --sensitivity`, for a mix",
         .def = "all layers alike"},
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
        {.name = "--device",
         .kind = SL_ARG_STRING,
         .out = &device,
         .group = "Run",
         .metavar = "NAME",
         .help = "cpu, or cuda: w26 and w36 without --calib are encoded on the first GPU, the same "
                 "bytes",
         .def = "cpu",
         .choices = devices},
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
    if (!read_experts(experts, &o))
        return sl_args_usage(&cmd, "--experts %s: not one of m4, mxfp4, w36, p36, w26, w16, mix:X",
                             experts);
    if (!read_trunk(trunk, &o))
        return sl_args_usage(&cmd,
                             "--trunk %s: not FMT[,GROUP=FMT...] with formats bf16, t8, t6, t4 and "
                             "groups kda, mla, latent, shared, dense, embed, head",
                             trunk);
    o.jobs = (int)jobs;
    o.cuda = strcmp(device, "cuda") == 0;
    o.bank_dirs = bank_dirs.v;
    o.n_bank_dirs = bank_dirs.n;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of that write, not our end */
    memset(&report, 0, sizeof report);
    int rc = open_text(&o, &text, &fused, &err);
    if (!rc) rc = sl_convert(pos[0], pos[1], &o, &report, &err);
    sl_fused_close(fused);
    if (!rc)
        rc = json ? print_json(pos[0], pos[1], &o, &report, &err)
                  : print_human(pos[0], pos[1], &o, &report, &err);
    sl_mix_report_close(report.mix);
    return rc ? sl_cmd_fail(&err) : 0;
}
