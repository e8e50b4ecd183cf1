/* The trellis search compiled for SSE2, NEON or plain C; see trellis_impl.h. */
#define SL_TRELLIS_NAME(k) sl_trellis_##k##_c
#include "kernels/kernels.h"
#include "kernels/trellis_impl.h"
#include "kernels/trellis_follow_impl.h"

/* The variants live in kernels/x86; declared here because they have no other caller. */
void sl_trellis_k2_avx2(const float *, const float *, const struct sl_trellis_tables *, uint64_t *,
                        uint64_t *, float *);
void sl_trellis_k1_avx2(const float *, const float *, const struct sl_trellis_tables *, uint64_t *,
                        uint64_t *, float *);
void sl_trellis_carry_avx2(float *, const float *, int, const float *, int);
void sl_trellis_follow_avx2(const float *, const float *, const struct sl_trellis_metric *,
                            const struct sl_trellis_tables *, const uint64_t *, uint64_t *,
                            uint64_t *, float *);
void sl_trellis_k2_avx512(const float *, const float *, const struct sl_trellis_tables *,
                          uint64_t *, uint64_t *, float *);
void sl_trellis_k1_avx512(const float *, const float *, const struct sl_trellis_tables *,
                          uint64_t *, uint64_t *, float *);
void sl_trellis_carry_avx512(float *, const float *, int, const float *, int);
void sl_trellis_follow_avx512(const float *, const float *, const struct sl_trellis_metric *,
                              const struct sl_trellis_tables *, const uint64_t *, uint64_t *,
                              uint64_t *, float *);

void sl_trellis_init(struct sl_trellis *t, unsigned cpu)
{
    t->k2 = sl_trellis_k2_c;
    t->k1 = sl_trellis_k1_c;
    t->carry = sl_trellis_carry_c;
    t->follow = sl_trellis_follow_c;
#if defined(__x86_64__)
    if (cpu & SL_CPU_AVX2) {
        t->k2 = sl_trellis_k2_avx2;
        t->k1 = sl_trellis_k1_avx2;
        t->carry = sl_trellis_carry_avx2;
        t->follow = sl_trellis_follow_avx2;
    }
    if (cpu & SL_CPU_AVX512) {
        t->k2 = sl_trellis_k2_avx512;
        t->k1 = sl_trellis_k1_avx512;
        t->carry = sl_trellis_carry_avx512;
        t->follow = sl_trellis_follow_avx512;
    }
#else
    (void)cpu;
#endif
}
