/* Shared by the kernel tests: a replayable random stream, guarded arrays, fills that are unkind to
 * floats, and comparison of bits.
 *
 * The seed comes from `--seed N`, then from SLUICE_SEED, then from the clock; it is printed. */
#ifndef SL_TESTS_KERNEL_CHECK_H
#define SL_TESTS_KERNEL_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/kernels.h"

/* Reads --seed and --all, prints the seed and the rungs of this machine that will run. */
void kc_start(int argc, char **argv, const char *program);
bool kc_all(void); /* --all: exhaustive where a test has such a mode */

uint32_t kc_rnd(void);
int kc_below(int n); /* 0 .. n-1 */

/* The C reference is slot table 0; the ISA rungs of this machine follow. */
int kc_rungs(void);
const struct sl_kernels *kc_rung(int i);
const char *kc_rung_name(int i);

enum kc_fill {
    KC_TAME,      /* within 1, ordinary */
    KC_WIDE,      /* every exponent of a finite float */
    KC_MOST,      /* the largest finite float */
    KC_LEAST,     /* its negative */
    KC_ZEROS,     /* +0 and -0 */
    KC_SUBNORMAL, /* both signs */
    KC_INFINITE,  /* tame with a few infinities */
    KC_FILLS
};
void kc_fill(float *x, size_t n, enum kc_fill kind);
float kc_float(enum kc_fill kind);

/* n floats on an address that is a multiple of 4 and, more often than not, of nothing larger, with
 * guard bytes on both sides. Freed by kc_free, which checks the guards. */
float *kc_floats(size_t n);
void kc_free(float *p, const char *what);
/* The same for bytes, at any address. */
uint8_t *kc_bytes(size_t n);
void kc_free_bytes(uint8_t *p, const char *what);

/* Fails the running test with case, rung, first differing index and both values, unless got has the
 * bits of want (any NaN equals any NaN). */
void kc_same(const float *want, const float *got, size_t n, const char *rung, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Distance of y from the true value t in units of the last place of t as a float (2^-149 below the
 * normal range); 0 when t is beyond the largest float and y is that infinity. */
double kc_ulp(float y, double t);

#endif
