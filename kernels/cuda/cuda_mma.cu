/* Integer products of 3 to 16 tokens on tensor cores, any shape: one instruction multiplies 16 rows by a block of 32
 * columns by 8 tokens, exactly in int32, which is the sum that act.h scales. (With dot instructions 4
 * tokens of t4 would already need more than a Hopper GPU has.)
 *
 * A warp has 16 rows (of each of two matrices when gate and up go together); the warps of a block take
 * turns at the blocks of columns and add up at the end, in order. Lane 4g + t unpacks two words of rows g
 * and g + 8 and brings the same two of token g: nothing is unpacked twice, no transposes. Large matrices
 * go through cuda_mma_staged.cu. */
#include "kernels/cuda/cuda_math.cuh"
#include "kernels/cuda/cuda_mul.cuh"

namespace
{

constexpr int WARPS = 8, AHEAD = 4; /* blocks whose loads are under way */

template <int K, int A, int NJ, bool DUAL>
__global__ void __launch_bounds__(WARPS * 32) mma_kernel(const __grid_constant__ sl_mul_args args)
{
    constexpr int M = DUAL ? 2 : 1, N_ACC = M * NJ * 4;
    extern __shared__ uint32_t shared[];
    const sl_mul_job &job = args.job[blockIdx.y];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int split = args.split, nb = job.m[0].nb, rows = job.m[0].rows;
    const int row0 = (blockIdx.x * (WARPS / split) + warp / split) * 16;
    if constexpr (K >= SL_KIND_W2) {
        for (int m = 0; m < M; m++)
            sl_fill_pairs<K>(shared + m * sl_pairs<K>::entries * 32, job.m[m].table);
        __syncthreads();
    }
    const int at[2] = {row0 + g < rows ? row0 + g : rows - 1,
                       row0 + g + 8 < rows ? row0 + g + 8 : rows - 1};
    const size_t plane = (size_t)nb * 32;
    const int planes = args.planes, last = args.n_act - 1;
    const int8_t *q[NJ];
    const float *scale[NJ][2];
#pragma unroll
    for (int j = 0; j < NJ; j++) {
        const int mine = min(job.tok + j * 8 + g, last);
        q[j] = args.q + (size_t)mine * planes * plane;
#pragma unroll
        for (int i = 0; i < 2; i++)
            scale[j][i] = args.scale + min(job.tok + j * 8 + 2 * t + i, last);
    }
    const int p0 = sl_quarter<K>::first(t) * 4, p1 = sl_quarter<K>::second(t) * 4;
    float acc[M][NJ][4];
#pragma unroll
    for (int i = 0; i < N_ACC; i++) (&acc[0][0][0])[i] = 0.0f;

    for (int b0 = warp % split; b0 < nb; b0 += split * AHEAD) {
        sl_quarter<K> raw[AHEAD][M][2];
#pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            const int b = b0 + p * split < nb ? b0 + p * split : nb - 1;
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    sl_quarter_load<K, A>(raw[p][m][r], job.m[m], at[r], b, t);
        }
#pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            const int b = b0 + p * split;
            if (b >= nb) break; /* the same for the whole warp */
            uint32_t x[NJ][2][2];
#pragma unroll
            for (int j = 0; j < NJ; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if (i >= planes) continue;
                    const int8_t *from = q[j] + i * plane + (size_t)b * 32;
                    if constexpr (K == SL_KIND_T6) {
                        x[j][i][0] = __ldg((const uint32_t *)(from + p0));
                        x[j][i][1] = __ldg((const uint32_t *)(from + p1));
                    } else {
                        const uint2 v = __ldg((const uint2 *)(from + p0));
                        x[j][i][0] = v.x, x[j][i][1] = v.y;
                    }
                }
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t a[4], w[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    sl_quarter_words<K>(raw[p][m][r], shared + m * sl_pairs<K>::entries * 32, t, w);
                    a[r] = w[0], a[r + 2] = w[1];
                }
#pragma unroll
                for (int j = 0; j < NJ; j++) {
                    int c[4] = {0, 0, 0, 0};
                    sl_mma_s8(c, a, x[j][0][0], x[j][0][1]);
                    if (planes == 2) {
#pragma unroll
                        for (int i = 0; i < 4; i++) c[i] *= 256;
                        sl_mma_s8(c, a, x[j][1][0], x[j][1][1]);
                    }
                    const size_t line = (size_t)b * args.ld_scale;
                    const float s[2] = {__ldg(scale[j][0] + line), __ldg(scale[j][1] + line)};
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[m][j][i] =
                            fmaf((float)c[i], raw[p][m][i >> 1].ws * s[i & 1], acc[m][j][i]);
                }
            }
        }
    }
    if (split > 1) {
        float *part = (float *)shared; /* [N_ACC][threads] */
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N_ACC; i++) part[i * (WARPS * 32) + threadIdx.x] = (&acc[0][0][0])[i];
        __syncthreads();
        if (warp % split) return;
        for (int s = 1; s < split; s++)
#pragma unroll
            for (int i = 0; i < N_ACC; i++)
                (&acc[0][0][0])[i] += part[i * (WARPS * 32) + threadIdx.x + s * 32];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = row0 + g + 8 * (i >> 1);
        if (row >= rows) continue;
        const float s0 = sl_row_scale(job.m[0], row);
        const float s1 = DUAL ? sl_row_scale(job.m[1], row) : 0.0f;
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            const int tok = j * 8 + 2 * t + (i & 1);
            if (tok >= args.n_tok) continue;
            float v = s0 * acc[0][j][i];
            if constexpr (DUAL) v = sl_d_situ(v, s1 * acc[M - 1][j][i], args.beta, args.linear);
            job.y[(size_t)tok * job.ldy + row] = v;
        }
    }
}

size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

template <int K, int A, int NJ, bool DUAL>
void launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
{
    constexpr int M = DUAL ? 2 : 1;
    const int nb = a.job[0].m[0].nb, tiles = (s.rows + 15) / 16;
    a.split = nb >= 32 ? 8 : nb >= 8 ? 2 : 1;
    const int per_block = WARPS / a.split;
    size_t bytes = (size_t)M * NJ * 4 * WARPS * 32 * sizeof(float);
    bytes = larger(bytes, (size_t)M * sl_pairs<K>::bytes);
    auto *kernel = mma_kernel<K, A, NJ, DUAL>;
    if (bytes > 48 * 1024)
        sl_cuda_note(
            d,
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
            "product");
    kernel<<<dim3((unsigned)((tiles + per_block - 1) / per_block), (unsigned)s.n_jobs), WARPS * 32,
             bytes, d->stream>>>(a);
}

template <int K, int A> void pick(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
{
    if (a.n_tok <= 8 && s.dual) launch<K, A, 1, true>(d, s, a);
    if (a.n_tok <= 8 && !s.dual) launch<K, A, 1, false>(d, s, a);
    if (a.n_tok > 8 && s.dual) launch<K, A, 2, true>(d, s, a);
    if (a.n_tok > 8 && !s.dual) launch<K, A, 2, false>(d, s, a);
}

} // namespace

void sl_mma_launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
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
