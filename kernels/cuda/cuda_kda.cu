/* KDA around the state: inputs, one step in the open tile, output gate (cuda_kda.h). */
#include "kernels/cuda/cuda_kda.cuh"
#include "kernels/cuda/cuda_math.cuh"

namespace
{

constexpr int MAX_TAPS = 8;

/* A thread a channel, a block a head and token: what lies before the chunk comes from hist. */
__global__ void inputs_kernel(sl_cuda_kda_inputs in)
{
    __shared__ float part[32];
    const int head = blockIdx.x, t = blockIdx.y, j = threadIdx.x, taps = in.taps;
    const size_t width = (size_t)in.heads * in.d, c = (size_t)head * in.d + j;
    float out[3];
    for (int i = 0; i < 3; i++) {
        float sum = 0.0f;
        for (int a = 0; a < taps; a++) {
            const int at = t - (taps - 1) + a;
            const float z = at < 0 ? in.hist[((size_t)i * (taps - 1) + (at + taps - 1)) * width + c]
                                   : in.z[i][(size_t)at * width + c];
            sum = sum + in.conv[i][c * taps + a] * z;
        }
        out[i] = sl_d_silu(sum);
    }
    const float scale = (float)(1.0 / sqrt((double)in.d));
    const float qq = sqrtf(sl_block_sum(out[0] * out[0], part) + in.eps);
    const float kk = sqrtf(sl_block_sum(out[1] * out[1], part) + in.eps);
    const size_t at = (size_t)t * width + c;
    in.q[at] = out[0] / qq * scale;
    in.k[at] = out[1] / kk;
    in.v[at] = out[2];
    in.f[at] = in.low * sl_d_sigmoid(in.exp_A[head] * (in.f[at] + in.dt_bias[c]));
    if (j == 0) in.b[(size_t)t * in.heads + head] = sl_d_sigmoid(in.b[(size_t)t * in.heads + head]);
}

/* The last taps - 1 rows of history and chunk; a thread a channel keeps them in registers, so that it may
 * read and write the same place. */
__global__ void history_kernel(sl_cuda_kda_inputs in)
{
    const size_t width = (size_t)in.heads * in.d;
    const size_t c = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int i = blockIdx.y, rows = in.taps - 1;
    if (c >= width) return;
    float *hist = in.hist + (size_t)i * rows * width + c, keep[MAX_TAPS];
    for (int r = 0; r < rows; r++) {
        const int at = in.n_tok - rows + r;
        keep[r] = at < 0 ? hist[(size_t)(at + rows) * width] : in.z[i][(size_t)at * width + c];
    }
    for (int r = 0; r < rows; r++) hist[(size_t)r * width] = keep[r];
}

/* A block takes 32 value channels of a head: eight lanes of four channels each, KEYS rows of S a group of
 * lanes, all of them in registers until the tile is committed. */
template <int D>
__global__ void __launch_bounds__(256)
    step_kernel(sl_cuda_kda_state st, const float *q, const float *k, const float *v,
                const float *g, const float *beta, float *o, int row)
{
    constexpr int C = 32, GROUPS = 32, KEYS = D / GROUPS;
    __shared__ float kt[D], qt[D], sum[2][GROUPS][C], a[SL_CUDA_TILE], b[SL_CUDA_TILE];
    __shared__ float u[SL_CUDA_TILE][C], last[D];
    const int head = blockIdx.x, col0 = blockIdx.y * C, lane = threadIdx.x & 31,
              warp = threadIdx.x >> 5, group = threadIdx.x >> 3, col = (threadIdx.x & 7) * 4;
    const size_t at = (size_t)head * D, tile = (size_t)head * SL_CUDA_TILE * D;
    float *S = st.S + (size_t)head * D * D + col0 + col;
    float4 s[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; i++) s[i] = *(const float4 *)(S + (size_t)(group + i * GROUPS) * D);
    if (threadIdx.x < D) {
        const int i = threadIdx.x;
        const float G = g[at + i] + (row ? st.G[tile + (size_t)(row - 1) * D + i] : 0.0f);
        const float e = sl_d_exp(G);
        last[i] = G;
        kt[i] = k[at + i] * e;
        qt[i] = q[at + i] * e;
        if (blockIdx.y == 0) {
            st.G[tile + (size_t)row * D + i] = G;
            st.k[tile + (size_t)row * D + i] = k[at + i];
        }
    }
    for (int i = threadIdx.x; i < row * C; i += 256)
        u[i / C][i % C] = st.u[tile + (size_t)(i / C) * D + col0 + i % C];
    __syncthreads();
    /* What the rows of the tile answer to k and q: weights a and b of their u. */
    for (int m = warp; m <= row; m += 8) {
        float x = 0.0f, y = 0.0f;
        for (int i = lane; i < D; i += 32) {
            const float km = m == row ? k[at + i]
                                      : st.k[tile + (size_t)m * D + i] *
                                            sl_d_exp(last[i] - st.G[tile + (size_t)m * D + i]);
            x = fmaf(k[at + i], km, x);
            y = fmaf(q[at + i], km, y);
        }
        x = sl_warp_sum(x);
        y = sl_warp_sum(y);
        if (lane == 0) a[m] = x, b[m] = y;
    }
    float4 x = make_float4(0, 0, 0, 0), y = x;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        const float kk = kt[group + i * GROUPS], qq = qt[group + i * GROUPS];
        x.x = fmaf(kk, s[i].x, x.x), x.y = fmaf(kk, s[i].y, x.y);
        x.z = fmaf(kk, s[i].z, x.z), x.w = fmaf(kk, s[i].w, x.w);
        y.x = fmaf(qq, s[i].x, y.x), y.y = fmaf(qq, s[i].y, y.y);
        y.z = fmaf(qq, s[i].z, y.z), y.w = fmaf(qq, s[i].w, y.w);
    }
    *(float4 *)&sum[0][group][col] = x;
    *(float4 *)&sum[1][group][col] = y;
    __syncthreads();
    if (threadIdx.x < C) {
        const int j = threadIdx.x;
        float r = 0.0f, out = 0.0f;
        for (int i = 0; i < GROUPS; i++) r += sum[0][i][j], out += sum[1][i][j];
        for (int m = 0; m < row; m++) r = fmaf(a[m], u[m][j], r), out = fmaf(b[m], u[m][j], out);
        const float mine = beta[head] * (v[at + col0 + j] - r);
        u[row][j] = mine;
        st.u[tile + (size_t)row * D + col0 + j] = mine;
        o[at + col0 + j] = fmaf(b[row], mine, out);
    }
    if (row != SL_CUDA_TILE - 1) return;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        const int key = group + i * GROUPS;
        const float e = sl_d_exp(last[key]);
        float4 n = make_float4(e * s[i].x, e * s[i].y, e * s[i].z, e * s[i].w);
        for (int m = 0; m < SL_CUDA_TILE; m++) {
            const float km = m == row ? k[at + key]
                                      : st.k[tile + (size_t)m * D + key] *
                                            sl_d_exp(last[key] - st.G[tile + (size_t)m * D + key]);
            n.x = fmaf(km, u[m][col], n.x), n.y = fmaf(km, u[m][col + 1], n.y);
            n.z = fmaf(km, u[m][col + 2], n.z), n.w = fmaf(km, u[m][col + 3], n.w);
        }
        *(float4 *)(S + (size_t)key * D) = n;
    }
}

__global__ void output_kernel(float *gate, const float *o, const float *norm, int width, float eps)
{
    __shared__ float part[32];
    const size_t at = ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * width + threadIdx.x;
    const float x = o[at];
    const float d = sqrtf(sl_block_sum(x * x, part) / (float)width + eps);
    gate[at] = x / d * norm[threadIdx.x] * sl_d_sigmoid(gate[at]);
}

} // namespace

extern "C" {

void sl_cuda_kda_prepare(struct sl_cuda *d, const struct sl_cuda_kda_inputs *in)
{
    if (d->failed != cudaSuccess || in->n_tok < 1) return;
    const int width = in->heads * in->d;
    inputs_kernel<<<dim3((unsigned)in->heads, (unsigned)in->n_tok), (unsigned)in->d, 0,
                    d->stream>>>(*in);
    SL_CUDA_LAUNCHED(d, "kda inputs");
    history_kernel<<<dim3((unsigned)((width + 127) / 128), 3), 128, 0, d->stream>>>(*in);
    SL_CUDA_LAUNCHED(d, "kda history");
}

void sl_cuda_kda_step(struct sl_cuda *d, const struct sl_cuda_kda_state *st, const float *q,
                      const float *k, const float *v, const float *g, const float *beta, float *o,
                      int heads, int width, int row)
{
    if (d->failed != cudaSuccess) return;
    const dim3 grid((unsigned)heads, (unsigned)(width / 32));
    if (width == 128)
        step_kernel<128><<<grid, 256, 0, d->stream>>>(*st, q, k, v, g, beta, o, row);
    else if (width == 64)
        step_kernel<64><<<grid, 256, 0, d->stream>>>(*st, q, k, v, g, beta, o, row);
    else if (width == 32)
        step_kernel<32><<<grid, 256, 0, d->stream>>>(*st, q, k, v, g, beta, o, row);
    else
        sl_cuda_note(d, cudaErrorInvalidValue, "kda step: head width");
    SL_CUDA_LAUNCHED(d, "kda step");
}

void sl_cuda_kda_output(struct sl_cuda *d, float *gate, const float *o, const float *norm,
                        int n_tok, int heads, int width, float eps)
{
    if (d->failed != cudaSuccess || n_tok < 1) return;
    output_kernel<<<dim3((unsigned)heads, (unsigned)n_tok), (unsigned)width, 0, d->stream>>>(
        gate, o, norm, width, eps);
    SL_CUDA_LAUNCHED(d, "kda output");
}

} // extern "C"
