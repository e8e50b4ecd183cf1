/* sluice chat: a conversation at a terminal, or line by line from a script.
 *
 * At a terminal Ctrl-C belongs to the answer: it stops it between two tokens and keeps the session. While
 * the prompt is still read, and when it is pressed again, it stops inside the forward pass (the next prompt
 * then goes on from a stored state); the third time it ends the program. From a pipe Ctrl-C ends the
 * program as it does everywhere. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/size.h"
#include "runtime/chat_show.h"
#include "runtime/chat_talk.h"
#include "runtime/commands.h"
#include "runtime/engine_flags.h"
#include "runtime/line_input.h"
#include "runtime/sampling_flags.h"

struct chat_flags {
    const char *system, *effort, *thinking, *save_state, *load_state, *prefix_dir, *draft;
    int64_t n, seed;
    double temp, top_p;
    uint64_t prefix_bytes;
    struct sl_engine_flags engine;
};

struct chat {
    const struct chat_flags *flags;
    struct sl_talk talk;
    struct sl_show show;
    struct sl_lines *lines;
    sluice_stats before; /* of the answer in progress */
    int status;          /* of the command, once it ends */
};

/* ---------------------------------------------------------------- flags */

static int parse(struct chat_flags *f, int argc, char **argv, const char **pos)
{
    static const char *const efforts[] = {"low", "high", "max", "none", NULL};
    static const char *const thinking[] = {"show", "hide", "off", NULL};
    *f = (struct chat_flags){.temp = 1.0, .top_p = 0.95};
    struct sl_arg_opt engine[SL_N_ENGINE_FLAGS];
    sl_engine_flags_init(&f->engine, engine);
    const struct sl_arg_opt opts[] = {
        {.name = "--system",
         .kind = SL_ARG_STRING,
         .out = &f->system,
         .group = "Conversation",
         .metavar = "TEXT",
         .help = "a system message before everything else"},
        {.name = "--effort",
         .kind = SL_ARG_STRING,
         .out = &f->effort,
         .group = "Conversation",
         .metavar = "WORD",
         .help = "how much to think: low, high, max; none says nothing about it",
         .def = "max",
         .choices = efforts},
        {.name = "--thinking",
         .kind = SL_ARG_STRING,
         .out = &f->thinking,
         .group = "Conversation",
         .metavar = "WORD",
         .help = "show it (dimmed), hide it, or off: answer at once",
         .def = "show on a terminal, else hide",
         .choices = thinking},
        {.name = "-n",
         .kind = SL_ARG_INT,
         .out = &f->n,
         .group = "Text",
         .metavar = "N",
         .help = "tokens of one answer at most, thinking included",
         .def = "what --ctx has room for"},
        sl_flag_temp(&f->temp),
        sl_flag_top_p(&f->top_p),
        sl_flag_seed(&f->seed),
        sl_flag_draft(&f->draft),
        {.name = "--save-state",
         .kind = SL_ARG_STRING,
         .out = &f->save_state,
         .group = "State",
         .metavar = "F",
         .help = "keep conversation and session in a file at the end"},
        {.name = "--load-state",
         .kind = SL_ARG_STRING,
         .out = &f->load_state,
         .group = "State",
         .metavar = "F",
         .help = "go on from such a file"},
        {.name = "--prefix-cache",
         .kind = SL_ARG_SIZE,
         .out = &f->prefix_bytes,
         .group = "State",
         .metavar = "SIZE",
         .help = "memory for states to go back to after /undo and /reset",
         .def = "eight states, an eighth of the expert slots at most"},
        {.name = "--prefix-dir",
         .kind = SL_ARG_STRING,
         .out = &f->prefix_dir,
         .group = "State",
         .metavar = "DIR",
         .help = "keep them in this folder too, also for the next time"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "chat",
        .about = "Talks with the model; /help lists what can be typed beside messages.",
        .example = "sluice chat k3.pack --effort low --system 'Answer in one sentence.'",
        .pos = {"PACK"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = engine,
        .n_more = SL_N_ENGINE_FLAGS,
        .notes =
            "From a pipe each line is one message (a backslash at its end joins the next), and\n"
            "standard output has the answers alone.\n",
    };
    return sl_args_parse(&cmd, argc, argv, pos);
}

static bool set_effort(struct sl_chat *c, const char *word)
{
    if (strcmp(word, "none") == 0) c->effort = SL_EFFORT_UNSET;
    return strcmp(word, "none") == 0 || sl_chat_effort_parse(word, strlen(word), &c->effort);
}

/* ---------------------------------------------------------------- Ctrl-C at a terminal */

static volatile sig_atomic_t presses; /* since the last line was read */
static volatile sig_atomic_t reading; /* no token of the answer was shown yet */
static volatile sig_atomic_t asked;   /* the engine was told to stop, by us */

static void on_interrupt(int sig)
{
    const int n = presses;
    presses = n + 1;
    if (reading || n == 1) {
        asked = 1;
        sluice_interrupt();
    }
    if (n >= 2) _exit(128 + sig);
}

static bool stopped(void *ctx)
{
    (void)ctx;
    reading = 0;
    return presses > 0 || sl_interrupted();
}

static void own_interrupt(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = on_interrupt;
    sigaction(SIGINT, &sa, NULL);
}

/* What Ctrl-C stopped has stopped; true if it had to tell the engine. A SIGTERM stays heard. */
static bool stopped_by_us(void)
{
    const bool was = asked;
    if (was) sluice_interrupt_clear();
    asked = 0;
    presses = 0;
    reading = 1;
    return was;
}

/* ---------------------------------------------------------------- one turn */

static const char *stop_note(const struct sl_talk_turn *t)
{
    switch (t->stop) {
    case SL_TALK_LENGTH:
        return " | stopped at -n";
    case SL_TALK_CTX:
        return " | stopped: the context is full";
    case SL_TALK_STOPPED:
        return " | stopped";
    default:
        return t->malformed ? " | markup that fits no rule" : "";
    }
}

static void print_status(const struct chat *c, const struct sl_talk_turn *t)
{
    sluice_stats now;
    sluice_plan_info plan;
    const sluice_stats *b = &c->before;
    sluice_get_stats(c->talk.session, &now);
    sluice_session_plan(c->talk.session, &plan);
    const uint64_t hits = now.expert_hits - b->expert_hits;
    const uint64_t wanted = hits + now.expert_misses - b->expert_misses;
    fprintf(
        stderr,
        "\x1b[2m[%zu tokens, %.1f tok/s | prompt %zu new, %zu known, %.1f tok/s | %.1f %% of "
        "experts in memory | context %llu of %llu%s]\x1b[0m\n",
        t->written,
        sl_rate(now.decode_tokens - b->decode_tokens, now.decode_seconds - b->decode_seconds),
        t->prompt_ids - t->cached_ids, t->cached_ids,
        sl_rate(now.prefill_tokens - b->prefill_tokens, now.prefill_seconds - b->prefill_seconds),
        wanted ? 100.0 * (double)hits / (double)wanted : 100.0,
        (unsigned long long)sluice_position(c->talk.session), (unsigned long long)plan.ctx,
        stop_note(t));
}

/* false: the command ends, c->status is set. At a terminal a message that cannot be answered is said and
 * forgotten; a script must not go on as if it had been. */
static bool ask(struct chat *c, const char *text, size_t n)
{
    struct sl_talk_turn turn;
    struct sl_err err = {0};
    const bool terminal = sl_lines_is_terminal(c->lines);
    sluice_get_stats(c->talk.session, &c->before);
    int rc = sl_talk_ask(&c->talk, text, n, &turn, &err);
    const bool ours = terminal && stopped_by_us();
    const int end = rc && !turn.written ? 0 : sl_show_end(&c->show);
    if (c->show.err.code || end) {
        c->status = sl_cmd_fail(&c->show.err);
        return false;
    }
    if (rc == SL_E_INTR && ours) {
        fprintf(stderr, "(stopped while the prompt was read; the message is not part of the "
                        "conversation)\n");
        return true;
    }
    if (rc) {
        c->status = sl_cmd_fail(&err);
        return terminal && (rc == SL_E_CTX || rc == SL_E_ARG) && (c->status = 0, true);
    }
    if (sl_interrupted()) {
        c->status = 130;
        return false;
    }
    if (terminal) print_status(c, &turn);
    return true;
}

/* ---------------------------------------------------------------- commands */

static void help(void)
{
    fputs("/save F        keep this conversation and the session's state in a file\n"
          "/load F        go on from such a file\n"
          "/undo          take back the last message and its answer\n"
          "/retry         another answer to the last message\n"
          "/reset         forget everything but the system message\n"
          "/effort WORD   low, high, max or none\n"
          "/stats         memory, speed, what came from where\n"
          "/quit          end (also Ctrl-D)\n"
          "Ctrl-C stops an answer. Several lines: paste them, or Ctrl-J, or \\ before Enter.\n"
          "A message that begins with a slash: write two.\n",
          stderr);
}

/* A failed command: said at a terminal, the end of a script. */
static bool failed(struct chat *c, const struct sl_err *err)
{
    c->status = sl_cmd_fail(err);
    if (!sl_lines_is_terminal(c->lines)) return false;
    c->status = 0;
    return true;
}

static bool said(const struct chat *c, const char *what)
{
    if (sl_lines_is_terminal(c->lines)) fprintf(stderr, "(%s)\n", what);
    return true;
}

static bool retry(struct chat *c)
{
    struct sl_err err = {0};
    struct sl_text text;
    if (!sl_talk_undo(&c->talk, &text)) {
        sl_fail(&err, SL_E_ARG, NULL, "/retry", "there is no message yet");
        return failed(c, &err);
    }
    char *copy = malloc(text.n + 1);
    if (!copy) {
        sl_fail(&err, SL_E_NOMEM, NULL, NULL, "no memory");
        return failed(c, &err);
    }
    memcpy(copy, text.s, text.n);
    c->talk.sampling.seed++; /* or it would be the same answer */
    const bool go_on = ask(c, copy, text.n);
    free(copy);
    return go_on;
}

static bool stats(struct chat *c)
{
    struct sl_err err = {0};
    const struct sl_engine_flags table = {.stats = "-"};
    sluice_prefix_stats p;
    char used[32];
    char all[32];
    if (sl_engine_stats_save(&table, c->talk.session, &err)) return failed(c, &err);
    sluice_get_prefix_stats(c->talk.session, &p);
    if (p.memory_bytes)
        fprintf(stderr, "stored states  %llu in %s of %s; %llu of %llu prompts went on from one\n",
                (unsigned long long)p.snapshots, sl_format_bytes(used, sizeof used, p.memory_used),
                sl_format_bytes(all, sizeof all, p.memory_bytes), (unsigned long long)p.hits,
                (unsigned long long)p.lookups);
    return true;
}

/* line begins with a slash. false: the command ends. */
static bool command(struct chat *c, char *line)
{
    struct sl_err err = {0};
    const size_t n = strcspn(line, " \t");
    char *arg = line + n + strspn(line + n, " \t");
    line[n] = 0;
    const bool save = strcmp(line, "/save") == 0;
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) return false;
    if (strcmp(line, "/help") == 0) {
        help();
    } else if (strcmp(line, "/stats") == 0) {
        return stats(c);
    } else if (strcmp(line, "/reset") == 0) {
        sl_talk_reset(&c->talk);
        return said(c, "forgotten");
    } else if (strcmp(line, "/retry") == 0) {
        return retry(c);
    } else if (strcmp(line, "/undo") == 0) {
        if (sl_talk_undo(&c->talk, NULL)) return said(c, "taken back");
        sl_fail(&err, SL_E_ARG, NULL, line, "there is no message yet");
    } else if (strcmp(line, "/effort") == 0) {
        if (set_effort(&c->talk.chat, arg)) return true;
        sl_fail(&err, SL_E_ARG, NULL, line, "'%.32s' is not low, high, max or none", arg);
    } else if (save || strcmp(line, "/load") == 0) {
        if (!*arg)
            sl_fail(&err, SL_E_ARG, NULL, line, "give the name of a file");
        else if (!(save ? sl_talk_save(&c->talk, arg, &err) : sl_talk_load(&c->talk, arg, &err)))
            return said(c, save ? "saved" : "loaded");
    } else {
        sl_fail(&err, SL_E_ARG, NULL, line, "no such command; /help lists them");
    }
    return err.code ? failed(c, &err) : true;
}

static void talk(struct chat *c)
{
    struct sl_err err = {0};
    struct sl_buf *line;
    bool idle = false; /* Ctrl-C on an empty line twice is a wish to leave */
    const bool terminal = sl_lines_is_terminal(c->lines);
    if (terminal) own_interrupt();
    if (terminal) fputs("Ctrl-C stops an answer, Ctrl-D ends, /help lists commands.\n", stderr);
    for (bool go_on = true; go_on;) {
        if (terminal) stopped_by_us();
        const int rc = sl_lines_read(c->lines, "> ", &line, &err);
        if (rc < 0) {
            c->status = sl_cmd_fail(&err);
            return;
        }
        if (rc == SL_LINE_END) break;
        if (rc == SL_LINE_CANCELLED) {
            if (idle) break;
            idle = true;
            fputs("(Ctrl-D, /quit, or Ctrl-C again to leave)\n", stderr);
            continue;
        }
        idle = false;
        if (!line->n || strspn(line->s, " \t\n") == line->n) continue;
        if (line->s[0] == '/' && line->s[1] != '/')
            go_on = command(c, line->s);
        else
            go_on = ask(c, line->s + (line->s[0] == '/'), line->n - (line->s[0] == '/'));
    }
    if (sl_interrupted()) c->status = 130;
}

/* ---------------------------------------------------------------- the command */

static int prepare(struct chat *c, struct sl_err *err)
{
    const struct chat_flags *f = c->flags;
    struct sl_talk *t = &c->talk;
    struct sl_chat_message *m;
    int rc = sl_lines_open(&c->lines, STDIN_FILENO, STDOUT_FILENO, err);
    const bool terminal = !rc && sl_lines_is_terminal(c->lines);
    c->show =
        (struct sl_show){.terminal = isatty(STDOUT_FILENO),
                         .thinking = f->thinking ? strcmp(f->thinking, "show") == 0 : terminal};
    t->sampling = (sluice_sampling){f->temp, f->top_p, (uint64_t)f->seed, 0};
    t->max_tokens = (uint64_t)f->n;
    t->on_event = sl_show_event;
    t->ctx = &c->show;
    t->stopped = stopped;
    if (!rc && f->system) rc = sl_chat_add(&t->chat, SL_CHAT_SYSTEM, &m, err);
    if (!rc && f->system) rc = sl_chat_add_text(&t->chat, m, f->system, strlen(f->system), err);
    if (!rc && f->load_state) rc = sl_talk_load(t, f->load_state, err);
    if (!rc && f->effort) set_effort(&t->chat, f->effort);
    if (f->thinking && strcmp(f->thinking, "off") == 0) t->chat.no_thinking = true;
    return rc;
}

static int run_chat(const struct chat_flags *f, sluice_pack *p, sluice_session *s)
{
    struct chat c = {.flags = f};
    struct sl_err err = {0};
    int rc = sl_talk_open(&c.talk, p, s, &err);
    if (!rc) rc = prepare(&c, &err);
    if (rc) {
        c.status = sl_cmd_fail(&err);
    } else {
        talk(&c);
        if (!c.status && f->save_state && sl_talk_save(&c.talk, f->save_state, &err))
            c.status = sl_cmd_fail(&err);
        if (!c.status && sl_engine_stats_save(&f->engine, s, &err)) c.status = sl_cmd_fail(&err);
    }
    sl_lines_close(c.lines);
    sl_talk_close(&c.talk);
    return c.status;
}

int sl_cmd_chat(int argc, char **argv)
{
    struct chat_flags f;
    const char *pos[SL_ARG_POS_MAX];
    int status = parse(&f, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    sluice_options opts = sl_engine_flags_options(&f.engine);
    sl_flag_draft_set(f.draft, &opts);
    sluice_error e = {0};
    sluice_pack *p = NULL;
    sluice_session *s = NULL;
    opts.prefix_dir = f.prefix_dir;
    if (sluice_pack_open(&p, pos[0], &opts, &e)) return sl_engine_fail(&e);
    opts.prefix_bytes = f.prefix_bytes ? f.prefix_bytes : sluice_prefix_suggest(p, &opts);
    if (sluice_session_open(&s, p, &opts, &e))
        status = sl_engine_fail(&e);
    else
        status = run_chat(&f, p, s);
    sluice_session_close(s);
    sluice_pack_close(p);
    return status;
}
