/* Board files: a table a level, one reader for all of them (see board.h).
 *
 * Each object is read by a table of its keys, so that "which keys exist", "which are required" and
 * "what may they be" stand in one place; the writer below uses the same names. */
#define _GNU_SOURCE
#include "offload/board.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

enum { MAX_FILE = 1 << 20, MAX_CORES = 4096, MAX_NODES = 1024, MAX_DEPTH = 4096 };
#define MAX_BYTES ((double)((uint64_t)1 << 50))
#define MAX_GBPS  1e6

enum kind { TEXT, COUNT, BYTES, RATE, FLAG, FORMAT, LIST, OBJECT };

struct field {
    const char *key;
    enum kind kind;
    void *out;       /* char[size], int, uint64_t, double, bool, enum sl_fmt, const cJSON * */
    size_t size;     /* of TEXT */
    double min, max; /* of COUNT, BYTES, RATE */
    bool required;
};

struct reader {
    const char *file;
    struct sl_err *err;
};

static int read_text(const struct reader *r, const cJSON *obj, const struct field *f)
{
    const char *s = NULL;
    int rc = sl_json_str(obj, f->key, &s, r->file, SL_E_SOURCE, r->err);
    if (rc) return rc;
    size_t n = strlen(s);
    if (!n || n >= f->size)
        return sl_fail(r->err, SL_E_SOURCE, r->file, f->key, "%zu characters, must have 1 to %zu",
                       n, f->size - 1);
    memcpy(f->out, s, n + 1);
    return 0;
}

static int read_format(const struct reader *r, const cJSON *obj, const struct field *f)
{
    const char *s = NULL;
    int rc = sl_json_str(obj, f->key, &s, r->file, SL_E_SOURCE, r->err);
    if (rc) return rc;
    enum sl_fmt fmt = sl_fmt_by_name(s);
    if (fmt == SL_FMT_NONE)
        return sl_fail(r->err, SL_E_SOURCE, r->file, f->key, "unknown format '%.32s'", s);
    memcpy(f->out, &fmt, sizeof fmt);
    return 0;
}

static int read_field(const struct reader *r, const cJSON *obj, const struct field *f)
{
    const char *file = r->file;
    int64_t n = 0;
    int rc;
    switch (f->kind) {
    case TEXT:
        return read_text(r, obj, f);
    case FORMAT:
        return read_format(r, obj, f);
    case COUNT:
        rc = sl_json_int(obj, f->key, (int64_t)f->min, (int64_t)f->max, &n, file, SL_E_SOURCE,
                         r->err);
        if (!rc) *(int *)f->out = (int)n;
        return rc;
    case BYTES:
        rc = sl_json_int(obj, f->key, (int64_t)f->min, (int64_t)f->max, &n, file, SL_E_SOURCE,
                         r->err);
        if (!rc) *(uint64_t *)f->out = (uint64_t)n;
        return rc;
    case RATE:
        return sl_json_f64(obj, f->key, f->min, f->max, f->out, file, SL_E_SOURCE, r->err);
    case FLAG:
        return sl_json_bool(obj, f->key, f->out, file, SL_E_SOURCE, r->err);
    case LIST:
        return sl_json_arr(obj, f->key, f->out, file, SL_E_SOURCE, r->err);
    case OBJECT:
        return sl_json_obj(obj, f->key, f->out, file, SL_E_SOURCE, r->err);
    }
    return 0;
}

/* All keys of one object; where names it in messages. */
static int read_object(const struct reader *r, const cJSON *obj, const char *where,
                       const struct field *fields, int n)
{
    if (!obj || !cJSON_IsObject(obj))
        return sl_fail(r->err, SL_E_SOURCE, r->file, where, "must be an object");
    for (const cJSON *v = obj->child; v; v = v->next) {
        int i = 0;
        while (i < n && strcmp(fields[i].key, v->string) != 0) i++;
        if (i == n)
            return sl_fail(r->err, SL_E_SOURCE, r->file, where, "unknown key '%.64s'", v->string);
    }
    for (int i = 0; i < n; i++) {
        if (!fields[i].required && !cJSON_GetObjectItemCaseSensitive(obj, fields[i].key)) continue;
        int rc = read_field(r, obj, &fields[i]);
        if (rc) return rc;
    }
    return 0;
}

#define N_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))

static int read_cpu(const struct reader *r, const cJSON *obj, struct sl_board *b)
{
    const cJSON *muls = NULL;
    const struct field fields[] = {
        {"cores", COUNT, &b->cpu.cores, 0, 1, MAX_CORES, true},
        {"isa", TEXT, b->cpu.isa, sizeof b->cpu.isa, 0, 0, true},
        {"mul", LIST, (void *)&muls, 0, 0, 0, false},
    };
    int rc = read_object(r, obj, "cpu", fields, N_OF(fields));
    for (const cJSON *v = muls && !rc ? muls->child : NULL; v && !rc; v = v->next) {
        if (b->cpu.n_muls == SL_BOARD_MULS)
            return sl_fail(r->err, SL_E_SOURCE, r->file, "cpu.mul", "more than %d formats",
                           SL_BOARD_MULS);
        struct sl_board_mul *m = &b->cpu.mul[b->cpu.n_muls++];
        const struct field mul_fields[] = {
            {"fmt", FORMAT, &m->fmt, 0, 0, 0, true},
            {"decode_gweights_per_s", RATE, &m->decode, 0, 1e-6, MAX_GBPS, true},
            {"prefill_gweights_per_s", RATE, &m->prefill, 0, 1e-6, MAX_GBPS, true},
        };
        rc = read_object(r, v, "cpu.mul", mul_fields, N_OF(mul_fields));
    }
    return rc;
}

static int read_memory(const struct reader *r, const cJSON *obj, struct sl_board *b)
{
    const struct field fields[] = {
        {"bytes", BYTES, &b->memory.bytes, 0, 1 << 20, MAX_BYTES, true},
        {"read_gbps", RATE, &b->memory.read_gbps, 0, 1e-3, MAX_GBPS, true},
        {"copy_gbps", RATE, &b->memory.copy_gbps, 0, 1e-3, MAX_GBPS, false},
        {"numa_nodes", COUNT, &b->memory.numa_nodes, 0, 1, MAX_NODES, true},
        {"unified", FLAG, &b->memory.unified, 0, 0, 0, true},
    };
    return read_object(r, obj, "memory", fields, N_OF(fields));
}

static int read_depths(const struct reader *r, const cJSON *list, struct sl_board_drive *d)
{
    int rc = 0;
    for (const cJSON *v = list ? list->child : NULL; v && !rc; v = v->next) {
        if (d->n_depths == SL_BOARD_DEPTHS)
            return sl_fail(r->err, SL_E_SOURCE, r->file, "drives.read", "more than %d depths",
                           SL_BOARD_DEPTHS);
        int i = d->n_depths++;
        const struct field fields[] = {
            {"depth", COUNT, &d->read[i].depth, 0, 1, MAX_DEPTH, true},
            {"gbps", RATE, &d->read[i].gbps, 0, 1e-6, MAX_GBPS, true},
        };
        rc = read_object(r, v, "drives.read", fields, N_OF(fields));
        if (!rc && i && d->read[i].depth <= d->read[i - 1].depth)
            rc = sl_fail(r->err, SL_E_SOURCE, r->file, "drives.read", "depth %d after %d",
                         d->read[i].depth, d->read[i - 1].depth);
    }
    if (!rc && !d->n_depths)
        rc = sl_fail(r->err, SL_E_SOURCE, r->file, "drives.read", "empty: at least one depth");
    return rc;
}

static int read_drives(const struct reader *r, const cJSON *list, struct sl_board *b)
{
    int rc = 0;
    for (const cJSON *v = list ? list->child : NULL; v && !rc; v = v->next) {
        if (b->n_drives == SL_BOARD_DRIVES)
            return sl_fail(r->err, SL_E_SOURCE, r->file, "drives", "more than %d drives",
                           SL_BOARD_DRIVES);
        struct sl_board_drive *d = &b->drive[b->n_drives++];
        const cJSON *read = NULL;
        const struct field fields[] = {
            {"name", TEXT, d->name, sizeof d->name, 0, 0, true},
            {"path", TEXT, d->path, sizeof d->path, 0, 0, false},
            {"record_bytes", BYTES, &d->record_bytes, 0, 4096, 1 << 30, true},
            {"read", LIST, (void *)&read, 0, 0, 0, true},
        };
        rc = read_object(r, v, "drives", fields, N_OF(fields));
        if (!rc) rc = read_depths(r, read, d);
    }
    if (!rc && !b->n_drives)
        rc = sl_fail(r->err, SL_E_SOURCE, r->file, "drives", "empty: at least one drive");
    return rc;
}

static int read_gpu(const struct reader *r, const cJSON *obj, struct sl_board *b)
{
    const struct field fields[] = {
        {"name", TEXT, b->gpu.name, sizeof b->gpu.name, 0, 0, true},
        {"vram_bytes", BYTES, &b->gpu.vram_bytes, 0, 1 << 20, MAX_BYTES, true},
        {"vram_gbps", RATE, &b->gpu.vram_gbps, 0, 1e-3, MAX_GBPS, false},
        {"link_gbps", RATE, &b->gpu.link_gbps, 0, 1e-3, MAX_GBPS, false},
    };
    return read_object(r, obj, "gpu", fields, N_OF(fields));
}

static int read_recipe(const struct reader *r, const cJSON *obj, struct sl_board *b)
{
    const struct field fields[] = {
        {"experts", FORMAT, &b->recipe.experts, 0, 0, 0, true},
        {"trunk", FORMAT, &b->recipe.trunk, 0, 0, 0, true},
        {"ram_bytes", BYTES, &b->recipe.ram_bytes, 0, 1 << 20, MAX_BYTES, true},
        {"vram_bytes", BYTES, &b->recipe.vram_bytes, 0, 1 << 20, MAX_BYTES, false},
        {"ctx", BYTES, &b->recipe.ctx, 0, 1, 1 << 30, true},
    };
    b->recipe.given = true;
    int rc = read_object(r, obj, "recipe", fields, N_OF(fields));
    if (!rc && b->recipe.ram_bytes > b->memory.bytes)
        rc = sl_fail(r->err, SL_E_SOURCE, r->file, "recipe.ram_bytes",
                     "%llu is more than memory.bytes %llu", (unsigned long long)b->recipe.ram_bytes,
                     (unsigned long long)b->memory.bytes);
    return rc;
}

int sl_board_from_json(struct sl_board *b, const cJSON *root, const char *file, struct sl_err *err)
{
    const struct reader r = {file, err};
    const cJSON *cpu = NULL;
    const cJSON *memory = NULL;
    const cJSON *drives = NULL;
    const cJSON *gpu = NULL;
    const cJSON *recipe = NULL;
    int schema = 0;
    memset(b, 0, sizeof *b);
    const struct field fields[] = {
        {"schema", COUNT, &schema, 0, 1, 1, true},
        {"name", TEXT, b->name, sizeof b->name, 0, 0, true},
        {"title", TEXT, b->title, sizeof b->title, 0, 0, true},
        {"measured", FLAG, &b->measured, 0, 0, 0, true},
        {"source", TEXT, b->source, sizeof b->source, 0, 0, true},
        {"cpu", OBJECT, (void *)&cpu, 0, 0, 0, true},
        {"memory", OBJECT, (void *)&memory, 0, 0, 0, true},
        {"drives", LIST, (void *)&drives, 0, 0, 0, true},
        {"gpu", OBJECT, (void *)&gpu, 0, 0, 0, false},
        {"power_w", RATE, &b->power_w, 0, 1, 1e5, false},
        {"recipe", OBJECT, (void *)&recipe, 0, 0, 0, false},
    };
    int rc = read_object(&r, root, "board", fields, N_OF(fields));
    if (!rc) rc = read_cpu(&r, cpu, b);
    if (!rc) rc = read_memory(&r, memory, b);
    if (!rc) rc = read_drives(&r, drives, b);
    if (!rc && gpu) rc = read_gpu(&r, gpu, b);
    if (!rc && recipe) rc = read_recipe(&r, recipe, b);
    return rc;
}

/* ---------------------------------------------------------------- writing */

/* A member that could not be added leaves the object without it; the caller counts them at the end. */
static bool put_num(cJSON *o, const char *key, double v)
{
    return cJSON_AddNumberToObject(o, key, v) != NULL;
}
static bool put_str(cJSON *o, const char *key, const char *v)
{
    return cJSON_AddStringToObject(o, key, v) != NULL;
}
/* Three decimals say all that a bandwidth measurement knows. */
static bool put_rate(cJSON *o, const char *key, double v)
{
    return put_num(o, key, v >= 0.01 ? round(v * 1000) / 1000 : v);
}

static cJSON *add_item(cJSON *list)
{
    cJSON *o = list ? cJSON_CreateObject() : NULL;
    if (o && !cJSON_AddItemToArray(list, o)) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

static bool put_cpu(cJSON *root, const struct sl_board *b)
{
    cJSON *o = cJSON_AddObjectToObject(root, "cpu");
    bool ok = o && put_num(o, "cores", b->cpu.cores) && put_str(o, "isa", b->cpu.isa);
    cJSON *list = ok && b->cpu.n_muls ? cJSON_AddArrayToObject(o, "mul") : NULL;
    for (int i = 0; i < b->cpu.n_muls && ok; i++) {
        const struct sl_board_mul *m = &b->cpu.mul[i];
        cJSON *v = add_item(list);
        ok = v && put_str(v, "fmt", sl_fmt_name(m->fmt)) &&
             put_rate(v, "decode_gweights_per_s", m->decode) &&
             put_rate(v, "prefill_gweights_per_s", m->prefill);
    }
    return ok;
}

static bool put_memory(cJSON *root, const struct sl_board *b)
{
    cJSON *o = cJSON_AddObjectToObject(root, "memory");
    bool ok = o && put_num(o, "bytes", (double)b->memory.bytes) &&
              put_rate(o, "read_gbps", b->memory.read_gbps);
    if (ok && b->memory.copy_gbps > 0) ok = put_rate(o, "copy_gbps", b->memory.copy_gbps);
    return ok && put_num(o, "numa_nodes", b->memory.numa_nodes) &&
           cJSON_AddBoolToObject(o, "unified", b->memory.unified);
}

static bool put_drives(cJSON *root, const struct sl_board *b)
{
    cJSON *list = cJSON_AddArrayToObject(root, "drives");
    bool ok = list != NULL;
    for (int i = 0; i < b->n_drives && ok; i++) {
        const struct sl_board_drive *d = &b->drive[i];
        cJSON *o = add_item(list);
        ok = o && put_str(o, "name", d->name) && (!d->path[0] || put_str(o, "path", d->path)) &&
             put_num(o, "record_bytes", (double)d->record_bytes);
        cJSON *read = ok ? cJSON_AddArrayToObject(o, "read") : NULL;
        for (int k = 0; k < d->n_depths && ok; k++) {
            cJSON *v = add_item(read);
            ok = v && put_num(v, "depth", d->read[k].depth) && put_rate(v, "gbps", d->read[k].gbps);
        }
    }
    return ok;
}

static bool put_gpu(cJSON *root, const struct sl_board *b)
{
    cJSON *o = cJSON_AddObjectToObject(root, "gpu");
    bool ok =
        o && put_str(o, "name", b->gpu.name) && put_num(o, "vram_bytes", (double)b->gpu.vram_bytes);
    if (ok && b->gpu.vram_gbps > 0) ok = put_rate(o, "vram_gbps", b->gpu.vram_gbps);
    if (ok && b->gpu.link_gbps > 0) ok = put_rate(o, "link_gbps", b->gpu.link_gbps);
    return ok;
}

static bool put_recipe(cJSON *root, const struct sl_board *b)
{
    cJSON *o = cJSON_AddObjectToObject(root, "recipe");
    bool ok = o && put_str(o, "experts", sl_fmt_name(b->recipe.experts)) &&
              put_str(o, "trunk", sl_fmt_name(b->recipe.trunk)) &&
              put_num(o, "ram_bytes", (double)b->recipe.ram_bytes);
    if (ok && b->recipe.vram_bytes) ok = put_num(o, "vram_bytes", (double)b->recipe.vram_bytes);
    return ok && put_num(o, "ctx", (double)b->recipe.ctx);
}

cJSON *sl_board_to_json(const struct sl_board *b)
{
    cJSON *o = cJSON_CreateObject();
    bool ok = o && put_num(o, "schema", 1) && put_str(o, "name", b->name) &&
              put_str(o, "title", b->title) && cJSON_AddBoolToObject(o, "measured", b->measured) &&
              put_str(o, "source", b->source) && put_cpu(o, b) && put_memory(o, b) &&
              put_drives(o, b);
    if (ok && b->gpu.name[0]) ok = put_gpu(o, b);
    if (ok && b->power_w > 0) ok = put_rate(o, "power_w", b->power_w);
    if (ok && b->recipe.given) ok = put_recipe(o, b);
    if (ok) return o;
    cJSON_Delete(o);
    return NULL;
}

/* ---------------------------------------------------------------- finding */

enum { N_FOLDERS = 4 };

/* Folders that may hold boards, in order; "" where one does not exist on this machine. */
static void board_folders(char dir[N_FOLDERS][SL_PATH_MAX])
{
    char exe[SL_PATH_MAX];
    const char *env = getenv("SLUICE_BOARDS");
    for (int i = 0; i < N_FOLDERS; i++) dir[i][0] = '\0';
    if (env) (void)snprintf(dir[0], SL_PATH_MAX, "%s", env);
    (void)snprintf(dir[1], SL_PATH_MAX, "boards");
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (!slash) return;
    *slash = '\0';
    if (!sl_path_join(dir[2], exe, "../boards")) dir[2][0] = '\0';
    if (!sl_path_join(dir[3], exe, "../share/sluice/boards")) dir[3][0] = '\0';
}

static bool is_board_name(const char *file, size_t *len)
{
    size_t n = strlen(file);
    if (n <= 5 || strcmp(file + n - 5, ".json") != 0 || strcmp(file, "schema.json") == 0)
        return false;
    *len = n - 5;
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the first folder that has any, sorted, comma-separated. */
static void list_boards(char dir[N_FOLDERS][SL_PATH_MAX], char *out, size_t size)
{
    out[0] = '\0';
    for (int i = 0; i < N_FOLDERS && !out[0]; i++) {
        char *names[64];
        int n = 0;
        size_t len;
        DIR *d = dir[i][0] ? opendir(dir[i]) : NULL;
        if (!d) continue;
        for (const struct dirent *e; n < N_OF(names) && (e = readdir(d));) {
            if (!is_board_name(e->d_name, &len)) continue;
            names[n] = strndup(e->d_name, len);
            if (names[n]) n++;
        }
        closedir(d);
        qsort(names, (size_t)n, sizeof names[0], by_name);
        size_t at = 0;
        for (int k = 0; k < n; k++) {
            if (at < size) {
                int w = snprintf(out + at, size - at, "%s%s", k ? ", " : "", names[k]);
                at += w > 0 ? (size_t)w : 0;
            }
            free(names[k]);
        }
    }
}

static int open_file(struct sl_board *b, const char *path, struct sl_err *err)
{
    cJSON *root;
    int rc = sl_json_read(&root, path, MAX_FILE, SL_E_SOURCE, err);
    if (rc) return rc;
    rc = sl_board_from_json(b, root, path, err);
    cJSON_Delete(root);
    return rc;
}

int sl_board_open(struct sl_board *b, const char *name_or_path, struct sl_err *err)
{
    size_t len;
    if (strchr(name_or_path, '/') || is_board_name(name_or_path, &len))
        return open_file(b, name_or_path, err);
    char dir[N_FOLDERS][SL_PATH_MAX];
    char file[80];
    char path[SL_PATH_MAX];
    char known[480];
    board_folders(dir);
    int n = snprintf(file, sizeof file, "%s.json", name_or_path);
    bool fits = n > 0 && (size_t)n < sizeof file;
    for (int i = 0; fits && i < N_FOLDERS; i++)
        if (dir[i][0] && sl_path_join(path, dir[i], file) && access(path, R_OK) == 0)
            return open_file(b, path, err);
    list_boards(dir, known, sizeof known);
    return sl_fail(err, SL_E_SOURCE, NULL, "--board",
                   "no board '%.64s'; a path to a board file, or one of: %s", name_or_path,
                   known[0] ? known : "(no boards folder found)");
}

/* ---------------------------------------------------------------- figures */

double sl_board_drive_gbps(const struct sl_board_drive *d)
{
    double best = 0;
    for (int i = 0; i < d->n_depths; i++)
        if (d->read[i].gbps > best) best = d->read[i].gbps;
    return best;
}

double sl_board_drives_gbps(const struct sl_board *b)
{
    double sum = 0;
    for (int i = 0; i < b->n_drives; i++) sum += sl_board_drive_gbps(&b->drive[i]);
    return sum;
}
