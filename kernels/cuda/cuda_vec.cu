/* Kernels of cuda_vec.h: a thread block a token or row. */
#include <limits.h>
#include "kernels/cuda/cuda_math.cuh"
#include "kernels/cuda/cuda_weight.cuh"

extern "C" {
#include "kernels/cuda/cuda_vec.h"
}

namespace
{

constexpr int MAX_MIX = 32;

__global__ void rmsnorm_kernel(float *y, size_t ldy, const float *x, size_t ldx, const float *w,
                               int n, float eps)
{
    __shared__ float part[32];
    const float *from = x + (size_t)blockIdx.x * ldx;
    float *to = y + (size_t)blockIdx.x * ldy;
    float s = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s = fmaf(from[i], from[i], s);
    const float d = sqrtf(sl_block_sum(s, part) / (float)n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = from[i] / d;
        to[i] = w ? v * w[i] : v;
    }
}

/* One pass over all slots makes every score: a column's values of MIX_AT_ONCE slots are loaded
 * together, and all sums meet in shared memory once. The mix is a second pass (from the cache). */
constexpr int MIX_AT_ONCE = 10;

template <int V> struct some {
    float x[V];
};

template <int V> static __device__ inline some<V> load_some(const float *p)
{
    some<V> s;
    if constexpr (V == 4) {
        const float4 v = *(const float4 *)p;
        s.x[0] = v.x, s.x[1] = v.y, s.x[2] = v.z, s.x[3] = v.w;
    } else {
        s.x[0] = *p;
    }
    return s;
}

/* V columns a thread and step: 4 where rows allow it. */
template <int V>
__global__ void __launch_bounds__(1024)
    mix_kernel(float *x, const float *stream, float *rms, int n_slots, int n_banked, const float *w,
               const float *norm, int hidden, float eps, int *bad)
{
    __shared__ float part[32], sums[32][MIX_AT_ONCE + 1], score[MAX_MIX];
    const int tok = blockIdx.x, n = n_banked + 1, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int warps = blockDim.x >> 5, first = threadIdx.x * V, step = blockDim.x * V;
    const float *v = stream + (size_t)tok * n_slots * hidden;
    float *rm = rms + (size_t)tok * n_slots, *out = x + (size_t)tok * hidden;
    const float *p = v + (size_t)n_banked * hidden;
    for (int k0 = 0; k0 < n; k0 += MIX_AT_ONCE) {
        float dot[MIX_AT_ONCE] = {}, sq = 0.0f;
        for (int i = first; i < hidden; i += step) {
            some<V> wi = {}, vi[MIX_AT_ONCE], pi = load_some<V>(p + i);
            if (w) wi = load_some<V>(w + i);
#pragma unroll
            for (int k = 0; k < MIX_AT_ONCE; k++)
                if (w && k0 + k < n) vi[k] = load_some<V>(v + (size_t)(k0 + k) * hidden + i);
#pragma unroll
            for (int j = 0; j < V; j++) sq = fmaf(pi.x[j], pi.x[j], sq);
#pragma unroll
            for (int k = 0; k < MIX_AT_ONCE; k++)
                if (w && k0 + k < n)
#pragma unroll
                    for (int j = 0; j < V; j++) dot[k] = fmaf(vi[k].x[j], wi.x[j], dot[k]);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < MIX_AT_ONCE; k++) {
            const float s = sl_warp_sum(dot[k]);
            if (lane == 0) sums[warp][k] = s;
        }
        sq = sl_warp_sum(sq);
        if (lane == 0) sums[warp][MIX_AT_ONCE] = sq;
        __syncthreads();
        if (warp <= MIX_AT_ONCE && k0 + (warp < MIX_AT_ONCE ? warp : 0) < n) {
            const float s = sl_warp_sum(lane < warps ? sums[lane][warp] : 0.0f);
            if (lane == 0 && warp < MIX_AT_ONCE) score[k0 + warp] = s;
            if (lane == 0 && warp == MIX_AT_ONCE) {
                part[0] = sqrtf(s / (float)hidden + eps);
                rm[n_banked] = part[0];
                if (bad && !isfinite(s)) *bad = 1;
            }
        }
    }
    __syncthreads();
    if (w && warp == 0) { /* softmax, a lane a slot; n <= 32 */
        const float s =
            lane < n ? score[lane] / (lane == n_banked ? part[0] : rm[lane]) : -INFINITY;
        const float e = sl_d_exp(s - sl_warp_max(s));
        const float total = sl_warp_sum(lane < n ? e : 0.0f);
        if (lane < n) score[lane] = e / total;
    }
    __syncthreads();
    float sq = 0.0f;
    for (int i = first; i < hidden; i += step) {
        some<V> m = {};
        if (!w) m = load_some<V>(p + i);
#pragma unroll 5
        for (int k = 0; w && k < n; k++) {
            const some<V> vk = load_some<V>(v + (size_t)k * hidden + i);
#pragma unroll
            for (int j = 0; j < V; j++) m.x[j] = m.x[j] + score[k] * vk.x[j];
        }
#pragma unroll
        for (int j = 0; j < V; j++) {
            out[i + j] = m.x[j];
            sq = fmaf(m.x[j], m.x[j], sq);
        }
    }
    const float d = sqrtf(sl_block_sum(sq, part) / (float)hidden + eps);
    for (int i = first; i < hidden; i += step)
#pragma unroll
        for (int j = 0; j < V; j++) out[i + j] = out[i + j] / d * norm[i + j];
}

/* A total order of (key, id): larger is a better key, or the same key and a lower id. */
static __device__ inline unsigned long long ranked(float key, int id)
{
    const uint32_t u = __float_as_uint(key + 0.0f); /* -0 is 0 */
    const uint32_t up = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)up << 32 | (uint32_t)(0x7fffffff - id);
}

static __device__ inline unsigned long long warp_best(unsigned long long v)
{
    for (int s = 16; s; s /= 2) {
        const unsigned long long o = __shfl_xor_sync(SL_FULL, v, s);
        v = o > v ? o : v;
    }
    return v;
}

constexpr int ROUTE_THREADS = 256; /* each with EACH experts */

template <int EACH>
__global__ void __launch_bounds__(ROUTE_THREADS)
    route_kernel(float *logits, const float *bias, int n, int k, int renormalize, float scale,
                 int *ids, float *weights, int *bad)
{
    __shared__ unsigned long long best[2][ROUTE_THREADS / 32];
    __shared__ float chosen[1024];
    float *s = logits + (size_t)blockIdx.x * n;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    unsigned long long mine[EACH], top = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int e = threadIdx.x + i * ROUTE_THREADS;
        mine[i] = 0;
        if (e >= n) continue;
        const float x = s[e], y = sl_d_sigmoid(x);
        if (bad && !isfinite(x)) *bad = 1;
        s[e] = y;
        mine[i] = ranked(y + bias[e], e);
        top = mine[i] > top ? mine[i] : top;
    }
    for (int r = 0; r < k; r++) {
        const unsigned long long b = warp_best(top);
        if (lane == 0) best[r & 1][warp] = b;
        __syncthreads();
        const unsigned long long won =
            warp_best(lane < ROUTE_THREADS / 32 ? best[r & 1][lane] : 0ull);
        if (won == top) { /* its owner alone: ids differ */
            const int e = 0x7fffffff - (int)(uint32_t)won;
            ids[(size_t)blockIdx.x * k + r] = e;
            chosen[r] = s[e]; /* written by this thread */
            top = 0;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (mine[i] == won) mine[i] = 0;
                top = mine[i] > top ? mine[i] : top;
            }
        }
    }
    __syncthreads();
    for (int j = threadIdx.x; j < k; j += ROUTE_THREADS) {
        float sum = 0.0f;
        for (int i = 0; i < k; i++) sum += chosen[i];
        float v = chosen[j];
        if (renormalize && k > 1) v = v / (sum + 1e-20f);
        weights[(size_t)blockIdx.x * k + j] = v * scale;
    }
}

__global__ void weighted_kernel(float *y, size_t ldy, const float *p, const float *v, size_t ldv,
                                const int *rows, int k, int n)
{
    const int tok = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= n) return;
    float s = 0.0f;
    for (int r = 0; r < k; r++) {
        const int row = rows ? rows[(size_t)tok * k + r] : tok * k + r;
        s = s + p[(size_t)tok * k + r] * v[(size_t)row * ldv + j];
    }
    y[(size_t)tok * ldy + j] = s;
}

__global__ void add_kernel(float *y, const float *a, const float *b, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a[i] + b[i];
}

__global__ void situ_kernel(float *y, const float *g, const float *u, size_t n, float beta,
                            float linear)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = sl_d_situ(g[i], u[i], beta, linear);
}

__global__ void embed_kernel(float *y, size_t ldy, sl_cuda_weights w, const int32_t *ids)
{
    const int id = ids[blockIdx.y], c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= w.cols) return;
    y[(size_t)blockIdx.y * ldy + c] =
        id >= 0 && id < w.rows ? sl_d_weight(w, id, c) : __int_as_float(0x7fc00000);
}

__global__ void argmax_kernel(int32_t *out, const float *x, size_t ldx, int n)
{
    __shared__ float value[32];
    __shared__ int place[32];
    const float *from = x + (size_t)blockIdx.x * ldx;
    float best = -INFINITY;
    int at = INT_MAX;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (from[i] > best || (from[i] == best && i < at)) best = from[i], at = i;
    for (int round = 0; round < 2; round++) {
        for (int s = 16; s; s /= 2) {
            const float v = __shfl_xor_sync(SL_FULL, best, s);
            const int a = __shfl_xor_sync(SL_FULL, at, s);
            if (v > best || (v == best && a < at)) best = v, at = a;
        }
        if (round) break;
        if ((threadIdx.x & 31) == 0) value[threadIdx.x >> 5] = best, place[threadIdx.x >> 5] = at;
        __syncthreads();
        const int lane = threadIdx.x & 31;
        best = lane < (int)(blockDim.x >> 5) ? value[lane] : -INFINITY;
        at = lane < (int)(blockDim.x >> 5) ? place[lane] : INT_MAX;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = at == INT_MAX ? 0 : at;
}

static __device__ inline int head_row(const sl_cuda_heads &h, int t)
{
    return h.base + t % h.heads * h.step;
}

/* A warp a row. */
__global__ void head_kernel(float *y, size_t ldy, sl_cuda_weights w, sl_cuda_heads h,
                            const float *x, size_t ldx)
{
    const int t = blockIdx.y, lane = threadIdx.x & 31;
    const int r = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (r >= h.rows) return;
    float s = 0.0f;
    for (int c = lane; c < w.cols; c += 32)
        s = fmaf(sl_d_weight(w, head_row(h, t) + r, c), x[(size_t)t * ldx + c], s);
    s = sl_warp_sum(s);
    if (lane == 0) y[(size_t)t * ldy + r] = s;
}

/* A thread a column; eight warps share the rows. */
__global__ void head_t_kernel(float *y, size_t ldy, sl_cuda_weights w, sl_cuda_heads h,
                              const float *x, size_t ldx)
{
    __shared__ float part[8][32];
    const int t = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int c = blockIdx.x * 32 + lane;
    float s = 0.0f;
    for (int r = warp; r < h.rows && c < w.cols; r += 8)
        s = fmaf(sl_d_weight(w, head_row(h, t) + r, c), x[(size_t)t * ldx + r], s);
    part[warp][lane] = s;
    __syncthreads();
    if (warp || c >= w.cols) return;
    for (int i = 1; i < 8; i++) s += part[i][lane];
    y[(size_t)t * ldy + c] = s;
}

unsigned blocks(size_t n, size_t each)
{
    return (unsigned)((n + each - 1) / each);
}

} // namespace

extern "C" {

void sl_cuda_rmsnorm(struct sl_cuda *d, float *y, size_t ldy, const float *x, size_t ldx,
                     const float *w, int n_rows, int n, float eps)
{
    if (d->failed != cudaSuccess || n_rows < 1) return;
    const unsigned threads = n > 1024 ? 1024 : 128;
    rmsnorm_kernel<<<(unsigned)n_rows, threads, 0, d->stream>>>(y, ldy, x, ldx, w, n, eps);
    SL_CUDA_LAUNCHED(d, "norm");
}

void sl_cuda_mix(struct sl_cuda *d, float *x, const float *stream, float *rms, int n_slots,
                 int n_banked, const float *w, const float *norm, int n_tok, int hidden, float eps,
                 int *bad)
{
    if (d->failed != cudaSuccess || n_tok < 1) return;
    const unsigned threads = hidden > 1024 ? 1024 : 512;
    /* Rows of whole groups of four, on addresses that allow it. */
    const uintptr_t all = (uintptr_t)x | (uintptr_t)stream | (uintptr_t)w;
    if (hidden % 4 == 0 && all % 16 == 0)
        mix_kernel<4><<<(unsigned)n_tok, threads, 0, d->stream>>>(x, stream, rms, n_slots, n_banked,
                                                                  w, norm, hidden, eps, bad);
    else
        mix_kernel<1><<<(unsigned)n_tok, threads, 0, d->stream>>>(x, stream, rms, n_slots, n_banked,
                                                                  w, norm, hidden, eps, bad);
    SL_CUDA_LAUNCHED(d, "mix");
}

void sl_cuda_route(struct sl_cuda *d, float *logits, const float *bias, int n_tok, int n, int k,
                   int renormalize, float scale, int *ids, float *weights, int *bad)
{
    if (d->failed != cudaSuccess || n_tok < 1) return;
    if (n > ROUTE_THREADS * 16 || k > 1024) {
        sl_cuda_note(d, cudaErrorInvalidValue, "router: number of experts");
        return;
    }
    if (n <= ROUTE_THREADS * 4)
        route_kernel<4><<<(unsigned)n_tok, ROUTE_THREADS, 0, d->stream>>>(
            logits, bias, n, k, renormalize, scale, ids, weights, bad);
    else
        route_kernel<16><<<(unsigned)n_tok, ROUTE_THREADS, 0, d->stream>>>(
            logits, bias, n, k, renormalize, scale, ids, weights, bad);
    SL_CUDA_LAUNCHED(d, "router");
}

void sl_cuda_weighted_rows(struct sl_cuda *d, float *y, size_t ldy, const float *p, const float *v,
                           size_t ldv, const int *rows, int n_tok, int k, int n)
{
    if (d->failed != cudaSuccess || n_tok < 1) return;
    weighted_kernel<<<dim3(blocks((size_t)n, 256), (unsigned)n_tok), 256, 0, d->stream>>>(
        y, ldy, p, v, ldv, rows, k, n);
    SL_CUDA_LAUNCHED(d, "weighted sum");
}

void sl_cuda_add(struct sl_cuda *d, float *y, const float *a, const float *b, size_t n)
{
    if (d->failed != cudaSuccess || !n) return;
    add_kernel<<<blocks(n, 256), 256, 0, d->stream>>>(y, a, b, n);
    SL_CUDA_LAUNCHED(d, "sum");
}

void sl_cuda_situ(struct sl_cuda *d, float *y, const float *g, const float *u, size_t n, float beta,
                  float linear)
{
    if (d->failed != cudaSuccess || !n) return;
    situ_kernel<<<blocks(n, 256), 256, 0, d->stream>>>(y, g, u, n, beta, linear);
    SL_CUDA_LAUNCHED(d, "situ");
}

void sl_cuda_embed(struct sl_cuda *d, float *y, size_t ldy, const struct sl_mat *w,
                   const int32_t *ids, int n_tok)
{
    if (d->failed != cudaSuccess || n_tok < 1) return;
    embed_kernel<<<dim3(blocks((size_t)w->cols, 256), (unsigned)n_tok), 256, 0, d->stream>>>(
        y, ldy, sl_weights_of(w), ids);
    SL_CUDA_LAUNCHED(d, "embedding");
}

void sl_cuda_argmax(struct sl_cuda *d, int32_t *out, const float *x, size_t ldx, int n_tok, int n)
{
    if (d->failed != cudaSuccess || n_tok < 1) return;
    argmax_kernel<<<(unsigned)n_tok, 1024, 0, d->stream>>>(out, x, ldx, n);
    SL_CUDA_LAUNCHED(d, "argmax");
}

void sl_cuda_head_mul(struct sl_cuda *d, float *y, size_t ldy, const struct sl_mat *w,
                      const struct sl_cuda_heads *h, const float *x, size_t ldx, int n)
{
    if (d->failed != cudaSuccess || n < 1) return;
    head_kernel<<<dim3(blocks((size_t)h->rows, 8), (unsigned)n), 256, 0, d->stream>>>(
        y, ldy, sl_weights_of(w), *h, x, ldx);
    SL_CUDA_LAUNCHED(d, "head product");
}

void sl_cuda_head_mul_t(struct sl_cuda *d, float *y, size_t ldy, const struct sl_mat *w,
                        const struct sl_cuda_heads *h, const float *x, size_t ldx, int n)
{
    if (d->failed != cudaSuccess || n < 1) return;
    head_t_kernel<<<dim3(blocks((size_t)w->cols, 32), (unsigned)n), 256, 0, d->stream>>>(
        y, ldy, sl_weights_of(w), *h, x, ldx);
    SL_CUDA_LAUNCHED(d, "head product");
}

} // extern "C"
