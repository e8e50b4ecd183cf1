/* Packing of activations, choice of the product kernel, and products of plain matrices. */
#include "kernels/cuda/cuda_mul.cuh"

namespace
{

/* A warp packs a block: a lane a column, in the order that the format wants. Steps and rounding are
 * sl_act_pack's; maxima do not depend on their order. */
__global__ void pack_kernel(sl_cuda_act a, const float *x, size_t ldx, int nb)
{
    const int lane = threadIdx.x & 31, tok = blockIdx.y;
    const int b = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (b >= nb) return;
    float *scale = a.scale + (size_t)b * a.ld_scale;
    if (tok >= a.n_tok) { /* places past the last token, which tensor cores read */
        if (lane == 0) scale[tok] = 0.0f;
        return;
    }
    int c = lane;
    if (a.order == SL_CUDA_WOVEN) {
        const int i = lane & 3;
        c = 4 * (lane >> 3) + 2 * (lane >> 2 & 1) + (i >> 1) + 16 * (i & 1);
    }
    const float v = b * 32 + c < a.cols ? x[(size_t)tok * ldx + (size_t)b * 32 + c] : 0.0f;
    const bool finite = __all_sync(SL_FULL, isfinite(v));
    const float top = sl_warp_max(fabsf(v));
    const size_t plane = (size_t)nb * 32;
    int8_t *q = a.q + (size_t)tok * a.planes * plane + (size_t)b * 32 + lane;
    float unit = finite ? 0.0f : __int_as_float(0x7fc00000);
    int whole = 0, rest = 0;
    if (finite && top >= 0x1p-100f) {
        const float s = top / 127.0f, inv = 127.0f / top, w = rintf(v * inv);
        unit = a.planes == 2 ? s / 256.0f : s;
        whole = (int)w;
        if (a.planes == 2) {
            float r = rintf((v - w * s) * (256.0f * inv));
            r = r > 127.0f ? 127.0f : r < -127.0f ? -127.0f : r;
            rest = (int)r;
        }
    }
    q[0] = (int8_t)whole;
    if (a.planes == 2) q[plane] = (int8_t)rest;
    if (lane == 0) scale[tok] = unit;
}

enum { F32, BF16, F16 };

template <int KIND> static __device__ inline float half_of(uint32_t h)
{
    return KIND == BF16 ? __uint_as_float(h << 16)
                        : __half2float(__ushort_as_half((unsigned short)h));
}

template <int KIND> static __device__ inline float plain_at(const uint8_t *row, int c)
{
    return KIND == F32 ? ((const float *)row)[c] : half_of<KIND>(((const unsigned short *)row)[c]);
}

/* A warp has ROWS rows: eight columns of each a lane and step, for NT tokens. */
template <int KIND, int NT, bool WIDE>
__global__ void __launch_bounds__(256)
    plain_kernel(const uint8_t *w, int rows, int cols, const float *x, size_t ldx, int n_tok,
                 float *y, size_t ldy)
{
    constexpr int size = KIND == F32 ? 4 : 2, ROWS = 2;
    const int lane = threadIdx.x & 31;
    const int row0 = (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * ROWS;
    float acc[ROWS][NT] = {};
    for (int c = lane * 8; c < cols; c += 256) {
        float v[ROWS][8];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = row0 + r < rows ? row0 + r : rows - 1;
            const uint8_t *from = w + ((size_t)row * cols + c) * size;
            if constexpr (WIDE) {
                uint32_t u[2 * size];
                sl_load<8 * size, 16>(u, from);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    if constexpr (KIND == F32)
                        v[r][i] = __uint_as_float(u[i]);
                    else
                        v[r][i] = half_of<KIND>(u[i >> 1] >> 16 * (i & 1) & 0xffff);
                }
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) v[r][i] = c + i < cols ? plain_at<KIND>(from, i) : 0.0f;
            }
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const float *from = x + (size_t)(t < n_tok ? t : 0) * ldx + c;
            float u[8];
            if constexpr (WIDE) {
                const float4 a = __ldg((const float4 *)from), b = __ldg((const float4 *)from + 1);
                u[0] = a.x, u[1] = a.y, u[2] = a.z, u[3] = a.w;
                u[4] = b.x, u[5] = b.y, u[6] = b.z, u[7] = b.w;
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) u[i] = c + i < cols ? __ldg(from + i) : 0.0f;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < 8; i++) acc[r][t] = fmaf(v[r][i], u[i], acc[r][t]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const float s = sl_warp_sum(acc[r][t]);
            if (lane == 0 && t < n_tok && row0 + r < rows) y[(size_t)t * ldy + row0 + r] = s;
        }
}

template <int KIND, int NT>
void plain_tokens(struct sl_cuda *d, const struct sl_mat *w, const float *x, size_t ldx, int n_tok,
                  float *y, size_t ldy)
{
    const unsigned blocks = (unsigned)((w->rows + 15) / 16);
    const bool wide =
        w->cols % 8 == 0 && ldx % 4 == 0 && (uintptr_t)w->codes % 16 == 0 && (uintptr_t)x % 16 == 0;
    if (wide)
        plain_kernel<KIND, NT, true>
            <<<blocks, 256, 0, d->stream>>>(w->codes, w->rows, w->cols, x, ldx, n_tok, y, ldy);
    else
        plain_kernel<KIND, NT, false>
            <<<blocks, 256, 0, d->stream>>>(w->codes, w->rows, w->cols, x, ldx, n_tok, y, ldy);
    SL_CUDA_LAUNCHED(d, "plain product");
}

template <int KIND>
void plain(struct sl_cuda *d, const struct sl_mat *w, const float *x, size_t ldx, int n_tok,
           float *y, size_t ldy)
{
    for (int t = 0; t < n_tok; t += 4) {
        const float *from = x + (size_t)t * ldx;
        float *to = y + (size_t)t * ldy;
        if (n_tok - t == 1)
            plain_tokens<KIND, 1>(d, w, from, ldx, 1, to, ldy);
        else
            plain_tokens<KIND, 4>(d, w, from, ldx, n_tok - t < 4 ? n_tok - t : 4, to, ldy);
    }
}

enum sl_cuda_kind kind_of(const struct sl_mat *w)
{
    switch (w->fmt) {
    case SL_FMT_T8:
        return SL_KIND_T8;
    case SL_FMT_T6:
        return SL_KIND_T6;
    case SL_FMT_T4:
        return SL_KIND_T4;
    case SL_FMT_MXFP4:
        return SL_KIND_MXFP4;
    case SL_FMT_M4:
        return SL_KIND_M4;
    case SL_FMT_W36:
        return SL_KIND_W2_PLAIN;
    case SL_FMT_P36:
        return w->fine_codes ? SL_KIND_W2_PLAIN : SL_KIND_W2;
    case SL_FMT_W16:
        return SL_KIND_W1;
    default:
        return SL_KIND_W2;
    }
}

sl_cuda_rows rows_of(const struct sl_mat *w)
{
    sl_cuda_rows r = {};
    r.codes = w->codes;
    r.scales = w->scales;
    r.row_scales = w->row_scales;
    r.rows = w->rows;
    r.nb = (w->cols + 31) / 32;
    r.row_bytes = sl_fmt_row_bytes(w->fmt, (uint64_t)w->cols);
    if (w->fmt == SL_FMT_MXFP4 || w->fmt == SL_FMT_M4) r.row_bytes = (size_t)r.nb * 16;
    if (!sl_fmt_is_trellis(w->fmt)) return r;
    r.table = w->table;
    r.row_bytes = (size_t)(w->fmt == SL_FMT_W16 ? (r.nb + 1) / 2 : r.nb) * 8;
    if (w->fmt == SL_FMT_W36) r.plain = w->codes + (size_t)w->rows * r.row_bytes;
    if (w->fmt == SL_FMT_P36 && w->fine_codes) {
        r.plain = w->fine_codes;
        r.table = w->fine_table;
    }
    return r;
}

} // namespace

extern "C" {

enum sl_cuda_order sl_cuda_order_of(enum sl_fmt fmt)
{
    if (fmt == SL_FMT_T4) return SL_CUDA_WOVEN;
    return fmt == SL_FMT_T8 || fmt == SL_FMT_T6 || sl_fmt_is_expert(fmt) ? SL_CUDA_NATURAL
                                                                         : SL_CUDA_NO_ORDER;
}

int sl_cuda_ld_scale(int n_tok)
{
    int n = 1;
    while (n < n_tok && n < 16) n *= 2;
    return n_tok <= 16 ? n : (n_tok + 15) / 16 * 16;
}

void sl_cuda_act_pack(struct sl_cuda *d, const struct sl_cuda_act *a, const float *x, size_t ldx)
{
    const int nb = (a->cols + 31) / 32;
    if (d->failed != cudaSuccess || !nb || !a->n_tok) return;
    pack_kernel<<<dim3((unsigned)((nb + 3) / 4), (unsigned)a->ld_scale), 128, 0, d->stream>>>(
        *a, x, ldx, nb);
    SL_CUDA_LAUNCHED(d, "packing");
}

void sl_cuda_mul_a8(struct sl_cuda *d, const struct sl_cuda_product *p, int n,
                    const struct sl_cuda_act *x, int n_tok, float situ_beta, float situ_linear)
{
    if (d->failed != cudaSuccess || n < 1 || n_tok < 1) return;
    sl_mul_args a = {};
    sl_mul_shape s = {};
    s.kind = kind_of(&p->w);
    s.dual = p->w2.codes != NULL;
    s.n_jobs = n;
    s.rows = p->w.rows;
    s.aligned = true;
    for (int i = 0; i < n; i++) {
        sl_mul_job &j = a.job[i];
        j.m[0] = rows_of(&p[i].w);
        if (s.dual) j.m[1] = rows_of(&p[i].w2);
        j.y = p[i].y;
        j.ldy = p[i].ldy;
        j.tok = p[i].tok;
        for (int m = 0; m < (s.dual ? 2 : 1); m++)
            if (j.m[m].row_bytes % 16 || (uintptr_t)j.m[m].codes % 16) s.aligned = false;
    }
    a.q = x->q;
    a.scale = x->scale;
    a.ld_scale = x->ld_scale;
    a.planes = x->planes;
    a.n_act = x->n_tok;
    a.beta = situ_beta;
    a.linear = situ_linear;
    if (n_tok > 2 && d->info.cc >= 80) {
        a.n_tok = n_tok;
        if (!sl_mma_staged_launch(d, s, a)) sl_mma_launch(d, s, a);
        return;
    }
    for (int t = 0; t < n_tok; t += 2) {
        a.n_tok = n_tok - t < 2 ? n_tok - t : 2;
        sl_gemv_launch(d, s, a);
        for (int i = 0; i < n; i++) {
            a.job[i].tok += 2;
            a.job[i].y += 2 * a.job[i].ldy;
        }
    }
}

void sl_cuda_mul_plain(struct sl_cuda *d, const struct sl_mat *w, const float *x, size_t ldx,
                       int n_tok, float *y, size_t ldy)
{
    if (d->failed != cudaSuccess || n_tok < 1) return;
    if (w->fmt == SL_FMT_F32) plain<F32>(d, w, x, ldx, n_tok, y, ldy);
    if (w->fmt == SL_FMT_BF16) plain<BF16>(d, w, x, ldx, n_tok, y, ldy);
    if (w->fmt == SL_FMT_F16) plain<F16>(d, w, x, ldx, n_tok, y, ldy);
}

} // extern "C"
