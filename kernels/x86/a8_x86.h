/* Block decoders and dots of the integer product, 256 bits wide: AVX2, and with one operation less each
 * where VNNI (sums of four products) and VBMI (a table of 64 in one permutation) are there. Wider
 * registers would not help: eight blocks a step already hide every latency.
 *
 * A product of two signed bytes is a magnitude times the other with the sign moved over: |q|, which the
 * packing holds ready, times code; or |code| times q where a code may be -128, which has no negative.
 * Magnitudes are at most 127 and 128, so that a pair sums to at most 32,512: no saturation. */
#include <immintrin.h>
#include "kernels/act.h"
#include "kernels/x86/decode_w_avx2.h"
#include "kernels/a8_row.h"

typedef __m256i block;
typedef __m256 sums;

SL_INLINE __m256i a8_nibbles(const uint8_t *p)
{
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_and_si256(_mm256_srlv_epi64(v, _mm256_setr_epi64x(0, 0, 4, 4)),
                            _mm256_set1_epi8(15));
}

SL_INLINE __m256i a8_pick(const int8_t *table, __m256i index)
{
    const __m128i t = _mm_loadu_si128((const __m128i *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), index);
}

SL_INLINE block a8_T8(const struct sl_a8_row *r, int b)
{
    return _mm256_loadu_si256((const __m256i *)(r->codes + (size_t)b * 32));
}

SL_INLINE block a8_T6(const struct sl_a8_row *r, int b)
{
    long long high;
    memcpy(&high, r->high + (size_t)b * 8, sizeof high);
    __m256i h = _mm256_srlv_epi64(_mm256_set1_epi64x(high), _mm256_setr_epi64x(0, 2, 4, 6));
    h = _mm256_slli_epi16(_mm256_and_si256(h, _mm256_set1_epi8(3)), 4);
    const __m256i code = _mm256_or_si256(a8_nibbles(r->codes + (size_t)b * 16), h);
    return _mm256_sub_epi8(code, _mm256_set1_epi8(32));
}

SL_INLINE block a8_T4(const struct sl_a8_row *r, int b)
{
    return a8_pick(sl_t4_table, a8_nibbles(r->codes + (size_t)b * 16));
}

SL_INLINE block a8_MX(const struct sl_a8_row *r, int b)
{
    return a8_pick(sl_a8_e2m1, a8_nibbles(r->codes + (size_t)b * 16));
}

#if defined(__AVX512VBMI__)
typedef struct {
    __m256i part[4];
} a8_table;

SL_INLINE a8_table a8_table_of(const struct sl_a8_row *r, int plain)
{
    a8_table t;
    for (int i = 0; i < 4; i++)
        t.part[i] =
            _mm256_loadu_si256((const __m256i *)(r->w.table + (size_t)(plain ? i : i & 1) * 32));
    return t;
}

SL_INLINE block a8_find(const a8_table *t, int part, __m256i index)
{
    return _mm256_permutex2var_epi8(t->part[part], index, t->part[part + 1]);
}
#else
typedef struct {
    struct w_table half[2];
} a8_table;

SL_INLINE a8_table a8_table_of(const struct sl_a8_row *r, int plain)
{
    a8_table t;
    t.half[0] = w_table_load(r->w.table);
    t.half[1] = plain ? w_table_load(r->w.table + 64) : t.half[0];
    return t;
}

SL_INLINE block a8_find(const a8_table *t, int part, __m256i index)
{
    return w_lookup(&t->half[part >> 1], index);
}
#endif

SL_INLINE block a8_W2(const struct sl_a8_row *r, const a8_table *t, int b, int plain)
{
    const __m256i index = w_index2(r->w.words + (size_t)b * 8);
    const __m256i v = a8_find(t, 0, index);
    if (!plain) return v;
    return w_blend(v, a8_find(t, 2, index), w_plain(r->w.plain + (size_t)b * 4));
}

SL_INLINE block a8_W1(const struct sl_a8_row *r, const a8_table *t, int b)
{
    return a8_find(t, 0, w_index1(r->w.words + (size_t)(b >> 1) * 8, b & 1));
}

/* Eight nibbles. */
SL_INLINE __m256i a8_eight_nibbles(int v)
{
    const __m256i n =
        _mm256_srlv_epi32(_mm256_set1_epi32(v), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return _mm256_and_si256(n, _mm256_set1_epi32(15));
}

/* Half of sl_e8m0 in every lane. */
SL_INLINE __m256 a8_half_e8m0(__m256i s)
{
    const __m256i zero = _mm256_cmpeq_epi32(s, _mm256_setzero_si256());
    const __m256i bits =
        _mm256_blendv_epi8(_mm256_slli_epi32(s, 23), _mm256_set1_epi32(0x00400000), zero);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
}

/* The scale bytes of n blocks, in the low end of a register: through integers where they are fewer than
 * eight, because a wide load right behind narrow stores waits for them. */
SL_INLINE long long a8_bytes(const uint8_t *p, int n)
{
    long long v = 0;
    memcpy(&v, p, (size_t)n); /* n is a constant, 1, 2, 4 or 8: one load */
    return v;
}

SL_INLINE __m256 a8_scales_of(const struct sl_a8_row *r, enum sl_a8_kind k, int b, int n)
{
    const size_t first = (size_t)b;
    switch (k) {
    case K_T8:
    case K_T6:
    case K_T4: {
        const uint8_t *p = r->scales + 2 * first;
        return _mm256_cvtph_ps(n == 8 ? _mm_loadu_si128((const __m128i *)p)
                                      : _mm_cvtsi64_si128(a8_bytes(p, 2 * n)));
    }
    case K_MX:
        return a8_half_e8m0(
            _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(a8_bytes(r->scales + first, n))));
    case K_M4: {
        const __m256i v = a8_eight_nibbles((int)a8_bytes(r->scales + first / 2, (n + 1) / 2));
        return a8_half_e8m0(
            _mm256_and_si256(_mm256_sub_epi32(_mm256_set1_epi32(r->e), v), _mm256_set1_epi32(255)));
    }
    default: {
        const __m256i v = a8_eight_nibbles((int)a8_bytes(r->w.scales + first / 2, (n + 1) / 2));
        const __m256i m =
            _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(3)), _mm256_set1_epi32(4));
        return _mm256_cvtepi32_ps(_mm256_sllv_epi32(m, _mm256_srli_epi32(v, 2)));
    }
    }
}

SL_INLINE void a8_scales(const struct sl_a8_row *r, enum sl_a8_kind k, int b, float *ws)
{
    _mm256_storeu_ps(ws, a8_scales_of(r, k, b, 8));
}

SL_INLINE void a8_few_factors(const struct sl_a8_row *r, enum sl_a8_kind k, int b, int n,
                              const float *scale, float *f)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 x = _mm256_maskload_ps(scale, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
    _mm256_storeu_ps(f, _mm256_mul_ps(a8_scales_of(r, k, b, n), x));
}

SL_INLINE void a8_factors(const float *ws, const float *scale, float *f)
{
    _mm256_storeu_ps(f, _mm256_mul_ps(_mm256_loadu_ps(ws), _mm256_loadu_ps(scale)));
}

SL_INLINE sums a8_load(const float *lane)
{
    return _mm256_loadu_ps(lane);
}

SL_INLINE void a8_store(float *lane, sums s)
{
    _mm256_storeu_ps(lane, s);
}

SL_INLINE float a8_tree(sums even, sums odd)
{
    const __m256 v = _mm256_add_ps(even, odd);
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* The two factors of a plane, the first one unsigned. */
SL_INLINE void a8_pair(__m256i v, const int8_t *q, size_t plane, int whole, __m256i *a, __m256i *s)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)q);
    *a = whole ? _mm256_abs_epi8(v) : _mm256_loadu_si256((const __m256i *)(q + plane));
    *s = whole ? _mm256_sign_epi8(x, v) : _mm256_sign_epi8(v, x);
}

SL_INLINE sums a8_step(sums sum, block v, const int8_t *q, size_t plane, int planes, int whole,
                       const float *f)
{
    __m256i a, s, d;
    a8_pair(v, q, plane, whole, &a, &s);
#if defined(__AVX512VNNI__)
    d = _mm256_dpbusd_epi32(_mm256_setzero_si256(), a, s);
    if (planes == 2) {
        a8_pair(v, q + 2 * plane, plane, whole, &a, &s);
        d = _mm256_dpbusd_epi32(_mm256_slli_epi32(d, 8), a, s);
    }
#else
    d = _mm256_madd_epi16(_mm256_maddubs_epi16(a, s), _mm256_set1_epi16(planes == 2 ? 256 : 1));
    if (planes == 2) {
        a8_pair(v, q + 2 * plane, plane, whole, &a, &s);
        d = _mm256_add_epi32(d,
                             _mm256_madd_epi16(_mm256_maddubs_epi16(a, s), _mm256_set1_epi16(1)));
    }
#endif
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_broadcast_ss(f), sum);
}

#ifdef SL_A8_NAME /* or else the decoders alone */
#include "kernels/body_a8.h"
#endif
