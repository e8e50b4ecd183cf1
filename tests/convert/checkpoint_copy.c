/* See checkpoint_copy.h. Temporary folders lie under $TMPDIR, or under build/. */
#define _GNU_SOURCE
#include "tests/convert/checkpoint_copy.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"

#define FIXTURE  "tests/fixtures/tiny-a"
#define FILE_MAX ((uint64_t)64 << 20)

static void assert_rc(int rc, const struct sl_err *err)
{
    if (rc) fail_msg("%s", err->text);
}

static char *rotating(void)
{
    static char buffers[8][600];
    static int next;
    return buffers[next++ & 7];
}

const char *cc_shard_name(int number)
{
    char *buf = rotating();
    snprintf(buf, 600, "model-%05d-of-000010.safetensors", number);
    return buf;
}

const char *cc_path(const struct cc_copy *c, const char *name)
{
    char *buf = rotating();
    snprintf(buf, 600, "%s/%s", c->dir, name);
    return buf;
}

static char *read_path(const char *path, size_t *len)
{
    struct sl_err err = {0};
    char *data = NULL;
    assert_rc(sl_read_file(&data, len, path, FILE_MAX, SL_E_SOURCE, &err), &err);
    return data;
}

char *cc_read(const struct cc_copy *c, const char *name, size_t *len)
{
    return read_path(cc_path(c, name), len);
}

void cc_write(const struct cc_copy *c, const char *name, const void *data, size_t len)
{
    FILE *f = fopen(cc_path(c, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

void cc_open(struct cc_copy *c)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(c->root, sizeof c->root, "%s/checkpoint-XXXXXX", tmp && *tmp ? tmp : "build");
    assert_non_null(mkdtemp(c->root));
    snprintf(c->dir, sizeof c->dir, "%s/tiny", c->root);
    assert_int_equal(mkdir(c->dir, 0777), 0);
    DIR *d = opendir(FIXTURE);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char from[600];
        struct stat st;
        snprintf(from, sizeof from, FIXTURE "/%s", e->d_name);
        assert_int_equal(stat(from, &st), 0);
        if (!S_ISREG(st.st_mode)) continue;
        size_t len;
        char *data = read_path(from, &len);
        cc_write(c, e->d_name, data, len);
        free(data);
    }
    closedir(d);
}

void cc_close(struct cc_copy *c)
{
    sl_remove_tree(c->root);
}

void cc_resize(const struct cc_copy *c, const char *name, int64_t by)
{
    struct stat st;
    assert_int_equal(stat(cc_path(c, name), &st), 0);
    assert_int_equal(truncate(cc_path(c, name), st.st_size + by), 0);
}

void cc_remove(const struct cc_copy *c, const char *name)
{
    assert_int_equal(unlink(cc_path(c, name)), 0);
}

cJSON *cc_load(const struct cc_copy *c, const char *name)
{
    size_t len;
    char *text = cc_read(c, name, &len);
    cJSON *tree = cJSON_ParseWithLength(text, len);
    assert_non_null(tree);
    free(text);
    return tree;
}

void cc_save(const struct cc_copy *c, const char *name, cJSON *tree)
{
    char *text = cJSON_PrintUnformatted(tree);
    assert_non_null(text);
    cc_write(c, name, text, strlen(text));
    cJSON_free(text);
    cJSON_Delete(tree);
}

void cc_shard_load(const struct cc_copy *c, const char *name, struct cc_shard *s)
{
    size_t len;
    char *file = cc_read(c, name, &len);
    uint64_t json = sl_le64(file);
    s->header = cJSON_ParseWithLength(file + 8, json);
    assert_non_null(s->header);
    s->bytes = len - 8 - json;
    s->data = malloc(s->bytes + 1);
    assert_non_null(s->data);
    memcpy(s->data, file + 8 + json, s->bytes);
    free(file);
}

void cc_shard_save(const struct cc_copy *c, const char *name, struct cc_shard *s)
{
    char *json = cJSON_PrintUnformatted(s->header);
    assert_non_null(json);
    size_t n = strlen(json);
    uint8_t *file = malloc(8 + n + s->bytes);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(file + 8, json, n);
    memcpy(file + 8 + n, s->data, s->bytes);
    cc_write(c, name, file, 8 + n + s->bytes);
    free(file);
    cJSON_free(json);
    cJSON_Delete(s->header);
    free(s->data);
}

void cc_set_offsets(cJSON *tensor, double from, double to)
{
    cJSON *pair = cJSON_CreateArray();
    cJSON_AddItemToArray(pair, cJSON_CreateNumber(from));
    cJSON_AddItemToArray(pair, cJSON_CreateNumber(to));
    cJSON_DeleteItemFromObjectCaseSensitive(tensor, "data_offsets");
    assert_true(cJSON_AddItemToObject(tensor, "data_offsets", pair));
}

void cc_shard_add(struct cc_shard *s, const char *name, const char *dtype, int n_dims,
                  const int64_t *shape)
{
    size_t bytes = !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "U8") ? 1 : 2;
    cJSON *tensor = cJSON_AddObjectToObject(s->header, name);
    assert_non_null(cJSON_AddStringToObject(tensor, "dtype", dtype));
    cJSON *dims = cJSON_AddArrayToObject(tensor, "shape");
    for (int i = 0; i < n_dims; i++) {
        cJSON_AddItemToArray(dims, cJSON_CreateNumber((double)shape[i]));
        bytes *= (size_t)shape[i];
    }
    cc_set_offsets(tensor, (double)s->bytes, (double)(s->bytes + bytes));
    s->data = realloc(s->data, s->bytes + bytes);
    assert_non_null(s->data);
    memset(s->data + s->bytes, 0, bytes);
    s->bytes += bytes;
}

cJSON *cc_shard_find(const struct cc_shard *s, const char *part)
{
    for (cJSON *v = s->header->child; v; v = v->next)
        if (strstr(v->string, part)) return v;
    fail_msg("no tensor with %s in its name", part);
    return NULL;
}

void cc_index_set(const struct cc_copy *c, const char *tensor, const char *file)
{
    cJSON *index = cc_load(c, "model.safetensors.index.json");
    cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
    assert_non_null(map);
    cJSON_DeleteItemFromObjectCaseSensitive(map, tensor);
    if (file) assert_non_null(cJSON_AddStringToObject(map, tensor, file));
    cJSON_DeleteItemFromObjectCaseSensitive(index, "metadata");
    cc_save(c, "model.safetensors.index.json", index);
}

void cc_expect_ok(const struct cc_copy *c)
{
    struct sl_err err = {0};
    struct sl_source *s = NULL;
    assert_rc(sl_source_open(&s, c->dir, NULL, &err), &err);
    sl_source_close(s);
}

void cc_expect_text(const struct sl_err *err, int code, const char *const *parts)
{
    assert_int_equal(err->code, code);
    for (const char *p = err->text; *p; p++)
        if ((unsigned char)*p < 0x20) fail_msg("control byte in: %s", err->text);
    for (; *parts; parts++)
        if (!strstr(err->text, *parts)) fail_msg("no \"%s\" in: %s", *parts, err->text);
}

void cc_expect_refused(const struct cc_copy *c, ...)
{
    const char *parts[9];
    int n = 0;
    va_list args;
    va_start(args, c);
    while (n < 8 && (parts[n] = va_arg(args, const char *))) n++;
    parts[n] = NULL;
    va_end(args);
    struct sl_err err = {0};
    struct sl_source *s = NULL;
    int rc = sl_source_open(&s, c->dir, NULL, &err);
    if (!rc) {
        sl_source_close(s);
        fail_msg("was accepted, wanted a refusal with \"%s\"", parts[0]);
    }
    assert_int_equal(rc, SL_E_SOURCE);
    assert_int_equal(sl_exit_status(rc), 3);
    assert_null(s);
    cc_expect_text(&err, SL_E_SOURCE, parts);
}
