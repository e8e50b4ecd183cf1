/* Pack layout: the one function that says where the planes of an expert record lie.
 *
 *   record  [ gate codes | scales | row scales | up ... | down ... | zeros to 4 KiB ]
 *
 * Writer and reader both call it: the writer to place bytes, the reader to refuse an index whose
 * offsets are not exactly these. Offsets follow from formats and shape alone, so nothing in a bank
 * needs to be believed. The refinement planes of p36 start on a page after the base planes of all
 * three matrices. */
#include "offload/pack_layout.h"

#include <string.h>

#include "base/file.h"
#include "base/size.h"

/* Places one plane at *at and advances it; an absent plane takes no room. */
static bool place(uint64_t *at, uint64_t plane_bytes, uint32_t *offset)
{
    if (!plane_bytes) {
        *offset = SL_ABSENT;
        return true;
    }
    uint64_t start = sl_align_up(*at, SL_PLANE_ALIGN);
    if (start >= SL_ABSENT || plane_bytes >= SL_ABSENT - start) return false;
    *offset = (uint32_t)start;
    *at = start + plane_bytes;
    return true;
}

int sl_record_layout(struct sl_bank_entry *e, const enum sl_fmt fmt[SL_N_MATS], int latent,
                     int width, struct sl_err *err)
{
    static const char *const names[SL_N_MATS] = {"gate", "up", "down"};
    uint64_t at = 0;

    memset(e, 0, sizeof *e);
    memset(e->planes, 0xff, sizeof e->planes); /* SL_ABSENT */
    for (int m = 0; m < SL_N_MATS; m++) {
        struct sl_planes p;
        int rows = m == SL_DOWN ? latent : width;
        int cols = m == SL_DOWN ? width : latent;
        if (rows <= 0 || cols <= 0 || !sl_fmt_is_expert(fmt[m]) ||
            !sl_fmt_planes(fmt[m], (uint64_t)rows, (uint64_t)cols, &p))
            return sl_fail(err, SL_E_ARG, NULL, names[m],
                           "format %s (%d) does not suit an expert matrix of %d x %d",
                           sl_fmt_name(fmt[m]), (int)fmt[m], rows, cols);
        struct sl_plane_offsets *o = &e->planes[m][0];
        if (!place(&at, p.codes, &o->codes) || !place(&at, p.scales, &o->scales) ||
            !place(&at, p.row_scales, &o->row_scales) || !place(&at, p.table, &o->table))
            return sl_fail(err, SL_E_ARG, NULL, names[m],
                           "an expert of %d x %d in format %s does not fit a 4 GiB record", rows,
                           cols, sl_fmt_name(fmt[m]));
        e->fmt[m] = (uint8_t)fmt[m];
    }
    at = sl_align_up(at, SL_PAGE);
    e->n_planes = 1;
    e->base_bytes = (uint32_t)at;
    for (int m = 0; m < SL_N_MATS; m++) {
        struct sl_planes p;
        sl_fmt_fine_planes(fmt[m], (uint64_t)(m == SL_DOWN ? latent : width),
                           (uint64_t)(m == SL_DOWN ? width : latent), &p);
        if (!p.codes) continue;
        struct sl_plane_offsets *o = &e->planes[m][1];
        if (!place(&at, p.codes, &o->codes) || !place(&at, p.table, &o->table))
            return sl_fail(err, SL_E_ARG, NULL, names[m],
                           "an expert of %d x %d in format %s does not fit a 4 GiB record", width,
                           latent, sl_fmt_name(fmt[m]));
        e->n_planes = 2;
    }
    at = sl_align_up(at, SL_PAGE);
    if (at >= SL_ABSENT)
        return sl_fail(err, SL_E_ARG, NULL, "record", "an expert of %d x %d exceeds 4 GiB", width,
                       latent);
    e->bytes = (uint32_t)at;
    return 0;
}

void sl_record_checksums(struct sl_bank_entry *e, const uint8_t *record)
{
    uint32_t base = sl_crc32(0, record, e->base_bytes);
    e->base_crc32 = e->n_planes == 2 ? base : 0;
    e->crc32 = sl_crc32(base, record + e->base_bytes, e->bytes - e->base_bytes);
}

/* crc(a b) = crc(a zeros) ^ crc(b): what is left of the whole when the base is taken out. */
uint32_t sl_record_fine_crc32(const struct sl_bank_entry *e)
{
    return e->crc32 ^ sl_crc32_combine(e->base_crc32, 0, e->bytes - e->base_bytes);
}

uint64_t sl_bank_first_record(uint32_t n_experts)
{
    return SL_PAGE + sl_align_up((uint64_t)n_experts * sizeof(struct sl_bank_entry), SL_PAGE);
}
