/* Formats: one token each, alike in files, symbols, flags and packs (design section 3).
 *
 * The number is the format byte of a bank index and never changes. A matrix of a format is up to four
 * planes: codes, block scales, row scales, table; p36 has the code planes of two such sets. Plane
 * sizes follow from rows and cols alone, so a reader can check every offset before it trusts one. */
#ifndef SL_KERNELS_FORMAT_H
#define SL_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

enum sl_fmt {
    SL_FMT_NONE = 0,
    SL_FMT_F32 = 1,
    SL_FMT_BF16 = 2,
    SL_FMT_F16 = 3,
    SL_FMT_U8 = 4, /* bytes carried verbatim */
    SL_FMT_T8 = 10,
    SL_FMT_T6 = 11,
    SL_FMT_T4 = 12,
    SL_FMT_MXFP4 = 20,
    SL_FMT_M4 = 21,
    SL_FMT_W36 = 22,
    SL_FMT_P36 = 23,
    SL_FMT_W26 = 24,
    SL_FMT_W16 = 25,
    SL_FMT_MIX = 31 /* of no matrix: a pack whose experts differ, chosen by convert/mix_plan.h */
};

/* Bytes of each plane of one matrix; 0 where the format has none. Planes are stored one after the
 * other, each starting on a multiple of SL_PLANE_ALIGN inside an expert record. */
struct sl_planes {
    uint64_t codes;
    uint64_t scales;
    uint64_t row_scales;
    uint64_t table;
};
#define SL_PLANE_ALIGN 64

const char *sl_fmt_name(enum sl_fmt fmt);  /* "m4"; "?" for an unknown number */
enum sl_fmt sl_fmt_by_name(const char *s); /* SL_FMT_NONE when unknown */
/* Formats a routed expert / a trunk matrix may have in this build. */
bool sl_fmt_is_expert(enum sl_fmt fmt);
bool sl_fmt_is_trunk(enum sl_fmt fmt);
bool sl_fmt_is_trellis(enum sl_fmt fmt); /* w26 w36 p36 w16 (block_w.h) */

/* Nominal bits a weight of an expert format, read whole and by its base planes; 0 for the others. */
double sl_fmt_bits(enum sl_fmt fmt);
double sl_fmt_base_bits(enum sl_fmt fmt);

/* Plane sizes for rows x cols; false when the format is unknown, when cols does not suit it (expert
 * formats need cols % 32 == 0), or on overflow. Trunk and plain formats put everything in `codes`:
 * rows are contiguous there, so that a strip of rows is one read. */
bool sl_fmt_planes(enum sl_fmt fmt, uint64_t rows, uint64_t cols, struct sl_planes *out);
/* Bytes of one row for plain and trunk formats, 0 for the others. */
uint64_t sl_fmt_row_bytes(enum sl_fmt fmt, uint64_t cols);
/* The refinement plane set of a format that has one (p36: codes and table), all 0 for the others. Call
 * after sl_fmt_planes has accepted the shape. */
void sl_fmt_fine_planes(enum sl_fmt fmt, uint64_t rows, uint64_t cols, struct sl_planes *out);

#endif
