/* sluice bench: how fast this build is here.
 *
 *   kernels          matrix kernels, every ISA rung of this machine, beside the ceilings of a core
 *   prefill PACK     a prompt of -n tokens, from an empty state
 *   decode PACK      -n tokens one by one
 *   io               whole-record reads of a drive (cmd_bench_io.c)
 *
 * Figures are medians of interleaved rounds: both arms of a comparison see the same machine, and one
 * disturbed round does not move a median. Tokens are a fixed pseudo-random sequence, so two builds
 * compute the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/bench_kernels.h"
#include "runtime/commands.h"
#include "runtime/engine_flags.h"
#include "runtime/eval_math.h"
#include "runtime/report.h"
#include "runtime/sampling.h"

enum { ROUNDS_MAX = 99 };

struct bench_flags {
    int64_t n, rounds;
    double seconds;
    bool json;
    struct sl_engine_flags engine;
};

struct timing {
    double prefill[ROUNDS_MAX], decode[ROUNDS_MAX]; /* tokens a second, by round */
    int n;
};

static int32_t bench_token(int vocab, int64_t i)
{
    return (int32_t)(sl_sample_uniform(1, (uint64_t)i) * vocab);
}

/* One round: n_prompt tokens at once, then n_decode one by one. */
static int one_round(sluice_session *s, const int32_t *ids, size_t n_prompt, size_t n_decode,
                     struct timing *t, sluice_error *e)
{
    sluice_stats a;
    sluice_stats b;
    sluice_session_reset(s);
    sluice_get_stats(s, &a);
    int rc = sluice_feed(s, ids, n_prompt, e);
    for (size_t i = 0; i < n_decode && !rc; i++) rc = sluice_feed(s, ids + n_prompt + i, 1, e);
    if (rc) return rc;
    sluice_get_stats(s, &b);
    t->prefill[t->n] =
        sl_rate(b.prefill_tokens - a.prefill_tokens, b.prefill_seconds - a.prefill_seconds);
    t->decode[t->n] =
        sl_rate(b.decode_tokens - a.decode_tokens, b.decode_seconds - a.decode_seconds);
    t->n++;
    return 0;
}

static int print_timing(const struct bench_flags *f, struct timing *t, bool decode,
                        const sluice_session *s, struct sl_err *err)
{
    double *v = decode ? t->decode : t->prefill;
    const char *name = decode ? "decode" : "prefill";
    double low = sl_eval_percentile(v, (size_t)t->n, 10);
    double mid = sl_eval_percentile(v, (size_t)t->n, 50);
    double high = sl_eval_percentile(v, (size_t)t->n, 90);
    sluice_stats st;
    sluice_get_stats(s, &st);
    if (f->json) {
        cJSON *o = sl_report_open(st.threads);
        if (o) {
            sl_report_str(o, "bench", name);
            sl_report_u64(o, "tokens", (uint64_t)f->n);
            sl_report_u64(o, "rounds", (uint64_t)t->n);
            sl_report_f64(o, "tok_per_s", mid);
            sl_report_f64(o, "tok_per_s_p10", low);
            sl_report_f64(o, "tok_per_s_p90", high);
            sl_engine_stats_json(o, s);
        }
        return sl_report_print(o, err);
    }
    printf("%s  %lld tokens, %d rounds, %d threads, %s: median %.1f tok/s (p10 %.1f, p90 %.1f)\n",
           name, (long long)f->n, t->n, st.threads, st.isa, mid, low, high);
    return sl_cmd_flush(err);
}

static int bench_pack(const struct bench_flags *f, const char *path, bool decode)
{
    sluice_options opts = sl_engine_flags_options(&f->engine);
    sluice_error e = {0};
    struct sl_err err = {0};
    struct timing t = {.n = 0};
    sluice_pack *p = NULL;
    sluice_session *s = NULL;
    int status = 0;
    size_t n_prompt = decode ? 1 : (size_t)f->n;
    size_t n_decode = decode ? (size_t)f->n : 0;
    int32_t *ids = calloc(n_prompt + n_decode, sizeof *ids);
    if (!opts.ctx) opts.ctx = n_prompt + n_decode;
    if (!ids) {
        sl_fail(&err, SL_E_NOMEM, NULL, NULL, "no memory for %zu ids", n_prompt + n_decode);
        return sl_cmd_fail(&err);
    }
    int rc = sluice_pack_open(&p, path, &opts, &e);
    if (!rc) {
        int vocab = sluice_vocab_size(p);
        for (size_t i = 0; i < n_prompt + n_decode; i++) ids[i] = bench_token(vocab, (int64_t)i);
        rc = sluice_session_open(&s, p, &opts, &e);
    }
    /* A first round warms caches and is not counted. */
    if (!rc) rc = one_round(s, ids, n_prompt, n_decode, &t, &e);
    t.n = 0;
    while (!rc && t.n < f->rounds) rc = one_round(s, ids, n_prompt, n_decode, &t, &e);
    if (rc)
        status = sl_engine_fail(&e);
    else if (print_timing(f, &t, decode, s, &err) || sl_engine_stats_save(&f->engine, s, &err))
        status = sl_cmd_fail(&err);
    sluice_session_close(s);
    sluice_pack_close(p);
    free(ids);
    return status;
}

int sl_cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "io") == 0) return sl_cmd_bench_io(argc - 1, argv + 1);
    struct bench_flags f = {.n = 128, .rounds = 5, .seconds = 10};
    const char *pos[SL_ARG_POS_MAX];
    struct sl_arg_opt engine[SL_N_ENGINE_FLAGS];
    sl_engine_flags_init(&f.engine, engine);
    bool of_kernels = false; /* an option of `kernels` alone was used, or one of the others alone */
    bool of_packs = false;
    for (int i = 0; i < SL_N_ENGINE_FLAGS; i++) engine[i].given = &of_packs;
    const struct sl_arg_opt opts[] = {
        {.name = "-n",
         .kind = SL_ARG_INT,
         .out = &f.n,
         .group = "Work",
         .metavar = "N",
         .help = "tokens a round",
         .def = "128",
         .min = 1,
         .max = 1 << 24,
         .given = &of_packs},
        {.name = "--rounds",
         .kind = SL_ARG_INT,
         .out = &f.rounds,
         .group = "Work",
         .metavar = "N",
         .help = "rounds; the median is reported",
         .def = "5",
         .min = 1,
         .max = ROUNDS_MAX,
         .given = &of_packs},
        {.name = "--seconds",
         .kind = SL_ARG_FLOAT,
         .out = &f.seconds,
         .group = "Work",
         .metavar = "S",
         .help = "time for kernels, about; at least one round",
         .def = "10",
         .min = 0,
         .max = 3600,
         .given = &of_kernels},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f.json,
         .group = "Output",
         .help = "one JSON object (prefill and decode)"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "bench",
        .about = "Times this build: kernels, prefill and decode of a pack, or a drive (see bench "
                 "io --help).",
        .example = "sluice bench decode k3.pack -n 64",
        .pos = {"kernels|prefill|decode|io", "PACK"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = engine,
        .n_more = SL_N_ENGINE_FLAGS,
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    bool kernels = strcmp(pos[0], "kernels") == 0;
    bool decode = strcmp(pos[0], "decode") == 0;
    if (!kernels && !decode && strcmp(pos[0], "prefill") != 0)
        return sl_args_usage(&cmd, "'%s' is none of kernels, prefill, decode, io", pos[0]);
    if (kernels && pos[1]) return sl_args_usage(&cmd, "kernels takes no PACK");
    if (kernels && (of_packs || f.json))
        return sl_args_usage(&cmd, "kernels takes no option but --seconds");
    if (!kernels && of_kernels) return sl_args_usage(&cmd, "--seconds is an option of kernels");
    if (!kernels && !pos[1]) return sl_args_usage(&cmd, "missing PACK");
    if (!kernels) return bench_pack(&f, pos[1], decode);
    struct sl_err err = {0};
    return sl_bench_kernels(stdout, f.seconds, &err) ? sl_cmd_fail(&err) : 0;
}
