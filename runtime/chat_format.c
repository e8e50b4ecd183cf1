/* The renderer behind chat_format.h: one walk over the conversation, two sinks.
 *
 *   sl_chat_render   segments -> ids           control: its id; text: encode_plain, each by itself
 *   sl_chat_key      segments -> bytes         kind, length, bytes: equal only for equal renderings
 *
 * The first error sticks in struct sink; everything after it does nothing. So the walk reads like the
 * markup it writes. */
#include "runtime/chat_format.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "runtime/chat_markup.h"
#include "runtime/engine.h"
#include "runtime/json_text.h"
#include "runtime/utf8.h"

struct sink {
    const struct sl_chat_format *f;
    struct sl_ids *ids; /* either may be NULL */
    struct sl_buf *key;
    struct sl_err *err;
    int rc;
};

struct attr {
    const char *key; /* with its leading space */
    struct sl_text value;
};

int sl_chat_format_init(struct sl_chat_format *f, const struct sl_tokenizer *t, struct sl_err *err)
{
    static const char *const names[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
    int32_t id[4];
    for (int i = 0; i < 4; i++) {
        id[i] = sl_tokenizer_control(t, names[i]);
        if (id[i] < 0)
            return sl_fail(err, SL_E_PACK, "tokenizer_config.json", names[i],
                           "no such control token: this model has no chat format");
    }
    *f = (struct sl_chat_format){t, id[0], id[1], id[2], id[3], sl_tokenizer_control(t, "[EOS]")};
    return 0;
}

int sl_chat_format_of(struct sl_chat_format *f, const sluice_pack *p, struct sl_err *err)
{
    return sl_chat_format_init(f, p->tokenizer, err);
}

/* ---------------------------------------------------------------- segments */

static void key_segment(struct sink *o, char kind, const void *s, uint64_t n)
{
    if (!o->rc) o->rc = sl_buf_add(o->key, &kind, 1, o->err);
    if (!o->rc) o->rc = sl_buf_add(o->key, &n, sizeof n, o->err);
    if (!o->rc) o->rc = sl_buf_add(o->key, s, (size_t)n, o->err);
}

static void control(struct sink *o, int32_t id)
{
    if (!o->rc && o->ids) o->rc = sl_ids_push(o->ids, id, o->err);
    if (!o->rc && o->key) key_segment(o, 'C', &id, sizeof id);
}

static void text(struct sink *o, struct sl_text t)
{
    if (o->rc || !t.s || !t.n) return;
    if (o->ids) o->rc = sl_tokenizer_encode_plain(o->f->t, t.s, t.n, o->ids, o->err);
    if (!o->rc && o->key) key_segment(o, 'T', t.s, t.n);
}

static void literal(struct sink *o, const char *s)
{
    text(o, (struct sl_text){s, strlen(s)});
}

/* & first, then ": the order that the parser undoes backwards. < and > stay. */
static void attribute_value(struct sink *o, struct sl_text v)
{
    struct sl_buf b = {0};
    size_t from = 0;
    for (size_t i = 0; i < v.n && !o->rc; i++) {
        const char *escaped = v.s[i] == '&' ? "&amp;" : v.s[i] == '"' ? "&quot;" : NULL;
        if (!escaped) continue;
        o->rc = sl_buf_add(&b, v.s + from, i - from, o->err);
        if (!o->rc) o->rc = sl_buf_str(&b, escaped, o->err);
        from = i + 1;
    }
    if (!o->rc && v.n > from) o->rc = sl_buf_add(&b, v.s + from, v.n - from, o->err);
    text(o, (struct sl_text){b.s, b.n});
    sl_buf_free(&b);
}

/* Attributes whose value is absent are left out. */
static void open_tag(struct sink *o, const char *tag, const struct attr *attrs, int n)
{
    control(o, o->f->open);
    literal(o, tag);
    for (int i = 0; i < n; i++) {
        if (!attrs[i].value.s) continue;
        literal(o, attrs[i].key);
        literal(o, "=\"");
        attribute_value(o, attrs[i].value);
        literal(o, "\"");
    }
    control(o, o->f->sep);
}

static void close_tag(struct sink *o, const char *tag)
{
    control(o, o->f->close);
    literal(o, tag);
    control(o, o->f->sep);
}

static void end_message(struct sink *o)
{
    close_tag(o, "message");
    control(o, o->f->eom);
}

static void system_message(struct sink *o, const char *type, struct sl_text body)
{
    const struct attr attrs[] = {
        {" role", SL_TEXT_LIT("system")},
        {" type", {type, strlen(type)}},
    };
    open_tag(o, "message", attrs, 2);
    text(o, body);
    end_message(o);
}

/* ---------------------------------------------------------------- system messages of the format */

/* head, the JSON compact and sorted, tail: one text segment. kind: what the JSON has to be. */
static void json_message(struct sink *o, const char *type, const char *head, struct sl_text json,
                         const char *tail, enum sl_json_kind kind, const char *field)
{
    struct sl_chunk *pool = NULL;
    struct sl_buf b = {0};
    const struct sl_jv *v = NULL;
    if (!o->rc) o->rc = sl_json_tree(&v, &pool, json.s, json.n, o->err);
    if (o->rc == SL_E_ARG) o->rc = sl_fail(o->err, SL_E_ARG, NULL, field, "is no valid JSON");
    if (!o->rc && v->kind != kind)
        o->rc = sl_fail(o->err, SL_E_ARG, NULL, field, "is %s, not %s", sl_jv_kind_name(v->kind),
                        sl_jv_kind_name(kind));
    if (!o->rc) o->rc = sl_buf_str(&b, head, o->err);
    if (!o->rc) o->rc = sl_jv_write(&b, v, SL_JSON_COMPACT, o->err);
    if (!o->rc) o->rc = sl_buf_str(&b, tail, o->err);
    if (!o->rc) system_message(o, type, (struct sl_text){b.s, b.n});
    sl_buf_free(&b);
    sl_chunk_free(&pool);
}

static void effort_message(struct sink *o, enum sl_chat_effort effort)
{
    const char *word = effort == SL_EFFORT_LOW ? "low" : effort == SL_EFFORT_HIGH ? "high" : "max";
    struct sl_buf b = {0};
    if (effort == SL_EFFORT_UNSET || o->rc) return;
    o->rc = sl_buf_printf(&b, o->err, SL_CHAT_EFFORT_TEXT, word);
    if (!o->rc) system_message(o, "thinking-effort", (struct sl_text){b.s, b.n});
    sl_buf_free(&b);
}

static void tail_messages(struct sink *o, const struct sl_chat *c)
{
    if (c->tool_choice == SL_TOOLS_REQUIRED)
        system_message(o, "tool-choice", SL_TEXT_LIT(SL_CHAT_TOOLS_REQUIRED));
    if (c->tool_choice == SL_TOOLS_NONE)
        system_message(o, "tool-choice", SL_TEXT_LIT(SL_CHAT_TOOLS_NONE));
    if (c->response == SL_RESPONSE_JSON)
        system_message(o, "response-format", SL_TEXT_LIT(SL_CHAT_JSON_TEXT("json_object")));
    if (c->response == SL_RESPONSE_SCHEMA)
        json_message(o, "response-format", SL_CHAT_JSON_TEXT("json_schema") SL_CHAT_SCHEMA_HEAD,
                     c->schema, SL_CHAT_FENCE_END, SL_JSON_OBJECT,
                     "response_format.json_schema.schema");
}

/* ---------------------------------------------------------------- messages */

static void image(struct sink *o, const struct sl_chat_part *p)
{
    static const char *const names[] = {"<|media_begin|>", "<|media_content|>", "<|media_pad|>",
                                        "<|media_end|>"};
    int32_t id[4];
    for (int i = 0; i < 4 && !o->rc; i++) {
        id[i] = sl_tokenizer_control(o->f->t, names[i]);
        if (id[i] < 0)
            o->rc = sl_fail(o->err, SL_E_ARG, NULL, "image", "the vocabulary has no %s", names[i]);
    }
    struct sl_buf b = {0};
    if (!o->rc) o->rc = sl_buf_printf(&b, o->err, "image %dx%d", p->width, p->height);
    if (!o->rc) {
        control(o, id[0]);
        text(o, (struct sl_text){b.s, b.n});
        control(o, id[1]);
        control(o, id[2]);
        control(o, id[3]);
    }
    sl_buf_free(&b);
}

static void content(struct sink *o, const struct sl_chat_message *m)
{
    for (int i = 0; i < m->n_parts; i++) {
        if (m->parts[i].kind == SL_PART_TEXT)
            text(o, m->parts[i].text);
        else
            image(o, &m->parts[i]);
    }
}

/* Python's str.strip() leaves nothing. */
static bool blank(struct sl_text t)
{
    for (size_t i = 0; i < t.n;) {
        uint32_t c;
        size_t len = sl_utf8_char(t.s + i, t.n - i, &c, NULL);
        if (!len) return false;
        if (!(c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) || c == 0x85 ||
              c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
              c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000))
            return false;
        i += len;
    }
    return true;
}

static void argument(struct sink *o, const struct sl_jv *v)
{
    const char *type = sl_jv_kind_name(v->kind);
    const struct attr attrs[] = {{" key", v->key}, {" type", {type, strlen(type)}}};
    struct sl_buf b = {0};
    open_tag(o, "argument", attrs, 2);
    if (v->kind != SL_JSON_STRING && !o->rc) o->rc = sl_jv_write(&b, v, SL_JSON_SPACED, o->err);
    text(o, v->kind == SL_JSON_STRING ? v->text : (struct sl_text){b.s, b.n});
    close_tag(o, "argument");
    sl_buf_free(&b);
}

/* JSON that is no object is the caller's mistake; text that is no JSON is a model's, and is kept. */
static void arguments(struct sink *o, struct sl_text json)
{
    static const struct attr object[] = {{" type", {"object", 6}}};
    struct sl_chunk *pool = NULL;
    const struct sl_jv *v = NULL;
    int rc = sl_json_tree(&v, &pool, json.s, json.n, NULL);
    if (rc == SL_E_NOMEM) {
        o->rc = sl_fail(o->err, rc, NULL, NULL, "no memory for the arguments of a call");
    } else if (rc) {
        open_tag(o, "json", object, 1);
        text(o, json);
        close_tag(o, "json");
    } else if (v->kind != SL_JSON_OBJECT) {
        o->rc = sl_fail(o->err, SL_E_ARG, NULL, "tool_calls",
                        "arguments are JSON, but %s and no object", sl_jv_kind_name(v->kind));
    } else {
        for (v = v->children; v; v = v->next) argument(o, v);
    }
    sl_chunk_free(&pool);
}

static void tool_attrs(struct attr out[2], struct sl_text name, int index, char digits[16])
{
    snprintf(digits, 16, "%d", index);
    out[0] = (struct attr){" tool", name.s ? name : SL_TEXT_LIT("")};
    out[1] = (struct attr){" index", {digits, strlen(digits)}};
}

static void call(struct sink *o, const struct sl_chat_call *c, int index)
{
    char digits[16];
    struct attr attrs[2];
    tool_attrs(attrs, c->name, index, digits);
    open_tag(o, "call", attrs, 2);
    if (c->arguments.s && !blank(c->arguments) && !o->rc) arguments(o, c->arguments);
    close_tag(o, "call");
}

/* What opens an assistant's turn, in history as in the generation prompt. */
static void assistant_head(struct sink *o, bool thinking)
{
    static const struct attr role[] = {{" role", {"assistant", 9}}};
    open_tag(o, "message", role, 1);
    open_tag(o, thinking ? "think" : "response", NULL, 0);
}

static void assistant_rest(struct sink *o, const struct sl_chat_message *m, bool thinking)
{
    if (thinking) {
        if (!blank(m->reasoning)) text(o, m->reasoning);
        close_tag(o, "think");
        open_tag(o, "response", NULL, 0);
    }
    content(o, m);
    close_tag(o, "response");
    if (m->n_calls) {
        open_tag(o, "tools", NULL, 0);
        for (int i = 0; i < m->n_calls; i++) call(o, &m->calls[i], i + 1);
        close_tag(o, "tools");
    }
    end_message(o);
}

static void plain_message(struct sink *o, const struct sl_chat_message *m)
{
    const struct attr attrs[] = {
        {" role", m->role == SL_CHAT_USER ? SL_TEXT_LIT("user") : SL_TEXT_LIT("system")},
        {" name", m->name},
    };
    if (m->role == SL_CHAT_SYSTEM && m->tools.s) {
        json_message(o, "tool-declare", SL_CHAT_TOOLS_MORE SL_CHAT_FENCE, m->tools,
                     SL_CHAT_FENCE_END, SL_JSON_ARRAY, "tools");
        return;
    }
    open_tag(o, "message", attrs, 2);
    content(o, m);
    end_message(o);
}

/* ---------------------------------------------------------------- tool results */

struct results {
    const struct sl_chat_message *calls; /* the last assistant message, NULL: none yet */
    int seen;                            /* tool messages since then */
};

/* Place of a result among the calls by its id; -1: none, or no id. */
static int place(const struct sl_chat_message *m, const struct sl_chat_message *calls)
{
    for (int i = 0; calls && m->call_id.s && i < calls->n_calls; i++)
        if (sl_text_equal(calls->calls[i].id, m->call_id)) return i;
    return -1;
}

static void result(struct sink *o, const struct sl_chat_message *m, struct sl_text name, int index)
{
    char digits[16];
    struct attr attrs[3] = {{" role", SL_TEXT_LIT("tool")}};
    if (!name.s && !o->rc)
        o->rc = sl_fail(o->err, SL_E_ARG, NULL, "messages",
                        "a tool result names no tool and answers no call");
    tool_attrs(attrs + 1, name, index, digits);
    open_tag(o, "message", attrs, 3);
    content(o, m);
    end_message(o);
}

/* A run of results: in the order of the calls when every id is one of theirs, and none comes twice. */
static void result_run(struct sink *o, const struct sl_chat_message *m, int n, struct results *r)
{
    const int n_calls = r->calls ? r->calls->n_calls : 0;
    int *of_call = malloc(sizeof *of_call * ((size_t)n_calls + 1));
    if (!of_call) {
        o->rc = sl_fail(o->err, SL_E_NOMEM, NULL, NULL, "no memory for tool results");
        return;
    }
    for (int i = 0; i < n_calls; i++) of_call[i] = -1;
    bool matched = true;
    for (int i = 0; i < n && matched; i++) {
        int at = place(&m[i], r->calls);
        matched = at >= 0 && of_call[at] < 0;
        if (matched) of_call[at] = i;
    }
    for (int i = 0; matched && i < n_calls; i++)
        if (of_call[i] >= 0) result(o, &m[of_call[i]], r->calls->calls[i].name, ++r->seen);
    for (int i = 0; !matched && i < n; i++) {
        struct sl_text name = m[i].name;
        if (!name.s && r->seen < n_calls) name = r->calls->calls[r->seen].name;
        result(o, &m[i], name, ++r->seen);
    }
    free(of_call);
}

/* ---------------------------------------------------------------- the whole */

struct walk {
    const struct sl_chat *c;
    sl_chat_find_turn find_turn;
    void *ctx;
    struct sl_chat_prompt *out; /* NULL: no marks, no turns */
};

static void mark(struct sink *o, const struct walk *w)
{
    struct sl_chat_prompt *p = w->out;
    if (!p || o->rc || !p->ids.n) return;
    size_t *more = realloc(p->marks, sizeof *more * (p->n_marks + 1));
    if (!more) {
        o->rc = sl_fail(o->err, SL_E_NOMEM, NULL, NULL, "no memory for the prompt");
        return;
    }
    p->marks = more;
    p->marks[p->n_marks++] = p->ids.n;
}

/* The ids that the turn was generated as, if they are known. */
static bool splice(struct sink *o, const struct walk *w, const struct sl_chat_message *m)
{
    char *key;
    size_t n_key;
    size_t n = 0;
    if (!w->out || !w->find_turn || o->rc) return false;
    o->rc = sl_chat_key(o->f, m, !w->c->no_thinking, &key, &n_key, o->err);
    if (o->rc) return false;
    const int32_t *ids = w->find_turn(w->ctx, key, n_key, &n);
    free(key);
    if (!ids) return false;
    for (size_t i = 0; i < n && !o->rc; i++) o->rc = sl_ids_push(o->ids, ids[i], o->err);
    w->out->spliced += n;
    return true;
}

/* Errors of one message name it. */
static void name_message(struct sink *o, int i)
{
    if (o->rc != SL_E_ARG || !o->err) return;
    char line[sizeof o->err->text];
    memcpy(line, o->err->text, sizeof line);
    sl_fail(o->err, SL_E_ARG, NULL, NULL, "messages[%d]: %s", i, line);
}

static void messages(struct sink *o, const struct walk *w)
{
    const struct sl_chat *c = w->c;
    struct results r = {0};
    bool leading = true;
    for (int i = 0; i < c->n_messages && !o->rc; i++) {
        const struct sl_chat_message *m = &c->messages[i];
        if (leading && m->role != SL_CHAT_SYSTEM) mark(o, w);
        leading = leading && m->role == SL_CHAT_SYSTEM;
        int n = 1;
        switch (m->role) {
        case SL_CHAT_ASSISTANT:
            assistant_head(o, !c->no_thinking);
            if (!splice(o, w, m)) assistant_rest(o, m, !c->no_thinking);
            mark(o, w);
            r = (struct results){.calls = m};
            break;
        case SL_CHAT_TOOL:
            while (i + n < c->n_messages && m[n].role == SL_CHAT_TOOL) n++;
            result_run(o, m, n, &r);
            break;
        default:
            plain_message(o, m);
        }
        if (o->rc) name_message(o, i);
        i += n - 1;
    }
    if (leading) mark(o, w);
}

static void conversation(struct sink *o, const struct walk *w)
{
    const struct sl_chat *c = w->c;
    if (c->tools.s)
        json_message(o, "tool-declare", SL_CHAT_TOOLS_HEAD SL_CHAT_FENCE, c->tools,
                     SL_CHAT_FENCE_END, SL_JSON_ARRAY, "tools");
    if (!c->no_thinking) effort_message(o, c->effort);
    messages(o, w);
    tail_messages(o, c);
    assistant_head(o, !c->no_thinking);
}

void sl_chat_prompt_free(struct sl_chat_prompt *p)
{
    sl_ids_free(&p->ids);
    free(p->marks);
    *p = (struct sl_chat_prompt){0};
}

int sl_chat_render(const struct sl_chat_format *f, const struct sl_chat *c,
                   sl_chat_find_turn find_turn, void *ctx, struct sl_chat_prompt *out,
                   struct sl_err *err)
{
    struct sink o = {.f = f, .ids = &out->ids, .err = err};
    const struct walk w = {c, find_turn, ctx, out};
    conversation(&o, &w);
    if (o.rc) sl_chat_prompt_free(out);
    return o.rc;
}

int sl_chat_key(const struct sl_chat_format *f, const struct sl_chat_message *m, bool thinking,
                char **key, size_t *n, struct sl_err *err)
{
    struct sl_buf b = {0};
    struct sink o = {.f = f, .key = &b, .err = err};
    assistant_rest(&o, m, thinking);
    if (o.rc) sl_buf_free(&b);
    *key = b.s;
    *n = b.n;
    return o.rc;
}
