/* A block is 32 numbers: find the scale, then write the codes.
 *
 *   the search reads the block sixteen times: it works on vectors of four, with sixteen error sums
 *   added by halves, in one order on every machine
 *
 * Rounding is by adding and subtracting 1.5 * 2^23 (nearest even, |code| < 2^22). The search stops at
 * 16 scales: 8 leave 3.2 % less error than one, 16 leave 5.6 %, 32 leave 8.6 % at twice the time. */
#include "quant/t8.h"

#include <assert.h>
#include <string.h>
#include "kernels/block_t8.h"
#include "kernels/half.h"
#include "kernels/lanes.h"

enum { CANDIDATES = 16, MAX_F16 = 0x7bff };
static const float round_magic = 0x1.8p+23f;

static float code_of(float x, float inv)
{
    return (x * inv + round_magic) - round_magic;
}

/* Four floats as one value: what every 64-bit machine has in a register (GNU C vector extension). */
typedef float four __attribute__((vector_size(16)));
enum { FOURS = SL_T_BLOCK / 4 };

static inline four squared_error(four x, float inv, float scale)
{
    four d = x - ((x * inv + round_magic) - round_magic) * scale;
    return d * d;
}

static float block_error(const four *x, float scale)
{
    float inv = 1.0f / scale, lane[SL_LANES];
    four a = {0}, b = {0}, c = {0}, d = {0};
    for (int i = 0; i < FOURS; i += 4) {
        a += squared_error(x[i], inv, scale);
        b += squared_error(x[i + 1], inv, scale);
        c += squared_error(x[i + 2], inv, scale);
        d += squared_error(x[i + 3], inv, scale);
    }
    memcpy(lane, &a, 16);
    memcpy(lane + 4, &b, 16);
    memcpy(lane + 8, &c, 16);
    memcpy(lane + 12, &d, 16);
    return sl_lanes_sum(lane);
}

/* Bits of the smallest f16 scale under which max rounds to at most 127. */
static int least_scale(float max)
{
    int h = sl_f32_to_f16(max / 127.5f);
    h = h > 1 ? h - 1 : 1;
    while (max * (1.0f / sl_f16_to_f32((uint16_t)h)) >= 127.5f) h++;
    return h;
}

static uint16_t encode_block(const float *x, float max, int8_t *codes)
{
    four v[FOURS];
    memcpy(v, x, sizeof v);
    int best = least_scale(max), last = best + CANDIDATES - 1;
    float least = block_error(v, sl_f16_to_f32((uint16_t)best));
    for (int h = best + 1; h <= last && h <= MAX_F16; h++) {
        float e = block_error(v, sl_f16_to_f32((uint16_t)h));
        if (e < least) {
            least = e;
            best = h;
        }
    }
    float inv = 1.0f / sl_f16_to_f32((uint16_t)best);
    int any = 0;
    for (int i = 0; i < SL_T_BLOCK; i++) {
        codes[i] = (int8_t)(int)code_of(x[i], inv);
        any |= codes[i];
    }
    return any ? (uint16_t)best : 0; /* numbers below every scale: a zero block like others */
}

/* Magnitude as an integer: ordered like the number, with infinity and every NaN above all others. */
static uint32_t magnitude(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u & 0x7fffffff;
}

static int encode_row(const float *f32, const uint8_t *bf16, int cols, uint8_t *row)
{
    assert(cols >= 0);
    uint8_t *scales = row + (size_t)sl_t8_blocks(cols) * SL_T_BLOCK;
    const uint32_t limit = magnitude(SL_T8_MAX);
    for (int c = 0; c < cols; c += SL_T_BLOCK) {
        int n = cols - c < SL_T_BLOCK ? cols - c : SL_T_BLOCK;
        float x[SL_T_BLOCK] = {0}, max;
        int8_t codes[SL_T_BLOCK] = {0};
        if (f32) memcpy(x, f32 + c, (size_t)n * sizeof *x);
        for (int i = 0; !f32 && i < n; i++) {
            const uint8_t *p = bf16 + (size_t)(c + i) * 2;
            x[i] = sl_bf16_to_f32((uint16_t)(p[0] | p[1] << 8));
        }
        uint32_t top = 0;
        for (int i = 0; i < SL_T_BLOCK; i++) top = top > magnitude(x[i]) ? top : magnitude(x[i]);
        for (int i = 0; top > limit; i++)
            if (magnitude(x[i]) > limit) return c + i;
        memcpy(&max, &top, sizeof max);
        uint16_t s = top ? encode_block(x, max, codes) : 0;
        memcpy(row + c, codes, SL_T_BLOCK);
        *scales++ = (uint8_t)s;
        *scales++ = (uint8_t)(s >> 8);
    }
    return -1;
}

int sl_t8_encode_f32(const float *x, int cols, uint8_t *row)
{
    return encode_row(x, NULL, cols, row);
}

int sl_t8_encode_bf16(const uint8_t *x, int cols, uint8_t *row)
{
    return encode_row(NULL, x, cols, row);
}
