/* Format names and plane sizes: the one place that turns a shape into bytes.
 *
 * Readers compare these sizes with what a file offers before they trust an offset, so every product
 * is checked: rows and cols may come from a hostile file. Formats of the enum without a decoder in
 * this build have a name, so that a message can say which one was met, and no sizes. */
#include "kernels/format.h"

#include <string.h>
#include "base/size.h"
#include "kernels/block_mxfp4.h"
#include "kernels/block_t4.h"
#include "kernels/block_t6.h"

static const struct {
    enum sl_fmt fmt;
    const char *name;
} names[] = {
    {SL_FMT_F32, "f32"}, {SL_FMT_BF16, "bf16"}, {SL_FMT_F16, "f16"}, {SL_FMT_U8, "u8"},
    {SL_FMT_T8, "t8"},   {SL_FMT_T6, "t6"},     {SL_FMT_T4, "t4"},   {SL_FMT_MXFP4, "mxfp4"},
    {SL_FMT_M4, "m4"},   {SL_FMT_W36, "w36"},   {SL_FMT_P36, "p36"}, {SL_FMT_W26, "w26"},
    {SL_FMT_W16, "w16"}, {SL_FMT_MIX, "mix"},
};
enum { N_NAMES = sizeof names / sizeof names[0] };

const char *sl_fmt_name(enum sl_fmt fmt)
{
    for (int i = 0; i < N_NAMES; i++)
        if (names[i].fmt == fmt) return names[i].name;
    return "?";
}

enum sl_fmt sl_fmt_by_name(const char *s)
{
    for (int i = 0; s && i < N_NAMES; i++)
        if (strcmp(names[i].name, s) == 0) return names[i].fmt;
    return SL_FMT_NONE;
}

bool sl_fmt_is_trellis(enum sl_fmt fmt)
{
    return fmt == SL_FMT_W36 || fmt == SL_FMT_P36 || fmt == SL_FMT_W26 || fmt == SL_FMT_W16;
}

bool sl_fmt_is_expert(enum sl_fmt fmt)
{
    return fmt == SL_FMT_MXFP4 || fmt == SL_FMT_M4 || sl_fmt_is_trellis(fmt);
}

bool sl_fmt_is_trunk(enum sl_fmt fmt)
{
    return fmt == SL_FMT_BF16 || fmt == SL_FMT_T8 || fmt == SL_FMT_T6 || fmt == SL_FMT_T4;
}

double sl_fmt_bits(enum sl_fmt fmt)
{
    switch (fmt) {
    case SL_FMT_MXFP4:
        return 4.25;
    case SL_FMT_M4:
        return 4.125;
    case SL_FMT_W36:
    case SL_FMT_P36:
        return 3.125;
    case SL_FMT_W26:
        return 2.125;
    case SL_FMT_W16:
        return 1.125;
    default:
        return 0;
    }
}

double sl_fmt_base_bits(enum sl_fmt fmt)
{
    return sl_fmt_bits(fmt == SL_FMT_P36 ? SL_FMT_W26 : fmt);
}

/* Bytes of one row of a plain or trunk format; false when there is no such format or on overflow. */
static bool row_bytes(enum sl_fmt fmt, uint64_t cols, uint64_t *out)
{
    uint64_t blocks;
    switch (fmt) {
    case SL_FMT_F32:
        return sl_mul_u64(cols, 4, out);
    case SL_FMT_BF16:
    case SL_FMT_F16:
        return sl_mul_u64(cols, 2, out);
    case SL_FMT_U8:
        *out = cols;
        return true;
    case SL_FMT_T8:
    case SL_FMT_T6:
    case SL_FMT_T4:
        blocks = cols / SL_T_BLOCK + (cols % SL_T_BLOCK != 0);
        return sl_mul_u64(blocks,
                          2 + (fmt == SL_FMT_T8   ? SL_T_BLOCK
                               : fmt == SL_FMT_T6 ? SL_T6_LOW + SL_T6_HIGH
                                                  : SL_T4_CODES),
                          out);
    default:
        return false;
    }
}

uint64_t sl_fmt_row_bytes(enum sl_fmt fmt, uint64_t cols)
{
    uint64_t n;
    return row_bytes(fmt, cols, &n) ? n : 0;
}

bool sl_fmt_planes(enum sl_fmt fmt, uint64_t rows, uint64_t cols, struct sl_planes *out)
{
    struct sl_planes p = {0, 0, 0, 0};
    uint64_t n;
    if (row_bytes(fmt, cols, &n)) {
        if (!sl_mul_u64(rows, n, &p.codes)) return false;
        *out = p;
        return true;
    }
    if (!sl_fmt_is_expert(fmt) || cols % SL_MX_BLOCK) return false;
    uint64_t blocks = cols / SL_MX_BLOCK;
    if (sl_fmt_is_trellis(fmt)) {
        uint64_t code_bytes =
            fmt == SL_FMT_W36 ? 12 : 8; /* a word, and plain bits behind all words */
        uint64_t words = fmt == SL_FMT_W16 ? blocks / 2 + blocks % 2 : blocks;
        if (!sl_mul_u64(words, code_bytes, &n) || !sl_mul_u64(rows, n, &p.codes)) return false;
        if (!sl_mul_u64(rows, blocks / 2 + blocks % 2, &p.scales)) return false;
        if (!sl_mul_u64(rows, 2, &p.row_scales)) return false;
        p.table = fmt == SL_FMT_W36 ? 128 : 64;
        *out = p;
        return true;
    }
    if (!sl_mul_u64(rows, cols / 2, &p.codes)) return false;
    if (fmt == SL_FMT_M4) {
        p.row_scales = rows;
        blocks = blocks / 2 + blocks % 2; /* two offsets a byte */
    }
    if (!sl_mul_u64(rows, blocks, &p.scales)) return false;
    *out = p;
    return true;
}

void sl_fmt_fine_planes(enum sl_fmt fmt, uint64_t rows, uint64_t cols, struct sl_planes *out)
{
    *out = (struct sl_planes){0, 0, 0, 0};
    if (fmt != SL_FMT_P36) return;
    out->codes = rows * (cols / SL_MX_BLOCK) * 4; /* half of the words that were accepted */
    out->table = 128;
}
