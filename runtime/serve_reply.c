/* The API's reply objects (see serve_reply.h). */
#include "runtime/serve_reply.h"

#include <string.h>
#include "base/version.h"
#include "runtime/utf8.h"

static void put(struct sl_serve_text *t, const char *s)
{
    sl_serve_text_put(t, s);
}

static void quote(struct sl_serve_text *t, const char *s)
{
    sl_serve_text_quote(t, s, strlen(s));
}

static void error_object(struct sl_serve_text *t, const struct sl_serve_fault *f)
{
    put(t, "{\"message\":");
    quote(t, f->message);
    put(t, ",\"type\":");
    quote(t, f->type);
    put(t, ",\"param\":");
    if (f->param[0])
        quote(t, f->param);
    else
        put(t, "null");
    put(t, ",\"code\":");
    if (f->code)
        quote(t, f->code);
    else
        put(t, "null");
    put(t, "}");
}

void sl_reply_error(struct sl_serve_text *out, const struct sl_serve_fault *f)
{
    put(out, "{\"error\":");
    error_object(out, f);
    put(out, "}");
}

static const char *finish_name(enum sl_finish f)
{
    switch (f) {
    case SL_FINISH_STOP:
        return "\"stop\"";
    case SL_FINISH_LENGTH:
        return "\"length\"";
    case SL_FINISH_CALLS:
        return "\"tool_calls\"";
    case SL_FINISH_ERROR:
        return "\"error\"";
    default:
        return "null";
    }
}

static void usage(struct sl_serve_text *t, const struct sl_serve_job *j)
{
    const struct sl_serve_usage *u = &j->usage;
    sl_serve_text_fmt(t,
                      "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                      "\"prompt_tokens_details\":{\"cached_tokens\":%llu},"
                      "\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
                      (unsigned long long)u->prompt, (unsigned long long)u->completion,
                      (unsigned long long)(u->prompt + u->completion),
                      (unsigned long long)u->cached, (unsigned long long)u->reasoning);
}

/* ---------------------------------------------------------------- log-probabilities */

/* The token's bytes; those that are no text by themselves are spelled in hexadecimal, so that two such
 * tokens never share a name. */
static void token_name(struct sl_serve_text *t, const char *bytes, size_t len)
{
    if (sl_utf8_valid(bytes, len) == len) {
        sl_serve_text_quote(t, bytes, len);
        return;
    }
    put(t, "\"bytes:");
    for (size_t i = 0; i < len; i++)
        sl_serve_text_fmt(t, "\\\\x%02x", (unsigned)(unsigned char)bytes[i]);
    put(t, "\"");
}

static const char *bytes_of(const struct sl_reply_about *about, int32_t id, size_t *len)
{
    const char *b = sluice_token_bytes(about->p, id, len);
    return b ? b : "";
}

static void chat_token(struct sl_serve_text *t, const struct sl_reply_about *about,
                       const struct sl_serve_logprob *p)
{
    size_t len = 0;
    const char *bytes = bytes_of(about, p->id, &len);
    put(t, "{\"token\":");
    token_name(t, bytes, len);
    put(t, ",\"logprob\":");
    sl_serve_text_number(t, (double)p->logprob);
    put(t, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
        sl_serve_text_fmt(t, i ? ",%u" : "%u", (unsigned)(unsigned char)bytes[i]);
    put(t, "]");
}

static void chat_tokens(struct sl_serve_text *t, const struct sl_reply_about *about,
                        const struct sl_delta *d, bool *first)
{
    for (size_t i = 0; i < d->n_tokens; i++) {
        const struct sl_serve_token *k = &d->tokens[i];
        if (!*first) put(t, ",");
        *first = false;
        chat_token(t, about, &k->self);
        put(t, ",\"top_logprobs\":[");
        for (int m = 0; m < k->n_top; m++) {
            if (m) put(t, ",");
            chat_token(t, about, &k->top[m]);
            put(t, "}");
        }
        put(t, "]}");
    }
}

enum part { TOKENS, LOGPROBS, TOPS, OFFSETS };

/* One of the four parallel arrays of the older form, for one token. */
static void plain_token(struct sl_serve_text *t, const struct sl_reply_about *about,
                        const struct sl_serve_token *k, enum part part)
{
    size_t len = 0;
    const char *bytes = bytes_of(about, k->self.id, &len);
    switch (part) {
    case TOKENS:
        token_name(t, bytes, len);
        break;
    case LOGPROBS:
        sl_serve_text_number(t, (double)k->self.logprob);
        break;
    case OFFSETS:
        sl_serve_text_fmt(t, "%llu", (unsigned long long)k->at_char);
        break;
    case TOPS:
        put(t, "{");
        for (int m = 0; m < k->n_top; m++) {
            bytes = bytes_of(about, k->top[m].id, &len);
            if (m) put(t, ",");
            token_name(t, bytes, len);
            put(t, ":");
            sl_serve_text_number(t, (double)k->top[m].logprob);
        }
        put(t, "}");
        break;
    }
}

/* deltas: a list, or a single one where `one`. */
static void logprobs(struct sl_serve_text *t, const struct sl_reply_about *about,
                     const struct sl_serve_job *j, const struct sl_delta *deltas, bool one)
{
    static const char *const names[] = {"\"tokens\":[", "],\"token_logprobs\":[",
                                        "],\"top_logprobs\":[", "],\"text_offset\":["};
    put(t, ",\"logprobs\":");
    if (!j->req.logprobs) {
        put(t, "null");
        return;
    }
    bool first = true;
    if (j->req.kind == SL_SERVE_CHAT) {
        put(t, "{\"content\":[");
        for (const struct sl_delta *d = deltas; d; d = one ? NULL : d->next)
            chat_tokens(t, about, d, &first);
        put(t, "],\"refusal\":null}");
        return;
    }
    put(t, "{");
    for (int part = TOKENS; part <= OFFSETS; part++) {
        put(t, names[part]);
        first = true;
        for (const struct sl_delta *d = deltas; d; d = one ? NULL : d->next)
            for (size_t i = 0; i < d->n_tokens; i++) {
                if (!first) put(t, ",");
                first = false;
                plain_token(t, about, &d->tokens[i], (enum part)part);
            }
    }
    put(t, "]}");
}

/* ---------------------------------------------------------------- common parts */

static void head(struct sl_serve_text *t, const struct sl_reply_about *about,
                 const struct sl_serve_job *j, const char *object)
{
    put(t, "{\"id\":");
    quote(t, j->id);
    sl_serve_text_fmt(t, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
                      (long long)j->created);
    quote(t, about->model);
    put(t, ",\"system_fingerprint\":");
    quote(t, sl_build_commit);
    put(t, ",\"choices\":[");
}

static void finish(struct sl_serve_text *t, const struct sl_serve_job *j)
{
    put(t, ",\"finish_reason\":");
    put(t, finish_name(j->finish));
    if (!j->fault.status) return;
    put(t, ",\"error\":");
    error_object(t, &j->fault);
}

static void call_id(struct sl_serve_text *t, const struct sl_serve_job *j, int call)
{
    const char *dash = strchr(j->id, '-');
    sl_serve_text_fmt(t, "\"call_%s_%d\"", dash ? dash + 1 : j->id, call);
}

/* ---------------------------------------------------------------- whole */

static void joined(struct sl_serve_text *t, const struct sl_delta *d, enum sl_delta_kind kind,
                   int call)
{
    struct sl_serve_text all = {0};
    for (; d; d = d->next)
        if (d->kind == kind && d->call == call) sl_serve_text_add(&all, d->text, d->len);
    sl_serve_text_quote(t, all.v ? all.v : "", all.n);
    if (all.failed) t->failed = true;
    sl_serve_text_free(&all);
}

static bool has(const struct sl_delta *d, enum sl_delta_kind kind)
{
    for (; d; d = d->next)
        if (d->kind == kind) return true;
    return false;
}

static void message(struct sl_serve_text *t, const struct sl_serve_job *j,
                    const struct sl_delta *deltas)
{
    put(t, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (has(deltas, SL_DELTA_CALL) && !has(deltas, SL_DELTA_CONTENT))
        put(t, "null");
    else
        joined(t, deltas, SL_DELTA_CONTENT, 0);
    put(t, ",\"refusal\":null");
    if (has(deltas, SL_DELTA_REASONING)) {
        put(t, ",\"reasoning_content\":");
        joined(t, deltas, SL_DELTA_REASONING, 0);
    }
    if (has(deltas, SL_DELTA_CALL)) {
        const char *sep = ",\"tool_calls\":[";
        for (const struct sl_delta *d = deltas; d; d = d->next) {
            if (d->kind != SL_DELTA_CALL) continue;
            put(t, sep);
            sep = ",";
            put(t, "{\"id\":");
            call_id(t, j, d->call);
            put(t, ",\"type\":\"function\",\"function\":{\"name\":");
            sl_serve_text_quote(t, d->text, d->len);
            put(t, ",\"arguments\":");
            joined(t, deltas, SL_DELTA_ARGS, d->call);
            put(t, "}}");
        }
        put(t, "]");
    }
    put(t, "}");
}

void sl_reply_whole(struct sl_serve_text *out, const struct sl_reply_about *about,
                    const struct sl_serve_job *job, const struct sl_delta *deltas)
{
    bool chat = job->req.kind == SL_SERVE_CHAT;
    head(out, about, job, chat ? "chat.completion" : "text_completion");
    put(out, "{\"index\":0,");
    if (chat) {
        message(out, job, deltas);
    } else {
        put(out, "\"text\":");
        joined(out, deltas, SL_DELTA_CONTENT, 0);
    }
    logprobs(out, about, job, deltas, false);
    finish(out, job);
    put(out, "}],\"usage\":");
    usage(out, job);
    put(out, "}");
}

/* ---------------------------------------------------------------- stream */

static void chunk_head(struct sl_serve_text *t, const struct sl_reply_about *about,
                       const struct sl_serve_job *j)
{
    put(t, "data: ");
    head(t, about, j, j->req.kind == SL_SERVE_CHAT ? "chat.completion.chunk" : "text_completion");
}

static void chunk_tail(struct sl_serve_text *t, const struct sl_serve_job *j)
{
    put(t, j->req.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

void sl_reply_begin(struct sl_serve_text *out, const struct sl_reply_about *about,
                    const struct sl_serve_job *job)
{
    if (job->req.kind != SL_SERVE_CHAT) return;
    chunk_head(out, about, job);
    put(out, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
             "\"finish_reason\":null}");
    chunk_tail(out, job);
}

void sl_reply_delta(struct sl_serve_text *out, const struct sl_reply_about *about,
                    const struct sl_serve_job *job, const struct sl_delta *d)
{
    chunk_head(out, about, job);
    put(out, "{\"index\":0,");
    if (job->req.kind != SL_SERVE_CHAT) {
        put(out, "\"text\":");
        sl_serve_text_quote(out, d->text, d->len);
    } else {
        put(out, "\"delta\":{");
        switch (d->kind) {
        case SL_DELTA_REASONING:
            put(out, "\"reasoning_content\":");
            break;
        case SL_DELTA_CONTENT:
            put(out, "\"content\":");
            break;
        case SL_DELTA_CALL:
            sl_serve_text_fmt(out, "\"tool_calls\":[{\"index\":%d,\"id\":", d->call);
            call_id(out, job, d->call);
            put(out, ",\"type\":\"function\",\"function\":{\"name\":");
            break;
        case SL_DELTA_ARGS:
            sl_serve_text_fmt(
                out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", d->call);
            break;
        }
        sl_serve_text_quote(out, d->text, d->len);
        if (d->kind == SL_DELTA_CALL) put(out, ",\"arguments\":\"\"}}]");
        if (d->kind == SL_DELTA_ARGS) put(out, "}}]");
        put(out, "}");
    }
    logprobs(out, about, job, d, true);
    put(out, ",\"finish_reason\":null}");
    chunk_tail(out, job);
}

void sl_reply_end(struct sl_serve_text *out, const struct sl_reply_about *about,
                  const struct sl_serve_job *job)
{
    if (job->fault.status >= 400) {
        put(out, "data: ");
        sl_reply_error(out, &job->fault);
        put(out, "\n\n");
    } else {
        chunk_head(out, about, job);
        put(out, "{\"index\":0,");
        put(out, job->req.kind == SL_SERVE_CHAT ? "\"delta\":{}" : "\"text\":\"\"");
        put(out, ",\"logprobs\":null");
        finish(out, job);
        put(out, "}");
        chunk_tail(out, job);
        if (job->req.include_usage) {
            chunk_head(out, about, job);
            put(out, "],\"usage\":");
            usage(out, job);
            put(out, "}\n\n");
        }
    }
    put(out, "data: [DONE]\n\n");
}
