/* Integer products of 3 to 16 tokens where rows are whole chunks of eight blocks: as cuda_mma.cu, but all
 * that a step needs is copied to shared memory in wide pieces one step ahead.
 *
 * Straight from memory a lane would fetch 2 to 8 bytes of each of eight rows at a time, and the cache
 * looks up one line for each: that, not bandwidth, was the bound (t4, 4 tokens: 0.94 TB/s of 4.5). Here a
 * row's 32 to 256 bytes of a chunk come in pieces of 16, and the activations of a chunk serve all warps
 * that work on it.
 *
 *   thread block   8 warps = `tiles` of 16 rows x `split` of the chunks
 *   stage          [warp][matrix][16 rows] codes, plain or high bits, scales; [split][token] activations
 *
 * Strides of rows are chosen so that the eight rows a warp reads at once lie in different banks. */
#include "kernels/cuda/cuda_math.cuh"
#include "kernels/cuda/cuda_mul.cuh"

namespace
{

constexpr int WARPS = 8, CHUNK = 8, STAGES = 2;

template <int K> struct chunk {
    /* bytes of a row: codes, then what goes with them, then scales; each with its stride */
    static constexpr int block = K == SL_KIND_T8   ? 32
                                 : K >= SL_KIND_W2 ? (K == SL_KIND_W1 ? 4 : 8)
                                                   : 16;
    static constexpr int codes = block * CHUNK;
    static constexpr int codes_at = codes + (K == SL_KIND_T8 ? 32 : 16);
    static constexpr int more = K == SL_KIND_T6 ? 64 : K == SL_KIND_W2_PLAIN ? 32 : 0;
    static constexpr int more_at = more ? more + 16 : 0;
    static constexpr int scales = K <= SL_KIND_T4 ? 16 : K == SL_KIND_MXFP4 ? 8 : 4;
    static constexpr int row = codes_at + more_at + 16;
    static constexpr int q_at = CHUNK * 32 + 32; /* of a token and plane */
};

template <int N> static __device__ inline void copy_async(void *to, const void *from)
{
#if __CUDA_ARCH__ >= 800
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if constexpr (N == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(N));
#else
    (void)to, (void)from;
#endif
}

static __device__ inline void commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}

template <int N> static __device__ inline void wait_but()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
#endif
}

/* Chunk c of 16 rows from row0 on, by one warp. */
template <int K>
static __device__ inline void fetch_rows(uint8_t *to, const sl_cuda_rows &m, int row0, int c)
{
    using L = chunk<K>;
    const int lane = threadIdx.x & 31;
    constexpr int units = L::codes / 16;
#pragma unroll
    for (int i = 0; i < (16 * units + 31) / 32; i++) {
        const int u = i * 32 + lane, r = u / units, p = u % units * 16;
        const int row = min(row0 + r, m.rows - 1);
        if (u < 16 * units)
            copy_async<16>(to + r * L::row + p,
                           m.codes + (size_t)row * m.row_bytes + (size_t)c * L::codes + p);
    }
    if constexpr (L::more > 0) {
        constexpr int more = L::more / 16;
#pragma unroll
        for (int i = 0; i < (16 * more + 31) / 32; i++) {
            const int u = i * 32 + lane, r = u / more, p = u % more * 16;
            const int row = min(row0 + r, m.rows - 1);
            const uint8_t *from =
                K == SL_KIND_T6
                    ? m.codes + (size_t)row * m.row_bytes + (size_t)m.nb * 16 + (size_t)c * L::more
                    : m.plain + ((size_t)row * m.nb + (size_t)c * CHUNK) * 4;
            if (u < 16 * more) copy_async<16>(to + r * L::row + L::codes_at + p, from + p);
        }
    }
    if (lane < 16) {
        const int row = min(row0 + lane, m.rows - 1);
        const uint8_t *from;
        if constexpr (K == SL_KIND_T8 || K == SL_KIND_T6 || K == SL_KIND_T4)
            from = m.codes + (size_t)row * m.row_bytes + (size_t)m.nb * (L::block + L::more / 8) +
                   (size_t)c * 16;
        else if constexpr (K == SL_KIND_MXFP4)
            from = m.scales + (size_t)row * m.nb + (size_t)c * 8;
        else
            from = m.scales + (size_t)row * (m.nb / 2) + (size_t)c * 4;
        copy_async<L::scales>(to + lane * L::row + L::codes_at + L::more_at, from);
    }
}

/* The two words of lane t of block k of a row, and the block's scale; e: m4's row exponent. */
template <int K>
static __device__ inline void take(const uint8_t *row, int k, int t, unsigned e,
                                   const uint32_t *pairs, uint32_t *w, float *ws)
{
    using L = chunk<K>;
    const uint8_t *scales = row + L::codes_at + L::more_at;
    sl_quarter<K> x;
    if constexpr (K == SL_KIND_T8) {
        const uint2 v = *(const uint2 *)(row + k * 32 + t * 8);
        x.a[0] = v.x, x.a[1] = v.y;
    } else if constexpr (K == SL_KIND_W2 || K == SL_KIND_W2_PLAIN) {
        const uint2 v = *(const uint2 *)(row + k * 8);
        x.a[0] = __funnelshift_r(t & 2 ? v.y : v.x, t & 2 ? v.x : v.y, 16 * (t & 1));
        if constexpr (K == SL_KIND_W2_PLAIN)
            x.b[0] = *(const uint32_t *)(row + L::codes_at + k * 4) >> 8 * t;
    } else if constexpr (K == SL_KIND_W1) {
        const uint2 v = *(const uint2 *)(row + (k >> 1) * 8);
        x.a[0] = __funnelshift_r(k & 1 ? v.y : v.x, k & 1 ? v.x : v.y, 8 * t);
    } else {
        x.a[0] = *(const uint32_t *)(row + k * 16 + t * 4);
        if constexpr (K == SL_KIND_T6)
            x.b[0] = *(const uint32_t *)(row + L::codes_at + k * 8 + (t & 1) * 4);
    }
    sl_quarter_words<K>(x, pairs, t, w);
    if constexpr (K == SL_KIND_T8 || K == SL_KIND_T6 || K == SL_KIND_T4) {
        *ws = sl_d_f16(scales + 2 * k);
    } else if constexpr (K == SL_KIND_MXFP4) {
        *ws = sl_d_e8m0_half(scales[k]);
    } else {
        const unsigned n = scales[k >> 1] >> (k & 1) * 4 & 15;
        if constexpr (K == SL_KIND_M4)
            *ws = sl_d_e8m0_half((uint8_t)(e - n));
        else
            *ws = (float)((4 + (n & 3)) << (n >> 2));
    }
}

template <int K, int NJ, bool DUAL>
__global__ void __launch_bounds__(WARPS * 32)
    staged_kernel(const __grid_constant__ sl_mul_args args)
{
    using L = chunk<K>;
    constexpr int M = DUAL ? 2 : 1, N_ACC = M * NJ * 4, TOKENS = NJ * 8;
    extern __shared__ uint32_t shared[];
    const sl_mul_job &job = args.job[blockIdx.y];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int split = args.split, tiles = WARPS / split, ks = warp % split, tile = warp / split;
    const int nb = job.m[0].nb, rows = job.m[0].rows, n_chunks = nb / CHUNK;
    const int row0 = (blockIdx.x * tiles + tile) * 16, planes = args.planes;
    const int last = args.n_act - 1;
    const size_t plane = (size_t)nb * 32;
    uint32_t *pairs = shared;
    uint8_t *stages = (uint8_t *)(shared + M * sl_pairs<K>::entries * 32);
    const int w_bytes = WARPS * M * 16 * L::row;
    const int q_bytes = TOKENS * 2 * L::q_at + TOKENS * CHUNK * 4;
    const int stage_bytes = w_bytes + split * q_bytes;
    if constexpr (K >= SL_KIND_W2)
        for (int m = 0; m < M; m++)
            sl_fill_pairs<K>(pairs + m * sl_pairs<K>::entries * 32, job.m[m].table);
    unsigned e[M][2] = {};
    if constexpr (K == SL_KIND_M4)
        for (int m = 0; m < M; m++)
            for (int r = 0; r < 2; r++)
                e[m][r] = job.m[m].row_scales[min(row0 + g + 8 * r, rows - 1)];
    float acc[M][NJ][4];
#pragma unroll
    for (int i = 0; i < N_ACC; i++) (&acc[0][0][0])[i] = 0.0f;

    auto fetch = [&](int step) {
        const int c = step * split + ks;
        uint8_t *stage = stages + (step % STAGES) * stage_bytes;
        if (c < n_chunks) {
            for (int m = 0; m < M; m++)
                fetch_rows<K>(stage + (warp * M + m) * 16 * L::row, job.m[m], row0, c);
            uint8_t *q = stage + w_bytes + ks * q_bytes;
            /* the warps of this chunk share its activations: 16 pieces a token and plane */
            for (int u = tile * 32 + lane; u < TOKENS * planes * 16; u += tiles * 32) {
                const int line = u >> 4, tok = min(job.tok + line / planes, last);
                copy_async<16>(q + ((line / planes) * 2 + line % planes) * L::q_at + (u & 15) * 16,
                               args.q + ((size_t)tok * planes + line % planes) * plane +
                                   (size_t)c * CHUNK * 32 + (u & 15) * 16);
            }
            float *s = (float *)(q + TOKENS * 2 * L::q_at);
            for (int u = tile * 32 + lane; u < TOKENS * CHUNK; u += tiles * 32) {
                const int tok = min(job.tok + u % TOKENS, last);
                copy_async<4>(s + u,
                              args.scale + (size_t)(c * CHUNK + u / TOKENS) * args.ld_scale + tok);
            }
        }
        commit();
    };

    const int steps = (n_chunks + split - 1) / split;
    fetch(0);
    for (int step = 0; step < steps; step++) {
        fetch(step + 1);
        wait_but<1>();
        __syncthreads();
        if (step * split + ks < n_chunks) {
            const uint8_t *stage = stages + (step % STAGES) * stage_bytes;
            const uint8_t *mine = stage + warp * M * 16 * L::row + g * L::row;
            const uint8_t *q = stage + w_bytes + ks * q_bytes;
            const float *scale = (const float *)(q + TOKENS * 2 * L::q_at);
            const int p0 = sl_quarter<K>::first(t) * 4, p1 = sl_quarter<K>::second(t) * 4;
#pragma unroll 2
            for (int k = 0; k < CHUNK; k++) {
                uint32_t a[M][4], w[2];
                float ws[M][2];
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        take<K>(mine + (m * 16 + 8 * r) * L::row, k, t, e[m][r],
                                pairs + m * sl_pairs<K>::entries * 32, w, &ws[m][r]);
                        a[m][r] = w[0], a[m][r + 2] = w[1];
                    }
#pragma unroll
                for (int j = 0; j < NJ; j++) {
                    const uint8_t *x = q + (j * 8 + g) * 2 * L::q_at + k * 32;
                    const float s[2] = {scale[k * TOKENS + j * 8 + 2 * t],
                                        scale[k * TOKENS + j * 8 + 2 * t + 1]};
                    uint32_t b[2][2];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        if constexpr (K == SL_KIND_T6) {
                            b[i][0] = *(const uint32_t *)(x + i * L::q_at + p0);
                            b[i][1] = *(const uint32_t *)(x + i * L::q_at + p1);
                        } else {
                            const uint2 v = *(const uint2 *)(x + i * L::q_at + p0);
                            b[i][0] = v.x, b[i][1] = v.y;
                        }
                    }
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        int c[4] = {0, 0, 0, 0};
                        sl_mma_s8(c, a[m], b[0][0], b[0][1]);
                        if (planes == 2) {
#pragma unroll
                            for (int i = 0; i < 4; i++) c[i] *= 256;
                            sl_mma_s8(c, a[m], b[1][0], b[1][1]);
                        }
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            acc[m][j][i] =
                                fmaf((float)c[i], ws[m][i >> 1] * s[i & 1], acc[m][j][i]);
                    }
                }
            }
        }
        __syncthreads();
    }
    if (split > 1) {
        float *part = (float *)stages; /* [N_ACC][threads]; all copies have landed */
        wait_but<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N_ACC; i++) part[i * (WARPS * 32) + threadIdx.x] = (&acc[0][0][0])[i];
        __syncthreads();
        if (ks) return;
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
        const float s1 = DUAL ? sl_row_scale(job.m[M - 1], row) : 0.0f;
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

template <int K, int NJ, bool DUAL>
bool launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
{
    using L = chunk<K>;
    constexpr int M = DUAL ? 2 : 1, TOKENS = NJ * 8;
    const int tiles = (s.rows + 15) / 16;
    /* Splits fill the GPU where rows are few, at the price of activations that fewer warps share: on an
     * H200 eight splits were 1.3 to 1.6 times slower than four for single matrices of 3584 and 7168
     * rows, and four 1.2 times slower than two for sixteen experts. */
    a.split = s.n_jobs > 1 || (K == SL_KIND_T8 && s.rows >= 8192) ? 2 : 4;
    const int per_block = WARPS / a.split;
    size_t bytes = (size_t)STAGES * ((size_t)WARPS * M * 16 * L::row +
                                     (size_t)a.split * (TOKENS * 2 * L::q_at + TOKENS * CHUNK * 4));
    const size_t sums = (size_t)M * NJ * 4 * WARPS * 32 * sizeof(float);
    bytes = (size_t)M * sl_pairs<K>::bytes + (bytes > sums ? bytes : sums);
    if (bytes > d->shared_max) return false; /* small GPUs: cuda_mma.cu */
    auto *kernel = staged_kernel<K, NJ, DUAL>;
    sl_cuda_note(
        d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "product");
    kernel<<<dim3((unsigned)((tiles + per_block - 1) / per_block), (unsigned)s.n_jobs), WARPS * 32,
             bytes, d->stream>>>(a);
    SL_CUDA_LAUNCHED(d, "product");
    return true;
}

template <int K> bool pick(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
{
    if (a.n_tok <= 8) return s.dual ? launch<K, 1, true>(d, s, a) : launch<K, 1, false>(d, s, a);
    return s.dual ? launch<K, 2, true>(d, s, a) : launch<K, 2, false>(d, s, a);
}

} // namespace

bool sl_mma_staged_launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a)
{
    if (!s.aligned || a.job[0].m[0].nb % CHUNK) return false;
    bool done = false;
    sl_by_kind(s.kind, [&](auto kind) { done = pick<decltype(kind)::value>(d, s, a); });
    return done;
}
