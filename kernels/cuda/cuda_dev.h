/* One GPU: memory, copies, one stream, errors. Built with `make CUDA=1` only (SL_HAVE_CUDA).
 *
 * Work is queued on the device's stream in the order of the calls and runs behind the caller's back. A
 * launch returns nothing: the first failure is kept, later launches do nothing, and sl_cuda_sync
 * reports it (SL_E_DEVICE, or SL_E_BUDGET for memory). One thread at a time per device.
 *
 * Which architectures the code was compiled for: CUDA_ARCHS in the Makefile. */
#ifndef SL_KERNELS_CUDA_DEV_H
#define SL_KERNELS_CUDA_DEV_H

#include <stddef.h>
#include "base/err.h"

struct sl_cuda;

struct sl_cuda_info {
    char name[128];
    int cc;       /* compute capability: 90 is 9.0 */
    int n_sm;     /* multiprocessors */
    size_t bytes; /* of device memory */
    size_t free;  /* of them, now */
    size_t l2;
};

/* Number of usable GPUs; 0 where there is no driver, too. */
int sl_cuda_count(void);
/* SL_E_DEVICE when there is no such GPU, or none of the compiled architectures runs on it. */
int sl_cuda_open(struct sl_cuda **out, int device, struct sl_err *err);
void sl_cuda_close(struct sl_cuda *d); /* NULL is fine */
void sl_cuda_get_info(const struct sl_cuda *d, struct sl_cuda_info *out);

/* Device memory, aligned to 256 bytes. SL_E_BUDGET when it is not to be had. */
int sl_cuda_alloc(struct sl_cuda *d, void **out, size_t bytes, struct sl_err *err);
void sl_cuda_free(struct sl_cuda *d, void *p);
/* Copies wait for all work before them and are done on return. */
int sl_cuda_put(struct sl_cuda *d, void *to, const void *from, size_t bytes, struct sl_err *err);
int sl_cuda_get(struct sl_cuda *d, void *to, const void *from, size_t bytes, struct sl_err *err);
/* Queued like a launch. */
void sl_cuda_copy(struct sl_cuda *d, void *to, const void *from, size_t bytes);
void sl_cuda_fill(struct sl_cuda *d, void *to, int byte, size_t bytes);
/* Waits for all queued work. */
int sl_cuda_sync(struct sl_cuda *d, struct sl_err *err);

/* Device time from start to stop in milliseconds; waits for the work between. */
void sl_cuda_start(struct sl_cuda *d);
int sl_cuda_stop(struct sl_cuda *d, double *ms, struct sl_err *err);

/* Reads `bytes` (a multiple of 16) of device memory and keeps a checksum in *sum (device, 4 bytes): what
 * bandwidth a kernel can reach that does nothing but read. */
void sl_cuda_read(struct sl_cuda *d, const void *from, size_t bytes, unsigned *sum);

#endif
