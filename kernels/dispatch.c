/* Which path runs where: the reference first, better paths overwrite slots. */
#include "kernels/kernels.h"
#include "kernels/mx_table.h"
#include "kernels/reference.h"
#include "kernels/variants.h"

#define TAKE(isa)                                                                                  \
    do {                                                                                           \
        k->mul = sl_mul_##isa;                                                                     \
        k->mul_fused = sl_mul_fused_##isa;                                                         \
        k->dot = sl_dot_##isa;                                                                     \
        k->exp = sl_exp_##isa;                                                                     \
        k->sigmoid = sl_sigmoid_##isa;                                                             \
        k->tanh = sl_tanh_##isa;                                                                   \
        k->silu = sl_silu_##isa;                                                                   \
        k->situ = sl_situ_##isa;                                                                   \
        k->rmsnorm = sl_rmsnorm_##isa;                                                             \
        k->axpy = sl_axpy_##isa;                                                                   \
        k->add = sl_add_##isa;                                                                     \
        k->mulv = sl_mulv_##isa;                                                                   \
        k->conv = sl_conv_##isa;                                                                   \
        k->kda_step = sl_kda_step_##isa;                                                           \
        k->weighted_rows = sl_weighted_rows_##isa;                                                 \
        k->softmax = sl_softmax_##isa;                                                             \
        k->decode = sl_decode_##isa;                                                               \
        k->mm = sl_mm_##isa;                                                                       \
        k->kda_rows = sl_kda_rows_##isa;                                                           \
        k->kda_commit = sl_kda_commit_##isa;                                                       \
        k->attend = sl_attend_##isa;                                                               \
    } while (0)

void sl_kernels_init(struct sl_kernels *k, unsigned cpu)
{
    sl_mx_table_init();
    *k = (struct sl_kernels){
        .cpu = cpu,
        .mul = sl_mul_c,
        .mul_fused = sl_mul_fused_c,
        .dot = sl_dot_c,
        .exp = sl_exp_c,
        .sigmoid = sl_sigmoid_c,
        .tanh = sl_tanh_c,
        .silu = sl_silu_c,
        .situ = sl_situ_c,
        .rmsnorm = sl_rmsnorm_c,
        .axpy = sl_axpy_c,
        .add = sl_add_c,
        .mulv = sl_mulv_c,
        .conv = sl_conv_c,
        .kda_step = sl_kda_step_c,
        .weighted_rows = sl_weighted_rows_c,
        .softmax = sl_softmax_c,
        .decode = sl_decode_c,
        .mm = sl_mm_c,
        .kda_rows = sl_kda_rows_c,
        .kda_commit = sl_kda_commit_c,
        .attend = sl_attend_c,
    };
#if defined(__x86_64__)
    if (cpu & SL_CPU_AVX2) TAKE(avx2);
    if (cpu & SL_CPU_AVX512) TAKE(avx512);
#elif defined(__aarch64__)
    if (cpu & SL_CPU_NEON) TAKE(neon);
#endif
}
