/* The header is parsed by cJSON and walked once, front to back: looking 5,404 names up in its linked
 * list would be quadratic. Numbers are exact up to 2^53, past any file.
 *
 * How a fault is told: sorted by offset, the first tensor that does not start where the one before it
 * ended is named as an overlap or a hole, or as out of range when it reaches past the file. Only when
 * the chain is whole can the file itself be short or long. */
#include "convert/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/size.h"

#define EXACT_MAX 9007199254740992.0 /* 2^53 */

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
    [SL_DT_BF16] = {"BF16", 2},
    [SL_DT_F32] = {"F32", 4},
    [SL_DT_F16] = {"F16", 2},
    [SL_DT_U8] = {"U8", 1},
};
#define N_DTYPES ((int)(sizeof dtypes / sizeof *dtypes))

const char *sl_dtype_name(int dtype)
{
    return dtype >= SL_DT_BF16 && dtype < N_DTYPES ? dtypes[dtype].name : "?";
}

int sl_dtype_bytes(int dtype)
{
    return dtype >= SL_DT_BF16 && dtype < N_DTYPES ? dtypes[dtype].bytes : 0;
}

const char *sl_dtype_shape_text(char *buf, size_t n, int dtype, int n_dims, const int64_t *shape)
{
    int at = snprintf(buf, n, "%s [", sl_dtype_name(dtype));
    for (int i = 0; i < n_dims && at > 0 && (size_t)at < n; i++)
        at += snprintf(buf + at, n - (size_t)at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (at > 0 && (size_t)at < n) snprintf(buf + at, n - (size_t)at, "]");
    return buf;
}

struct in {
    const char *file, *tensor;
    struct sl_err *err;
};

static bool exact(const cJSON *v, uint64_t *out)
{
    if (!cJSON_IsNumber(v)) return false;
    double d = v->valuedouble;
    if (!(d >= 0 && d <= EXACT_MAX) || d != floor(d)) return false;
    *out = (uint64_t)d;
    return true;
}

static int read_dtype(const struct in *in, const cJSON *v, struct sl_src_tensor *t)
{
    if (!v || !cJSON_IsString(v))
        return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor, "no dtype");
    for (int d = SL_DT_BF16; d < N_DTYPES; d++)
        if (!strcmp(v->valuestring, dtypes[d].name)) t->dtype = (uint8_t)d;
    if (t->dtype) return 0;
    return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor,
                   "dtype \"%.40s\" is not one of BF16, F32, F16, U8", v->valuestring);
}

/* Dimensions of 1..4 axes, each at least 1; *elements is their product. */
static int read_shape(const struct in *in, const cJSON *v, struct sl_src_tensor *t,
                      uint64_t *elements)
{
    if (!v || !cJSON_IsArray(v))
        return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor, "no shape");
    *elements = 1;
    for (const cJSON *d = v->child; d; d = d->next) {
        uint64_t n = 0;
        if (t->n_dims == 4)
            return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor,
                           "shape has more than 4 dimensions");
        if (!exact(d, &n) || n == 0)
            return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor,
                           "shape: dimension %d is not a positive integer", t->n_dims);
        if (!sl_mul_u64(*elements, n, elements))
            return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor,
                           "shape: the number of elements overflows");
        t->shape[t->n_dims++] = (int64_t)n;
    }
    if (!t->n_dims) return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor, "shape is empty");
    return 0;
}

static int read_offsets(const struct in *in, const cJSON *v, struct sl_src_tensor *t,
                        uint64_t elements, uint64_t data_start)
{
    uint64_t from = 0;
    uint64_t to = 0;
    const cJSON *a = v && cJSON_IsArray(v) ? v->child : NULL;
    const cJSON *b = a ? a->next : NULL;
    if (!b || b->next || !exact(a, &from) || !exact(b, &to))
        return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor,
                       "data_offsets are not two exact integers");
    if (to < from)
        return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor,
                       "data_offsets [%llu, %llu] run backwards", (unsigned long long)from,
                       (unsigned long long)to);
    uint64_t bytes = 0;
    bool fits = sl_mul_u64(elements, (uint64_t)sl_dtype_bytes(t->dtype), &bytes);
    if (!fits || bytes != to - from) {
        char what[128];
        sl_dtype_shape_text(what, sizeof what, t->dtype, t->n_dims, t->shape);
        return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor,
                       "data_offsets span %llu bytes, %s needs %s%llu",
                       (unsigned long long)(to - from), what, fits ? "" : "more than ",
                       fits ? (unsigned long long)bytes : (unsigned long long)UINT64_MAX);
    }
    t->offset = data_start + from; /* both below 2^53 */
    t->bytes = bytes;
    return 0;
}

static int read_tensor(const struct in *in, const cJSON *node, struct sl_src_tensor *t,
                       uint64_t data_start)
{
    const cJSON *dtype = NULL;
    const cJSON *shape = NULL;
    const cJSON *offsets = NULL;
    if (!cJSON_IsObject(node))
        return sl_fail(in->err, SL_E_SOURCE, in->file, in->tensor, "must be an object");
    for (const cJSON *v = node->child; v; v = v->next) {
        if (!strcmp(v->string, "dtype")) dtype = v;
        if (!strcmp(v->string, "shape")) shape = v;
        if (!strcmp(v->string, "data_offsets")) offsets = v;
    }
    uint64_t elements = 0;
    int rc = read_dtype(in, dtype, t);
    if (!rc) rc = read_shape(in, shape, t, &elements);
    if (!rc) rc = read_offsets(in, offsets, t, elements, data_start);
    return rc;
}

static int by_offset(const void *a, const void *b)
{
    const struct sl_src_tensor *x = a;
    const struct sl_src_tensor *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return strcmp(x->name, y->name); /* equal offsets are a fault; name the same one every time */
}

static int check_chain(const struct sl_src_tensor *t, uint32_t n, uint64_t data_start,
                       uint64_t file_bytes, const char *file, struct sl_err *err)
{
    uint64_t at = data_start;
    uint64_t data = file_bytes - data_start;
    for (uint32_t i = 0; i < n; i++) {
        if (t[i].offset == at) {
            at += t[i].bytes; /* sums below 2^53 each, checked against the next offset */
            continue;
        }
        unsigned long long from = t[i].offset - data_start;
        unsigned long long to = from + t[i].bytes;
        if (t[i].offset < at)
            return sl_fail(err, SL_E_SOURCE, file, t[i].name,
                           "data_offsets [%llu, %llu] overlap %s, which ends at %llu", from, to,
                           t[i - 1].name, (unsigned long long)(at - data_start));
        /* A tensor that was sent past the end leaves a hole where it was: name the tensor. */
        const struct sl_src_tensor *last = &t[n - 1];
        uint64_t end = last->offset - data_start + last->bytes;
        if (end > data)
            return sl_fail(err, SL_E_SOURCE, file, last->name,
                           "data_offsets [%llu, %llu] are out of range, the file holds %llu bytes "
                           "of data",
                           (unsigned long long)(end - last->bytes), (unsigned long long)end,
                           (unsigned long long)data);
        return sl_fail(err, SL_E_SOURCE, file, t[i].name,
                       "data_offsets [%llu, %llu] leave a hole of %llu bytes before it", from, to,
                       (unsigned long long)(t[i].offset - at));
    }
    if (at > file_bytes)
        return sl_fail(err, SL_E_SOURCE, file, NULL,
                       "%llu bytes, %llu short of the %llu that its header describes: the file is "
                       "cut",
                       (unsigned long long)file_bytes, (unsigned long long)(at - file_bytes),
                       (unsigned long long)at);
    if (at < file_bytes)
        return sl_fail(err, SL_E_SOURCE, file, NULL,
                       "%llu bytes, %llu more than the %llu that its header describes: trailing "
                       "bytes",
                       (unsigned long long)file_bytes, (unsigned long long)(file_bytes - at),
                       (unsigned long long)at);
    return 0;
}

static int check_metadata(const cJSON *node, const char *file, struct sl_err *err)
{
    bool ok = cJSON_IsObject(node);
    for (const cJSON *v = ok ? node->child : NULL; v; v = v->next) ok = ok && cJSON_IsString(v);
    return ok ? 0 : sl_fail(err, SL_E_SOURCE, file, "__metadata__", "must map names to strings");
}

/* Room for all tensors and the bytes of all names, NUL included. */
static int measure(const cJSON *tree, uint32_t *n, size_t *name_bytes, const char *file,
                   struct sl_err *err)
{
    *n = 0;
    *name_bytes = 0;
    if (!cJSON_IsObject(tree))
        return sl_fail(err, SL_E_SOURCE, file, "header", "must be an object");
    for (const cJSON *v = tree->child; v; v = v->next) {
        if (!strcmp(v->string, "__metadata__")) {
            int rc = check_metadata(v, file, err);
            if (rc) return rc;
            continue;
        }
        size_t len = strlen(v->string);
        if (!len || len > SL_TENSOR_NAME_MAX)
            return sl_fail(err, SL_E_SOURCE, file, "header",
                           "a tensor name of %zu bytes (\"%.32s...\"), 1 to %d are allowed", len,
                           v->string, SL_TENSOR_NAME_MAX);
        *name_bytes += len + 1;
        ++*n; /* at most 128 MiB of header: far below 2^32 */
    }
    return 0;
}

int sl_safetensors_parse(struct sl_src_tensor **tensors, uint32_t *n_tensors, char **names,
                         const char *json, size_t len, uint64_t data_start, uint64_t file_bytes,
                         uint32_t shard, const char *file, struct sl_err *err)
{
    struct sl_src_tensor *list = NULL;
    char *blob = NULL;
    cJSON *tree;
    int rc = sl_json_parse(&tree, json, len, file, SL_E_SOURCE, err);
    if (rc) return rc;
    uint32_t n = 0;
    size_t name_bytes = 0;
    rc = measure(tree, &n, &name_bytes, file, err);
    if (rc) goto fail;
    list = calloc((size_t)n + 1, sizeof *list);
    blob = malloc(name_bytes + 1);
    if (!list || !blob) {
        rc = sl_fail(err, SL_E_NOMEM, file, "header", "out of memory for %u tensors", n);
        goto fail;
    }
    struct sl_src_tensor *t = list;
    char *at = blob;
    for (const cJSON *v = tree->child; v; v = v->next) {
        if (!strcmp(v->string, "__metadata__")) continue;
        size_t bytes = strlen(v->string) + 1;
        memcpy(at, v->string, bytes);
        t->name = at;
        t->shard = shard;
        at += bytes;
        struct in in = {file, t->name, err};
        rc = read_tensor(&in, v, t, data_start);
        if (rc) goto fail;
        t++;
    }
    qsort(list, n, sizeof *list, by_offset);
    rc = check_chain(list, n, data_start, file_bytes, file, err);
    if (rc) goto fail;
    cJSON_Delete(tree);
    *tensors = list;
    *n_tensors = n;
    *names = blob;
    return 0;
fail:
    cJSON_Delete(tree);
    free(list);
    free(blob);
    return rc;
}
