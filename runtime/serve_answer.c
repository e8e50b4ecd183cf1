/* Ids to deltas (see serve_answer.h). */
#include "runtime/serve_answer.h"

#include <stdlib.h>
#include <string.h>
#include "runtime/chat_parse.h"
#include "runtime/serve_schema.h"
#include "runtime/serve_stop.h"
#include "runtime/utf8.h"

struct answer_tokens {
    struct sl_serve_token *v;
    size_t n, cap;
};

struct sl_answer {
    struct sl_serve_job *job;
    const sluice_pack *p;
    const struct sl_chat_format *format;
    struct sl_chat_parser *parser;
    struct sl_utf8_stream utf8; /* of a completion; the parser has its own */
    struct sl_serve_stop stop;
    struct sl_serve_text shown; /* let through by the stop strings, on its way into a delta */
    uint64_t content_in;        /* bytes of content before the stop strings */
    uint64_t content_chars;     /* the same in characters */
    uint64_t content_out;       /* bytes of content that left in deltas */
    struct answer_tokens maybe; /* of ids that may turn out to be content */
    struct answer_tokens held;  /* of content that is held back */
    struct sl_serve_text whole; /* all content, where it must be judged */
    uint64_t reasoning;
    bool called, nomem;
};

static void *grown(void *v, size_t *cap, size_t n, size_t size)
{
    if (n < *cap) return v;
    size_t more = *cap ? *cap * 2 : 4;
    void *w = realloc(v, more * size);
    if (w) *cap = more;
    return w;
}

static void push(struct sl_answer *a, struct answer_tokens *t, const struct sl_serve_token *token)
{
    struct sl_serve_token *v = grown(t->v, &t->cap, t->n, sizeof *v);
    if (!v) {
        a->nomem = true;
        return;
    }
    t->v = v;
    v[t->n++] = *token;
}

static void append(struct sl_answer *a, struct sl_delta *d)
{
    if (d)
        sl_job_append(a->job, d);
    else
        a->nomem = true;
}

/* Tokens whose text begins before byte `end` leave with this delta. */
static void attach(struct sl_answer *a, struct sl_delta *d, uint64_t end)
{
    size_t n = 0;
    while (n < a->held.n && a->held.v[n].at < end) n++;
    if (!n) return;
    d->tokens = malloc(n * sizeof *d->tokens);
    if (!d->tokens) {
        a->nomem = true;
        return;
    }
    memcpy(d->tokens, a->held.v, n * sizeof *d->tokens);
    d->n_tokens = n;
    a->held.n -= n;
    memmove(a->held.v, a->held.v + n, a->held.n * sizeof *a->held.v);
}

/* Sends what the stop strings let through. */
static void send_shown(struct sl_answer *a, bool last)
{
    uint64_t end = a->content_out + a->shown.n;
    bool tokens = last && a->held.n && !a->stop.hit;
    if (!a->shown.n && !tokens) return;
    struct sl_delta *d = sl_delta_new(SL_DELTA_CONTENT, 0, a->shown.v, a->shown.n);
    if (!d) {
        a->nomem = true;
        return;
    }
    attach(a, d, tokens ? UINT64_MAX : end);
    if (a->job->req.format != SL_SERVE_TEXT) sl_serve_text_add(&a->whole, a->shown.v, a->shown.n);
    a->content_out = end;
    a->shown.n = 0;
    append(a, d);
}

static void content(struct sl_answer *a, const char *text, size_t len)
{
    for (size_t i = 0; i < a->maybe.n; i++) {
        a->maybe.v[i].at = a->content_in;
        a->maybe.v[i].at_char = a->content_chars;
        push(a, &a->held, &a->maybe.v[i]);
    }
    a->maybe.n = 0;
    a->content_in += len;
    for (size_t i = 0; i < len; i++) a->content_chars += ((unsigned char)text[i] & 0xc0) != 0x80;
    (void)sl_serve_stop_feed(&a->stop, text, len, &a->shown);
    send_shown(a, false);
}

/* What follows a stop string, or the only call wanted, is not part of the answer. */
static int on_event(void *ctx, const struct sl_chat_event *e)
{
    struct sl_answer *a = ctx;
    if (a->stop.hit || (a->called && a->job->req.one_call)) return 0;
    switch (e->kind) {
    case SL_CHAT_EV_REASONING:
        append(a, sl_delta_new(SL_DELTA_REASONING, 0, e->text.s, e->text.n));
        break;
    case SL_CHAT_EV_CONTENT:
        content(a, e->text.s, e->text.n);
        break;
    case SL_CHAT_EV_CALL:
        a->called = true;
        append(a, sl_delta_new(SL_DELTA_CALL, e->call_index, e->call->name.s, e->call->name.n));
        if (e->call->arguments.n)
            append(a, sl_delta_new(SL_DELTA_ARGS, e->call_index, e->call->arguments.s,
                                   e->call->arguments.n));
        else
            append(a, sl_delta_new(SL_DELTA_ARGS, e->call_index, "{}", 2));
        break;
    }
    return 0;
}

int sl_answer_open(struct sl_answer **out, struct sl_serve_job *job, const sluice_pack *p,
                   const struct sl_chat_format *format, struct sl_err *err)
{
    *out = NULL;
    struct sl_answer *a = calloc(1, sizeof *a);
    if (!a) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for an answer");
    a->job = job;
    a->p = p;
    a->format = format;
    a->stop.stop = job->req.stop;
    a->stop.n = job->req.n_stop;
    if (job->req.kind == SL_SERVE_CHAT) {
        int rc = sl_chat_parser_open(&a->parser, format, job->thinking, on_event, a, err);
        if (rc) {
            sl_answer_close(a);
            return rc;
        }
    }
    *out = a;
    return 0;
}

void sl_answer_close(struct sl_answer *a)
{
    if (!a) return;
    sl_chat_parser_close(a->parser);
    sl_serve_stop_free(&a->stop);
    sl_serve_text_free(&a->shown);
    sl_serve_text_free(&a->whole);
    free(a->maybe.v);
    free(a->held.v);
    free(a);
}

static int check_memory(const struct sl_answer *a, struct sl_err *err)
{
    if (a->nomem || a->shown.failed || a->whole.failed || a->stop.held.failed)
        return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for an answer");
    return 0;
}

static void complete_bytes(struct sl_answer *a, const char *bytes, size_t len)
{
    char *out = malloc(SL_UTF8_ROOM(len));
    if (!out) {
        a->nomem = true;
        return;
    }
    size_t n = bytes ? sl_utf8_feed(&a->utf8, bytes, len, out) : sl_utf8_finish(&a->utf8, out);
    if (n) content(a, out, n);
    free(out);
}

int sl_answer_token(struct sl_answer *a, int32_t id, const struct sl_serve_token *token,
                    enum sl_finish *finish, struct sl_err *err)
{
    int rc = 0;
    if (token) push(a, &a->maybe, token);
    if (a->parser) {
        bool thinking = !sl_chat_parser_in_response(a->parser);
        a->reasoning += thinking;
        rc = sl_chat_parse(a->parser, &id, 1, err);
        /* Words of the markup, and of calls, end in a control id without having been content. */
        if (thinking || id == a->format->open || id == a->format->close || id == a->format->sep)
            a->maybe.n = 0;
    } else {
        size_t len = 0;
        const char *bytes = sluice_token_bytes(a->p, id, &len);
        complete_bytes(a, bytes ? bytes : "", len);
    }
    if (!rc) rc = check_memory(a, err);
    if (rc) return rc;
    if (a->stop.hit) {
        *finish = SL_FINISH_STOP;
        return 1;
    }
    if (a->called && a->job->req.one_call) {
        *finish = SL_FINISH_CALLS;
        return 1;
    }
    return 0;
}

static void judge(struct sl_answer *a, enum sl_finish *finish, struct sl_serve_fault *fault)
{
    const struct sl_serve_request *r = &a->job->req;
    char why[256];
    if (r->format == SL_SERVE_TEXT || *finish == SL_FINISH_CALLS) return;
    const char *text = a->whole.v ? a->whole.v : "";
    if (!sl_serve_schema_judge(r->schema, text, a->whole.n, why, sizeof why)) return;
    (void)sl_serve_refuse(fault, 200, "invalid_output",
                          r->schema ? "json_schema_mismatch" : "json_invalid", "response_format",
                          "the answer is not the JSON that was asked for: %s", why);
    if (*finish == SL_FINISH_STOP) *finish = SL_FINISH_ERROR;
}

int sl_answer_end(struct sl_answer *a, int32_t stop_id, enum sl_finish *finish,
                  struct sl_serve_fault *fault, struct sl_err *err)
{
    int rc = 0;
    if (a->parser) {
        if (stop_id >= 0) rc = sl_chat_parse(a->parser, &stop_id, 1, err);
        if (!rc) rc = sl_chat_parse_end(a->parser, err);
    } else {
        complete_bytes(a, NULL, 0);
    }
    sl_serve_stop_end(&a->stop, &a->shown);
    /* tokens of a completion that gave no text: they are reported all the same */
    for (size_t i = 0; i < a->maybe.n && !a->parser; i++) {
        a->maybe.v[i].at = a->content_in;
        a->maybe.v[i].at_char = a->content_chars;
        push(a, &a->held, &a->maybe.v[i]);
    }
    send_shown(a, true);
    if (!rc) rc = check_memory(a, err);
    if (rc) return rc;
    if (a->called && *finish == SL_FINISH_STOP) *finish = SL_FINISH_CALLS;
    judge(a, finish, fault);
    return 0;
}

uint64_t sl_answer_reasoning_tokens(const struct sl_answer *a)
{
    return a->reasoning;
}

struct sl_chat_parser *sl_answer_parser(struct sl_answer *a)
{
    return a->stop.hit ? NULL : a->parser;
}
