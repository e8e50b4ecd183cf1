/* Opens a checkpoint and lets nothing unexplained through.
 *
 *   config.json -> index -> names of shards -> each header in turn -> inventory
 *
 * Config first: it tells another model at once and bounds everything after it (how many tensors there
 * can be bounds how long a header can be). Headers are read, checked and forgotten one by one, so that
 * the peak is the index tree, not the sum of all headers. What the inventory does not name is refused:
 * a tensor that we would not convert is a tensor that the model may need. */
#define _GNU_SOURCE
#include "convert/source.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "convert/hf_config.h"
#include "convert/inventory.h"
#include "convert/safetensors.h"
#include "convert/safetensors_index.h"
#include "convert/snapshot.h"

#define CONFIG_NAME      "config.json"
#define CONFIG_BYTES_MAX ((uint64_t)4 << 20)
#define INDEX_BYTES_MAX  ((uint64_t)256 << 20)
#define TEXT_PREFIX      "language_model."

struct opening {
    struct sl_source *s;
    struct sl_index index;
    bool has_index;
    const char *saved_dir;
    struct sl_sha256 *sha;
    uint64_t header_max;
    size_t tensor_room;
    struct sl_err *err;
};

static int no_memory(const struct opening *o, const char *what)
{
    return sl_fail(o->err, SL_E_NOMEM, o->s->dir, what, "out of memory");
}

/* ---- config ------------------------------------------------------------------------------------ */

static int read_config(struct sl_config *c, const char *dir, struct sl_sha256 *sha,
                       struct sl_err *err)
{
    char path[SL_PATH_MAX];
    char *text;
    size_t len;
    if (!sl_path_join(path, dir, CONFIG_NAME))
        return sl_fail(err, SL_E_SOURCE, dir, NULL, "the path is too long");
    int rc = sl_read_file(&text, &len, path, CONFIG_BYTES_MAX, SL_E_SOURCE, err);
    if (rc) return rc;
    rc = sl_hf_config_parse(c, text, len, CONFIG_NAME, err);
    if (!rc && sha) sl_sha256_add(sha, text, len);
    free(text);
    return rc;
}

int sl_source_read_config(struct sl_config *c, const char *dir, struct sl_err *err)
{
    char *found;
    int rc = sl_snapshot_find(&found, dir, err);
    if (rc) return rc;
    rc = read_config(c, found, NULL, err);
    free(found);
    return rc;
}

static int count_item(void *ctx, const struct sl_item *it)
{
    (void)it;
    ++*(uint64_t *)ctx;
    return 0;
}

/* Longest header (or index) that this config can explain: 1 KiB a tensor, where the release takes 150
 * bytes, and some room for metadata and the vision tensors. A tree costs many times its text, and a
 * hostile header must not buy gigabytes with a small model. */
static uint64_t explain_header(const struct sl_config *c)
{
    uint64_t n = 4096;
    sl_inventory_trunk(c, count_item, &n);
    for (int l = 0; l < c->n_layers; l++)
        if (sl_config_is_moe(c, l)) n += (uint64_t)c->n_experts * 6;
    return n * 1024 + (1 << 20);
}

/* ---- shards ------------------------------------------------------------------------------------ */

static int check_header_length(const struct opening *o, const struct sl_shard *sh,
                               uint64_t json_bytes)
{
    uint64_t max =
        o->header_max < SL_SAFETENSORS_HEADER_MAX ? o->header_max : SL_SAFETENSORS_HEADER_MAX;
    if (json_bytes > sh->bytes - 8)
        return sl_fail(o->err, SL_E_SOURCE, sh->name, "header",
                       "%llu bytes, larger than the file of %llu bytes",
                       (unsigned long long)json_bytes, (unsigned long long)sh->bytes);
    if (json_bytes < 2 || json_bytes > max)
        return sl_fail(o->err, SL_E_SOURCE, sh->name, "header",
                       "%llu bytes, expected 2 to %llu for this config",
                       (unsigned long long)json_bytes, (unsigned long long)max);
    return 0;
}

/* Header bytes, the length field included, from the shard itself. */
static int read_live_header(const struct opening *o, struct sl_shard *sh, char **header)
{
    struct stat st;
    /* NONBLOCK: a pipe under a shard's name must be refused, not waited for. */
    sh->fd = open(sh->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (sh->fd < 0 || fstat(sh->fd, &st))
        return sl_fail_errno(o->err, SL_E_SOURCE, errno, sh->name, "open");
    if (!S_ISREG(st.st_mode))
        return sl_fail(o->err, SL_E_SOURCE, sh->name, NULL, "not a regular file");
    sh->bytes = (uint64_t)st.st_size;
    if (sh->bytes < 8)
        return sl_fail(o->err, SL_E_SOURCE, sh->name, NULL,
                       "%llu bytes, too short for a safetensors file",
                       (unsigned long long)sh->bytes);
    unsigned char length[8];
    int rc = sl_pread_all(sh->fd, length, 8, 0, sh->name, SL_E_SOURCE, o->err);
    if (rc) return rc;
    uint64_t json_bytes = sl_le64(length);
    rc = check_header_length(o, sh, json_bytes);
    if (rc) return rc;
    sh->header_bytes = json_bytes + 8;
    *header = malloc(sh->header_bytes);
    if (!*header) return no_memory(o, sh->name);
    rc = sl_pread_all(sh->fd, *header, sh->header_bytes, 0, sh->name, SL_E_SOURCE, o->err);
    return rc;
}

/* The same from SAVED_DIR/NAME.header: header, then u64 size of the file that was freed. */
static int read_saved_header(const struct opening *o, struct sl_shard *sh, char **header)
{
    char path[SL_PATH_MAX];
    size_t len;
    int n = snprintf(path, sizeof path, "%s/%s.header", o->saved_dir, sh->name);
    if (n < 0 || (size_t)n >= sizeof path)
        return sl_fail(o->err, SL_E_SOURCE, o->saved_dir, NULL, "the path is too long");
    int rc = sl_read_file(header, &len, path, SL_SAFETENSORS_HEADER_MAX + 16, SL_E_SOURCE, o->err);
    if (rc) return rc;
    if (len < 16 || sl_le64(*header) != len - 16)
        return sl_fail(o->err, SL_E_SOURCE, path, NULL, "is not a saved header");
    sh->header_bytes = len - 8;
    sh->bytes = sl_le64(*header + sh->header_bytes);
    if (sh->bytes < 8) return sl_fail(o->err, SL_E_SOURCE, path, NULL, "is not a saved header");
    return check_header_length(o, sh, len - 16);
}

/* The first bytes of the identity are the config's; then name, size and header of each shard. */
static void add_identity(const struct opening *o, const struct sl_shard *sh, const char *header)
{
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)(sh->bytes >> (8 * i));
    sl_sha256_add(o->sha, sh->name, strlen(sh->name));
    sl_sha256_add(o->sha, size, sizeof size);
    sl_sha256_add(o->sha, header, sh->header_bytes);
}

static int check_against_index(const struct opening *o, const struct sl_src_tensor *t,
                               const struct sl_shard *sh, int file)
{
    uint32_t listed = 0;
    if (!sl_strmap_get(o->index.file_of, t->name, strlen(t->name), &listed))
        return sl_fail(o->err, SL_E_SOURCE, sh->name, t->name, "is not listed in " SL_INDEX_NAME);
    if ((int)listed == file) return 0;
    char name[256];
    return sl_fail(o->err, SL_E_SOURCE, sh->name, t->name,
                   "is in this file, " SL_INDEX_NAME " places it in %s",
                   sl_index_file_name(&o->index, listed, name, sizeof name));
}

/* Takes one shard's tensors over into the whole list and the table of names. */
static int add_tensors(struct opening *o, const struct sl_shard *sh,
                       const struct sl_src_tensor *list, uint32_t n)
{
    struct sl_source *s = o->s;
    if (n > UINT32_MAX / 2 - s->n_tensors) return no_memory(o, "tensors");
    if (s->n_tensors + (size_t)n > o->tensor_room) {
        size_t room = s->n_tensors + (size_t)n > o->tensor_room * 2 ? s->n_tensors + (size_t)n
                                                                    : o->tensor_room * 2;
        struct sl_src_tensor *more = realloc(s->tensors, room * sizeof *more);
        if (!more) return no_memory(o, "tensors");
        s->tensors = more;
        o->tensor_room = room;
    }
    int file = o->has_index ? sl_index_file(&o->index, sh->name) : -1;
    for (uint32_t i = 0; i < n; i++) {
        const struct sl_src_tensor *t = &list[i];
        int rc = o->has_index ? check_against_index(o, t, sh, file) : 0;
        if (rc) return rc;
        int put = sl_strmap_put(s->by_name, t->name, strlen(t->name), s->n_tensors);
        if (put < 0) return no_memory(o, "names");
        if (!put) {
            uint32_t other = 0;
            sl_strmap_get(s->by_name, t->name, strlen(t->name), &other);
            return sl_fail(o->err, SL_E_SOURCE, sh->name, t->name, "is in %s too",
                           s->shards[s->tensors[other].shard].name);
        }
        /* The sum cannot overflow: each file is below 2^63 and tiled, and there are few. */
        s->payload_bytes += t->bytes;
        s->tensors[s->n_tensors++] = *t;
    }
    return 0;
}

static int open_shard(struct opening *o, struct sl_shard *sh, uint32_t number)
{
    char *header = NULL;
    struct sl_src_tensor *list = NULL;
    uint32_t n = 0;
    struct stat st;
    /* A shard that is still there wins over its saved header. */
    bool live = !o->saved_dir || !stat(sh->path, &st);
    int rc = live ? read_live_header(o, sh, &header) : read_saved_header(o, sh, &header);
    if (!rc)
        rc = sl_safetensors_parse(&list, &n, &sh->names, header + 8, sh->header_bytes - 8,
                                  sh->header_bytes, sh->bytes, number, sh->name, o->err);
    if (!rc) add_identity(o, sh, header);
    free(header);
    if (!rc) rc = add_tensors(o, sh, list, n);
    free(list);
    return rc;
}

/* Takes the name over and opens its file. */
static int take_shard(struct opening *o, int number, char **name)
{
    struct sl_shard *sh = &o->s->shards[number];
    char path[SL_PATH_MAX];
    if (!sl_path_join(path, o->s->dir, *name))
        return sl_fail(o->err, SL_E_SOURCE, *name, NULL, "the path is too long");
    sh->name = *name;
    *name = NULL;
    sh->path = strdup(path);
    if (!sh->path) return no_memory(o, "shards");
    if (sl_interrupted()) return sl_fail(o->err, SL_E_INTR, o->s->dir, NULL, "interrupted");
    return open_shard(o, sh, (uint32_t)number);
}

static int open_shards(struct opening *o)
{
    struct sl_source *s = o->s;
    struct sl_names names = {0};
    int rc =
        sl_snapshot_shards(&names, s->dir, o->has_index ? &o->index : NULL, o->saved_dir, o->err);
    if (rc) return rc;
    s->shards = calloc((size_t)names.n, sizeof *s->shards);
    o->tensor_room = o->has_index ? sl_strmap_count(o->index.file_of) : 4096;
    s->by_name = sl_strmap_open(o->tensor_room);
    s->tensors = calloc(o->tensor_room, sizeof *s->tensors);
    if (!s->shards || !s->by_name || !s->tensors) {
        rc = no_memory(o, "shards");
        goto done;
    }
    for (int i = 0; i < names.n; i++) s->shards[i].fd = -1;
    s->n_shards = names.n;
    for (int i = 0; i < names.n && !rc; i++) rc = take_shard(o, i, &names.list[i]);
done:
    sl_names_free(&names);
    return rc;
}

/* ---- index ------------------------------------------------------------------------------------- */

static int read_index(struct opening *o)
{
    char path[SL_PATH_MAX];
    struct stat st;
    if (!sl_path_join(path, o->s->dir, SL_INDEX_NAME))
        return sl_fail(o->err, SL_E_SOURCE, o->s->dir, NULL, "the path is too long");
    if (lstat(path, &st)) {
        if (errno == ENOENT) return 0;
        return sl_fail_errno(o->err, SL_E_SOURCE, errno, path, "open");
    }
    uint64_t max = o->header_max < INDEX_BYTES_MAX ? o->header_max : INDEX_BYTES_MAX;
    int rc = sl_index_read(&o->index, path, max, o->err);
    o->has_index = !rc;
    return rc;
}

/* What the index lists must be there; what is there was looked up shard by shard. */
static int check_index(const struct opening *o)
{
    const struct sl_source *s = o->s;
    char file[256];
    for (size_t i = 0; i < sl_strmap_count(o->index.file_of); i++) {
        size_t len = 0;
        uint32_t at = 0;
        const char *name = sl_strmap_key(o->index.file_of, i, &len);
        if (sl_strmap_get(s->by_name, name, len, &at)) continue;
        char text[SL_TENSOR_NAME_MAX + 1];
        snprintf(text, sizeof text, "%.*s", (int)(len < sizeof text ? len : sizeof text - 1), name);
        sl_strmap_get(o->index.file_of, name, len, &at);
        return sl_fail(o->err, SL_E_SOURCE, sl_index_file_name(&o->index, at, file, sizeof file),
                       text, SL_INDEX_NAME " places it here, but the header lacks it");
    }
    if (o->index.has_total && o->index.total_size != s->payload_bytes)
        return sl_fail(o->err, SL_E_SOURCE, SL_INDEX_NAME, "metadata.total_size",
                       "%llu, but the shards hold %llu bytes of tensors",
                       (unsigned long long)o->index.total_size,
                       (unsigned long long)s->payload_bytes);
    return 0;
}

/* ---- inventory --------------------------------------------------------------------------------- */

struct inventory_check {
    const struct opening *o;
    uint8_t *seen;
    uint64_t missing;
    char first_missing[160];
};

static int check_item(void *ctx, const struct sl_item *it)
{
    struct inventory_check *k = ctx;
    const struct sl_source *s = k->o->s;
    const struct sl_src_tensor *t = sl_source_find(s, it->name);
    if (!t) {
        if (!k->missing++)
            snprintf(k->first_missing, sizeof k->first_missing, "%s%s", s->prefix, it->name);
        return 0;
    }
    k->seen[t - s->tensors] = 1;
    if (sl_item_accepts(it, &s->cfg, t->dtype, t->n_dims, t->shape)) return 0;
    char found[128];
    char want[128];
    return sl_fail(k->o->err, SL_E_SOURCE, s->shards[t->shard].name, t->name, "%s, expected %s",
                   sl_dtype_shape_text(found, sizeof found, t->dtype, t->n_dims, t->shape),
                   sl_dtype_shape_text(want, sizeof want, it->dtype, it->n_dims, it->shape));
}

bool sl_source_is_vision(const char *name)
{
    return !strncmp(name, "vision_tower.", 13) || !strncmp(name, "mm_projector.", 13);
}

/* Neither in the inventory nor a vision tensor of a floating type. */
static int check_rest(const struct inventory_check *k)
{
    const struct sl_source *s = k->o->s;
    uint64_t unknown = 0;
    const struct sl_src_tensor *first = NULL;
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        const struct sl_src_tensor *t = &s->tensors[i];
        if (k->seen[i]) continue;
        if (sl_source_is_vision(t->name)) {
            if (t->dtype != SL_DT_U8) continue;
            return sl_fail(k->o->err, SL_E_SOURCE, s->shards[t->shard].name, t->name,
                           "U8, expected BF16, F32 or F16 for a vision tensor");
        }
        if (!unknown++) first = t;
    }
    if (!unknown) return 0;
    return sl_fail(k->o->err, SL_E_SOURCE, s->shards[first->shard].name, first->name,
                   "is no tensor of this model (%llu such)", (unsigned long long)unknown);
}

static int check_inventory(const struct opening *o)
{
    const struct sl_source *s = o->s;
    struct inventory_check k = {.o = o, .seen = calloc((size_t)s->n_tensors + 1, 1)};
    if (!k.seen) return no_memory(o, "inventory");
    int rc = sl_inventory_trunk(&s->cfg, check_item, &k);
    for (int l = 0; l < s->cfg.n_layers && !rc; l++) {
        if (!sl_config_is_moe(&s->cfg, l)) continue;
        if (sl_interrupted()) rc = sl_fail(o->err, SL_E_INTR, s->dir, NULL, "interrupted");
        for (int e = 0; e < s->cfg.n_experts && !rc; e++)
            rc = sl_inventory_experts(&s->cfg, l, e, check_item, &k);
    }
    if (!rc && k.missing == 1)
        rc = sl_fail(o->err, SL_E_SOURCE, s->dir, k.first_missing, "missing from every shard");
    if (!rc && k.missing)
        rc = sl_fail(o->err, SL_E_SOURCE, s->dir, k.first_missing,
                     "missing from every shard, and so are %llu more tensors",
                     (unsigned long long)k.missing - 1);
    if (!rc) rc = check_rest(&k);
    free(k.seen);
    return rc;
}

/* "language_model." in the release; text-only copies drop it. Decided by one tensor, so that a mixture
 * fails by name. */
static void find_prefix(struct sl_source *s)
{
    uint32_t at;
    static const char plain[] = "model.embed_tokens.weight";
    bool bare = sl_strmap_get(s->by_name, plain, sizeof plain - 1, &at);
    snprintf(s->prefix, sizeof s->prefix, "%s", bare ? "" : TEXT_PREFIX);
}

/* ---- whole ------------------------------------------------------------------------------------- */

static int open_all(struct opening *o)
{
    struct sl_source *s = o->s;
    struct sl_names extras = {0};
    int rc = read_config(&s->cfg, s->dir, o->sha, o->err);
    if (rc) return rc;
    o->header_max = explain_header(&s->cfg);
    rc = read_index(o);
    if (!rc) rc = open_shards(o);
    if (!rc && o->has_index) rc = check_index(o);
    if (rc) return rc;
    sl_index_free(&o->index);
    find_prefix(s);
    rc = check_inventory(o);
    if (!rc) rc = sl_snapshot_extras(&extras, s->dir, o->err);
    if (rc) return rc;
    s->extra_files = extras.list;
    s->n_extra_files = extras.n;
    return 0;
}

int sl_source_open(struct sl_source **out, const char *dir, const struct sl_source_opts *opts,
                   struct sl_err *err)
{
    struct sl_source *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_E_NOMEM, dir, NULL, "out of memory");
    struct opening o = {.s = s, .err = err, .saved_dir = opts ? opts->saved_headers_dir : NULL};
    int rc = sl_snapshot_find(&s->dir, dir, err);
    if (!rc) {
        o.sha = sl_sha256_open();
        rc = o.sha ? open_all(&o) : no_memory(&o, "identity");
    }
    sl_sha256_close(o.sha, s->sha256);
    sl_index_free(&o.index);
    if (rc) {
        sl_source_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void sl_source_close(struct sl_source *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_shards; i++) {
        if (s->shards[i].fd >= 0) close(s->shards[i].fd);
        free(s->shards[i].name);
        free(s->shards[i].path);
        free(s->shards[i].names);
    }
    for (int i = 0; i < s->n_extra_files; i++) free(s->extra_files[i]);
    free(s->extra_files);
    free(s->shards);
    free(s->tensors);
    sl_strmap_close(s->by_name);
    free(s->dir);
    free(s);
}

const struct sl_src_tensor *sl_source_find(const struct sl_source *s, const char *name)
{
    char full[SL_TENSOR_NAME_MAX + 1];
    uint32_t at = 0;
    int n = snprintf(full, sizeof full, "%s%s", sl_source_is_vision(name) ? "" : s->prefix, name);
    if (n < 0 || (size_t)n >= sizeof full) return NULL;
    return sl_strmap_get(s->by_name, full, (size_t)n, &at) ? &s->tensors[at] : NULL;
}

void sl_source_expert(const struct sl_source *s, int layer, int expert,
                      const struct sl_src_tensor *out[6])
{
    static const char *const mats[3] = {"w1", "w3", "w2"};
    char name[128];
    for (int m = 0; m < 3; m++)
        for (int scale = 0; scale < 2; scale++) {
            snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.experts.%d.%s.weight_%s",
                     layer, expert, mats[m], scale ? "scale" : "packed");
            out[2 * m + scale] = sl_source_find(s, name);
            assert(out[2 * m + scale]); /* opening has seen every one */
        }
}

int sl_source_read(const struct sl_source *s, const struct sl_src_tensor *t, uint64_t at, void *buf,
                   uint64_t n, struct sl_err *err)
{
    assert(at <= t->bytes && n <= t->bytes - at);
    const struct sl_shard *sh = &s->shards[t->shard];
    if (sh->fd < 0)
        return sl_fail(err, SL_E_SOURCE, sh->name, t->name,
                       "the shard was freed by an earlier run, its data is gone");
    return sl_pread_all(sh->fd, buf, n, t->offset + at, sh->name, SL_E_SOURCE, err);
}
