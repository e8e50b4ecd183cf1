/* cJSON made strict.
 *
 * cJSON alone is lenient where a format must not be: it cuts a string at an escaped NUL, keeps both
 * of two equal keys (readers then differ in which one they see), ignores what follows the value, and
 * matches names without regard to case. All of that is refused or avoided here, once, at parse time.
 * Lookup in an object is a walk of a list: fine for our few dozen keys; tables of half a million
 * names are walked once into a strmap by their reader. */
#define _GNU_SOURCE
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/strmap.h"

#define EXACT_MAX 9007199254740992.0 /* 2^53: past it a double skips integers */

static void position(const char *text, const char *at, size_t *line, size_t *column)
{
    *line = 1;
    const char *start = text;
    for (const char *p = text; p < at; p++) {
        if (*p != '\n') continue;
        ++*line;
        start = p + 1;
    }
    *column = (size_t)(at - start) + 1;
}

/* First NUL, raw or escaped; cJSON would end the string there and compare only the part before. */
static const char *find_nul(const char *text, size_t len)
{
    const char *raw = memchr(text, '\0', len);
    const char *end = raw ? raw : text + len;
    for (const char *p = text; p < end && (p = memchr(p, '\\', (size_t)(end - p))); p += 2)
        if (end - p >= 6 && !memcmp(p, "\\u0000", 6)) return p;
    return raw;
}

/* Equal keys inside one object, anywhere in the tree. Depth is bounded by cJSON. */
static int refuse_twins(const cJSON *node, const char *file, int code, struct sl_err *err)
{
    int rc = 0;
    struct sl_strmap *seen = NULL;
    if (cJSON_IsObject(node) && node->child && node->child->next) {
        seen = sl_strmap_open((size_t)cJSON_GetArraySize(node));
        if (!seen) return sl_fail(err, SL_E_NOMEM, file, NULL, "out of memory");
    }
    for (const cJSON *c = node->child; c && !rc; c = c->next) {
        int put = seen ? sl_strmap_put(seen, c->string, strlen(c->string), 0) : 1;
        if (put < 0) rc = sl_fail(err, SL_E_NOMEM, file, NULL, "out of memory");
        if (put == 0) rc = sl_fail(err, code, file, c->string, "appears twice in one object");
        if (!rc && c->child) rc = refuse_twins(c, file, code, err);
    }
    sl_strmap_close(seen);
    return rc;
}

int sl_json_parse(cJSON **out, const char *text, size_t len, const char *file, int code,
                  struct sl_err *err)
{
    *out = NULL;
    size_t line;
    size_t column;
    const char *nul = find_nul(text, len);
    if (nul) {
        position(text, nul, &line, &column);
        return sl_fail(err, code, file, NULL, "line %zu, column %zu: NUL character", line, column);
    }
    const char *end = NULL;
    cJSON *tree = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    if (!tree) {
        position(text, end && end >= text && end <= text + len ? end : text, &line, &column);
        return sl_fail(err, code, file, NULL, "not JSON: line %zu, column %zu", line, column);
    }
    while (end < text + len && strchr(" \t\r\n", *end)) end++;
    int rc = 0;
    if (end < text + len) {
        position(text, end, &line, &column);
        rc = sl_fail(err, code, file, NULL, "line %zu, column %zu: text after the JSON value", line,
                     column);
    }
    if (!rc) rc = refuse_twins(tree, file, code, err);
    if (rc) {
        cJSON_Delete(tree);
        return rc;
    }
    *out = tree;
    return 0;
}

int sl_json_read(cJSON **out, const char *path, uint64_t max_bytes, int code, struct sl_err *err)
{
    char *text;
    size_t len;
    *out = NULL;
    int rc = sl_read_file(&text, &len, path, max_bytes, code, err);
    if (rc) return rc;
    rc = sl_json_parse(out, text, len, path, code, err);
    free(text);
    return rc;
}

/* "parent.key": a tree does not know its whole path, but the parent's name tells two apart. */
static const char *key_path(char buf[256], const cJSON *obj, const char *key)
{
    if (!obj || !obj->string || !*obj->string) return key;
    snprintf(buf, 256, "%s.%s", obj->string, key);
    return buf;
}

static const char *show(char buf[96], const cJSON *v)
{
    if (cJSON_IsNumber(v)) {
        bool whole = v->valuedouble == floor(v->valuedouble) && fabs(v->valuedouble) < 1e17;
        snprintf(buf, 96, whole ? "%.0f" : "%.17g", v->valuedouble);
    } else if (cJSON_IsString(v)) {
        snprintf(buf, 96, "\"%.60s\"%s", v->valuestring, strlen(v->valuestring) > 60 ? "..." : "");
    } else {
        const char *name = cJSON_IsObject(v)  ? "an object"
                           : cJSON_IsArray(v) ? "an array"
                           : cJSON_IsTrue(v)  ? "true"
                           : cJSON_IsFalse(v) ? "false"
                                              : "null";
        snprintf(buf, 96, "%s", name);
    }
    return buf;
}

static int wrong(const cJSON *obj, const char *key, const cJSON *v, const char *want,
                 const char *file, int code, struct sl_err *err)
{
    char path[256];
    char found[96];
    return sl_fail(err, code, file, key_path(path, obj, key), "must be %s, found %s", want,
                   show(found, v));
}

/* The member, whatever its type; NULL after an error. */
static const cJSON *member(const cJSON *obj, const char *key, const char *file, int code,
                           struct sl_err *err)
{
    char path[256];
    const cJSON *v = cJSON_IsObject(obj) ? cJSON_GetObjectItemCaseSensitive(obj, key) : NULL;
    if (!v) sl_fail(err, code, file, key_path(path, obj, key), "missing");
    return v;
}

static bool is_exact(const cJSON *v)
{
    return cJSON_IsNumber(v) && v->valuedouble == floor(v->valuedouble) &&
           fabs(v->valuedouble) <= EXACT_MAX;
}

int sl_json_int(const cJSON *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                const char *file, int code, struct sl_err *err)
{
    const cJSON *v = member(obj, key, file, code, err);
    if (!v) return code;
    if (is_exact(v)) {
        int64_t n = (int64_t)v->valuedouble;
        if (n >= min && n <= max) {
            *out = n;
            return 0;
        }
    }
    char want[96];
    snprintf(want, sizeof want, "an integer from %lld to %lld", (long long)min, (long long)max);
    return wrong(obj, key, v, want, file, code, err);
}

int sl_json_u64(const cJSON *obj, const char *key, uint64_t max, uint64_t *out, const char *file,
                int code, struct sl_err *err)
{
    const cJSON *v = member(obj, key, file, code, err);
    if (!v) return code;
    if (is_exact(v) && v->valuedouble >= 0) {
        uint64_t n = (uint64_t)v->valuedouble;
        if (n <= max) {
            *out = n;
            return 0;
        }
    }
    char want[96];
    uint64_t top = max < (uint64_t)EXACT_MAX ? max : (uint64_t)EXACT_MAX;
    snprintf(want, sizeof want, "an integer from 0 to %llu", (unsigned long long)top);
    return wrong(obj, key, v, want, file, code, err);
}

int sl_json_f64(const cJSON *obj, const char *key, double min, double max, double *out,
                const char *file, int code, struct sl_err *err)
{
    const cJSON *v = member(obj, key, file, code, err);
    if (!v) return code;
    if (cJSON_IsNumber(v) && isfinite(v->valuedouble) && v->valuedouble >= min &&
        v->valuedouble <= max) {
        *out = v->valuedouble;
        return 0;
    }
    char want[96];
    snprintf(want, sizeof want, "a number from %g to %g", min, max);
    return wrong(obj, key, v, want, file, code, err);
}

int sl_json_bool(const cJSON *obj, const char *key, bool *out, const char *file, int code,
                 struct sl_err *err)
{
    const cJSON *v = member(obj, key, file, code, err);
    if (!v) return code;
    if (!cJSON_IsBool(v)) return wrong(obj, key, v, "true or false", file, code, err);
    *out = cJSON_IsTrue(v);
    return 0;
}

int sl_json_str(const cJSON *obj, const char *key, const char **out, const char *file, int code,
                struct sl_err *err)
{
    const cJSON *v = member(obj, key, file, code, err);
    if (!v) return code;
    if (!cJSON_IsString(v)) return wrong(obj, key, v, "a string", file, code, err);
    *out = v->valuestring;
    return 0;
}

int sl_json_obj(const cJSON *obj, const char *key, const cJSON **out, const char *file, int code,
                struct sl_err *err)
{
    const cJSON *v = member(obj, key, file, code, err);
    if (!v) return code;
    if (!cJSON_IsObject(v)) return wrong(obj, key, v, "an object", file, code, err);
    *out = v;
    return 0;
}

int sl_json_arr(const cJSON *obj, const char *key, const cJSON **out, const char *file, int code,
                struct sl_err *err)
{
    const cJSON *v = member(obj, key, file, code, err);
    if (!v) return code;
    if (!cJSON_IsArray(v)) return wrong(obj, key, v, "an array", file, code, err);
    *out = v;
    return 0;
}
