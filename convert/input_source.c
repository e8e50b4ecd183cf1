/* A checkpoint as input: reads by offset from its shards.
 *
 * The six tensors of an expert lie side by side in the release, so one expert is one read of 17.5 MB;
 * a checkpoint that scatters them costs six reads. Scale planes that lie in a hole of a sparse file
 * are not read: that is how the full layout is checked without its 1.5 TB. */
#define _GNU_SOURCE
#include "convert/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "convert/identity.h"

static void fill(const struct sl_input *in, const struct sl_src_tensor *s, struct sl_in_tensor *t)
{
    size_t skip = strlen(in->prefix);
    memset(t, 0, sizeof *t);
    t->name = skip && !strncmp(s->name, in->prefix, skip) ? s->name + skip : s->name;
    t->dtype = s->dtype;
    t->n_dims = s->n_dims;
    memcpy(t->shape, s->shape, sizeof t->shape);
    t->bytes = s->bytes;
    t->shard = (int)s->shard;
    t->ref = s;
}

static bool src_find(const struct sl_input *in, const char *name, struct sl_in_tensor *t)
{
    const struct sl_src_tensor *s = sl_source_find(in->source, name);
    if (s) fill(in, s, t);
    return s;
}

static void src_vision(const struct sl_input *in, int i, struct sl_in_tensor *t)
{
    fill(in, &in->source->tensors[in->vision[i]], t);
}

static int src_read(const struct sl_input *in, const struct sl_in_tensor *t, uint64_t at, void *buf,
                    uint64_t n, struct sl_err *err)
{
    return sl_source_read(in->source, t->ref, at, buf, n, err);
}

/* First byte of the expert's only range, or false when its tensors are scattered. */
static bool one_range(const struct sl_src_tensor *const t[6], uint64_t *start, uint64_t *bytes)
{
    uint64_t lo = UINT64_MAX;
    uint64_t hi = 0;
    uint64_t sum = 0;
    for (int k = 0; k < 6; k++) {
        if (t[k]->shard != t[0]->shard) return false;
        if (t[k]->offset < lo) lo = t[k]->offset;
        if (t[k]->offset + t[k]->bytes > hi) hi = t[k]->offset + t[k]->bytes;
        sum += t[k]->bytes;
    }
    *start = lo;
    *bytes = sum;
    return hi - lo == sum; /* tensors do not overlap: the source was checked for that */
}

static int src_read_expert(const struct sl_input *in, int layer, int expert, uint8_t *scratch,
                           struct sl_in_expert *out, struct sl_err *err)
{
    const struct sl_source *s = in->source;
    const struct sl_src_tensor *t[6];
    const uint8_t *data[6];
    uint64_t start;
    uint64_t bytes;

    sl_source_expert(s, layer, expert, t);
    const struct sl_shard *shard = &s->shards[t[0]->shard];
    if (shard->fd >= 0 && one_range(t, &start, &bytes)) {
        int rc = sl_pread_all(shard->fd, scratch, bytes, start, shard->name, SL_E_SOURCE, err);
        if (rc) return rc;
        for (int k = 0; k < 6; k++) data[k] = scratch + (t[k]->offset - start);
    } else {
        for (int k = 0; k < 6; k++) {
            int rc = sl_source_read(s, t[k], 0, scratch, t[k]->bytes, err);
            if (rc) return rc;
            data[k] = scratch;
            scratch += t[k]->bytes;
        }
    }
    for (int m = 0; m < SL_N_MATS; m++) {
        out->codes[m] = data[2 * m];
        out->scales[m] = data[2 * m + 1];
    }
    return 0;
}

static void src_prefetch_expert(const struct sl_input *in, int layer, int expert)
{
    const struct sl_src_tensor *t[6];
    uint64_t start;
    uint64_t bytes;
    sl_source_expert(in->source, layer, expert, t);
    int fd = in->source->shards[t[0]->shard].fd;
    if (fd >= 0 && one_range(t, &start, &bytes))
        (void)posix_fadvise(fd, (off_t)start, (off_t)bytes, POSIX_FADV_WILLNEED);
}

/* File systems without holes answer that data starts right here. */
static bool is_hole(int fd, uint64_t off, uint64_t bytes)
{
    off_t data = lseek(fd, (off_t)off, SEEK_DATA);
    if (data < 0) return errno == ENXIO;
    return (uint64_t)data >= off + bytes;
}

static int src_read_scales(const struct sl_input *in, int layer, int expert, int mat,
                           uint8_t *scratch, const uint8_t **scales, struct sl_err *err)
{
    const struct sl_src_tensor *t[6];
    sl_source_expert(in->source, layer, expert, t);
    const struct sl_src_tensor *s = t[2 * mat + 1];
    int fd = in->source->shards[s->shard].fd;
    *scales = NULL;
    if (fd >= 0 && is_hole(fd, s->offset, s->bytes)) return 0;
    *scales = scratch;
    return sl_source_read(in->source, s, 0, scratch, s->bytes, err);
}

static void src_name_scales(const struct sl_input *in, int layer, int expert, int mat, char *file,
                            char *tensor, size_t n)
{
    const struct sl_src_tensor *t[6];
    sl_source_expert(in->source, layer, expert, t);
    const struct sl_src_tensor *s = t[2 * mat + 1];
    snprintf(file, n, "%s", in->source->shards[s->shard].name);
    snprintf(tensor, n, "%s", s->name);
}

static const struct sl_input_ops source_ops = {
    .find = src_find,
    .vision = src_vision,
    .read = src_read,
    .read_expert = src_read_expert,
    .read_scales = src_read_scales,
    .name_scales = src_name_scales,
    .prefetch_expert = src_prefetch_expert,
};

static bool list_vision(struct sl_input *in)
{
    const struct sl_source *s = in->source;
    int n = 0;
    for (uint32_t i = 0; i < s->n_tensors; i++) n += sl_source_is_vision(s->tensors[i].name);
    in->vision = calloc((size_t)n + 1, sizeof *in->vision);
    if (!in->vision) return false;
    for (uint32_t i = 0; i < s->n_tensors; i++)
        if (sl_source_is_vision(s->tensors[i].name)) in->vision[in->n_vision++] = i;
    return true;
}

static struct sl_identity_file identity_file(const void *src, int i)
{
    const struct sl_shard *f = &((const struct sl_source *)src)->shards[i];
    return (struct sl_identity_file){f->name, f->bytes, f->header_bytes};
}

int sl_input_open_source(struct sl_input **out, const char *path, const char *saved_headers_dir,
                         struct sl_err *err)
{
    const struct sl_source_opts opts = {.saved_headers_dir = saved_headers_dir};
    struct sl_input *in = calloc(1, sizeof *in);
    int rc;

    *out = NULL;
    if (!in) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    in->ops = &source_ops;
    rc = sl_source_open(&in->source, path, &opts, err);
    if (rc) goto fail;
    struct sl_source *s = in->source;
    in->files_dir = s->dir;
    in->cfg = s->cfg;
    snprintf(in->prefix, sizeof in->prefix, "%s", s->prefix);
    snprintf(in->sha256, sizeof in->sha256, "%s", s->sha256);
    for (int i = 0; i < s->n_shards; i++) in->file_bytes += s->shards[i].bytes;
    in->scratch_bytes = sl_expert_bytes(&in->cfg);
    in->source_json = sl_identity_render(&(struct sl_identity){.sha256 = s->sha256,
                                                               .prefix = s->prefix,
                                                               .payload_bytes = s->payload_bytes,
                                                               .n_files = s->n_shards,
                                                               .file = identity_file,
                                                               .src = s});
    bool ok = in->source_json && list_vision(in);
    for (int i = 0; ok && i < s->n_extra_files; i++)
        ok = sl_input_add_extra(in, s->dir, s->extra_files[i]);
    if (!ok) {
        rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
        goto fail;
    }
    *out = in;
    return 0;
fail:
    sl_input_close(in);
    return rc;
}
