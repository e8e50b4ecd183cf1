/* The checked part of JSON Schema (see serve_schema.h). */
#include "runtime/serve_schema.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "runtime/utf8.h"

/* Together these bound a match: nesting, and steps, since anyOf under anyOf multiplies. */
enum { MAX_DEPTH = 100, MAX_STEPS = 1000000, MATCH_LIMIT = 100000, WHERE = 160 };

struct judge {
    const cJSON *root; /* for $ref */
    char *why;
    size_t n;
    long steps;
    bool gave_up;      /* a bound was hit: the verdict is no, also below `not` */
    char where[WHERE]; /* path into the value: "answer.items[3]" */
};

static int no(struct judge *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int no(struct judge *j, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)snprintf(j->why, j->n, "%s: %s", j->where, text);
    return -1;
}

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static const char *const maps[] = {"properties", "$defs", "definitions", NULL};
static const char *const lists[] = {"allOf", "anyOf", "oneOf", "prefixItems", NULL};
static const char *const schemas[] = {"items", "additionalProperties", "not", NULL};

static bool among(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(key, *list) == 0) return true;
    return false;
}

/* The next step of a reference, unescaped into name[n]; false: there is none, or it is too long. */
static bool step(const char **at, char *name, size_t n)
{
    const char *p = *at;
    size_t len = 0;
    if (*p++ != '/') return false;
    for (; *p && *p != '/'; p++) {
        char c = *p;
        if (c == '~' && (p[1] == '0' || p[1] == '1')) c = *++p == '0' ? '~' : '/';
        if (len + 1 == n) return false;
        name[len++] = c;
    }
    name[len] = 0;
    *at = p;
    return true;
}

/* "#", "#/$defs/node": the schema that a local reference names, NULL: none. Only places that check()
 * walks through are followed, so what comes out is a checked schema and not some other value. */
static const cJSON *resolve(const cJSON *root, const char *ref)
{
    char name[128];
    if (*ref != '#') return NULL;
    const cJSON *at = root;
    for (ref++; at && *ref;) {
        if (!step(&ref, name, sizeof name)) return NULL;
        const cJSON *in = get(at, name);
        if (among(name, schemas)) {
            at = in;
        } else if (among(name, maps)) {
            at = step(&ref, name, sizeof name) ? get(in, name) : NULL;
        } else if (among(name, lists)) {
            at = step(&ref, name, sizeof name) && strspn(name, "0123456789") == strlen(name)
                     ? cJSON_GetArrayItem(in, (int)strtol(name, NULL, 10))
                     : NULL;
        } else {
            return NULL;
        }
    }
    return at;
}

/* ---------------------------------------------------------------- the schema itself */

static const char *const types[] = {"null",   "boolean", "number", "integer",
                                    "string", "array",   "object", NULL};

static bool is_type_name(const cJSON *t)
{
    for (int i = 0; types[i]; i++)
        if (cJSON_IsString(t) && strcmp(t->valuestring, types[i]) == 0) return true;
    return false;
}

static pcre2_code *compile(const char *pattern)
{
    int code;
    PCRE2_SIZE at;
    return pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
}

static int check(struct judge *j, const cJSON *s, int depth);

static int check_each(struct judge *j, const cJSON *list, int depth)
{
    const cJSON *s;
    int rc = 0;
    cJSON_ArrayForEach(s, list)
    {
        if (!rc) rc = check(j, s, depth + 1);
    }
    return rc;
}

static int check_type(struct judge *j, const cJSON *v)
{
    const cJSON *t = cJSON_IsArray(v) ? v->child : v;
    if (!t) return no(j, "'type' is empty");
    for (; t; t = t == v ? NULL : t->next)
        if (!is_type_name(t)) return no(j, "'type' is not one of JSON Schema's");
    return 0;
}

static int check_pattern(struct judge *j, const cJSON *v)
{
    if (!cJSON_IsString(v)) return no(j, "'pattern' is not a string");
    pcre2_code *code = compile(v->valuestring);
    if (!code) return no(j, "'pattern' is not a regular expression");
    pcre2_code_free(code);
    return 0;
}

static int check_keyword(struct judge *j, const cJSON *v, int depth)
{
    static const char *const notes[] = {
        "title",    "description", "default",   "examples",   "format", "$schema", "$id",
        "$comment", "readOnly",    "writeOnly", "deprecated", "strict", NULL};
    static const char *const numbers[] = {"minimum",          "maximum",       "exclusiveMinimum",
                                          "exclusiveMaximum", "multipleOf",    "minLength",
                                          "maxLength",        "minItems",      "maxItems",
                                          "minProperties",    "maxProperties", NULL};
    const char *key = v->string;
    if (among(key, notes) || strcmp(key, "const") == 0) return 0;
    if (among(key, numbers)) {
        if (cJSON_IsNumber(v) && isfinite(v->valuedouble) &&
            (v->valuedouble > 0 || strcmp(key, "multipleOf") != 0))
            return 0;
        return no(j, "'%.60s' is not a number that it can be", key);
    }
    if (among(key, maps))
        return cJSON_IsObject(v) ? check_each(j, v, depth) : no(j, "'%.60s' is not an object", key);
    if (among(key, lists))
        return cJSON_IsArray(v) && v->child ? check_each(j, v, depth)
                                            : no(j, "'%.60s' is not a list of schemas", key);
    if (among(key, schemas)) return check(j, v, depth + 1);
    if (strcmp(key, "type") == 0) return check_type(j, v);
    if (strcmp(key, "pattern") == 0) return check_pattern(j, v);
    if (strcmp(key, "uniqueItems") == 0)
        return cJSON_IsBool(v) ? 0 : no(j, "'uniqueItems' is not true or false");
    if (strcmp(key, "enum") == 0) return cJSON_IsArray(v) ? 0 : no(j, "'enum' is not a list");
    if (strcmp(key, "$ref") == 0)
        return cJSON_IsString(v) && resolve(j->root, v->valuestring)
                   ? 0
                   : no(j, "'$ref' names nothing in this schema");
    if (strcmp(key, "required") == 0) {
        const cJSON *name;
        cJSON_ArrayForEach(name, v)
        {
            if (!cJSON_IsString(name)) return no(j, "'required' is not a list of names");
        }
        return cJSON_IsArray(v) ? 0 : no(j, "'required' is not a list of names");
    }
    return no(j, "keyword '%.60s' is not supported", key);
}

static int check(struct judge *j, const cJSON *s, int depth)
{
    if (depth > MAX_DEPTH) return no(j, "nested too deeply");
    if (cJSON_IsBool(s)) return 0;
    if (!cJSON_IsObject(s)) return no(j, "a schema is an object, true or false");
    const cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        int rc = check_keyword(j, v, depth);
        if (rc) return rc;
    }
    return 0;
}

int sl_serve_schema_check(const cJSON *schema, char *why, size_t n)
{
    struct judge j = {.root = schema, .why = why, .n = n, .where = "schema"};
    return check(&j, schema, 0);
}

/* ---------------------------------------------------------------- a value against it */

static bool has_type(const cJSON *v, const char *t)
{
    if (strcmp(t, "null") == 0) return cJSON_IsNull(v);
    if (strcmp(t, "boolean") == 0) return cJSON_IsBool(v);
    if (strcmp(t, "number") == 0) return cJSON_IsNumber(v);
    if (strcmp(t, "integer") == 0)
        return cJSON_IsNumber(v) && v->valuedouble == floor(v->valuedouble);
    if (strcmp(t, "string") == 0) return cJSON_IsString(v);
    if (strcmp(t, "array") == 0) return cJSON_IsArray(v);
    return cJSON_IsObject(v);
}

static int match_type(struct judge *j, const cJSON *t, const cJSON *v)
{
    if (cJSON_IsString(t))
        return has_type(v, t->valuestring) ? 0 : no(j, "is not of type %s", t->valuestring);
    const cJSON *one;
    cJSON_ArrayForEach(one, t)
    {
        if (has_type(v, one->valuestring)) return 0;
    }
    return no(j, "is of none of the types asked for");
}

static size_t characters(const char *s)
{
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static int match_pattern(struct judge *j, const char *pattern, const char *text)
{
    pcre2_code *code = compile(pattern);
    pcre2_match_data *md = code ? pcre2_match_data_create_from_pattern(code, NULL) : NULL;
    pcre2_match_context *mc = md ? pcre2_match_context_create(NULL) : NULL;
    int rc = -1;
    if (mc) {
        pcre2_set_match_limit(mc, MATCH_LIMIT);
        rc = pcre2_match(code, (PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, 0, 0, md, mc);
    }
    pcre2_match_context_free(mc);
    pcre2_match_data_free(md);
    pcre2_code_free(code);
    if (rc >= 0) return 0;
    if (rc != PCRE2_ERROR_NOMATCH) j->gave_up = true;
    return no(j, "does not match the pattern");
}

static double number(const cJSON *s, const char *key, double otherwise)
{
    const cJSON *v = get(s, key);
    return v ? v->valuedouble : otherwise;
}

static int match_size(struct judge *j, const cJSON *s, double n, const char *min, const char *max)
{
    if (n < number(s, min, 0)) return no(j, "is below %s", min);
    if (n > number(s, max, INFINITY)) return no(j, "is above %s", max);
    return 0;
}

static int match_number(struct judge *j, const cJSON *s, double v)
{
    int rc = 0;
    if (v < number(s, "minimum", -INFINITY)) rc = no(j, "is below the minimum");
    if (v > number(s, "maximum", INFINITY)) rc = no(j, "is above the maximum");
    if (v <= number(s, "exclusiveMinimum", -INFINITY)) rc = no(j, "is not above the minimum");
    if (v >= number(s, "exclusiveMaximum", INFINITY)) rc = no(j, "is not below the maximum");
    double of = number(s, "multipleOf", 0);
    if (of > 0 && fabs(v / of - round(v / of)) > 1e-9) rc = no(j, "is not a multiple");
    return rc;
}

static int match(struct judge *j, const cJSON *s, const cJSON *v, int depth);

/* Runs match with the path grown by one step. */
static int match_at(struct judge *j, const cJSON *s, const cJSON *v, int depth, const char *key,
                    int index)
{
    size_t n = strlen(j->where);
    if (key)
        (void)snprintf(j->where + n, sizeof j->where - n, ".%.40s", key);
    else
        (void)snprintf(j->where + n, sizeof j->where - n, "[%d]", index);
    int rc = match(j, s, v, depth + 1);
    j->where[n] = 0;
    return rc;
}

static int match_object(struct judge *j, const cJSON *s, const cJSON *v, int depth)
{
    const cJSON *properties = get(s, "properties");
    const cJSON *others = get(s, "additionalProperties");
    const cJSON *one;
    cJSON_ArrayForEach(one, get(s, "required"))
    {
        if (!get(v, one->valuestring)) return no(j, "lacks '%.60s'", one->valuestring);
    }
    int rc = match_size(j, s, cJSON_GetArraySize(v), "minProperties", "maxProperties");
    for (one = v->child; one && !rc; one = one->next) {
        const cJSON *ps = get(properties, one->string);
        if (!ps && cJSON_IsFalse(others))
            rc = no(j, "has '%.60s', which is not allowed", one->string);
        if (!ps) ps = others;
        if (ps && !rc) rc = match_at(j, ps, one, depth, one->string, 0);
    }
    return rc;
}

static int match_array(struct judge *j, const cJSON *s, const cJSON *v, int depth)
{
    const cJSON *prefix = get(s, "prefixItems");
    const cJSON *items = get(s, "items");
    int rc = match_size(j, s, cJSON_GetArraySize(v), "minItems", "maxItems");
    const cJSON *want = prefix ? prefix->child : NULL;
    int i = 0;
    for (const cJSON *one = v->child; one && !rc; one = one->next, i++) {
        const cJSON *is = want ? want : items;
        if (is) rc = match_at(j, is, one, depth, NULL, i);
        if (want) want = want->next;
        if (!rc && cJSON_IsTrue(get(s, "uniqueItems"))) {
            for (const cJSON *other = one->next; other && !rc; other = other->next) {
                if (++j->steps > MAX_STEPS) return no(j, "is too long to be compared");
                if (cJSON_Compare(one, other, 1)) rc = no(j, "has an item twice");
            }
        }
    }
    return rc;
}

static int match_any(struct judge *j, const cJSON *s, const cJSON *v, int depth)
{
    const cJSON *one;
    const cJSON *all = get(s, "allOf");
    const cJSON *any = get(s, "anyOf");
    const cJSON *exactly = get(s, "oneOf");
    const cJSON *never = get(s, "not");
    int n = 0;
    cJSON_ArrayForEach(one, all)
    {
        int rc = match(j, one, v, depth + 1);
        if (rc) return rc;
    }
    cJSON_ArrayForEach(one, any)
    {
        if (!n) n = !match(j, one, v, depth + 1);
    }
    if (any && !n) return no(j, "matches nothing of anyOf");
    n = 0;
    cJSON_ArrayForEach(one, exactly)
    {
        n += !match(j, one, v, depth + 1);
    }
    if (exactly && n != 1) return no(j, "matches %d of oneOf", n);
    if (never && !match(j, never, v, depth + 1)) return no(j, "matches what it must not");
    return 0;
}

static int match_choice(struct judge *j, const cJSON *s, const cJSON *v)
{
    const cJSON *list = get(s, "enum");
    const cJSON *only = get(s, "const");
    const cJSON *one;
    if (only && !cJSON_Compare(only, v, 1)) return no(j, "is not the constant asked for");
    cJSON_ArrayForEach(one, list)
    {
        if (cJSON_Compare(one, v, 1)) return 0;
    }
    return list ? no(j, "is not one of the values asked for") : 0;
}

static int match(struct judge *j, const cJSON *s, const cJSON *v, int depth)
{
    if (depth > MAX_DEPTH || ++j->steps > MAX_STEPS || j->gave_up) {
        j->gave_up = true;
        return no(j, "is nested too deeply to be checked");
    }
    if (cJSON_IsBool(s)) return cJSON_IsTrue(s) ? 0 : no(j, "is not allowed");
    const cJSON *ref = get(s, "$ref");
    const cJSON *type = get(s, "type");
    const cJSON *pattern = get(s, "pattern");
    int rc = 0;
    if (ref) rc = match(j, resolve(j->root, ref->valuestring), v, depth + 1);
    if (!rc && type) rc = match_type(j, type, v);
    if (!rc) rc = match_choice(j, s, v);
    if (!rc && cJSON_IsNumber(v)) rc = match_number(j, s, v->valuedouble);
    if (!rc && cJSON_IsString(v)) {
        rc = match_size(j, s, (double)characters(v->valuestring), "minLength", "maxLength");
        if (!rc && pattern) rc = match_pattern(j, pattern->valuestring, v->valuestring);
    }
    if (!rc && cJSON_IsObject(v)) rc = match_object(j, s, v, depth);
    if (!rc && cJSON_IsArray(v)) rc = match_array(j, s, v, depth);
    return rc ? rc : match_any(j, s, v, depth);
}

int sl_serve_schema_match(const cJSON *schema, const cJSON *value, char *why, size_t n)
{
    struct judge j = {.root = schema, .why = why, .n = n, .where = "answer"};
    int rc = match(&j, schema, value, 0);
    if (!rc && j.gave_up) rc = no(&j, "is nested too deeply to be checked");
    return rc;
}

int sl_serve_schema_judge(const cJSON *schema, const char *text, size_t len, char *why, size_t n)
{
    const char *end = text;
    cJSON *v = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    while (v && end < text + len && *end && strchr(" \t\r\n", *end)) end++;
    int rc = 0;
    if (!v || end != text + len) {
        (void)snprintf(why, n, "answer: not JSON from byte %zu on", (size_t)(end - text));
        rc = -1;
    } else if (schema) {
        rc = sl_serve_schema_match(schema, v, why, n);
    } else if (!cJSON_IsObject(v)) {
        (void)snprintf(why, n, "answer: JSON, but no object");
        rc = -1;
    }
    cJSON_Delete(v);
    return rc;
}
