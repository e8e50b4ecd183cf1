/* HTTP: connections, routes, keys and limits, in front of the scheduler.
 *
 *   GET  /                      the page          GET /health   GET /metrics   GET /stats
 *   GET  /v1/models[/ID]        POST /v1/chat/completions       POST /v1/completions
 *
 * One thread a connection: it reads, tokenizes, waits for the engine and writes, so that one client's
 * pace is nobody else's. Their number is bounded.
 *
 * Who may ask: with an API key, every path but the page and /health wants "Authorization: Bearer KEY".
 * Without one, a server on a loopback address answers only where the Host header names one, and never
 * to a page of another origin: web pages that a user visits must not reach the model (DNS rebinding,
 * cross-site requests). */
#ifndef SL_RUNTIME_SERVE_HTTP_H
#define SL_RUNTIME_SERVE_HTTP_H

#include "runtime/serve_prompt.h"
#include "runtime/serve_sched.h"

struct sl_http_opts {
    const char *host;        /* name or address to listen on */
    int port;                /* 0: any free one */
    const char *api_key;     /* NULL: none */
    const char *cors;        /* an origin that may ask from a browser, "*": any; NULL: none */
    uint64_t max_body_bytes; /* of a request */
    double request_seconds;  /* to send a request; also how long a connection may idle */
    double send_seconds;     /* until a client takes more of its answer */
    int connections;         /* at most */
    bool log;                /* a line on stderr for each request */
};

struct sl_http;
bool sl_http_available(void); /* false: built without the library */

/* Listens and serves until close. sched and model outlive it. SL_E_ARG: an address that cannot be
 * listened on; SL_E_NOMEM. */
int sl_http_open(struct sl_http **out, const struct sl_http_opts *o, struct sl_sched *sched,
                 const struct sl_serve_model *model, struct sl_err *err);
int sl_http_port(const struct sl_http *h);
bool sl_http_loopback(const struct sl_http *h);

/* Takes no new connections. */
void sl_http_quiesce(struct sl_http *h);
/* Waits for answers in progress to be written, at most so many seconds, then closes all connections. The
 * scheduler must have been stopped. NULL is fine. */
void sl_http_close(struct sl_http *h, double seconds);

#endif
