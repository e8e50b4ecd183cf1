/* Tensor tables: from JSON objects to sorted arrays whose every number has been checked. */
#define _GNU_SOURCE
#include "offload/pack_tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/size.h"

/* JSON numbers are doubles: integers are exact up to here. */
#define EXACT_MAX ((uint64_t)1 << 53)

static int read_shape(struct sl_tensor *t, const cJSON *obj, const char *file, struct sl_err *err)
{
    const cJSON *list = NULL;
    int rc = sl_json_arr(obj, "shape", &list, file, SL_E_PACK, err);
    if (rc) return rc;
    for (const cJSON *v = list->child; v; v = v->next) {
        if (t->n_dims == 4)
            return sl_fail(err, SL_E_PACK, file, t->name, "shape has more than 4 dimensions");
        /* The bound of struct sl_mat's int, so that rows and columns need no second look. */
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 1 && v->valuedouble <= INT32_MAX) ||
            v->valuedouble != floor(v->valuedouble))
            return sl_fail(err, SL_E_PACK, file, t->name,
                           "shape[%d] must be an integer from 1 to %d", t->n_dims, INT32_MAX);
        t->shape[t->n_dims++] = (int64_t)v->valuedouble;
    }
    if (!t->n_dims) return sl_fail(err, SL_E_PACK, file, t->name, "shape is empty");
    return 0;
}

static int read_crc(struct sl_tensor *t, const cJSON *obj, const char *file, struct sl_err *err)
{
    const char *hex = NULL;
    int rc = sl_json_str(obj, "crc32", &hex, file, SL_E_PACK, err);
    if (rc) return rc;
    if (strlen(hex) != 8 || strspn(hex, "0123456789abcdef") != 8)
        return sl_fail(err, SL_E_PACK, file, t->name,
                       "crc32 must be 8 lower-case hex digits, found \"%.16s\"", hex);
    t->crc32 = (uint32_t)strtoul(hex, NULL, 16);
    return 0;
}

/* Bytes that format and shape give: all leading dimensions are rows. */
static int expected_bytes(const struct sl_tensor *t, uint64_t *bytes, const char *file,
                          struct sl_err *err)
{
    uint64_t rows = 1;
    uint64_t row_bytes = sl_fmt_row_bytes(t->fmt, (uint64_t)t->shape[t->n_dims - 1]);
    bool ok = true;
    for (int i = 0; i < t->n_dims - 1 && ok; i++)
        ok = sl_mul_u64(rows, (uint64_t)t->shape[i], &rows);
    if (!ok || !sl_mul_u64(rows, row_bytes, bytes) || !*bytes)
        return sl_fail(err, SL_E_PACK, file, t->name, "shape is impossible in format %s",
                       sl_fmt_name(t->fmt));
    return 0;
}

static bool is_plain(enum sl_fmt fmt)
{
    return fmt == SL_FMT_F32 || fmt == SL_FMT_BF16 || fmt == SL_FMT_F16 || fmt == SL_FMT_U8;
}

static int read_tensor(struct sl_tensor *t, const cJSON *obj, const char *data, uint64_t data_bytes,
                       bool verbatim, const char *file, struct sl_err *err)
{
    const char *fmt = NULL;
    uint64_t want = 0;
    t->name = obj->string;
    if (!cJSON_IsObject(obj)) return sl_fail(err, SL_E_PACK, file, t->name, "must be an object");
    int rc = sl_json_str(obj, "fmt", &fmt, file, SL_E_PACK, err);
    if (rc) return rc;
    t->fmt = sl_fmt_by_name(fmt);
    if (!is_plain(t->fmt) && (verbatim || !sl_fmt_is_trunk(t->fmt)))
        return sl_fail(err, SL_E_PACK, file, t->name, "fmt \"%.16s\" is not one that %s may hold",
                       fmt, data);
    rc = read_shape(t, obj, file, err);
    if (!rc) rc = sl_json_u64(obj, "offset", EXACT_MAX, &t->offset, file, SL_E_PACK, err);
    if (!rc) rc = sl_json_u64(obj, "bytes", EXACT_MAX, &t->bytes, file, SL_E_PACK, err);
    if (!rc) rc = read_crc(t, obj, file, err);
    if (!rc) rc = expected_bytes(t, &want, file, err);
    if (rc) return rc;
    if (t->bytes != want)
        return sl_fail(err, SL_E_PACK, file, t->name,
                       "bytes %llu, but its shape in format %s takes %llu",
                       (unsigned long long)t->bytes, fmt, (unsigned long long)want);
    if (t->offset % SL_PAGE)
        return sl_fail(err, SL_E_PACK, file, t->name, "offset %llu is not a multiple of %u",
                       (unsigned long long)t->offset, SL_PAGE);
    if (t->offset > data_bytes || t->bytes > data_bytes - t->offset)
        return sl_fail(err, SL_E_PACK, file, t->name, "%llu bytes at %llu, but %s has %llu",
                       (unsigned long long)t->bytes, (unsigned long long)t->offset, data,
                       (unsigned long long)data_bytes);
    return 0;
}

static int by_place(const void *pa, const void *pb)
{
    const struct sl_tensor *a = pa;
    const struct sl_tensor *b = pb;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Neighbours in file order: apart, or the same bytes under two names. */
static int check_overlap(const struct sl_tensor *t, int n, const char *file, struct sl_err *err)
{
    for (int i = 1; i < n; i++) {
        const struct sl_tensor *a = &t[i - 1];
        const struct sl_tensor *b = &t[i];
        bool same = a->offset == b->offset && a->bytes == b->bytes && a->crc32 == b->crc32;
        if (b->offset < a->offset + a->bytes && !same)
            return sl_fail(err, SL_E_PACK, file, b->name, "offset %llu lies inside %s",
                           (unsigned long long)b->offset, a->name);
    }
    return 0;
}

int sl_pack_read_tensors(struct sl_tensor **out, int *n, const cJSON *obj, const char *data,
                         uint64_t data_bytes, bool verbatim, const char *file, struct sl_err *err)
{
    int count = cJSON_GetArraySize(obj); /* bounded by the size that pack.json may have */
    struct sl_tensor *t = calloc(count ? (size_t)count : 1, sizeof *t);
    if (!t) return sl_fail(err, SL_E_NOMEM, file, NULL, "out of memory");
    int rc = 0;
    int i = 0;
    for (const cJSON *v = obj->child; v && !rc; v = v->next)
        rc = read_tensor(&t[i++], v, data, data_bytes, verbatim, file, err);
    if (!rc) {
        qsort(t, (size_t)count, sizeof *t, by_place);
        rc = check_overlap(t, count, file, err);
    }
    if (rc) {
        free(t);
        return rc;
    }
    *out = t;
    *n = count;
    return 0;
}

int sl_pack_name_tensors(struct sl_pack *p, const char *file, struct sl_err *err)
{
    int total = p->n_tensors + p->n_vision;
    p->by_name = sl_strmap_open((size_t)total);
    if (!p->by_name) return sl_fail(err, SL_E_NOMEM, file, NULL, "out of memory");
    for (int i = 0; i < total; i++) {
        struct sl_tensor *t = i < p->n_tensors ? &p->tensors[i] : &p->vision[i - p->n_tensors];
        int put = sl_strmap_put(p->by_name, t->name, strlen(t->name) + 1, (uint32_t)i);
        if (put < 0) return sl_fail(err, SL_E_NOMEM, file, NULL, "out of memory");
        if (put == 0)
            return sl_fail(err, SL_E_PACK, file, t->name, "appears twice among the tensors");
    }
    /* Keys move while the map grows: only now are they where they stay. Their NUL is part of them. */
    for (int i = 0; i < total; i++) {
        struct sl_tensor *t = i < p->n_tensors ? &p->tensors[i] : &p->vision[i - p->n_tensors];
        size_t len;
        t->name = sl_strmap_key(p->by_name, (size_t)i, &len);
    }
    return 0;
}

int sl_pack_layer_of(const char *name)
{
    static const char prefix[] = "model.layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
    const char *digits = name + sizeof prefix - 1;
    size_t n = strspn(digits, "0123456789");
    if (n < 1 || n > 4 || digits[n] != '.' || (digits[0] == '0' && n > 1)) return -2;
    return atoi(digits);
}

int sl_pack_check_ranges(const struct sl_pack *p, const char *file, struct sl_err *err)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sl_tensor *t = &p->tensors[i];
        int layer = sl_pack_layer_of(t->name);
        if (layer == -2 || layer >= p->cfg.n_layers)
            return sl_fail(err, SL_E_PACK, file, t->name, "no such layer: the model has %d",
                           p->cfg.n_layers);
        uint64_t at = layer < 0 ? p->globals_range.offset : p->layer_range[layer].offset;
        uint64_t bytes = layer < 0 ? p->globals_range.bytes : p->layer_range[layer].bytes;
        if (t->offset < at || t->bytes > bytes || t->offset - at > bytes - t->bytes)
            return sl_fail(err, SL_E_PACK, file, t->name,
                           "%llu bytes at %llu lie outside the range of %s (%llu bytes at %llu)",
                           (unsigned long long)t->bytes, (unsigned long long)t->offset,
                           layer < 0 ? "the globals" : "its layer", (unsigned long long)bytes,
                           (unsigned long long)at);
    }
    return 0;
}
