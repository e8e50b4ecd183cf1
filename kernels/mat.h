/* A matrix in memory: format, shape, and where its planes lie. Weights are never expanded: kernels
 * multiply packed rows. W is [rows][cols] = [out][in], as in the checkpoint. */
#ifndef SL_KERNELS_MAT_H
#define SL_KERNELS_MAT_H

#include "kernels/format.h"

struct sl_mat {
    enum sl_fmt fmt;
    int rows, cols;
    const uint8_t *codes;      /* never NULL for a kernel */
    const uint8_t *scales;     /* NULL when the format has none */
    const uint8_t *row_scales; /* NULL when the format has none */
    const uint8_t *table;      /* NULL when the format has none */
    const uint8_t *fine_codes; /* refinement planes of p36; NULL: the base reading */
    const uint8_t *fine_table;
    /* 0; or codes is NULL and the rows come strip by strip: 1 + number of the part of a stream. Kernels
     * see strips, which have codes. */
    int stream;
};

#endif
