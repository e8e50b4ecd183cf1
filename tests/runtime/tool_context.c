/* What a decode step's attention costs against the length of the context: one KDA and one MLA layer of the
 * released shape, on synthetic memory.
 *
 *   tool_context [longest context] [threads] [turns]      1048576, all, 5; 2.4 GB at 1,048,576 positions
 *
 * KDA: one token of all 96 heads, state and open tile, the commit of every 16th token shared out. MLA: the
 * fast path's own region (graph_latent.c): absorb, attend, join, values, gate. Projections are not in it.
 *
 * The limits are measured in the same turns, by the same threads, so that other load falls on both: bytes by
 * reading a block as long as the cache, FLOPs by fused multiply-adds on registers. An MLA step cannot take
 * less than the slower of 2,304 bytes a position at the one rate and 96 * 1,088 multiply-adds a position at
 * the other; kv_b (bf16) counts on both sides. Medians over the turns, ratios within a turn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/graph_parts.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { MAX_TURNS = 31, STEPS = 64, MAC_LOOPS = 2000000 };

static uint32_t seed = 1;

static float noise(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) * 0x1p-24f - 0.5f;
}

static bool alone; /* one thread: its own time, whatever else runs */

static double now(void)
{
    struct timespec t;
    clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double p = *(const double *)a, q = *(const double *)b;
    return (p > q) - (p < q);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static float *floats(size_t n)
{
    float *p = aligned_alloc(64, (n * sizeof *p + 63) / 64 * 64);
    if (!p) {
        fprintf(stderr, "tool_context: no memory for %zu MB\n", n * sizeof *p >> 20);
        exit(5);
    }
    return p;
}

/* ---- limits */

static volatile float sink; /* keeps results alive */

#if defined(__x86_64__)
#define MAC_BODY(vec, set, fma)                                                                    \
    vec s[12];                                                                                     \
    const vec a = set(0.999f), b = set(1e-3f);                                                     \
    for (int i = 0; i < 12; i++) s[i] = set((float)i);                                             \
    for (int n = 0; n < MAC_LOOPS; n++) {                                                          \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) s[i] = fma(s[i], a, b);              \
    }                                                                                              \
    for (int i = 1; i < 12; i++) s[0] = fma(s[i], a, s[0]);                                        \
    return ((float *)&s[0])[0];

__attribute__((target("avx2,fma"))) static float macs_avx2(void)
{
    MAC_BODY(__m256, _mm256_set1_ps, _mm256_fmadd_ps)
}
__attribute__((target("avx512f"))) static float macs_avx512(void)
{
    MAC_BODY(__m512, _mm512_set1_ps, _mm512_fmadd_ps)
}
#elif defined(__aarch64__)
static float macs_neon(void)
{
    float32x4_t s[12];
    const float32x4_t a = vdupq_n_f32(0.999f);
    for (int i = 0; i < 12; i++) s[i] = vdupq_n_f32((float)i);
    for (int n = 0; n < MAC_LOOPS; n++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) s[i] = vfmaq_f32(a, s[i], a);
    }
    for (int i = 1; i < 12; i++) s[0] = vaddq_f32(s[0], s[i]);
    return vgetq_lane_f32(s[0], 0);
}
#endif

/* Multiply-adds of one call. */
static double macs(unsigned cpu, float *out)
{
#if defined(__x86_64__)
    if (cpu & SL_CPU_AVX512) {
        *out = macs_avx512();
        return 16.0 * 12 * MAC_LOOPS;
    }
    if (cpu & SL_CPU_AVX2) {
        *out = macs_avx2();
        return 8.0 * 12 * MAC_LOOPS;
    }
#elif defined(__aarch64__)
    if (cpu & SL_CPU_NEON) {
        *out = macs_neon();
        return 4.0 * 12 * MAC_LOOPS;
    }
#endif
    float s = 1.0f;
    for (int n = 0; n < MAC_LOOPS; n++) s = s * 0.999f + 1e-3f;
    *out = s;
    return MAC_LOOPS;
}

struct scene {
    struct sl_graph g;
    struct sl_config c;
    struct sl_layer layer;
    struct sl_state st;
    float *rows;      /* [longest][576] */
    float *S, *tile;  /* KDA, all heads */
    float *q, *k, *v; /* [heads * d], one token */
    float *decay, *o;
    uint64_t longest, position;
    int threads;
    double mac_count[256];
};

static void mac_task(void *ctx, int task, int worker)
{
    struct scene *s = ctx;
    float out;
    (void)worker;
    s->mac_count[task] = macs(s->g.k.cpu, &out);
    if (out == 0.123f) sink = out;
}

enum { READ_PIECE = 1 << 18 }; /* floats */

static void read_task(void *ctx, int task, int worker)
{
    const struct scene *s = ctx;
    const float *p = s->rows + (size_t)task * READ_PIECE;
    uint64_t sum[8] = {0};
    (void)worker;
    for (size_t i = 0; i < READ_PIECE; i += 16) {
        uint64_t x[8];
        memcpy(x, p + i, sizeof x);
        for (int j = 0; j < 8; j++) sum[j] ^= x[j];
    }
    uint64_t all = 0;
    for (int j = 0; j < 8; j++) all ^= sum[j];
    if (all == 1) sink = 1.0f;
}

static double mac_rate(struct scene *s)
{
    const double start = now();
    double n = 0;
    sl_pool_run(s->g.pool, s->threads, mac_task, s);
    const double seconds = now() - start;
    for (int i = 0; i < s->threads; i++) n += s->mac_count[i];
    return n / seconds;
}

static double byte_rate(struct scene *s)
{
    const int pieces =
        (int)(s->longest * (uint64_t)(s->c.kv_lora_rank + s->c.qk_rope_dim) / READ_PIECE);
    const double start = now();
    sl_pool_run(s->g.pool, pieces, read_task, s);
    return (double)pieces * READ_PIECE * sizeof(float) / (now() - start);
}

/* ---- one token */

static void kda_task(void *ctx, int head, int worker)
{
    struct scene *s = ctx;
    const int d = s->c.kda_head_dim;
    const size_t at = (size_t)head * (size_t)d;
    const float beta = 0.5f;
    float *S = s->S + at * (size_t)d, *tile = s->tile + (size_t)head * sl_kda_tile_floats(d);
    float *scratch = sl_graph_scratch(&s->g, worker);
    const int row = (int)(s->position % SL_KDA_TILE);
    const struct sl_kda_rows p = {.S = S,
                                  .tile = tile,
                                  .at = row,
                                  .n = 1,
                                  .d = d,
                                  .q = s->q + at,
                                  .k = s->k + at,
                                  .v = s->v + at,
                                  .g = s->decay + at,
                                  .beta = &beta,
                                  .o = s->o + at,
                                  .ld = (size_t)d,
                                  .scratch = scratch};
    if (row == 0 && s->position) s->g.k.kda_commit(S, tile, SL_KDA_TILE, d, scratch);
    s->g.k.kda_rows(&p);
}

/* Seconds a token, over whole tiles from the position on. */
static double kda_step(struct scene *s, uint64_t position)
{
    const double start = now();
    s->position = position;
    for (int i = 0; i < STEPS; i++, s->position++)
        sl_pool_run(s->g.pool, s->c.kda_heads, kda_task, s);
    return (now() - start) / STEPS;
}

static double mla_step(struct scene *s, uint64_t n_pos)
{
    s->g.part[0] = (struct sl_part){.st = &s->st, .n = 1, .pos = n_pos - 1};
    s->g.n_parts = s->g.n = 1;
    const double start = now();
    int n = 0;
    do {
        sl_graph_latent(&s->g);
        n++;
    } while (n < 3 || now() - start < 0.02);
    return (now() - start) / n;
}

static void open_scene(struct scene *s, uint64_t longest, int threads)
{
    struct sl_err err = {0};
    memset(s, 0, sizeof *s);
    sl_config_k3(&s->c);
    s->longest = longest;
    s->threads = threads;
    s->g.c = &s->c;
    s->g.o = (struct sl_graph_opts){.max_chunk = 1, .max_ctx = longest, .fast = true};
    s->g.n_threads = threads;
    s->g.n_nodes = 1;
    sl_kernels_init(&s->g.k, sl_cpu_detect());
    if (sl_pool_open(&s->g.pool, threads, &err)) {
        fprintf(stderr, "tool_context: %s\n", err.text);
        exit(1);
    }
    const struct sl_config *c = &s->c;
    const size_t row = (size_t)(c->kv_lora_rank + c->qk_rope_dim);
    const size_t d = (size_t)c->kda_head_dim, channels = (size_t)c->kda_heads * d;
    s->rows = floats(longest * row + READ_PIECE);
    for (size_t i = 0; i < longest * row; i++) s->rows[i] = noise();
    s->g.ld_scratch = (sl_graph_latent_scratch(c) + sl_kda_scratch(c->kda_head_dim) + 15) / 16 * 16;
    s->g.scratch = floats(s->g.ld_scratch * (size_t)threads);
    sl_graph_latent_floats(c, longest, &s->g.latent,
                           floats(sl_graph_latent_floats(c, longest, &s->g.latent, NULL)));

    const int kv_rows = c->n_heads * (c->qk_nope_dim + c->v_head_dim);
    uint16_t *w = malloc(sizeof *w * (size_t)kv_rows * (size_t)c->kv_lora_rank);
    if (!w) exit(5);
    for (size_t i = 0; i < (size_t)kv_rows * (size_t)c->kv_lora_rank; i++) {
        const float x = noise() * 0.1f;
        uint32_t u;
        memcpy(&u, &x, sizeof u);
        w[i] = (uint16_t)(u >> 16);
    }
    s->layer.attn.mla.kv_b = (struct sl_mat){
        .fmt = SL_FMT_BF16, .rows = kv_rows, .cols = c->kv_lora_rank, .codes = (const uint8_t *)w};
    s->g.layer = &s->layer;
    s->st.mla_rows = &s->rows;
    s->st.form = SL_STATE_FAST;
    const size_t queries = (size_t)c->n_heads * (size_t)(c->qk_nope_dim + c->qk_rope_dim);
    const size_t values = (size_t)c->n_heads * (size_t)c->v_head_dim;
    s->g.mla.q = floats(queries);
    s->g.mla.gate = floats(values);
    for (size_t i = 0; i < queries; i++) s->g.mla.q[i] = noise();
    for (size_t i = 0; i < values; i++) s->g.mla.gate[i] = noise();

    s->S = floats(channels * d);
    s->tile = floats((size_t)c->kda_heads * sl_kda_tile_floats(c->kda_head_dim));
    memset(s->S, 0, sizeof(float) * channels * d);
    memset(s->tile, 0, sizeof(float) * (size_t)c->kda_heads * sl_kda_tile_floats(c->kda_head_dim));
    float **const vectors[5] = {&s->q, &s->k, &s->v, &s->decay, &s->o};
    for (int i = 0; i < 5; i++) {
        *vectors[i] = floats(channels);
        for (size_t j = 0; j < channels; j++)
            (*vectors[i])[j] = i == 3 ? -2.5f + 5 * noise() * 0.99f : noise() * 0.15f;
    }
}

int main(int argc, char **argv)
{
    const uint64_t longest = argc > 1 ? strtoull(argv[1], NULL, 10) : 1048576;
    const int threads = argc > 2 ? atoi(argv[2]) : sl_cpu_count();
    const int turns = argc > 3 ? atoi(argv[3]) : 5;
    static const uint64_t contexts[] = {1024, 32768, 131072, 524288, 1048576};
    enum { N = sizeof contexts / sizeof *contexts };
    static struct scene s;
    static double kda[N][MAX_TURNS], mla[N][MAX_TURNS], ratio[N][MAX_TURNS], bytes[N * MAX_TURNS],
        flops[N * MAX_TURNS];
    if (longest < 1024 || threads < 1 || threads > 256 || turns < 1 || turns > MAX_TURNS) {
        fprintf(stderr, "usage: tool_context [contexts up to, 1024 or more] [threads] [turns]\n");
        return 2;
    }
    alone = threads == 1;
    open_scene(&s, longest, threads);
    const double row_bytes = 4.0 * (s.c.kv_lora_rank + s.c.qk_rope_dim);
    const double row_macs = (double)s.c.n_heads * (2 * s.c.kv_lora_rank + s.c.qk_rope_dim);
    const double kv_macs = (double)s.layer.attn.mla.kv_b.rows * s.c.kv_lora_rank;
    int n = 0, samples = 0;
    while (n < N && contexts[n] <= longest) n++;
    for (int t = 0; t < turns; t++)
        for (int i = 0; i < n; i++, samples++) {
            const double b = byte_rate(&s), m = mac_rate(&s);
            kda[i][t] = kda_step(&s, contexts[i]);
            mla[i][t] = mla_step(&s, contexts[i]);
            const double m2 = mac_rate(&s), rate = (m + m2) / 2;
            const double by_bytes = (row_bytes * (double)contexts[i] + 2 * kv_macs) / b;
            const double by_macs = (row_macs * (double)contexts[i] + kv_macs) / rate;
            ratio[i][t] = mla[i][t] / (by_bytes > by_macs ? by_bytes : by_macs);
            bytes[samples] = b;
            flops[samples] = 2 * rate;
        }
    printf("%s, %d threads: %.3g GB/s read, %.3g GFLOP/s\n", sl_cpu_name(s.g.k.cpu), threads,
           median(bytes, samples) / 1e9, median(flops, samples) / 1e9);
    printf("| positions | KDA layer, us | to the shortest | MLA layer, us | to its limit |\n"
           "|---|---|---|---|---|\n");
    const double first = median(kda[0], turns);
    for (int i = 0; i < n; i++)
        printf("| %llu | %.0f | %.2f | %.0f | %.2f |\n", (unsigned long long)contexts[i],
               median(kda[i], turns) * 1e6, median(kda[i], turns) / first,
               median(mla[i], turns) * 1e6, median(ratio[i], turns));
    return 0;
}
