/* Reader and writers of json_text.h: recursive descent with a bound on depth, nodes in a pool. */
#include "runtime/json_text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/utf8.h"

struct reader {
    const char *s;
    size_t n, at;
    struct sl_chunk **pool;
    struct sl_err *err;
};

static int bad(const struct reader *r, const char *what)
{
    return sl_fail(r->err, SL_E_ARG, NULL, NULL, "no valid JSON: %s at byte %zu", what, r->at);
}

static void *take(struct reader *r, size_t bytes)
{
    void *p = sl_chunk_alloc(r->pool, bytes);
    if (!p) sl_fail(r->err, SL_E_NOMEM, NULL, NULL, "no memory for JSON");
    return p;
}

static void skip_space(struct reader *r)
{
    while (r->at < r->n && (r->s[r->at] == ' ' || r->s[r->at] == '\t' || r->s[r->at] == '\n' ||
                            r->s[r->at] == '\r'))
        r->at++;
}

static bool next_is(const struct reader *r, char c)
{
    return r->at < r->n && r->s[r->at] == c;
}

/* ---------------------------------------------------------------- strings */

static bool hex4(struct reader *r, uint32_t *out)
{
    if (r->n - r->at < 4) return false;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = r->s[r->at + (size_t)i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return false;
        v = v << 4 | (uint32_t)d;
    }
    r->at += 4;
    *out = v;
    return true;
}

/* After `\u`: one code point, from one or two escapes. */
static bool unicode_escape(struct reader *r, uint32_t *cp)
{
    uint32_t low;
    if (!hex4(r, cp)) return false;
    if (*cp < 0xd800 || *cp > 0xdfff) return true;
    if (*cp > 0xdbff || r->n - r->at < 2 || r->s[r->at] != '\\' || r->s[r->at + 1] != 'u')
        return false;
    r->at += 2;
    if (!hex4(r, &low) || low < 0xdc00 || low > 0xdfff) return false;
    *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

static int escape(struct reader *r, char *out, size_t *len)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->n) return bad(r, "a string that does not end");
    char c = r->s[r->at++];
    if (c == 'u') {
        uint32_t cp;
        if (!unicode_escape(r, &cp)) return bad(r, "a wrong \\u escape");
        *len += sl_utf8_put(out + *len, cp);
        return 0;
    }
    const char *which = c ? strchr(from, c) : NULL;
    if (!which) return bad(r, "a wrong escape");
    out[(*len)++] = to[which - from];
    return 0;
}

/* At the opening quote. Decoded text is never longer than the source. */
static int read_string(struct reader *r, struct sl_text *out)
{
    size_t end = ++r->at;
    while (end < r->n && r->s[end] != '"') end += r->s[end] == '\\' ? 2 : 1;
    if (end >= r->n) return bad(r, "a string that does not end");
    char *to = take(r, end - r->at + 1);
    if (!to) return SL_E_NOMEM;
    size_t len = 0;
    while (r->s[r->at] != '"') {
        unsigned char c = (unsigned char)r->s[r->at];
        if (c < 0x20) return bad(r, "a control character in a string");
        r->at++;
        if (c != '\\') {
            to[len++] = (char)c;
            continue;
        }
        int rc = escape(r, to, &len);
        if (rc) return rc;
        if (r->at > end) return bad(r, "a string that does not end");
    }
    r->at++;
    to[len] = 0;
    *out = (struct sl_text){to, len};
    return 0;
}

/* ---------------------------------------------------------------- values */

static size_t digits(const struct reader *r, size_t at)
{
    size_t n = 0;
    while (at + n < r->n && r->s[at + n] >= '0' && r->s[at + n] <= '9') n++;
    return n;
}

static int read_number(struct reader *r, struct sl_jv *v)
{
    size_t at = r->at;
    if (r->s[at] == '-') at++;
    size_t whole = digits(r, at);
    if (!whole || (whole > 1 && r->s[at] == '0')) return bad(r, "an unexpected character");
    at += whole;
    if (at < r->n && r->s[at] == '.') {
        size_t part = digits(r, at + 1);
        if (!part) return bad(r, "a wrong number");
        at += 1 + part;
    }
    if (at < r->n && (r->s[at] == 'e' || r->s[at] == 'E')) {
        at++;
        if (at < r->n && (r->s[at] == '+' || r->s[at] == '-')) at++;
        size_t power = digits(r, at);
        if (!power) return bad(r, "a wrong number");
        at += power;
    }
    char *to = take(r, at - r->at + 1);
    if (!to) return SL_E_NOMEM;
    memcpy(to, r->s + r->at, at - r->at);
    to[at - r->at] = 0;
    v->kind = SL_JSON_NUMBER;
    v->text = (struct sl_text){to, at - r->at};
    r->at = at;
    return 0;
}

static int compare_texts(struct sl_text a, struct sl_text b)
{
    int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

struct member {
    struct sl_jv *v;
    int place;
};
static int by_key(const void *x, const void *y)
{
    const struct member *a = x;
    const struct member *b = y;
    int c = compare_texts(a->v->key, b->v->key);
    return c ? c : a->place - b->place;
}

/* The last value of equal keys moves to the first one's place, the others leave the list. */
static int drop_twins(struct reader *r, struct sl_jv *object)
{
    const int n = object->n_children;
    if (n < 2) return 0;
    struct member *m = malloc(sizeof *m * (size_t)n);
    if (!m) return sl_fail(r->err, SL_E_NOMEM, NULL, NULL, "no memory for JSON");
    struct sl_jv *v = (struct sl_jv *)(uintptr_t)object->children;
    for (int i = 0; i < n; i++) {
        m[i] = (struct member){v, i};
        v = (struct sl_jv *)(uintptr_t)v->next;
    }
    qsort(m, (size_t)n, sizeof *m, by_key);
    int twins = 0;
    for (int i = 0; i < n;) {
        int j = i + 1;
        while (j < n && compare_texts(m[i].v->key, m[j].v->key) == 0) {
            m[j].v->key.s = NULL; /* marks it as gone */
            j++;
        }
        if (j > i + 1) {
            const struct sl_jv *last = m[j - 1].v;
            m[i].v->kind = last->kind;
            m[i].v->text = last->text;
            m[i].v->children = last->children;
            m[i].v->n_children = last->n_children;
            twins += j - i - 1;
        }
        i = j;
    }
    free(m);
    if (!twins) return 0;
    for (v = (struct sl_jv *)(uintptr_t)object->children; v;) {
        const struct sl_jv *next = v->next;
        while (next && !next->key.s) next = next->next;
        v->next = next;
        v = (struct sl_jv *)(uintptr_t)next;
    }
    object->n_children -= twins;
    return 0;
}

static int read_value(struct reader *r, struct sl_jv *v, int depth);

static int read_member(struct reader *r, struct sl_jv *v, bool object, int depth)
{
    skip_space(r);
    if (object) {
        if (!next_is(r, '"')) return bad(r, "a key is missing");
        int rc = read_string(r, &v->key);
        if (rc) return rc;
        skip_space(r);
        if (!next_is(r, ':')) return bad(r, "a colon is missing");
        r->at++;
    }
    int rc = read_value(r, v, depth);
    skip_space(r);
    return rc;
}

static int read_list(struct reader *r, struct sl_jv *v, bool object, int depth)
{
    const char closer = object ? '}' : ']';
    const struct sl_jv **tail = &v->children;
    v->kind = object ? SL_JSON_OBJECT : SL_JSON_ARRAY;
    if (depth == SL_JSON_DEPTH) return bad(r, "too deep a nesting");
    r->at++;
    skip_space(r);
    if (next_is(r, closer)) {
        r->at++;
        return 0;
    }
    for (;;) {
        struct sl_jv *child = take(r, sizeof *child);
        if (!child) return SL_E_NOMEM;
        *child = (struct sl_jv){0};
        *tail = child;
        tail = &child->next;
        v->n_children++;
        int rc = read_member(r, child, object, depth + 1);
        if (rc) return rc;
        if (!next_is(r, ',') && !next_is(r, closer)) return bad(r, "a comma is missing");
        if (r->s[r->at++] == closer) return object ? drop_twins(r, v) : 0;
    }
}

static int read_value(struct reader *r, struct sl_jv *v, int depth)
{
    static const struct {
        const char *word;
        enum sl_json_kind kind;
    } words[] = {{"null", SL_JSON_NULL}, {"false", SL_JSON_FALSE}, {"true", SL_JSON_TRUE}};
    skip_space(r);
    if (r->at == r->n) return bad(r, "the end");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t len = strlen(words[i].word);
        if (r->n - r->at < len || memcmp(r->s + r->at, words[i].word, len) != 0) continue;
        v->kind = words[i].kind;
        r->at += len;
        return 0;
    }
    switch (r->s[r->at]) {
    case '"':
        v->kind = SL_JSON_STRING;
        return read_string(r, &v->text);
    case '[':
        return read_list(r, v, false, depth);
    case '{':
        return read_list(r, v, true, depth);
    default:
        return read_number(r, v);
    }
}

int sl_json_tree(const struct sl_jv **out, struct sl_chunk **pool, const char *text, size_t n,
                 struct sl_err *err)
{
    struct reader r = {.s = text, .n = n, .pool = pool, .err = err};
    *out = NULL;
    r.at = sl_utf8_valid(text, n);
    if (r.at != n) return bad(&r, "bytes that are not UTF-8");
    r.at = 0;
    struct sl_jv *v = take(&r, sizeof *v);
    if (!v) return SL_E_NOMEM;
    *v = (struct sl_jv){0};
    int rc = read_value(&r, v, 0);
    skip_space(&r);
    if (!rc && r.at != n) rc = bad(&r, "text behind the value");
    if (!rc) *out = v;
    return rc;
}

bool sl_json_check(const char *text, size_t n, enum sl_json_kind *kind)
{
    struct sl_chunk *pool = NULL;
    const struct sl_jv *v;
    int rc = sl_json_tree(&v, &pool, text, n, NULL);
    if (!rc && kind) *kind = v->kind;
    sl_chunk_free(&pool);
    return rc == 0;
}

const struct sl_jv *sl_jv_get(const struct sl_jv *v, const char *key)
{
    const size_t n = strlen(key);
    if (!v || v->kind != SL_JSON_OBJECT) return NULL;
    for (const struct sl_jv *c = v->children; c; c = c->next)
        if (c->key.n == n && memcmp(c->key.s, key, n) == 0) return c;
    return NULL;
}

const char *sl_jv_kind_name(enum sl_json_kind kind)
{
    static const char *const names[] = {"null",   "boolean", "boolean", "number",
                                        "string", "array",   "object"};
    return names[kind];
}

/* ---------------------------------------------------------------- writing */

int sl_jv_put_string(struct sl_buf *out, const char *s, size_t n, struct sl_err *err)
{
    static const char short_of[0x20] = {
        ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    int rc = sl_buf_add(out, "\"", 1, err);
    size_t from = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        rc = sl_buf_add(out, s + from, i - from, err);
        from = i + 1;
        char two[2] = {'\\', (char)c};
        if (c < 0x20) two[1] = short_of[c];
        if (!rc) rc = two[1] ? sl_buf_add(out, two, 2, err) : sl_buf_printf(out, err, "\\u%04x", c);
    }
    if (!rc) rc = sl_buf_add(out, s + from, n - from, err);
    return rc ? rc : sl_buf_add(out, "\"", 1, err);
}

static int write_list(struct sl_buf *out, const struct sl_jv *v, enum sl_json_form form,
                      struct sl_err *err)
{
    const bool object = v->kind == SL_JSON_OBJECT;
    const bool spaced = form == SL_JSON_SPACED;
    struct member *m = calloc((size_t)v->n_children + 1, sizeof *m);
    if (!m) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for JSON");
    int n = 0;
    for (const struct sl_jv *c = v->children; c && n < v->n_children; c = c->next, n++)
        m[n] = (struct member){(struct sl_jv *)(uintptr_t)c, n};
    if (object && !spaced) qsort(m, (size_t)n, sizeof *m, by_key);
    int rc = sl_buf_add(out, object ? "{" : "[", 1, err);
    for (int i = 0; i < n && !rc; i++) {
        if (i) rc = sl_buf_str(out, spaced ? ", " : ",", err);
        if (!rc && object) rc = sl_jv_put_string(out, m[i].v->key.s, m[i].v->key.n, err);
        if (!rc && object) rc = sl_buf_str(out, spaced ? ": " : ":", err);
        if (!rc) rc = sl_jv_write(out, m[i].v, form, err);
    }
    free(m);
    return rc ? rc : sl_buf_add(out, object ? "}" : "]", 1, err);
}

int sl_jv_write(struct sl_buf *out, const struct sl_jv *v, enum sl_json_form form,
                struct sl_err *err)
{
    switch (v->kind) {
    case SL_JSON_NULL:
        return sl_buf_str(out, "null", err);
    case SL_JSON_FALSE:
        return sl_buf_str(out, "false", err);
    case SL_JSON_TRUE:
        return sl_buf_str(out, "true", err);
    case SL_JSON_NUMBER:
        return sl_buf_add(out, v->text.s, v->text.n, err);
    case SL_JSON_STRING:
        return sl_jv_put_string(out, v->text.s, v->text.n, err);
    default:
        return write_list(out, v, form, err);
    }
}
