/* The header of one GGUF file, read in growing pieces and walked once.
 *
 * Nothing says how long a header is, so it is read as far as the walk goes and at most HEADER_MAX; the
 * release's has 7 MB. A length is compared with what is left of the file before it is followed, a count
 * with the bytes its items need at least, so that no header buys more memory than it has bytes. Names
 * are kept as NUL-terminated keys of a map; a name with a NUL in it is refused. */
#define _GNU_SOURCE
#include "convert/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"

#define HEADER_MAX   ((uint64_t)256 << 20)
#define FIRST_PIECE  ((uint64_t)1 << 20)
#define MAX_VALUES   65536
#define MAX_TENSORS  (1u << 20)
#define KEY_MAX      255
#define VALUE_LEAST  (8 + 4 + 1)         /* key length, type, one byte */
#define TENSOR_LEAST (8 + 4 + 8 + 4 + 8) /* name length, dims, one dim, type, offset */

struct walk {
    struct sl_gguf_file *f;
    uint64_t loaded, at;
    struct sl_err *err;
};

static const struct {
    uint32_t type, weights, bytes;
    const char *name;
} types[] = {
    {SL_GGML_F32, 1, 4, "F32"},
    {SL_GGML_F16, 1, 2, "F16"},
    {2, 0, 0, "Q4_0"},
    {3, 0, 0, "Q4_1"},
    {6, 0, 0, "Q5_0"},
    {7, 0, 0, "Q5_1"},
    {SL_GGML_Q8_0, 32, SL_GGML_Q8_0_BYTES, "Q8_0"},
    {10, 0, 0, "Q2_K"},
    {11, 0, 0, "Q3_K"},
    {12, 0, 0, "Q4_K"},
    {13, 0, 0, "Q5_K"},
    {14, 0, 0, "Q6_K"},
    {15, 0, 0, "Q8_K"},
    {16, 0, 0, "IQ2_XXS"},
    {17, 0, 0, "IQ2_XS"},
    {18, 0, 0, "IQ3_XXS"},
    {19, 0, 0, "IQ1_S"},
    {20, 0, 0, "IQ4_NL"},
    {21, 0, 0, "IQ3_S"},
    {22, 0, 0, "IQ2_S"},
    {23, 0, 0, "IQ4_XS"},
    {29, 0, 0, "IQ1_M"},
    {SL_GGML_BF16, 1, 2, "BF16"},
    {SL_GGML_MXFP4, 32, SL_GGML_MXFP4_BYTES, "MXFP4"},
};
#define N_TYPES (sizeof types / sizeof *types)

const char *sl_ggml_name(uint32_t type)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (types[i].type == type) return types[i].name;
    return "an unknown type";
}

bool sl_ggml_block(uint32_t type, uint32_t *weights, uint32_t *bytes)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (types[i].type == type && types[i].weights) {
            *weights = types[i].weights;
            *bytes = types[i].bytes;
            return true;
        }
    return false;
}

/* ---- bytes ----------------------------------------------------------------------------------------- */

static int refuse(const struct walk *w, const char *field, const char *what)
{
    return sl_fail(w->err, SL_E_SOURCE, w->f->name, field, "%s at byte %llu", what,
                   (unsigned long long)w->at);
}

/* Makes n bytes at w->at readable. */
static int need(struct walk *w, uint64_t n, const char *field)
{
    if (n > w->f->bytes - w->at) return refuse(w, field, "longer than the file");
    uint64_t end = w->at + n;
    if (end <= w->loaded) return 0;
    if (end > HEADER_MAX) return refuse(w, field, "the header does not end within 256 MiB");
    uint64_t want = w->loaded ? 2 * w->loaded : FIRST_PIECE;
    if (want < end) want = end;
    if (want > w->f->bytes) want = w->f->bytes;
    uint8_t *more = realloc(w->f->header, want + 1);
    if (!more) return sl_fail(w->err, SL_E_NOMEM, w->f->name, NULL, "out of memory");
    w->f->header = more;
    int rc = sl_pread_all(w->f->fd, more + w->loaded, want - w->loaded, w->loaded, w->f->name,
                          SL_E_SOURCE, w->err);
    if (!rc) w->loaded = want;
    return rc;
}

static int take_u32(struct walk *w, uint32_t *v, const char *field)
{
    int rc = need(w, 4, field);
    if (rc) return rc;
    *v = sl_le32(w->f->header + w->at);
    w->at += 4;
    return 0;
}

static int take_u64(struct walk *w, uint64_t *v, const char *field)
{
    int rc = need(w, 8, field);
    if (rc) return rc;
    *v = sl_le64(w->f->header + w->at);
    w->at += 8;
    return 0;
}

/* A key or a name of at most max bytes, copied and terminated. */
static int take_name(struct walk *w, char *out, uint64_t max, const char *field)
{
    uint64_t n;
    int rc = take_u64(w, &n, field);
    if (rc) return rc;
    if (!n || n > max) return refuse(w, field, "a name that is empty or too long, before it");
    rc = need(w, n, field);
    if (rc) return rc;
    const uint8_t *s = w->f->header + w->at;
    for (uint64_t i = 0; i < n; i++)
        if (s[i] < 0x21 || s[i] > 0x7e) return refuse(w, field, "a name with a strange character");
    memcpy(out, s, n);
    out[n] = 0;
    w->at += n;
    return 0;
}

static uint32_t scalar_bytes(uint32_t type)
{
    switch (type) {
    case SL_GGUF_U8:
    case SL_GGUF_I8:
    case SL_GGUF_BOOL:
        return 1;
    case SL_GGUF_U16:
    case SL_GGUF_I16:
        return 2;
    case SL_GGUF_U32:
    case SL_GGUF_I32:
    case SL_GGUF_F32:
        return 4;
    case SL_GGUF_U64:
    case SL_GGUF_I64:
    case SL_GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

/* ---- values ---------------------------------------------------------------------------------------- */

static int skip_string(struct walk *w, const char *key, uint64_t *len)
{
    int rc = take_u64(w, len, key);
    if (!rc) rc = need(w, *len, key);
    if (!rc) w->at += *len;
    return rc;
}

static int skip_array(struct walk *w, struct sl_gguf_value *v, const char *key, uint64_t *start)
{
    int rc = take_u32(w, &v->item_type, key);
    if (!rc) rc = take_u64(w, &v->n, key);
    if (rc) return rc;
    *start = w->at;
    uint32_t item = scalar_bytes(v->item_type);
    if (!item && v->item_type != SL_GGUF_STRING)
        return refuse(w, key, "an array of a type that is not read");
    uint64_t least = 0;
    if (!sl_mul_u64(v->n, item ? item : 8, &least) || least > w->f->bytes - w->at)
        return refuse(w, key, "an array longer than the file");
    if (item) {
        rc = need(w, least, key);
        w->at += rc ? 0 : least;
        return rc;
    }
    for (uint64_t i = 0; i < v->n && !rc; i++) {
        uint64_t len;
        rc = skip_string(w, key, &len);
    }
    return rc;
}

/* *start is where the value lies: the header may still move. */
static int skip_value(struct walk *w, struct sl_gguf_value *v, const char *key, uint64_t *start)
{
    int rc = take_u32(w, &v->type, key);
    if (rc) return rc;
    *start = w->at;
    if (v->type == SL_GGUF_ARRAY) return skip_array(w, v, key, start);
    if (v->type == SL_GGUF_STRING) {
        *start += 8;
        return skip_string(w, key, &v->n);
    }
    uint32_t bytes = scalar_bytes(v->type);
    if (!bytes) return refuse(w, key, "a value of an unknown type");
    v->n = 1;
    rc = need(w, bytes, key);
    w->at += rc ? 0 : bytes;
    return rc;
}

static int walk_values(struct walk *w, struct sl_gguf_parsed *out, uint64_t *starts)
{
    for (int i = 0; i < out->n_values; i++) {
        char key[KEY_MAX + 1];
        struct sl_gguf_value *v = &out->values[i];
        int rc = take_name(w, key, KEY_MAX, "key");
        if (!rc) rc = skip_value(w, v, key, &starts[i]);
        if (rc) return rc;
        v->bytes = w->at - starts[i];
        int put = sl_strmap_put(out->keys, key, strlen(key) + 1, (uint32_t)i);
        if (put < 0) return sl_fail(w->err, SL_E_NOMEM, w->f->name, NULL, "out of memory");
        if (!put) return sl_fail(w->err, SL_E_SOURCE, w->f->name, key, "is there twice");
    }
    return 0;
}

/* ---- tensors --------------------------------------------------------------------------------------- */

static int tensor_bytes(const struct walk *w, const char *name, struct sl_gguf_tensor *t)
{
    uint32_t weights;
    uint32_t bytes;
    if (!sl_ggml_block(t->type, &weights, &bytes))
        return sl_fail(w->err, SL_E_SOURCE, w->f->name, name,
                       "stored as %s (%u); read are MXFP4, BF16, F16, F32 and Q8_0",
                       sl_ggml_name(t->type), t->type);
    if (t->ne[0] % weights)
        return sl_fail(w->err, SL_E_SOURCE, w->f->name, name,
                       "%llu columns are not whole blocks of %s", (unsigned long long)t->ne[0],
                       sl_ggml_name(t->type));
    uint64_t n = t->ne[0] / weights;
    bool ok = sl_mul_u64(n, bytes, &n);
    for (int d = 1; d < t->n_dims && ok; d++) ok = sl_mul_u64(n, t->ne[d], &n);
    if (!ok || n > INT64_MAX)
        return sl_fail(w->err, SL_E_SOURCE, w->f->name, name, "larger than any file");
    t->bytes = n;
    return 0;
}

static int walk_tensor(struct walk *w, struct sl_gguf_tensor *t, char *name)
{
    uint32_t n_dims = 0;
    int rc = take_name(w, name, SL_GGUF_NAME, "tensor");
    if (!rc) rc = take_u32(w, &n_dims, name);
    if (rc) return rc;
    if (n_dims < 1 || n_dims > 4)
        return sl_fail(w->err, SL_E_SOURCE, w->f->name, name, "%u dimensions, expected 1 to 4",
                       n_dims);
    t->n_dims = (uint8_t)n_dims;
    for (int d = 0; d < 4; d++) t->ne[d] = 1;
    for (uint32_t d = 0; d < n_dims && !rc; d++) {
        rc = take_u64(w, &t->ne[d], name);
        if (!rc && (t->ne[d] < 1 || t->ne[d] > INT32_MAX))
            return sl_fail(w->err, SL_E_SOURCE, w->f->name, name, "dimension %u is %llu", d,
                           (unsigned long long)t->ne[d]);
    }
    if (!rc) rc = take_u32(w, &t->type, name);
    if (!rc) rc = take_u64(w, &t->offset, name);
    return rc ? rc : tensor_bytes(w, name, t);
}

static int by_offset(const void *pa, const void *pb)
{
    const struct sl_gguf_tensor *a = pa;
    const struct sl_gguf_tensor *b = pb;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Offsets from the data's start to absolute ones; inside the file, aligned, apart. */
static int place_tensors(const struct walk *w, struct sl_gguf_parsed *out,
                         const struct sl_strmap *names, uint64_t align)
{
    uint64_t room = w->f->bytes - w->f->header_bytes;
    size_t len;
    for (uint32_t i = 0; i < out->n_tensors; i++) {
        struct sl_gguf_tensor *t = &out->tensors[i];
        t->name = sl_strmap_key(names, i, &len);
        if (t->offset % align)
            return sl_fail(w->err, SL_E_SOURCE, w->f->name, t->name,
                           "offset %llu is not a multiple of %llu", (unsigned long long)t->offset,
                           (unsigned long long)align);
        if (t->offset > room || t->bytes > room - t->offset)
            return sl_fail(
                w->err, SL_E_SOURCE, w->f->name, t->name,
                "%llu bytes at %llu of the data, which has %llu: the file is cut or lies",
                (unsigned long long)t->bytes, (unsigned long long)t->offset,
                (unsigned long long)room);
        t->offset += w->f->header_bytes;
    }
    qsort(out->tensors, out->n_tensors, sizeof *out->tensors, by_offset);
    for (uint32_t i = 1; i < out->n_tensors; i++)
        if (out->tensors[i].offset < out->tensors[i - 1].offset + out->tensors[i - 1].bytes)
            return sl_fail(w->err, SL_E_SOURCE, w->f->name, out->tensors[i].name, "overlaps %s",
                           out->tensors[i - 1].name);
    return 0;
}

static int walk_tensors(struct walk *w, struct sl_gguf_parsed *out, struct sl_strmap *names)
{
    for (uint32_t i = 0; i < out->n_tensors; i++) {
        char name[SL_GGUF_NAME + 1];
        int rc = walk_tensor(w, &out->tensors[i], name);
        if (rc) return rc;
        int put = sl_strmap_put(names, name, strlen(name) + 1, i);
        if (put < 0) return sl_fail(w->err, SL_E_NOMEM, w->f->name, NULL, "out of memory");
        if (!put) return sl_fail(w->err, SL_E_SOURCE, w->f->name, name, "is there twice");
    }
    return 0;
}

/* ---- whole ----------------------------------------------------------------------------------------- */

static int read_head(struct walk *w, uint64_t *n_tensors, uint64_t *n_values)
{
    uint32_t version = 0;
    int rc = need(w, 4, "magic");
    if (rc) return rc;
    if (memcmp(w->f->header, SL_GGUF_MAGIC, 4) != 0) return refuse(w, "magic", "not a GGUF file");
    w->at = 4;
    rc = take_u32(w, &version, "version");
    if (rc) return rc;
    if (version != SL_GGUF_VERSION)
        return sl_fail(w->err, SL_E_SOURCE, w->f->name, "version",
                       "%u, expected %d in little-endian order", version, SL_GGUF_VERSION);
    rc = take_u64(w, n_tensors, "tensor count");
    if (!rc) rc = take_u64(w, n_values, "value count");
    if (rc) return rc;
    uint64_t left = w->f->bytes - w->at;
    if (*n_values > MAX_VALUES || *n_values > left / VALUE_LEAST)
        return sl_fail(w->err, SL_E_SOURCE, w->f->name, "value count",
                       "%llu in a file of %llu bytes", (unsigned long long)*n_values,
                       (unsigned long long)w->f->bytes);
    if (*n_tensors > MAX_TENSORS || *n_tensors > left / TENSOR_LEAST)
        return sl_fail(w->err, SL_E_SOURCE, w->f->name, "tensor count",
                       "%llu in a file of %llu bytes", (unsigned long long)*n_tensors,
                       (unsigned long long)w->f->bytes);
    return 0;
}

static int read_align(const struct walk *w, const struct sl_gguf_parsed *out, uint64_t *align)
{
    uint32_t i;
    int64_t n;
    *align = SL_GGUF_ALIGN;
    if (!sl_strmap_get(out->keys, "general.alignment", sizeof "general.alignment", &i)) return 0;
    const struct sl_gguf_value *v = &out->values[i];
    if (v->type != SL_GGUF_U32 || !sl_gguf_item_int(v, 0, &n) || n < 1 || n > 1 << 20 ||
        (n & (n - 1)))
        return sl_fail(w->err, SL_E_SOURCE, w->f->name, "general.alignment",
                       "expected a power of two up to 1 MiB");
    *align = (uint64_t)n;
    return 0;
}

static int parse(struct walk *w, struct sl_gguf_parsed *out, struct sl_strmap **names,
                 uint64_t **starts)
{
    uint64_t n_tensors = 0;
    uint64_t n_values = 0;
    uint64_t align = 0;
    int rc = read_head(w, &n_tensors, &n_values);
    if (rc) return rc;
    out->values = calloc(n_values + 1, sizeof *out->values);
    out->tensors = calloc(n_tensors + 1, sizeof *out->tensors);
    *starts = calloc(n_values + 1, sizeof **starts);
    out->keys = sl_strmap_open(n_values);
    *names = sl_strmap_open(n_tensors);
    if (!out->values || !out->tensors || !*starts || !out->keys || !*names)
        return sl_fail(w->err, SL_E_NOMEM, w->f->name, NULL, "out of memory");
    out->n_values = (int)n_values;
    out->n_tensors = (uint32_t)n_tensors;
    rc = walk_values(w, out, *starts);
    if (!rc) rc = walk_tensors(w, out, *names);
    if (rc) return rc;
    for (int i = 0; i < out->n_values; i++) {
        size_t len;
        out->values[i].key = sl_strmap_key(out->keys, (size_t)i, &len);
        out->values[i].at = w->f->header + (*starts)[i];
    }
    rc = read_align(w, out, &align);
    if (rc) return rc;
    w->f->header_bytes = sl_align_up(w->at, align);
    if (w->f->header_bytes > w->f->bytes) {
        if (n_tensors) return refuse(w, "data", "the file ends before its data");
        w->f->header_bytes = w->f->bytes; /* values alone need no padding */
    }
    return place_tensors(w, out, *names, align);
}

/* Names move to memory of their own: the map goes. */
static int keep_names(struct sl_gguf_parsed *out, const char *file, struct sl_err *err)
{
    for (uint32_t i = 0; i < out->n_tensors; i++) {
        char *copy = strdup(out->tensors[i].name);
        if (!copy) {
            for (; i < out->n_tensors; i++) out->tensors[i].name = NULL;
            return sl_fail(err, SL_E_NOMEM, file, NULL, "out of memory");
        }
        out->tensors[i].name = copy;
    }
    return 0;
}

int sl_gguf_parse(struct sl_gguf_file *f, struct sl_gguf_parsed *out, struct sl_err *err)
{
    struct walk w = {.f = f, .err = err};
    struct sl_strmap *names = NULL;
    uint64_t *starts = NULL;
    memset(out, 0, sizeof *out);
    int rc = parse(&w, out, &names, &starts);
    if (rc)
        for (uint32_t i = 0; i < out->n_tensors; i++) out->tensors[i].name = NULL;
    else
        rc = keep_names(out, f->name, err);
    sl_strmap_close(names);
    free(starts);
    if (rc) sl_gguf_parsed_free(out);
    return rc;
}

void sl_gguf_parsed_free(struct sl_gguf_parsed *p)
{
    for (uint32_t i = 0; p->tensors && i < p->n_tensors; i++) free((char *)p->tensors[i].name);
    free(p->tensors);
    free(p->values);
    sl_strmap_close(p->keys);
    memset(p, 0, sizeof *p);
}
