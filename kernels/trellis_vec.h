/* Vectors of the trellis search: VW blocks side by side, for the ISA that the file is compiled for.
 *
 * Only operations that round once, so that every width gives the same bits. */
#ifndef SL_KERNELS_TRELLIS_VEC_H
#define SL_KERNELS_TRELLIS_VEC_H

#include <stdint.h>
#include "kernels/trellis.h"

#define LANES SL_TRELLIS_LANES

#if defined(__AVX512F__)
#include <immintrin.h>
#define VW 16
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
#define V_LOAD(p)        _mm512_loadu_ps(p)
#define V_STORE(p, v)    _mm512_storeu_ps(p, v)
#define V_STOREI(p, v)   _mm512_storeu_si512(p, v)
#define V_SET(f)         _mm512_set1_ps(f)
#define V_SETI(i)        _mm512_set1_epi32(i)
#define V_ADD(a, b)      _mm512_add_ps(a, b)
#define V_SUB(a, b)      _mm512_sub_ps(a, b)
#define V_MUL(a, b)      _mm512_mul_ps(a, b)
#define V_MIN(a, b)      _mm512_min_ps(a, b)
#define V_LT(a, b)       _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define V_PICK(m, a, b)  _mm512_mask_blend_epi32(m, b, a)
#define V_PICKF(m, a, b) _mm512_mask_blend_ps(m, b, a)
#elif defined(__AVX2__)
#include <immintrin.h>
#define VW             8
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;
#define V_LOAD(p)      _mm256_loadu_ps(p)
#define V_STORE(p, v)  _mm256_storeu_ps(p, v)
#define V_STOREI(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define V_SET(f)       _mm256_set1_ps(f)
#define V_SETI(i)      _mm256_set1_epi32(i)
#define V_ADD(a, b)    _mm256_add_ps(a, b)
#define V_SUB(a, b)    _mm256_sub_ps(a, b)
#define V_MUL(a, b)    _mm256_mul_ps(a, b)
#define V_MIN(a, b)    _mm256_min_ps(a, b)
#define V_LT(a, b)     _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define V_PICK(m, a, b)                                                                            \
    _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(b), _mm256_castsi256_ps(a), m))
#define V_PICKF(m, a, b) _mm256_blendv_ps(b, a, m)
#else
/* Four lanes in vector types that both compilers lower to SSE2, NEON or scalar code. */
#define VW               4
typedef float vf __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(16), aligned(4), may_alias));
typedef vi vm;
#define V_LOAD(p)        (*(const vf *)(p))
#define V_STORE(p, v)    (*(vf *)(p) = (v))
#define V_STOREI(p, v)   (*(vi *)(p) = (v))
#define V_SET(f)         ((vf){f, f, f, f})
#define V_SETI(i)        ((vi){i, i, i, i})
#define V_ADD(a, b)      ((a) + (b))
#define V_SUB(a, b)      ((a) - (b))
#define V_MUL(a, b)      ((a) * (b))
#define V_MIN(a, b)      v_min(a, b)
#define V_LT(a, b)       ((a) < (b))
#define V_PICK(m, a, b)  (((m) & (a)) | (~(m) & (b)))
#define V_PICKF(m, a, b) ((vf)V_PICK(m, (vi)(a), (vi)(b)))
static inline vf v_min(vf a, vf b)
{
    vi m = a < b;
    return (vf)((m & (vi)a) | (~m & (vi)b));
}
#endif

#endif
