/* What a core can do at most, measured beside the kernels (bench_kernels.c): fused float products a second
 * from registers, and bytes a second from memory. */
#ifndef SL_KERNELS_ROOF_H
#define SL_KERNELS_ROOF_H

#include <stddef.h>

/* Both return a number that depends on all the work, so that none of it is left out. */
struct sl_roof {
    float (*fma)(int rounds); /* products: rounds * fma_products */
    int fma_products;
    float (*read)(const float *p, size_t n); /* n a multiple of 64 */
};
/* For a SL_CPU_* mask. */
struct sl_roof sl_roof_for(unsigned cpu);

#endif
