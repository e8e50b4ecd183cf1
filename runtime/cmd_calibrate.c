/* sluice calibrate: statistics of a text for the encoders of low-bit experts.
 *
 * Progress is kept beside the output, in STATS.part, every minute or so and when interrupted; the same
 * command goes on from there and gives the same bytes as one uninterrupted run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/progress.h"
#include "runtime/calibrate.h"
#include "runtime/cli_input.h"
#include "runtime/commands.h"
#include "runtime/engine_flags.h"
#include "runtime/lookahead_fit.h"
#include "runtime/rank_fit.h"
#include "runtime/report.h"
#include "runtime/sensitivity.h"

struct calibrate_flags {
    const char *out, *ids, *text, *ref;
    int64_t tokens, window;
    uint64_t expert_bytes;
    bool json, lookahead_only, ranks, sensitivity;
    struct sl_engine_flags engine;
};

struct run {
    const struct calibrate_flags *f;
    sluice_pack *p;
    sluice_session *s;
    struct sl_calib *sums;
    char *meta;
    char part[SL_PATH_MAX];
    uint64_t resumed; /* windows that an earlier run had done */
};

static int parse(struct calibrate_flags *f, int argc, char **argv, const char **pos)
{
    *f = (struct calibrate_flags){.window = 512, .expert_bytes = 1u << 30};
    struct sl_arg_opt engine[SL_N_ENGINE_FLAGS];
    sl_engine_flags_init(&f->engine, engine);
    const struct sl_arg_opt opts[] = {
        {.name = "-o",
         .kind = SL_ARG_STRING,
         .out = &f->out,
         .group = "Output",
         .metavar = "STATS",
         .help = "the statistics file to write"},
        {.name = "--ids",
         .kind = SL_ARG_STRING,
         .out = &f->ids,
         .group = "Input",
         .metavar = "F",
         .help = "token ids instead of TEXT: *.u16 or *.u32 (little-endian), or text"},
        {.name = "--tokens",
         .kind = SL_ARG_INT,
         .out = &f->tokens,
         .group = "Input",
         .metavar = "N",
         .help = "use the first N tokens",
         .def = "all",
         .min = 1,
         .max = 1e15},
        {.name = "--window",
         .kind = SL_ARG_INT,
         .out = &f->window,
         .group = "Input",
         .metavar = "W",
         .help = "tokens a window; the state is empty at the start of each",
         .def = "512",
         .min = 2,
         .max = 1 << 24},
        {.name = "--expert-memory",
         .kind = SL_ARG_SIZE,
         .out = &f->expert_bytes,
         .group = "Memory",
         .metavar = "SIZE",
         .help = "keep a covariance for each expert if all of them take no more than this",
         .def = "1GiB"},
        {.name = "--lookahead-only",
         .kind = SL_ARG_FLAG,
         .out = &f->lookahead_only,
         .group = "Output",
         .help = "write look-ahead maps instead, for PACK/calib/lookahead.stats; not resumable"},
        {.name = "--ranks",
         .kind = SL_ARG_FLAG,
         .out = &f->ranks,
         .group = "Output",
         .help = "measure which ranks of p36 experts pay for a whole read, against --ref; the plan "
                 "goes into PACK, with --bits as its default"},
        {.name = "--sensitivity",
         .kind = SL_ARG_FLAG,
         .out = &f->sensitivity,
         .group = "Output",
         .help =
             "write how much each layer's experts matter instead, for `convert --experts mix:X`; a "
             "few thousand --tokens will do"},
        {.name = "--ref",
         .kind = SL_ARG_STRING,
         .out = &f->ref,
         .group = "Input",
         .metavar = "PACK",
         .help = "the lossless pack that --ranks compares with"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f->json,
         .group = "Output",
         .help = "one JSON object"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "calibrate",
        .about = "Collects statistics of the experts' inputs for `convert --calib`; resumable.",
        .example = "sluice calibrate k3-m4.pack calib.txt -o calib.stats",
        .pos = {"PACK", "TEXT"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = engine,
        .n_more = SL_N_ENGINE_FLAGS,
    };
    int rc = sl_args_parse(&cmd, argc, argv, pos);
    if (rc != SL_ARGS_GO) return rc;
    f->text = pos[1];
    if (!f->ids == !f->text) return sl_args_usage(&cmd, "give either TEXT or --ids F");
    if (!f->ranks != !f->ref) return sl_args_usage(&cmd, "--ranks and --ref PACK go together");
    if (f->ranks && (f->out || f->lookahead_only || f->sensitivity))
        return sl_args_usage(&cmd, "--ranks writes into PACK: no -o, no other output");
    if (f->sensitivity && f->lookahead_only)
        return sl_args_usage(&cmd, "--sensitivity and --lookahead-only write files of their own");
    if (!f->out && !f->ranks) return sl_args_usage(&cmd, "-o STATS is missing");
    return SL_ARGS_GO;
}

static int read_ids(struct sl_ids *ids, const struct calibrate_flags *f, const sluice_pack *p,
                    struct sl_err *err)
{
    char *text;
    size_t len;
    int rc;
    if (f->ids) {
        rc = sl_input_ids_file(ids, f->ids, sluice_vocab_size(p), err);
    } else {
        rc = sl_input_text(&text, &len, f->text, err);
        if (rc) return rc;
        rc = sl_input_documents(ids, p, text, len, f->text, err);
        free(text);
    }
    if (rc) return rc;
    if (f->tokens && (uint64_t)f->tokens < ids->n) ids->n = (size_t)f->tokens;
    if (!ids->n)
        return sl_fail(err, SL_E_SOURCE, f->ids ? f->ids : f->text, NULL, "holds no tokens");
    return 0;
}

/* What the sums were taken from: another pack, text or window starts over. */
static char *make_meta(const struct run *r, const struct sl_ids *ids, bool per_expert)
{
    char hex[65];
    struct sl_sha256 *sha = sl_sha256_open();
    if (!sha) return NULL;
    sl_sha256_add(sha, ids->v, ids->n * sizeof *ids->v);
    sl_sha256_close(sha, hex);
    char *text = malloc(512);
    if (text)
        snprintf(text, 512,
                 "{\"source\":\"%s\",\"experts\":\"%s\",\"trunk\":\"%s\",\"ids\":\"%s\",\"tokens\":"
                 "%zu,\"window\":%lld,\"per_expert\":%s}",
                 r->p->pack->source_sha256, sl_fmt_name(r->p->pack->experts_fmt),
                 sl_fmt_name(r->p->pack->trunk_fmt), hex, ids->n, (long long)r->f->window,
                 per_expert ? "true" : "false");
    return text;
}

/* Sums of an earlier run when its meta is ours, else fresh ones. */
static int open_sums(struct run *r, const struct sl_ids *ids, struct sl_err *err)
{
    struct sl_calib_shape shape;
    uint8_t is_moe[SL_MAX_LAYERS];
    const struct sl_config *c = &r->p->pack->cfg;
    int n_moe = 0;
    sl_calibrate_shape(c, &shape, is_moe);
    for (int l = 0; l < c->n_layers; l++) n_moe += is_moe[l];
    bool per_expert = sl_calib_bytes(&shape, n_moe, true) - sl_calib_bytes(&shape, n_moe, false) <=
                      r->f->expert_bytes;
    r->meta = make_meta(r, ids, per_expert);
    if (!r->meta) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    if (access(r->part, F_OK) == 0) {
        char *meta = NULL;
        int rc = sl_calib_load(&r->sums, r->part, &shape, is_moe, &meta, err);
        bool same = !rc && strcmp(meta, r->meta) == 0;
        free(meta);
        if (same) {
            r->resumed = r->sums->windows;
            return 0;
        }
        if (!rc) sl_calib_close(r->sums);
        r->sums = NULL;
        /* Not ours or not sound: it is only a cache of work. */
    }
    return sl_calib_open(&r->sums, &shape, is_moe, per_expert, err);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int feed_all(struct run *r, const struct sl_ids *ids, struct sl_err *err)
{
    struct sl_calibrator *c;
    int rc = sl_calibrator_open(&c, r->s, r->sums, err);
    if (rc) return rc;
    const size_t W = (size_t)r->f->window;
    struct sl_progress *bar = sl_progress_open("calibrate", "tokens", ids->n, 0);
    sl_progress_skip(bar, r->sums->tokens, 0);
    double saved = seconds();
    for (size_t at = (size_t)r->sums->tokens; at < ids->n && !rc; at += W) {
        sluice_error e = {0};
        const size_t n = ids->n - at < W ? ids->n - at : W;
        rc = sl_calibrator_window(c, ids->v + at, n, &e);
        if (rc) { /* a window that was cut has left a part of itself in the sums: .part is older */
            err->code = e.code;
            snprintf(err->text, sizeof err->text, "%s", e.text);
            break;
        }
        sl_progress_add(bar, n, 0);
        if (seconds() - saved < 60) continue;
        rc = sl_calib_save(r->sums, r->part, r->meta, err);
        saved = seconds();
    }
    sl_progress_close(bar);
    sl_calibrator_close(c);
    return rc;
}

static int report(const struct run *r, struct sl_err *err)
{
    uint64_t least = UINT64_MAX;
    const struct sl_calib *c = r->sums;
    for (int l = 0; l < c->shape.n_layers; l++)
        for (int e = 0; c->layers[l].counts && e < c->shape.n_experts; e++)
            if (c->layers[l].counts[e] < least) least = c->layers[l].counts[e];
    if (!r->f->json) {
        printf("%llu tokens in %llu windows of %lld -> %s\n", (unsigned long long)c->tokens,
               (unsigned long long)c->windows, (long long)r->f->window, r->f->out);
        printf("fewest tokens of an expert %llu, covariances %s\n", (unsigned long long)least,
               c->per_expert ? "for each expert and layer" : "for each layer");
        return 0;
    }
    cJSON *o = sl_report_open(sl_pool_threads(r->s->pool));
    if (o) {
        sl_report_str(o, "out", r->f->out);
        sl_report_u64(o, "tokens", c->tokens);
        sl_report_u64(o, "windows", c->windows);
        sl_report_u64(o, "resumed_windows", r->resumed);
        sl_report_u64(o, "fewest_tokens_of_an_expert", least);
        sl_report_bool(o, "per_expert", c->per_expert);
        sl_engine_stats_json(o, r->s);
    }
    return sl_report_print(o, err);
}

/* Maps of look-ahead in place of sums: one pass, kept in memory. */
static int fit_lookahead(struct run *r, const struct sl_ids *ids, struct sl_err *err)
{
    struct sl_ahead_fit *fit;
    int rc = sl_ahead_fit_open(&fit, r->s, r->f->expert_bytes, err);
    if (rc) return rc;
    const size_t W = (size_t)r->f->window;
    struct sl_progress *bar = sl_progress_open("calibrate", "tokens", ids->n, 0);
    for (size_t at = 0; at < ids->n && !rc; at += W) {
        sluice_error e = {0};
        const size_t n = ids->n - at < W ? ids->n - at : W;
        sluice_session_reset(r->s);
        rc = sluice_feed(r->s, ids->v + at, n, &e);
        if (rc) {
            err->code = e.code;
            snprintf(err->text, sizeof err->text, "%s", e.text);
        }
        sl_progress_add(bar, n, 0);
    }
    sl_progress_close(bar);
    if (!rc) rc = sl_ahead_fit_save(fit, r->f->out, err);
    sl_ahead_fit_close(fit);
    if (rc) return rc;
    if (!r->f->json) {
        printf("look-ahead maps of %zu tokens in windows of %zu -> %s\n", ids->n, W, r->f->out);
        return 0;
    }
    cJSON *o = sl_report_open(sl_pool_threads(r->s->pool));
    if (o) {
        sl_report_str(o, "out", r->f->out);
        sl_report_u64(o, "tokens", ids->n);
        sl_engine_stats_json(o, r->s);
    }
    return sl_report_print(o, err);
}

/* The reference beside the pack; it opens first and takes half of what the machine allows. */
static int open_reference(sluice_pack **p, sluice_session **s, const char *path,
                          sluice_options opts, sluice_error *e)
{
    sluice_plan_info plan = {.limit_bytes = 0};
    opts.bits = 0;
    opts.trace = NULL;
    opts.bank_dirs = NULL;
    opts.n_bank_dirs = 0;
    int rc = sluice_pack_open(p, path, &opts, e);
    if (!rc) rc = sluice_plan(*p, &opts, &plan, e);
    opts.ram_bytes = plan.limit_bytes / 2;
    return rc ? rc : sluice_session_open(s, *p, &opts, e);
}

static int report_ranks(const struct run *r, const struct sl_rank_plan *plan,
                        const struct sl_rank_choice *choice, struct sl_err *err)
{
    const struct sl_config *c = &r->p->pack->cfg;
    if (!r->f->json) {
        printf("%-8s %10s  %s\n", "layer", "KL drop", "ranks read whole");
        for (int l = 0; l < c->n_layers; l++)
            if (r->p->pack->bank_of[l] >= 0)
                printf("%-8d %10.5f  %d of %d\n", l, plan->drop[l], choice->ranks[l], c->top_k);
        for (int i = 0; i < plan->n_points; i++)
            printf("%.3f bits read: KL %.4f\n", plan->points[i].bits, plan->points[i].kl);
        printf("plan of %.3f bits (KL %.4f), from %llu tokens -> %s/pack.json\n", choice->bits,
               choice->kl, (unsigned long long)plan->tokens, r->p->pack->dir);
        return sl_cmd_flush(err);
    }
    cJSON *o = sl_report_open(sl_pool_threads(r->s->pool));
    if (o) {
        sl_report_u64(o, "tokens", plan->tokens);
        sl_report_f64(o, "bits", choice->bits);
        sl_report_f64(o, "kl", choice->kl);
        cJSON *points = cJSON_AddArrayToObject(o, "points");
        for (int i = 0; i < plan->n_points; i++) {
            cJSON *v = cJSON_CreateObject();
            sl_report_f64(v, "bits", plan->points[i].bits);
            sl_report_f64(v, "kl", plan->points[i].kl);
            cJSON_AddItemToArray(points, v);
        }
        cJSON *layers = cJSON_AddArrayToObject(o, "layers");
        for (int l = 0; l < c->n_layers; l++) {
            if (r->p->pack->bank_of[l] < 0) continue;
            cJSON *v = cJSON_CreateObject();
            sl_report_u64(v, "layer", (uint64_t)l);
            sl_report_f64(v, "drop", plan->drop[l]);
            sl_report_u64(v, "ranks", (uint64_t)choice->ranks[l]);
            cJSON_AddItemToArray(layers, v);
        }
        sl_engine_stats_json(o, r->s);
    }
    return sl_report_print(o, err);
}

static int fit_ranks(struct run *r, sluice_session *ref, const struct sl_ids *ids, sluice_error *e)
{
    struct sl_err err = {0};
    struct sl_rank_plan *plan = NULL;
    struct sl_rank_choice *choice = malloc(sizeof *choice);
    const struct sl_rank_text text = {ids->v, ids->n, (size_t)r->f->window};
    if (!choice)
        return sl_engine_give(e, &err, sl_fail(&err, SL_E_NOMEM, NULL, "ranks", "out of memory"));
    int rc = sl_rank_fit(&plan, r->s, ref, &text, r->f->engine.bits, e);
    if (!rc) {
        rc = sl_rank_choose(r->p->pack, plan, 0, choice, &err);
        if (!rc) rc = sl_rank_plan_save(plan, r->p->pack->dir, &err);
        if (!rc) rc = report_ranks(r, plan, choice, &err);
        if (rc) sl_engine_give(e, &err, rc);
    }
    free(choice);
    sl_rank_plan_close(plan);
    return rc;
}

/* A plan of ranks in place of sums. */
static int calibrate_ranks(struct run *r, const char *pack, sluice_options opts)
{
    struct sl_err err = {0};
    sluice_error e = {0};
    struct sl_ids ids = {0};
    sluice_pack *ref_pack = NULL;
    sluice_session *ref = NULL;
    int status = 0;
    opts.bits = 0;
    opts.logit_rows = 64;
    if (sluice_pack_open(&r->p, pack, &opts, &e)) return sl_engine_fail(&e);
    if (read_ids(&ids, r->f, r->p, &err))
        status = sl_cmd_fail(&err);
    else if (open_reference(&ref_pack, &ref, r->f->ref, opts, &e) ||
             sluice_session_open(&r->s, r->p, &opts, &e) || fit_ranks(r, ref, &ids, &e))
        status = sl_engine_fail(&e);
    else if (sl_engine_stats_save(&r->f->engine, r->s, &err))
        status = sl_cmd_fail(&err);
    sl_ids_free(&ids);
    sluice_session_close(ref);
    sluice_pack_close(ref_pack);
    return status;
}

/* Sensitivities of layers in place of sums. */
static int measure_sensitivity(struct run *r, const struct sl_ids *ids, struct sl_err *err)
{
    const struct sl_pack *p = r->p->pack;
    const struct sl_rank_text text = {ids->v, ids->n, (size_t)r->f->window};
    double *kl = malloc((size_t)p->cfg.n_layers * sizeof *kl);
    sluice_error e = {0};
    if (!kl) return sl_fail(err, SL_E_NOMEM, NULL, "sensitivity", "out of memory");
    int rc = sl_sensitivity_measure(kl, r->s, &text, &e);
    if (rc) {
        err->code = e.code;
        snprintf(err->text, sizeof err->text, "%s", e.text);
    }
    if (!rc) rc = sl_sensitivity_save(kl, r->s, r->f->out, err);
    if (!rc && r->f->json) {
        cJSON *o = sl_report_open(sl_pool_threads(r->s->pool));
        if (o) {
            sl_report_str(o, "out", r->f->out);
            sl_report_u64(o, "tokens", ids->n / text.window * text.window);
            cJSON *layers = cJSON_AddArrayToObject(o, "layers");
            for (int l = 0; l < p->cfg.n_layers; l++) {
                if (p->bank_of[l] < 0) continue;
                cJSON *v = cJSON_CreateObject();
                sl_report_u64(v, "layer", (uint64_t)l);
                sl_report_f64(v, "sensitivity", kl[l]);
                cJSON_AddItemToArray(layers, v);
            }
            sl_engine_stats_json(o, r->s);
        }
        rc = sl_report_print(o, err);
    } else if (!rc) {
        printf("%-6s %s\n", "layer", "KL a unit of relative error power of its experts' outputs");
        for (int l = 0; l < p->cfg.n_layers; l++)
            if (p->bank_of[l] >= 0) printf("%-6d %.4f\n", l, kl[l]);
        printf("%zu tokens -> %s\n", ids->n / text.window * text.window, r->f->out);
        rc = sl_cmd_flush(err);
    }
    free(kl);
    return rc;
}

static int calibrate(struct run *r, const char *pack, sluice_options *opts)
{
    struct sl_err err = {0};
    sluice_error e = {0};
    struct sl_ids ids = {0};
    int status;
    if (sluice_pack_open(&r->p, pack, opts, &e)) return sl_engine_fail(&e);
    int rc = 0;
    if ((size_t)snprintf(r->part, sizeof r->part, "%s.part", r->f->out) >= sizeof r->part)
        rc = sl_fail(&err, SL_E_ARG, r->f->out, NULL, "the path is too long");
    if (!rc) rc = read_ids(&ids, r->f, r->p, &err);
    const bool other = r->f->lookahead_only || r->f->sensitivity; /* in place of sums */
    if (!rc && !other) rc = open_sums(r, &ids, &err);
    if (rc) {
        status = sl_cmd_fail(&err);
    } else if (sluice_session_open(&r->s, r->p, opts, &e)) {
        status = sl_engine_fail(&e);
    } else {
        rc = r->f->sensitivity      ? measure_sensitivity(r, &ids, &err)
             : r->f->lookahead_only ? fit_lookahead(r, &ids, &err)
                                    : feed_all(r, &ids, &err);
        if (!rc && !other) rc = sl_calib_save(r->sums, r->f->out, r->meta, &err);
        if (!rc && !other) {
            unlink(r->part);
            rc = report(r, &err);
        }
        if (!rc) rc = sl_engine_stats_save(&r->f->engine, r->s, &err);
        status = rc ? sl_cmd_fail(&err) : 0;
    }
    sl_ids_free(&ids);
    return status;
}

int sl_cmd_calibrate(int argc, char **argv)
{
    struct calibrate_flags f;
    const char *pos[SL_ARG_POS_MAX];
    int status = parse(&f, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    sluice_options opts = sl_engine_flags_options(&f.engine);
    if (!opts.exact) opts.exact = 1; /* statistics of the model, not of a path */
    if (!opts.ctx) opts.ctx = (uint64_t)f.window;
    struct run r = {.f = &f};
    status = f.ranks ? calibrate_ranks(&r, pos[0], opts) : calibrate(&r, pos[0], &opts);
    sluice_session_close(r.s);
    sluice_pack_close(r.p);
    sl_calib_close(r.sums);
    free(r.meta);
    return status;
}
