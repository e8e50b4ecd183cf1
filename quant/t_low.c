/* A block is eight vectors of four; the table of t4 is a sum of steps, so that both formats round
 * without a branch or a lookup. */
#include "quant/t_low.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/block_t4.h"
#include "kernels/block_t6.h"
#include "kernels/half.h"

typedef float four __attribute__((vector_size(16)));
typedef int32_t four_i __attribute__((vector_size(16)));
enum { B = SL_T_BLOCK, FOURS = B / 4, CANDIDATES = 9, MAX_F16 = 0x7bff, MID_T6 = 32, ZERO_T4 = 8 };

/* Largest value of the block over the end of the table that serves it. */
static const float reach[CANDIDATES] = {0.85f, 0.88f, 0.91f, 0.94f, 0.97f,
                                        1.0f,  1.03f, 1.06f, 1.09f};

static inline four all(float v)
{
    return (four){v, v, v, v};
}

/* no where m is 0, yes where it is -1 */
static inline four pick(four_i m, four yes, four no)
{
    return (four)((m & (four_i)yes) | (~m & (four_i)no));
}

/* Nearest value of the format's table. */
static inline four snap(enum sl_fmt fmt, four v)
{
    if (fmt == SL_FMT_T6) {
        v = pick(v < all(-32.0f), all(-32.0f), v);
        v = pick(v > all(31.0f), all(31.0f), v);
        return (v + all(0x1.8p+23f)) - all(0x1.8p+23f);
    }
    four q = all(sl_t4_table[0]);
#pragma GCC unroll 15
    for (int i = 0; i < 15; i++) {
        float lo = sl_t4_table[i], hi = sl_t4_table[i + 1];
        q += (four)((v > all((lo + hi) * 0.5f)) & (four_i)all(hi - lo));
    }
    return q;
}

static inline float sum(four v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* use: 1 for columns of the matrix, 0 for padding, which t4 cannot hold without error */
static inline float squared_error(enum sl_fmt fmt, const four *x, const four *use, float scale)
{
    const four s = all(scale), inv = all(1.0f / scale);
    four e = all(0.0f);
    for (int i = 0; i < FOURS; i++) {
        four d = x[i] - snap(fmt, x[i] * inv) * s;
        e += d * d * use[i];
    }
    return sum(e);
}

/* Scale before rounding to f16; extreme: the value of largest magnitude. */
static inline float fit_scale(enum sl_fmt fmt, const four *x, const four *use, float extreme)
{
    const float ends[2] = {fmt == SL_FMT_T6 ? -32.0f : sl_t4_table[0],
                           fmt == SL_FMT_T6 ? 31.0f : sl_t4_table[15]};
    float best = extreme / ends[0], most = 0.0f;
    for (int i = 0; i < 2 * CANDIDATES; i++) {
        const float s = extreme / (ends[i & 1] * reach[i >> 1]);
        const four inv = all(1.0f / s);
        four xq = all(0.0f), qq = all(0.0f);
        for (int j = 0; j < FOURS; j++) {
            four q = snap(fmt, x[j] * inv);
            xq += x[j] * q;
            qq += q * q * use[j];
        }
        /* With the best scale xq / qq these codes leave |x|^2 - xq^2 / qq. In units of s, so that no
         * square leaves the range of a float. */
        const float a = sum(xq) / extreme, b = sum(qq);
        if (b > 0.0f && a * a / b > most) {
            most = a * a / b;
            best = sum(xq) / b;
        }
    }
    return best;
}

/* Codes as the numbers that the block header names. */
static inline void put_codes(enum sl_fmt fmt, const float *q, uint8_t *codes, uint8_t *high)
{
    uint8_t c[B];
    for (int i = 0; i < B; i++) {
        c[i] = (uint8_t)((int)q[i] + MID_T6);
        if (fmt != SL_FMT_T4) continue;
        c[i] = 0;
        while (c[i] < 15 && sl_t4_table[c[i]] < (int)q[i]) c[i]++;
    }
    for (int j = 0; j < 16; j++) codes[j] = (uint8_t)((c[j] & 15) | (c[j + 16] & 15) << 4);
    for (int j = 0; high && j < 8; j++)
        high[j] =
            (uint8_t)(c[j] >> 4 | c[j + 8] >> 4 << 2 | c[j + 16] >> 4 << 4 | c[j + 24] >> 4 << 6);
}

/* A block of zeros: scale 0, and the codes that padding has. */
static uint16_t zero_block(enum sl_fmt fmt, uint8_t *codes, uint8_t *high)
{
    memset(codes, fmt == SL_FMT_T4 ? ZERO_T4 * 0x11 : 0, 16);
    if (high) memset(high, 0xaa, SL_T6_HIGH);
    return 0;
}

static inline __attribute__((always_inline)) uint16_t
encode_block(enum sl_fmt fmt, const float *x, int n, float extreme, uint8_t *codes, uint8_t *high)
{
    four v[FOURS], use[FOURS], nothing = all(0.0f);
    float q[B];
    memcpy(v, x, sizeof v);
    for (int i = 0; i < B; i++) use[i / 4][i % 4] = i < n ? 1.0f : 0.0f;
    for (int i = 0; i < FOURS; i++) nothing += v[i] * v[i];
    float fit = fit_scale(fmt, v, use, extreme), least = sum(nothing);
    /* The fit and its neighbours; beside them the largest value on the longer end, which is exact where
     * few values are not zero. */
    const float end = fmt == SL_FMT_T6 ? -32.0f : sl_t4_table[0];
    const int near = sl_f32_to_f16(fabsf(fit)), sign = fit < 0.0f ? 0x8000 : 0;
    const int plain = sl_f32_to_f16(fabsf(extreme / end)), plain_sign = extreme > 0.0f ? 0x8000 : 0;
    const int tries[4] = {near | sign, (near - 1) | sign, (near + 1) | sign, plain | plain_sign};
    int best = 0;
    for (int i = 0; i < 4; i++) {
        const int h = tries[i] & 0x7fff;
        if (h < 1 || h > MAX_F16) continue;
        float e = squared_error(fmt, v, use, sl_f16_to_f32((uint16_t)tries[i]));
        if (e < least) {
            least = e;
            best = tries[i];
        }
    }
    if (!best) return zero_block(fmt, codes, high); /* numbers below every scale */
    const float scale = sl_f16_to_f32((uint16_t)best);
    for (int i = 0; i < FOURS; i++) {
        four r = snap(fmt, v[i] * all(1.0f / scale));
        memcpy(q + (size_t)4 * (size_t)i, &r, sizeof r);
    }
    put_codes(fmt, q, codes, high);
    return (uint16_t)best;
}

static inline __attribute__((always_inline)) int
encode_row(enum sl_fmt fmt, const float *f32, const uint8_t *bf16, int cols, uint8_t *row)
{
    assert(cols >= 0);
    const size_t blocks = (size_t)sl_t8_blocks(cols);
    uint8_t *high = row + blocks * 16; /* of t6 */
    uint8_t *scales = fmt == SL_FMT_T6 ? high + blocks * SL_T6_HIGH : high;
    for (size_t b = 0; b < blocks; b++, scales += 2) {
        const int c = (int)b * B, n = cols - c < B ? cols - c : B;
        float x[B] = {0}, extreme = 0.0f;
        if (f32) memcpy(x, f32 + c, (size_t)n * sizeof *x);
        for (int i = 0; !f32 && i < n; i++) {
            const uint8_t *p = bf16 + (size_t)(c + i) * 2;
            x[i] = sl_bf16_to_f32((uint16_t)(p[0] | p[1] << 8));
        }
        for (int i = 0; i < n; i++) {
            if (!(fabsf(x[i]) <= SL_T_LOW_MAX)) return c + i;
            if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
        }
        uint8_t *hi = fmt == SL_FMT_T6 ? high + b * SL_T6_HIGH : NULL;
        uint16_t s = fabsf(extreme) < 0x1p-32f /* below a hundredth of every scale */
                         ? zero_block(fmt, row + b * 16, hi)
                         : encode_block(fmt, x, n, extreme, row + b * 16, hi);
        scales[0] = (uint8_t)s;
        scales[1] = (uint8_t)(s >> 8);
    }
    return -1;
}

int sl_t_low_encode_f32(enum sl_fmt fmt, const float *x, int cols, uint8_t *row)
{
    assert(fmt == SL_FMT_T6 || fmt == SL_FMT_T4);
    return fmt == SL_FMT_T6 ? encode_row(SL_FMT_T6, x, NULL, cols, row)
                            : encode_row(SL_FMT_T4, x, NULL, cols, row);
}

int sl_t_low_encode_bf16(enum sl_fmt fmt, const uint8_t *x, int cols, uint8_t *row)
{
    assert(fmt == SL_FMT_T6 || fmt == SL_FMT_T4);
    return fmt == SL_FMT_T6 ? encode_row(SL_FMT_T6, NULL, x, cols, row)
                            : encode_row(SL_FMT_T4, NULL, x, cols, row);
}
