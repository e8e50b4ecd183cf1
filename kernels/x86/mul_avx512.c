/* Packed products on AVX-512 (F, BW, DQ, VL): block decoders for body_mul.h, sixteen lanes.
 *
 * A block is two registers and decoders widen in column order, so x is used as it lies. MXFP4 codes
 * are looked up by a lane permutation: its 16 entries are the e2m1 numbers times the block's scale,
 * which is one exact multiplication a block. */
#include "kernels/variants.h"
#include "kernels/simd_common.h"
#include "kernels/x86/simd_avx512.h"
#include "kernels/block_m4.h"
#include "kernels/block_t4.h"
#include "kernels/x86/decode_w_avx2.h"

#define TILE     6
#define MX_ORDER 0

SL_INLINE void dec_f32(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 128;
    w[0] = _mm512_loadu_ps(p);
    w[1] = _mm512_loadu_ps(p + 64);
}

SL_INLINE vf widen_bf16(const uint8_t *p)
{
    const __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}

SL_INLINE void dec_bf16(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 64;
    w[0] = widen_bf16(p);
    w[1] = widen_bf16(p + 32);
}

SL_INLINE void dec_f16(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 64;
    w[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
    w[1] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 32)));
}

SL_INLINE vf widen_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

SL_INLINE void dec_t8(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 32;
    uint16_t half;
    memcpy(&half, r->scales + (size_t)b * 2, sizeof half);
    const vf scale = _mm512_set1_ps(_cvtsh_ss(half));
    w[0] = vf_mul(widen_i8(p), scale);
    w[1] = vf_mul(widen_i8(p + 16), scale);
}

SL_INLINE vf block_scale(const struct sl_row *r, int b)
{
    uint16_t half;
    memcpy(&half, r->scales + (size_t)b * 2, sizeof half);
    return _mm512_set1_ps(_cvtsh_ss(half));
}

/* Nibbles of 16 bytes: columns 0 .. 15 in the low half, 16 .. 31 in the high one. */
SL_INLINE __m256i nibbles(const uint8_t *p)
{
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_and_si256(_mm256_srlv_epi64(v, _mm256_setr_epi64x(0, 0, 4, 4)),
                            _mm256_set1_epi8(15));
}

SL_INLINE void widen_32(__m256i v, vf scale, vf *w)
{
    w[0] = vf_mul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(v))), scale);
    w[1] = vf_mul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(v, 1))), scale);
}

SL_INLINE void dec_t6(const struct sl_row *r, int b, vf *w)
{
    long long high;
    memcpy(&high, r->high + (size_t)b * 8, sizeof high);
    __m256i h = _mm256_srlv_epi64(_mm256_set1_epi64x(high), _mm256_setr_epi64x(0, 2, 4, 6));
    h = _mm256_slli_epi16(_mm256_and_si256(h, _mm256_set1_epi8(3)), 4);
    const __m256i code = _mm256_or_si256(nibbles(r->codes + (size_t)b * 16), h);
    widen_32(_mm256_sub_epi8(code, _mm256_set1_epi8(32)), block_scale(r, b), w);
}

SL_INLINE void dec_t4(const struct sl_row *r, int b, vf *w)
{
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)sl_t4_table));
    widen_32(_mm256_shuffle_epi8(table, nibbles(r->codes + (size_t)b * 16)), block_scale(r, b), w);
}

/* Eight bytes to eight 64-bit lanes; each holds two codes, the second one 28 bits further up, at the
 * foot of its own 32-bit lane. The permutation reads the low four bits of a lane only. */
SL_INLINE vf pick16(const uint8_t *codes, vf table)
{
    const __m512i v = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)codes));
    return _mm512_permutexvar_ps(_mm512_or_si512(v, _mm512_slli_epi64(v, 28)), table);
}

SL_INLINE void dec_mx(const uint8_t *codes, uint8_t s, vf *w)
{
    const vf table = vf_mul(_mm512_loadu_ps(sl_e2m1), vf_set(sl_e8m0(s)));
    w[0] = pick16(codes, table);
    w[1] = pick16(codes + 8, table);
}

SL_INLINE void dec_mxfp4(const struct sl_row *r, int b, vf *w)
{
    dec_mx(r->codes + (size_t)b * 16, r->scales[b], w);
}

SL_INLINE void dec_m4(const struct sl_row *r, int b, vf *w)
{
    dec_mx(r->codes + (size_t)b * 16, sl_m4_scale(r->scales, r->e, b), w);
}

#include "kernels/x86/turn_x86.h"
#include "kernels/body_mul.h"
