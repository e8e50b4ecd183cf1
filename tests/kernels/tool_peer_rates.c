/* Our packed products beside those of a ggml library, on one core, in turns.
 *
 *   tool_peer_rates libggml-base.so libggml-cpu.so [turns]
 *
 * A pair is one of our formats and one of theirs of about the same size. Both multiply the same shape
 * (a K3 expert's w1: 3072 x 3584) with one token whose activations are int8 already; ours with one and
 * with two planes, theirs with the type that its product asks for. Arms take turns and the median of a
 * thread's own time counts, so that other work on the machine falls on all of them. Codes are random
 * bytes whose scales are ordinary numbers: speed does not depend on the rest. Another library's
 * functions are looked up by name at run time; nothing of it is needed to build this. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/act.h"
#include "kernels/kernels.h"

enum { ROWS = 3072, COLS = 3584, MAX_TURNS = 101, N_ARMS = 4 };

/* Of ggml's public headers: what a type's CPU table holds. */
typedef void (*from_float_fn)(const float *x, void *y, int64_t n);
typedef void (*vec_dot_fn)(int n, float *s, size_t bs, const void *x, size_t bx, const void *y,
                           size_t by, int nrc);
struct peer_traits {
    from_float_fn from_float;
    vec_dot_fn vec_dot;
    int act_type;
    int64_t n_rows;
};
typedef const struct peer_traits *(*traits_fn)(int type);
typedef size_t (*row_size_fn)(int type, int64_t n);
typedef const char *(*type_name_fn)(int type);
typedef void (*init_fn)(void);

static const struct {
    enum sl_fmt ours;
    int theirs; /* number of the type in the GGUF format */
} pairs[] = {{SL_FMT_W16, 19}, {SL_FMT_W16, 29},   {SL_FMT_W26, 16}, {SL_FMT_W26, 17},
             {SL_FMT_W26, 10}, {SL_FMT_W36, 18},   {SL_FMT_W36, 21}, {SL_FMT_W36, 11},
             {SL_FMT_M4, 39},  {SL_FMT_MXFP4, 39}, {SL_FMT_M4, 2},   {SL_FMT_T4, 12},
             {SL_FMT_T4, 23},  {SL_FMT_T6, 14},    {SL_FMT_T8, 8}};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

static uint8_t codes[(size_t)ROWS * COLS * 2], scales[(size_t)ROWS * COLS / 32], rows[2 * ROWS];
static uint8_t table[256];
static float x[COLS], y[ROWS];

static double own_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double p = *(const double *)a, q = *(const double *)b;
    return (p > q) - (p < q);
}

static double median(double *t, int n)
{
    qsort(t, (size_t)n, sizeof *t, by_value);
    return t[n / 2];
}

static uint64_t our_bytes(const struct sl_mat *w)
{
    struct sl_planes p;
    sl_fmt_planes(w->fmt, ROWS, COLS, &p);
    return p.codes + p.scales + p.row_scales + p.table;
}

static void print_rate(double seconds, double bytes)
{
    printf(" | %6.2f %6.2f", (double)ROWS * COLS / seconds * 1e-9, bytes / seconds * 1e-9);
}

static int run_pair(int i, int turns, traits_fn traits, row_size_fn row_size, type_name_fn name)
{
    const struct peer_traits *peer = traits(pairs[i].theirs);
    if (!peer || !peer->vec_dot || peer->act_type < 0) return 0;
    const struct peer_traits *act_of = traits(peer->act_type);
    const size_t stride = row_size(pairs[i].theirs, COLS);
    static uint8_t peer_act[COLS * 8];
    static int8_t q[2][4 * COLS];
    static float s[2][COLS / 32];
    if (!act_of || !act_of->from_float || stride * ROWS > sizeof codes ||
        row_size(peer->act_type, COLS) > sizeof peer_act)
        return 0;
    act_of->from_float(x, peer_act, COLS);
    struct sl_mat w = {.fmt = pairs[i].ours,
                       .rows = ROWS,
                       .cols = COLS,
                       .codes = codes,
                       .scales = scales,
                       .row_scales = rows,
                       .table = table};
    /* scales as of a trained matrix: no number comes near the ends of f32 */
    for (size_t k = 0; k < sizeof scales; k++)
        scales[k] = (uint8_t)(w.fmt == SL_FMT_MXFP4 ? 116 + k % 4 : k * 7 & 0x33);
    for (size_t k = 0; k < sizeof rows; k++)
        rows[k] = (uint8_t)(w.fmt == SL_FMT_M4 ? 119 : k % 2 ? 0x21 : k & 255);
    struct sl_act act[2];
    for (int p = 0; p < 2; p++) {
        act[p] = (struct sl_act){.order = sl_act_order_of(w.fmt),
                                 .cols = COLS,
                                 .n_tok = 1,
                                 .planes = p + 1,
                                 .q = q[p],
                                 .scale = s[p]};
        sl_act_pack(act[p].order, p + 1, x, COLS, q[p], s[p]);
    }
    struct sl_kernels k;
    sl_kernels_init(&k, sl_cpu_detect());
    const sl_mul_a8_fn mul = sl_mul_a8_for(sl_cpu_detect());
    double t[N_ARMS][MAX_TURNS];
    for (int turn = 0; turn < turns; turn++) {
        double at[N_ARMS + 1];
        at[0] = own_time();
        mul(&w, 0, ROWS, &act[0], y, ROWS);
        at[1] = own_time();
        mul(&w, 0, ROWS, &act[1], y, ROWS);
        at[2] = own_time();
        k.mul(&w, 0, ROWS, x, COLS, 1, y, ROWS);
        at[3] = own_time();
        for (size_t r = 0; r < ROWS; r++)
            peer->vec_dot(COLS, y + r, 0, codes + r * stride, 0, peer_act, 0, 1);
        at[4] = own_time();
        for (int a = 0; a < N_ARMS; a++) t[a][turn] = at[a + 1] - at[a];
    }
    double m[N_ARMS];
    for (int a = 0; a < N_ARMS; a++) m[a] = median(t[a], turns);
    const double bytes = (double)our_bytes(&w);
    printf("%-6s %-8s %5.3f %5.3f", sl_fmt_name(w.fmt), name(pairs[i].theirs),
           8 * bytes / ((double)ROWS * COLS), 8 * (double)stride / COLS);
    for (int a = 0; a < 3; a++) print_rate(m[a], bytes);
    print_rate(m[3], (double)stride * ROWS);
    printf(" | %5.2f %5.2f\n", m[3] / m[0], m[3] / m[1]);
    return 1;
}

/* A symbol as a function: the conversion that POSIX asks for. */
static void *symbol(void *lib, const char *name)
{
    void *at = dlsym(lib, name);
    if (!at) fprintf(stderr, "tool_peer_rates: no %s in the library\n", name);
    return at;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: tool_peer_rates libggml-base.so libggml-cpu.so [turns]\n");
        return 2;
    }
    int turns = argc > 3 ? atoi(argv[3]) : 31;
    if (turns < 1 || turns > MAX_TURNS) turns = MAX_TURNS;
    void *base = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    void *cpu = base ? dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!cpu) {
        fprintf(stderr, "tool_peer_rates: %s\n", dlerror());
        return 3;
    }
    union {
        void *p;
        traits_fn f;
    } traits = {symbol(cpu, "ggml_get_type_traits_cpu")};
    union {
        void *p;
        init_fn f;
    } init = {symbol(cpu, "ggml_cpu_init")};
    union {
        void *p;
        row_size_fn f;
    } row_size = {symbol(base, "ggml_row_size")};
    union {
        void *p;
        type_name_fn f;
    } name = {symbol(base, "ggml_type_name")};
    if (!traits.p || !init.p || !row_size.p || !name.p) return 3;
    init.f();

    uint32_t rnd = 1;
    for (size_t i = 0; i < sizeof codes; i++) {
        rnd = rnd * 1664525u + 1013904223u;
        codes[i] = (uint8_t)(rnd >> 24 & 0x3f);
    }
    for (size_t i = 0; i < sizeof table; i++) table[i] = (uint8_t)(i * 37);
    for (size_t i = 0; i < COLS; i++)
        x[i] = (float)((int)(i * 2654435761u >> 20 & 2047) - 1024) * 0x1p-10f;

    printf("%d x %d, one token, one core: G weights/s and packed GB/s, medians of %d turns\n", ROWS,
           COLS, turns);
    printf("%-15s %11s | %13s | %13s | %13s | %13s | %s\n", "ours   theirs", "bits", "a8", "a8x2",
           "f32 exact", "theirs", "a8 and a8x2 to theirs");
    int done = 0;
    for (int i = 0; i < N_PAIRS; i++) done += run_pair(i, turns, traits.f, row_size.f, name.f);
    if (!done) fprintf(stderr, "tool_peer_rates: the library has none of the types\n");
    return done ? 0 : 3;
}
