/* OpenAI-style JSON in and out (chat_json.h).
 *
 * One walk over a tree that keeps spellings. Where clients differ, what they commonly send is accepted
 * (developer for system, arguments as an object, reasoning under two names); what the format cannot say
 * is refused by name, so that nobody believes it was honoured. */
#include "runtime/chat_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "runtime/json_text.h"

struct reading {
    struct sl_chat *c;
    char *param; /* may be NULL */
    struct sl_err *err;
};

static bool is(const struct sl_jv *v, enum sl_json_kind kind)
{
    return v && v->kind == kind;
}

static bool word(const struct sl_jv *v, const char *w)
{
    return is(v, SL_JSON_STRING) && v->text.n == strlen(w) && memcmp(v->text.s, w, v->text.n) == 0;
}

/* null counts as not given. */
static const struct sl_jv *member(const struct sl_jv *v, const char *key)
{
    const struct sl_jv *m = sl_jv_get(v, key);
    return is(m, SL_JSON_NULL) ? NULL : m;
}

__attribute__((format(printf, 3, 4))) static int refuse(struct reading *r, const char *path,
                                                        const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (r->param) snprintf(r->param, SL_CHAT_PARAM_MAX, "%s", path);
    return sl_fail(r->err, SL_E_ARG, NULL, path, "%s", what);
}

__attribute__((format(printf, 2, 3))) static void join(char out[SL_CHAT_PARAM_MAX], const char *fmt,
                                                       ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out, SL_CHAT_PARAM_MAX, fmt, ap);
    va_end(ap);
}

static int wrong_kind(struct reading *r, const char *path, const struct sl_jv *v, const char *want)
{
    return refuse(r, path, "must be %s, is %s", want, sl_jv_kind_name(v->kind));
}

/* A string member; absent when it is not there. */
static int string(struct reading *r, struct sl_text *out, const struct sl_jv *obj, const char *key,
                  const char *path)
{
    const struct sl_jv *v = member(obj, key);
    char where[SL_CHAT_PARAM_MAX];
    *out = (struct sl_text){0};
    if (!v) return 0;
    join(where, "%s.%s", path, key);
    if (!is(v, SL_JSON_STRING)) return wrong_kind(r, where, v, "a string");
    return sl_chat_copy(r->c, out, v->text.s, v->text.n, r->err);
}

/* An optional name: an empty one is none. */
static int name_of(struct reading *r, struct sl_text *out, const struct sl_jv *obj, const char *key,
                   const char *path)
{
    int rc = string(r, out, obj, key, path);
    if (!rc && !out->n) *out = (struct sl_text){0};
    return rc;
}

/* A value as its text; arrays without a member are absent. */
static int as_text(struct reading *r, struct sl_text *out, const struct sl_jv *v)
{
    struct sl_buf b = {0};
    *out = (struct sl_text){0};
    if (v->kind == SL_JSON_ARRAY && !v->n_children) return 0;
    int rc = sl_jv_write(&b, v, SL_JSON_SPACED, r->err);
    if (!rc) rc = sl_chat_copy(r->c, out, b.s, b.n, r->err);
    sl_buf_free(&b);
    return rc;
}

/* ---------------------------------------------------------------- messages */

static int part(struct reading *r, struct sl_chat_message *m, const struct sl_jv *v,
                const char *path)
{
    const struct sl_jv *type = member(v, "type");
    const struct sl_jv *text = member(v, "text");
    if (!is(v, SL_JSON_OBJECT)) return wrong_kind(r, path, v, "an object");
    if (word(type, "image_url") || word(type, "image") || word(type, "input_image"))
        return refuse(r, path, "images are not supported by this version");
    if (!word(type, "text"))
        return refuse(r, path, "type must be \"text\"%s",
                      is(type, SL_JSON_STRING) ? ", other parts are not supported" : "");
    if (!is(text, SL_JSON_STRING)) return refuse(r, path, "text must be a string");
    return sl_chat_add_text(r->c, m, text->text.s, text->text.n, r->err);
}

static int content(struct reading *r, struct sl_chat_message *m, const struct sl_jv *v,
                   const char *path)
{
    char where[SL_CHAT_PARAM_MAX];
    const struct sl_jv *c = member(v, "content");
    join(where, "%s.content", path);
    if (!c) {
        if (m->role == SL_CHAT_ASSISTANT || (m->role == SL_CHAT_SYSTEM && m->tools.s)) return 0;
        return refuse(r, where, "is missing");
    }
    if (c->kind == SL_JSON_STRING)
        return c->text.n ? sl_chat_add_text(r->c, m, c->text.s, c->text.n, r->err) : 0;
    if (c->kind != SL_JSON_ARRAY) return wrong_kind(r, where, c, "a string or an array of parts");
    int i = 0;
    for (const struct sl_jv *p = c->children; p; p = p->next, i++) {
        join(where, "%s.content[%d]", path, i);
        int rc = part(r, m, p, where);
        if (rc) return rc;
    }
    return 0;
}

static int call(struct reading *r, struct sl_chat_message *m, const struct sl_jv *v,
                const char *path)
{
    char where[SL_CHAT_PARAM_MAX];
    struct sl_chat_call c = {0};
    if (!is(v, SL_JSON_OBJECT)) return wrong_kind(r, path, v, "an object");
    const struct sl_jv *type = member(v, "type");
    const struct sl_jv *f = member(v, "function");
    if (type && !word(type, "function")) return refuse(r, path, "type must be \"function\"");
    join(where, "%s.function", path);
    if (!is(f, SL_JSON_OBJECT)) return refuse(r, where, "must be an object");
    int rc = string(r, &c.id, v, "id", path);
    if (!rc) rc = string(r, &c.name, f, "name", where);
    if (!rc && !c.name.n) rc = refuse(r, where, "name must be a string, not empty");
    if (rc) return rc;
    const struct sl_jv *a = member(f, "arguments");
    join(where, "%s.function.arguments", path);
    if (is(a, SL_JSON_STRING)) {
        enum sl_json_kind kind;
        if (sl_json_check(a->text.s, a->text.n, &kind) && kind != SL_JSON_OBJECT)
            return refuse(r, where, "is JSON, but %s and no object", sl_jv_kind_name(kind));
        c.arguments = a->text;
    } else if (is(a, SL_JSON_OBJECT)) {
        rc = as_text(r, &c.arguments, a);
    } else if (a) {
        return wrong_kind(r, where, a, "a string of JSON");
    }
    return rc ? rc : sl_chat_add_call(r->c, m, &c, r->err);
}

static int assistant(struct reading *r, struct sl_chat_message *m, const struct sl_jv *v,
                     const char *path)
{
    char where[SL_CHAT_PARAM_MAX];
    const struct sl_jv *calls = member(v, "tool_calls");
    const char *key = member(v, "reasoning_content") ? "reasoning_content" : "reasoning";
    int rc = string(r, &m->reasoning, v, key, path);
    if (rc || !calls) return rc;
    join(where, "%s.tool_calls", path);
    if (!is(calls, SL_JSON_ARRAY)) return wrong_kind(r, where, calls, "an array");
    int i = 0;
    for (const struct sl_jv *c = calls->children; c && !rc; c = c->next, i++) {
        join(where, "%s.tool_calls[%d]", path, i);
        rc = call(r, m, c, where);
    }
    return rc;
}

static int one_message(struct reading *r, const struct sl_jv *v, int index)
{
    static const struct {
        const char *name;
        enum sl_chat_role role;
    } roles[] = {{"system", SL_CHAT_SYSTEM},
                 {"developer", SL_CHAT_SYSTEM},
                 {"user", SL_CHAT_USER},
                 {"assistant", SL_CHAT_ASSISTANT},
                 {"tool", SL_CHAT_TOOL}};
    char path[48];
    char where[SL_CHAT_PARAM_MAX];
    struct sl_chat_message *m;
    size_t i = 0;
    snprintf(path, sizeof path, "messages[%d]", index);
    if (!is(v, SL_JSON_OBJECT)) return wrong_kind(r, path, v, "an object");
    const struct sl_jv *role = member(v, "role");
    while (i < sizeof roles / sizeof roles[0] && !word(role, roles[i].name)) i++;
    join(where, "%s.role", path);
    if (i == sizeof roles / sizeof roles[0])
        return refuse(r, where, "must be system, developer, user, assistant or tool");
    int rc = sl_chat_add(r->c, roles[i].role, &m, r->err);
    if (rc) return rc;
    switch (m->role) {
    case SL_CHAT_ASSISTANT:
        rc = assistant(r, m, v, path);
        break;
    case SL_CHAT_TOOL:
        rc = name_of(r, &m->name, v, member(v, "tool") ? "tool" : "name", path);
        if (!rc) rc = string(r, &m->call_id, v, "tool_call_id", path);
        break;
    default:
        rc = name_of(r, &m->name, v, "name", path);
    }
    const struct sl_jv *tools = m->role == SL_CHAT_SYSTEM ? member(v, "tools") : NULL;
    join(where, "%s.tools", path);
    if (!rc && tools && !is(tools, SL_JSON_ARRAY)) rc = wrong_kind(r, where, tools, "an array");
    if (!rc && tools) rc = as_text(r, &m->tools, tools);
    return rc ? rc : content(r, m, v, path);
}

/* ---------------------------------------------------------------- the rest of a request */

static int tools(struct reading *r, const struct sl_jv *v)
{
    if (!is(v, SL_JSON_ARRAY)) return wrong_kind(r, "tools", v, "an array");
    int i = 0;
    for (const struct sl_jv *t = v->children; t; t = t->next, i++) {
        char path[48];
        snprintf(path, sizeof path, "tools[%d]", i);
        if (!is(t, SL_JSON_OBJECT)) return wrong_kind(r, path, t, "an object");
        const struct sl_jv *f = member(t, "function");
        if (word(member(t, "type"), "function") &&
            !(is(f, SL_JSON_OBJECT) && is(member(f, "name"), SL_JSON_STRING)))
            return refuse(r, path, "function.name must be a string");
    }
    return as_text(r, &r->c->tools, v);
}

static int tool_choice(struct reading *r, const struct sl_jv *v)
{
    if (word(v, "none"))
        r->c->tool_choice = SL_TOOLS_NONE;
    else if (word(v, "required"))
        r->c->tool_choice = SL_TOOLS_REQUIRED;
    else if (!word(v, "auto"))
        return refuse(r, "tool_choice",
                      "must be \"auto\", \"none\" or \"required\"; one function cannot be forced");
    return 0;
}

static int response_format(struct reading *r, const struct sl_jv *v)
{
    const struct sl_jv *type = member(v, "type");
    if (word(type, "text")) return 0;
    if (word(type, "json_object")) {
        r->c->response = SL_RESPONSE_JSON;
        return 0;
    }
    if (!word(type, "json_schema"))
        return refuse(r, "response_format",
                      "type must be \"text\", \"json_object\" or \"json_schema\"");
    const struct sl_jv *schema = member(member(v, "json_schema"), "schema");
    if (!is(schema, SL_JSON_OBJECT))
        return refuse(r, "response_format.json_schema.schema", "must be an object");
    r->c->response = SL_RESPONSE_SCHEMA;
    return as_text(r, &r->c->schema, schema);
}

/* null is meant here: no message about effort. */
static int effort(struct reading *r, const struct sl_jv *v)
{
    if (v->kind == SL_JSON_NULL) {
        r->c->effort = SL_EFFORT_UNSET;
        return 0;
    }
    if (word(v, "none")) {
        r->c->no_thinking = true;
        return 0;
    }
    if (is(v, SL_JSON_STRING) && sl_chat_effort_parse(v->text.s, v->text.n, &r->c->effort))
        return 0;
    return refuse(r, "reasoning_effort", "must be \"low\", \"high\", \"max\", \"none\" or null");
}

static int thinking(struct reading *r, const struct sl_jv *root)
{
    const struct sl_jv *type = member(member(root, "thinking"), "type");
    const struct sl_jv *on = member(member(root, "chat_template_kwargs"), "thinking");
    if (word(type, "disabled") || is(on, SL_JSON_FALSE))
        r->c->no_thinking = true;
    else if (member(root, "thinking") && !word(type, "enabled"))
        return refuse(r, "thinking.type", "must be \"enabled\" or \"disabled\"");
    return 0;
}

static int read_root(struct reading *r, const struct sl_jv *root)
{
    const struct sl_jv *list = member(root, "messages");
    const struct sl_jv *v;
    if (!is(root, SL_JSON_OBJECT)) return wrong_kind(r, "request", root, "an object");
    if (!is(list, SL_JSON_ARRAY) || !list->n_children)
        return refuse(r, "messages", "must be an array, not empty");
    int rc = 0;
    int i = 0;
    for (const struct sl_jv *m = list->children; m && !rc; m = m->next) rc = one_message(r, m, i++);
    if (!rc && (v = member(root, "tools"))) rc = tools(r, v);
    if (!rc && (v = member(root, "tool_choice"))) rc = tool_choice(r, v);
    if (!rc && (v = member(root, "response_format"))) rc = response_format(r, v);
    if (!rc && (v = sl_jv_get(root, "reasoning_effort"))) rc = effort(r, v);
    return rc ? rc : thinking(r, root);
}

int sl_chat_from_json(struct sl_chat *c, const char *text, size_t n, char param[SL_CHAT_PARAM_MAX],
                      struct sl_err *err)
{
    struct reading r = {c, param, err};
    struct sl_chunk *pool = NULL;
    const struct sl_jv *root;
    if (param) param[0] = 0;
    int rc = sl_json_tree(&root, &pool, text, n, err);
    if (!rc) rc = read_root(&r, root);
    sl_chunk_free(&pool);
    return rc;
}

/* ---------------------------------------------------------------- writing */

static int put_text(struct sl_buf *out, const char *head, struct sl_text t, struct sl_err *err)
{
    int rc = sl_buf_str(out, head, err);
    return rc ? rc : sl_jv_put_string(out, t.s ? t.s : "", t.n, err);
}

static int put_member(struct sl_buf *out, const char *head, struct sl_text t, struct sl_err *err)
{
    return t.s ? put_text(out, head, t, err) : 0;
}

static int put_raw(struct sl_buf *out, const char *head, struct sl_text json, struct sl_err *err)
{
    if (!json.s) return 0;
    int rc = sl_buf_str(out, head, err);
    return rc ? rc : sl_buf_add(out, json.s, json.n, err);
}

/* One part is a string, several stay parts: they are encoded apart. */
static int put_content(struct sl_buf *out, const struct sl_chat_message *m, struct sl_err *err)
{
    if (!m->n_parts) {
        const bool none = m->n_calls || m->tools.s;
        return sl_buf_str(out, none ? ",\"content\":null" : ",\"content\":\"\"", err);
    }
    if (m->n_parts == 1 && m->parts[0].kind == SL_PART_TEXT)
        return put_text(out, ",\"content\":", m->parts[0].text, err);
    int rc = sl_buf_str(out, ",\"content\":[", err);
    for (int i = 0; i < m->n_parts && !rc; i++) {
        if (m->parts[i].kind != SL_PART_TEXT)
            return sl_fail(err, SL_E_ARG, NULL, "content", "an image cannot be written back");
        rc = sl_buf_str(out, i ? "," : "", err);
        if (!rc) rc = put_text(out, "{\"type\":\"text\",\"text\":", m->parts[i].text, err);
        if (!rc) rc = sl_buf_str(out, "}", err);
    }
    return rc ? rc : sl_buf_str(out, "]", err);
}

static int put_calls(struct sl_buf *out, const struct sl_chat_message *m, struct sl_err *err)
{
    int rc = sl_buf_str(out, ",\"tool_calls\":[", err);
    for (int i = 0; i < m->n_calls && !rc; i++) {
        const struct sl_chat_call *c = &m->calls[i];
        rc = sl_buf_str(out, i ? ",{" : "{", err);
        if (!rc && c->id.s) rc = put_text(out, "\"id\":", c->id, err);
        if (!rc) rc = sl_buf_str(out, c->id.s ? "," : "", err);
        if (!rc) rc = put_text(out, "\"type\":\"function\",\"function\":{\"name\":", c->name, err);
        if (!rc) rc = put_text(out, ",\"arguments\":", c->arguments, err);
        if (!rc) rc = sl_buf_str(out, "}}", err);
    }
    return rc ? rc : sl_buf_str(out, "]", err);
}

int sl_chat_message_json(struct sl_buf *out, const struct sl_chat_message *m, struct sl_err *err)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    int rc = sl_buf_printf(out, err, "{\"role\":\"%s\"", roles[m->role]);
    if (!rc) rc = put_member(out, ",\"name\":", m->name, err);
    if (!rc) rc = put_member(out, ",\"tool_call_id\":", m->call_id, err);
    if (!rc) rc = put_content(out, m, err);
    if (!rc) rc = put_member(out, ",\"reasoning_content\":", m->reasoning, err);
    if (!rc && m->n_calls) rc = put_calls(out, m, err);
    if (!rc) rc = put_raw(out, ",\"tools\":", m->tools, err);
    return rc ? rc : sl_buf_str(out, "}", err);
}

int sl_chat_to_json(struct sl_buf *out, const struct sl_chat *c, struct sl_err *err)
{
    static const char *const efforts[] = {NULL, "null", "\"low\"", "\"high\"", "\"max\""};
    int rc = sl_buf_str(out, "{\"messages\":[", err);
    for (int i = 0; i < c->n_messages && !rc; i++) {
        rc = sl_buf_str(out, i ? ",\n" : "\n", err);
        if (!rc) rc = sl_chat_message_json(out, &c->messages[i], err);
    }
    if (!rc) rc = sl_buf_str(out, "]", err);
    if (!rc) rc = put_raw(out, ",\"tools\":", c->tools, err);
    if (!rc && c->tool_choice != SL_TOOLS_AUTO)
        rc = sl_buf_printf(out, err, ",\"tool_choice\":\"%s\"",
                           c->tool_choice == SL_TOOLS_NONE ? "none" : "required");
    if (!rc && c->response == SL_RESPONSE_JSON)
        rc = sl_buf_str(out, ",\"response_format\":{\"type\":\"json_object\"}", err);
    if (!rc && c->response == SL_RESPONSE_SCHEMA) {
        rc = put_raw(out,
                     ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":",
                     c->schema, err);
        if (!rc) rc = sl_buf_str(out, "}}", err);
    }
    if (!rc && c->no_thinking) rc = sl_buf_str(out, ",\"thinking\":{\"type\":\"disabled\"}", err);
    if (!rc && efforts[c->effort])
        rc = sl_buf_printf(out, err, ",\"reasoning_effort\":%s", efforts[c->effort]);
    return rc ? rc : sl_buf_str(out, "}\n", err);
}
