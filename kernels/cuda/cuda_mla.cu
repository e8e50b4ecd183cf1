/* Absorbed attention: stretches of positions with a running softmax, then their sum (cuda_mla.h).
 *
 * A warp has two heads: their queries and sums stay in registers, and a row of the cache, spread over the
 * lanes, is read once for both. Two positions go together, so that their reductions overlap. */
#include "kernels/cuda/cuda_math.cuh"
#include "kernels/cuda/cuda_part.cuh"

extern "C" {
#include "kernels/cuda/cuda_mla.h"
}

namespace
{

constexpr int WARPS = 8, HEADS = 2, STEP = 2;
constexpr int MAX_STRETCHES = 128, MIN_STRETCH = 16;

size_t stretch_of(size_t n_pos)
{
    size_t s = (n_pos + MAX_STRETCHES - 1) / MAX_STRETCHES;
    s = (s + MIN_STRETCH - 1) / MIN_STRETCH * MIN_STRETCH;
    return s;
}

/* part [n_q][heads][stretches][lora + 2]: sum, then maximum and weight. */
template <int NL, int NR>
__global__ void __launch_bounds__(WARPS * 32, 2)
    stretch_kernel(sl_cuda_mla a, float *part, size_t stretch, int n_stretches)
{
    constexpr int N = NL + NR;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, query = blockIdx.z;
    const int h0 = (blockIdx.y * WARPS + warp) * HEADS;
    const size_t width = (size_t)a.lora + (size_t)a.rope, seen = a.first + (size_t)query + 1;
    const size_t from = blockIdx.x * stretch;
    const size_t to = from + stretch < seen ? from + stretch : seen;
    if (h0 >= a.heads) return;
    float q[HEADS][N], acc[HEADS][NL], top[HEADS], sum[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const int head = h0 + h < a.heads ? h0 + h : a.heads - 1;
        const float *x = a.q + ((size_t)query * a.heads + head) * width;
#pragma unroll
        for (int i = 0; i < N; i++) q[h][i] = x[lane + 32 * i];
#pragma unroll
        for (int i = 0; i < NL; i++) acc[h][i] = 0.0f;
        top[h] = -INFINITY;
        sum[h] = 0.0f;
    }
    for (size_t s = from; s < to; s += STEP) {
        float c[STEP][N], w[HEADS][STEP];
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            const size_t at = s + k < to ? s + k : to - 1;
#pragma unroll
            for (int i = 0; i < N; i++) c[k][i] = __ldg(a.rows + at * width + lane + 32 * i);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++)
#pragma unroll
            for (int k = 0; k < STEP; k++) {
                float d = 0.0f;
#pragma unroll
                for (int i = 0; i < N; i++) d = fmaf(q[h][i], c[k][i], d);
                w[h][k] = d;
            }
#pragma unroll
        for (int h = 0; h < HEADS; h++)
#pragma unroll
            for (int k = 0; k < STEP; k++)
                w[h][k] = s + k < to ? sl_warp_sum(w[h][k]) * a.scale : -INFINITY;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float m = top[h];
#pragma unroll
            for (int k = 0; k < STEP; k++) m = fmaxf(m, w[h][k]);
            if (m > top[h]) { /* the same for the whole warp; else the factor is 1 */
                const float keep = sl_d_exp(top[h] - m);
                top[h] = m;
                sum[h] *= keep;
#pragma unroll
                for (int i = 0; i < NL; i++) acc[h][i] *= keep;
            }
#pragma unroll
            for (int k = 0; k < STEP; k++) {
                const float p = sl_d_exp(w[h][k] - m);
                sum[h] += p;
#pragma unroll
                for (int i = 0; i < NL; i++) acc[h][i] = fmaf(p, c[k][i], acc[h][i]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h0 + h >= a.heads) continue;
        float *out = part + (((size_t)query * a.heads + h0 + h) * n_stretches + blockIdx.x) *
                                ((size_t)a.lora + 2);
#pragma unroll
        for (int i = 0; i < NL; i++) out[lane + 32 * i] = acc[h][i];
        if (lane == 0) out[a.lora] = top[h], out[a.lora + 1] = sum[h];
    }
}

__global__ void join_kernel(sl_cuda_mla a, const float *part, int n_stretches)
{
    const size_t head = (size_t)blockIdx.y * a.heads + blockIdx.x, width = (size_t)a.lora + 2;
    const float *p = part + head * n_stretches * width;
    float top = -INFINITY, total = 0.0f;
    for (int s = 0; s < n_stretches; s++) top = fmaxf(top, p[s * width + a.lora]);
    for (int s = 0; s < n_stretches; s++)
        total = fmaf(sl_d_exp(p[s * width + a.lora] - top), p[s * width + a.lora + 1], total);
    for (int c = threadIdx.x; c < a.lora; c += blockDim.x) {
        float sum = 0.0f;
        for (int s = 0; s < n_stretches; s++)
            sum = fmaf(sl_d_exp(p[s * width + a.lora] - top), p[s * width + c], sum);
        a.out[head * a.lora + c] = sum / total;
    }
}

__global__ void gate_kernel(float *gate, const float *o, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) gate[i] = o[i] * sl_d_sigmoid(gate[i]);
}

template <int NL, int NR> void launch(struct sl_cuda *d, const struct sl_cuda_mla *a)
{
    const size_t n_pos = a->first + (size_t)a->n_q, stretch = stretch_of(n_pos);
    const int n = (int)((n_pos + stretch - 1) / stretch);
    const int groups = (a->heads + WARPS * HEADS - 1) / (WARPS * HEADS);
    stretch_kernel<NL, NR>
        <<<dim3((unsigned)n, (unsigned)groups, (unsigned)a->n_q), WARPS * 32, 0, d->stream>>>(
            *a, (float *)a->work, stretch, n);
    SL_CUDA_LAUNCHED(d, "attention");
    join_kernel<<<dim3((unsigned)a->heads, (unsigned)a->n_q), 128, 0, d->stream>>>(
        *a, (const float *)a->work, n);
    SL_CUDA_LAUNCHED(d, "attention sum");
}

} // namespace

extern "C" {

size_t sl_cuda_mla_work(int n_q, int heads, int lora, size_t last_position)
{
    const size_t n_pos = last_position + 1, stretch = stretch_of(n_pos);
    return (size_t)n_q * (size_t)heads * ((n_pos + stretch - 1) / stretch) * ((size_t)lora + 2) *
           sizeof(float);
}

void sl_cuda_mla_attend(struct sl_cuda *d, const struct sl_cuda_mla *a)
{
    if (d->failed != cudaSuccess || a->n_q < 1) return;
    if (a->lora == 512 && a->rope == 64)
        launch<16, 2>(d, a);
    else if (a->lora == 96 && a->rope == 32)
        launch<3, 1>(d, a);
    else if (a->lora == 64 && a->rope == 32)
        launch<2, 1>(d, a);
    else if (a->lora == 128 && a->rope == 32)
        launch<4, 1>(d, a);
    else if (a->lora == 256 && a->rope == 64)
        launch<8, 2>(d, a);
    else
        sl_cuda_note(d, cudaErrorInvalidValue, "attention: widths of the latent");
}

void sl_cuda_gate(struct sl_cuda *d, float *gate, const float *o, size_t n)
{
    if (d->failed != cudaSuccess || !n) return;
    gate_kernel<<<(unsigned)((n + 255) / 256), 256, 0, d->stream>>>(gate, o, n);
    SL_CUDA_LAUNCHED(d, "gate");
}

} // extern "C"
