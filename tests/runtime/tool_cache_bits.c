/* What a decode loses when the state between tokens is kept in fewer bits: the figures of docs/stability.md.
 *
 *   tool_cache_bits PACK IDS [windows] [tokens]     ids as u16; 4 windows of 256
 *
 * Tokens are fed one by one on the exact path. After each, what is kept of it is rounded in place: its row of
 * every MLA layer (latent and shared key part) to int8 with an f16 scale per 32 values, the state of every
 * KDA layer to bf16 (or every 16th, as a tile is committed); keys and values are expanded again from the rounded rows. The session beside it keeps
 * all in f32. KL(f32 || rounded) of the logits, means over all positions and over the last quarter of a
 * window; top-1 agreement. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "runtime/cli_input.h"
#include "runtime/engine.h"
#include "runtime/eval_math.h"

static void die(const char *text)
{
    fprintf(stderr, "tool_cache_bits: %s\n", text);
    exit(1);
}

static void round_q8(float *x, size_t n)
{
    for (size_t b = 0; b < n; b += 32) {
        const size_t end = b + 32 < n ? b + 32 : n;
        float most = 0;
        for (size_t i = b; i < end; i++)
            if (fabsf(x[i]) > most) most = fabsf(x[i]);
        const float s = sl_f16_to_f32(sl_f32_to_f16(most / 127.0f));
        for (size_t i = b; i < end; i++) {
            float q = s > 0 ? rintf(x[i] / s) : 0;
            if (q > 127) q = 127;
            if (q < -127) q = -127;
            x[i] = q * s;
        }
    }
}

static void round_bf16(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
        memcpy(&x[i], &u, sizeof u);
    }
}

/* What the last token left in the state, and all that follows from the rows. */
static void round_state(struct sl_state *st, bool rows, int every)
{
    const struct sl_config *c = st->cfg;
    const size_t row = (size_t)c->kv_lora_rank + (size_t)c->qk_rope_dim;
    const size_t S = (size_t)c->kda_heads * (size_t)c->kda_head_dim * (size_t)c->kda_head_dim;
    for (int l = 0; l < c->n_layers; l++) {
        if (c->is_kda[l] && every && st->position % (uint64_t)every == 0)
            round_bf16(st->kda_S[l], S);
        if (!c->is_kda[l] && rows) round_q8(st->mla_rows[l] + (st->position - 1) * row, row);
    }
    if (rows) st->n_expanded = 0;
}

struct sums {
    double kl, late;
    uint64_t n, n_late, same;
};

static int best_of(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void window(sluice_session *ref, sluice_session *s, const int32_t *ids, int n, bool rows,
                   int every, struct sums *sum)
{
    sluice_error e = {0};
    const int vocab = sluice_vocab_size(s->p);
    sluice_session_reset(ref);
    sluice_session_reset(s);
    for (int t = 0; t < n; t++) {
        if (sluice_feed(ref, ids + t, 1, &e) || sluice_feed(s, ids + t, 1, &e)) die(e.text);
        const float *a = sluice_logits(ref), *b = sluice_logits(s);
        const double kl = sl_eval_kl(a, b, vocab);
        sum->kl += kl;
        sum->n++;
        sum->same += best_of(a, vocab) == best_of(b, vocab);
        if (t >= n - n / 4) {
            sum->late += kl;
            sum->n_late++;
        }
        round_state(s->state, rows, every);
    }
}

int main(int argc, char **argv)
{
    sluice_pack *p;
    sluice_session *ref, *s;
    sluice_error e = {0};
    struct sl_err err = {0};
    struct sl_ids ids = {0};
    if (argc < 3) die("usage: tool_cache_bits PACK IDS [windows] [tokens]");
    const int windows = argc > 3 ? atoi(argv[3]) : 4, n = argc > 4 ? atoi(argv[4]) : 256;
    if (windows < 1 || n < 4) die("at least one window of 4 tokens");
    const sluice_options o = {.exact = 1, .threads = 1, .ctx = (uint64_t)n, .chunk = 1};
    if (sluice_pack_open(&p, argv[1], &o, &e) || sluice_session_open(&ref, p, &o, &e) ||
        sluice_session_open(&s, p, &o, &e))
        die(e.text);
    if (s->state->form & SL_STATE_FAST) die("the exact path is wanted");
    if (sl_input_ids_file(&ids, argv[2], sluice_vocab_size(p), &err)) die(err.text);
    const struct {
        const char *name;
        bool rows;
        int every; /* tokens between two roundings of the KDA states, 0: never */
    } kinds[] = {{"nothing rounded", false, 0},
                 {"MLA rows q8", true, 0},
                 {"KDA state bf16, every token", false, 1},
                 {"KDA state bf16, every 16th", false, 16},
                 {"MLA rows q8, KDA state bf16 every 16th", true, 16}};
    printf(
        "| kept between tokens | KL | KL, last quarter of a window | top-1 |\n|---|---|---|---|\n");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct sums sum = {0};
        for (int w = 0; w < windows; w++) {
            const size_t at = (size_t)w * 4096;
            if (at + (size_t)n > ids.n) die("fewer ids than that");
            window(ref, s, ids.v + at, n, kinds[k].rows, kinds[k].every, &sum);
        }
        printf("| %s | %.2e | %.2e | %.4f |\n", kinds[k].name, sum.kl / (double)sum.n,
               sum.late / (double)sum.n_late, (double)sum.same / (double)sum.n);
        fflush(stdout);
    }
    sl_ids_free(&ids);
    sluice_session_close(s);
    sluice_session_close(ref);
    sluice_pack_close(p);
    return 0;
}
