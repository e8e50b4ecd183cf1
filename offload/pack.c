/* Opening a pack: pack.json first, then every file it names, each held to what the manifest says.
 *
 *   pack.json -> config, tensor tables, ranges, bank list
 *   trunk.bin, vision.bin                      sizes equal to the manifest's
 *   experts/L###.bank (here or on other drives) header, index, every entry (bank.c)
 *
 * A pack is input like any other: it may be cut, half copied, or made to hurt. Nothing after this file
 * checks an offset again, so nothing may pass that is not exactly what the layout allows. Files that
 * are missing are all named in one line, so that a person copies them once. */
#define _GNU_SOURCE
#include "offload/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/size.h"
#include "offload/bank.h"
#include "offload/pack_tensors.h"

#define MANIFEST_MAX ((uint64_t)64 << 20) /* the release needs 0.6 MB */
#define EXACT_MAX    ((uint64_t)1 << 53)

#define MAX_COPIES 31 /* of a bank, beside the first */

/* While a pack is being opened. */
struct opening {
    struct sl_pack *p;
    char file[SL_PATH_MAX]; /* DIR/pack.json, for messages */
    cJSON *root;
    const char *const *extra_dirs;
    int n_extra;
    struct sl_bank_shape shape;
    char missing[640]; /* files not found, as a list */
    int n_missing, n_listed;
};

static int no_memory(struct opening *o, struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, o->file, NULL, "out of memory");
}

static int copy_string(struct opening *o, const cJSON *obj, const char *key, char **out,
                       struct sl_err *err)
{
    const char *s = NULL;
    int rc = sl_json_str(obj, key, &s, o->file, SL_E_PACK, err);
    if (rc) return rc;
    *out = strdup(s);
    return *out ? 0 : no_memory(o, err);
}

static int read_format(struct opening *o, const char *key, enum sl_fmt *out, struct sl_err *err)
{
    const char *name = NULL;
    int rc = sl_json_str(o->root, key, &name, o->file, SL_E_PACK, err);
    if (rc) return rc;
    *out = sl_fmt_by_name(name);
    if (*out == SL_FMT_NONE)
        return sl_fail(err, SL_E_PACK, o->file, key, "unknown format \"%.32s\"", name);
    return 0;
}

/* Which pack this is, and whether this build can read it. */
static int read_identity(struct opening *o, struct sl_err *err)
{
    const char *format = NULL;
    int64_t version = 0;
    const cJSON *source = NULL;
    struct sl_pack *p = o->p;
    int rc = sl_json_str(o->root, "format", &format, o->file, SL_E_PACK, err);
    if (rc) return rc;
    if (strcmp(format, "sluice-pack") != 0)
        return sl_fail(err, SL_E_PACK, o->file, "format", "\"%.32s\", expected \"sluice-pack\"",
                       format);
    rc = sl_json_int(o->root, "version", 1, INT32_MAX, &version, o->file, SL_E_PACK, err);
    if (rc) return rc;
    if (version != SL_PACK_VERSION)
        return sl_fail(err, SL_E_PACK, o->file, "version",
                       "%lld, this build reads version %d: use a newer sluice", (long long)version,
                       SL_PACK_VERSION);
    rc = copy_string(o, o->root, "tool", &p->tool_version, err);
    if (!rc) rc = sl_json_obj(o->root, "source", &source, o->file, SL_E_PACK, err);
    if (!rc) rc = copy_string(o, source, "sha256", &p->source_sha256, err);
    if (!rc) rc = copy_string(o, source, "prefix", &p->source_prefix, err);
    if (!rc) p->synthetic = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(source, "synthetic"));
    if (!rc)
        rc = sl_json_u64(source, "payload_bytes", EXACT_MAX, &p->source_payload_bytes, o->file,
                         SL_E_PACK, err);
    if (rc) return rc;
    if (strlen(p->source_sha256) != 64 || strspn(p->source_sha256, "0123456789abcdef") != 64)
        return sl_fail(err, SL_E_PACK, o->file, "source.sha256",
                       "must be 64 lower-case hex digits, found \"%.80s\"", p->source_sha256);
    rc = read_format(o, "experts", &p->experts_fmt, err);
    return rc ? rc : read_format(o, "trunk", &p->trunk_fmt, err);
}

static int read_range(struct opening *o, const cJSON *obj, const char *what, uint64_t *at,
                      uint64_t *bytes, struct sl_err *err)
{
    int rc = sl_json_u64(obj, "offset", EXACT_MAX, at, o->file, SL_E_PACK, err);
    if (!rc) rc = sl_json_u64(obj, "bytes", EXACT_MAX, bytes, o->file, SL_E_PACK, err);
    if (rc) return rc;
    if (*at % SL_PAGE)
        return sl_fail(err, SL_E_PACK, o->file, what, "offset %llu is not a multiple of %u",
                       (unsigned long long)*at, SL_PAGE);
    if (*at > o->p->trunk_bytes || *bytes > o->p->trunk_bytes - *at)
        return sl_fail(err, SL_E_PACK, o->file, what, "%llu bytes at %llu, but trunk.bin has %llu",
                       (unsigned long long)*bytes, (unsigned long long)*at,
                       (unsigned long long)o->p->trunk_bytes);
    return 0;
}

static int read_ranges(struct opening *o, struct sl_err *err)
{
    const cJSON *list = NULL;
    const cJSON *globals = NULL;
    struct sl_pack *p = o->p;
    int rc = sl_json_arr(o->root, "layers", &list, o->file, SL_E_PACK, err);
    int layer = 0;
    for (const cJSON *v = rc ? NULL : list->child; v && !rc; v = v->next, layer++) {
        char what[32];
        snprintf(what, sizeof what, "layers[%d]", layer);
        if (layer == p->cfg.n_layers) break;
        rc = read_range(o, v, what, &p->layer_range[layer].offset, &p->layer_range[layer].bytes,
                        err);
    }
    if (rc) return rc;
    if (cJSON_GetArraySize(list) != p->cfg.n_layers)
        return sl_fail(err, SL_E_PACK, o->file, "layers", "%d entries for %d layers",
                       cJSON_GetArraySize(list), p->cfg.n_layers);
    rc = sl_json_obj(o->root, "globals", &globals, o->file, SL_E_PACK, err);
    if (rc) return rc;
    return read_range(o, globals, "globals", &p->globals_range.offset, &p->globals_range.bytes,
                      err);
}

static int read_tensors(struct opening *o, struct sl_err *err)
{
    const cJSON *trunk = NULL;
    const cJSON *vision = NULL;
    struct sl_pack *p = o->p;
    int rc = sl_json_obj(o->root, "tensors", &trunk, o->file, SL_E_PACK, err);
    if (!rc) rc = sl_json_obj(o->root, "vision", &vision, o->file, SL_E_PACK, err);
    if (!rc)
        rc = sl_pack_read_tensors(&p->tensors, &p->n_tensors, trunk, "trunk.bin", p->trunk_bytes,
                                  false, o->file, err);
    if (!rc)
        rc = sl_pack_read_tensors(&p->vision, &p->n_vision, vision, "vision.bin", p->vision_bytes,
                                  true, o->file, err);
    if (!rc) rc = sl_pack_name_tensors(p, o->file, err);
    return rc ? rc : sl_pack_check_ranges(p, o->file, err);
}

/* Opens DIR/name and holds it to `bytes`. */
static int open_data(struct opening *o, const char *name, uint64_t bytes, int *fd,
                     struct sl_err *err)
{
    char path[SL_PATH_MAX];
    struct stat st;
    if (!sl_path_join(path, o->p->dir, name))
        return sl_fail_errno(err, SL_E_PACK, ENAMETOOLONG, o->p->dir, name);
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return sl_fail_errno(err, SL_E_PACK, errno, path, "open");
    if (fstat(*fd, &st)) return sl_fail_errno(err, SL_E_PACK, errno, path, "size");
    if (!S_ISREG(st.st_mode)) return sl_fail(err, SL_E_PACK, path, NULL, "not a regular file");
    if ((uint64_t)st.st_size != bytes)
        return sl_fail(err, SL_E_PACK, path, NULL,
                       "the file has %lld bytes, pack.json says %llu: %s", (long long)st.st_size,
                       (unsigned long long)bytes,
                       (uint64_t)st.st_size < bytes ? "it is cut" : "there are too many");
    return 0;
}

/* ------------------------------------------------------------------ banks */

static bool is_file(const char *path)
{
    struct stat st;
    return !stat(path, &st) && !S_ISDIR(st.st_mode);
}

/* The folders where a bank may be, in order: --bank-dir (drives move), where it was written, inside.
 * False when there is no i-th one. */
static bool bank_folder(const struct opening *o, const char *dir, int i, char folder[SL_PATH_MAX])
{
    if (i < o->n_extra) return snprintf(folder, SL_PATH_MAX, "%s", o->extra_dirs[i]) < SL_PATH_MAX;
    if (i > o->n_extra) return i == o->n_extra + 1 && sl_path_join(folder, o->p->dir, "experts");
    return dir[0] == '/' ? snprintf(folder, SL_PATH_MAX, "%s", dir) < SL_PATH_MAX
                         : sl_path_join(folder, o->p->dir, dir);
}

/* The file of that name in the first folder from *i on that has one; *i is the next folder then. */
static bool find_bank(const struct opening *o, const char *dir, const char *name, int *i,
                      char path[SL_PATH_MAX])
{
    char folder[SL_PATH_MAX];
    while (*i < o->n_extra + 2)
        if (bank_folder(o, dir, (*i)++, folder) && sl_path_join(path, folder, name) &&
            is_file(path))
            return true;
    return false;
}

static int check_extra_dirs(const struct opening *o, struct sl_err *err)
{
    for (int i = 0; i < o->n_extra; i++)
        if (!sl_is_dir(o->extra_dirs[i]))
            return sl_fail(err, SL_E_PACK, o->extra_dirs[i], "--bank-dir",
                           "no such folder; is its drive there?");
    return 0;
}

static void note_missing(struct opening *o, const char *dir, const char *name)
{
    size_t used = strlen(o->missing);
    size_t room = sizeof o->missing - used;
    int n = snprintf(o->missing + used, room, "%s%s/%s", o->n_missing ? ", " : "", dir, name);
    o->n_missing++;
    if (n < 0 || (size_t)n >= room)
        o->missing[used] = '\0'; /* the count tells of the rest */
    else
        o->n_listed++;
}

/* "experts/L003.bank" when the path lies inside the pack, the path itself otherwise. */
static const char *label_of(const struct sl_pack *p, const char *path)
{
    size_t n = strlen(p->dir);
    if (strncmp(path, p->dir, n) != 0) return path;
    if (path[n] == '/') return path + n + 1;
    return n && path[n - 1] == '/' ? path + n : path;
}

static int open_bank(struct opening *o, const char *dir, const char *name, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    struct sl_pack *p = o->p;
    int i = 0;
    if (!p->banks) return no_memory(o, err);
    if (!find_bank(o, dir, name, &i, path)) {
        note_missing(o, dir, name);
        return 0;
    }
    struct sl_bank *b = &p->banks[p->n_banks];
    int rc = sl_bank_open(b, path, label_of(p, path), &o->shape, err);
    if (rc) return rc;
    p->n_banks++;
    while (!rc && b->n_copies < MAX_COPIES && find_bank(o, dir, name, &i, path))
        rc = sl_bank_add_copy(b, path, err);
    return rc;
}

/* dir and file of banks[layer]; both NULL for null. */
static int read_bank_entry(struct opening *o, const cJSON *v, int layer, const char **dir,
                           const char **name, struct sl_err *err)
{
    bool moe = sl_config_is_moe(&o->p->cfg, layer);
    char what[32];
    snprintf(what, sizeof what, "banks[%d]", layer);
    *dir = *name = NULL;
    if (cJSON_IsNull(v)) {
        if (!moe) return 0;
        return sl_fail(err, SL_E_PACK, o->file, what, "null, but layer %d has routed experts",
                       layer);
    }
    if (!cJSON_IsObject(v)) return sl_fail(err, SL_E_PACK, o->file, what, "must be an object");
    if (!moe)
        return sl_fail(err, SL_E_PACK, o->file, what, "layer %d has no routed experts", layer);
    int rc = sl_json_str(v, "dir", dir, o->file, SL_E_PACK, err);
    if (!rc) rc = sl_json_str(v, "file", name, o->file, SL_E_PACK, err);
    if (rc) return rc;
    if (!**dir || !**name || strchr(*name, '/') || !strcmp(*name, ".") || !strcmp(*name, ".."))
        return sl_fail(err, SL_E_PACK, o->file, what, "\"%.80s\" in \"%.80s\" is not a file name",
                       *name, *dir);
    return 0;
}

static int read_banks(struct opening *o, struct sl_err *err)
{
    struct sl_pack *p = o->p;
    const cJSON *list = NULL;
    int rc = sl_json_arr(o->root, "banks", &list, o->file, SL_E_PACK, err);
    if (rc) return rc;
    if (cJSON_GetArraySize(list) != p->cfg.n_layers)
        return sl_fail(err, SL_E_PACK, o->file, "banks", "%d entries for %d layers",
                       cJSON_GetArraySize(list), p->cfg.n_layers);
    struct sl_strmap *seen = sl_strmap_open((size_t)p->cfg.n_layers);
    p->banks = calloc((size_t)p->cfg.n_layers, sizeof *p->banks);
    if (!seen || !p->banks) rc = no_memory(o, err);
    int layer = 0;
    for (const cJSON *v = rc ? NULL : list->child; v && !rc; v = v->next, layer++) {
        const char *dir;
        const char *name;
        p->bank_of[layer] = -1;
        rc = read_bank_entry(o, v, layer, &dir, &name, err);
        if (rc || !name) continue;
        /* Layers that name one file share one bank. "/" cannot be part of a name, so it joins. */
        char key[SL_PATH_MAX * 2];
        int n = snprintf(key, sizeof key, "%s/%s", dir, name);
        uint32_t bank = (uint32_t)p->n_banks;
        if (n < 0 || (size_t)n >= sizeof key) {
            rc = sl_fail_errno(err, SL_E_PACK, ENAMETOOLONG, o->file, "banks");
            continue;
        }
        int put = sl_strmap_put(seen, key, (size_t)n, bank);
        if (put < 0) rc = no_memory(o, err);
        if (put == 0) (void)sl_strmap_get(seen, key, (size_t)n, &bank);
        if (put == 1) rc = open_bank(o, dir, name, err);
        p->bank_of[layer] = (int)bank;
    }
    sl_strmap_close(seen);
    if (!rc && o->n_missing)
        rc = sl_fail(err, SL_E_PACK, o->file, "banks",
                     "%d bank file%s not found: %s%s; give the folder with --bank-dir",
                     o->n_missing, o->n_missing == 1 ? "" : "s", o->missing,
                     o->n_listed < o->n_missing ? ", ..." : "");
    return rc;
}

static int check_slot_bytes(struct opening *o, uint64_t slot_bytes, struct sl_err *err)
{
    struct sl_pack *p = o->p;
    p->slot_bytes = 0;
    for (int b = 0; b < p->n_banks; b++) {
        uint32_t most = sl_bank_max_record(&p->banks[b]);
        if (most > p->slot_bytes) p->slot_bytes = most;
    }
    if (slot_bytes == p->slot_bytes) return 0;
    return sl_fail(err, SL_E_PACK, o->file, "slot_bytes",
                   "%llu, but the largest record of the banks has %u",
                   (unsigned long long)slot_bytes, p->slot_bytes);
}

/* ------------------------------------------------------------------ whole */

static int read_manifest(struct opening *o, struct sl_err *err)
{
    struct sl_pack *p = o->p;
    const cJSON *config = NULL;
    uint64_t slot_bytes = 0;
    int rc = sl_json_read(&o->root, o->file, MANIFEST_MAX, SL_E_PACK, err);
    if (rc) return rc;
    if (!cJSON_IsObject(o->root))
        return sl_fail(err, SL_E_PACK, o->file, NULL, "not a JSON object");
    rc = read_identity(o, err);
    if (!rc) rc = sl_json_obj(o->root, "config", &config, o->file, SL_E_PACK, err);
    if (!rc) rc = sl_config_from_json(&p->cfg, config, o->file, SL_E_PACK, err);
    const struct {
        const char *key;
        uint64_t *out;
    } sizes[] = {{"slot_bytes", &slot_bytes},
                 {"trunk_bytes", &p->trunk_bytes},
                 {"vision_bytes", &p->vision_bytes}};
    for (int i = 0; i < 3 && !rc; i++)
        rc = sl_json_u64(o->root, sizes[i].key, EXACT_MAX, sizes[i].out, o->file, SL_E_PACK, err);
    if (!rc) rc = read_ranges(o, err);
    if (!rc) rc = read_tensors(o, err);
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(o->root, "ranks");
    if (!rc && ranks) rc = sl_rank_plan_read(&p->ranks, ranks, &p->cfg, o->file, err);
    if (!rc) rc = open_data(o, "trunk.bin", p->trunk_bytes, &p->trunk_fd, err);
    if (!rc && p->vision_bytes)
        rc = open_data(o, "vision.bin", p->vision_bytes, &p->vision_fd, err);
    if (rc) return rc;
    o->shape = (struct sl_bank_shape){.n_experts = (uint32_t)p->cfg.n_experts,
                                      .latent = p->cfg.latent_size,
                                      .width = p->cfg.moe_intermediate_size,
                                      .slot_bytes = slot_bytes};
    rc = check_extra_dirs(o, err);
    if (!rc) rc = read_banks(o, err);
    return rc ? rc : check_slot_bytes(o, slot_bytes, err);
}

/* Says what the folder is when it is no pack: half converted, or a checkpoint. */
static int explain_missing(const struct opening *o, const char *dir, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    struct stat st;
    if (!sl_is_dir(dir))
        return sl_fail(err, SL_E_PACK, dir, NULL, "%s",
                       access(dir, F_OK) ? "no such folder" : "not a folder: a pack is one");
    if (sl_path_join(path, dir, ".convert") && !stat(path, &st))
        return sl_fail(err, SL_E_PACK, dir, NULL,
                       "the conversion is not finished; run the same 'sluice convert' again");
    if (sl_path_join(path, dir, "config.json") && !stat(path, &st))
        return sl_fail(err, SL_E_PACK, dir, NULL,
                       "a checkpoint, not a pack; 'sluice convert' makes one of it");
    return sl_fail(err, SL_E_PACK, o->file, NULL, "missing: the folder is not a pack");
}

int sl_pack_open(struct sl_pack **out, const char *dir, const char *const *extra_dirs, int n_extra,
                 struct sl_err *err)
{
    *out = NULL;
    struct sl_pack *p = calloc(1, sizeof *p);
    struct opening *o = calloc(1, sizeof *o);
    int rc = 0;
    if (!p || !o) {
        rc = sl_fail(err, SL_E_NOMEM, dir, NULL, "out of memory");
        goto done;
    }
    p->trunk_fd = p->vision_fd = -1;
    o->p = p;
    o->extra_dirs = extra_dirs;
    o->n_extra = n_extra;
    if (!sl_path_join(o->file, dir, "pack.json")) {
        rc = sl_fail_errno(err, SL_E_PACK, ENAMETOOLONG, NULL, "pack");
        goto done;
    }
    p->dir = strdup(dir);
    if (!p->dir) {
        rc = no_memory(o, err);
        goto done;
    }
    rc = access(o->file, F_OK) ? explain_missing(o, dir, err) : read_manifest(o, err);
done:
    if (o) cJSON_Delete(o->root);
    free(o);
    if (rc) {
        sl_pack_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void sl_pack_close(struct sl_pack *p)
{
    if (!p) return;
    for (int b = 0; b < p->n_banks; b++) sl_bank_close(&p->banks[b]);
    free(p->banks);
    sl_rank_plan_close(p->ranks);
    if (p->trunk_fd >= 0) close(p->trunk_fd);
    if (p->vision_fd >= 0) close(p->vision_fd);
    sl_strmap_close(p->by_name);
    free(p->tensors);
    free(p->vision);
    free(p->source_sha256);
    free(p->source_prefix);
    free(p->tool_version);
    free(p->dir);
    free(p);
}

static bool find_index(const struct sl_pack *p, const char *name, uint32_t *i)
{
    return sl_strmap_get(p->by_name, name, strlen(name) + 1, i);
}

const struct sl_tensor *sl_pack_find(const struct sl_pack *p, const char *name)
{
    uint32_t i;
    return find_index(p, name, &i) && i < (uint32_t)p->n_tensors ? &p->tensors[i] : NULL;
}

const struct sl_tensor *sl_pack_find_vision(const struct sl_pack *p, const char *name)
{
    uint32_t i;
    return find_index(p, name, &i) && i >= (uint32_t)p->n_tensors
               ? &p->vision[i - (uint32_t)p->n_tensors]
               : NULL;
}

uint64_t sl_pack_bank_bytes(const struct sl_pack *p)
{
    uint64_t bytes = 0;
    for (int b = 0; b < p->n_banks; b++) bytes += p->banks[b].file_bytes;
    return bytes;
}
