/* Ranges of trunk.bin and vision.bin, cut into strips of about 16 MiB.
 *
 *   strip = several whole small tensors with their padding, or a run of rows of a large one
 *
 * One strip is one write. A tensor's checksum is combined from its strips', so a 2.3 GB matrix needs
 * no second pass. t8, t6 and t4 rows come from bf16 rows; everything else is carried verbatim. */
#define _GNU_SOURCE
#include "convert/pack_writer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "quant/t8.h"
#include "quant/t_low.h"

struct strip {
    int first, n;           /* tensors; n 1 when it is a part */
    uint64_t unit0, units;  /* of the first tensor */
    uint64_t offset, bytes; /* in the file, padding included */
    uint32_t crc32;         /* of the part, padding not included */
    uint32_t src_crc32;     /* of the input's bytes */
};

struct range_job {
    struct sl_plan_file *f;
    const struct sl_input *in;
    struct sl_jobs *jobs;
    struct sl_progress *progress;
    struct strip *strips;
    int n_strips;
    int fd;
    const char *name;
};

static uint64_t padded(const struct sl_plan_tensor *t)
{
    return sl_align_up(t->bytes, SL_PAGE);
}

/* Fills strips (NULL: only counts). */
static int cut(const struct sl_plan_file *f, const struct sl_plan_range *r, uint64_t task_bytes,
               struct strip *strips)
{
    int n = 0;
    for (int i = r->first; i < r->first + r->n;) {
        const struct sl_plan_tensor *t = &f->tensors[i];
        struct strip s = {.first = i, .offset = t->offset};
        /* As many whole verbatim tensors as fit. */
        for (; i < r->first + r->n && f->tensors[i].dst_unit == 1 &&
               s.bytes + padded(&f->tensors[i]) <= task_bytes;
             i++, s.n++)
            s.bytes += padded(&f->tensors[i]);
        if (s.n) {
            s.units = t->units;
            if (strips) strips[n] = s;
            n++;
            continue;
        }
        uint64_t per = task_bytes / t->src_unit;
        if (!per) per = 1;
        for (uint64_t u = 0; u < t->units; u += per) {
            bool last = t->units - u <= per;
            s.n = 1;
            s.unit0 = u;
            s.units = last ? t->units - u : per;
            s.offset = t->offset + u * t->dst_unit;
            s.bytes = last ? t->offset + padded(t) - s.offset : s.units * t->dst_unit;
            if (strips) strips[n] = s;
            n++;
        }
        i++;
    }
    return n;
}

/* units rows of bf16 at src to rows of t->fmt at dst. */
static int encode_rows(const struct range_job *k, const struct sl_plan_tensor *t,
                       const struct strip *s, const uint8_t *src, uint8_t *dst, struct sl_err *err)
{
    for (uint64_t r = 0; r < s->units; r++) {
        const uint8_t *from = src + r * t->src_unit;
        uint8_t *to = dst + r * t->dst_unit;
        int bad = t->fmt == SL_FMT_T8 ? sl_t8_encode_bf16(from, t->cols, to)
                                      : sl_t_low_encode_bf16(t->fmt, from, t->cols, to);
        if (bad >= 0)
            return sl_fail(err, SL_E_SOURCE, sl_input_file(k->in, &t->src), t->src.name,
                           "row %llu, column %d: not finite, or too large for %s",
                           (unsigned long long)r + s->unit0, bad, sl_fmt_name(t->fmt));
    }
    return 0;
}

static int read_checked(const struct range_job *k, const struct sl_plan_tensor *t,
                        const struct strip *s, uint8_t *src, struct sl_err *err)
{
    return k->in->ops->read(k->in, &t->src, s->unit0 * t->src_unit, src, s->units * t->src_unit,
                            err);
}

static int write_strip(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    struct range_job *k = ctx;
    struct strip *s = &k->strips[task];
    struct sl_plan_tensor *t = &k->f->tensors[s->first];
    int rc;

    if (s->n == 1 && t->dst_unit != 1) {
        uint8_t *src = buf + sl_align_up(s->bytes, 64);
        rc = read_checked(k, t, s, src, err);
        if (rc) return rc;
        if (t->src.has_crc) s->src_crc32 = sl_crc32(0, src, s->units * t->src_unit);
        rc = encode_rows(k, t, s, src, buf, err);
        if (rc) return rc;
        uint64_t n = s->units * t->dst_unit;
        memset(buf + n, 0, s->bytes - n);
        s->crc32 = sl_crc32(0, buf, n);
    } else if (s->n == 1) {
        rc = read_checked(k, t, s, buf, err);
        if (rc) return rc;
        memset(buf + s->units, 0, s->bytes - s->units);
        s->src_crc32 = s->crc32 = sl_crc32(0, buf, s->units);
    } else {
        uint8_t *at = buf;
        for (int i = 0; i < s->n; i++, t++) {
            rc = k->in->ops->read(k->in, &t->src, 0, at, t->bytes, err);
            if (rc) return rc;
            memset(at + t->bytes, 0, padded(t) - t->bytes);
            t->crc32 = sl_crc32(0, at, t->bytes);
            if (t->src.has_crc && t->crc32 != t->src.crc32)
                return sl_fail(err, SL_E_PACK, sl_input_file(k->in, &t->src), t->src.name,
                               "crc32 %08x, expected %08x", t->crc32, t->src.crc32);
            at += padded(t);
        }
    }
    rc = sl_pwrite_all(k->fd, buf, s->bytes, s->offset, k->name, err);
    if (rc) return rc;
    /* Write-back starts now, so that the sync at the end of the range finds little to do. */
    (void)sync_file_range(k->fd, (off_t)s->offset, (off_t)s->bytes, SYNC_FILE_RANGE_WRITE);
    sl_progress_add(k->progress, 0, s->bytes);
    return 0;
}

/* Checksums of tensors that were cut. */
static int combine(struct range_job *k, struct sl_err *err)
{
    for (int i = 0; i < k->n_strips;) {
        const struct strip *s = &k->strips[i];
        struct sl_plan_tensor *t = &k->f->tensors[s->first];
        if (s->n > 1) {
            i++;
            continue;
        }
        uint32_t crc = 0;
        uint32_t src_crc = 0;
        for (; i < k->n_strips && k->strips[i].first == s->first; i++) {
            const struct strip *part = &k->strips[i];
            crc = sl_crc32_combine(crc, part->crc32, part->units * t->dst_unit);
            src_crc = sl_crc32_combine(src_crc, part->src_crc32, part->units * t->src_unit);
        }
        t->crc32 = crc;
        if (t->src.has_crc && src_crc != t->src.crc32)
            return sl_fail(err, SL_E_PACK, sl_input_file(k->in, &t->src), t->src.name,
                           "crc32 %08x, expected %08x", src_crc, t->src.crc32);
    }
    return 0;
}

int sl_write_range(const struct sl_plan *p, struct sl_plan_file *f, const struct sl_plan_range *r,
                   int fd, const char *name, struct sl_jobs *jobs, struct sl_progress *progress,
                   struct sl_err *err)
{
    struct range_job k = {f, p->in, jobs, progress, NULL, cut(f, r, p->task_bytes, NULL), fd, name};
    k.strips = calloc((size_t)k.n_strips + 1, sizeof *k.strips);
    if (!k.strips) return sl_fail(err, SL_E_NOMEM, name, NULL, "out of memory");
    cut(f, r, p->task_bytes, k.strips);
    int rc = sl_jobs_run(jobs, k.n_strips, write_strip, &k, err);
    if (!rc) rc = combine(&k, err);
    free(k.strips);
    return rc;
}
