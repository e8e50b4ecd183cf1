/* The released index is 59.8 MB of text; as a tree it takes about twice that, so the tree is gone
 * before the first shard is opened. An index that disagrees with the shards is refused (by source.c,
 * which has both): two stories about one checkpoint mean that one of them is from another download. */
#include "convert/safetensors_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/file.h"

#define FILE_NAME_MAX 255

static bool plain_shard_name(const char *s)
{
    static const char end[] = ".safetensors";
    size_t n = strlen(s);
    size_t m = sizeof end - 1;
    return n > m && n <= FILE_NAME_MAX && !strchr(s, '/') && s[0] != '.' && !strcmp(s + n - m, end);
}

/* Number of a file name, given on first sight; -1 when memory is short. */
static int64_t number_of(struct sl_index *ix, const char *file)
{
    uint32_t number = (uint32_t)sl_strmap_count(ix->files);
    size_t len = strlen(file);
    int put = sl_strmap_put(ix->files, file, len, number);
    if (put < 0) return -1;
    if (!put) sl_strmap_get(ix->files, file, len, &number);
    return number;
}

static int walk_map(struct sl_index *ix, const cJSON *map, struct sl_err *err)
{
    size_t n = (size_t)cJSON_GetArraySize(map);
    ix->file_of = sl_strmap_open(n);
    ix->files = sl_strmap_open(128);
    if (!ix->file_of || !ix->files) goto no_memory;
    for (const cJSON *v = map->child; v; v = v->next) {
        if (!cJSON_IsString(v) || !plain_shard_name(v->valuestring))
            return sl_fail(err, SL_E_SOURCE, SL_INDEX_NAME, v->string,
                           "\"%.60s\" is not the name of a .safetensors file in the same folder",
                           cJSON_IsString(v) ? v->valuestring : "(not a string)");
        int64_t number = number_of(ix, v->valuestring);
        if (number < 0) goto no_memory;
        int put = sl_strmap_put(ix->file_of, v->string, strlen(v->string), (uint32_t)number);
        if (put < 0) goto no_memory;
        if (!put) return sl_fail(err, SL_E_SOURCE, SL_INDEX_NAME, v->string, "is listed twice");
    }
    if (!n) return sl_fail(err, SL_E_SOURCE, SL_INDEX_NAME, "weight_map", "is empty");
    return 0;
no_memory:
    return sl_fail(err, SL_E_NOMEM, SL_INDEX_NAME, "weight_map", "out of memory for %zu names", n);
}

static int walk(struct sl_index *ix, const cJSON *tree, struct sl_err *err)
{
    const cJSON *map = NULL;
    int rc = sl_json_obj(tree, "weight_map", &map, SL_INDEX_NAME, SL_E_SOURCE, err);
    if (rc) return rc;
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(tree, "metadata");
    if (meta && cJSON_GetObjectItemCaseSensitive(meta, "total_size")) {
        rc = sl_json_u64(meta, "total_size", UINT64_MAX, &ix->total_size, SL_INDEX_NAME,
                         SL_E_SOURCE, err);
        if (rc) return rc;
        ix->has_total = true;
    }
    return walk_map(ix, map, err);
}

int sl_index_read(struct sl_index *ix, const char *path, uint64_t max_bytes, struct sl_err *err)
{
    memset(ix, 0, sizeof *ix);
    char *text;
    size_t len;
    int rc = sl_read_file(&text, &len, path, max_bytes, SL_E_SOURCE, err);
    if (rc) return rc;
    cJSON *tree;
    rc = sl_json_parse(&tree, text, len, SL_INDEX_NAME, SL_E_SOURCE, err);
    free(text);
    if (rc) return rc;
    rc = walk(ix, tree, err);
    cJSON_Delete(tree);
    if (rc) sl_index_free(ix);
    return rc;
}

void sl_index_free(struct sl_index *ix)
{
    sl_strmap_close(ix->file_of);
    sl_strmap_close(ix->files);
    memset(ix, 0, sizeof *ix);
}

int sl_index_file(const struct sl_index *ix, const char *name)
{
    uint32_t number = 0;
    return sl_strmap_get(ix->files, name, strlen(name), &number) ? (int)number : -1;
}

const char *sl_index_file_name(const struct sl_index *ix, uint32_t number, char *buf, size_t n)
{
    size_t len = 0;
    const char *name = sl_strmap_key(ix->files, number, &len);
    snprintf(buf, n, "%.*s", (int)len, name);
    return buf;
}
