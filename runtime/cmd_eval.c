/* sluice eval: how well a pack predicts a text, and how far it is from a reference pack.
 *
 * Window i is ids[i*stride : i*stride+W], state empty at its start. W-1 predictions a window are scored
 * against the text; with --ref both packs run the same windows and KL(ref || pack) and the agreement of
 * their best tokens are taken at all W positions. One window of reference logits is held at a time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/progress.h"
#include "runtime/cli_input.h"
#include "runtime/commands.h"
#include "runtime/engine.h"
#include "runtime/engine_flags.h"
#include "runtime/eval_math.h"
#include "runtime/report.h"
#include "runtime/sampling.h"

struct eval_flags {
    const char *ids, *text, *ref, *routes;
    int64_t window, windows, stride;
    bool json;
    struct sl_engine_flags engine;
};

/* The state of one evaluation; `at` and `window_ids` belong to the window in progress. */
struct eval {
    int vocab;
    int64_t window, stride;
    uint64_t n_windows;
    struct sl_ids ids;
    struct sl_eval_sum own, ref;
    float *ref_logits; /* [window][vocab], NULL without --ref */
    double *kl;        /* [n_windows * window], NULL without --ref */
    size_t n_kl;
    uint64_t agree;
    uint64_t flips[SL_MAX_LAYERS]; /* chosen experts that the reference did not choose */
    bool has_flips;
    const int32_t *window_ids;
    struct sl_progress *progress;
};

static int parse(struct eval_flags *f, int argc, char **argv, const char **pos)
{
    static const char *const routes[] = {"own", "ref", NULL};
    *f = (struct eval_flags){.window = 256, .routes = "own"};
    struct sl_arg_opt engine[SL_N_ENGINE_FLAGS];
    sl_engine_flags_init(&f->engine, engine);
    const struct sl_arg_opt opts[] = {
        {.name = "--ids",
         .kind = SL_ARG_STRING,
         .out = &f->ids,
         .group = "Input",
         .metavar = "F",
         .help = "token ids of the text: *.u16 or *.u32 (little-endian), or text"},
        {.name = "--text",
         .kind = SL_ARG_STRING,
         .out = &f->text,
         .group = "Input",
         .metavar = "F",
         .help = "a text; NUL separates documents, each becomes [BOS] text [EOS]"},
        {.name = "--window",
         .kind = SL_ARG_INT,
         .out = &f->window,
         .group = "Windows",
         .metavar = "W",
         .help = "tokens a window",
         .def = "256",
         .min = 2,
         .max = 1 << 24},
        {.name = "--windows",
         .kind = SL_ARG_INT,
         .out = &f->windows,
         .group = "Windows",
         .metavar = "N",
         .help = "windows at most",
         .def = "all",
         .min = 1,
         .max = 1e15},
        {.name = "--stride",
         .kind = SL_ARG_INT,
         .out = &f->stride,
         .group = "Windows",
         .metavar = "S",
         .help = "tokens from one start to the next",
         .def = "the window",
         .min = 1,
         .max = 1e15},
        {.name = "--ref",
         .kind = SL_ARG_STRING,
         .out = &f->ref,
         .group = "Comparison",
         .metavar = "PACK",
         .help = "compare with this pack: KL(ref || PACK), top-1 agreement"},
        {.name = "--routes",
         .kind = SL_ARG_STRING,
         .out = &f->routes,
         .group = "Comparison",
         .metavar = "WHOSE",
         .help = "ref: take the experts that the reference chose",
         .def = "own",
         .choices = routes},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f->json,
         .group = "Output",
         .help = "one JSON object"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "eval",
        .about = "Measures how well a pack predicts a text, window by window.",
        .example = "sluice eval k3-w26.pack --text valid.txt --ref k3-m4.pack",
        .pos = {"PACK"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = engine,
        .n_more = SL_N_ENGINE_FLAGS,
    };
    int rc = sl_args_parse(&cmd, argc, argv, pos);
    if (rc != SL_ARGS_GO) return rc;
    if (!f->ids == !f->text) return sl_args_usage(&cmd, "give either --ids F or --text F");
    if (!f->ref && strcmp(f->routes, "ref") == 0)
        return sl_args_usage(&cmd, "--routes ref needs --ref PACK");
    if (!f->stride) f->stride = f->window;
    return SL_ARGS_GO;
}

static int read_input(struct eval *v, const struct eval_flags *f, const sluice_pack *p,
                      struct sl_err *err)
{
    const char *name = f->ids ? f->ids : f->text;
    int rc;
    if (f->ids) {
        rc = sl_input_ids_file(&v->ids, f->ids, v->vocab, err);
    } else {
        char *text;
        size_t len;
        rc = sl_input_text(&text, &len, f->text, err);
        if (rc) return rc;
        rc = sl_input_documents(&v->ids, p, text, len, f->text, err);
        free(text);
    }
    if (rc) return rc;
    size_t w = (size_t)f->window;
    if (v->ids.n < w)
        return sl_fail(err, SL_E_SOURCE, name, NULL, "%zu tokens are less than one window of %zu",
                       v->ids.n, w);
    v->window = f->window;
    v->stride = f->stride;
    v->n_windows = (v->ids.n - w) / (uint64_t)f->stride + 1;
    if (f->windows && (uint64_t)f->windows < v->n_windows) v->n_windows = (uint64_t)f->windows;
    return 0;
}

static int32_t next_of(const struct eval *v, uint64_t position)
{
    return position + 1 < (uint64_t)v->window ? v->window_ids[position + 1] : -1;
}

static int on_ref(void *ctx, uint64_t position, const float *logits)
{
    struct eval *v = ctx;
    sl_eval_add(&v->ref, logits, v->vocab, next_of(v, position));
    memcpy(v->ref_logits + position * (size_t)v->vocab, logits, (size_t)v->vocab * sizeof(float));
    return 0;
}

static int on_own(void *ctx, uint64_t position, const float *logits)
{
    struct eval *v = ctx;
    sl_eval_add(&v->own, logits, v->vocab, next_of(v, position));
    if (!v->ref_logits) return 0;
    const float *ref = v->ref_logits + position * (size_t)v->vocab;
    v->kl[v->n_kl++] = sl_eval_kl(ref, logits, v->vocab);
    v->agree += sl_sample_argmax(ref, v->vocab) == sl_sample_argmax(logits, v->vocab);
    return 0;
}

/* One window through one pack. */
static int feed_window(struct eval *v, sluice_session *s, sluice_logits_fn fn, sluice_error *e)
{
    sluice_session_reset(s);
    return sluice_feed_logits(s, v->window_ids, (size_t)v->window, fn, v, e);
}

static int run_windows(struct eval *v, sluice_session *own, sluice_session *ref, sluice_error *e)
{
    v->progress = sl_progress_open("eval", "windows", v->n_windows, 0);
    int rc = 0;
    for (uint64_t i = 0; i < v->n_windows && !rc; i++) {
        v->window_ids = v->ids.v + i * (uint64_t)v->stride;
        if (ref) rc = feed_window(v, ref, on_ref, e);
        if (!rc) rc = feed_window(v, own, on_own, e);
        if (!rc && v->has_flips) sl_engine_flips(own, ref, (uint64_t)v->window, v->flips);
        v->own.windows++;
        sl_progress_add(v->progress, 1, 0);
    }
    sl_progress_close(v->progress);
    return rc;
}

static double mean(double sum, uint64_t n)
{
    return n ? sum / (double)n : NAN;
}

struct result {
    double nll, ppl, top1_text, kl_mean, kl_p99, ppl_ratio, top1;
};

/* Share of a layer's choices that differ from the reference's; of all layers for layer -1. */
static double flip_share(const struct eval *v, const sluice_session *s, int layer)
{
    const struct sl_config *c = &s->p->pack->cfg;
    uint64_t flips = 0, choices = 0;
    for (int l = 0; l < c->n_layers; l++) {
        if (!sl_config_is_moe(c, l) || (layer >= 0 && l != layer)) continue;
        flips += v->flips[l];
        choices += v->own.positions * (uint64_t)c->top_k;
    }
    return choices ? (double)flips / (double)choices : 0;
}

static struct result score(struct eval *v)
{
    struct result r = {0};
    r.nll = mean(v->own.nll, v->own.scored);
    r.ppl = exp(r.nll);
    r.top1_text = mean((double)v->own.top1_text, v->own.scored);
    if (!v->ref_logits) return r;
    double sum = 0;
    for (size_t i = 0; i < v->n_kl; i++) sum += v->kl[i];
    r.kl_mean = mean(sum, v->n_kl);
    r.kl_p99 = sl_eval_percentile(v->kl, v->n_kl, 99);
    r.ppl_ratio = exp(r.nll - mean(v->ref.nll, v->ref.scored));
    r.top1 = mean((double)v->agree, v->n_kl);
    return r;
}

static void put_flips(cJSON *o, const struct eval *v, const sluice_session *s)
{
    const struct sl_config *c = &s->p->pack->cfg;
    if (!v->has_flips) return;
    sl_report_f64(o, "flips", flip_share(v, s, -1));
    cJSON *list = cJSON_AddArrayToObject(o, "flips_by_layer"); /* null: no routed experts */
    for (int l = 0; list && l < c->n_layers; l++)
        cJSON_AddItemToArray(list, sl_config_is_moe(c, l) ? cJSON_CreateNumber(flip_share(v, s, l))
                                                          : cJSON_CreateNull());
}

static void print_flips(const struct eval *v, const sluice_session *s)
{
    const struct sl_config *c = &s->p->pack->cfg;
    if (!v->has_flips) return;
    printf("flips       %.4f of the chosen experts are not the reference's; by layer:",
           flip_share(v, s, -1));
    for (int l = 0; l < c->n_layers; l++)
        if (sl_config_is_moe(c, l)) printf(" %.4f", flip_share(v, s, l));
    printf("\n");
}

static int print_result(struct eval *v, const struct eval_flags *f, const sluice_session *s,
                        struct sl_err *err)
{
    struct result r = score(v);
    if (f->json) {
        sluice_stats st;
        sluice_get_stats(s, &st);
        cJSON *o = sl_report_open(st.threads);
        if (o) {
            sl_report_u64(o, "tokens", v->own.positions);
            sl_report_u64(o, "windows", v->own.windows);
            sl_report_u64(o, "window", (uint64_t)v->window);
            sl_report_u64(o, "stride", (uint64_t)v->stride);
            sl_report_u64(o, "predictions", v->own.scored);
            sl_report_f64(o, "nll_mean", r.nll);
            sl_report_f64(o, "ppl", r.ppl);
            sl_report_f64(o, "top1_text", r.top1_text);
            if (v->ref_logits) {
                sl_report_str(o, "routes", f->routes);
                sl_report_f64(o, "kl_mean", r.kl_mean);
                sl_report_f64(o, "kl_p99", r.kl_p99);
                sl_report_f64(o, "ppl_ratio", r.ppl_ratio);
                sl_report_f64(o, "top1", r.top1);
                put_flips(o, v, s);
            }
            sl_engine_stats_json(o, s);
        }
        return sl_report_print(o, err);
    }
    printf("tokens      %llu in %llu windows of %lld, stride %lld\n"
           "nll_mean    %.6f nats over %llu predictions\n"
           "ppl         %.4f\n"
           "top1_text   %.4f\n",
           (unsigned long long)v->own.positions, (unsigned long long)v->own.windows,
           (long long)v->window, (long long)v->stride, r.nll, (unsigned long long)v->own.scored,
           r.ppl, r.top1_text);
    if (v->ref_logits)
        printf("kl_mean     %.3e nats, KL(ref || pack)\n"
               "kl_p99      %.3e\n"
               "ppl_ratio   %.6f\n"
               "top1        %.4f agreement with the reference\n",
               r.kl_mean, r.kl_p99, r.ppl_ratio, r.top1);
    print_flips(v, s);
    return sl_cmd_flush(err);
}

static int alloc_ref(struct eval *v, struct sl_err *err)
{
    size_t rows = (size_t)v->window;
    v->ref_logits = calloc(rows, (size_t)v->vocab * sizeof(float));
    v->kl = calloc(v->n_windows, rows * sizeof(double));
    if (v->ref_logits && v->kl) return 0;
    return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for %zu rows of reference logits", rows);
}

/* Half of what the machine allows for the reference: the pack under test opens after it, when the
 * reference already counts as taken. */
static int open_ref(sluice_pack **p, sluice_session **s, const char *path, sluice_options opts,
                    int vocab, sluice_error *e)
{
    sluice_plan_info plan;
    opts.exact = 1; /* distances are to the model, not to a path */
    opts.trace = NULL;
    opts.bits = 0;
    opts.bank_dirs = NULL;
    opts.n_bank_dirs = 0;
    int rc = sluice_pack_open(p, path, &opts, e);
    if (rc) return rc;
    if (sluice_vocab_size(*p) != vocab) {
        struct sl_err err = {0};
        rc = sl_fail(&err, SL_E_PACK, path, "vocab_size", "%d, the pack under test has %d",
                     sluice_vocab_size(*p), vocab);
        return sl_engine_give(e, &err, rc);
    }
    rc = sluice_plan(*p, &opts, &plan, e);
    if (rc) return rc;
    opts.ram_bytes = plan.limit_bytes / 2;
    return sluice_session_open(s, *p, &opts, e);
}

/* Flips are counted where both choose for themselves among the same experts. */
static int keep_flips(struct eval *v, const struct eval_flags *f, sluice_session *own,
                      sluice_session *ref, sluice_error *e)
{
    struct sl_err err = {0};
    if (!ref || strcmp(f->routes, "ref") == 0) return 0;
    const struct sl_config *a = &own->p->pack->cfg, *b = &ref->p->pack->cfg;
    if (a->n_layers != b->n_layers || a->n_experts != b->n_experts || a->top_k != b->top_k)
        return 0;
    for (int l = 0; l < a->n_layers; l++)
        if (sl_config_is_moe(a, l) != sl_config_is_moe(b, l)) return 0;
    int rc = sl_engine_keep_routes(own, &err);
    if (!rc) rc = sl_engine_keep_routes(ref, &err);
    v->has_flips = !rc;
    return rc ? sl_engine_give(e, &err, rc) : 0;
}

static int evaluate(struct eval *v, const struct eval_flags *f, sluice_pack *p, sluice_options opts)
{
    struct sl_err err = {0};
    sluice_error e = {0};
    sluice_pack *ref_pack = NULL;
    sluice_session *ref = NULL;
    sluice_session *own = NULL;
    int status = 0;
    if (!opts.ctx) opts.ctx = (uint64_t)v->window;
    opts.logit_rows = 64;
    if (f->ref && alloc_ref(v, &err)) {
        status = sl_cmd_fail(&err);
        goto out;
    }
    if ((f->ref && open_ref(&ref_pack, &ref, f->ref, opts, v->vocab, &e)) ||
        sluice_session_open(&own, p, &opts, &e) ||
        (strcmp(f->routes, "ref") == 0 && sluice_follow_routes(own, ref, &e)) ||
        keep_flips(v, f, own, ref, &e) || run_windows(v, own, ref, &e)) {
        status = sl_engine_fail(&e);
        goto out;
    }
    if (print_result(v, f, own, &err) || sl_engine_stats_save(&f->engine, own, &err))
        status = sl_cmd_fail(&err);
out:
    sluice_session_close(own);
    sluice_session_close(ref);
    sluice_pack_close(ref_pack);
    return status;
}

int sl_cmd_eval(int argc, char **argv)
{
    struct eval_flags f;
    const char *pos[SL_ARG_POS_MAX];
    int status = parse(&f, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;

    sluice_options opts = sl_engine_flags_options(&f.engine);
    sluice_error e = {0};
    struct sl_err err = {0};
    struct eval v = {0};
    sluice_pack *p = NULL;
    if (sluice_pack_open(&p, pos[0], &opts, &e)) return sl_engine_fail(&e);
    v.vocab = sluice_vocab_size(p);
    status = read_input(&v, &f, p, &err) ? sl_cmd_fail(&err) : evaluate(&v, &f, p, opts);
    sluice_pack_close(p);
    sl_ids_free(&v.ids);
    free(v.ref_logits);
    free(v.kl);
    return status;
}
