/* Constants of exp and tanh, one text for the reference and every ISA.
 *
 * exp: x = k ln2 + r, |r| <= 0.347, and e^r = 1 + (r + r^2 P(r)), P of degree 4: relative error of
 * the polynomial 3.1e-9. ln2 is split so that k * HI is exact (9 + 8 bits). k comes from adding and
 * subtracting 1.5 * 2^23, which rounds to nearest even without an instruction for it.
 *
 * tanh: below SPLIT, x + x z Q(z) with z = x^2, Q of degree 4: relative error 4.4e-9, and right in
 * the last place near 0; above it 1 - 2 / (exp(2x) + 1). Both polynomials are minimax (Remez). */
#ifndef SL_KERNELS_MATH_CONST_H
#define SL_KERNELS_MATH_CONST_H

#define SL_EXP_MAX    89.0f     /* above 88.7229 the result is infinity anyway */
#define SL_EXP_MIN    (-105.0f) /* below -103.9721 it is zero anyway */
#define SL_EXP_LOG2E  0x1.715476p+0f
#define SL_EXP_MAGIC  0x1.8p+23f
#define SL_EXP_LN2_HI 0x1.63p-1f
#define SL_EXP_LN2_LO (-0x1.bd0106p-13f)
#define SL_EXP_P0     0x1.fffffcp-2f
#define SL_EXP_P1     0x1.555490p-3f
#define SL_EXP_P2     0x1.5558f8p-5f
#define SL_EXP_P3     0x1.123b02p-7f
#define SL_EXP_P4     0x1.6a2256p-10f

#define SL_TANH_SPLIT 0.625f
#define SL_TANH_Q0    (-0x1.555532p-2f)
#define SL_TANH_Q1    0x1.110726p-3f
#define SL_TANH_Q2    (-0x1.b83c5ap-5f)
#define SL_TANH_Q3    0x1.52269cp-6f
#define SL_TANH_Q4    (-0x1.75e1ccp-8f)

/* silu(-inf) would be -inf * 0; the limit is -0, so its factor is held at the largest finite number. */
#define SL_SILU_MIN (-0x1.fffffep+127f)

#endif
