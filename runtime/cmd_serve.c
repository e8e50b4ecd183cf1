/* sluice serve: the OpenAI-compatible server, from flags to a clean end.
 *
 * Ctrl-C or SIGTERM: no new connections, answers in progress end with an error that says so, exit 130
 * (SIGINT) or 0 (SIGTERM, a service being stopped). The second signal ends the process at once. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/size.h"
#include "runtime/commands.h"
#include "runtime/engine_flags.h"
#include "runtime/sampling_flags.h"
#include "runtime/serve_http.h"

static const double LAST_WRITE_SECONDS = 0.5;
enum { TURN_SHARE = 64, TURNS_LEAST = 1 << 20 };

struct serve_flags {
    const char *host, *api_key, *model_name, *cors, *prefix_dir, *draft;
    int64_t port, seats, queue, connections;
    double answer_seconds, request_seconds, send_seconds;
    uint64_t max_body, prefix_bytes;
    bool log;
    struct sl_engine_flags engine;
};

static int parse(struct serve_flags *f, int argc, char **argv, const char **pos)
{
    *f = (struct serve_flags){.host = "127.0.0.1",
                              .port = 8080,
                              .seats = 1,
                              .queue = 16,
                              .connections = 128,
                              .request_seconds = 60,
                              .send_seconds = 60,
                              .max_body = 8 << 20};
    struct sl_arg_opt engine[SL_N_ENGINE_FLAGS];
    sl_engine_flags_init(&f->engine, engine);
    const struct sl_arg_opt opts[] = {
        {.name = "--host",
         .kind = SL_ARG_STRING,
         .out = &f->host,
         .group = "Network",
         .metavar = "H",
         .help = "name or address to listen on; 0.0.0.0 is every network this machine is in",
         .def = "127.0.0.1"},
        {.name = "--port",
         .kind = SL_ARG_INT,
         .out = &f->port,
         .group = "Network",
         .metavar = "P",
         .help = "port; 0 takes a free one and says which",
         .def = "8080",
         .min = 0,
         .max = 65535},
        {.name = "--api-key",
         .kind = SL_ARG_STRING,
         .out = &f->api_key,
         .group = "Network",
         .metavar = "K",
         .help = "ask for this key; better in the environment, SLUICE_API_KEY"},
        {.name = "--cors",
         .kind = SL_ARG_STRING,
         .out = &f->cors,
         .group = "Network",
         .metavar = "ORIGIN",
         .help = "a web page of this origin may ask too; * is any"},
        {.name = "--connections",
         .kind = SL_ARG_INT,
         .out = &f->connections,
         .group = "Limits",
         .metavar = "N",
         .help = "open connections at most",
         .def = "128",
         .min = 1,
         .max = 4096},
        {.name = "--queue",
         .kind = SL_ARG_INT,
         .out = &f->queue,
         .group = "Limits",
         .metavar = "N",
         .help = "requests waiting at most; one more gets status 429",
         .def = "16",
         .min = 0,
         .max = 4096},
        {.name = "--max-body",
         .kind = SL_ARG_SIZE,
         .out = &f->max_body,
         .group = "Limits",
         .metavar = "SIZE",
         .help = "largest request",
         .def = "8MiB"},
        {.name = "--request-timeout",
         .kind = SL_ARG_FLOAT,
         .out = &f->request_seconds,
         .group = "Limits",
         .metavar = "S",
         .help = "seconds to send a request, or to idle between two",
         .def = "60",
         .min = 0.1,
         .max = 1e6},
        {.name = "--send-timeout",
         .kind = SL_ARG_FLOAT,
         .out = &f->send_seconds,
         .group = "Limits",
         .metavar = "S",
         .help = "seconds until a client must take more of its answer",
         .def = "60",
         .min = 0.1,
         .max = 1e6},
        {.name = "--answer-timeout",
         .kind = SL_ARG_FLOAT,
         .out = &f->answer_seconds,
         .group = "Limits",
         .metavar = "S",
         .help = "seconds an answer may take to compute",
         .def = "no limit",
         .min = 0,
         .max = 1e9},
        {.name = "--seats",
         .kind = SL_ARG_INT,
         .out = &f->seats,
         .group = "Service",
         .metavar = "N",
         .help = "answers computed side by side, in common steps; each takes its own state",
         .def = "1",
         .min = 1,
         .max = SL_SCHED_SEATS},
        {.name = "--model-name",
         .kind = SL_ARG_STRING,
         .out = &f->model_name,
         .group = "Service",
         .metavar = "NAME",
         .help = "what requests call the model",
         .def = "the pack's file name without .pack"},
        {.name = "--prefix-cache",
         .kind = SL_ARG_SIZE,
         .out = &f->prefix_bytes,
         .group = "Service",
         .metavar = "SIZE",
         .help = "memory for states of earlier prompts, to go on from",
         .def = "eight states, an eighth of the expert slots at most"},
        {.name = "--prefix-dir",
         .kind = SL_ARG_STRING,
         .out = &f->prefix_dir,
         .group = "Service",
         .metavar = "DIR",
         .help = "keep those that no longer fit in this folder"},
        sl_flag_draft(&f->draft),
        {.name = "--log",
         .kind = SL_ARG_FLAG,
         .out = &f->log,
         .group = "Service",
         .help = "a line on stderr for each request: path, status, tokens; never its text"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "serve",
        .about = "Serves the model over HTTP: the OpenAI API, a page at / and figures at /metrics.",
        .example = "sluice serve k3.pack --port 8080",
        .pos = {"PACK"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = engine,
        .n_more = SL_N_ENGINE_FLAGS,
    };
    int rc = sl_args_parse(&cmd, argc, argv, pos);
    if (rc != SL_ARGS_GO) return rc;
    if (!f->api_key) f->api_key = getenv("SLUICE_API_KEY");
    if (f->api_key && !f->api_key[0])
        return sl_args_usage(&cmd, "--api-key: the key is empty; leave it out to ask for none");
    return SL_ARGS_GO;
}

/* ---------------------------------------------------------------- signals */

static volatile sig_atomic_t stop_signal;
static int stop_pipe[2] = {-1, -1};

static void on_stop(int sig)
{
    int e = errno;
    if (stop_signal) _exit(128 + sig);
    stop_signal = sig;
    ssize_t n = write(stop_pipe[1], "", 1);
    (void)n;
    errno = e;
}

/* From here on signals wake the main thread and do not touch the engine by themselves: its interrupt
 * flag also serves to cancel single requests. One that came earlier is still in that flag. */
static int catch_stop(struct sl_err *err)
{
    struct sigaction sa;
    if (pipe(stop_pipe)) return sl_fail_errno(err, SL_E_IO, errno, NULL, "pipe");
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = on_stop;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    return sl_interrupted() ? sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted") : 0;
}

static void wait_for_stop(void)
{
    struct pollfd p = {.fd = stop_pipe[0], .events = POLLIN};
    while (!stop_signal && poll(&p, 1, -1) < 0 && errno == EINTR) {
    }
}

/* ---------------------------------------------------------------- serving */

/* "models/k3-w26.pack/" is served as "k3-w26". */
static void name_of(char *out, size_t n, const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') len--;
    size_t from = len;
    while (from && path[from - 1] != '/') from--;
    if (len - from > 5 && memcmp(path + len - 5, ".pack", 5) == 0) len -= 5;
    (void)snprintf(out, n, "%.*s", (int)(len - from), path + from);
}

static void announce(const struct sl_http *h, const struct serve_flags *f, const char *name)
{
    const char *host = strchr(f->host, ':') ? "[" : "";
    fprintf(stderr, "sluice: serving %s at http://%s%s%s:%d/\n", name, host, f->host,
            host[0] ? "]" : "", sl_http_port(h));
    if (!sl_http_loopback(h) && !f->api_key)
        fprintf(stderr,
                "sluice: warning: %s can be reached from other machines and asks for no key; set "
                "SLUICE_API_KEY\n",
                f->host);
}

static int serve(const struct serve_flags *f, struct sl_sched *sched,
                 const struct sl_serve_model *model, struct sl_err *err)
{
    const struct sl_http_opts ho = {.host = f->host,
                                    .port = (int)f->port,
                                    .api_key = f->api_key,
                                    .cors = f->cors,
                                    .max_body_bytes = f->max_body,
                                    .request_seconds = f->request_seconds,
                                    .send_seconds = f->send_seconds,
                                    .connections = (int)f->connections,
                                    .log = f->log};
    struct sl_http *h = NULL;
    int rc = catch_stop(err);
    if (!rc) rc = sl_http_open(&h, &ho, sched, model, err);
    if (rc) return rc;
    announce(h, f, model->name);
    wait_for_stop();
    sl_http_quiesce(h);
    sl_sched_stop(sched);
    sl_http_close(h, LAST_WRITE_SECONDS);
    return 0;
}

/* Beside the states of --prefix-dir lie the ids of the turns that were written, so that history sent back as
 * text matches them after a restart too. A file that cannot be used costs time, not answers. */
static bool turns_path(char *out, const struct serve_flags *f)
{
    return f->prefix_dir && sl_path_join(out, f->prefix_dir, "turns.ids");
}

static void load_turns(const struct serve_flags *f, const struct sl_serve_model *m)
{
    char path[SL_PATH_MAX];
    struct sl_err err = {0};
    if (!m->format || !turns_path(path, f) || access(path, F_OK)) return;
    if (sl_chat_turns_load(m->turns, m->format, path, &err))
        fprintf(stderr, "sluice: warning: %s; earlier turns are not known\n", err.text);
}

static int save_turns(const struct serve_flags *f, const struct sl_serve_model *m,
                      struct sl_err *err)
{
    char path[SL_PATH_MAX];
    return m->format && turns_path(path, f) ? sl_chat_turns_save(m->turns, path, err) : 0;
}

/* With the pack open. Returns the exit status. */
static int serve_pack(const struct serve_flags *f, sluice_pack *p, const char *path,
                      const sluice_options *opts)
{
    char name[256];
    struct sl_err err = {0};
    sluice_error e = {0};
    struct sl_chat_format format;
    struct sl_chat_turns *turns = NULL;
    struct sl_sched *sched = NULL;
    int status = 0;
    name_of(name, sizeof name, f->model_name ? f->model_name : path);
    if (f->model_name) (void)snprintf(name, sizeof name, "%s", f->model_name);
    struct sl_serve_model model = {.p = p, .name = name};
    if (sl_chat_format_of(&format, p, &err) == 0) model.format = &format;
    size_t turn_bytes = (size_t)(f->prefix_bytes / TURN_SHARE);
    if (sl_chat_turns_open(&turns, turn_bytes > TURNS_LEAST ? turn_bytes : TURNS_LEAST, &err))
        return sl_cmd_fail(&err);
    model.turns = turns;
    load_turns(f, &model);
    const struct sl_sched_opts so = {.seats = (int)f->seats,
                                     .queue = (int)f->queue,
                                     .answer_seconds = f->answer_seconds,
                                     .format = model.format,
                                     .turns = turns};
    if (sl_sched_open(&sched, p, opts, &so, &e)) {
        status = sl_engine_fail(&e);
        goto end;
    }
    model.ctx = sl_sched_ctx(sched);
    if (serve(f, sched, &model, &err)) {
        status = sl_cmd_fail(&err);
        goto end;
    }
    sluice_session *session = sl_sched_join(sched);
    /* As with the states beside them: what cannot be kept costs time later, and no answer. */
    if (save_turns(f, &model, &err))
        fprintf(stderr, "sluice: warning: %s; these turns will not be known\n", err.text);
    if (sl_engine_stats_save(&f->engine, session, &err))
        status = sl_cmd_fail(&err);
    else
        status = stop_signal == SIGINT ? 130 : 0;
end:
    sl_sched_close(sched);
    sl_chat_turns_close(turns);
    return status;
}

int sl_cmd_serve(int argc, char **argv)
{
    struct serve_flags f;
    const char *pos[SL_ARG_POS_MAX];
    int status = parse(&f, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;
    if (!sl_http_available()) {
        fprintf(stderr, "sluice serve: this build has no HTTP library; install libmicrohttpd-dev "
                        "and run make again\n");
        return 2;
    }
    sluice_options opts = sl_engine_flags_options(&f.engine);
    opts.prefix_dir = f.prefix_dir;
    sl_flag_draft_set(f.draft, &opts);
    sluice_pack *p = NULL;
    sluice_error e = {0};
    if (sluice_pack_open(&p, pos[0], &opts, &e)) return sl_engine_fail(&e);
    if (!f.prefix_bytes) f.prefix_bytes = sluice_prefix_suggest(p, &opts);
    opts.prefix_bytes = f.prefix_bytes;
    status = serve_pack(&f, p, pos[0], &opts);
    sluice_pack_close(p);
    return status;
}
