/* Inputs: what checkpoint and pack have in common, and the choice between them. */
#define _GNU_SOURCE
#include "convert/input.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "convert/gguf.h"
#include "offload/pack.h"

#define EXTRA_BYTES_MAX ((uint64_t)1 << 30)

int sl_input_open(struct sl_input **out, const char *path, const char *saved_headers_dir,
                  struct sl_err *err)
{
    char manifest[SL_PATH_MAX];
    struct sl_pack *p = NULL;

    *out = NULL;
    if (!sl_path_join(manifest, path, "pack.json"))
        return sl_fail(err, SL_E_ARG, path, NULL, "path too long");
    if (access(manifest, F_OK))
        return sl_gguf_is(path) ? sl_input_open_gguf(out, path, err)
                                : sl_input_open_source(out, path, saved_headers_dir, err);
    int rc = sl_pack_open(&p, path, NULL, 0, err);
    if (rc) return rc;
    rc = sl_input_open_pack(out, p, p, err);
    if (rc) sl_pack_close(p);
    return rc;
}

void sl_input_close(struct sl_input *in)
{
    if (!in) return;
    for (int i = 0; i < in->n_extra; i++) {
        free(in->extra_names[i]);
        free(in->extra_paths[i]);
    }
    free(in->extra_names);
    free(in->extra_paths);
    free(in->source_json);
    free(in->vision);
    sl_gguf_input_close(in->gguf);
    if (in->source) sl_source_close(in->source);
    if (in->own_pack) sl_pack_close(in->own_pack);
    free(in);
}

bool sl_input_add_extra(struct sl_input *in, const char *dir, const char *name)
{
    size_t n = (size_t)in->n_extra + 1;
    char **names = realloc(in->extra_names, n * sizeof *names);
    if (!names) return false;
    in->extra_names = names;
    char **paths = realloc(in->extra_paths, n * sizeof *paths);
    if (!paths) return false;
    in->extra_paths = paths;
    char path[SL_PATH_MAX];
    if (!sl_path_join(path, dir, name)) return false;
    char *name_copy = strdup(name);
    char *path_copy = strdup(path);
    if (!name_copy || !path_copy) {
        free(name_copy);
        free(path_copy);
        return false;
    }
    int at = in->n_extra++;
    for (; at > 0 && strcmp(in->extra_names[at - 1], name) > 0; at--) { /* sorted: same bytes */
        in->extra_names[at] = in->extra_names[at - 1];
        in->extra_paths[at] = in->extra_paths[at - 1];
    }
    in->extra_names[at] = name_copy;
    in->extra_paths[at] = path_copy;
    return true;
}

int sl_count_entries(const char *dir, const char *other)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
             (!other || strcmp(e->d_name, other) != 0);
    closedir(d);
    return n;
}

const char *sl_input_file(const struct sl_input *in, const struct sl_in_tensor *t)
{
    if (in->gguf) return sl_gguf_input_file(in, t);
    return t->shard >= 0 ? in->source->shards[t->shard].name : in->pack->dir;
}

int sl_input_copy_extras(const struct sl_input *in, const char *dir, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    int rc = 0;
    for (int i = 0; !rc && i < in->n_extra; i++) {
        char *text;
        size_t len;
        if (!sl_path_join(path, dir, in->extra_names[i]))
            return sl_fail(err, SL_E_ARG, dir, NULL, "path too long");
        rc = sl_read_file(&text, &len, in->extra_paths[i], EXTRA_BYTES_MAX,
                          in->pack ? SL_E_PACK : SL_E_SOURCE, err);
        if (rc) return rc;
        rc = sl_write_file(path, text, len, err);
        free(text);
    }
    return rc;
}

const char *sl_mat_name(int mat)
{
    static const char *const names[SL_N_MATS] = {"w1", "w3", "w2"};
    return names[mat];
}

enum sl_fmt sl_fmt_of_dtype(int dtype)
{
    switch (dtype) {
    case SL_DT_BF16:
        return SL_FMT_BF16;
    case SL_DT_F32:
        return SL_FMT_F32;
    case SL_DT_F16:
        return SL_FMT_F16;
    case SL_DT_U8:
        return SL_FMT_U8;
    case SL_DT_T8:
        return SL_FMT_T8;
    default:
        return SL_FMT_NONE;
    }
}

int sl_dtype_of_fmt(enum sl_fmt fmt)
{
    for (int dtype = SL_DT_BF16; dtype < SL_DT_OTHER; dtype++)
        if (sl_fmt_of_dtype(dtype) == fmt) return dtype;
    return 0;
}
