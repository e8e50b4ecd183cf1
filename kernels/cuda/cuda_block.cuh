/* Blocks of packed matrices in registers: 32 codes as eight words of four int8, and the block's scale.
 *
 * One specialisation a kind of block. A warp either gives each lane blocks of its own (all eight words)
 * or shares a block between four lanes (two words each, at places place(t) and place(t) + step): what
 * tensor cores want. Words come in the order of sl_cuda_order_of.
 *
 * Tables. e2m1 and t4 have 16 entries: two byte permutes look up four nibbles, a third one picks by
 * bit 3. Trellis tables have 64: one lookup gives two weights (two windows overlap in one byte of the
 * word), in shared memory with a copy for each lane, so that 32 lookups of a warp never meet in a bank.
 * An entry is T[w0], T[w1], T[w0 + 64], T[w1 + 64]: plain bits pick bytes by a permute, too. */
#ifndef SL_KERNELS_CUDA_BLOCK_CUH
#define SL_KERNELS_CUDA_BLOCK_CUH

#include <cuda_fp16.h>
#include "kernels/cuda/cuda_part.cuh"

enum sl_cuda_kind {
    SL_KIND_T8,
    SL_KIND_T6,
    SL_KIND_T4,
    SL_KIND_MXFP4,
    SL_KIND_M4,
    SL_KIND_W2,       /* w26, p36 base: 2 bits a weight */
    SL_KIND_W2_PLAIN, /* w36, p36 */
    SL_KIND_W1        /* w16 */
};

/* Where the rows of a matrix lie. */
struct sl_cuda_rows {
    const uint8_t *codes, *plain, *scales, *row_scales, *table;
    size_t row_bytes; /* of codes; trunk formats: of the whole row */
    int rows, nb, n_words;
};

/* The table of a trellis kind for a block of threads: entries of two weights, [entries][32 lanes]. */
template <int K> struct sl_pairs {
    static constexpr int entries = K == SL_KIND_W1 ? 128 : K >= SL_KIND_W2 ? 256 : 0;
    static constexpr int bytes = entries * 128;
};

/* A thread an entry; its copies go to other banks than those of its neighbours. */
template <int K> static __device__ void sl_fill_pairs(uint32_t *pairs, const uint8_t *table)
{
    constexpr int k = K == SL_KIND_W1 ? 1 : 2;
    for (int e = threadIdx.x; e < sl_pairs<K>::entries; e += blockDim.x) {
        const int w0 = e & 63, w1 = e >> k & 63;
        uint32_t v = table[w0] | (uint32_t)table[w1] << 8;
        if constexpr (K == SL_KIND_W2_PLAIN)
            v |= (uint32_t)table[w0 + 64] << 16 | (uint32_t)table[w1 + 64] << 24;
        for (int i = 0; i < 32; i++) pairs[e * 32 + ((e + i) & 31)] = v;
    }
}

static __device__ inline float sl_d_f16(const uint8_t *p)
{
    return __half2float(__ushort_as_half(*(const unsigned short *)p));
}

/* 0.5 * 2^(s-127), exact, subnormals too. */
static __device__ inline float sl_d_e8m0_half(unsigned s)
{
    return 0.5f * __uint_as_float(s ? s << 23 : 0x00400000u);
}

/* Loads of n bytes; A: what the address is a multiple of. */
template <int N, int A> static __device__ inline void sl_load(uint32_t *to, const uint8_t *p)
{
    if constexpr (A >= 16 && N % 16 == 0) {
#pragma unroll
        for (int i = 0; i < N / 16; i++) {
            const uint4 v = __ldg((const uint4 *)p + i);
            to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
        }
    } else if constexpr (A >= 8 && N % 8 == 0) {
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            const uint2 v = __ldg((const uint2 *)p + i);
            to[2 * i] = v.x, to[2 * i + 1] = v.y;
        }
    } else if constexpr (A >= 4) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) to[i] = __ldg((const uint32_t *)p + i);
    } else {
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            to[i] = __ldg((const uint16_t *)p + 2 * i) |
                    (uint32_t)__ldg((const uint16_t *)p + 2 * i + 1) << 16;
    }
}

/* Eight nibbles of w through a table of 16 int8 in four words: words of nibbles 0-3 and 4-7. */
static __device__ inline void sl_nibbles(uint32_t w, uint32_t t0, uint32_t t1, uint32_t t2,
                                         uint32_t t3, uint32_t *out)
{
    const uint32_t low = w & 0x77777777u, pick = (w >> 1 & 0x44444444u) | 0x32103210u;
    out[0] = __byte_perm(__byte_perm(t0, t1, low), __byte_perm(t2, t3, low), pick);
    out[1] =
        __byte_perm(__byte_perm(t0, t1, low >> 16), __byte_perm(t2, t3, low >> 16), pick >> 16);
}

static __device__ inline void sl_t4_words(uint32_t w, uint32_t *out)
{ /* -127 -96 -74 -57  -43 -31 -20 -9  2 12 23 34  47 62 79 101 */
    sl_nibbles(w, 0xc7b6a081u, 0xf7ece1d5u, 0x22170c02u, 0x654f3e2fu, out);
}

static __device__ inline void sl_e2m1_words(uint32_t w, uint32_t *out)
{ /* 0 1 2 3  4 6 8 12  0 -1 -2 -3  -4 -6 -8 -12 */
    sl_nibbles(w, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu, out);
}

/* Four codes 0 .. 63 minus 32. */
static __device__ inline uint32_t sl_minus_32(uint32_t c)
{
    return ((c | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
}

/* Pair p of a block whose 2-bit word is hi:lo, cyclic. */
template <int P> static __device__ inline uint32_t sl_pair2(uint32_t lo, uint32_t hi)
{
    constexpr int s = 4 * P; /* window byte to bits 7 .. 14: an offset of 128 bytes an entry */
    if constexpr (s < 7)
        return lo << (7 - s);
    else if constexpr (s < 32)
        return __funnelshift_r(lo, hi, s - 7);
    else if constexpr (s - 32 < 7)
        return __funnelshift_l(lo, hi, 7 - (s - 32));
    else
        return __funnelshift_r(hi, lo, s - 32 - 7);
}

static __device__ inline uint32_t sl_lookup(const uint32_t *pairs, uint32_t at, uint32_t mask)
{
    return *(const uint32_t *)((const char *)pairs + ((at & mask) | (threadIdx.x & 31) * 4));
}

/* Selectors of two words from eight plain bits: bytes 0 1 of each entry, or 2 3 where the bit is set. */
static __device__ inline uint32_t sl_plain_pick(uint32_t bits8)
{
    uint32_t x = bits8 & 0xff;
    x = (x | x << 12) & 0x000f000fu;
    x = (x | x << 6) & 0x03030303u;
    x = (x | x << 3) & 0x11111111u;
    return 0x54105410u + 2 * x;
}

/* Two words (eight weights 8T .. 8T+7) of a trellis block. */
template <int K, int T>
static __device__ inline void sl_w_words(const uint32_t *pairs, uint32_t lo, uint32_t hi,
                                         uint32_t plain, uint32_t *out)
{
    if constexpr (K == SL_KIND_W1) { /* lo: the block's 32 bits, hi: the other half of the word */
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int s = 8 * T + 2 * i;
            const uint32_t at = s < 7 ? lo << (7 - s) : __funnelshift_r(lo, hi, s - 7);
            v[i] = sl_lookup(pairs, at, 127u << 7);
        }
        out[0] = __byte_perm(v[0], v[1], 0x5410);
        out[1] = __byte_perm(v[2], v[3], 0x5410);
        return;
    }
    const uint32_t v0 = sl_lookup(pairs, sl_pair2<4 * T>(lo, hi), 255u << 7);
    const uint32_t v1 = sl_lookup(pairs, sl_pair2<4 * T + 1>(lo, hi), 255u << 7);
    const uint32_t v2 = sl_lookup(pairs, sl_pair2<4 * T + 2>(lo, hi), 255u << 7);
    const uint32_t v3 = sl_lookup(pairs, sl_pair2<4 * T + 3>(lo, hi), 255u << 7);
    const uint32_t pick = K == SL_KIND_W2_PLAIN ? sl_plain_pick(plain >> 8 * T) : 0x54105410u;
    out[0] = __byte_perm(v0, v1, pick);
    out[1] = __byte_perm(v2, v3, pick >> 16);
}

/* ---- what a lane takes at a time, as loaded: a block, or half a block of t8 (16 bytes, too) */

template <int K> struct sl_raw {
    static constexpr int parts = K == SL_KIND_T8 ? 2 : 1; /* of a block */
    static constexpr int words = 8 / parts;
    uint32_t a[K >= SL_KIND_W2 ? 2 : 4];
    uint32_t b[K == SL_KIND_T6 ? 2 : 1]; /* t6: high bits; w: plain bits */
    float ws;
};

/* Where a row's parts begin: addresses made once a row, so that a load costs one multiply-add. */
struct sl_row_at {
    const uint8_t *codes, *more, *scales; /* more: high bits of t6, plain bits */
    unsigned e;                           /* m4 */
};

template <int K> static __device__ inline sl_row_at sl_row_start(const sl_cuda_rows &m, int row)
{
    const size_t nb = (size_t)m.nb;
    sl_row_at x = {m.codes + (size_t)row * m.row_bytes, NULL, NULL, 0};
    if constexpr (K == SL_KIND_T8) x.scales = x.codes + nb * 32;
    if constexpr (K == SL_KIND_T6) x.more = x.codes + nb * 16, x.scales = x.codes + nb * 24;
    if constexpr (K == SL_KIND_T4) x.scales = x.codes + nb * 16;
    if constexpr (K == SL_KIND_MXFP4) x.scales = m.scales + (size_t)row * nb;
    if constexpr (K >= SL_KIND_M4) x.scales = m.scales + (size_t)row * ((nb + 1) / 2);
    if constexpr (K == SL_KIND_M4) x.e = __ldg(m.row_scales + row);
    if constexpr (K == SL_KIND_W2_PLAIN) x.more = m.plain + (size_t)row * nb * 4;
    return x;
}

/* b counts parts of blocks. */
template <int K, int A>
static __device__ inline void sl_raw_load(sl_raw<K> &x, const sl_row_at &r, int b)
{
    if constexpr (K == SL_KIND_T8) {
        sl_load<16, A>(x.a, r.codes + (size_t)b * 16);
        x.ws = sl_d_f16(r.scales + (size_t)(b >> 1) * 2);
    } else if constexpr (K == SL_KIND_T6) {
        sl_load<16, A>(x.a, r.codes + (size_t)b * 16);
        sl_load<8, (A > 8 ? 8 : A)>(x.b, r.more + (size_t)b * 8);
        x.ws = sl_d_f16(r.scales + (size_t)b * 2);
    } else if constexpr (K == SL_KIND_T4) {
        sl_load<16, A>(x.a, r.codes + (size_t)b * 16);
        x.ws = sl_d_f16(r.scales + (size_t)b * 2);
    } else if constexpr (K == SL_KIND_MXFP4) {
        sl_load<16, A>(x.a, r.codes + (size_t)b * 16);
        x.ws = sl_d_e8m0_half(__ldg(r.scales + b));
    } else if constexpr (K == SL_KIND_M4) {
        sl_load<16, A>(x.a, r.codes + (size_t)b * 16);
        const unsigned n = __ldg(r.scales + (b >> 1));
        x.ws = sl_d_e8m0_half((uint8_t)(r.e - (n >> (b & 1) * 4 & 15)));
    } else {
        const uint2 v = __ldg((const uint2 *)r.codes + (K == SL_KIND_W1 ? b >> 1 : b));
        const bool turned = K == SL_KIND_W1 && (b & 1);
        x.a[0] = turned ? v.y : v.x;
        x.a[1] = turned ? v.x : v.y;
        if constexpr (K == SL_KIND_W2_PLAIN) x.b[0] = __ldg((const uint32_t *)r.more + b);
        const unsigned n = __ldg(r.scales + (b >> 1)) >> (b & 1) * 4 & 15;
        x.ws = (float)((4 + (n & 3)) << (n >> 2));
    }
}

template <int K>
static __device__ inline void sl_raw_words(const sl_raw<K> &x, const uint32_t *pairs, uint32_t *w)
{
    if constexpr (K == SL_KIND_T8) {
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = x.a[i];
    } else if constexpr (K == SL_KIND_T6) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t low = x.a[k & 3] >> (k >> 2) * 4 & 0x0f0f0f0fu;
            const uint32_t high = x.b[sizeof x.b / 4 > 1 ? k & 1 : 0] >> 2 * (k >> 1) & 0x03030303u;
            w[k] = sl_minus_32(low | high << 4);
        }
    } else if constexpr (K == SL_KIND_T4) {
#pragma unroll
        for (int k = 0; k < 4; k++) sl_t4_words(x.a[k & 3], w + 2 * k);
    } else if constexpr (K == SL_KIND_MXFP4 || K == SL_KIND_M4) {
#pragma unroll
        for (int k = 0; k < 4; k++) sl_e2m1_words(x.a[k & 3], w + 2 * k);
    } else {
        sl_w_words<K, 0>(pairs, x.a[0], x.a[1], x.b[0], w);
        sl_w_words<K, 1>(pairs, x.a[0], x.a[1], x.b[0], w + 2);
        sl_w_words<K, 2>(pairs, x.a[0], x.a[1], x.b[0], w + 4);
        sl_w_words<K, 3>(pairs, x.a[0], x.a[1], x.b[0], w + 6);
    }
}

/* ---- a quarter of a block: two words of lane t = lane & 3 */

template <int K> struct sl_quarter {
    uint32_t a[K == SL_KIND_T8 || K >= SL_KIND_W2 ? 2 : 1];
    uint32_t b[1];
    float ws;
    /* places of the two words among the eight */
    static __device__ inline int first(int t) { return K == SL_KIND_T6 ? t : 2 * t; }
    static __device__ inline int second(int t) { return K == SL_KIND_T6 ? t + 4 : 2 * t + 1; }
};

template <int K, int A>
static __device__ inline void sl_quarter_load(sl_quarter<K> &x, const sl_cuda_rows &m, int row,
                                              int b, int t)
{
    const uint8_t *r = m.codes + (size_t)row * m.row_bytes;
    if constexpr (K == SL_KIND_T8) {
        sl_load<8, (A > 8 ? 8 : A)>(x.a, r + (size_t)b * 32 + t * 8);
        x.ws = sl_d_f16(r + (size_t)m.nb * 32 + (size_t)b * 2);
    } else if constexpr (K == SL_KIND_T6) {
        sl_load<4, (A > 4 ? 4 : A)>(x.a, r + (size_t)b * 16 + t * 4);
        sl_load<4, (A > 4 ? 4 : A)>(x.b, r + (size_t)m.nb * 16 + (size_t)b * 8 + (t & 1) * 4);
        x.ws = sl_d_f16(r + (size_t)m.nb * 24 + (size_t)b * 2);
    } else if constexpr (K == SL_KIND_T4) {
        sl_load<4, (A > 4 ? 4 : A)>(x.a, r + (size_t)b * 16 + t * 4);
        x.ws = sl_d_f16(r + (size_t)m.nb * 16 + (size_t)b * 2);
    } else if constexpr (K == SL_KIND_MXFP4) {
        sl_load<4, 4>(x.a, r + (size_t)b * 16 + t * 4);
        x.ws = sl_d_e8m0_half(__ldg(m.scales + (size_t)row * m.nb + b));
    } else if constexpr (K == SL_KIND_M4) {
        sl_load<4, 4>(x.a, r + (size_t)b * 16 + t * 4);
        const unsigned n = __ldg(m.scales + (size_t)row * ((m.nb + 1) / 2) + (b >> 1));
        x.ws = sl_d_e8m0_half((uint8_t)(__ldg(m.row_scales + row) - (n >> (b & 1) * 4 & 15)));
    } else {
        sl_raw<K> whole;
        sl_raw_load<K, A>(whole, sl_row_start<K>(m, row), b);
        /* The lane's weights 8t .. 8t+7 to the bottom: a cyclic turn of the word. */
        const uint32_t lo = whole.a[0], hi = whole.a[1];
        if constexpr (K == SL_KIND_W1) {
            x.a[0] = __funnelshift_r(lo, hi, 8 * t);
        } else {
            const uint32_t l = t & 2 ? hi : lo, h = t & 2 ? lo : hi;
            x.a[0] = __funnelshift_r(l, h, 16 * (t & 1));
        }
        if constexpr (K == SL_KIND_W2_PLAIN) x.b[0] = whole.b[0] >> 8 * t;
        x.ws = whole.ws;
    }
}

template <int K>
static __device__ inline void sl_quarter_words(const sl_quarter<K> &x, const uint32_t *pairs, int t,
                                               uint32_t *w)
{
    if constexpr (K == SL_KIND_T8) {
        w[0] = x.a[0], w[1] = x.a[sizeof x.a / 4 - 1];
    } else if constexpr (K == SL_KIND_T6) {
        const uint32_t high = x.b[0] >> 2 * (t >> 1);
        w[0] = sl_minus_32((x.a[0] & 0x0f0f0f0fu) | (high & 0x03030303u) << 4);
        w[1] = sl_minus_32((x.a[0] >> 4 & 0x0f0f0f0fu) | (high >> 4 & 0x03030303u) << 4);
    } else if constexpr (K == SL_KIND_T4) {
        sl_t4_words(x.a[0], w);
    } else if constexpr (K == SL_KIND_MXFP4 || K == SL_KIND_M4) {
        sl_e2m1_words(x.a[0], w);
    } else {
        sl_w_words<K, 0>(pairs, x.a[0], 0u, x.b[0], w);
    }
}

#endif
