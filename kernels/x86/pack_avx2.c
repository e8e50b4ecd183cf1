/* Packing of int8 activations (act.h) on AVX2: the bytes of sl_act_pack, 32 columns at a time.
 *
 * Magnitudes are compared as integers: the order of non-negative floats is that of their bits, and what
 * is not finite lies above them all. */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "kernels/act.h"
#include "kernels/simd_common.h"

enum { B = 32, NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

/* Bytes of a block from column order to the order of a format; the table of act.h. */
SL_INLINE __m256i arrange(enum sl_act_order order, __m256i v)
{
    switch (order) {
    case SL_ACT_PAIRS: {
        const __m256i t = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0,
                                           2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, t), 0xd8);
    }
    case SL_ACT_ROT4: {
        const __m256i t = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0,
                                           4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(v, t),
                                           _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    case SL_ACT_ROT8: {
        const __m256i t = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15, 0,
                                           8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
        const __m256i w = _mm256_shuffle_epi8(v, t); /* pairs of a lane, i ascending */
        const __m128i lo = _mm256_castsi256_si128(w), hi = _mm256_extracti128_si256(w, 1);
        return _mm256_set_m128i(_mm_unpackhi_epi16(lo, hi), _mm_unpacklo_epi16(lo, hi));
    }
    default:
        return v;
    }
}

/* Four registers of whole numbers within int8, in column order. */
SL_INLINE __m256i bytes_of(const __m256 v[4])
{
    const __m256i a = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
    const __m256i b = _mm256_packs_epi32(_mm256_cvtps_epi32(v[2]), _mm256_cvtps_epi32(v[3]));
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

SL_INLINE void put(enum sl_act_order order, const __m256 v[4], int8_t *to, size_t plane)
{
    const __m256i q = arrange(order, bytes_of(v));
    _mm256_storeu_si256((__m256i *)to, q);
    _mm256_storeu_si256((__m256i *)(to + plane), _mm256_abs_epi8(q));
}

SL_INLINE int top_bits(const __m256 v[4])
{
    const __m256i low = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_and_si256(_mm256_castps_si256(v[0]), low);
    for (int i = 1; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), low));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtsi128_si32(h);
}

SL_INLINE float pack_block(enum sl_act_order order, int planes, const float *from, int8_t *to,
                           size_t plane)
{
    __m256 v[4], whole[4], rest[4];
    for (int i = 0; i < 4; i++) v[i] = _mm256_loadu_ps(from + 8 * i);
    const int bits = top_bits(v);
    float top;
    memcpy(&top, &bits, sizeof top);
    const bool finite = bits < 0x7f800000;
    if (!finite || top < 0x1p-100f) {
        for (int i = 0; i < 2 * planes; i++) memset(to + (size_t)i * plane, 0, B);
        return finite ? 0.0f : NAN;
    }
    const float s = top / 127.0f, inv = 127.0f / top;
    const __m256 vs = _mm256_set1_ps(s), vi = _mm256_set1_ps(inv);
    for (int i = 0; i < 4; i++) whole[i] = _mm256_round_ps(_mm256_mul_ps(v[i], vi), NEAREST);
    put(order, whole, to, plane);
    if (planes == 1) return s;
    const __m256 fine = _mm256_set1_ps(256.0f * inv), top_q = _mm256_set1_ps(127.0f);
    for (int i = 0; i < 4; i++) {
        const __m256 left = _mm256_sub_ps(v[i], _mm256_mul_ps(whole[i], vs));
        __m256 r = _mm256_round_ps(_mm256_mul_ps(left, fine), NEAREST);
        r = _mm256_min_ps(r, top_q);
        rest[i] = _mm256_max_ps(r, _mm256_sub_ps(_mm256_setzero_ps(), top_q));
    }
    put(order, rest, to + 2 * plane, plane);
    return s / 256.0f;
}

SL_INLINE void pack_rows(enum sl_act_order order, int planes, const float *x, int cols, int8_t *q,
                         float *scale)
{
    const int nb = (cols + B - 1) / B, whole = cols / B;
    const size_t plane = (size_t)nb * B;
    for (int b = 0; b < whole; b++)
        scale[b] = pack_block(order, planes, x + (size_t)b * B, q + (size_t)b * B, plane);
    if (whole == nb) return;
    float last[B] = {0}; /* zeros past cols pack to zeros */
    memcpy(last, x + (size_t)whole * B, sizeof(float) * (size_t)(cols - whole * B));
    scale[whole] = pack_block(order, planes, last, q + (size_t)whole * B, plane);
}

/* The order a constant in each copy. */
SL_INLINE void pack_planes(enum sl_act_order order, int planes, const float *x, int cols, int8_t *q,
                           float *scale)
{
    switch (order) {
    case SL_ACT_PAIRS:
        pack_rows(SL_ACT_PAIRS, planes, x, cols, q, scale);
        break;
    case SL_ACT_ROT4:
        pack_rows(SL_ACT_ROT4, planes, x, cols, q, scale);
        break;
    case SL_ACT_ROT8:
        pack_rows(SL_ACT_ROT8, planes, x, cols, q, scale);
        break;
    default:
        pack_rows(SL_ACT_NATURAL, planes, x, cols, q, scale);
        break;
    }
}

void sl_act_pack_avx2(enum sl_act_order order, int planes, const float *x, int cols, int8_t *q,
                      float *scale)
{
    if (planes == 1)
        pack_planes(order, 1, x, cols, q, scale);
    else
        pack_planes(order, 2, x, cols, q, scale);
}
