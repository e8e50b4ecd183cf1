/* A model in GGUF: finding its files, joining its splits, asking for values and tensors.
 *
 * The first split carries the values; every split says how many there are, which one it is and how many
 * tensors all have together. All three are compared, so that a missing, doubled or foreign split is
 * named instead of leading to a missing tensor. */
#define _GNU_SOURCE
#include "convert/gguf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"

#define SUFFIX ".gguf"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s);
    size_t m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* "NAME-00002-of-00003.gguf": length of NAME, number and count. */
static bool split_name(const char *path, size_t *stem, int *no, int *count)
{
    size_t n = strlen(path);
    const size_t tail = sizeof "-00001-of-00003.gguf" - 1;
    if (n <= tail) return false;
    const char *t = path + n - tail;
    for (size_t i = 0; i < tail; i++) {
        bool digit = (i >= 1 && i <= 5) || (i >= 10 && i <= 14);
        if (digit ? t[i] < '0' || t[i] > '9' : t[i] != "-00001-of-00003.gguf"[i]) return false;
    }
    *stem = n - tail;
    *no = atoi(t + 1);
    *count = atoi(t + 10);
    return *no >= 1 && *no <= *count;
}

/* ---- which files ----------------------------------------------------------------------------------- */

static bool has_magic(const char *path)
{
    char magic[4];
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    bool is = pread(fd, magic, 4, 0) == 4 && !memcmp(magic, SL_GGUF_MAGIC, 4);
    close(fd);
    return is;
}

/* Number of models in a folder; the first file of the only one in path. Projector files for images
 * (mmproj-*.gguf) are no models. */
static int models_in(const char *dir, char path[SL_PATH_MAX])
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t stem;
        int no;
        int count;
        if (!ends_with(e->d_name, SUFFIX) || !strncmp(e->d_name, "mmproj", 6)) continue;
        if (split_name(e->d_name, &stem, &no, &count) && no != 1) continue;
        if (sl_path_join(path, dir, e->d_name)) n++;
    }
    if (d) closedir(d);
    return n;
}

bool sl_gguf_is(const char *path)
{
    char file[SL_PATH_MAX];
    if (!sl_is_dir(path)) return has_magic(path) || ends_with(path, SUFFIX);
    if (sl_path_join(file, path, "config.json") && !access(file, F_OK)) return false;
    return models_in(path, file) > 0;
}

static int no_memory(const char *path, struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
}

static int list_files(struct sl_gguf *g, const char *path, struct sl_err *err)
{
    size_t stem = 0;
    int no = 1;
    int count = 1;
    bool split = split_name(path, &stem, &no, &count);
    if (count > SL_GGUF_SPLITS)
        return sl_fail(err, SL_E_SOURCE, path, NULL, "%d splits, at most %d are read", count,
                       SL_GGUF_SPLITS);
    g->files = calloc((size_t)count, sizeof *g->files);
    if (!g->files) return no_memory(path, err);
    for (int i = 0; i < count; i++) {
        char name[SL_PATH_MAX];
        struct sl_gguf_file *f = &g->files[g->n_files++];
        f->fd = -1;
        int n = split ? snprintf(name, sizeof name, "%.*s-%05d-of-%05d" SUFFIX, (int)stem, path,
                                 i + 1, count)
                      : snprintf(name, sizeof name, "%s", path);
        if (n < 0 || n >= (int)sizeof name)
            return sl_fail(err, SL_E_SOURCE, path, NULL, "the path is too long");
        const char *slash = strrchr(name, '/');
        f->path = strdup(name);
        f->name = strdup(slash ? slash + 1 : name);
        if (!f->path || !f->name) return no_memory(path, err);
    }
    return 0;
}

static int open_file(struct sl_gguf_file *f, struct sl_err *err)
{
    struct stat st;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0) return sl_fail_errno(err, SL_E_SOURCE, errno, f->path, "open");
    if (fstat(f->fd, &st)) return sl_fail_errno(err, SL_E_SOURCE, errno, f->path, "size");
    if (!S_ISREG(st.st_mode)) return sl_fail(err, SL_E_SOURCE, f->path, NULL, "not a regular file");
    f->bytes = (uint64_t)st.st_size;
    return 0;
}

/* ---- joining --------------------------------------------------------------------------------------- */

static bool split_int(const struct sl_gguf_parsed *p, const char *key, int64_t *out)
{
    uint32_t i;
    return sl_strmap_get(p->keys, key, strlen(key) + 1, &i) && p->values[i].type != SL_GGUF_ARRAY &&
           p->values[i].type != SL_GGUF_STRING && sl_gguf_item_int(&p->values[i], 0, out);
}

static int check_split(const struct sl_gguf *g, int i, const struct sl_gguf_parsed *p,
                       int64_t *total, struct sl_err *err)
{
    int64_t no = 0;
    int64_t count = 1;
    int64_t all = -1;
    const char *file = g->files[i].name;
    bool has_count = split_int(p, "split.count", &count);
    (void)split_int(p, "split.no", &no);
    (void)split_int(p, "split.tensors.count", &all);
    if (count == 0) count = 1;
    if (g->n_files == 1 && !has_count) return 0;
    if (count != g->n_files)
        return sl_fail(err, SL_E_SOURCE, file, "split.count",
                       "%lld, but the file's name says %d; give a file NAME-00001-of-%05lld.gguf",
                       (long long)count, g->n_files, (long long)count);
    if (no != i)
        return sl_fail(err, SL_E_SOURCE, file, "split.no", "%lld, expected %d", (long long)no, i);
    if (i && all != *total)
        return sl_fail(err, SL_E_SOURCE, file, "split.tensors.count",
                       "%lld, the first file says %lld: splits of different models?",
                       (long long)all, (long long)*total);
    *total = all;
    return 0;
}

static int add_tensors(struct sl_gguf *g, int i, struct sl_gguf_parsed *p, struct sl_err *err)
{
    size_t n = (size_t)g->n_tensors + p->n_tensors;
    struct sl_gguf_tensor *more = realloc(g->tensors, (n + 1) * sizeof *more);
    if (!more) return no_memory(g->files[i].path, err);
    g->tensors = more;
    for (uint32_t k = 0; k < p->n_tensors; k++) {
        struct sl_gguf_tensor *t = &p->tensors[k];
        int put = sl_strmap_put(g->by_name, t->name, strlen(t->name) + 1, g->n_tensors);
        if (put < 0) return no_memory(g->files[i].path, err);
        if (!put)
            return sl_fail(err, SL_E_SOURCE, g->files[i].name, t->name, "is in another split too");
        t->file = (uint16_t)i;
        g->payload_bytes += t->bytes; /* each below a file's size; 4096 of 2^63 are past no file */
        g->tensors[g->n_tensors++] = *t;
        t->name = NULL; /* moved */
    }
    return 0;
}

static void add_identity(struct sl_sha256 *sha, const struct sl_gguf_file *f)
{
    uint8_t size[8];
    for (int b = 0; b < 8; b++) size[b] = (uint8_t)(f->bytes >> 8 * b);
    sl_sha256_add(sha, f->name, strlen(f->name));
    sl_sha256_add(sha, size, sizeof size);
    /* All that was parsed: padding need not be in memory. */
    sl_sha256_add(sha, &f->header_bytes, sizeof f->header_bytes);
}

static int read_file(struct sl_gguf *g, int i, struct sl_sha256 *sha, int64_t *total,
                     struct sl_err *err)
{
    struct sl_gguf_parsed p;
    struct sl_gguf_file *f = &g->files[i];
    int rc = open_file(f, err);
    if (!rc) rc = sl_gguf_parse(f, &p, err);
    if (rc) return rc;
    add_identity(sha, f);
    rc = check_split(g, i, &p, total, err);
    if (!rc) rc = add_tensors(g, i, &p, err);
    if (!rc && i == 0) { /* its values are the model's */
        g->values = p.values;
        g->n_values = p.n_values;
        g->keys = p.keys;
        p.values = NULL;
        p.keys = NULL;
    }
    sl_gguf_parsed_free(&p);
    return rc;
}

static void add_header(struct sl_sha256 *sha, const struct sl_gguf *g)
{
    for (int i = 0; i < g->n_values; i++) {
        const struct sl_gguf_value *v = &g->values[i];
        sl_sha256_add(sha, v->key, strlen(v->key) + 1);
        sl_sha256_add(sha, v->at, v->bytes);
    }
    for (uint32_t k = 0; k < g->n_tensors; k++) {
        const struct sl_gguf_tensor *t = &g->tensors[k];
        char line[256];
        int n = snprintf(line, sizeof line, "%s %u %u %llu %llu", t->name, t->type, t->file,
                         (unsigned long long)t->offset, (unsigned long long)t->bytes);
        if (n > 0) sl_sha256_add(sha, line, (size_t)n);
        sl_sha256_add(sha, t->ne, sizeof t->ne);
    }
}

int sl_gguf_open(struct sl_gguf **out, const char *path, struct sl_err *err)
{
    char file[SL_PATH_MAX];
    int64_t total = -1;
    struct sl_sha256 *sha = NULL;
    struct sl_gguf *g = calloc(1, sizeof *g);
    int rc = 0;

    *out = NULL;
    if (!g) return no_memory(path, err);
    if (sl_is_dir(path)) {
        int n = models_in(path, file);
        if (n != 1)
            rc = sl_fail(err, SL_E_SOURCE, path, NULL,
                         n ? "%d models in GGUF; name the file" : "%d files in GGUF", n);
        path = file;
    }
    sha = sl_sha256_open();
    g->by_name = sl_strmap_open(1024);
    if (!rc && (!sha || !g->by_name)) rc = no_memory(path, err);
    if (!rc) rc = list_files(g, path, err);
    for (int i = 0; !rc && i < g->n_files; i++) rc = read_file(g, i, sha, &total, err);
    if (!rc && total >= 0 && total != g->n_tensors)
        rc = sl_fail(err, SL_E_SOURCE, g->files[0].name, "split.tensors.count",
                     "%lld, the splits hold %u", (long long)total, g->n_tensors);
    if (!rc) add_header(sha, g);
    sl_sha256_close(sha, g->sha256);
    if (rc) {
        sl_gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void sl_gguf_close(struct sl_gguf *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_files; i++) {
        struct sl_gguf_file *f = &g->files[i];
        if (f->fd >= 0) close(f->fd);
        free(f->header);
        free(f->name);
        free(f->path);
    }
    for (uint32_t i = 0; i < g->n_tensors; i++) free((char *)g->tensors[i].name);
    free(g->tensors);
    free(g->values);
    free(g->files);
    sl_strmap_close(g->keys);
    sl_strmap_close(g->by_name);
    free(g);
}

/* ---- questions ------------------------------------------------------------------------------------- */

const struct sl_gguf_value *sl_gguf_value(const struct sl_gguf *g, const char *key)
{
    uint32_t i;
    return sl_strmap_get(g->keys, key, strlen(key) + 1, &i) ? &g->values[i] : NULL;
}

const struct sl_gguf_tensor *sl_gguf_find(const struct sl_gguf *g, const char *name)
{
    uint32_t i;
    return sl_strmap_get(g->by_name, name, strlen(name) + 1, &i) ? &g->tensors[i] : NULL;
}

bool sl_gguf_item_int(const struct sl_gguf_value *v, uint64_t i, int64_t *out)
{
    uint64_t u;
    switch (v->type == SL_GGUF_ARRAY ? v->item_type : v->type) {
    case SL_GGUF_U8:
        *out = v->at[i];
        return true;
    case SL_GGUF_I8:
        *out = (v->at[i] ^ 0x80) - 0x80;
        return true;
    case SL_GGUF_U16:
        *out = sl_le16(v->at + 2 * i);
        return true;
    case SL_GGUF_I16:
        *out = (int16_t)sl_le16(v->at + 2 * i);
        return true;
    case SL_GGUF_U32:
        *out = sl_le32(v->at + 4 * i);
        return true;
    case SL_GGUF_I32:
        *out = (int32_t)sl_le32(v->at + 4 * i);
        return true;
    case SL_GGUF_I64:
        *out = (int64_t)sl_le64(v->at + 8 * i);
        return true;
    case SL_GGUF_U64:
        u = sl_le64(v->at + 8 * i);
        *out = (int64_t)u;
        return u <= INT64_MAX;
    default:
        return false;
    }
}

/* NULL with *rc 0 for a key that need not be there. */
static const struct sl_gguf_value *ask(const struct sl_gguf *g, const char *key, bool needed,
                                       int *rc, struct sl_err *err)
{
    const struct sl_gguf_value *v = sl_gguf_value(g, key);
    *rc = 0;
    if (!v && needed) *rc = sl_fail(err, SL_E_SOURCE, g->files[0].name, key, "missing");
    return v;
}

int sl_gguf_int(const struct sl_gguf *g, const char *key, bool needed, int64_t min, int64_t max,
                int64_t *out, struct sl_err *err)
{
    int rc;
    int64_t n;
    const struct sl_gguf_value *v = ask(g, key, needed, &rc, err);
    if (!v) return rc;
    if (v->type == SL_GGUF_ARRAY || !sl_gguf_item_int(v, 0, &n))
        return sl_fail(err, SL_E_SOURCE, g->files[0].name, key, "expected an integer");
    if (n < min || n > max)
        return sl_fail(err, SL_E_SOURCE, g->files[0].name, key, "%lld is outside %lld to %lld",
                       (long long)n, (long long)min, (long long)max);
    *out = n;
    return 0;
}

/* The shortest decimal that gives the same f32: 1e-5 was written as f32 and is meant. */
static double decimal_of(float f)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        if (strtof(text, NULL) == f) return strtod(text, NULL);
    }
    return f;
}

int sl_gguf_f64(const struct sl_gguf *g, const char *key, bool needed, double min, double max,
                double *out, struct sl_err *err)
{
    int rc;
    int64_t n;
    double d;
    const struct sl_gguf_value *v = ask(g, key, needed, &rc, err);
    if (!v) return rc;
    if (v->type == SL_GGUF_F32) {
        float f;
        uint32_t bits = sl_le32(v->at);
        memcpy(&f, &bits, sizeof f);
        d = isfinite(f) ? decimal_of(f) : NAN;
    } else if (v->type == SL_GGUF_F64) {
        uint64_t bits = sl_le64(v->at);
        memcpy(&d, &bits, sizeof d);
    } else if (v->type != SL_GGUF_ARRAY && sl_gguf_item_int(v, 0, &n)) {
        d = (double)n;
    } else {
        return sl_fail(err, SL_E_SOURCE, g->files[0].name, key, "expected a number");
    }
    if (!(d >= min && d <= max))
        return sl_fail(err, SL_E_SOURCE, g->files[0].name, key, "%.9g is outside %g to %g", d, min,
                       max);
    *out = d;
    return 0;
}

int sl_gguf_bool(const struct sl_gguf *g, const char *key, bool needed, bool *out,
                 struct sl_err *err)
{
    int rc;
    const struct sl_gguf_value *v = ask(g, key, needed, &rc, err);
    if (!v) return rc;
    if (v->type != SL_GGUF_BOOL || v->at[0] > 1)
        return sl_fail(err, SL_E_SOURCE, g->files[0].name, key, "expected a boolean");
    *out = v->at[0];
    return 0;
}

int sl_gguf_str(const struct sl_gguf *g, const char *key, bool needed, const char **s,
                uint64_t *len, struct sl_err *err)
{
    int rc;
    const struct sl_gguf_value *v = ask(g, key, needed, &rc, err);
    if (!v) return rc;
    if (v->type != SL_GGUF_STRING)
        return sl_fail(err, SL_E_SOURCE, g->files[0].name, key, "expected a string");
    *s = (const char *)v->at;
    *len = v->n;
    return 0;
}

int sl_gguf_read(const struct sl_gguf *g, const struct sl_gguf_tensor *t, uint64_t at, void *buf,
                 uint64_t n, struct sl_err *err)
{
    const struct sl_gguf_file *f = &g->files[t->file];
    return sl_pread_all(f->fd, buf, n, t->offset + at, f->name, SL_E_SOURCE, err);
}
