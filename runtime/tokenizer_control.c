/* Control tokens, in a trie of bytes.
 *
 *   nodes  [ byte | id or -1 | first child | next sibling ]     node 0 is the root
 *
 * Most bytes of text start no name: a table of 256 first bytes answers for them. From a possible
 * start the trie is walked as far as it goes, at most SL_CONTROL_NAME_MAX_BYTES, and the deepest name
 * passed wins: `<|sep|>` and a longer name that starts with it may live together. With the release's
 * names a walk ends after at most 24 bytes, so "<|" five million times over is still linear. */
#include "runtime/tokenizer_control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "base/strmap.h"
#include "runtime/utf8.h"

struct node {
    int32_t id;       /* name that ends here, or -1 */
    uint32_t child;   /* first, 0: none */
    uint32_t sibling; /* next, 0: none */
    unsigned char byte;
};

struct sl_control {
    int32_t first, end;
    int32_t bos, eos;
    struct sl_strmap *map; /* name -> id */
    uint32_t *entry;       /* [end - first] index of the name in map */
    struct node *nodes;
    uint32_t n_nodes, room;
    uint32_t start[256]; /* root's child by byte, 0: none */
};

static int no_memory(struct sl_err *err, const char *path)
{
    return sl_fail(err, SL_E_NOMEM, path, NULL, "no memory for %s", "the control tokens");
}

/* New node, linked in before its siblings; 0: no memory. */
static uint32_t add_node(struct sl_control *c, uint32_t parent, unsigned char byte)
{
    if (c->n_nodes == c->room) {
        uint32_t room = c->room ? c->room * 2 : 1024;
        if (room < c->room) return 0;
        struct node *p = realloc(c->nodes, room * sizeof *p);
        if (!p) return 0;
        c->nodes = p;
        c->room = room;
    }
    uint32_t k = c->n_nodes++;
    c->nodes[k] = (struct node){.id = -1, .byte = byte};
    if (k > 0) {
        c->nodes[k].sibling = c->nodes[parent].child;
        c->nodes[parent].child = k;
        if (parent == 0) c->start[byte] = k;
    }
    return k;
}

static uint32_t child_of(const struct sl_control *c, uint32_t parent, unsigned char byte)
{
    uint32_t k = c->nodes[parent].child;
    while (k && c->nodes[k].byte != byte) k = c->nodes[k].sibling;
    return k;
}

static int add_to_trie(struct sl_control *c, const char *name, size_t len, int32_t id,
                       const char *path, struct sl_err *err)
{
    uint32_t at = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char b = (unsigned char)name[i];
        uint32_t next = at == 0 ? c->start[b] : child_of(c, at, b);
        if (!next) next = add_node(c, at, b);
        if (!next) return no_memory(err, path);
        at = next;
    }
    c->nodes[at].id = id;
    return 0;
}

static int add_name(struct sl_control *c, const char *name, int32_t id, const char *path,
                    const char *key, int code, struct sl_err *err)
{
    size_t len = strlen(name);
    if (len == 0 || len > SL_CONTROL_NAME_MAX_BYTES)
        return sl_fail(err, code, path, key, "name of %zu bytes, expected 1 to %u", len,
                       SL_CONTROL_NAME_MAX_BYTES);
    size_t good = sl_utf8_valid(name, len);
    if (good < len) return sl_fail(err, code, path, key, "name is not UTF-8 at byte %zu", good);
    uint32_t entry = (uint32_t)sl_strmap_count(c->map);
    int put = sl_strmap_put(c->map, name, len, (uint32_t)id);
    if (put < 0) return no_memory(err, path);
    if (put == 0) {
        uint32_t other = 0;
        sl_strmap_get(c->map, name, len, &other);
        return sl_fail(err, code, path, key, "name \"%s\" is that of id %u too", name, other);
    }
    c->entry[id - c->first] = entry;
    return add_to_trie(c, name, len, id, path, err);
}

/* added_tokens_decoder: { "163584": { "content": "[BOS]", ... }, ... } */
static int read_names(struct sl_control *c, const cJSON *root, bool *named, const char *path,
                      int code, struct sl_err *err)
{
    const char *dict_key = "added_tokens_decoder";
    const cJSON *dict = NULL;
    int rc = sl_json_obj(root, dict_key, &dict, path, code, err);
    if (rc) return rc;
    for (const cJSON *e = dict->child; e; e = e->next) {
        const char *key = e->string ? e->string : "";
        int64_t id = -1;
        size_t n = strlen(key);
        if (n > 0 && n <= 9) {
            id = 0;
            for (size_t i = 0; i < n && id >= 0; i++)
                id = key[i] >= '0' && key[i] <= '9' ? id * 10 + (key[i] - '0') : -1;
        }
        if (id < c->first || id >= c->end)
            return sl_fail(err, code, path, dict_key, "id \"%s\": expected %d to %d", key, c->first,
                           c->end - 1);
        if (named[id - c->first]) return sl_fail(err, code, path, dict_key, "id %s twice", key);
        char field[64];
        snprintf(field, sizeof field, "%s.%s", dict_key, key);
        if (!cJSON_IsObject(e)) return sl_fail(err, code, path, field, "expected an object");
        const char *content = NULL;
        rc = sl_json_str(e, "content", &content, path, code, err);
        if (!rc) rc = add_name(c, content, (int32_t)id, path, field, code, err);
        if (rc) return rc;
        named[id - c->first] = true;
    }
    return 0;
}

static int read_role(const struct sl_control *c, const cJSON *root, const char *key,
                     const char *usual, int32_t *id, const char *path, int code, struct sl_err *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(root, key);
    if (cJSON_IsObject(v)) v = cJSON_GetObjectItemCaseSensitive(v, "content");
    if (!v || cJSON_IsNull(v)) {
        *id = sl_control_find(c, usual, strlen(usual));
        return 0;
    }
    if (!cJSON_IsString(v)) return sl_fail(err, code, path, key, "expected a string");
    *id = sl_control_find(c, v->valuestring, strlen(v->valuestring));
    if (*id < 0)
        return sl_fail(err, code, path, key, "\"%s\" is not among the control tokens",
                       v->valuestring);
    return 0;
}

int sl_control_open(struct sl_control **out, const char *path, int32_t first, int32_t end, int code,
                    struct sl_err *err)
{
    cJSON *root = NULL;
    bool *named = NULL;
    size_t n = (size_t)(end - first);
    struct sl_control *c = calloc(1, sizeof *c);
    if (!c) return no_memory(err, path);
    c->first = first;
    c->end = end;
    c->map = sl_strmap_open(n);
    c->entry = calloc(n + 1, sizeof *c->entry);
    named = calloc(n + 1, sizeof *named);
    int rc = 0;
    if (!c->map || !c->entry || !named) {
        rc = no_memory(err, path);
        goto fail;
    }
    add_node(c, 0, 0);
    if (!c->nodes) {
        rc = no_memory(err, path);
        goto fail;
    }
    rc = sl_json_read(&root, path, SL_CONTROL_FILE_MAX_BYTES, code, err);
    if (rc) goto fail;
    rc = read_names(c, root, named, path, code, err);
    if (rc) goto fail;
    for (int32_t id = first; id < end; id++) {
        if (named[id - first]) continue;
        char name[64];
        snprintf(name, sizeof name, "<|reserved_token_%d|>", id);
        rc = add_name(c, name, id, path, "added_tokens_decoder", code, err);
        if (rc) goto fail;
    }
    rc = read_role(c, root, "bos_token", "[BOS]", &c->bos, path, code, err);
    if (!rc) rc = read_role(c, root, "eos_token", "[EOS]", &c->eos, path, code, err);
    if (rc) goto fail;
    free(named);
    cJSON_Delete(root);
    *out = c;
    return 0;
fail:
    free(named);
    cJSON_Delete(root);
    sl_control_close(c);
    return rc;
}

void sl_control_close(struct sl_control *c)
{
    if (!c) return;
    sl_strmap_close(c->map);
    free(c->entry);
    free(c->nodes);
    free(c);
}

int32_t sl_control_bos(const struct sl_control *c)
{
    return c->bos;
}

int32_t sl_control_eos(const struct sl_control *c)
{
    return c->eos;
}

int32_t sl_control_find(const struct sl_control *c, const char *name, size_t len)
{
    uint32_t id;
    return sl_strmap_get(c->map, name, len, &id) ? (int32_t)id : -1;
}

const char *sl_control_name(const struct sl_control *c, int32_t id, size_t *len)
{
    return sl_strmap_key(c->map, c->entry[id - c->first], len);
}

/* Longest name that text[len] starts with; 0: none. */
static size_t match_here(const struct sl_control *c, const char *text, size_t len, int32_t *id)
{
    size_t best = 0;
    uint32_t at = c->start[(unsigned char)text[0]];
    for (size_t i = 1; at; i++) {
        if (c->nodes[at].id >= 0) {
            best = i;
            *id = c->nodes[at].id;
        }
        if (i == len) break;
        at = child_of(c, at, (unsigned char)text[i]);
    }
    return best;
}

size_t sl_control_seek(const struct sl_control *c, const char *text, size_t len, size_t *n,
                       int32_t *id)
{
    for (size_t i = 0; i < len; i++) {
        if (!c->start[(unsigned char)text[i]]) continue;
        *n = match_here(c, text + i, len - i, id);
        if (*n) return i;
    }
    *n = 0;
    return len;
}
