/* Made-up weights: one 64-bit counter generator, masked to what a format may hold.
 *
 *   bf16   sign and mantissa random, exponent fixed: +-[1, 2) * 2^E
 *   t8     codes uniform in -127..127, scales within 6 % of each other; t6, t4: any code
 *   m4     codes uniform, offsets 0..3 under two row exponents; mxfp4 the same as absolute scales
 *   w..    any code, four of the sixteen scales, tables a shuffled ramp
 *
 * The masks make filling a copy of the generator's words: 4 to 6 GB/s a core, so that the drive or the
 * checksum is what a pack waits for. */
#include "convert/synth_fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convert/input.h"
#include "convert/synth_routes.h"
#include "kernels/block_mxfp4.h"
#include "kernels/block_t8.h"
#include "kernels/block_w.h"
#include "kernels/half.h"

#define RMS_BINADE 1.5275252316519468 /* of +-[1, 2): sqrt(7/3) */
#define RMS_T8     73.325             /* of -127..127, 0 twice as likely */
#define RMS_T6     18.475
#define RMS_T4     63.5
#define RMS_MX     1.6859 /* of e2m1 under scales of 1, 1/2, 1/4, 1/8 */
#define RMS_W      5.6125 /* of the scales 4..7 */
#define ALL_BITS   UINT64_MAX
#define LOW_TWO    UINT64_C(0x3333333333333333) /* of each nibble */

struct rnd {
    uint64_t at;
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t next(struct rnd *r)
{
    r->at += UINT64_C(0x9e3779b97f4a7c15);
    return mix(r->at);
}

uint64_t sl_synth_stream(uint64_t seed, uint64_t what, uint64_t a, uint64_t b)
{
    uint64_t z = mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    z = mix(z ^ (what + 1));
    z = mix(z + a);
    return mix(z ^ (b << 1));
}

/* Whole number below n. */
static int below(struct rnd *r, int n)
{
    return (int)(((next(r) >> 32) * (uint64_t)(uint32_t)n) >> 32);
}

static double uniform(struct rnd *r, double low, double high)
{
    return low + (high - low) * ((double)(next(r) >> 11) * 0x1p-53);
}

/* n random bytes, (x & keep) | set by words of eight. Little-endian as a file is. */
static void fill(struct rnd *r, uint8_t *p, uint64_t n, uint64_t keep, uint64_t set)
{
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t x = (next(r) & keep) | set;
        memcpy(p + i, &x, 8);
    }
    if (i == n) return;
    uint64_t x = (next(r) & keep) | set;
    memcpy(p + i, &x, n - i);
}

static void put_f32(uint8_t *p, double v)
{
    float f = (float)v;
    memcpy(p, &f, sizeof f);
}

/* ---- what a tensor holds ------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s);
    size_t m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* Output over input size of the matrices that are not 1. What is added to the residual stream is small
 * against the embedding, so that a stream of 93 layers stays of order 1 and still differs from token to
 * token; attention least of all, because it carries what neighbours have in common. */
static const struct {
    const char *end;
    double gain;
} gains[] = {
    {"self_attn.o_proj.weight", 0.15},
    {"mlp.down_proj.weight", 0.5},
    {"shared_experts.down_proj.weight", 0.4},
    {"routed_expert_up_proj.weight", 0.3},
    {"_res_proj.weight", 0.3},
};

void sl_synth_rule_of(struct sl_synth_rule *r, const struct sl_config *c, const char *name,
                      int cols)
{
    double gain = 1;
    *r = (struct sl_synth_rule){.kind = SL_SYNTH_RANDOM};
    for (size_t i = 0; i < sizeof gains / sizeof *gains; i++)
        if (ends_with(name, gains[i].end)) gain = gains[i].gain;
    r->rms = gain / sqrt(cols);
    if (ends_with(name, "embed_tokens.weight")) r->rms = 1;
    if (ends_with(name, "norm.weight"))
        r->kind = SL_SYNTH_ONES; /* layernorm, o_norm, res_norm too */
    if (ends_with(name, ".e_score_correction_bias")) r->kind = SL_SYNTH_ROUTER;
    if (ends_with(name, ".A_log")) {
        r->kind = SL_SYNTH_RANGE;
        r->low = -0.5;
        r->high = 0.5;
        r->used = c->kda_heads; /* the rest is padding */
    }
    if (ends_with(name, ".dt_bias")) { /* log decays from about -0.01 to -1 a token */
        r->kind = SL_SYNTH_RANGE;
        r->low = -6;
        r->high = -1;
        r->used = cols;
    }
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* Power of two that puts +-[1, 2) nearest to rms. */
static int exponent(double rms, double unit)
{
    int e;
    double m = frexp(rms / unit, &e); /* in [0.5, 1) */
    return m < 0.70710678118654752 ? e - 1 : e;
}

static int bf16_exponent(const struct sl_synth_rule *r)
{
    return r->kind == SL_SYNTH_ONES ? 0 : exponent(r->rms, RMS_BINADE);
}

static void row_bf16(const struct sl_synth_rule *r, int cols, struct rnd *g, uint8_t *row)
{
    if (r->kind == SL_SYNTH_ONES) {
        for (int i = 0; i < cols; i++) {
            uint16_t h = (uint16_t)(0x3f70 + below(g, 32));
            memcpy(row + 2 * (size_t)i, &h, 2);
        }
        return;
    }
    uint64_t set = (uint64_t)(127 + bf16_exponent(r)) << 7;
    fill(g, row, 2 * (uint64_t)cols, UINT64_C(0x807f807f807f807f),
         set * UINT64_C(0x0001000100010001));
}

static void row_f32(const struct sl_synth_rule *r, int cols, struct rnd *g, uint8_t *row)
{
    double half = r->rms * 1.7320508075688772;
    for (int i = 0; i < cols; i++) {
        double v = 0;
        if (r->kind == SL_SYNTH_ONES) v = uniform(g, 0.94, 1.12);
        if (r->kind == SL_SYNTH_RANDOM) v = uniform(g, -half, half);
        if (r->kind == SL_SYNTH_RANGE && i < r->used) v = uniform(g, r->low, r->high);
        put_f32(row + 4 * (size_t)i, v);
    }
}

#define F16_LOW  UINT64_C(0x003f003f003f003f) /* the last six bits of the mantissa */
#define F16_SIGN UINT64_C(0x8000800080008000)

/* f16 scales around `scale`, bits of `keep` random. */
static void fill_f16(struct rnd *g, double scale, uint64_t keep, uint8_t *p, int n)
{
    uint64_t set = sl_f32_to_f16((float)(scale / 1.03)) & 0xffc0u;
    if (!set) set = 1;
    fill(g, p, 2 * (uint64_t)n, keep, set * UINT64_C(0x0001000100010001));
}

static void row_t8(const struct sl_synth_rule *r, int cols, struct rnd *g, uint8_t *row)
{
    int nb = sl_t8_blocks(cols);
    size_t n = (size_t)nb * SL_T_BLOCK;
    fill(g, row, n, ALL_BITS, 0);
    for (size_t i = 0; i < n; i++) row[i] = row[i] == 0x80 ? 0 : row[i];
    memset(row + cols, 0, n - (size_t)cols);
    fill_f16(g, r->rms / RMS_T8, F16_LOW, row + n, nb);
}

/* Sets weights cols.. of the last block to the code that stands for nothing. */
static void pad_low(uint8_t *low, uint8_t *high, int from, unsigned code)
{
    for (int j = from; j < SL_T_BLOCK; j++) {
        int shift = (j >> 4) * 4;
        low[j & 15] = (uint8_t)((low[j & 15] & ~(15u << shift)) | (code & 15) << shift);
        if (!high) continue;
        shift = (j >> 3) * 2;
        high[j & 7] = (uint8_t)((high[j & 7] & ~(3u << shift)) | (code >> 4) << shift);
    }
}

/* The codes of t6 and t4 are not symmetric: their mean of -3 % and -10 % of the root mean square, added
 * up over a row, would give all outputs one common part as large as all the rest. Scales of either sign
 * cancel it. */
static void row_t6(const struct sl_synth_rule *r, int cols, struct rnd *g, uint8_t *row)
{
    size_t nb = (size_t)sl_t8_blocks(cols);
    uint8_t *high = row + nb * 16;
    fill(g, row, nb * 24, ALL_BITS, 0);
    if (cols % SL_T_BLOCK) pad_low(row + (nb - 1) * 16, high + (nb - 1) * 8, cols % SL_T_BLOCK, 32);
    fill_f16(g, r->rms / RMS_T6, F16_LOW | F16_SIGN, row + nb * 24, (int)nb);
}

static void row_t4(const struct sl_synth_rule *r, int cols, struct rnd *g, uint8_t *row)
{
    size_t nb = (size_t)sl_t8_blocks(cols);
    fill(g, row, nb * 16, ALL_BITS, 0);
    if (cols % SL_T_BLOCK) pad_low(row + (nb - 1) * 16, NULL, cols % SL_T_BLOCK, 8);
    fill_f16(g, r->rms / RMS_T4, F16_LOW | F16_SIGN, row + nb * 16, (int)nb);
}

void sl_synth_row(const struct sl_synth_rule *r, enum sl_fmt fmt, int cols, uint64_t stream,
                  uint8_t *row)
{
    struct rnd g = {stream};
    switch (fmt) {
    case SL_FMT_F32:
        row_f32(r, cols, &g, row);
        break;
    case SL_FMT_T8:
        row_t8(r, cols, &g, row);
        break;
    case SL_FMT_T6:
        row_t6(r, cols, &g, row);
        break;
    case SL_FMT_T4:
        row_t4(r, cols, &g, row);
        break;
    default:
        row_bf16(r, cols, &g, row);
        break;
    }
}

bool sl_synth_router_bias(const struct sl_config *c, uint64_t stream, uint8_t *row)
{
    int n = c->n_experts;
    struct rnd g = {stream};
    struct sl_synth_rule rule;
    double *p = malloc((size_t)n * sizeof *p);
    if (!p) return false;
    sl_synth_rule_of(&rule, c, "gate.weight", c->hidden_size);
    double sd = ldexp(RMS_BINADE, bf16_exponent(&rule)) * sqrt(c->hidden_size);
    (void)sl_synth_popularity(p, n, c->top_k, SL_SYNTH_REUSE);
    for (int i = n - 1; i > 0; i--) { /* popular ids lie anywhere in the file */
        int k = below(&g, i + 1);
        double t = p[i];
        p[i] = p[k];
        p[k] = t;
    }
    for (int i = 0; i < n; i++) put_f32(row + 4 * (size_t)i, sl_synth_bias(p[i], sd));
    free(p);
    return true;
}

/* ---- experts ------------------------------------------------------------------------------------- */

/* One code at a time of a plane that is [rows][bytes]: the last nibble of an odd row is not used. */
static void clear_last_nibbles(uint8_t *plane, int rows, size_t bytes, int blocks)
{
    for (int i = 0; blocks % 2 && i < rows; i++) plane[(size_t)i * bytes + bytes - 1] &= 0x0f;
}

static void fill_mx(enum sl_fmt fmt, int rows, int cols, const struct sl_plane_offsets *o,
                    const struct sl_planes *n, struct rnd *g, uint8_t *record)
{
    uint8_t *scales = record + o->scales;
    int e = 127 + exponent(1 / sqrt(cols), RMS_MX);
    fill(g, record + o->codes, n->codes, ALL_BITS, 0);
    if (fmt == SL_FMT_MXFP4) {
        fill(g, scales, n->scales, UINT64_C(0x0303030303030303), 0);
        for (uint64_t i = 0; i < n->scales; i++) scales[i] = (uint8_t)(e - scales[i]);
        return;
    }
    int blocks = cols / SL_MX_BLOCK;
    size_t row_bytes = (size_t)(blocks + 1) / 2;
    fill(g, scales, n->scales, LOW_TWO, 0);
    for (int i = 0; i < rows; i++) scales[(size_t)i * row_bytes] &= 0xf0; /* the row's maximum */
    clear_last_nibbles(scales, rows, row_bytes, blocks);
    fill(g, record + o->row_scales, n->row_scales, UINT64_C(0x0101010101010101), 0);
    for (int i = 0; i < rows; i++)
        record[o->row_scales + i] = (uint8_t)(e - record[o->row_scales + i]);
}

/* An even ramp over -127..127, shuffled. */
static void fill_table(struct rnd *g, uint8_t *table, int n)
{
    for (int i = 0; i < n; i++) table[i] = (uint8_t)(int8_t)((2 * i - (n - 1)) * 127 / (n - 1));
    for (int i = n - 1; i > 0; i--) {
        int k = below(g, i + 1);
        uint8_t t = table[i];
        table[i] = table[k];
        table[k] = t;
    }
}

static void fill_trellis(int rows, int cols, const struct sl_plane_offsets *o,
                         const struct sl_planes *n, struct rnd *g, uint8_t *record)
{
    int blocks = cols / SL_MX_BLOCK;
    fill(g, record + o->codes, n->codes, ALL_BITS, 0);
    if (n->scales) {
        fill(g, record + o->scales, n->scales, LOW_TWO, 0);
        clear_last_nibbles(record + o->scales, rows, (size_t)(blocks + 1) / 2, blocks);
    }
    if (n->row_scales)
        fill_f16(g, 1 / (sqrt(cols) * RMS_W * RMS_T8 * (double)SL_W_ROW_UNIT), F16_LOW,
                 record + o->row_scales, rows);
    fill_table(g, record + o->table, (int)n->table);
}

/* Zeros from *at to the plane that starts at `start`; *at goes to its end. */
static void skip(uint8_t *record, uint64_t *at, uint32_t start, uint64_t bytes)
{
    if (start == SL_ABSENT) return;
    memset(record + *at, 0, start - *at);
    *at = start + bytes;
}

void sl_synth_record(const struct sl_config *c, const struct sl_bank_entry *e, uint64_t stream,
                     uint8_t *record)
{
    struct rnd g = {stream};
    uint64_t at = 0;
    for (int i = 0; i < SL_N_MATS * e->n_planes; i++) {
        int m = i % SL_N_MATS;
        bool fine = i >= SL_N_MATS;
        enum sl_fmt fmt = (enum sl_fmt)e->fmt[m];
        const struct sl_plane_offsets *o = &e->planes[m][fine];
        struct sl_planes n = {0};
        int rows = sl_mat_rows(c, m);
        int cols = sl_mat_cols(c, m);
        if (fine && o->codes == SL_ABSENT) continue;
        (void)sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &n);
        if (fine) sl_fmt_fine_planes(fmt, (uint64_t)rows, (uint64_t)cols, &n);
        skip(record, &at, o->codes, n.codes);
        skip(record, &at, o->scales, n.scales);
        skip(record, &at, o->row_scales, n.row_scales);
        skip(record, &at, o->table, n.table);
        if (sl_fmt_is_trellis(fmt))
            fill_trellis(rows, cols, o, &n, &g, record);
        else
            fill_mx(fmt, rows, cols, o, &n, &g, record);
    }
    memset(record + at, 0, e->bytes - at);
}
