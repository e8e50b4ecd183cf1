/* The trunk in one block of memory: tensors as they lie in the file, plus widened vectors.
 *
 *   arena  [ tensor, on a page | tensor | ... | f32 copies of bf16 and f16 vectors, 64 B each ]
 *
 * Tensors that are held lie in file order, each on a page, as they do in the file: neighbours there are
 * neighbours here and come in one direct read without a copy. Two tensors that share bytes of the file are
 * two tensors here. Widening is exact, so a matrix that happens to fall under the rule for vectors still
 * gives the same products. */
#define _GNU_SOURCE
#include "offload/trunk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "kernels/half.h"
#include "offload/trunk_parts.h"

#define VECTOR_ALIGN 64u
#define TAPS_MAX     16 /* largest conv_kernel that a config may have */

struct sl_trunk {
    const struct sl_pack *p;
    const uint8_t **held;  /* [n_tensors]; NULL where a tensor is not held */
    const float **widened; /* [n_tensors]; NULL where the bytes serve */
    struct sl_direct_file file;
    bool file_open;
    char path[SL_PATH_MAX];
    uint64_t bytes_read;
};

static uint64_t elements(const struct sl_tensor *t)
{
    uint64_t n = 1; /* the pack has checked that the bytes, hence the product, fit */
    for (int i = 0; i < t->n_dims; i++) n *= (uint64_t)t->shape[i];
    return n;
}

bool sl_trunk_is_widened(const struct sl_tensor *t)
{
    if (t->fmt != SL_FMT_BF16 && t->fmt != SL_FMT_F16) return false;
    return t->n_dims != 2 || t->shape[0] == 1 || t->shape[1] <= TAPS_MAX;
}

static uint64_t widened_bytes(const struct sl_tensor *t)
{
    return sl_trunk_is_widened(t) ? sl_align_up(elements(t) * sizeof(float), VECTOR_ALIGN) : 0;
}

uint64_t sl_trunk_held_bytes(const struct sl_tensor *t)
{
    return sl_align_up(t->bytes, SL_PAGE) + widened_bytes(t);
}

uint64_t sl_trunk_bytes(const struct sl_pack *p)
{
    /* A page more than used: the arena may stand anywhere when we are called, and the promise has to
     * hold to the byte. */
    uint64_t bytes = SL_PAGE;
    for (int i = 0; i < p->n_tensors; i++) bytes += sl_trunk_held_bytes(&p->tensors[i]);
    return bytes;
}

/* Bytes [from, from + n) of the file to a page. */
static int read_range(struct sl_trunk *t, uint8_t *to, uint64_t n, uint64_t from,
                      struct sl_err *err)
{
    for (uint64_t at = 0; at < n; at += SL_PIECE_BYTES) {
        const uint64_t left = n - at;
        const size_t step = (size_t)(left < SL_PIECE_BYTES ? left : SL_PIECE_BYTES);
        if (sl_interrupted()) return sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
        int64_t got = sl_direct_read(&t->file, to + at, step, from + at);
        if (got < 0) return sl_fail_errno(err, SL_E_IO, (int)-got, t->path, "read");
        if ((uint64_t)got < step)
            return sl_fail(err, SL_E_PACK, t->path, NULL,
                           "the file ends at %llu, pack.json says %llu",
                           (unsigned long long)from + at + (unsigned long long)got,
                           (unsigned long long)t->p->trunk_bytes);
        t->bytes_read += step;
    }
    return 0;
}

/* All that is held, neighbours of the file in one go. */
static int read_held(struct sl_trunk *t, struct sl_err *err)
{
    const struct sl_tensor *x = t->p->tensors;
    const int n = t->p->n_tensors;
    for (int i = 0; i < n;) {
        if (!t->held[i]) {
            i++;
            continue;
        }
        const int first = i;
        uint64_t bytes;
        do {
            bytes = (uint64_t)(t->held[i] - t->held[first]) + x[i].bytes;
            i++;
        } while (i < n && t->held[i] &&
                 x[i].offset - x[first].offset == (uint64_t)(t->held[i] - t->held[first]));
        int rc = read_range(t, (uint8_t *)(uintptr_t)t->held[first], bytes, x[first].offset, err);
        if (rc) return rc;
    }
    return 0;
}

static int check_crcs(const struct sl_trunk *t, struct sl_err *err)
{
    for (int i = 0; i < t->p->n_tensors; i++) {
        const struct sl_tensor *x = &t->p->tensors[i];
        if (!t->held[i]) continue;
        if (sl_interrupted()) return sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
        uint32_t crc = sl_crc32(0, t->held[i], (size_t)x->bytes);
        if (crc != x->crc32)
            return sl_fail(err, SL_E_PACK, "trunk.bin", x->name,
                           "crc32 %08x, expected %08x; run 'sluice verify PACK --full'", crc,
                           x->crc32);
    }
    return 0;
}

static void widen(const struct sl_tensor *t, const uint8_t *from, float *to)
{
    uint64_t n = elements(t);
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h = sl_le16(from + 2 * i);
        to[i] = t->fmt == SL_FMT_BF16 ? sl_bf16_to_f32(h) : sl_f16_to_f32(h);
    }
}

/* Places what is held in the block: tensors first, then the widened vectors. */
static void place(struct sl_trunk *t, const uint8_t *where, uint8_t *block)
{
    const struct sl_tensor *x = t->p->tensors;
    uint8_t *at = block + (-(uintptr_t)block & (SL_PAGE - 1));
    for (int i = 0; i < t->p->n_tensors; i++) {
        if (where[i] != SL_TRUNK_HELD) continue;
        t->held[i] = at;
        at += sl_align_up(x[i].bytes, SL_PAGE);
    }
    for (int i = 0; i < t->p->n_tensors; i++) {
        if (where[i] != SL_TRUNK_HELD || !sl_trunk_is_widened(&x[i])) continue;
        t->widened[i] = (const float *)(const void *)at; /* a multiple of 64 from a page */
        at += widened_bytes(&x[i]);
    }
}

static int no_memory(struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, NULL, "trunk", "out of memory");
}

int sl_trunk_open(struct sl_trunk **out, const struct sl_pack *p, struct sl_arena *arena,
                  const struct sl_trunk_opts *opts, struct sl_err *err)
{
    static const struct sl_trunk_opts all = {.check_crc = true};
    const struct sl_trunk_opts *o = opts ? opts : &all;
    const size_t n = (size_t)p->n_tensors + 1;
    struct sl_trunk_split split;
    uint8_t *block;
    uint8_t *where = malloc(n);
    struct sl_trunk *t = calloc(1, sizeof *t);
    int rc = 0;
    *out = NULL;
    if (t) {
        t->p = p;
        t->held = calloc(n, sizeof *t->held);
        t->widened = calloc(n, sizeof *t->widened);
    }
    if (!where || !t || !t->held || !t->widened) {
        rc = no_memory(err);
        goto fail;
    }
    if (!sl_path_join(t->path, p->dir, "trunk.bin")) {
        rc = sl_fail(err, SL_E_PACK, p->dir, "trunk.bin", "the path is too long");
        goto fail;
    }
    rc = sl_trunk_split(p, o->budget ? o->budget : UINT64_MAX, &split, where, err);
    if (rc) goto fail;
    block = sl_arena_alloc(arena, (size_t)split.held_bytes, 1);
    if (!block) {
        rc = sl_fail(err, SL_E_BUDGET, NULL, "trunk", "needs %llu bytes of the arena, %zu are left",
                     (unsigned long long)split.held_bytes, arena->bytes - arena->used);
        goto fail;
    }
    place(t, where, block);
    sl_direct_open(&t->file, t->path, p->trunk_fd, o->ops);
    t->file_open = true;
    rc = read_held(t, err);
    if (!rc && o->check_crc) rc = check_crcs(t, err);
    if (rc) goto fail;
    for (int i = 0; i < p->n_tensors; i++)
        if (t->widened[i]) widen(&p->tensors[i], t->held[i], (float *)(uintptr_t)t->widened[i]);
    free(where);
    *out = t;
    return 0;
fail:
    free(where);
    sl_trunk_close(t);
    return rc;
}

void sl_trunk_close(struct sl_trunk *t)
{
    if (!t) return;
    if (t->file_open) sl_direct_close(&t->file);
    free(t->held);
    free(t->widened);
    free(t);
}

uint64_t sl_trunk_bytes_read(const struct sl_trunk *t)
{
    return t->bytes_read;
}

uint64_t sl_trunk_row_room(uint64_t row_bytes)
{
    return sl_align_up(row_bytes + SL_PAGE - 1, SL_PAGE);
}

int sl_trunk_read_row(const struct sl_trunk *t, const struct sl_tensor *x, int64_t row,
                      uint8_t *buf, const uint8_t **out, struct sl_err *err)
{
    const uint64_t bytes = x->bytes / (uint64_t)x->shape[0];
    const uint64_t at = x->offset + (uint64_t)row * bytes;
    const size_t skip = (size_t)(at % SL_PAGE);
    int64_t got = sl_direct_read(&t->file, buf, skip + (size_t)bytes, at - skip);
    if (got < 0) return sl_fail_errno(err, SL_E_IO, (int)-got, "trunk.bin", x->name);
    if ((uint64_t)got < skip + bytes)
        return sl_fail(err, SL_E_PACK, "trunk.bin", x->name,
                       "row %lld: %llu of %llu bytes at offset %llu: the file is cut",
                       (long long)row, (unsigned long long)got, (unsigned long long)(skip + bytes),
                       (unsigned long long)(at - skip));
    *out = buf + skip;
    return 0;
}

static int find(const struct sl_trunk *t, const char *name, const struct sl_tensor **out,
                struct sl_err *err)
{
    *out = sl_pack_find(t->p, name);
    if (*out) return 0;
    return sl_fail(err, SL_E_PACK, "pack.json", name, "missing: the model needs this tensor");
}

static const char *show_shape(char buf[96], const struct sl_tensor *t)
{
    int at = 0;
    for (int i = 0; i < t->n_dims; i++)
        at += snprintf(buf + at, 96 - (size_t)at, "%s%lld", i ? "," : "[", (long long)t->shape[i]);
    snprintf(buf + at, 96 - (size_t)at, "]");
    return buf;
}

int sl_trunk_mat(const struct sl_trunk *t, const char *name, int64_t rows, int64_t cols,
                 struct sl_mat *out, struct sl_err *err)
{
    const struct sl_tensor *x;
    char shape[96];
    int rc = find(t, name, &x, err);
    if (rc) return rc;
    if (x->n_dims != 2 || x->shape[0] != rows || x->shape[1] != cols)
        return sl_fail(err, SL_E_PACK, "pack.json", name, "shape %s, expected [%lld,%lld]",
                       show_shape(shape, x), (long long)rows, (long long)cols);
    if (x->fmt == SL_FMT_U8)
        return sl_fail(err, SL_E_PACK, "pack.json", name, "format u8 is not a matrix of weights");
    const float *wide = t->widened[x - t->p->tensors];
    *out = (struct sl_mat){.fmt = wide ? SL_FMT_F32 : x->fmt,
                           .rows = (int)rows,
                           .cols = (int)cols,
                           .codes = wide ? (const uint8_t *)wide : t->held[x - t->p->tensors]};
    return 0;
}

int sl_trunk_vec(const struct sl_trunk *t, const char *name, int64_t n, const float **out,
                 struct sl_err *err)
{
    const struct sl_tensor *x;
    char shape[96];
    int rc = find(t, name, &x, err);
    if (rc) return rc;
    if (n < 0 || elements(x) < (uint64_t)n)
        return sl_fail(err, SL_E_PACK, "pack.json", name,
                       "shape %s, expected at least %lld elements", show_shape(shape, x),
                       (long long)n);
    const float *wide = t->widened[x - t->p->tensors];
    if (!wide && x->fmt != SL_FMT_F32)
        return sl_fail(err, SL_E_PACK, "pack.json", name,
                       "format %s, shape %s: expected a vector of f32, bf16 or f16",
                       sl_fmt_name(x->fmt), show_shape(shape, x));
    *out = wide ? wide : (const float *)(const void *)t->held[x - t->p->tensors];
    return 0;
}
