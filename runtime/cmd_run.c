/* sluice run: a prompt in, text out as it is written.
 *
 * Text leaves as whole UTF-8 characters; bytes that are none become U+FFFD, and on a terminal control
 * bytes of the model become '?' (a model must not drive a user's terminal). The last token is picked
 * but never fed: nothing needs its logits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/size.h"
#include "runtime/cli_input.h"
#include "runtime/commands.h"
#include "runtime/engine_flags.h"
#include "runtime/report.h"
#include "runtime/sampling_flags.h"
#include "runtime/utf8.h"

struct run_flags {
    const char *prompt, *prompt_file, *ids, *save_state, *load_state, *draft;
    int64_t n, seed;
    double temp, top_p;
    bool ignore_eos, bos, markup, json;
    struct sl_engine_flags engine;
};

/* The answer so far: ids, text for --json, and the cut character between two tokens. */
struct answer {
    struct sl_ids ids;
    char *text;
    size_t len, cap;
    struct sl_utf8_stream stream;
    bool json, terminal;
    size_t fed; /* ids that went into the session */
    const char *stop;
};

static int parse(struct run_flags *f, int argc, char **argv, const char **pos)
{
    *f = (struct run_flags){.n = 128, .temp = 1.0, .top_p = 0.95};
    struct sl_arg_opt engine[SL_N_ENGINE_FLAGS];
    sl_engine_flags_init(&f->engine, engine);
    const struct sl_arg_opt opts[] = {
        {.name = "-p",
         .kind = SL_ARG_STRING,
         .out = &f->prompt,
         .group = "Prompt",
         .metavar = "TEXT",
         .help = "the prompt; - reads it from standard input"},
        {.name = "--prompt-file",
         .kind = SL_ARG_STRING,
         .out = &f->prompt_file,
         .group = "Prompt",
         .metavar = "F",
         .help = "the prompt is the text of this file"},
        {.name = "--ids",
         .kind = SL_ARG_STRING,
         .out = &f->ids,
         .group = "Prompt",
         .metavar = "1,2,3",
         .help = "the prompt as token ids"},
        {.name = "--bos",
         .kind = SL_ARG_FLAG,
         .out = &f->bos,
         .group = "Prompt",
         .help = "begin with [BOS], as a document does (never added by itself)"},
        {.name = "--markup",
         .kind = SL_ARG_FLAG,
         .out = &f->markup,
         .group = "Prompt",
         .help = "control spellings in the prompt become control tokens"},
        {.name = "-n",
         .kind = SL_ARG_INT,
         .out = &f->n,
         .group = "Text",
         .metavar = "N",
         .help = "tokens to write at most",
         .def = "128"},
        sl_flag_temp(&f->temp),
        sl_flag_top_p(&f->top_p),
        sl_flag_seed(&f->seed),
        sl_flag_draft(&f->draft),
        {.name = "--ignore-eos",
         .kind = SL_ARG_FLAG,
         .out = &f->ignore_eos,
         .group = "Text",
         .help = "go on after an end token"},
        {.name = "--save-state",
         .kind = SL_ARG_STRING,
         .out = &f->save_state,
         .group = "State",
         .metavar = "F",
         .help = "keep the session in a file at the end"},
        {.name = "--load-state",
         .kind = SL_ARG_STRING,
         .out = &f->load_state,
         .group = "State",
         .metavar = "F",
         .help = "go on from such a file; a prompt is optional"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &f->json,
         .group = "Output",
         .help = "one JSON object: ids, text, stop, statistics"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "run",
        .about = "Continues a prompt; the text goes to standard output as it is written.",
        .example = "sluice run k3.pack -p 'The capital of France is' -n 16 --temp 0",
        .pos = {"PACK"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = engine,
        .n_more = SL_N_ENGINE_FLAGS,
    };
    int rc = sl_args_parse(&cmd, argc, argv, pos);
    if (rc != SL_ARGS_GO) return rc;
    int prompts = (f->prompt != NULL) + (f->prompt_file != NULL) + (f->ids != NULL);
    if (prompts > 1) return sl_args_usage(&cmd, "-p, --prompt-file and --ids exclude each other");
    if (!prompts && !f->bos && !f->load_state)
        return sl_args_usage(&cmd, "no prompt: give -p TEXT, --prompt-file F, --ids 1,2,3, "
                                   "--bos or --load-state F");
    return SL_ARGS_GO;
}

static int prompt_ids(struct sl_ids *out, const struct run_flags *f, const sluice_pack *p,
                      struct sl_err *err)
{
    if (f->bos) {
        int32_t bos = sluice_control_id(p, "[BOS]");
        if (bos < 0)
            return sl_fail(err, SL_E_PACK, "tokenizer_config.json", "[BOS]",
                           "no such control token for --bos");
        int rc = sl_ids_push(out, bos, err);
        if (rc) return rc;
    }
    if (f->ids)
        return sl_input_ids(out, f->ids, strlen(f->ids), sluice_vocab_size(p), "--ids", SL_E_ARG,
                            err);
    const char *file = f->prompt_file;
    if (f->prompt && strcmp(f->prompt, "-") == 0) file = "-";
    if (!file && !f->prompt) return 0;
    char *read = NULL;
    const char *text = f->prompt;
    size_t len = f->prompt ? strlen(f->prompt) : 0;
    int rc = file ? sl_input_text(&read, &len, file, err) : 0;
    if (rc) return rc;
    if (read) text = read;
    sluice_error e = {0};
    int32_t *ids;
    size_t n;
    if (sluice_encode(p, text, len, f->markup, &ids, &n, &e)) {
        rc = sl_fail(err, e.code, NULL, NULL, "%s", e.text);
    } else {
        for (size_t i = 0; i < n && !rc; i++) rc = sl_ids_push(out, ids[i], err);
        sluice_free(ids);
    }
    free(read);
    return rc;
}

/* Takes whole characters: to stdout at once, or into the text of the JSON report. */
static int emit(struct answer *a, char *text, size_t len, struct sl_err *err)
{
    if (a->json) {
        if (a->cap - a->len < len) {
            size_t cap = (a->cap + len) * 2;
            char *more = realloc(a->text, cap);
            if (!more) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the text");
            a->text = more;
            a->cap = cap;
        }
        memcpy(a->text + a->len, text, len);
        a->len += len;
        return 0;
    }
    for (size_t i = 0; a->terminal && i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) text[i] = '?';
    }
    int rc = sl_cmd_write(text, len, err);
    return rc ? rc : sl_cmd_flush(err);
}

static int emit_token(struct answer *a, const sluice_pack *p, int32_t id, struct sl_err *err)
{
    int rc = sl_ids_push(&a->ids, id, err);
    if (rc) return rc;
    size_t len;
    const char *bytes = sluice_token_bytes(p, id, &len);
    char *out = malloc(SL_UTF8_ROOM(len));
    if (!out) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the text");
    rc = emit(a, out, sl_utf8_feed(&a->stream, bytes, len, out), err);
    free(out);
    return rc;
}

/* Picks and shows until an end token, -n, the context's end, or Ctrl-C. */
static int generate(struct answer *a, sluice_session *s, const sluice_pack *p,
                    const struct run_flags *f, struct sl_err *err)
{
    sluice_sampling how = {f->temp, f->top_p, (uint64_t)f->seed, f->ignore_eos};
    sluice_plan_info plan;
    sluice_session_plan(s, &plan);
    int32_t more[SLUICE_MAX_GUESSES]; /* picked and fed along, yet to be shown */
    size_t n_more = 0, shown = 0;
    a->stop = "length";
    for (int64_t i = 0; i < f->n; i++) {
        sluice_error e = {0};
        int32_t id;
        int rc = 0;
        if (shown == n_more) {
            shown = n_more = 0;
            const bool feed = a->fed < a->ids.n;
            if (feed && sluice_position(s) == plan.ctx) return 0;
            if (feed &&
                sluice_feed_on(s, a->ids.v[a->fed], &how, (size_t)(f->n - i), more, &n_more, &e)) {
                if (e.code == SL_E_INTR) break;
                return sl_fail(err, e.code, NULL, NULL, "%s", e.text);
            }
            if (feed) a->fed += 1 + n_more;
        }
        if (shown < n_more)
            id = more[shown++];
        else
            rc = sluice_pick(s, &how, &id, &e);
        if (rc < 0) return sl_fail(err, e.code, NULL, NULL, "%s", e.text);
        if (rc == 1) {
            a->stop = "eos";
            return 0;
        }
        rc = emit_token(a, p, id, err);
        if (rc) return rc;
        if (sl_interrupted()) break;
        if (i + 1 == f->n) return 0;
    }
    if (sl_interrupted()) a->stop = "interrupt";
    return 0;
}

static int finish_text(struct answer *a, struct sl_err *err)
{
    char out[SL_UTF8_ROOM(0)];
    int rc = emit(a, out, sl_utf8_finish(&a->stream, out), err);
    if (rc || a->json) return rc;
    rc = sl_cmd_write("\n", 1, err);
    return rc ? rc : sl_cmd_flush(err);
}

static int print_json(struct answer *a, const sluice_session *s, struct sl_err *err)
{
    sluice_stats st;
    sluice_get_stats(s, &st);
    cJSON *o = sl_report_open(st.threads);
    if (o) {
        sl_report_ids(o, "ids", a->ids.v, a->ids.n);
        sl_report_text(o, "text", a->text ? a->text : "", a->len);
        sl_report_str(o, "stop", a->stop);
        sl_engine_stats_json(o, s);
    }
    return sl_report_print(o, err);
}

/* For a person at a terminal: what it cost. */
static void print_summary(const struct answer *a, const sluice_session *s)
{
    if (!isatty(STDERR_FILENO)) return;
    sluice_stats st;
    char read[32];
    char peak[32];
    char planned[32];
    sluice_get_stats(s, &st);
    fprintf(stderr,
            "[%llu prompt tokens, %.1f tok/s | %zu written, %.1f tok/s | %s of experts read | peak "
            "%s of %s planned | stop: %s]\n",
            (unsigned long long)st.prefill_tokens, sl_rate(st.prefill_tokens, st.prefill_seconds),
            a->ids.n, sl_rate(st.decode_tokens, st.decode_seconds),
            sl_format_bytes(read, sizeof read, st.expert_bytes_read),
            sl_format_bytes(peak, sizeof peak, st.measured_peak_bytes),
            sl_format_bytes(planned, sizeof planned, st.planned_peak_bytes), a->stop);
}

/* A saved session stands after everything that was shown, so that going on repeats nothing. */
static int save_state(struct answer *a, sluice_session *s, const char *path, sluice_error *e)
{
    if (a->fed < a->ids.n) {
        int rc = sluice_feed(s, &a->ids.v[a->fed], a->ids.n - a->fed, e);
        if (rc) return rc;
        a->fed = a->ids.n;
    }
    return sluice_state_save(s, path, e);
}

/* With everything open: prompt, text, reports. Returns the exit status. */
static int run_session(sluice_session *s, const sluice_pack *p, const struct run_flags *f,
                       const struct sl_ids *prompt)
{
    struct sl_err err = {0};
    sluice_error e = {0};
    struct answer a = {.json = f->json, .terminal = !f->json && isatty(STDOUT_FILENO)};
    int status;
    if (f->load_state && sluice_state_load(s, f->load_state, &e)) return sl_engine_fail(&e);
    if (prompt->n && sluice_feed(s, prompt->v, prompt->n, &e)) return sl_engine_fail(&e);
    int rc = generate(&a, s, p, f, &err);
    if (!rc) rc = finish_text(&a, &err);
    if (!rc && f->json) rc = print_json(&a, s, &err);
    if (!rc) rc = sl_engine_stats_save(&f->engine, s, &err);
    status = rc ? sl_cmd_fail(&err) : strcmp(a.stop, "interrupt") == 0 ? 130 : 0;
    if (!rc && f->save_state && !status && save_state(&a, s, f->save_state, &e))
        status = sl_engine_fail(&e);
    if (!rc) print_summary(&a, s);
    sl_ids_free(&a.ids);
    free(a.text);
    return status;
}

/* A prompt that cannot fit is refused before a trunk is loaded for it. */
static int open_session(sluice_session **s, sluice_pack *p, const sluice_options *opts,
                        size_t n_prompt, sluice_error *e)
{
    sluice_plan_info plan;
    struct sl_err err = {0};
    int rc = sluice_plan(p, opts, &plan, e);
    if (rc) return rc;
    if (n_prompt <= plan.ctx) return sluice_session_open(s, p, opts, e);
    rc = sl_fail(&err, SL_E_CTX, NULL, NULL, "prompt: %zu tokens, --ctx is %llu", n_prompt,
                 (unsigned long long)plan.ctx);
    return sl_engine_give(e, &err, rc);
}

int sl_cmd_run(int argc, char **argv)
{
    struct run_flags f;
    const char *pos[SL_ARG_POS_MAX];
    int status = parse(&f, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;

    sluice_options opts = sl_engine_flags_options(&f.engine);
    sl_flag_draft_set(f.draft, &opts);
    sluice_error e = {0};
    struct sl_err err = {0};
    struct sl_ids prompt = {0};
    sluice_pack *p = NULL;
    sluice_session *s = NULL;
    if (sluice_pack_open(&p, pos[0], &opts, &e)) return sl_engine_fail(&e);
    if (prompt_ids(&prompt, &f, p, &err)) {
        status = sl_cmd_fail(&err);
    } else if (!prompt.n && !f.load_state) {
        fprintf(stderr, "sluice run: the prompt is empty; see 'sluice run --help'\n");
        status = 2;
    } else if (open_session(&s, p, &opts, prompt.n, &e)) {
        status = sl_engine_fail(&e);
    } else {
        status = run_session(s, p, &f, &prompt);
    }
    sluice_session_close(s);
    sluice_pack_close(p);
    sl_ids_free(&prompt);
    return status;
}
