/* Integer products of one or two tokens: bound by the bytes of the matrix, so arranged around them.
 *
 * A lane takes 8 to 16 bytes of codes (a block of 32 columns; half a one of t8) of two or four rows at a
 * time and reads the activations once for them. What hides the memory's latency is many warps: registers
 * are held down for that (loading a step ahead instead, with half the warps, was 1.3 to 1.5 times slower). `lanes` of a warp share a row (all 32 when it is long enough), and `split` warps take turns at
 * its blocks where rows are few. The sum of a row: each lane over its blocks, halves of the lanes, then
 * warps in order. Thread blocks of trellis formats fill their tables once and walk over many rows. */
#include "kernels/cuda/cuda_math.cuh"
#include "kernels/cuda/cuda_mul.cuh"

namespace
{

constexpr int WARPS = 8;

/* Rows of a lane, and thread blocks that a multiprocessor is to hold: 65536 / (256 * blocks) registers. */
template <int K, int NT, bool DUAL> struct plan {
    static constexpr int streams = K == SL_KIND_T6 || K == SL_KIND_T4 ? 2 : 4;
    static constexpr int rows = DUAL ? streams / 2 : streams;
    static constexpr int blocks = K >= SL_KIND_W2 ? (DUAL || NT == 2 ? 3 : 4) : 5 - NT;
};

template <int K, int A, int NT, bool DUAL>
__global__ void __launch_bounds__(WARPS * 32, (plan<K, NT, DUAL>::blocks))
    gemv_kernel(const __grid_constant__ sl_mul_args args)
{
    constexpr int R = plan<K, NT, DUAL>::rows, M = DUAL ? 2 : 1;
    extern __shared__ uint32_t shared[];
    const sl_mul_job &job = args.job[blockIdx.y];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int lanes = args.lanes, in_row = lane & (lanes - 1), split = args.split;
    const int nb = job.m[0].nb, rows = job.m[0].rows;
    if constexpr (K >= SL_KIND_W2) {
        for (int m = 0; m < M; m++)
            sl_fill_pairs<K>(shared + m * sl_pairs<K>::entries * 32, job.m[m].table);
        __syncthreads();
    }
    constexpr int P = sl_raw<K>::parts, N = sl_raw<K>::words;
    const int n_parts = nb * P;
    const size_t plane = (size_t)nb * 32;
    const int planes = args.planes, step = split * lanes, first = (warp % split) * lanes + in_row;
    for (int tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x) {
        const int row0 =
            ((tile * (WARPS / split) + warp / split) * (32 / lanes) + lane / lanes) * R;
        sl_row_at at[M][R];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int r = 0; r < R; r++)
                at[m][r] = sl_row_start<K>(job.m[m], row0 + r < rows ? row0 + r : rows - 1);
        const int8_t *q[NT];
        const float *scales[NT];
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const int tok = job.tok + (t < args.n_tok ? t : 0);
            q[t] = args.q + (size_t)tok * planes * plane;
            scales[t] = args.scale + tok;
        }
        float acc[M][R][NT];
#pragma unroll
        for (int i = 0; i < M * R * NT; i++) (&acc[0][0][0])[i] = 0.0f;
        for (int b = first; b < n_parts; b += step) {
            sl_raw<K> raw[M][R];
            uint32_t x[NT][2][N];
            float scale[NT];
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int r = 0; r < R; r++) sl_raw_load<K, A>(raw[m][r], at[m][r], b);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                sl_load<N * 4, 16>(x[t][0], (const uint8_t *)q[t] + (size_t)b * (N * 4));
                if (planes == 2)
                    sl_load<N * 4, 16>(x[t][1],
                                       (const uint8_t *)q[t] + plane + (size_t)b * (N * 4));
                scale[t] = __ldg(scales[t] + (size_t)(b / P) * args.ld_scale);
            }
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int r = 0; r < R; r++) {
                    uint32_t w[N];
                    sl_raw_words<K>(raw[m][r], shared + m * sl_pairs<K>::entries * 32, w);
#pragma unroll
                    for (int t = 0; t < NT; t++) {
                        int s = 0;
#pragma unroll
                        for (int k = 0; k < N; k++) s = __dp4a((int)w[k], (int)x[t][0][k], s);
                        if (planes == 2) {
                            s *= 256;
#pragma unroll
                            for (int k = 0; k < N; k++) s = __dp4a((int)w[k], (int)x[t][1][k], s);
                        }
                        acc[m][r][t] = fmaf((float)s, raw[m][r].ws * scale[t], acc[m][r][t]);
                    }
                }
        }
#pragma unroll
        for (int i = 0; i < M * R * NT; i++)
            (&acc[0][0][0])[i] = sl_warp_sum((&acc[0][0][0])[i], lanes);
        if (split > 1) { /* then all lanes share a row */
            float *part = (float *)(shared + M * sl_pairs<K>::entries * 32);
            __syncthreads(); /* sums of the rows before were read */
            if (lane == 0)
                for (int i = 0; i < M * R * NT; i++)
                    part[warp * (M * R * NT) + i] = (&acc[0][0][0])[i];
            __syncthreads();
            if (warp % split) continue;
            for (int s = 1; s < split; s++)
#pragma unroll
                for (int i = 0; i < M * R * NT; i++)
                    (&acc[0][0][0])[i] += part[(warp + s) * (M * R * NT) + i];
        }
        if (in_row) continue;
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (row0 + r >= rows) continue;
#pragma unroll
            for (int t = 0; t < NT; t++) {
                if (t >= args.n_tok) continue;
                float v = sl_row_scale(job.m[0], row0 + r) * acc[0][r][t];
                if constexpr (DUAL)
                    v = sl_d_situ(v, sl_row_scale(job.m[1], row0 + r) * acc[M - 1][r][t], args.beta,
                                  args.linear);
                job.y[(size_t)t * job.ldy + row0 + r] = v;
            }
        }
    }
}

template <int K, int A, int NT, bool DUAL>
void launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
{
    constexpr int R = plan<K, NT, DUAL>::rows, M = DUAL ? 2 : 1;
    const int n_parts = a.job[0].m[0].nb * sl_raw<K>::parts;
    a.lanes = 32;
    while (a.lanes > 1 && a.lanes / 2 >= n_parts) a.lanes /= 2;
    const int per_warp = R * (32 / a.lanes);
    const int warps = (s.rows + per_warp - 1) / per_warp;
    a.split = 1;
    /* Two tables take all shared memory that the smallest GPUs have: no room for sums there. */
    while (!(DUAL && K >= SL_KIND_W2) && a.split < WARPS && warps * a.split < 4096 &&
           n_parts >= 64 * a.split)
        a.split *= 2;
    const int per_block = WARPS / a.split;
    const size_t bytes = (size_t)M * sl_pairs<K>::bytes +
                         (a.split > 1 ? (size_t)WARPS * M * R * NT * sizeof(float) : 0);
    a.n_tiles = (warps + per_block - 1) / per_block;
    int blocks = a.n_tiles;
    if (K >= SL_KIND_W2) { /* about as many as run at once */
        const int many = (d->info.n_sm * plan<K, NT, DUAL>::blocks + s.n_jobs - 1) / s.n_jobs;
        if (blocks > many) blocks = many;
    }
    auto *kernel = gemv_kernel<K, A, NT, DUAL>;
    if (bytes > 48 * 1024)
        sl_cuda_note(
            d,
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
            "product");
    kernel<<<dim3((unsigned)blocks, (unsigned)s.n_jobs), WARPS * 32, bytes, d->stream>>>(a);
}

template <int K, int A> void pick(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
{
    if (a.n_tok == 1 && s.dual) launch<K, A, 1, true>(d, s, a);
    if (a.n_tok == 1 && !s.dual) launch<K, A, 1, false>(d, s, a);
    if (a.n_tok == 2 && s.dual) launch<K, A, 2, true>(d, s, a);
    if (a.n_tok == 2 && !s.dual) launch<K, A, 2, false>(d, s, a);
}

} // namespace

void sl_gemv_launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
{
    sl_by_kind(s.kind, [&](auto kind) {
        constexpr int K = decltype(kind)::value;
        if constexpr (sl_kind_is_trunk(K)) {
            if (!s.aligned) {
                pick<K, 2>(d, s, a);
                return;
            }
        }
        pick<K, 16>(d, s, a);
    });
    SL_CUDA_LAUNCHED(d, "product");
}
