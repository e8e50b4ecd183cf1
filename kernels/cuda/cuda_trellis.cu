/* The trellis encoder: a thread a block of 32 weights.
 *
 * Costs of all 16 nodes stay in registers, the table is a kernel parameter (an operand of the arithmetic,
 * no load), ways and scaled weights lie in shared memory, [step][thread]. A thread block has 128 rows of
 * one block of columns, so that column weights are the same for all. Steps, ties and rounding follow
 * trellis_impl.h and w_strip.c line by line. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/cuda_part.cuh"
#include <cuda_fp16.h>

extern "C" {
#include "kernels/cuda/cuda_trellis.h"
}

struct sl_cuda_encoder {
    struct sl_cuda *d;
    pthread_mutex_t lock;
    size_t max_weights;
    int max_cols;
    float *w, *h, *row;
    uint64_t *word;
    uint32_t *bits;
    uint8_t *nibble, *scales;
    unsigned short *row_scales;
    int *bad; /* [2]: lowest place of a value that is not finite, lowest row beyond f16 */
};

namespace
{

constexpr int B = 32, NODES = 16, WAYS = 4, ROWS = 128;
#define ROW_UNIT 0x1p-12f

struct tables {
    float t[128];
};

static __device__ inline int scale_of(int nibble)
{
    return (4 + (nibble & 3)) << (nibble >> 2);
}

static __device__ inline float round_row(float r)
{
    return __half2float(__float2half_rn(r / ROW_UNIT)) * ROW_UNIT;
}

template <bool PLAIN, bool H>
static __device__ inline float edge(const tables &t, int w, float x, float h)
{
    float c;
    const float e0 = x - t.t[w];
    c = e0 * e0;
    if (PLAIN) {
        const float e1 = x - t.t[w + 64], c1 = e1 * e1;
        c = c < c1 ? c : c1;
    }
    return H ? c * h : c;
}

/* One step; the ways of all nodes as pairs of bits. */
template <bool PLAIN, bool H>
static __device__ inline uint32_t step(float *to, const float *from, const tables &t, float x,
                                       float h)
{
    uint32_t ways = 0;
#pragma unroll
    for (int m = 0; m < NODES; m++) {
        const int p = (m << 2) & (NODES - 1);
        float best = from[p] + edge<PLAIN, H>(t, m << 2, x, h);
        uint32_t who = 0;
#pragma unroll
        for (int a = 1; a < WAYS; a++) {
            const float c = from[p + a] + edge<PLAIN, H>(t, a | m << 2, x, h);
            who = c < best ? (uint32_t)a << 2 * m : who;
            best = c < best ? c : best;
        }
        to[m] = best;
        ways |= who;
    }
    return ways;
}

struct found {
    uint64_t word;
    uint32_t bits;
    float cost;
};

/* x [B][ROWS] weights, scaled here; ways [B][ROWS]: this thread's columns of both. */
template <bool PLAIN, bool H>
static __device__ found search(const tables &t, const float *x, uint32_t *ways, const float *h,
                               float inv)
{
    float cost[2][NODES];
#pragma unroll
    for (int m = 0; m < NODES; m++) cost[0][m] = 0.0f;
    for (int s = 0; s < B; s += 2)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int i = (s + k + B / 2) & (B - 1);
            ways[(s + k) * ROWS] =
                step<PLAIN, H>(cost[1 - k], cost[k], t, x[i * (ROWS + 1)] * inv, H ? h[i] : 1.0f);
        }
    int node = 0;
    float least = cost[0][0];
#pragma unroll
    for (int m = 1; m < NODES; m++)
        if (cost[0][m] < least) least = cost[0][m], node = m;
    for (int s = B - 1; s >= B / 2; s--)
        node = ((int)(ways[s * ROWS] >> 2 * node & 3) | node << 2) & (NODES - 1);
    const int start = node;
#pragma unroll
    for (int m = 0; m < NODES; m++) cost[0][m] = m == start ? 0.0f : 3e38f;
    for (int s = 0; s < B; s += 2)
#pragma unroll
        for (int k = 0; k < 2; k++)
            ways[(s + k) * ROWS] = step<PLAIN, H>(
                cost[1 - k], cost[k], t, x[(s + k) * (ROWS + 1)] * inv, H ? h[s + k] : 1.0f);
    found f = {0, 0, 0.0f};
#pragma unroll
    for (int m = 0; m < NODES; m++)
        if (m == start) f.cost = cost[0][m];
    for (int s = B - 1; s >= 0; s--) {
        const int a = (int)(ways[s * ROWS] >> 2 * node & 3), w = a | node << 2;
        f.word |= (uint64_t)a << 2 * s;
        if (PLAIN) {
            const float v = x[s * (ROWS + 1)] * inv;
            float e0 = v - t.t[w], e1 = v - t.t[w + 64];
            e0 *= e0, e1 *= e1;
            f.bits |= (uint32_t) !(e0 < e1) << s;
        }
        node = w & (NODES - 1);
    }
    return f;
}

/* All blocks of columns of 128 rows; CHOOSE: the guessed nibble and its neighbours, else the guess. */
template <bool PLAIN, bool H, bool CHOOSE>
__global__ void __launch_bounds__(ROWS)
    search_kernel(const __grid_constant__ tables t, const float *w, const float *h,
                  const float *row_scale, float rms, int rows, int cols, uint64_t *word,
                  uint32_t *bits, uint8_t *nibble)
{
    __shared__ float x[B * (ROWS + 1)], hs[B];
    __shared__ uint32_t ways[B * ROWS];
    const int row0 = blockIdx.x * ROWS, u = blockIdx.y, nb = cols / B, r = row0 + threadIdx.x;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int i = warp; i < ROWS; i += ROWS / 32) /* a warp reads 128 bytes of a row at a time */
        x[lane * (ROWS + 1) + i] =
            row0 + i < rows ? w[(size_t)(row0 + i) * cols + (size_t)u * B + lane] : 0.0f;
    if (H && threadIdx.x < B) hs[threadIdx.x] = h[u * B + threadIdx.x];
    __syncthreads();
    if (r >= rows) return;
    const float *mine = x + threadIdx.x;
    uint32_t *my_ways = ways + threadIdx.x;
    const float row = row_scale[r], unit = row * rms;
    float sum = 0.0f;
    for (int j = 0; j < B; j++) sum += mine[j * (ROWS + 1)] * mine[j * (ROWS + 1)];
    int centre = 0;
    if (unit > 0.0f) {
        const float want = sqrtf(sum / B) / unit;
        for (int n = 1; n < 16; n++)
            if (want * want > (float)(scale_of(n) * scale_of(n - 1))) centre = n;
    }
    found best = {};
    int best_nibble = centre;
    for (int k = 0; k < (CHOOSE ? 3 : 1); k++) {
        int n = centre + (k == 0 ? 0 : k == 1 ? -1 : 1);
        n = n < 0 ? 0 : n > 15 ? 15 : n;
        const float scale = row * (float)scale_of(n), inv = scale > 0.0f ? 1.0f / scale : 0.0f;
        found now = search<PLAIN, H>(t, mine, my_ways, hs, inv);
        now.cost *= scale * scale;
        if (k && !(now.cost < best.cost)) continue;
        best = now;
        best_nibble = n;
    }
    const size_t at = (size_t)r * nb + u;
    word[at] = best.word;
    if (PLAIN) bits[at] = best.bits;
    nibble[at] = (uint8_t)best_nibble;
}

/* First row scales, from the strongest block; a thread a block of a row, a warp a row. */
__global__ void load_kernel(const float *w, int rows, int cols, float rms, float *row_scale,
                            int *bad)
{
    const int lane = threadIdx.x & 31, r = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (r >= rows) return;
    float top = 0.0f;
    for (int b = lane; b < cols / B; b += 32) {
        const float *from = w + (size_t)r * cols + (size_t)b * B;
        float sum = 0.0f;
        for (int j = 0; j < B; j++) {
            if (!isfinite(from[j])) {
                atomicMin(&bad[0], r); /* the host looks up the column */
                break;
            }
            sum += from[j] * from[j];
        }
        const float root = sqrtf(sum / B);
        if (root > top) top = root;
    }
    top = sl_warp_max(top);
    if (lane) return;
    row_scale[r] = round_row(top / (rms * 36.0f));
    if (!isfinite(row_scale[r])) atomicMin(&bad[1], r);
}

static __device__ inline double warp_sum(double v)
{
    for (int s = 16; s; s /= 2) v += __shfl_xor_sync(SL_FULL, v, s);
    return v;
}

/* Least-squares row scales for the codes; a warp a row. */
template <bool PLAIN>
__global__ void refit_kernel(const __grid_constant__ tables t, const float *w, const float *h,
                             int rows, int cols, const uint64_t *word, const uint32_t *bits,
                             const uint8_t *nibble, float *row_scale)
{
    __shared__ float table[128];
    for (int i = threadIdx.x; i < 128; i += blockDim.x) table[i] = t.t[i];
    __syncthreads();
    const int lane = threadIdx.x & 31, r = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (r >= rows) return;
    double num = 0, den = 0;
    for (int b = 0; b < cols / B; b++) { /* a lane a column */
        const size_t at = (size_t)r * (cols / B) + b;
        const uint64_t k = word[at];
        const int s = 2 * lane;
        unsigned i = (unsigned)((k >> s | k << (-s & 63)) & 63);
        if (PLAIN) i |= (bits[at] >> lane & 1) << 6;
        const double v = (double)table[i] * scale_of(nibble[at]);
        const double hc = h ? (double)h[b * B + lane] : 1.0;
        num += hc * v * (double)w[(size_t)r * cols + (size_t)b * B + lane];
        den += hc * v * v;
    }
    num = warp_sum(num);
    den = warp_sum(den);
    if (lane) return;
    const float row = den > 0 && num > 0 ? round_row((float)(num / den)) : 0.0f;
    if (row > 0.0f && isfinite(row)) row_scale[r] = row;
}

/* Nibbles two by two, row scales as f16. */
__global__ void pack_kernel(const uint8_t *nibble, const float *row_scale, int rows, int nb,
                            uint8_t *scales, unsigned short *row_scales)
{
    const int half = (nb + 1) / 2;
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < (size_t)rows)
        row_scales[i] = __half_as_ushort(__float2half_rn(row_scale[i] / ROW_UNIT));
    if (i >= (size_t)rows * half) return;
    const size_t r = i / half, b = i % half * 2;
    unsigned v = nibble[r * nb + b];
    if (b + 1 < (size_t)nb) v |= nibble[r * nb + b + 1] << 4;
    scales[i] = (uint8_t)v;
}

template <bool PLAIN, bool H, bool CHOOSE>
void search_all(struct sl_cuda_encoder *e, const struct sl_cuda_encode *j, const tables &t)
{
    const dim3 grid((unsigned)((j->rows + ROWS - 1) / ROWS), (unsigned)(j->cols / B));
    search_kernel<PLAIN, H, CHOOSE><<<grid, ROWS, 0, e->d->stream>>>(
        t, e->w, e->h, e->row, j->rms, j->rows, j->cols, e->word, e->bits, e->nibble);
    SL_CUDA_LAUNCHED(e->d, "trellis search");
}

template <bool PLAIN>
void encode(struct sl_cuda_encoder *e, const struct sl_cuda_encode *j, const tables &t)
{
    const unsigned warps = (unsigned)((j->rows + 7) / 8);
    load_kernel<<<warps, 256, 0, e->d->stream>>>(e->w, j->rows, j->cols, j->rms, e->row, e->bad);
    SL_CUDA_LAUNCHED(e->d, "row scales");
    for (int k = 0; k < j->rounds; k++) {
        const bool last = k + 1 == j->rounds;
        if (j->h && last) search_all<PLAIN, true, true>(e, j, t);
        if (j->h && !last) search_all<PLAIN, true, false>(e, j, t);
        if (!j->h && last) search_all<PLAIN, false, true>(e, j, t);
        if (!j->h && !last) search_all<PLAIN, false, false>(e, j, t);
        refit_kernel<PLAIN><<<warps, 256, 0, e->d->stream>>>(
            t, e->w, j->h ? e->h : NULL, j->rows, j->cols, e->word, e->bits, e->nibble, e->row);
        SL_CUDA_LAUNCHED(e->d, "row scales");
    }
    const size_t n = (size_t)j->rows * (size_t)((j->cols / B + 1) / 2 + 1);
    pack_kernel<<<(unsigned)((n + 255) / 256), 256, 0, e->d->stream>>>(
        e->nibble, e->row, j->rows, j->cols / B, e->scales, e->row_scales);
    SL_CUDA_LAUNCHED(e->d, "scales");
}

int judge(const struct sl_cuda_encode *j, const int bad[2], struct sl_err *err)
{
    if (bad[0] < j->rows)
        for (int c = 0; c < j->cols; c++)
            if (!isfinite(j->w[(size_t)bad[0] * (size_t)j->cols + (size_t)c]))
                return sl_fail(err, SL_E_ARG, NULL, "weight", "row %d column %d is not finite",
                               bad[0], c);
    if (bad[1] < j->rows)
        return sl_fail(err, SL_E_ARG, NULL, "weight",
                       "row %d has values too large for the f16 scale of a row", bad[1]);
    return 0;
}

int run(struct sl_cuda_encoder *e, const struct sl_cuda_encode *j, struct sl_err *err)
{
    struct sl_cuda *d = e->d;
    const size_t n = (size_t)j->rows * (size_t)j->cols, blocks = n / B;
    const bool plain = j->fmt == SL_FMT_W36;
    int bad[2] = {INT32_MAX, INT32_MAX};
    tables t = {};
    memcpy(t.t, j->table, (plain ? 128 : 64) * sizeof *t.t);
    int rc = sl_cuda_put(d, e->bad, bad, sizeof bad, err);
    if (!rc) rc = sl_cuda_put(d, e->w, j->w, n * sizeof *j->w, err);
    if (!rc && j->h) rc = sl_cuda_put(d, e->h, j->h, (size_t)j->cols * sizeof *j->h, err);
    if (rc) return rc;
    if (j->ms) sl_cuda_start(d);
    if (plain)
        encode<true>(e, j, t);
    else
        encode<false>(e, j, t);
    if (j->ms) rc = sl_cuda_stop(d, j->ms, err);
    if (!rc) rc = sl_cuda_get(d, bad, e->bad, sizeof bad, err);
    if (!rc) rc = judge(j, bad, err);
    if (!rc) rc = sl_cuda_get(d, j->codes, e->word, blocks * 8, err);
    if (!rc && plain) rc = sl_cuda_get(d, j->codes + blocks * 8, e->bits, blocks * 4, err);
    const size_t half = (size_t)(j->cols / B + 1) / 2;
    if (!rc) rc = sl_cuda_get(d, j->scales, e->scales, (size_t)j->rows * half, err);
    if (!rc) rc = sl_cuda_get(d, j->row_scales, e->row_scales, (size_t)j->rows * 2, err);
    return rc;
}

int rooms(struct sl_cuda_encoder *e, struct sl_err *err)
{
    const size_t n = e->max_weights, blocks = n / B + 1;
    const struct {
        void **p;
        size_t bytes;
    } want[] = {{(void **)&e->w, n * 4},
                {(void **)&e->h, (size_t)e->max_cols * 4},
                {(void **)&e->row, blocks * 4}, /* a row has a block at least */
                {(void **)&e->word, blocks * 8},
                {(void **)&e->bits, blocks * 4},
                {(void **)&e->nibble, blocks},
                {(void **)&e->scales, blocks},
                {(void **)&e->row_scales, blocks * 2},
                {(void **)&e->bad, 2 * sizeof(int)}};
    int rc = 0;
    for (size_t i = 0; i < sizeof want / sizeof *want && !rc; i++)
        rc = sl_cuda_alloc(e->d, want[i].p, want[i].bytes, err);
    return rc;
}

} // namespace

extern "C" {

int sl_cuda_encoder_open(struct sl_cuda_encoder **out, int device, size_t max_weights, int max_cols,
                         struct sl_err *err)
{
    *out = NULL;
    struct sl_cuda_encoder *e = (struct sl_cuda_encoder *)calloc(1, sizeof *e);
    if (!e) return sl_fail(err, SL_E_NOMEM, NULL, "encoder", "no memory");
    pthread_mutex_init(&e->lock, NULL);
    e->max_weights = max_weights;
    e->max_cols = max_cols;
    int rc = sl_cuda_open(&e->d, device, err);
    if (!rc) rc = rooms(e, err);
    if (rc) {
        sl_cuda_encoder_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void sl_cuda_encoder_close(struct sl_cuda_encoder *e)
{
    if (!e) return;
    void *const p[] = {e->w,      e->h,      e->row,        e->word, e->bits,
                       e->nibble, e->scales, e->row_scales, e->bad};
    for (size_t i = 0; e->d && i < sizeof p / sizeof *p; i++) sl_cuda_free(e->d, p[i]);
    sl_cuda_close(e->d);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

int sl_cuda_encode(struct sl_cuda_encoder *e, const struct sl_cuda_encode *job, struct sl_err *err)
{
    if (job->rows < 1 || job->cols < B || job->cols % B || job->cols > e->max_cols ||
        (size_t)job->rows * (size_t)job->cols > e->max_weights)
        return sl_fail(err, SL_E_ARG, NULL, "matrix", "%d x %d does not suit the encoder",
                       job->rows, job->cols);
    pthread_mutex_lock(&e->lock);
    cudaSetDevice(e->d->device);
    const int rc = run(e, job, err);
    pthread_mutex_unlock(&e->lock);
    return rc;
}

} // extern "C"
