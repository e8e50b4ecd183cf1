/* Blocks of the trellis formats (block_w.h) on AVX2: 32 weights at a time, values as int8 in column
 * order, then as f32. AVX-512 takes the same path: its exact product waits for additions, not for this.
 *
 * With two bits a weight, byte j of the word rotated right by 2i holds, in its low six bits, the index
 * of weight 4j + i: four rotations are one register [i][j]. With one bit, byte j of the half word
 * rotated by i holds that of weight 8j + i: eight rotations of 32 bits. A table of 64 is four byte
 * shuffles and three blends; column order comes from unpacking afterwards. */
#ifndef SL_KERNELS_X86_DECODE_W_AVX2_H
#define SL_KERNELS_X86_DECODE_W_AVX2_H

#include <immintrin.h>
#include <string.h>
#include "kernels/block_w.h"
#include "kernels/decode_w.h"
#include "kernels/simd_common.h"

/* Sixty-four entries, each sixteen in both halves. */
struct w_table {
    __m256i part[4];
};

SL_INLINE struct w_table w_table_load(const uint8_t *p)
{
    struct w_table t;
    for (int i = 0; i < 4; i++)
        t.part[i] =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(p + (size_t)i * 16)));
    return t;
}

/* Bytes of b where the top bit of m is set, else of a. As an instruction: gcc 12 takes the intrinsic
 * apart and puts a comparison before each. */
SL_INLINE __m256i w_blend(__m256i a, __m256i b, __m256i m)
{
    __m256i out;
    __asm__("vpblendvb %3, %2, %1, %0" : "=x"(out) : "x"(a), "x"(b), "x"(m));
    return out;
}

/* index: bytes 0 .. 63 */
SL_INLINE __m256i w_lookup(const struct w_table *t, __m256i index)
{
    /* bits 5 and 4 to the top by additions, which more units do than shifts */
    const __m256i by2 = _mm256_add_epi8(index, index), bit5 = _mm256_add_epi8(by2, by2);
    const __m256i bit4 = _mm256_add_epi8(bit5, bit5);
    const __m256i lo = w_blend(_mm256_shuffle_epi8(t->part[0], index),
                               _mm256_shuffle_epi8(t->part[1], index), bit4);
    const __m256i hi = w_blend(_mm256_shuffle_epi8(t->part[2], index),
                               _mm256_shuffle_epi8(t->part[3], index), bit4);
    return w_blend(lo, hi, bit5);
}

/* Indices of a word with two bits a weight, [i][j]. */
SL_INLINE __m256i w_index2(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    const __m256i v = _mm256_set1_epi64x((long long)word);
    const __m256i r = _mm256_or_si256(_mm256_srlv_epi64(v, _mm256_setr_epi64x(0, 2, 4, 6)),
                                      _mm256_sllv_epi64(v, _mm256_setr_epi64x(64, 62, 60, 58)));
    return _mm256_and_si256(r, _mm256_set1_epi8(63));
}

/* Indices of half a word with one bit a weight, [i][j]. */
SL_INLINE __m256i w_index1(const uint8_t *word, int half)
{
    uint32_t lo, hi;
    memcpy(&lo, word + half * 4, sizeof lo);
    memcpy(&hi, word + (half ^ 1) * 4, sizeof hi);
    const __m256i r = _mm256_or_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32((int)lo), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        _mm256_sllv_epi32(_mm256_set1_epi32((int)hi),
                          _mm256_setr_epi32(32, 31, 30, 29, 28, 27, 26, 25)));
    return _mm256_and_si256(r, _mm256_set1_epi8(63));
}

/* Plain bits as bytes 0 or -1, in the order of w_index2. */
SL_INLINE __m256i w_plain(const uint8_t *p)
{
    int bits;
    memcpy(&bits, p, sizeof bits);
    const __m256i at = _mm256_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1,
                                        2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3);
    const __m256i bit = _mm256_setr_epi64x(0x1001100110011001, 0x2002200220022002,
                                           0x4004400440044004, (long long)0x8008800880088008);
    const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), at);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}

/* [i][j] to column order: columns 0 .. 15 in *lo, 16 .. 31 in *hi. */
SL_INLINE void w_natural2(__m256i v, __m128i *lo, __m128i *hi)
{
    const __m256i zip = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15, 0, 8,
                                         1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    v = _mm256_shuffle_epi8(v, zip);
    *lo = _mm_unpacklo_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    *hi = _mm_unpackhi_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

SL_INLINE void w_natural1(__m256i v, __m128i *lo, __m128i *hi)
{
    const __m256i turn = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0,
                                          4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    v = _mm256_shuffle_epi8(v, turn);
    *lo = _mm_unpacklo_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    *hi = _mm_unpackhi_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

SL_INLINE void w_store16(float *out, __m128i v, __m256 scale)
{
    const __m256i a = _mm256_cvtepi8_epi32(v), b = _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8));
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(a), scale));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(b), scale));
}

SL_INLINE void w_blocks(const struct sl_w_row *r, int b0, int n, int bits, int plain, float *out)
{
    const struct w_table t = w_table_load(r->table);
    const struct w_table u = plain ? w_table_load(r->table + 64) : t;
    for (int b = b0; b < b0 + n; b++, out += SL_W_BLOCK) {
        const __m256 scale = _mm256_set1_ps(r->row * (float)sl_w_scale(sl_w_nibble(r->scales, b)));
        __m128i lo, hi;
        if (bits == 2) {
            const __m256i index = w_index2(r->words + (size_t)b * 8);
            __m256i v = w_lookup(&t, index);
            if (plain) v = w_blend(v, w_lookup(&u, index), w_plain(r->plain + (size_t)b * 4));
            w_natural2(v, &lo, &hi);
        } else {
            w_natural1(w_lookup(&t, w_index1(r->words + (size_t)(b >> 1) * 8, b & 1)), &lo, &hi);
        }
        w_store16(out, lo, scale);
        w_store16(out + 16, hi, scale);
    }
}

/* Blocks [b0, b0 + n) of a row to f32. */
static inline void w_decode(const struct sl_w_row *r, int b0, int n, float *out)
{
    if (r->bits == 1)
        w_blocks(r, b0, n, 1, 0, out);
    else if (r->plain)
        w_blocks(r, b0, n, 2, 1, out);
    else
        w_blocks(r, b0, n, 2, 0, out);
}

#endif
