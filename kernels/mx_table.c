/* Filled once, before the first kernel table is handed out; test_formats compares all of it. */
#include "kernels/mx_table.h"

#include <pthread.h>
#include <string.h>
#include "kernels/block_mxfp4.h"

uint8_t sl_mx_table[256][32] __attribute__((aligned(32)));

static void fill(void)
{
    for (int s = 0; s < 256; s++)
        for (int c = 0; c < 16; c++) {
            float v = sl_e2m1[c] * sl_e8m0((uint8_t)s);
            uint32_t bits;
            memcpy(&bits, &v, sizeof bits); /* the lower half is zero: bf16 holds the value */
            sl_mx_table[s][c] = (uint8_t)(bits >> 24);
            sl_mx_table[s][16 + c] = (uint8_t)(bits >> 16);
        }
}

void sl_mx_table_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
}
