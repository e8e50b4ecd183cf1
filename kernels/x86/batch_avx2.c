/* Batch products on AVX2: eight rows a vector; see batch_x86.h. A tile is 2 x 4 vectors: eight sums, and
 * what they need, fit sixteen registers. Multiplying and adding int16 pairs takes two operations for
 * sixteen products, on more ports than two fused float operations have. */
#include <immintrin.h>

#define NAME  sl_mul_batch_avx2
#define LABEL "avx2"
#define VR    8
#define TILE  4

typedef __m256i vi;
typedef __m256 vf;

static inline vi b_load(const void *p)
{
    return _mm256_load_si256((const __m256i *)p);
}
static inline vi b_pair(const void *p)
{
    int v;
    __builtin_memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}
static inline vi b_mul(vi w, vi x)
{
    return _mm256_madd_epi16(w, x);
}
static inline vi b_dot(vi s, vi w, vi x)
{
    return _mm256_add_epi32(s, _mm256_madd_epi16(w, x));
}
static inline vf b_loadf(const float *p)
{
    return _mm256_load_ps(p);
}
static inline vf b_set(const float *p)
{
    return _mm256_broadcast_ss(p);
}
static inline vf b_times(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf b_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf b_float(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
static inline void b_store(float *p, vf a)
{
    _mm256_store_ps(p, a);
}

#include "kernels/x86/batch_x86.h"
