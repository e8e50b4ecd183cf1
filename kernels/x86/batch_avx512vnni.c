/* Batch products on AVX-512 with VNNI: sixteen rows a vector, thirty-two products in one operation; see
 * batch_x86.h. A tile of 2 x 8 vectors hides the latency of the sums. */
#include <immintrin.h>

#define NAME  sl_mul_batch_avx512vnni
#define LABEL "avx512+vnni"
#define VR    16
#define TILE  8

typedef __m512i vi;
typedef __m512 vf;

static inline vi b_load(const void *p)
{
    return _mm512_load_si512(p);
}
static inline vi b_pair(const void *p)
{
    int v;
    __builtin_memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}
static inline vi b_mul(vi w, vi x)
{
    return _mm512_dpwssd_epi32(_mm512_setzero_si512(), w, x);
}
static inline vi b_dot(vi s, vi w, vi x)
{
    return _mm512_dpwssd_epi32(s, w, x);
}
static inline vf b_loadf(const float *p)
{
    return _mm512_load_ps(p);
}
static inline vf b_set(const float *p)
{
    return _mm512_set1_ps(*p);
}
static inline vf b_times(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf b_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf b_float(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
static inline void b_store(float *p, vf a)
{
    _mm512_store_ps(p, a);
}

#include "kernels/x86/batch_x86.h"
