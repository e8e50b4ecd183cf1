/* sluice plan: what a session takes and how fast it will be, before anything is allocated or even
 * downloaded.
 *
 * For a pack, or for the released shape alone ("k3"); for this machine, probed quickly, or for a board
 * file. A board's recipe stands in for flags that were not given. Memory goes through the planner of
 * `run`, so what is refused here is refused there with the same words. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include "convert/pack_shape.h"
#include "offload/probe.h"
#include "runtime/commands.h"
#include "runtime/engine_flags.h"
#include "runtime/plan_report.h"
#include "runtime/probe_path.h"

/* Of another machine: the program itself, and a byte count a token of the vocabulary, as measured
 * here. Both are small beside a trunk. */
#define BOARD_PROCESS_BYTES      UINT64_C(16000000)
#define TOKENIZER_BYTES_PER_WORD 140

struct plan_flags {
    const char *board, *experts, *trunk, *path;
    int64_t prompt;
    double hits;
    bool hits_given, json;
    struct sl_engine_flags engine;
    struct sl_engine_machine here; /* before the probe, which takes memory that a run does not */
};

static int read_board(const struct plan_flags *f, const char *target, bool is_k3,
                      struct sl_board *b, struct sl_err *err)
{
    if (f->board) return sl_board_open(b, f->board, err);
    struct sl_probe_path where;
    const char *path = f->path ? f->path : is_k3 ? "." : target;
    int rc = sl_probe_path_find(&where, path, 0, err);
    if (rc) return rc;
    if (where.writes)
        fprintf(stderr, "sluice: measuring the drive of %s with a temporary file of 268 MB\n",
                where.path);
    const struct sl_probe_opts o = {.drive_path = where.path,
                                    .record_bytes = where.record_bytes,
                                    .threads = (int)f->engine.threads,
                                    .quick = true};
    struct sl_probe_drive_report r = {0};
    return sl_probe_board(&o, b, &r, err);
}

static int choose_format(const char *option, const char *given, enum sl_fmt recipe,
                         enum sl_fmt otherwise, enum sl_fmt *out, struct sl_err *err)
{
    *out = given ? sl_fmt_by_name(given) : recipe != SL_FMT_NONE ? recipe : otherwise;
    if (*out != SL_FMT_NONE) return 0;
    return sl_fail(err, SL_E_ARG, NULL, option, "unknown format '%.32s'", given);
}

/* The released shape as a pack that only the planner may use. */
static int shape_pack(const struct plan_flags *f, const struct sl_board *b, struct sluice_pack *p,
                      struct sl_err *err)
{
    struct sl_config c;
    enum sl_fmt experts;
    enum sl_fmt trunk;
    sl_config_k3(&c);
    int rc = choose_format("--experts", f->experts, b->recipe.experts, SL_FMT_M4, &experts, err);
    if (!rc) rc = choose_format("--trunk", f->trunk, b->recipe.trunk, SL_FMT_T8, &trunk, err);
    if (!rc) rc = sl_pack_of_shape(&p->pack, &c, experts, trunk, err);
    p->tokenizer_bytes = TOKENIZER_BYTES_PER_WORD * (uint64_t)c.vocab_size;
    return rc;
}

static int make_plan(const struct plan_flags *f, const struct sl_board *b, struct sluice_pack *p,
                     struct sl_engine_plan *plan, struct sl_err *err)
{
    sluice_options o = sl_engine_flags_options(&f->engine);
    struct sl_engine_opts eo;
    struct sl_engine_machine m = f->here;
    bool recipe = f->board && b->recipe.given;
    if (recipe && !o.ram_bytes) o.ram_bytes = b->recipe.ram_bytes;
    if (recipe && !o.ctx) o.ctx = b->recipe.ctx;
    if (f->board && !o.threads) o.threads = b->cpu.cores <= 1024 ? b->cpu.cores : 1024;
    int rc = sl_engine_options(&p->pack->cfg, &o, &eo, err);
    if (rc) return rc;
    if (f->board) {
        m = (struct sl_engine_machine){.process_bytes = BOARD_PROCESS_BYTES};
        sl_budget_limit_of(b->memory.bytes, SL_NO_LIMIT, eo.ram_bytes, &m.limit);
    } else {
        m.peak_bytes = 0; /* of the probe, not of a session */
    }
    return sl_engine_plan_on(p, &eo, &m, plan, err);
}

static int plan_for(const struct plan_flags *f, const char *target, const struct sl_board *b,
                    struct sluice_pack *p, struct sl_err *err)
{
    struct sl_engine_plan plan;
    struct sl_pack_work *w = NULL;
    int rc = make_plan(f, b, p, &plan, err);
    if (!rc) rc = sl_pack_work_open(&w, p->pack, err);
    if (!rc) {
        sl_pack_work_ranks(w, plan.ranks.ranks);
        struct sl_plan_report r = {
            .pack = target, .shape = p->pack, .board = b, .work = w, .plan = &plan};
        sl_plan_report_fill(&r, f->hits_given ? f->hits : -1, (uint64_t)f->prompt);
        rc = f->json ? sl_plan_report_json(&r, err) : sl_plan_report_text(&r, err);
    }
    sl_pack_work_close(w);
    return rc;
}

static int plan_k3(const struct plan_flags *f, const struct sl_board *b, struct sl_err *err)
{
    struct sluice_pack p;
    memset(&p, 0, sizeof p);
    pthread_mutex_init(&p.lock, NULL);
    int rc = shape_pack(f, b, &p, err);
    if (!rc) rc = plan_for(f, "k3", b, &p, err);
    sl_pack_close(p.pack);
    pthread_mutex_destroy(&p.lock);
    return rc;
}

/* p NULL: no pack is open. */
static int measure_here(struct plan_flags *f, sluice_pack *p, struct sl_err *err)
{
    struct sluice_pack none;
    const sluice_options o = sl_engine_flags_options(&f->engine);
    if (f->board) return 0;
    memset(&none, 0, sizeof none);
    pthread_mutex_init(&none.lock, NULL);
    int rc = sl_engine_machine_here(p ? p : &none, "", o.ram_bytes, &f->here, err);
    pthread_mutex_destroy(&none.lock);
    return rc;
}

static int plan(struct plan_flags *f, const char *target)
{
    const bool is_k3 = strcmp(target, "k3") == 0;
    struct sl_err err = {0};
    struct sl_board *b = calloc(1, sizeof *b);
    sluice_options o = sl_engine_flags_options(&f->engine);
    sluice_error e = {0};
    sluice_pack *p = NULL;
    int status = 0;
    if (!b) {
        sl_fail(&err, SL_E_NOMEM, NULL, NULL, "out of memory");
        return sl_cmd_fail(&err);
    }
    o.ctx = 0; /* checked by make_plan, after the recipe */
    if (!is_k3 && sluice_pack_open(&p, target, &o, &e))
        status = sl_engine_fail(&e);
    else if (measure_here(f, p, &err) || read_board(f, target, is_k3, b, &err) ||
             (is_k3 ? plan_k3(f, b, &err) : plan_for(f, target, b, p, &err)))
        status = sl_cmd_fail(&err);
    sluice_pack_close(p);
    free(b);
    return status;
}

int sl_cmd_plan(int argc, char **argv)
{
    struct plan_flags f = {0};
    const char *pos[SL_ARG_POS_MAX];
    struct sl_arg_opt engine[SL_N_ENGINE_FLAGS];
    sl_engine_flags_init(&f.engine, engine);
    const struct sl_arg_opt opts[] = {
        {.name = "--board",
         .kind = SL_ARG_STRING,
         .out = &f.board,
         .group = "Machine",
         .metavar = "NAME|F",
         .help = "board file, or the name of one in boards/; its recipe stands in for flags",
         .def = "this machine, probed quickly"},
        {.name = "--path",
         .kind = SL_ARG_STRING,
         .out = &f.path,
         .group = "Machine",
         .metavar = "DIR",
         .help = "drive to probe when no board is given",
         .def = "PACK, or . for k3"},
        {.name = "--experts",
         .kind = SL_ARG_STRING,
         .out = &f.experts,
         .group = "Formats (k3 only)",
         .metavar = "FMT",
         .help = "of the routed experts",
         .def = "the board's recipe, or m4"},
        {.name = "--trunk",
         .kind = SL_ARG_STRING,
         .out = &f.trunk,
         .group = "Formats (k3 only)",
         .metavar = "FMT",
         .help = "of the trunk's large matrices",
         .def = "the board's recipe, or t8"},
        {.name = "--hits",
         .kind = SL_ARG_FLOAT,
         .out = &f.hits,
         .group = "Work",
         .metavar = "R",
         .help = "share of experts found in memory, 0 to 1, when it is known",
         .def = "a range",
         .min = 0,
         .max = 1,
         .given = &f.hits_given},
        {.name = "--tokens",
         .kind = SL_ARG_INT,
         .out = &f.prompt,
         .group = "Work",
         .metavar = "N",
         .help = "price a prompt of this length too",
         .min = 1,
         .max = 1 << 30},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f.json,
         .group = "Output",
         .help = "one JSON object on stdout"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "plan",
        .about = "Says what fits, how fast it will be and at what cost, before anything is loaded.",
        .example = "sluice plan k3 --board desktop-64",
        .pos = {"PACK|k3"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = engine,
        .n_more = SL_N_ENGINE_FLAGS,
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    if (strcmp(pos[0], "k3") != 0 && (f.experts || f.trunk))
        return sl_args_usage(&cmd, "%s is for k3: a pack has its formats",
                             f.experts ? "--experts" : "--trunk");
    if (f.board && f.path)
        return sl_args_usage(&cmd, "--path is for this machine, not for --board");
    if (f.engine.stats) return sl_args_usage(&cmd, "--stats needs a run; plan has --json");
    if (f.engine.trace) return sl_args_usage(&cmd, "--trace needs a run");
    return plan(&f, pos[0]);
}
