/* Request bodies, field by field (see serve_request.h). */
#include "runtime/serve_request.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "runtime/chat_json.h"
#include "runtime/serve_schema.h"
#include "runtime/utf8.h"

int sl_serve_refuse(struct sl_serve_fault *f, int status, const char *type, const char *code,
                    const char *param, const char *fmt, ...)
{
    va_list ap;
    f->status = status;
    f->type = type;
    f->code = code;
    (void)snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    (void)vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    return -1;
}

static const char invalid[] = "invalid_request_error";

static int bad(struct sl_serve_fault *f, const char *param, const char *want)
{
    return sl_serve_refuse(f, 400, invalid, "invalid_value", param, "'%s' must be %s", param, want);
}

static int unserved(struct sl_serve_fault *f, const char *param, const char *why)
{
    return sl_serve_refuse(f, 400, invalid, "unsupported_parameter", param,
                           "'%s' is not supported: %s", param, why);
}

/* A member that is there and not null. */
static const cJSON *member(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static int get_bool(const cJSON *o, const char *key, bool *out, struct sl_serve_fault *f)
{
    const cJSON *v = member(o, key);
    if (!v) return 0;
    if (!cJSON_IsBool(v)) return bad(f, key, "true or false");
    *out = cJSON_IsTrue(v);
    return 0;
}

/* Written so that NaN and infinities, which 1e999 gives, fail. */
static int get_real(const cJSON *o, const char *key, double min, double max, double *out,
                    struct sl_serve_fault *f)
{
    const cJSON *v = member(o, key);
    char want[64];
    if (!v) return 0;
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= min && v->valuedouble <= max)) {
        (void)snprintf(want, sizeof want, "a number from %g to %g", min, max);
        return bad(f, key, want);
    }
    *out = v->valuedouble;
    return 0;
}

static bool whole(const cJSON *v, double min, double max)
{
    return cJSON_IsNumber(v) && v->valuedouble >= min && v->valuedouble <= max &&
           v->valuedouble == floor(v->valuedouble);
}

static int get_int(const cJSON *o, const char *key, double min, double max, int64_t *out,
                   struct sl_serve_fault *f)
{
    const cJSON *v = member(o, key);
    char want[80];
    if (!v) return 0;
    if (!whole(v, min, max)) {
        (void)snprintf(want, sizeof want, "a whole number from %.0f to %.0f", min, max);
        return bad(f, key, want);
    }
    *out = (int64_t)v->valuedouble;
    return 0;
}

/* ---------------------------------------------------------------- the body as a whole */

/* An escaped NUL would end the C string that cJSON makes of the text. */
static bool has_nul_escape(const char *s, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) {
        if (s[i] != '\\') continue;
        if (s[i + 1] == 'u' && n - i >= 6 && memcmp(s + i + 2, "0000", 4) == 0) return true;
        i++; /* the escaped character, which may be a backslash */
    }
    return false;
}

static int parse_tree(cJSON **out, const char *body, size_t len, struct sl_serve_fault *f)
{
    size_t good = sl_utf8_valid(body, len);
    if (good != len)
        return sl_serve_refuse(f, 400, invalid, "invalid_json", NULL,
                               "the body is not UTF-8: byte %zu", good);
    if (memchr(body, 0, len) || has_nul_escape(body, len))
        return sl_serve_refuse(f, 400, invalid, "invalid_json", NULL,
                               "the body holds a NUL character, which text cannot carry here");
    const char *end = body;
    cJSON *tree = cJSON_ParseWithLengthOpts(body, len, &end, 0);
    while (tree && end < body + len && strchr(" \t\r\n", *end)) end++;
    if (!tree || end != body + len) {
        cJSON_Delete(tree);
        return sl_serve_refuse(f, 400, invalid, "invalid_json", NULL,
                               "the body is not JSON: byte %zu of %zu", (size_t)(end - body), len);
    }
    if (!cJSON_IsObject(tree)) {
        cJSON_Delete(tree);
        return sl_serve_refuse(f, 400, invalid, "invalid_json", NULL,
                               "the body must be a JSON object");
    }
    *out = tree;
    return 0;
}

/* ---------------------------------------------------------------- what is not served */

static int want_number(const cJSON *o, const char *key, double neutral, const char *why,
                       struct sl_serve_fault *f)
{
    const cJSON *v = member(o, key);
    if (!v || (cJSON_IsNumber(v) && v->valuedouble == neutral)) return 0;
    return unserved(f, key, why);
}

static int want_absent(const cJSON *o, const char *key, const char *why, struct sl_serve_fault *f)
{
    const cJSON *v = member(o, key);
    if (!v || ((cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child) || cJSON_IsFalse(v) ||
        (cJSON_IsString(v) && !v->valuestring[0]))
        return 0;
    return unserved(f, key, why);
}

static int check_unserved(const struct sl_serve_request *r, struct sl_serve_fault *f)
{
    static const char *const penalties[] = {"frequency_penalty", "presence_penalty"};
    static const char *const cuts[] = {"min_p", "top_k", "typical_p", "top_a", "tfs"};
    static const char *const objects[] = {"logit_bias", "grammar",  "guided_json",  "guided_regex",
                                          "prediction", "suffix",   "echo",         "functions",
                                          "audio",      "mirostat", "function_call"};
    const cJSON *o = r->tree;
    int rc = want_number(o, "n", 1, "one answer a request", f);
    if (!rc) rc = want_number(o, "best_of", 1, "one answer a request", f);
    if (!rc)
        rc = want_number(o, "repetition_penalty", 1, "sampling knows temperature and top_p", f);
    for (size_t i = 0; i < sizeof penalties / sizeof *penalties && !rc; i++)
        rc = want_number(o, penalties[i], 0, "sampling knows temperature and top_p", f);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts && !rc; i++) {
        const cJSON *v = member(o, cuts[i]);
        if (strcmp(cuts[i], "top_k") == 0 && v && cJSON_IsNumber(v) && v->valuedouble == -1)
            continue; /* "all", as other servers spell it */
        double neutral = strcmp(cuts[i], "typical_p") == 0 || strcmp(cuts[i], "tfs") == 0;
        rc = want_number(o, cuts[i], neutral, "sampling knows temperature and top_p", f);
    }
    for (size_t i = 0; i < sizeof objects / sizeof *objects && !rc; i++)
        rc = want_absent(o, objects[i], "this server would not do what it says", f);
    const cJSON *modes = member(o, "modalities");
    const cJSON *m;
    cJSON_ArrayForEach(m, modes)
    {
        if (!rc && !(cJSON_IsString(m) && strcmp(m->valuestring, "text") == 0))
            rc = unserved(f, "modalities", "answers are text");
    }
    return rc;
}

/* ---------------------------------------------------------------- fields of both kinds */

static int get_stop(struct sl_serve_request *r, struct sl_serve_fault *f)
{
    const cJSON *v = member(r->tree, "stop");
    static const char want[] = "a string, or up to 16 strings, of 1 to 1024 bytes";
    if (!v) return 0;
    if (!cJSON_IsString(v) && !cJSON_IsArray(v)) return bad(f, "stop", want);
    const cJSON *one = cJSON_IsString(v) ? v : v->child;
    for (; one; one = cJSON_IsString(v) ? NULL : one->next) {
        if (!cJSON_IsString(one) || r->n_stop == SL_SERVE_STOPS) return bad(f, "stop", want);
        size_t n = strlen(one->valuestring);
        if (n < 1 || n > SL_SERVE_STOP_BYTES) return bad(f, "stop", want);
        r->stop[r->n_stop++] = one->valuestring;
    }
    return 0;
}

static int get_stream(struct sl_serve_request *r, struct sl_serve_fault *f)
{
    int rc = get_bool(r->tree, "stream", &r->stream, f);
    const cJSON *o = rc ? NULL : member(r->tree, "stream_options");
    if (rc || !o) return rc;
    if (!cJSON_IsObject(o)) return bad(f, "stream_options", "an object");
    if (!r->stream) return bad(f, "stream_options", "absent where 'stream' is not true");
    return get_bool(o, "include_usage", &r->include_usage, f);
}

static int get_seed(struct sl_serve_request *r, struct sl_serve_fault *f)
{
    const cJSON *v = member(r->tree, "seed");
    if (!v) return 0;
    if (!whole(v, -9007199254740992.0, 9007199254740992.0))
        return bad(f, "seed", "a whole number of at most 53 bits");
    r->seed = (uint64_t)(int64_t)v->valuedouble;
    r->seeded = true;
    return 0;
}

static int get_limits(struct sl_serve_request *r, struct sl_serve_fault *f)
{
    int rc = get_int(r->tree, "max_tokens", 0, 1e9, &r->max_tokens, f);
    /* the newer name wins, as the older one is deprecated in its favour */
    if (!rc && r->kind == SL_SERVE_CHAT)
        rc = get_int(r->tree, "max_completion_tokens", 0, 1e9, &r->max_tokens, f);
    if (!rc) rc = get_real(r->tree, "temperature", 0, 1000, &r->temperature, f);
    if (!rc) rc = get_real(r->tree, "top_p", 0, 1, &r->top_p, f);
    if (!rc && r->top_p == 0) r->top_p = 1e-6; /* the most likely token, not "everything" */
    if (!rc) rc = get_bool(r->tree, "ignore_eos", &r->ignore_eos, f);
    return rc;
}

/* ---------------------------------------------------------------- chat */

static int get_format(struct sl_serve_request *r, struct sl_serve_fault *f)
{
    static const char p[] = "response_format";
    const cJSON *o = member(r->tree, p);
    if (!o) return 0;
    if (!cJSON_IsObject(o)) return bad(f, p, "an object");
    const cJSON *t = member(o, "type");
    const char *type = cJSON_IsString(t) ? t->valuestring : "";
    if (strcmp(type, "text") == 0) return 0;
    if (strcmp(type, "json_object") == 0) {
        r->format = SL_SERVE_JSON_OBJECT;
        return 0;
    }
    if (strcmp(type, "json_schema") != 0)
        return bad(f, "response_format.type", "text, json_object or json_schema");
    const cJSON *js = member(o, "json_schema");
    r->schema = cJSON_IsObject(js) ? member(js, "schema") : NULL;
    if (!cJSON_IsObject(r->schema))
        return bad(f, "response_format.json_schema.schema", "an object");
    r->format = SL_SERVE_JSON_SCHEMA;
    char why[256];
    if (sl_serve_schema_check(r->schema, why, sizeof why))
        return sl_serve_refuse(f, 400, invalid, "unsupported_value",
                               "response_format.json_schema.schema", "the schema: %s", why);
    return 0;
}

static int get_chat(struct sl_serve_request *r, struct sl_serve_fault *f)
{
    const cJSON *m = member(r->tree, "messages");
    if (!cJSON_IsArray(m) || !m->child) return bad(f, "messages", "an array of messages");
    bool parallel = true;
    int64_t top = 0;
    int rc = get_format(r, f);
    if (!rc) rc = get_bool(r->tree, "parallel_tool_calls", &parallel, f);
    if (!rc) rc = get_bool(r->tree, "logprobs", &r->logprobs, f);
    if (!rc) rc = get_int(r->tree, "top_logprobs", 0, SL_SERVE_TOP_LOGPROBS, &top, f);
    if (!rc && top && !r->logprobs)
        rc = bad(f, "top_logprobs", "absent where 'logprobs' is not true");
    r->one_call = !parallel;
    r->top_logprobs = (int)top;
    return rc;
}

/* ---------------------------------------------------------------- completion */

static int get_prompt(struct sl_serve_request *r, struct sl_serve_fault *f)
{
    const cJSON *p = member(r->tree, "prompt");
    static const char want[] = "a string, an array with one string, or an array of token ids";
    if (cJSON_IsArray(p) && p->child && !p->child->next &&
        (cJSON_IsString(p->child) || cJSON_IsArray(p->child)))
        p = p->child; /* a batch of one */
    if (cJSON_IsString(p)) {
        r->prompt = p->valuestring;
        return r->prompt[0] ? 0 : bad(f, "prompt", "a string that is not empty");
    }
    if (!cJSON_IsArray(p) || !p->child) return bad(f, "prompt", want);
    const cJSON *id;
    cJSON_ArrayForEach(id, p)
    {
        if (cJSON_IsString(id) || cJSON_IsArray(id))
            return unserved(f, "prompt", "one prompt a request");
        if (!whole(id, 0, INT32_MAX)) return bad(f, "prompt", want);
        r->n_prompt_ids++;
    }
    r->prompt_ids = p;
    return 0;
}

static int get_completion(struct sl_serve_request *r, struct sl_serve_fault *f)
{
    const cJSON *v = member(r->tree, "logprobs");
    int64_t top = 0;
    int rc = get_prompt(r, f);
    if (!rc && v) {
        rc = get_int(r->tree, "logprobs", 0, SL_SERVE_TOP_LOGPROBS, &top, f);
        r->logprobs = true;
        r->top_logprobs = (int)top;
    }
    return rc;
}

int sl_serve_request_parse(struct sl_serve_request *r, enum sl_serve_kind kind, const char *body,
                           size_t len, struct sl_serve_fault *f)
{
    *r = (struct sl_serve_request){
        .kind = kind, .max_tokens = -1, .temperature = 1.0, .top_p = 0.95};
    int rc = parse_tree(&r->tree, body, len, f);
    if (rc) return rc;
    const cJSON *model = member(r->tree, "model");
    if (model && !cJSON_IsString(model)) rc = bad(f, "model", "a string");
    r->model = cJSON_IsString(model) ? model->valuestring : NULL;
    if (!rc) rc = check_unserved(r, f);
    if (!rc) rc = get_stream(r, f);
    if (!rc) rc = get_limits(r, f);
    if (!rc) rc = get_seed(r, f);
    if (!rc) rc = get_stop(r, f);
    if (!rc) rc = kind == SL_SERVE_CHAT ? get_chat(r, f) : get_completion(r, f);
    if (rc) sl_serve_request_free(r);
    return rc;
}

void sl_serve_request_free(struct sl_serve_request *r)
{
    cJSON_Delete(r->tree);
    *r = (struct sl_serve_request){0};
}

int sl_serve_request_fuzz(const uint8_t *data, size_t size)
{
    struct sl_serve_request r;
    struct sl_serve_fault f;
    if (!size) return 0;
    enum sl_serve_kind kind = data[0] & 1 ? SL_SERVE_COMPLETION : SL_SERVE_CHAT;
    const char *body = (const char *)data + 1;
    if (sl_serve_request_parse(&r, kind, body, size - 1, &f)) return 0;
    if (kind == SL_SERVE_CHAT) {
        struct sl_chat c = {0};
        struct sl_err err = {0};
        char param[SL_CHAT_PARAM_MAX];
        char why[128];
        (void)sl_chat_from_json(&c, body, size - 1, param, &err);
        sl_chat_free(&c);
        /* any JSON will do as the answer to be judged */
        if (r.schema) (void)sl_serve_schema_match(r.schema, r.tree, why, sizeof why);
    }
    sl_serve_request_free(&r);
    return 0;
}
