/* Helpers of the kernel tests; see kernel_check.h. xorshift64* as the random stream. */
#include "tests/kernels/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

static uint64_t state = 1;
static bool all;
static struct sl_kernels rungs[SL_CPU_RUNGS];
static int n_rungs;

void kc_start(int argc, char **argv, const char *program)
{
    const char *env = getenv("SLUICE_SEED");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t seed = env ? strtoull(env, NULL, 10) : (uint64_t)t.tv_nsec / 1000 + 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0) all = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
    }
    state = seed * 0x9e3779b97f4a7c15u + 1;
    unsigned masks[SL_CPU_RUNGS];
    n_rungs = sl_cpu_rungs(sl_cpu_detect(), masks);
    printf("%s: seed %llu (replay with --seed), rungs:", program, (unsigned long long)seed);
    for (int i = 0; i < n_rungs; i++) {
        sl_kernels_init(&rungs[i], masks[i]);
        printf(" %s", kc_rung_name(i));
    }
    printf("\n");
}

bool kc_all(void)
{
    return all;
}

uint32_t kc_rnd(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)(state * 0x2545f4914f6cdd1du >> 32);
}

int kc_below(int n)
{
    return (int)(((uint64_t)kc_rnd() * (uint32_t)n) >> 32);
}

int kc_rungs(void)
{
    return n_rungs;
}
const struct sl_kernels *kc_rung(int i)
{
    return &rungs[i];
}
const char *kc_rung_name(int i)
{
    return sl_cpu_name(rungs[i].cpu);
}

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float kc_float(enum kc_fill kind)
{
    uint32_t r = kc_rnd(), sign = r & 0x80000000u;
    switch (kind) {
    case KC_WIDE:
        return of_bits(sign | (r & 0x7fffffffu) % 0x7f800000u);
    case KC_MOST:
        return 0x1.fffffep+127f;
    case KC_LEAST:
        return -0x1.fffffep+127f;
    case KC_ZEROS:
        return of_bits(sign);
    case KC_SUBNORMAL:
        return of_bits(sign | (r & 0x7fffffu));
    case KC_INFINITE:
        if (r % 37 == 0) return of_bits(sign | 0x7f800000u);
        break;
    default:
        break;
    }
    return (float)((int32_t)r >> 7) * 0x1p-24f;
}

void kc_fill(float *x, size_t n, enum kc_fill kind)
{
    for (size_t i = 0; i < n; i++) x[i] = kc_float(kind);
}

/* [size_t bytes][offset..][GUARD][bytes][GUARD]; the pointer handed out remembers its base behind it */
struct block {
    unsigned char *base;
    unsigned char *data;
    size_t n;
};
static struct block blocks[64];

static void *guarded(size_t n, size_t offset)
{
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        struct block *b = &blocks[i];
        if (b->base) continue;
        b->base = malloc(n + 2 * GUARD + 64);
        assert_non_null(b->base);
        memset(b->base, GUARD_BYTE, n + 2 * GUARD + 64);
        b->data = b->base + GUARD + offset;
        b->n = n;
        return b->data;
    }
    fail_msg("too many guarded arrays");
    return NULL;
}

static void release(const void *p, const char *what)
{
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        struct block *b = &blocks[i];
        if (!b->base || b->data != p) continue;
        for (unsigned char *q = b->data - GUARD; q < b->data; q++)
            if (*q != GUARD_BYTE) fail_msg("%s: byte written %td before it", what, b->data - q);
        for (size_t k = 0; k < GUARD; k++)
            if (b->data[b->n + k] != GUARD_BYTE) fail_msg("%s: byte written %zu after it", what, k);
        free(b->base);
        b->base = NULL;
        return;
    }
    fail_msg("%s: not a guarded array", what);
}

float *kc_floats(size_t n)
{
    return guarded(n * sizeof(float), (size_t)kc_below(8) * 4);
}
void kc_free(float *p, const char *what)
{
    release(p, what);
}
uint8_t *kc_bytes(size_t n)
{
    return guarded(n, (size_t)kc_below(33));
}
void kc_free_bytes(uint8_t *p, const char *what)
{
    release(p, what);
}

void kc_same(const float *want, const float *got, size_t n, const char *rung, const char *fmt, ...)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a, b;
        memcpy(&a, &want[i], sizeof a);
        memcpy(&b, &got[i], sizeof b);
        if (a == b) continue;
        if (isnan(want[i]) && isnan(got[i])) continue;
        char text[256];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        fail_msg("%s on %s: index %zu of %zu is %a (%.9g), expected %a (%.9g)", text, rung, i, n,
                 (double)got[i], (double)got[i], (double)want[i], (double)want[i]);
    }
}

double kc_ulp(float y, double t)
{
    if (fabs(t) > 0x1.fffffefp+127) return isinf(y) && (y > 0) == (t > 0) ? 0 : INFINITY;
    int e = -125;
    if (fabs(t) >= 0x1p-126) frexp(t, &e);
    return fabs((double)y - t) / ldexp(1, e - 24);
}
