/* sluice logits: raw logits of every position of a token sequence, for comparison with other engines.
 *
 * The file is [n][vocab] f32, little-endian, without header; it appears whole or not at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/progress.h"
#include "runtime/cli_input.h"
#include "runtime/commands.h"
#include "runtime/engine_flags.h"
#include "runtime/report.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats go to the file as they lie");

struct logits_flags {
    const char *ids, *ids_file, *out;
    bool json;
    struct sl_engine_flags engine;
};

struct sink {
    int fd;
    const char *path;
    size_t row_bytes;
    struct sl_progress *progress;
    struct sl_err *err;
};

static int on_row(void *ctx, uint64_t position, const float *logits)
{
    struct sink *k = ctx;
    int rc = sl_pwrite_all(k->fd, logits, k->row_bytes, position * k->row_bytes, k->path, k->err);
    sl_progress_add(k->progress, 1, k->row_bytes);
    return rc;
}

static int parse(struct logits_flags *f, int argc, char **argv, const char **pos)
{
    *f = (struct logits_flags){0};
    struct sl_arg_opt engine[SL_N_ENGINE_FLAGS];
    sl_engine_flags_init(&f->engine, engine);
    const struct sl_arg_opt opts[] = {
        {.name = "--ids",
         .kind = SL_ARG_STRING,
         .out = &f->ids,
         .group = "Input",
         .metavar = "1,2,3",
         .help = "token ids"},
        {.name = "--ids-file",
         .kind = SL_ARG_STRING,
         .out = &f->ids_file,
         .group = "Input",
         .metavar = "F",
         .help = "token ids from a file: *.u16, *.u32, or text; - is stdin"},
        {.name = "--out",
         .kind = SL_ARG_STRING,
         .out = &f->out,
         .group = "Output",
         .metavar = "F.f32",
         .help = "the file to write: [n][vocabulary] f32, little-endian"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f->json,
         .group = "Output",
         .help = "report as one JSON object"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "logits",
        .about = "Writes the logits of every position of a token sequence.",
        .example = "sluice logits k3.pack --ids 1,2,3 --out logits.f32",
        .pos = {"PACK"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = engine,
        .n_more = SL_N_ENGINE_FLAGS,
    };
    int rc = sl_args_parse(&cmd, argc, argv, pos);
    if (rc != SL_ARGS_GO) return rc;
    if (!f->ids == !f->ids_file)
        return sl_args_usage(&cmd, "give either --ids 1,2,3 or --ids-file F");
    if (!f->out) return sl_args_usage(&cmd, "--out F.f32 is missing");
    return SL_ARGS_GO;
}

static int report(const struct logits_flags *f, const sluice_session *s, size_t n, int vocab,
                  struct sl_err *err)
{
    if (!f->json) return 0;
    sluice_stats st;
    sluice_get_stats(s, &st);
    cJSON *o = sl_report_open(st.threads);
    if (o) {
        sl_report_str(o, "out", f->out);
        sl_report_u64(o, "tokens", n);
        sl_report_u64(o, "vocab", (uint64_t)vocab);
        sl_report_u64(o, "out_bytes", (uint64_t)n * (uint64_t)vocab * sizeof(float));
        sl_engine_stats_json(o, s);
    }
    return sl_report_print(o, err);
}

/* Feeds, writes, publishes. Returns the exit status. */
static int write_logits(const struct logits_flags *f, sluice_session *s, int vocab,
                        const struct sl_ids *ids)
{
    struct sl_err err = {0};
    sluice_error e = {0};
    struct sink k = {.path = f->out, .row_bytes = (size_t)vocab * sizeof(float), .err = &err};
    if (sl_tmp_open(&k.fd, f->out, false, &err)) return sl_cmd_fail(&err);
    k.progress = sl_progress_open("logits", "tokens", ids->n, ids->n * k.row_bytes);
    int rc = sluice_feed_logits(s, ids->v, ids->n, on_row, &k, &e);
    sl_progress_close(k.progress);
    if (rc) {
        sl_tmp_discard(k.fd, f->out);
        return err.code ? sl_cmd_fail(&err) : sl_engine_fail(&e);
    }
    rc = sl_tmp_publish(k.fd, f->out, &err);
    if (!rc) rc = report(f, s, ids->n, vocab, &err);
    if (!rc) rc = sl_engine_stats_save(&f->engine, s, &err);
    return rc ? sl_cmd_fail(&err) : 0;
}

int sl_cmd_logits(int argc, char **argv)
{
    struct logits_flags f;
    const char *pos[SL_ARG_POS_MAX];
    int status = parse(&f, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;

    sluice_options opts = sl_engine_flags_options(&f.engine);
    sluice_error e = {0};
    struct sl_err err = {0};
    struct sl_ids ids = {0};
    sluice_pack *p = NULL;
    sluice_session *s = NULL;
    if (sluice_pack_open(&p, pos[0], &opts, &e)) return sl_engine_fail(&e);
    int vocab = sluice_vocab_size(p);
    int rc = f.ids ? sl_input_ids(&ids, f.ids, strlen(f.ids), vocab, "--ids", SL_E_ARG, &err)
                   : sl_input_ids_file(&ids, f.ids_file, vocab, &err);
    opts.logit_rows = 64;
    if (rc) {
        status = sl_cmd_fail(&err);
    } else if (!ids.n) {
        sl_fail(&err, f.ids ? SL_E_ARG : SL_E_SOURCE, f.ids ? "--ids" : f.ids_file, NULL,
                "no token ids");
        status = sl_cmd_fail(&err);
    } else if (sluice_session_open(&s, p, &opts, &e)) {
        status = sl_engine_fail(&e);
    } else {
        status = write_logits(&f, s, vocab, &ids);
    }
    sluice_session_close(s);
    sluice_pack_close(p);
    sl_ids_free(&ids);
    return status;
}
