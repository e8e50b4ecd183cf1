/* Arithmetics of one KDA head (kda_variants.h): plain loops, written to be read. */
#include "tests/runtime/kda_variants.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { T = KDA_TILE };

static float bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return x;
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000; /* to nearest, ties to even */
    memcpy(&x, &u, sizeof x);
    return x;
}

bool kda_open(struct kda_head *h, enum kda_how how, int d)
{
    size_t n = (size_t)d * (size_t)d;
    *h = (struct kda_head){.how = how, .d = d};
    h->S64 = calloc(n, sizeof *h->S64);
    h->S = calloc(n, sizeof *h->S);
    return h->S64 && h->S;
}

void kda_close(struct kda_head *h)
{
    free(h->S64);
    free(h->S);
}

static void step_f64(struct kda_head *h, const struct kda_tokens *t, size_t at, double beta,
                     double *o)
{
    const size_t d = (size_t)h->d;
    for (size_t j = 0; j < d; j++) o[j] = 0;
    for (size_t i = 0; i < d; i++) { /* o holds k S of the decayed state first */
        double a = exp((double)t->g[at + i]), k = (double)t->k[at + i];
        for (size_t j = 0; j < d; j++) o[j] += k * (h->S64[i * d + j] *= a);
    }
    for (size_t j = 0; j < d; j++) o[j] = beta * ((double)t->v[at + j] - o[j]);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) h->S64[i * d + j] += (double)t->k[at + i] * o[j];
    for (size_t j = 0; j < d; j++) {
        double s = 0;
        for (size_t i = 0; i < d; i++) s += (double)t->q[at + i] * h->S64[i * d + j];
        o[j] = s;
    }
}

/* c [n][m] = a [n][d] b [d][m], operands rounded when asked. */
static void product(float *c, const float *a, const float *b, int n, int d, int m, bool round,
                    bool transposed)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            float s = 0;
            for (int k = 0; k < d; k++) {
                float x = a[i * d + k], y = transposed ? b[j * d + k] : b[k * m + j];
                s += round ? bf16(x) * bf16(y) : x * y;
            }
            c[i * m + j] = s;
        }
}

static bool tile(struct kda_head *h, const struct kda_tokens *t, int first, double *o, bool round)
{
    const int d = h->d;
    const size_t n = (size_t)T * (size_t)d, at = (size_t)first * (size_t)d;
    float *m = calloc(7 * n, sizeof *m);
    if (!m) return false;
    float *up = m, *down = m + n, *query = m + 2 * n, *rest = m + 3 * n, *w = m + 4 * n,
          *y = m + 5 * n, *total = m + 6 * n;
    float pairs[T * T], reads[T * T];
    for (int c = 0; c < d; c++) {
        float G[T], sum = 0;
        for (int i = 0; i < T; i++) G[i] = sum += t->g[at + (size_t)(i * d + c)];
        total[c] = expf(sum);
        for (int i = 0; i < T; i++) {
            const size_t x = (size_t)(i * d + c);
            up[x] = t->k[at + x] * expf(G[i]);
            down[x] = t->k[at + x] * expf(-G[i]);
            query[x] = t->q[at + x] * expf(G[i]);
            rest[x] = t->k[at + x] * expf(sum - G[i]);
        }
    }
    product(pairs, up, down, T, d, T, round, true);
    product(reads, query, down, T, d, T, round, true);
    product(y, up, h->S, T, d, d, round, false);
    for (int i = 0; i < T; i++) /* forward substitution, always in f32 */
        for (int j = 0; j < d; j++) {
            float s = t->v[at + (size_t)(i * d + j)] - y[i * d + j];
            for (int k = 0; k < i; k++) s -= pairs[i * T + k] * w[k * d + j];
            w[i * d + j] = t->beta[first + i] * s;
        }
    for (int i = 0; i < T; i++)
        for (int k = i + 1; k < T; k++) reads[i * T + k] = 0;
    product(y, query, h->S, T, d, d, round, false);
    for (size_t i = 0; i < n; i++) o[i] = (double)y[i];
    product(y, reads, w, T, T, d, round, false);
    for (size_t i = 0; i < n; i++) o[i] += (double)y[i];
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++) {
            float s = 0;
            for (int k = 0; k < T; k++) {
                float a = rest[k * d + i], b = w[k * d + j];
                s += round ? bf16(a) * bf16(b) : a * b;
            }
            h->S[i * d + j] = total[i] * h->S[i * d + j] + s;
        }
    free(m);
    return true;
}

void kda_run(struct kda_head *h, const struct sl_kernels *k, const struct kda_tokens *t, double *o)
{
    const int d = h->d;
    const size_t n = (size_t)d * (size_t)d;
    float *alpha = malloc((size_t)d * 2 * sizeof *alpha), *out = alpha + d;
    if (!alpha) abort();
    for (int i = 0; i < t->n; i++) {
        const size_t at = (size_t)i * (size_t)d;
        if (h->how == KDA_F64) {
            step_f64(h, t, at, (double)t->beta[i], o + at);
            continue;
        }
        if (h->how == KDA_TILE_F32 || h->how == KDA_TILE_BF16) {
            if (i % T == 0 && !tile(h, t, i, o + at, h->how == KDA_TILE_BF16)) abort();
            continue;
        }
        k->exp(alpha, t->g + at, d);
        for (int j = 0; j < d && h->how == KDA_DECAY_BF16; j++) alpha[j] = bf16(alpha[j]);
        k->kda_step(h->S, t->q + at, t->k + at, t->v + at, alpha, t->beta[i], out, d);
        for (int j = 0; j < d; j++) o[at + (size_t)j] = (double)out[j];
        if (h->how == KDA_STATE_BF16 || (h->how == KDA_COMMIT && i % T == T - 1))
            for (size_t j = 0; j < n; j++) h->S[j] = bf16(h->S[j]);
    }
    free(alpha);
}

double kda_error(const double *o, const double *ref, size_t n)
{
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        e += (o[i] - ref[i]) * (o[i] - ref[i]);
        s += ref[i] * ref[i];
    }
    e = sqrt(e / s);
    return isfinite(e) ? e : (double)NAN;
}

double kda_state_error(const struct kda_head *h, const struct kda_head *ref)
{
    const size_t n = (size_t)h->d * (size_t)h->d;
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)h->S[i] - ref->S64[i];
        e += d * d;
        s += ref->S64[i] * ref->S64[i];
    }
    e = sqrt(e / s);
    return isfinite(e) ? e : (double)NAN;
}
