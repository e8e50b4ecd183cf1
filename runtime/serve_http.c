/* Routes and connections on libmicrohttpd (see serve_http.h).
 *
 * A request is collected whole, then answered by one function a route. Streams are written by a reader
 * callback that blocks on the job; that is why every connection has a thread. */
#include "runtime/serve_http.h"

#ifdef SL_HAVE_MICROHTTPD

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "offload/budget.h"
#include "runtime/serve_guard.h"
#include "runtime/serve_metrics.h"
#include "runtime/serve_page.h"
#include "runtime/serve_reply.h"
#include "runtime/serve_watch.h"

#if MHD_VERSION >= 0x00097002
typedef enum MHD_Result mhd_result;
#else
typedef int mhd_result;
#endif

enum { STACK_BYTES = 1 << 20, BACKLOG = 128 };
/* Comments in a silent stream, so that proxies and clients do not take it for dead. */
static const double KEEP_ALIVE_SECONDS = 10;

static const char invalid[] = "invalid_request_error";

struct sl_http {
    struct sl_http_opts o;
    struct sl_sched *sched;
    const struct sl_serve_model *model;
    struct sl_watch *watch;
    struct MHD_Daemon *daemon;
    struct sl_reply_about about;
    char policy[SL_SERVE_POLICY_MAX]; /* of the page */
    int port;
    bool loopback, quiet; /* quiet: no longer listening */
    int listen_fd;
    double started;
    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t idle;
    uint64_t requests;
    int active; /* requests of the engine, not yet written */
};

/* One request, from its first header to its last byte out. */
struct http_request {
    struct sl_http *h;
    struct sl_watch_conn *conn;
    struct sl_serve_text body;
    double begun;
    bool too_large, engine; /* engine: counted in active */
    int status;
    char method[8], path[64];
    struct sl_serve_job *job; /* of a stream: its reference is the stream's */
};

struct stream {
    struct http_request *r;
    struct sl_serve_job *job;
    struct sl_serve_text out;
    size_t at; /* bytes of out that are gone */
    bool ended;
};

bool sl_http_available(void)
{
    return true;
}

/* ---------------------------------------------------------------- sending */

static void cors_headers(const struct sl_http *h, struct MHD_Response *res)
{
    if (!h->o.cors) return;
    (void)MHD_add_response_header(res, "Access-Control-Allow-Origin", h->o.cors);
    (void)MHD_add_response_header(res, "Vary", "Origin");
}

static mhd_result queue(struct http_request *r, struct MHD_Connection *c, int status,
                        struct MHD_Response *res, const char *type)
{
    if (!res) return MHD_NO;
    if (type) (void)MHD_add_response_header(res, "Content-Type", type);
    (void)MHD_add_response_header(res, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(res, "Cache-Control", "no-store");
    cors_headers(r->h, res);
    r->status = status;
    sl_watch_deadline(r->h->watch, r->conn, r->h->o.send_seconds);
    mhd_result rc = MHD_queue_response(c, (unsigned)status, res);
    MHD_destroy_response(res);
    return rc;
}

/* Takes t over. */
static struct MHD_Response *response_of(struct sl_serve_text *t)
{
    if (t->failed || !t->v) {
        static char failed[] = "{\"error\":{\"message\":\"no memory for the reply\",\"type\":"
                               "\"server_error\",\"param\":null,\"code\":\"internal\"}}";
        sl_serve_text_free(t);
        return MHD_create_response_from_buffer(sizeof failed - 1, failed, MHD_RESPMEM_PERSISTENT);
    }
    struct MHD_Response *res = MHD_create_response_from_buffer(t->n, t->v, MHD_RESPMEM_MUST_FREE);
    if (!res) free(t->v);
    *t = (struct sl_serve_text){0};
    return res;
}

static mhd_result send_text(struct http_request *r, struct MHD_Connection *c, int status,
                            struct sl_serve_text *t, const char *type)
{
    if (t->failed) status = 500;
    return queue(r, c, status, response_of(t), type);
}

static mhd_result send_fault(struct http_request *r, struct MHD_Connection *c,
                             const struct sl_serve_fault *f, int retry_seconds)
{
    struct sl_serve_text t = {0};
    char retry[16];
    sl_reply_error(&t, f);
    struct MHD_Response *res = response_of(&t);
    if (!res) return MHD_NO;
    if (f->status == 401) (void)MHD_add_response_header(res, "WWW-Authenticate", "Bearer");
    if (retry_seconds) {
        (void)snprintf(retry, sizeof retry, "%d", retry_seconds);
        (void)MHD_add_response_header(res, "Retry-After", retry);
    }
    return queue(r, c, f->status, res, "application/json");
}

static mhd_result fail(struct http_request *r, struct MHD_Connection *c, int status,
                       const char *type, const char *code, const char *text)
{
    struct sl_serve_fault f;
    (void)sl_serve_refuse(&f, status, type, code, NULL, "%s", text);
    return send_fault(r, c, &f, 0);
}

/* ---------------------------------------------------------------- the engine's routes */

static void engine_begin(struct http_request *r)
{
    pthread_mutex_lock(&r->h->lock);
    r->h->active++;
    pthread_mutex_unlock(&r->h->lock);
    r->engine = true;
}

static void engine_end(struct http_request *r)
{
    if (!r->engine) return;
    r->engine = false;
    pthread_mutex_lock(&r->h->lock);
    if (--r->h->active == 0) pthread_cond_broadcast(&r->h->idle);
    pthread_mutex_unlock(&r->h->lock);
}

static void on_gone(void *ctx, void *what)
{
    struct sl_http *h = ctx;
    sl_sched_cancel(h->sched, what);
}

/* More of the answer into s->out; blocks until there is some. */
static void refill(struct stream *s)
{
    struct sl_http *h = s->r->h;
    bool done = false;
    sl_serve_text_shift(&s->out, s->out.n);
    s->at = 0;
    sl_watch_deadline(h->watch, s->r->conn, 0); /* it is we who are slow now */
    struct sl_delta *list = sl_job_take(s->job, KEEP_ALIVE_SECONDS, &done);
    for (const struct sl_delta *d = list; d; d = d->next)
        sl_reply_delta(&s->out, &h->about, s->job, d);
    sl_delta_free(list);
    if (done) {
        sl_reply_end(&s->out, &h->about, s->job);
        s->ended = true;
    } else if (!list) {
        sl_serve_text_put(&s->out, ": waiting\n\n");
    }
    sl_watch_deadline(h->watch, s->r->conn, h->o.send_seconds);
}

static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct stream *s = cls;
    (void)pos;
    if (s->at == s->out.n && s->ended) return MHD_CONTENT_READER_END_OF_STREAM;
    if (s->at == s->out.n) refill(s);
    if (s->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = s->out.n - s->at < max ? s->out.n - s->at : max;
    memcpy(buf, s->out.v + s->at, n);
    s->at += n;
    sl_watch_deadline(s->r->h->watch, s->r->conn, s->r->h->o.send_seconds);
    return (ssize_t)n;
}

static void free_stream(void *cls)
{
    struct stream *s = cls;
    sl_serve_text_free(&s->out);
    sl_job_put(s->job);
    free(s);
}

static mhd_result send_stream(struct http_request *r, struct MHD_Connection *c,
                              struct sl_serve_job *job)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s) return MHD_NO;
    sl_job_ref(job);
    s->r = r;
    s->job = job;
    sl_reply_begin(&s->out, &r->h->about, job);
    struct MHD_Response *res =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, s, free_stream);
    if (!res) {
        free_stream(s);
        return MHD_NO;
    }
    (void)MHD_add_response_header(res, "X-Accel-Buffering", "no");
    return queue(r, c, 200, res, "text/event-stream; charset=utf-8");
}

static mhd_result send_whole(struct http_request *r, struct MHD_Connection *c,
                             struct sl_serve_job *job)
{
    bool done = false;
    sl_watch_deadline(r->h->watch, r->conn, 0);
    sl_job_wait_done(job);
    if (job->fault.status >= 400) return send_fault(r, c, &job->fault, 0);
    struct sl_delta *all = sl_job_take(job, 0, &done);
    struct sl_serve_text t = {0};
    sl_reply_whole(&t, &r->h->about, job, all);
    sl_delta_free(all);
    return send_text(r, c, 200, &t, "application/json");
}

static int check_model(const struct http_request *r, const struct sl_serve_request *q,
                       struct sl_serve_fault *f)
{
    if (!q->model || !q->model[0] || strcmp(q->model, r->h->model->name) == 0) return 0;
    return sl_serve_refuse(f, 404, invalid, "model_not_found", "model",
                           "the model '%.100s' is not served here, '%.100s' is", q->model,
                           r->h->model->name);
}

static void draw_seed(struct sl_serve_request *q)
{
    if (q->seeded) return;
    if (getrandom(&q->seed, sizeof q->seed, 0) != (ssize_t)sizeof q->seed)
        q->seed = (uint64_t)(sl_serve_now() * 1e9);
}

static mhd_result generate(struct http_request *r, struct MHD_Connection *c,
                           enum sl_serve_kind kind)
{
    struct sl_serve_request q;
    struct sl_serve_fault f;
    const char *body = r->body.v ? r->body.v : "";
    int retry = 0;
    if (sl_serve_request_parse(&q, kind, body, r->body.n, &f)) return send_fault(r, c, &f, 0);
    draw_seed(&q);
    if (check_model(r, &q, &f)) {
        sl_serve_request_free(&q);
        return send_fault(r, c, &f, 0);
    }
    struct sl_serve_job *job = sl_job_new(&q);
    if (!job) {
        sl_serve_request_free(&q);
        return fail(r, c, 500, "server_error", "internal", "no memory");
    }
    mhd_result rc;
    if (sl_serve_prompt_build(job, r->h->model, body, r->body.n, &f)) {
        sl_job_put(job);
        return send_fault(r, c, &f, 0);
    }
    sl_serve_text_free(&r->body);
    engine_begin(r);
    /* Watched before it is submitted, so that a hang-up between the two is not lost. */
    r->job = job;
    sl_watch_set(r->h->watch, r->conn, job);
    int taken = sl_sched_submit(r->h->sched, job, &retry);
    if (taken > 0) {
        (void)sl_serve_refuse(&f, 429, "rate_limit_error", "queue_full", NULL,
                              "the queue is full; try again in %d s", retry);
        rc = send_fault(r, c, &f, retry);
    } else if (taken < 0) {
        rc = fail(r, c, 503, "server_error", "shutting_down", "the server is shutting down");
    } else {
        rc = job->req.stream ? send_stream(r, c, job) : send_whole(r, c, job);
        if (rc == MHD_NO) sl_sched_cancel(r->h->sched, job);
    }
    return rc;
}

/* ---------------------------------------------------------------- the other routes */

static void model_object(struct sl_serve_text *t, const struct sl_http *h)
{
    sl_serve_text_put(t, "{\"id\":");
    sl_serve_text_quote(t, h->model->name, strlen(h->model->name));
    sl_serve_text_fmt(t,
                      ",\"object\":\"model\",\"created\":0,\"owned_by\":\"sluice\","
                      "\"max_model_len\":%llu}",
                      (unsigned long long)h->model->ctx);
}

static mhd_result get_models(struct http_request *r, struct MHD_Connection *c, const char *id)
{
    struct sl_serve_text t = {0};
    struct sl_serve_fault f;
    if (id) {
        if (strcmp(id, r->h->model->name) != 0) {
            (void)sl_serve_refuse(&f, 404, invalid, "model_not_found", "model",
                                  "the model '%.100s' is not served here", id);
            return send_fault(r, c, &f, 0);
        }
        model_object(&t, r->h);
    } else {
        sl_serve_text_put(&t, "{\"object\":\"list\",\"data\":[");
        model_object(&t, r->h);
        sl_serve_text_put(&t, "]}");
    }
    return send_text(r, c, 200, &t, "application/json");
}

static mhd_result get_figures(struct http_request *r, struct MHD_Connection *c, bool prometheus)
{
    struct sl_http *h = r->h;
    struct sl_serve_text t = {0};
    struct sl_metrics m = {.model = h->model->name,
                           .uptime_seconds = sl_serve_now() - h->started,
                           .connections = sl_watch_count(h->watch)};
    uint64_t peak = 0;
    sl_process_memory(&m.resident_bytes, &peak);
    sl_sched_get_info(h->sched, &m.sched);
    pthread_mutex_lock(&h->lock);
    m.http_requests = h->requests;
    pthread_mutex_unlock(&h->lock);
    if (prometheus)
        sl_metrics_prometheus(&t, &m);
    else
        sl_metrics_json(&t, &m);
    return send_text(r, c, 200, &t,
                     prometheus ? "text/plain; version=0.0.4; charset=utf-8" : "application/json");
}

static mhd_result get_page(struct http_request *r, struct MHD_Connection *c)
{
    union { /* the library's interface is not const */
        const unsigned char *in;
        void *out;
    } page = {sl_serve_page};
    struct MHD_Response *res =
        MHD_create_response_from_buffer(sl_serve_page_bytes, page.out, MHD_RESPMEM_PERSISTENT);
    if (!res) return MHD_NO;
    (void)MHD_add_response_header(res, "Content-Security-Policy", r->h->policy);
    (void)MHD_add_response_header(res, "Referrer-Policy", "no-referrer");
    return queue(r, c, 200, res, "text/html; charset=utf-8");
}

static mhd_result preflight(struct http_request *r, struct MHD_Connection *c)
{
    struct MHD_Response *res = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!res) return MHD_NO;
    (void)MHD_add_response_header(res, "Allow", "GET, HEAD, POST, OPTIONS");
    if (r->h->o.cors) {
        (void)MHD_add_response_header(res, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        (void)MHD_add_response_header(res, "Access-Control-Allow-Headers",
                                      "Authorization, Content-Type");
        (void)MHD_add_response_header(res, "Access-Control-Max-Age", "600");
    }
    return queue(r, c, 204, res, NULL);
}

enum route { NONE, PAGE, HEALTH, METRICS, STATS, MODELS, MODEL, CHAT, COMPLETE };

static enum route find_route(const char *path)
{
    static const struct {
        const char *path;
        enum route route;
    } all[] = {{"/", PAGE},
               {"/index.html", PAGE},
               {"/health", HEALTH},
               {"/metrics", METRICS},
               {"/stats", STATS},
               {"/v1/models", MODELS},
               {"/v1/models/", MODELS},
               {"/v1/chat/completions", CHAT},
               {"/v1/completions", COMPLETE}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(path, all[i].path) == 0) return all[i].route;
    return strncmp(path, "/v1/models/", 11) == 0 ? MODEL : NONE;
}

/* Host, origin and key; 0: may go on. */
static int guard(const struct http_request *r, struct MHD_Connection *c, enum route route,
                 struct sl_serve_fault *f)
{
    const struct sl_http_opts *o = &r->h->o;
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    if (!o->api_key && r->h->loopback && !sl_guard_loopback_host(host))
        return sl_serve_refuse(f, 403, invalid, "host_not_allowed", NULL,
                               "without --api-key this server answers to localhost only, not to "
                               "the host '%.100s'",
                               host);
    if (!sl_guard_origin(origin, host, o->cors))
        return sl_serve_refuse(f, 403, invalid, "origin_not_allowed", NULL,
                               "pages of '%.100s' may not ask here (--cors)", origin);
    if (!o->api_key || route == PAGE || route == HEALTH || strcmp(r->method, "OPTIONS") == 0)
        return 0;
    const char *key = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    if (sl_guard_key(key, o->api_key)) return 0;
    return sl_serve_refuse(f, 401, invalid, "invalid_api_key", NULL,
                           key ? "the API key is not the right one"
                               : "an API key is needed: Authorization: Bearer KEY");
}

static mhd_result answer(struct http_request *r, struct MHD_Connection *c, const char *path)
{
    struct sl_serve_fault f;
    enum route route = find_route(path);
    bool post = strcmp(r->method, "POST") == 0;
    bool get = strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0;
    if (guard(r, c, route, &f)) return send_fault(r, c, &f, 0);
    if (strcmp(r->method, "OPTIONS") == 0) return preflight(r, c);
    if (route == NONE) return fail(r, c, 404, invalid, "unknown_url", "there is nothing here");
    if (route == CHAT || route == COMPLETE ? !post : !get)
        return fail(r, c, 405, invalid, "method_not_allowed",
                    route == CHAT || route == COMPLETE ? "use POST" : "use GET");
    if (r->too_large) {
        (void)sl_serve_refuse(&f, 413, invalid, "request_too_large", NULL,
                              "the body is larger than %llu bytes (--max-body)",
                              (unsigned long long)r->h->o.max_body_bytes);
        return send_fault(r, c, &f, 0);
    }
    if (r->body.failed) return fail(r, c, 500, "server_error", "internal", "no memory");
    struct sl_serve_text t = {0};
    switch (route) {
    case PAGE:
        return get_page(r, c);
    case METRICS:
        return get_figures(r, c, true);
    case STATS:
        return get_figures(r, c, false);
    case MODELS:
        return get_models(r, c, NULL);
    case MODEL:
        return get_models(r, c, path + 11);
    case CHAT:
        return generate(r, c, SL_SERVE_CHAT);
    case COMPLETE:
        return generate(r, c, SL_SERVE_COMPLETION);
    default:
        sl_serve_text_put(&t, "{\"status\":\"ok\"}");
        return send_text(r, c, 200, &t, "application/json");
    }
}

/* ---------------------------------------------------------------- the library's callbacks */

static struct http_request *begin(struct sl_http *h, struct MHD_Connection *c, const char *path,
                                  const char *method)
{
    struct http_request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    r->h = h;
    r->conn = info ? info->socket_context : NULL;
    r->begun = sl_serve_now();
    (void)snprintf(r->method, sizeof r->method, "%s", method);
    (void)snprintf(r->path, sizeof r->path, "%s", path);
    pthread_mutex_lock(&h->lock);
    h->requests++;
    pthread_mutex_unlock(&h->lock);
    return r;
}

static mhd_result on_request(void *cls, struct MHD_Connection *c, const char *path,
                             const char *method, const char *version, const char *data,
                             size_t *n_data, void **state)
{
    struct sl_http *h = cls;
    struct http_request *r = *state;
    (void)version;
    if (!r) {
        *state = r = begin(h, c, path, method);
        if (!r) return MHD_NO;
        const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
        if (length && strtoull(length, NULL, 10) > h->o.max_body_bytes) {
            r->too_large = true; /* said before the body is sent at all */
            return answer(r, c, path);
        }
        return MHD_YES;
    }
    if (!*n_data) return r->status ? MHD_YES : answer(r, c, path);
    if (*n_data > h->o.max_body_bytes - r->body.n) r->too_large = true;
    if (r->too_large) {
        /* The rest of a chunked body is read and dropped, up to a point. */
        r->body.n += *n_data;
        mhd_result rc = r->body.n / 4 > h->o.max_body_bytes ? MHD_NO : MHD_YES;
        *n_data = 0;
        return rc;
    }
    sl_serve_text_add(&r->body, data, *n_data);
    *n_data = 0;
    return r->body.failed ? MHD_NO : MHD_YES;
}

static void log_request(const struct http_request *r)
{
    struct sl_serve_job *j = r->job;
    if (!r->h->o.log) return;
    char tokens[96] = "";
    if (j) {
        pthread_mutex_lock(&j->lock);
        (void)snprintf(tokens, sizeof tokens, ", %llu + %llu tokens, %llu cached",
                       (unsigned long long)j->usage.prompt, (unsigned long long)j->usage.completion,
                       (unsigned long long)j->usage.cached);
        pthread_mutex_unlock(&j->lock);
    }
    fprintf(stderr, "%s %s %d %.3f s%s\n", r->method, r->path, r->status, sl_serve_now() - r->begun,
            tokens);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode how)
{
    struct sl_http *h = cls;
    struct http_request *r = *state;
    (void)c;
    if (!r) return;
    *state = NULL;
    sl_watch_set(h->watch, r->conn, NULL);
    sl_watch_deadline(h->watch, r->conn, h->o.request_seconds);
    if (r->job && how != MHD_REQUEST_TERMINATED_COMPLETED_OK) sl_sched_cancel(h->sched, r->job);
    log_request(r);
    engine_end(r);
    sl_job_put(r->job);
    sl_serve_text_free(&r->body);
    free(r);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **state,
                          enum MHD_ConnectionNotificationCode what)
{
    struct sl_http *h = cls;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        sl_watch_remove(h->watch, *state);
        *state = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info) *state = sl_watch_add(h->watch, info->connect_fd, h->o.request_seconds);
}

/* ---------------------------------------------------------------- open and close */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)a;
        return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
    }
    const struct sockaddr_in6 *in6 = (const void *)a;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

static int bind_to(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return -1;
    const int one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, BACKLOG)) return fd;
    int e = errno;
    close(fd);
    errno = e;
    return -1;
}

static int listen_on(struct sl_http *h, struct sl_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[16];
    (void)snprintf(port, sizeof port, "%d", h->o.port);
    int rc = getaddrinfo(h->o.host, port, &hints, &list);
    if (rc) return sl_fail(err, SL_E_ARG, NULL, "--host", "%s: %s", h->o.host, gai_strerror(rc));
    int sys = 0;
    for (const struct addrinfo *a = list; a && h->listen_fd < 0; a = a->ai_next) {
        h->listen_fd = bind_to(a);
        if (h->listen_fd < 0) sys = errno;
    }
    freeaddrinfo(list);
    if (h->listen_fd < 0) {
        char where[160];
        (void)snprintf(where, sizeof where, "%.100s port %d", h->o.host, h->o.port);
        return sl_fail(err, SL_E_ARG, NULL, "--host", "%s: %s", where, strerror(sys));
    }
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (getsockname(h->listen_fd, (struct sockaddr *)&at, &len)) return 0;
    h->loopback = is_loopback((struct sockaddr *)&at);
    h->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                             : ((struct sockaddr_in *)&at)->sin_port);
    return 0;
}

int sl_http_open(struct sl_http **out, const struct sl_http_opts *o, struct sl_sched *sched,
                 const struct sl_serve_model *model, struct sl_err *err)
{
    *out = NULL;
    struct sl_http *h = calloc(1, sizeof *h);
    if (!h) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory");
    h->o = *o;
    h->sched = sched;
    h->model = model;
    h->about = (struct sl_reply_about){model->p, model->name};
    h->listen_fd = -1;
    h->started = sl_serve_now();
    sl_serve_page_policy(h->policy, (const char *)sl_serve_page, sl_serve_page_bytes);
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&h->idle, &clock);
    pthread_condattr_destroy(&clock);
    int rc = listen_on(h, err);
    if (!rc) rc = sl_watch_open(&h->watch, on_gone, h, err);
    if (!rc) {
        const unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                               MHD_USE_POLL | MHD_USE_ITC;
        h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET,
                                     h->listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
                                     MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
                                     MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->connections,
                                     MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,
                                     MHD_OPTION_CONNECTION_TIMEOUT, 0U, MHD_OPTION_END);
        if (!h->daemon)
            rc = sl_fail(err, SL_E_ARG, NULL, "--port", "the HTTP server did not start");
    }
    if (rc) {
        sl_http_close(h, 0);
        return rc;
    }
    *out = h;
    return 0;
}

int sl_http_port(const struct sl_http *h)
{
    return h->port;
}

bool sl_http_loopback(const struct sl_http *h)
{
    return h->loopback;
}

void sl_http_quiesce(struct sl_http *h)
{
    if (h->quiet) return;
    h->quiet = true;
    MHD_socket fd = MHD_quiesce_daemon(h->daemon);
    if (fd != MHD_INVALID_SOCKET) close(fd);
    h->listen_fd = -1;
}

void sl_http_close(struct sl_http *h, double seconds)
{
    if (!h) return;
    if (h->daemon) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(seconds * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&h->lock);
        while (h->active)
            if (pthread_cond_timedwait(&h->idle, &h->lock, &until)) break;
        pthread_mutex_unlock(&h->lock);
        MHD_stop_daemon(h->daemon);
        h->listen_fd = -1; /* closed with it, or by quiesce */
    }
    if (h->listen_fd >= 0) close(h->listen_fd);
    sl_watch_close(h->watch);
    pthread_cond_destroy(&h->idle);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

#else

bool sl_http_available(void)
{
    return false;
}

int sl_http_open(struct sl_http **out, const struct sl_http_opts *o, struct sl_sched *sched,
                 const struct sl_serve_model *model, struct sl_err *err)
{
    (void)o;
    (void)sched;
    (void)model;
    *out = NULL;
    return sl_fail(err, SL_E_ARG, NULL, NULL, "%s", "this build has no HTTP library");
}

int sl_http_port(const struct sl_http *h)
{
    (void)h;
    return 0;
}

bool sl_http_loopback(const struct sl_http *h)
{
    (void)h;
    return true;
}

void sl_http_quiesce(struct sl_http *h)
{
    (void)h;
}

void sl_http_close(struct sl_http *h, double seconds)
{
    (void)h;
    (void)seconds;
}

#endif
