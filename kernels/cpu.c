/* CPU features, read once from the processor itself, with the operating system's part checked.
 *
 * SLUICE_ISA caps the answer so that tests and users reach every rung; a cap above what the machine
 * has changes nothing. A wrong word there is ignored: the fastest path is never wrong, only one
 * among equals. */
#include <stdlib.h>
#include <string.h>
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

static unsigned detect(void)
{
    unsigned a, b, c, d, mask = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const unsigned need = fma | osxsave | avx | f16c;
    if ((c & need) != need) return 0;
    unsigned xcr0, high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & 0x06) != 0x06) return 0; /* xmm and ymm are saved */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const unsigned avx2 = 1u << 5, bmi2 = 1u << 8;
    if ((b & (avx2 | bmi2)) != (avx2 | bmi2)) return 0;
    mask |= SL_CPU_AVX2;
    const unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    const unsigned all = f | dq | bw | vl;
    if ((b & all) != all || (xcr0 & 0xe0) != 0xe0) return mask; /* opmask and zmm are saved */
    mask |= SL_CPU_AVX512;
    if (c & 1u << 11) mask |= SL_CPU_AVX512VNNI;
    if (c & 1u << 1) mask |= SL_CPU_AVX512VBMI;
    return mask;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static unsigned detect(void)
{
    const unsigned long asimddp = 1ul << 20; /* HWCAP bit of the kernel's ABI */
    return SL_CPU_NEON | ((getauxval(AT_HWCAP) & asimddp) ? SL_CPU_NEONDOT : 0);
}
#else
static unsigned detect(void)
{
    return 0;
}
#endif

unsigned sl_cpu_detect(void)
{
    unsigned cpu = detect();
    const char *cap = getenv("SLUICE_ISA");
    if (!cap) return cpu;
    if (strcmp(cap, "c") == 0) return 0;
    if (strcmp(cap, "avx2") == 0) return cpu & SL_CPU_AVX2;
    if (strcmp(cap, "avx512") == 0) return cpu & (SL_CPU_AVX2 | SL_CPU_AVX512);
    if (strcmp(cap, "neon") == 0) return cpu & SL_CPU_NEON;
    return cpu;
}

const char *sl_cpu_name(unsigned cpu)
{
    if (cpu & SL_CPU_AVX512) {
        static const char *const names[] = {"avx512", "avx512+vnni", "avx512+vbmi",
                                            "avx512+vnni+vbmi"};
        return names[(cpu & SL_CPU_AVX512VNNI ? 1 : 0) + (cpu & SL_CPU_AVX512VBMI ? 2 : 0)];
    }
    if (cpu & SL_CPU_AVX2) return "avx2";
    if (cpu & SL_CPU_NEON) return cpu & SL_CPU_NEONDOT ? "neon+dot" : "neon";
    return "c";
}

/* Features that no slot uses yet add no rung. */
int sl_cpu_rungs(unsigned cpu, unsigned rungs[SL_CPU_RUNGS])
{
    int n = 0;
    rungs[n++] = 0;
    if (cpu & SL_CPU_AVX2) rungs[n++] = SL_CPU_AVX2;
    if (cpu & SL_CPU_AVX512) rungs[n++] = SL_CPU_AVX2 | SL_CPU_AVX512;
    if (cpu & SL_CPU_NEON) rungs[n++] = SL_CPU_NEON;
    return n;
}
