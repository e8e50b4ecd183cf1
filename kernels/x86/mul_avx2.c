/* Packed products on AVX2 with F16C: block decoders for body_mul.h, eight lanes.
 *
 * Every decoder is exact, so only products and sums round. Shuffles stay within 128-bit halves (one
 * operation each); codes are loaded into both halves and picked by a different mask in each. */
#include "kernels/variants.h"
#include "kernels/mx_table.h"
#include "kernels/simd_common.h"
#include "kernels/x86/simd_avx2.h"
#include "kernels/block_m4.h"
#include "kernels/block_t4.h"
#include "kernels/x86/decode_w_avx2.h"

#define TILE     3
#define MX_ORDER 1

static inline __m256i both_halves(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}

SL_INLINE void dec_f32(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 128;
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)(p + i * 32)));
}

/* Each bf16 to the upper half of its lane. */
SL_INLINE void dec_bf16(const struct sl_row *r, int b, vf *w)
{
    const __m256i up = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1,
                                        -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    const uint8_t *p = r->codes + (size_t)b * 64;
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_castsi256_ps(_mm256_shuffle_epi8(both_halves(p + i * 16), up));
}

SL_INLINE void dec_f16(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 64;
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + i * 16)));
}

/* Each code to the top byte of its lane: an integer 2^24 times the code, which the scale undoes. */
SL_INLINE void dec_t8(const struct sl_row *r, int b, vf *w)
{
    const __m256i lo = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3,
                                        -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7);
    const __m256i hi =
        _mm256_setr_epi8(-1, -1, -1, 8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1, 11, -1, -1, -1,
                         12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, 15);
    const uint8_t *p = r->codes + (size_t)b * 32;
    uint16_t half;
    memcpy(&half, r->scales + (size_t)b * 2, sizeof half);
    const vf scale = _mm256_set1_ps(_cvtsh_ss(half) * 0x1p-24f);
#pragma GCC unroll 16
    for (int i = 0; i < 2; i++) {
        const __m256i c = both_halves(p + i * 16);
        w[2 * i] = vf_mul(_mm256_cvtepi32_ps(_mm256_shuffle_epi8(c, lo)), scale);
        w[2 * i + 1] = vf_mul(_mm256_cvtepi32_ps(_mm256_shuffle_epi8(c, hi)), scale);
    }
}

/* Sixteen int8 to two vectors, times scale. */
SL_INLINE void widen_i8(__m128i v, vf scale, vf *w)
{
    w[0] = vf_mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), scale);
    w[1] = vf_mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))), scale);
}

SL_INLINE vf block_scale(const struct sl_row *r, int b)
{
    uint16_t half;
    memcpy(&half, r->scales + (size_t)b * 2, sizeof half);
    return _mm256_set1_ps(_cvtsh_ss(half));
}

/* Nibbles of 16 bytes: columns 0 .. 15 in the low half, 16 .. 31 in the high one. */
SL_INLINE __m256i nibbles(const uint8_t *p)
{
    const __m256i shift = _mm256_setr_epi64x(0, 0, 4, 4);
    return _mm256_and_si256(_mm256_srlv_epi64(both_halves(p), shift), _mm256_set1_epi8(15));
}

SL_INLINE void dec_t6(const struct sl_row *r, int b, vf *w)
{
    long long high;
    memcpy(&high, r->high + (size_t)b * 8, sizeof high);
    __m256i h = _mm256_srlv_epi64(_mm256_set1_epi64x(high), _mm256_setr_epi64x(0, 2, 4, 6));
    h = _mm256_slli_epi16(_mm256_and_si256(h, _mm256_set1_epi8(3)), 4);
    const __m256i code = _mm256_or_si256(nibbles(r->codes + (size_t)b * 16), h);
    const __m256i v = _mm256_sub_epi8(code, _mm256_set1_epi8(32));
    const vf scale = block_scale(r, b);
    widen_i8(_mm256_castsi256_si128(v), scale, w);
    widen_i8(_mm256_extracti128_si256(v, 1), scale, w + 2);
}

SL_INLINE void dec_t4(const struct sl_row *r, int b, vf *w)
{
    const __m256i table = both_halves((const uint8_t *)sl_t4_table);
    const __m256i v = _mm256_shuffle_epi8(table, nibbles(r->codes + (size_t)b * 16));
    const vf scale = block_scale(r, b);
    widen_i8(_mm256_castsi256_si128(v), scale, w);
    widen_i8(_mm256_extracti128_si256(v, 1), scale, w + 2);
}

/* Low nibbles (even columns) in the low half, high nibbles (odd columns) in the high half; a byte
 * shuffle gives the high and low bytes of each weight as bf16, and two of those share a lane:
 *
 *   w[0] = columns 0 4 8 12 | 1 5 9 13      w[1] = 2 6 10 14 | 3 7 11 15      w[2], w[3]: 16 more */
SL_INLINE void dec_mx(const uint8_t *codes, uint8_t s, vf *w)
{
    const __m256i shift = _mm256_setr_epi64x(0, 0, 4, 4);
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    const __m256i n =
        _mm256_and_si256(_mm256_srlv_epi64(both_halves(codes), shift), _mm256_set1_epi8(15));
    const __m256i hi = _mm256_shuffle_epi8(both_halves(sl_mx_table[s]), n);
    const __m256i lo = _mm256_shuffle_epi8(both_halves(sl_mx_table[s] + 16), n);
    const __m256i u = _mm256_unpacklo_epi8(lo, hi), v = _mm256_unpackhi_epi8(lo, hi);
    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
    w[1] = _mm256_castsi256_ps(_mm256_and_si256(u, upper));
    w[2] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    w[3] = _mm256_castsi256_ps(_mm256_and_si256(v, upper));
}

SL_INLINE void dec_mxfp4(const struct sl_row *r, int b, vf *w)
{
    dec_mx(r->codes + (size_t)b * 16, r->scales[b], w);
}

SL_INLINE void dec_m4(const struct sl_row *r, int b, vf *w)
{
    dec_mx(r->codes + (size_t)b * 16, sl_m4_scale(r->scales, r->e, b), w);
}

/* Sixteen floats as a 4 x 4 square, transposed: the order of dec_mx, and back. */
static inline void transpose16(float *to, __m128 a, __m128 b, __m128 c, __m128 d)
{
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + 4, b);
    _mm_storeu_ps(to + 8, c);
    _mm_storeu_ps(to + 12, d);
}

static inline void mx_order_x(float *to, const float *from)
{
    transpose16(to, _mm_loadu_ps(from), _mm_loadu_ps(from + 4), _mm_loadu_ps(from + 8),
                _mm_loadu_ps(from + 12));
}

static inline void mx_natural(float *to, const vf *w)
{
    for (int i = 0; i < 4; i += 2, to += 16)
        transpose16(to, _mm256_castps256_ps128(w[i]), _mm256_extractf128_ps(w[i], 1),
                    _mm256_castps256_ps128(w[i + 1]), _mm256_extractf128_ps(w[i + 1], 1));
}

static const uint8_t mx_lane[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};

#include "kernels/x86/turn_x86.h"
#include "kernels/body_mul.h"
