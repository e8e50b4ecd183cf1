/* The device behind cuda_dev.h. One stream; plain device memory, never managed. */
#include <stdlib.h>
#include <stdio.h>
#include "kernels/cuda/cuda_part.cuh"

namespace
{

__global__ void read_kernel(const uint4 *from, size_t n, unsigned *sum)
{
    unsigned s = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = __ldcs(from + i + k * step);
#pragma unroll
        for (int k = 0; k < 4; k++) s += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += step) {
        const uint4 v = __ldcs(from + i);
        s += v.x ^ v.y ^ v.z ^ v.w;
    }
    atomicAdd(sum, s);
}

int fail(struct sl_err *err, cudaError_t e, const char *what)
{
    return sl_fail(err, e == cudaErrorMemoryAllocation ? SL_E_BUDGET : SL_E_DEVICE, NULL, what,
                   "%s", cudaGetErrorString(e));
}

int failure(struct sl_cuda *d, cudaError_t e, const char *what, struct sl_err *err)
{
    sl_cuda_note(d, e, what);
    return d->failed == cudaSuccess ? 0 : fail(err, d->failed, d->where);
}

} // namespace

extern "C" {

int sl_cuda_count(void)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    return e == cudaSuccess ? n : 0;
}

int sl_cuda_open(struct sl_cuda **out, int device, struct sl_err *err)
{
    *out = NULL;
    const int n = sl_cuda_count();
    if (device < 0 || device >= n)
        return sl_fail(err, SL_E_DEVICE, NULL, "GPU", "number %d of %d", device, n);
    struct sl_cuda *d = (struct sl_cuda *)calloc(1, sizeof *d);
    if (!d) return sl_fail(err, SL_E_NOMEM, NULL, "GPU", "no memory");
    cudaDeviceProp p;
    cudaFuncAttributes a;
    size_t all = 0;
    d->device = device;
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, device);
    /* No machine code for this GPU shows here, and not as a silent first launch. */
    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, read_kernel);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaEventCreate(&d->from);
    if (e == cudaSuccess) e = cudaEventCreate(&d->to);
    if (e == cudaSuccess) e = cudaMemGetInfo(&d->info.free, &all);
    if (e != cudaSuccess) {
        sl_cuda_close(d);
        return sl_fail(err, SL_E_DEVICE, NULL, "GPU", "number %d: %s", device,
                       cudaGetErrorString(e));
    }
    snprintf(d->info.name, sizeof d->info.name, "%.120s", p.name);
    d->info.cc = p.major * 10 + p.minor;
    d->info.n_sm = p.multiProcessorCount;
    d->info.bytes = p.totalGlobalMem;
    d->info.l2 = (size_t)p.l2CacheSize;
    d->shared_max = p.sharedMemPerBlockOptin;
    *out = d;
    return 0;
}

void sl_cuda_close(struct sl_cuda *d)
{
    if (!d) return;
    if (d->stream) {
        (void)cudaStreamSynchronize(d->stream);
        (void)cudaStreamDestroy(d->stream);
    }
    if (d->from) (void)cudaEventDestroy(d->from);
    if (d->to) (void)cudaEventDestroy(d->to);
    free(d);
}

void sl_cuda_get_info(const struct sl_cuda *d, struct sl_cuda_info *out)
{
    size_t all;
    *out = d->info;
    (void)cudaMemGetInfo(&out->free, &all);
}

int sl_cuda_alloc(struct sl_cuda *d, void **out, size_t bytes, struct sl_err *err)
{
    const cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
    (void)d;
    if (e == cudaSuccess) return 0;
    *out = NULL;
    (void)cudaGetLastError();
    return sl_fail(err, e == cudaErrorMemoryAllocation ? SL_E_BUDGET : SL_E_DEVICE, NULL,
                   "device memory", "%zu bytes: %s", bytes, cudaGetErrorString(e));
}

void sl_cuda_free(struct sl_cuda *d, void *p)
{
    if (!p) return;
    (void)cudaStreamSynchronize(d->stream);
    sl_cuda_note(d, cudaFree(p), "free");
}

int sl_cuda_put(struct sl_cuda *d, void *to, const void *from, size_t bytes, struct sl_err *err)
{
    if (d->failed == cudaSuccess)
        sl_cuda_note(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d->stream),
                     "copy to the GPU");
    return sl_cuda_sync(d, err);
}

int sl_cuda_get(struct sl_cuda *d, void *to, const void *from, size_t bytes, struct sl_err *err)
{
    if (d->failed == cudaSuccess)
        sl_cuda_note(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d->stream),
                     "copy from the GPU");
    return sl_cuda_sync(d, err);
}

void sl_cuda_copy(struct sl_cuda *d, void *to, const void *from, size_t bytes)
{
    if (d->failed != cudaSuccess) return;
    sl_cuda_note(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream),
                 "copy on the GPU");
}

void sl_cuda_fill(struct sl_cuda *d, void *to, int byte, size_t bytes)
{
    if (d->failed != cudaSuccess) return;
    sl_cuda_note(d, cudaMemsetAsync(to, byte, bytes, d->stream), "fill");
}

int sl_cuda_sync(struct sl_cuda *d, struct sl_err *err)
{
    return failure(d, cudaStreamSynchronize(d->stream), "wait", err);
}

void sl_cuda_start(struct sl_cuda *d)
{
    sl_cuda_note(d, cudaEventRecord(d->from, d->stream), "clock");
}

int sl_cuda_stop(struct sl_cuda *d, double *ms, struct sl_err *err)
{
    float t = 0;
    sl_cuda_note(d, cudaEventRecord(d->to, d->stream), "clock");
    const int rc = sl_cuda_sync(d, err);
    if (rc) return rc;
    const cudaError_t e = cudaEventElapsedTime(&t, d->from, d->to);
    *ms = (double)t;
    return failure(d, e, "clock", err);
}

void sl_cuda_read(struct sl_cuda *d, const void *from, size_t bytes, unsigned *sum)
{
    if (d->failed != cudaSuccess) return;
    read_kernel<<<d->info.n_sm * 8, 512, 0, d->stream>>>((const uint4 *)from, bytes / 16, sum);
    SL_CUDA_LAUNCHED(d, "read");
}

} // extern "C"
