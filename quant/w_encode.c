/* Matrices into trellis planes: strip by strip, two refits of the row scale, then the bytes. */
#include "quant/w_encode.h"

#include <string.h>
#include "kernels/block_w.h"
#include "kernels/half.h"
#include "quant/w_device.h"
#include "quant/w_strip.h"

enum { L = SL_W_LANES, B = SL_W_BLOCK };

size_t sl_w_scratch_bytes(int cols)
{
    return sl_w_strip_bytes(cols);
}

static void put_le(uint8_t *to, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(v >> 8 * i);
}

/* Bytes of `rows` rows of the strip that begins at row r0. */
static void store(const struct sl_w_strip *s, const struct sl_w_job *job,
                  const struct sl_w_planes *out, int r0, int rows)
{
    size_t blocks = (size_t)s->cols / B, units = (size_t)s->n_units, nib_row = (blocks + 1) / 2;
    bool plain = job->tables->fmt == SL_FMT_W36 || job->tables->fmt == SL_FMT_P36;
    uint8_t *bits_plane = out->fine_codes;
    if (job->tables->fmt == SL_FMT_W36) bits_plane = out->codes + (size_t)job->rows * blocks * 8;
    for (int i = 0; i < rows; i++) {
        size_t r = (size_t)(r0 + i);
        for (size_t u = 0; u < units; u++)
            put_le(out->codes + (r * units + u) * 8, s->word[u * L + (size_t)i], 8);
        for (size_t u = 0; plain && u < units; u++)
            put_le(bits_plane + (r * units + u) * 4, s->bits[u * L + (size_t)i], 4);
        memset(out->scales + r * nib_row, 0, nib_row);
        for (size_t b = 0; b < blocks; b++)
            out->scales[r * nib_row + b / 2] |=
                (uint8_t)(s->nibble[b * L + (size_t)i] << (b & 1) * 4);
        put_le(out->row_scales + r * 2, sl_f32_to_f16(s->row[i] / SL_W_ROW_UNIT), 2);
    }
}

static void count_errors(const struct sl_w_strip *s, const struct sl_w_tables *t, int rows,
                         bool use_h, struct sl_w_report *rep)
{
    bool plain = t->fmt == SL_FMT_W36 || t->fmt == SL_FMT_P36;
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < s->cols; c++) {
            unsigned p, w = sl_w_strip_index(s, c, i, &p);
            float scale = s->row[i] * (float)sl_w_scale(s->nibble[(size_t)(c / B) * L + (size_t)i]);
            double x = (double)s->w[(size_t)c * L + (size_t)i],
                   h = use_h && s->h ? (double)s->h[c] : 1.0;
            double e = x - (double)(scale * (plain ? t->t3[w | p << 6] : t->t2[w]));
            rep->err2 += h * e * e;
            rep->norm2 += h * x * x;
            if (t->fmt != SL_FMT_P36) continue;
            e = x - (double)(scale * t->t2[w]);
            rep->base_err2 += h * e * e;
        }
}

/* Codes of a loaded strip. */
static void encode_strip(struct sl_w_strip *s, const struct sl_w_job *job,
                         const struct sl_w_feedback *f)
{
    const struct sl_w_tables *t = job->tables;
    for (int k = 0; k < job->rounds; k++) {
        bool last = k + 1 == job->rounds;
        if (k > 0) sl_w_strip_refit(s, t);
        if (!f || !last) sl_w_strip_search(s, t, job->search, last ? SL_W_CHOOSE : SL_W_GUESS);
    }
    if (!f) { /* codes fixed, the best row scale can only lower the error */
        sl_w_strip_refit(s, t);
        return;
    }
    sl_w_follow_search(s, t, job->search, f, SL_W_CHOOSE);
    for (int k = 0; k < job->sweeps; k++) {
        sl_w_follow_refit(s, t, job->search, f);
        sl_w_follow_sweep(s, t, job->search, f);
    }
    /* Half the cost of a sweep for 0.15 % of the error: only where time is spent anyway. */
    if (job->sweeps > 1) sl_w_follow_refit(s, t, job->search, f);
}

int sl_w_encode(const struct sl_w_job *job, void *scratch, const struct sl_w_planes *out,
                struct sl_w_report *report, struct sl_err *err)
{
    const struct sl_w_tables *t = job->tables;
    if (job->cols <= 0 || job->cols % B)
        return sl_fail(err, SL_E_ARG, NULL, "columns", "%d is not a multiple of 32", job->cols);
    /* A word of w16 covers two blocks; feedback is by block. w16 is for cold experts, so it goes without. */
    const struct sl_w_feedback *f = t->fmt == SL_FMT_W16 ? NULL : job->feedback;
    struct sl_w_strip s;
    struct sl_w_report rep = {0};
    const bool on_device = job->device && !f && !report && sl_w_device_takes(t->fmt);
    if (on_device) {
        int rc = sl_interrupted() ? sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted")
                                  : sl_w_device_encode(job->device, job, out, err);
        if (rc) return rc;
    }
    sl_w_strip_init(&s, t->fmt, job->cols, f ? NULL : job->h, scratch);
    for (int r0 = 0; r0 < job->rows && !on_device; r0 += L) {
        int rows = job->rows - r0 < L ? job->rows - r0 : L;
        int rc = sl_interrupted() ? sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted")
                                  : sl_w_strip_load(&s, job->w, r0, rows, t->rms, err);
        if (rc) return rc;
        encode_strip(&s, job, f);
        count_errors(&s, t, rows, !f, &rep);
        store(&s, job, out, r0, rows);
    }
    for (int i = 0; i < 64 && t->fmt != SL_FMT_W36; i++) out->table[i] = (uint8_t)(int8_t)t->t2[i];
    uint8_t *fine = t->fmt == SL_FMT_W36   ? out->table
                    : t->fmt == SL_FMT_P36 ? out->fine_table
                                           : NULL;
    for (int i = 0; i < 128 && fine; i++) fine[i] = (uint8_t)(int8_t)t->t3[i];
    if (report) *report = rep;
    return 0;
}
