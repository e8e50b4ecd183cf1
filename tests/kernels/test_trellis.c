/* The trellis searches: equal bits on every rung, costs that are what the words cost, and the distance
 * from an exact search that tries every start node.
 *
 * The second search here walks the trellis one node and one start at a time in double precision, from
 * the picture in trellis.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/trellis.h"
#include "tests/kernels/kernel_check.h"

enum { L = SL_TRELLIS_LANES, MAX_N = 64 };
enum mode { BASE, PLAIN, JOINT, ONE_BIT, MODES };
enum numbers { TAME, ZEROS, EQUAL, HUGE_ONES, TINY, ON_TABLE, NUMBER_KINDS };
enum weights { NONE, RANDOM, HOLES, ALL_ZERO, WEIGHT_KINDS };

static float t2[64], t3[128];
static float x[MAX_N * L], h[MAX_N * L];

/* About normal. */
static float bell(void)
{
    float s = 0;
    for (int i = 0; i < 6; i++) s += kc_float(KC_TAME);
    return s;
}

static void make_tables(void)
{
    for (int i = 0; i < 64; i++) t2[i] = rintf(45.0f * bell());
    for (int i = 0; i < 128; i++) t3[i] = rintf(45.0f * bell());
}

static struct sl_trellis_tables tables_of(enum mode m)
{
    return (struct sl_trellis_tables){m == PLAIN ? NULL : t2, m == PLAIN || m == JOINT ? t3 : NULL,
                                      0.25f};
}

static int length(enum mode m)
{
    return m == ONE_BIT ? 64 : 32;
}

static void fill_x(enum numbers kind)
{
    for (int i = 0; i < MAX_N * L; i++) {
        x[i] = 45.0f * bell();
        if (kind == ZEROS) x[i] = kc_below(2) ? 0.0f : -0.0f;
        if (kind == EQUAL) x[i] = 31.0f;
        if (kind == HUGE_ONES) x[i] = kc_below(2) ? 1e15f : -1e15f;
        if (kind == TINY) x[i] = 0x1p-140f * (float)kc_below(9);
        if (kind == ON_TABLE) x[i] = t2[kc_below(64)];
    }
}

static const float *fill_h(enum weights kind)
{
    for (int i = 0; i < MAX_N * L; i++) {
        h[i] = kind == ALL_ZERO ? 0.0f : expf(2.0f * bell());
        if (kind == HOLES && kc_below(3)) h[i] = 0.0f;
    }
    return kind == NONE ? NULL : h;
}

/* d of trellis.h in double precision; *bit the plain bit that gives it. */
static double distance(const struct sl_trellis_tables *t, double v, unsigned w, unsigned *bit)
{
    double d = 0;
    *bit = 0;
    if (t->t3) {
        double a = v - t->t3[w], b = v - t->t3[w + 64];
        *bit = b * b <= a * a;
        d = *bit ? b * b : a * a;
    }
    if (!t->t2) return d;
    double e = v - t->t2[w];
    return t->t3 ? (1.0 - t->lambda) * d + t->lambda * e * e : e * e;
}

static double word_cost(const struct sl_trellis_tables *t, enum mode m, int lane, const float *hh,
                        uint64_t word)
{
    int n = length(m);
    double sum = 0;
    for (int s = 0; s < n; s++) {
        unsigned bit;
        unsigned w = 0; /* bit by bit, unlike sl_trellis_window */
        for (int b = 0; b < 6; b++) w |= (unsigned)(word >> ((64 / n * s + b) % 64) & 1) << b;
        assert_int_equal(w, sl_trellis_window(word, s, 64 / n));
        sum += (hh ? (double)hh[s * L + lane] : 1.0) * distance(t, x[s * L + lane], w, &bit);
    }
    return sum;
}

/* Least cost over all cyclic words: one pass for each start node. */
static double exact_cost(const struct sl_trellis_tables *t, enum mode m, int lane, const float *hh)
{
    int n = length(m), k = 64 / n, nodes = 64 >> k;
    double least = INFINITY;
    for (int start = 0; start < nodes; start++) {
        double at[32], next[32];
        for (int i = 0; i < nodes; i++) at[i] = i == start ? 0 : INFINITY;
        for (int s = 0; s < n; s++) {
            for (int i = 0; i < nodes; i++) next[i] = INFINITY;
            for (int w = 0; w < 64; w++) {
                unsigned bit;
                double c =
                    at[w & (nodes - 1)] + (hh ? (double)hh[s * L + lane] : 1.0) *
                                              distance(t, x[s * L + lane], (unsigned)w, &bit);
                if (c < next[w >> k]) next[w >> k] = c;
            }
            memcpy(at, next, sizeof at);
        }
        if (at[start] < least) least = at[start];
    }
    return least;
}

struct result {
    uint64_t word[L], bits[L];
    float cost[L];
};

static struct result search(int rung, enum mode m, const float *hh)
{
    struct sl_trellis s;
    struct sl_trellis_tables t = tables_of(m);
    struct result r;
    memset(&r, 0x5a, sizeof r);
    sl_trellis_init(&s, kc_rung(rung)->cpu);
    (m == ONE_BIT ? s.k1 : s.k2)(x, hh, &t, r.word, r.bits, r.cost);
    return r;
}

/* Words, bits and costs of every rung, on ordinary and on extreme blocks. */
static void same_on_rungs(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        for (int m = 0; m < MODES; m++)
            for (int kind = 0; kind < NUMBER_KINDS; kind++)
                for (int wk = 0; wk < WEIGHT_KINDS; wk++) {
                    make_tables();
                    fill_x((enum numbers)kind);
                    const float *hh = fill_h((enum weights)wk);
                    struct result want = search(0, (enum mode)m, hh);
                    for (int i = 1; i < kc_rungs(); i++) {
                        struct result got = search(i, (enum mode)m, hh);
                        if (memcmp(got.word, want.word, sizeof got.word) ||
                            memcmp(got.bits, want.bits, sizeof got.bits) ||
                            memcmp(got.cost, want.cost, sizeof got.cost))
                            fail_msg("mode %d numbers %d weights %d: %s differs", m, kind, wk,
                                     kc_rung_name(i));
                    }
                }
}

/* The cost returned is that of the word; plain bits choose the nearer value. */
static void costs_are_those_of_words(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++)
        for (int kind = 0; kind < NUMBER_KINDS; kind++)
            for (int wk = 0; wk < WEIGHT_KINDS; wk++) {
                make_tables();
                fill_x((enum numbers)kind);
                const float *hh = fill_h((enum weights)wk);
                struct sl_trellis_tables t = tables_of((enum mode)m);
                struct result r = search(kc_rungs() - 1, (enum mode)m, hh);
                for (int i = 0; i < L; i++) {
                    double c = word_cost(&t, (enum mode)m, i, hh, r.word[i]);
                    assert_true(fabs(c - (double)r.cost[i]) <= 1e-5 * c + 1e-30);
                    if (m != PLAIN && m != JOINT) continue;
                    assert_int_equal(r.bits[i] >> 32, 0);
                    for (int s = 0; kind != HUGE_ONES && s < 32; s++) {
                        unsigned w = sl_trellis_window(r.word[i], s, 2);
                        unsigned b = (unsigned)(r.bits[i] >> s & 1);
                        float v = x[s * L + i];
                        assert_true(fabsf(v - t3[w + 64 * b]) <= fabsf(v - t3[w + 64 * !b]));
                    }
                }
            }
}

/* The exact search is never beaten; two passes lose 2 % at most in the mean. A block whose values lie
 * on a path of the trellis costs nothing, and the search must find it. */
static void near_exact(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++)
        for (int wk = NONE; wk <= HOLES; wk++) {
            double sum = 0, exact = 0;
            for (int round = 0; round < 4; round++) {
                make_tables();
                fill_x(TAME);
                const float *hh = fill_h((enum weights)wk);
                struct sl_trellis_tables t = tables_of((enum mode)m);
                struct result r = search(kc_rungs() - 1, (enum mode)m, hh);
                for (int i = 0; i < L; i++) {
                    double e = exact_cost(&t, (enum mode)m, i, hh);
                    assert_true((double)r.cost[i] >= e * (1 - 1e-5));
                    sum += (double)r.cost[i];
                    exact += e;
                }
            }
            print_message("mode %d weights %d: %.4f of the exact search\n", m, wk, sum / exact);
            assert_true(sum <= exact * 1.02);
        }
    for (int m = 0; m < MODES; m++) {
        make_tables();
        int n = length((enum mode)m);
        if (m == JOINT) continue; /* no path costs nothing under two tables */
        for (int i = 0; i < L; i++) {
            uint64_t word = (uint64_t)kc_rnd() << 32 | kc_rnd();
            for (int s = 0; s < n; s++) {
                unsigned w = sl_trellis_window(word, s, 64 / n);
                x[s * L + i] = m == PLAIN ? t3[w + 64 * kc_below(2)] : t2[w];
            }
        }
        struct result r = search(kc_rungs() - 1, (enum mode)m, NULL);
        int found = 0;
        for (int i = 0; i < L; i++) found += r.cost[i] == 0.0f;
        assert_true(found >= L - 1); /* the free pass may end on another path of cost 0 */
    }
}

/* Lanes do not see each other. */
static void lanes_alone(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++) {
        make_tables();
        fill_x(TAME);
        const float *hh = fill_h(RANDOM);
        struct result all = search(kc_rungs() - 1, (enum mode)m, hh);
        int lane = kc_below(L);
        for (int s = 0; s < MAX_N; s++)
            for (int i = 0; i < L; i++)
                if (i != lane) x[s * L + i] = h[s * L + i] = 0.0f;
        struct result one = search(kc_rungs() - 1, (enum mode)m, hh);
        assert_true(one.word[lane] == all.word[lane] && one.bits[lane] == all.bits[lane]);
        assert_memory_equal(&one.cost[lane], &all.cost[lane], sizeof(float));
    }
}

/* ---- under a whole metric */

static float x2[32 * L], full[32 * 32], weight[32], next[32 * 32];

/* A positive metric: weights that differ, columns that move together; its factor as trellis.h wants it. */
static void make_metric(bool diagonal)
{
    double m[32][32], c[32][32] = {{0}};
    for (int i = 0; i < 32; i++)
        for (int j = 0; j < 32; j++) m[i][j] = i == j ? 0.3 : 0.0;
    for (int k = 0; k < 9 && !diagonal; k++) {
        double v[32];
        for (int i = 0; i < 32; i++) v[i] = (double)bell();
        for (int i = 0; i < 32; i++)
            for (int j = 0; j < 32; j++) m[i][j] += v[i] * v[j];
    }
    for (int i = 0; i < 32 && diagonal; i++) m[i][i] = exp((double)bell());
    for (int j = 31; j >= 0; j--) { /* M = C C', from the last column up */
        for (int i = 0; i <= j; i++) {
            double s = m[i][j];
            for (int k = j + 1; k < 32; k++) s -= c[i][k] * c[j][k];
            c[i][j] = i == j ? sqrt(s) : s; /* divided below, when the pivot is known */
        }
        for (int i = 0; i < j; i++) c[i][j] /= c[j][j];
    }
    for (int i = 0; i < 32; i++) {
        weight[i] = (float)(c[i][i] * c[i][i]);
        for (int j = 0; j < 32; j++) {
            full[i * 32 + j] = (float)m[i][j];
            next[i * 32 + j] = j > i ? (float)(c[i][j] / c[j][j]) : NAN; /* never read */
        }
    }
}

static struct result follow(int rung, enum mode m, const uint64_t start[L])
{
    struct sl_trellis s;
    struct sl_trellis_tables t = tables_of(m);
    const struct sl_trellis_metric metric = {weight, next};
    struct result r;
    memset(&r, 0x5a, sizeof r);
    sl_trellis_init(&s, kc_rung(rung)->cpu);
    s.follow(x, m == JOINT ? x2 : NULL, &metric, &t, start, r.word, r.bits, r.cost);
    return r;
}

/* e M e' of a result, both readings in their shares. */
static double quadratic(enum mode m, const struct result *r, int lane)
{
    double sum = 0;
    for (int reading = 0; reading < 2; reading++) {
        double e[32], q = 0;
        double share = m == JOINT ? (reading ? 0.25 : 0.75) : reading == (m == BASE) ? 1.0 : 0.0;
        for (int j = 0; j < 32; j++) {
            unsigned w = sl_trellis_window(r->word[lane], j, 2);
            unsigned bit = (unsigned)(r->bits[lane] >> j & 1);
            e[j] = reading ? (double)(m == JOINT ? x2 : x)[j * L + lane] - (double)t2[w]
                           : (double)x[j * L + lane] - (double)t3[w | bit << 6];
        }
        for (int i = 0; i < 32; i++)
            for (int j = 0; j < 32; j++) q += e[i] * (double)full[i * 32 + j] * e[j];
        sum += share * q;
    }
    return sum;
}

/* Equal on every rung, on ordinary and extreme blocks; the word closes in the node asked for. */
static void follow_same_on_rungs(void **state)
{
    (void)state;
    for (int m = BASE; m <= JOINT; m++)
        for (int kind = 0; kind < NUMBER_KINDS; kind++) {
            uint64_t start[L];
            make_tables();
            make_metric(kind & 1);
            fill_x((enum numbers)kind);
            memcpy(x2, x, sizeof x2);
            fill_x((enum numbers)kind);
            for (int i = 0; i < L; i++) start[i] = (uint64_t)kc_rnd() << 32 | kc_rnd();
            struct result want = follow(0, (enum mode)m, start);
            for (int i = 0; i < L; i++) assert_int_equal(want.word[i] & 15, start[i] & 15);
            for (int i = 1; i < kc_rungs(); i++) {
                struct result got = follow(i, (enum mode)m, start);
                if (memcmp(got.word, want.word, sizeof got.word) ||
                    memcmp(got.bits, want.bits, sizeof got.bits) ||
                    memcmp(got.cost, want.cost, sizeof got.cost))
                    fail_msg("follow, mode %d numbers %d: %s differs", m, kind, kc_rung_name(i));
            }
        }
}

/* The cost is the quadratic form of the word's errors. Under a diagonal metric the search is exact for
 * its start; under a full one it beats the words that the diagonal alone finds. */
static void follow_costs(void **state)
{
    (void)state;
    for (int m = BASE; m <= JOINT; m++)
        for (int diagonal = 0; diagonal < 2; diagonal++) {
            double plain = 0, followed = 0;
            for (int round = 0; round < 8; round++) {
                make_tables();
                make_metric(diagonal);
                fill_x(TAME);
                memcpy(x2, x, sizeof x2);
                for (int j = 0; j < 32; j++)
                    for (int i = 0; i < L; i++) h[j * L + i] = full[j * 33];
                struct result p = search(kc_rungs() - 1, (enum mode)m, h);
                struct result r = follow(kc_rungs() - 1, (enum mode)m, p.word);
                for (int i = 0; i < L; i++) {
                    double q = quadratic((enum mode)m, &r, i), was = quadratic((enum mode)m, &p, i);
                    assert_true(fabs(q - (double)r.cost[i]) <= 1e-3 * q);
                    if (diagonal) assert_true(fabs(q - was) <= 1e-4 * was);
                    followed += q;
                    plain += was;
                }
            }
            print_message("mode %d: %.4f of the plain search's e M e'\n", m, followed / plain);
            assert_true(diagonal || followed < 0.9 * plain);
        }
}

/* The contract of the carry, one rounding at a time. */
static void carry(void **state)
{
    (void)state;
    enum { MOST = 96, LDF = 131 };
    static float e[MOST * L], f[MOST * LDF];
    for (int n = 0; n <= MOST; n += n < 4 ? 1 : 23) {
        for (int kind = 0; kind <= KC_ZEROS; kind += KC_ZEROS) {
            kc_fill(e, (size_t)MOST * L, (enum kc_fill)kind);
            kc_fill(f, (size_t)MOST * LDF, KC_TAME);
            float from[32 * L], want[32 * L];
            kc_fill(from, sizeof from / sizeof *from, KC_TAME);
            for (int j = 0; j < 32; j++)
                for (int i = 0; i < L; i++) {
                    volatile float sum = 0.0f;
                    for (int a = 0; a < n; a++) {
                        volatile float product = e[a * L + i] * f[a * LDF + j];
                        sum = sum + product;
                    }
                    want[j * L + i] = from[j * L + i] + sum;
                }
            for (int r = 0; r < kc_rungs(); r++) {
                struct sl_trellis s;
                float *got = kc_floats(32 * (size_t)L);
                memcpy(got, from, sizeof from);
                sl_trellis_init(&s, kc_rung(r)->cpu);
                s.carry(got, e, n, f, LDF);
                kc_same(want, got, 32 * (size_t)L, kc_rung_name(r), "carry of %d columns", n);
                kc_free(got, "carry");
            }
        }
    }
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_trellis");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_on_rungs),
        cmocka_unit_test(costs_are_those_of_words),
        cmocka_unit_test(near_exact),
        cmocka_unit_test(lanes_alone),
        cmocka_unit_test(follow_same_on_rungs),
        cmocka_unit_test(follow_costs),
        cmocka_unit_test(carry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
