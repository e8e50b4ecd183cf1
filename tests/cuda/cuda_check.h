/* Shared by the GPU tests: the device or a skip, device copies of arrays, packed matrices on both sides.
 *
 * Random numbers, fills and guarded host arrays are those of kernel_check.h. */
#ifndef SL_TESTS_CUDA_CHECK_H
#define SL_TESTS_CUDA_CHECK_H

#include "kernels/act.h"
#include "kernels/cuda/cuda_dev.h"
#include "kernels/cuda/cuda_mul.h"
#include "tests/kernels/kernel_check.h"

/* Opens the first GPU; without one says SKIP, and every cu_need() skips its test. Returns like main. */
void cu_start(int argc, char **argv, const char *program);
struct sl_cuda *cu_need(void);
void cu_end(void);

/* Device copy of n bytes; room for n bytes, filled with 0xff (NaNs). Failures fail the test. */
void *cu_up(const void *from, size_t n);
void *cu_room(size_t n);
void cu_down(void *to, const void *from, size_t n);
void cu_free(void *p);

enum cu_fill {
    CU_RANDOM, /* any codes, ordinary scales */
    CU_ENDS,   /* codes and tables at their ends */
    CU_EXACT   /* any codes, every block scale a small power of two: sums without rounding */
};
struct cu_matrix {
    struct sl_mat host, gpu;
    uint8_t *bytes;
    void *device;
};
/* fine: with the refinement planes of p36. */
struct cu_matrix cu_matrix(enum sl_fmt fmt, int rows, int cols, enum cu_fill fill, bool fine);
void cu_matrix_free(struct cu_matrix *m);

/* Tokens packed on both sides from the same integers. */
struct cu_act {
    struct sl_act host;
    struct sl_cuda_act gpu;
};
/* q at column c of a block, in the order of each side; scale [n_tok][nb]; all on the host. */
struct cu_act cu_act(enum sl_fmt fmt, int cols, int n_tok, int planes, const int8_t *q,
                     const float *scale);
void cu_act_free(struct cu_act *a);

/* Column of a block at place i of the GPU's order, from the comment of cuda_mul.h. */
int cu_column(enum sl_cuda_order order, int i);

#endif
