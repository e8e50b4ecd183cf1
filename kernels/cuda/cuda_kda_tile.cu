/* KDA prefill: tiles of 16 tokens as dense products on tensor cores (cuda_kda.h; formulas: spec 3.3.1).
 *
 * A block has a head. Warp w keeps 16 value channels of the state, transposed, as the accumulators of
 * m16n8k8 products: registers of lane 4g + t hold values g and g + 8 of keys 8n + 2t and 8n + 2t + 1. As
 * the left operand of the next tile the same registers are keys "t" and "t + 4" of step n, if the right
 * operand counts its keys that way, too: so the state never leaves registers between tiles, and no
 * lane sends anything. Residual rows and their weights go through the same turn.
 *
 *   X' = S' Kt'   O' = S' Qt'        16 tokens of what the state answers
 *   R' = (beta (V - X))' M'          M = (I + L)^-1
 *   O' += R' A'   S' = S' exp(G_15) + R' Kd
 *
 * tf32 keeps 11 bits: each operand is split into two pieces and three of the four products are made,
 * which leaves about 2^-21. Without tensor cores that take tf32 (before sm_80) the same products are made
 * by plain arithmetic through warp shuffles. */
#include "kernels/cuda/cuda_kda.cuh"
#include "kernels/cuda/cuda_math.cuh"

namespace
{

constexpr int T = SL_CUDA_TILE;

static __device__ inline uint32_t tf32(float x)
{
#if __CUDA_ARCH__ >= 800
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
#else
    return __float_as_uint(x);
#endif
}

/* c += a b, one step of 8: a[0] (g, t), a[1] (g + 8, t), a[2] (g, t + 4), a[3] (g + 8, t + 4);
 * b[0] (t, g), b[1] (t + 4, g); c (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). */
static __device__ inline void mma(float *c, const float *a, const float *b)
{
#if __CUDA_ARCH__ >= 800
    uint32_t ah[4], al[4], bh[2], bl[2];
#pragma unroll
    for (int i = 0; i < 4; i++) ah[i] = tf32(a[i]), al[i] = tf32(a[i] - __uint_as_float(ah[i]));
#pragma unroll
    for (int i = 0; i < 2; i++) bh[i] = tf32(b[i]), bl[i] = tf32(b[i] - __uint_as_float(bh[i]));
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const uint32_t *x = p == 0 ? al : ah, *y = p == 1 ? bl : bh; /* small ones first */
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    }
#else
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    for (int k = 0; k < 8; k++) {
        const int from = 4 * g + (k & 3), n0 = 4 * (2 * t) + (k & 3), n1 = n0 + 4;
        const float x0 = __shfl_sync(SL_FULL, k < 4 ? a[0] : a[2], from);
        const float x1 = __shfl_sync(SL_FULL, k < 4 ? a[1] : a[3], from);
        const float y0 = __shfl_sync(SL_FULL, k < 4 ? b[0] : b[1], n0);
        const float y1 = __shfl_sync(SL_FULL, k < 4 ? b[0] : b[1], n1);
        c[0] = fmaf(x0, y0, c[0]), c[1] = fmaf(x0, y1, c[1]);
        c[2] = fmaf(x1, y0, c[2]), c[3] = fmaf(x1, y1, c[3]);
    }
#endif
}

/* Rows of D + 4 floats: a step of 8 keys of 8 tokens then meets each bank once. */
template <int D> struct tile_shared {
    float kt[T][D + 4], qt[T][D + 4]; /* k, q times exp(G) */
    float kc[T][D + 4], qc[T][D + 4]; /* times exp(G - G_7) */
    float kb[T][D + 4];               /* k times exp(G_7 - G); then k times exp(G_15 - G) */
    float v[T][D + 4];
    float last[D], turn[D]; /* G_15; exp(G_15 - G_7) */
    float L[T][T + 1], A[T][T + 1], M[T][T + 1], beta[T];
};

/* Loads a tile of n rows and makes its scaled copies; rows past n are zeros. A thread a key channel. The
 * rows of a shorter tile are left in open_k and open_G. */
template <int D>
static __device__ void load_tile(tile_shared<D> &s, const float *q, const float *k, const float *v,
                                 const float *g, const float *beta, size_t ld, int heads, int n,
                                 float *open_k, float *open_G)
{
    for (int i = threadIdx.x; i < D; i += blockDim.x) {
        float G[T], sum = 0.0f;
        for (int r = 0; r < T; r++) {
            sum += r < n ? g[(size_t)r * ld + i] : 0.0f;
            G[r] = sum;
        }
        for (int r = 0; r < T; r++) {
            const float kk = r < n ? k[(size_t)r * ld + i] : 0.0f;
            const float qq = r < n ? q[(size_t)r * ld + i] : 0.0f;
            const float e = sl_d_exp(G[r]), c = sl_d_exp(G[r] - G[7]);
            s.kt[r][i] = kk * e;
            s.qt[r][i] = qq * e;
            s.kc[r][i] = kk * c;
            s.qc[r][i] = qq * c;
            s.kb[r][i] = kk * sl_d_exp(G[7] - G[r]);
            if (r >= n || n == T) continue;
            open_k[r * D + i] = kk;
            open_G[r * D + i] = G[r];
        }
        s.last[i] = sum;
        s.turn[i] = sl_d_exp(sum - G[7]);
    }
    for (int i = threadIdx.x; i < T * D; i += blockDim.x)
        s.v[i / D][i % D] = i / D < n ? v[(size_t)(i / D) * ld + i % D] : 0.0f;
    if (threadIdx.x < T)
        s.beta[threadIdx.x] = (int)threadIdx.x < n ? beta[(size_t)threadIdx.x * heads] : 0.0f;
}

/* x y' of 16 rows by rows 8j .. 8j+7. */
template <int D>
static __device__ inline void rows_product(float *c, const float (*x)[D + 4],
                                           const float (*y)[D + 4], int j)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll 4
    for (int i = 0; i < D; i += 8) {
        const float a[4] = {x[g][i + t], x[g + 8][i + t], x[g][i + t + 4], x[g + 8][i + t + 4]};
        const float b[2] = {y[8 * j + g][i + t], y[8 * j + g][i + t + 4]};
        mma(c, a, b);
    }
}

template <int D> static __device__ void interactions(tile_shared<D> &s, int job)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, j = job & 1;
    float c[4];
    rows_product<D>(c, job < 2 ? s.kc : s.qc, s.kb, j);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = g + 8 * (i >> 1), m = 8 * j + 2 * t + (i & 1);
        if (job < 2)
            s.L[r][m] = m < r ? s.beta[r] * c[i] : 0.0f;
        else
            s.A[r][m] = m <= r ? c[i] : 0.0f;
    }
}

/* M = (I + L)^-1, a lane a column. */
template <int D> static __device__ void invert(tile_shared<D> &s)
{
    const int c = threadIdx.x;
    if (c >= T) return;
    float x[T];
#pragma unroll
    for (int r = 0; r < T; r++) {
        float v = r == c ? 1.0f : 0.0f;
#pragma unroll
        for (int m = 0; m < r; m++) v = fmaf(-s.L[r][m], x[m], v);
        x[r] = v;
        s.M[r][c] = v;
    }
}

template <int D>
__global__ void __launch_bounds__(D * 2)
    tile_kernel(sl_cuda_kda_state st, const float *q, const float *k, const float *v,
                const float *g, const float *beta, float *o, int n_tok)
{
    extern __shared__ float4 memory[];
    tile_shared<D> &s = *(tile_shared<D> *)memory;
    const int head = blockIdx.x, heads = gridDim.x, warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31, gg = lane >> 2, t = lane & 3, v0 = warp * 16 + gg;
    const size_t ld = (size_t)heads * D;
    float *S = st.S + (size_t)head * D * D;
    float c[D / 8][4];
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = S[(size_t)(8 * n + 2 * t + (i & 1)) * D + v0 + 8 * (i >> 1)];
    for (int p = 0; p < n_tok; p += T) {
        const int n_rows = n_tok - p < T ? n_tok - p : T;
        const size_t at = (size_t)p * ld + (size_t)head * D;
        __syncthreads();
        load_tile<D>(s, q + at, k + at, v + at, g + at, beta + (size_t)p * heads + head, ld, heads,
                     n_rows, st.k + (size_t)head * T * D, st.G + (size_t)head * T * D);
        __syncthreads();
        for (int job = warp; job < 4; job += D / 16) interactions<D>(s, job);
        __syncthreads();
        invert<D>(s);
        /* Meanwhile kb turns into what the state takes: last user was above. */
        for (int i = threadIdx.x; i < T * D; i += blockDim.x) s.kb[i / D][i % D] *= s.turn[i % D];
        float x[2][4] = {}, out[2][4] = {};
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float a[4] = {c[n][0], c[n][2], c[n][1], c[n][3]};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float2 kk = *(const float2 *)&s.kt[8 * j + gg][8 * n + 2 * t];
                const float2 qq = *(const float2 *)&s.qt[8 * j + gg][8 * n + 2 * t];
                const float b0[2] = {kk.x, kk.y}, b1[2] = {qq.x, qq.y};
                mma(x[j], a, b0);
                mma(out[j], a, b1);
            }
        }
        __syncthreads();
        float r[2][4] = {};
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int tok = 8 * j + 2 * t + (i & 1);
                x[j][i] = s.beta[tok] * (s.v[tok][v0 + 8 * (i >> 1)] - x[j][i]);
            }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float a[4] = {x[m][0], x[m][2], x[m][1], x[m][3]};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float b[2] = {s.M[8 * j + gg][8 * m + 2 * t],
                                    s.M[8 * j + gg][8 * m + 2 * t + 1]};
                mma(r[j], a, b);
            }
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float a[4] = {r[m][0], r[m][2], r[m][1], r[m][3]};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float b[2] = {s.A[8 * j + gg][8 * m + 2 * t],
                                    s.A[8 * j + gg][8 * m + 2 * t + 1]};
                mma(out[j], a, b);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int tok = 8 * j + 2 * t + (i & 1), value = v0 + 8 * (i >> 1);
                if (tok >= n_rows) continue;
                o[at + (size_t)tok * ld + value] = out[j][i];
                if (n_rows < T) st.u[((size_t)head * T + tok) * D + value] = r[j][i];
            }
        if (n_rows < T) break;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float e0 = sl_d_exp(s.last[8 * n + 2 * t]),
                        e1 = sl_d_exp(s.last[8 * n + 2 * t + 1]);
            c[n][0] *= e0, c[n][1] *= e1, c[n][2] *= e0, c[n][3] *= e1;
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const float a[4] = {r[m][0], r[m][2], r[m][1], r[m][3]};
                const float b[2] = {s.kb[8 * m + 2 * t][8 * n + gg],
                                    s.kb[8 * m + 2 * t + 1][8 * n + gg]};
                mma(c[n], a, b);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            S[(size_t)(8 * n + 2 * t + (i & 1)) * D + v0 + 8 * (i >> 1)] = c[n][i];
}

template <int D>
void launch(struct sl_cuda *d, const struct sl_cuda_kda_state *st, const float *q, const float *k,
            const float *v, const float *g, const float *beta, float *o, int heads, int n_tok)
{
    const size_t bytes = sizeof(tile_shared<D>);
    auto *kernel = tile_kernel<D>;
    sl_cuda_note(
        d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "kda tiles");
    kernel<<<(unsigned)heads, D * 2, bytes, d->stream>>>(*st, q, k, v, g, beta, o, n_tok);
    SL_CUDA_LAUNCHED(d, "kda tiles");
}

} // namespace

extern "C" {

void sl_cuda_kda_prefill(struct sl_cuda *d, const struct sl_cuda_kda_state *st, const float *q,
                         const float *k, const float *v, const float *g, const float *beta,
                         float *o, int heads, int width, int n_tok)
{
    if (d->failed != cudaSuccess || n_tok < 1) return;
    if (width == 128)
        launch<128>(d, st, q, k, v, g, beta, o, heads, n_tok);
    else if (width == 64)
        launch<64>(d, st, q, k, v, g, beta, o, heads, n_tok);
    else if (width == 32)
        launch<32>(d, st, q, k, v, g, beta, o, heads, n_tok);
    else
        sl_cuda_note(d, cudaErrorInvalidValue, "kda prefill: head width");
}

} // extern "C"
