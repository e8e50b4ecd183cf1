/* The trunk as an image: trunk.bin byte for byte at one place in memory, plus widened vectors.
 *
 *   arena  [ image of trunk.bin, on a page | f32 copies of bf16 and f16 vectors, 64 B each ]
 *
 * An image needs no table of placements, takes direct reads without a copy, keeps tensors that share
 * bytes shared, and costs less than a page of padding a tensor (11 MB of 113 GB at full size).
 * Widened are tensors that the model reads as vectors: any with other than two dimensions, with one
 * row, or with rows too short to be a matrix (convolution taps). Widening is exact, so a matrix that
 * happens to fall under the rule still gives the same products. */
#define _GNU_SOURCE
#include "offload/trunk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "kernels/half.h"
#include "offload/direct_file.h"

#define VECTOR_ALIGN 64u
#define TAPS_MAX     16 /* largest conv_kernel that a config may have */

struct sl_trunk {
    const struct sl_pack *p;
    const uint8_t *image;  /* [trunk_bytes] */
    const float **widened; /* [n_tensors]; NULL where the image serves */
};

static uint64_t elements(const struct sl_tensor *t)
{
    uint64_t n = 1; /* the pack has checked that the bytes, hence the product, fit */
    for (int i = 0; i < t->n_dims; i++) n *= (uint64_t)t->shape[i];
    return n;
}

static bool is_widened(const struct sl_tensor *t)
{
    if (t->fmt != SL_FMT_BF16 && t->fmt != SL_FMT_F16) return false;
    return t->n_dims != 2 || t->shape[0] == 1 || t->shape[1] <= TAPS_MAX;
}

static uint64_t widened_bytes(const struct sl_tensor *t)
{
    return is_widened(t) ? sl_align_up(elements(t) * sizeof(float), VECTOR_ALIGN) : 0;
}

static uint64_t image_bytes(const struct sl_pack *p)
{
    return sl_align_up(p->trunk_bytes, SL_PAGE); /* room for the last direct read */
}

uint64_t sl_trunk_bytes(const struct sl_pack *p)
{
    /* A page more than used: the arena may stand anywhere when we are called, and the promise has to
     * hold to the byte. */
    uint64_t bytes = image_bytes(p) + SL_PAGE;
    for (int i = 0; i < p->n_tensors; i++) bytes += widened_bytes(&p->tensors[i]);
    return bytes;
}

static int read_image(const struct sl_pack *p, uint8_t *image, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    struct sl_direct_file f;
    int rc = 0;
    if (!sl_path_join(path, p->dir, "trunk.bin"))
        return sl_fail(err, SL_E_PACK, p->dir, "trunk.bin", "the path is too long");
    sl_direct_open(&f, path, p->trunk_fd, NULL);
    for (uint64_t at = 0; at < p->trunk_bytes && !rc; at += SL_PIECE_BYTES) {
        uint64_t left = p->trunk_bytes - at;
        size_t n = (size_t)(left < SL_PIECE_BYTES ? left : SL_PIECE_BYTES);
        if (sl_interrupted()) {
            rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
            break;
        }
        int64_t got = sl_direct_read(&f, image + at, n, at);
        if (got < 0) rc = sl_fail_errno(err, SL_E_IO, (int)-got, path, "read");
        if (!rc && (uint64_t)got < n)
            rc = sl_fail(err, SL_E_PACK, path, NULL, "the file ends at %llu, pack.json says %llu",
                         (unsigned long long)at + (unsigned long long)got,
                         (unsigned long long)p->trunk_bytes);
    }
    sl_direct_close(&f);
    return rc;
}

static int check_crcs(const struct sl_pack *p, const uint8_t *image, struct sl_err *err)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sl_tensor *t = &p->tensors[i];
        if (i && t->offset == t[-1].offset) continue; /* same bytes under another name */
        if (sl_interrupted()) return sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
        uint32_t crc = sl_crc32(0, image + t->offset, (size_t)t->bytes);
        if (crc != t->crc32)
            return sl_fail(err, SL_E_PACK, "trunk.bin", t->name,
                           "crc32 %08x, expected %08x; run 'sluice verify PACK --full'", crc,
                           t->crc32);
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

int sl_trunk_open(struct sl_trunk **out, const struct sl_pack *p, struct sl_arena *arena,
                  bool check_crc, struct sl_err *err)
{
    *out = NULL;
    uint64_t bytes = sl_trunk_bytes(p);
    int rc = 0;
    uint8_t *block = sl_arena_alloc(arena, (size_t)bytes, 1);
    struct sl_trunk *t = calloc(1, sizeof *t);
    if (!block) {
        rc = sl_fail(err, SL_E_BUDGET, NULL, "trunk", "needs %llu bytes of the arena, %zu are left",
                     (unsigned long long)bytes, arena->bytes - arena->used);
        goto fail;
    }
    if (t) t->widened = calloc((size_t)p->n_tensors + 1, sizeof *t->widened);
    if (!t || !t->widened) {
        rc = sl_fail(err, SL_E_NOMEM, NULL, "trunk", "out of memory");
        goto fail;
    }
    uint8_t *image = block + (-(uintptr_t)block & (SL_PAGE - 1));
    t->p = p;
    t->image = image;
    rc = read_image(p, image, err);
    if (!rc && check_crc) rc = check_crcs(p, image, err);
    if (rc) goto fail;
    uint8_t *at = image + image_bytes(p);
    for (int i = 0; i < p->n_tensors; i++) {
        if (!is_widened(&p->tensors[i])) continue;
        float *v = (float *)(void *)at; /* a multiple of 64 from a page */
        widen(&p->tensors[i], image + p->tensors[i].offset, v);
        t->widened[i] = v;
        at += widened_bytes(&p->tensors[i]);
    }
    *out = t;
    return 0;
fail:
    sl_trunk_close(t);
    return rc;
}

void sl_trunk_close(struct sl_trunk *t)
{
    if (!t) return;
    free(t->widened);
    free(t);
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
                           .codes = wide ? (const uint8_t *)wide : t->image + x->offset};
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
    *out = wide ? wide : (const float *)(const void *)(t->image + x->offset);
    return 0;
}
