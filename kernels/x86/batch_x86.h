/* Batch products (mul_batch.h) on x86: rows of W are the lanes, activations are broadcast.
 *
 *   panel   NV vectors of rows x SEG blocks, decoded once for all tokens, then
 *           int32 [block][16][NV * VR]   two int16 codes of a row each
 *   tile    NV vectors x TILE tokens keep their int32 sums in registers for a block (16 steps of two
 *           columns); then they join the f32 sums, which lie in memory
 *
 * Transposing by four bytes is cheap, so a dword of a panel comes from four neighbouring codes: shifts
 * widen codes 0 and 2, then 1 and 3. pack() puts activations into the same order.
 *
 * The including file is compiled for one ISA and defines NAME, LABEL, VR (rows of a vector, 8 or 16), TILE and
 *   vi, vf                        int32 and f32 lanes, VR of each
 *   vi b_load(const void *), b_pair(const void *)   VR dwords; one dword in all lanes
 *   vi b_mul(vi w, vi x), b_dot(vi s, vi w, vi x)   sums of two products of int16; added to s
 *   vf b_loadf(const float *), b_set(const float *), b_times(vf, vf), b_fma(vf a, vf b, vf c)
 *   vf b_float(vi), void b_store(float *, vf)                                                   */
#include <assert.h>
#include <string.h>
#include "kernels/batch_pack.h"
#include "kernels/mul_batch.h"
#include "kernels/x86/a8_x86.h"
#include "kernels/a8_block.h"

enum {
    B = 32,
    SEG = 8, /* blocks: 8 KiB of codes for 16 rows */
    NV = 2,
    ROWS = NV * VR,
    STEPS = B / 2,
    PANEL = STEPS * ROWS,
    TOKENS = 128 /* sums: 8 or 16 KiB */
};

typedef int32_t panel_unit;

/* Unrolled loops are what puts arrays into registers; a sanitizer would take minutes over long ones. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FLAT(n)
#else
#define FLAT(n)      _Pragma(FLAT_TEXT(GCC unroll n))
#define FLAT_TEXT(x) #x
#endif

/* ---- panels */

SL_INLINE void transpose8(__m256i v[8])
{
    __m256i a[8], c[8];
    FLAT(4)
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    FLAT(2)
    for (int i = 0; i < 2; i++) {
        c[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        c[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        c[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        c[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    FLAT(4)
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(c[i], c[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(c[i], c[i + 4], 0x31);
    }
}

/* Quad j of eight rows, four codes a lane, to the panel. */
SL_INLINE void put_quad(int32_t *panel, int j, __m256i codes)
{
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8);
    _mm256_store_si256((__m256i *)(panel + (size_t)(2 * j) * ROWS), even);
    _mm256_store_si256((__m256i *)(panel + (size_t)(2 * j + 1) * ROWS),
                       _mm256_srai_epi16(codes, 8));
}

/* Formats of nibbles are transposed before the codes are looked up: half the bytes. */
SL_INLINE void put_nibbles(const struct sl_a8_row *r, const int8_t *table, int b, int32_t *panel)
{
    __m256i v[4], a[4];
    FLAT(4)
    for (int i = 0; i < 4; i++) {
        const __m128i lo = _mm_loadu_si128((const __m128i *)(r[i].codes + (size_t)b * 16));
        const __m128i hi = _mm_loadu_si128((const __m128i *)(r[i + 4].codes + (size_t)b * 16));
        v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
    }
    a[0] = _mm256_unpacklo_epi32(v[0], v[1]);
    a[1] = _mm256_unpackhi_epi32(v[0], v[1]);
    a[2] = _mm256_unpacklo_epi32(v[2], v[3]);
    a[3] = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi64(a[0], a[2]);
    v[1] = _mm256_unpackhi_epi64(a[0], a[2]);
    v[2] = _mm256_unpacklo_epi64(a[1], a[3]);
    v[3] = _mm256_unpackhi_epi64(a[1], a[3]);
    const __m256i low = _mm256_set1_epi8(15);
    FLAT(4)
    for (int j = 0; j < 4; j++) {
        put_quad(panel, j, a8_pick(table, _mm256_and_si256(v[j], low)));
        put_quad(panel, j + 4, a8_pick(table, _mm256_and_si256(_mm256_srli_epi16(v[j], 4), low)));
    }
}

SL_INLINE void put_block(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k, int b,
                         int32_t *panel)
{
    if (k == K_T4 || k == K_MX || k == K_M4) {
        put_nibbles(r, k == K_T4 ? sl_t4_table : sl_a8_e2m1, b, panel);
        return;
    }
    __m256i v[8];
    FLAT(8)
    for (int i = 0; i < 8; i++) v[i] = one_block(&r[i], t, k, b);
    transpose8(v);
    FLAT(8)
    for (int j = 0; j < 8; j++) put_quad(panel, j, v[j]);
}

/* Scales of n blocks from b0 on, a multiple of 8, of one row: every ROWS-th float. */
SL_INLINE void put_scales(const struct sl_a8_row *r, enum sl_a8_kind k, int b0, int n, float *ws)
{
    float some[SEG];
    if (n == SEG)
        a8_scales(r, k, b0, some);
    else
        for (int b = 0; b < n; b++) some[b] = sl_a8_scale(r, b0 + b);
    for (int b = 0; b < n; b++) ws[(size_t)b * ROWS] = some[b];
}

SL_INLINE void put_panel(const struct sl_a8_row *row, const a8_table *t, enum sl_a8_kind k, int b0,
                         int n, int32_t *panel, float *ws)
{
    for (int r = 0; r < ROWS; r++) put_scales(&row[r], k, b0, n, ws + r);
    for (int g = 0; g < ROWS; g += 8)
        for (int b = 0; b < n; b++) put_block(row + g, t, k, b0 + b, panel + b * PANEL + g);
}

/* ---- tiles */

/* Adds n blocks to the sums of nt <= TILE tokens. q and scale: of the first token, at the first block. */
SL_INLINE void tile(const int32_t *panel, const float *ws, const int8_t *q, size_t token,
                    const float *scale, size_t nb, int n, float *sum, const int nt)
{
    for (int b = 0; b < n; b++, panel += PANEL, ws += ROWS, q += 2 * B, scale++) {
        vi s[TILE][NV], w[NV];
        FLAT(2)
        for (int v = 0; v < NV; v++) w[v] = b_load(panel + v * VR);
        FLAT(16)
        for (int t = 0; t < nt; t++) {
            const vi x = b_pair(q + (size_t)t * token);
            FLAT(2)
            for (int v = 0; v < NV; v++) s[t][v] = b_mul(w[v], x);
        }
        FLAT(3)
        for (int i = 1; i < STEPS; i++) {
            FLAT(2)
            for (int v = 0; v < NV; v++) w[v] = b_load(panel + i * ROWS + v * VR);
            FLAT(16)
            for (int t = 0; t < nt; t++) {
                const vi x = b_pair(q + (size_t)t * token + i * 4);
                FLAT(2)
                for (int v = 0; v < NV; v++) s[t][v] = b_dot(s[t][v], w[v], x);
            }
        }
        /* Sums stay in memory: there is no register left for them. */
        __asm__ volatile("" ::: "memory");
        FLAT(16)
        for (int t = 0; t < nt; t++) {
            const vf xs = b_set(scale + (size_t)t * nb);
            FLAT(2)
            for (int v = 0; v < NV; v++) {
                float *at = sum + t * ROWS + v * VR;
                const vf f = b_times(b_loadf(ws + v * VR), xs);
                b_store(at, b_fma(b_float(s[t][v]), f, b_loadf(at)));
            }
        }
    }
}

#include "kernels/body_batch.h"

/* ---- packing */

/* Thirty-two int16 in column order to the order of a format with the middle two of each four exchanged,
 * as put_quad lays them out. */
SL_INLINE void arrange(enum sl_act_order order, __m256i a, __m256i b, int8_t *to)
{
    __m128i *out = (__m128i *)to;
    switch (order) {
    case SL_ACT_PAIRS: {
        const __m256i t = _mm256_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15, 0,
                                           1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15);
        a = _mm256_shuffle_epi8(a, t); /* even four, odd four of each eight columns */
        b = _mm256_shuffle_epi8(b, t);
        const __m256i even = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0xd8);
        const __m256i odd = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0xd8);
        _mm256_storeu_si256((__m256i *)out, even);
        _mm256_storeu_si256((__m256i *)(out + 2), odd);
        return;
    }
    case SL_ACT_ROT4: {
        const __m256i t = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0,
                                           1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
        a = _mm256_shuffle_epi8(a, t); /* 0 4 1 5 2 6 3 7 | 8 12 9 13 10 14 11 15 */
        b = _mm256_shuffle_epi8(b, t);
        const __m128i a0 = _mm256_castsi256_si128(a), a1 = _mm256_extracti128_si256(a, 1);
        const __m128i b0 = _mm256_castsi256_si128(b), b1 = _mm256_extracti128_si256(b, 1);
        const __m128i al = _mm_unpacklo_epi16(a0, a1), ah = _mm_unpackhi_epi16(a0, a1);
        const __m128i bl = _mm_unpacklo_epi16(b0, b1), bh = _mm_unpackhi_epi16(b0, b1);
        _mm_storeu_si128(out, _mm_unpacklo_epi64(al, bl));
        _mm_storeu_si128(out + 1, _mm_unpackhi_epi64(al, bl));
        _mm_storeu_si128(out + 2, _mm_unpacklo_epi64(ah, bh));
        _mm_storeu_si128(out + 3, _mm_unpackhi_epi64(ah, bh));
        return;
    }
    case SL_ACT_ROT8: {
        const __m128i a0 = _mm256_castsi256_si128(a), a1 = _mm256_extracti128_si256(a, 1);
        const __m128i b0 = _mm256_castsi256_si128(b), b1 = _mm256_extracti128_si256(b, 1);
        const __m128i el = _mm_unpacklo_epi16(a0, b0), eh = _mm_unpackhi_epi16(a0, b0);
        const __m128i ol = _mm_unpacklo_epi16(a1, b1), oh = _mm_unpackhi_epi16(a1, b1);
        _mm_storeu_si128(out, _mm_unpacklo_epi32(el, ol));
        _mm_storeu_si128(out + 1, _mm_unpackhi_epi32(el, ol));
        _mm_storeu_si128(out + 2, _mm_unpacklo_epi32(eh, oh));
        _mm_storeu_si128(out + 3, _mm_unpackhi_epi32(eh, oh));
        return;
    }
    default: {
        const __m256i t = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0,
                                           1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        _mm256_storeu_si256((__m256i *)out, _mm256_shuffle_epi8(a, t));
        _mm256_storeu_si256((__m256i *)(out + 2), _mm256_shuffle_epi8(b, t));
        return;
    }
    }
}

/* Sixteen numbers times inv to int16, in order. */
SL_INLINE __m256i int16_of(__m256 lo, __m256 hi, __m256 inv)
{
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(lo, inv));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(hi, inv));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

/* sl_batch_quantize, and its order. */
SL_INLINE float pack_block(enum sl_act_order order, const float *x, int8_t *q)
{
    __m256 v[4];
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    FLAT(4)
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    const float top = _mm_cvtss_f32(_mm_castsi128_ps(h));
    const int finite = _mm_cvtsi128_si32(h) < 0x7f800000;
    if (!finite || top < SL_BATCH_LEAST) {
        memset(q, 0, 2 * B);
        return finite ? 0.0f : NAN;
    }
    const __m256 inv = _mm256_set1_ps((float)SL_BATCH_TOP / top);
    arrange(order, int16_of(v[0], v[1], inv), int16_of(v[2], v[3], inv), q);
    return top / (float)SL_BATCH_TOP;
}

SL_INLINE void pack_blocks(enum sl_act_order order, const float *x, int cols, int8_t *q,
                           float *scale)
{
    const int whole = cols / B, left = cols % B;
    for (int b = 0; b < whole; b++)
        scale[b] = pack_block(order, x + (size_t)b * B, q + (size_t)b * 2 * B);
    if (!left) return;
    float last[B] = {0};
    memcpy(last, x + (size_t)whole * B, (size_t)left * sizeof *x);
    scale[whole] = pack_block(order, last, q + (size_t)whole * 2 * B);
}

/* The order a constant in each copy. */
static void pack(enum sl_act_order order, const float *x, int cols, int8_t *q, float *scale)
{
    assert(order != SL_ACT_NONE && cols >= 0);
    switch (order) {
    case SL_ACT_PAIRS:
        pack_blocks(SL_ACT_PAIRS, x, cols, q, scale);
        break;
    case SL_ACT_ROT4:
        pack_blocks(SL_ACT_ROT4, x, cols, q, scale);
        break;
    case SL_ACT_ROT8:
        pack_blocks(SL_ACT_ROT8, x, cols, q, scale);
        break;
    default:
        pack_blocks(SL_ACT_NATURAL, x, cols, q, scale);
        break;
    }
}

const struct sl_mul_batch NAME = {LABEL, pack, mul};
