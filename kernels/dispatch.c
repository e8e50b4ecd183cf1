/* Which path runs where: the reference first, better paths overwrite slots. */
#include "kernels/kernels.h"
#include "kernels/reference.h"

void sl_kernels_init(struct sl_kernels *k, unsigned cpu)
{
    *k = (struct sl_kernels){
        .cpu = cpu,
        .mul = sl_mul_c,
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
    };
}
