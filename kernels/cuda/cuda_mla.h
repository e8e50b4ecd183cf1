/* Absorbed MLA over the latent cache on the GPU (spec 3.4, "absorbed form").
 *
 *   q      [n_q][heads][lora + rope] f32: W_UK' q_nope, then the rope part (sl_cuda_head_mul_t)
 *   rows   [ctx][lora + rope] f32: latent after its norm, then the shared key part
 *   out    [n_q][heads][lora] f32: sum of softmax weights times latents (then W_UV: sl_cuda_head_mul)
 *
 * Query i sees positions [0, first + i]. A block of threads takes 16 heads and a stretch of positions,
 * with a running maximum; stretches are joined in order. Their length depends on the last position
 * alone, so the bytes are the same each run. f32 throughout; NEAR (cuda_vec.h).
 *
 * lora + rope: 512 + 64 (the release), 256 + 64, 128 + 32, 96 + 32 or 64 + 32; other widths fail at
 * sl_cuda_sync. All pointers are device memory. */
#ifndef SL_KERNELS_CUDA_MLA_H
#define SL_KERNELS_CUDA_MLA_H

#include "kernels/cuda/cuda_dev.h"

struct sl_cuda_mla {
    const float *q, *rows;
    float *out;
    void *work; /* sl_cuda_mla_work bytes */
    int n_q, heads, lora, rope;
    size_t first;
    float scale; /* (nope + rope)^-0.5 */
};
size_t sl_cuda_mla_work(int n_q, int heads, int lora, size_t last_position);
void sl_cuda_mla_attend(struct sl_cuda *d, const struct sl_cuda_mla *a);

/* o [n][width] *= sigmoid(gate) into gate; BITS (the reference's sigmoid, then the product). */
void sl_cuda_gate(struct sl_cuda *d, float *gate, const float *o, size_t n);

#endif
