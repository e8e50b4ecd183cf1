/* The random checkpoints against an independent float64 reference: logits at every position and
 * vocabulary entry, intermediate values of seven tokens, greedy continuations, and a control: logits
 * under another epsilon convention must NOT match.
 *
 * tiny-b is built so that likely mistakes show: hidden not a multiple of 32, all head widths
 * different, scaled routing, latents so small that 1e-5 for 1e-6 in the inner norms moves logits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "tests/golden/golden_engine.h"
#include "tests/golden/golden_files.h"

static const struct model {
    const char *name, *source;
    double max_log_prob; /* stated by the checkpoint's goldens for an f32 engine */
    double altnorm;      /* the other convention differs at least this much; 0: hardly at all */
} models[] = {{"tiny-a", "tests/fixtures/tiny-a", 2e-4, 0},
              {"tiny-b", "tests/fixtures/tiny-b", 5e-4, 5e-2}};

static char packs[2][SL_PATH_MAX];

static int make_packs(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) golden_pack(packs[i], models[i].source, SL_FMT_M4, SL_FMT_BF16);
    return 0;
}

static int remove_packs(void **state)
{
    (void)state;
    golden_remove_packs();
    return 0;
}

static void check_logits(int i)
{
    struct golden g;
    golden_load(&g, models[i].source);
    struct golden_engine e;
    golden_open(&e, packs[i], &(struct golden_opts){.threads = 2, .chunk = 300});
    const int vocab = golden_vocab(&e);
    for (int s = 0; s < golden_n_seqs(&g); s++) {
        struct golden_seq q;
        golden_seq_at(&g, s, &q);
        assert_non_null(q.logits);
        float *want = golden_floats(&g, q.logits, (size_t)q.n_ids * (size_t)vocab);
        float *got = malloc(sizeof(float) * (size_t)q.n_ids * (size_t)vocab);
        assert_non_null(got);
        sl_state_reset(e.state);
        golden_feed(&e, q.ids, q.n_ids, got);
        struct golden_diff d;
        golden_compare(&d, got, want, q.n_ids, vocab);
        printf("%s %s: max |log-prob difference| %.2e, top-1 %d of %d clear rows\n", models[i].name,
               q.name, d.max_log_prob, d.clear_rows - d.top1_wrong, d.clear_rows);
        assert_true(d.max_log_prob < models[i].max_log_prob);
        assert_int_equal(d.top1_wrong, 0);
        assert_true(d.clear_rows > 0);
        free(got);
        free(want);
    }
    golden_close(&e);
    golden_free(&g);
}

static void check_greedy(int i)
{
    struct golden g;
    golden_load(&g, models[i].source);
    struct golden_engine e;
    golden_open(&e, packs[i], &(struct golden_opts){.chunk = 64});
    const int vocab = golden_vocab(&e);
    float *row = malloc(sizeof(float) * (size_t)vocab);
    assert_non_null(row);
    int continued = 0;
    for (int s = 0; s < golden_n_seqs(&g); s++) {
        struct golden_seq q;
        golden_seq_at(&g, s, &q);
        if (!q.n_next) continue;
        struct sl_err err = {0};
        sl_state_reset(e.state);
        assert_int_equal(sl_graph_feed(e.graph, e.state, q.ids, q.n_ids, row, 1, &err), 0);
        for (int t = 0; t < q.n_next; t++) {
            const int32_t id = golden_argmax(row, vocab);
            if (id != q.next[t])
                fail_msg("%s %s: token %d is %d, golden %d", models[i].name, q.name, t, id,
                         q.next[t]);
            assert_int_equal(sl_graph_feed(e.graph, e.state, &id, 1, row, 1, &err), 0);
        }
        continued++;
    }
    assert_true(continued > 0);
    free(row);
    golden_close(&e);
    golden_free(&g);
}

/* ---- trace */

#define POINTS 6

struct seen {
    const struct sl_config *c;
    int n;                 /* tokens */
    float *arrays[POINTS]; /* by enum sl_point: [layers][n][hidden] */
    int *ids;              /* [layers][n][k] */
    float *weights, *margins;
};

static void see(void *ctx, enum sl_point point, int layer, uint64_t position, int n_tokens,
                const void *data)
{
    struct seen *s = ctx;
    const size_t hidden = (size_t)s->c->hidden_size;
    if (point < POINTS) {
        const int at = point == SL_POINT_FINAL ? 0 : layer;
        memcpy(s->arrays[point] + ((size_t)at * (size_t)s->n + position) * hidden, data,
               sizeof(float) * hidden * (size_t)n_tokens);
    }
    if (point != SL_POINT_ROUTE) return;
    const struct sl_route *r = data;
    const size_t k = (size_t)s->c->top_k;
    for (int t = 0; t < n_tokens; t++) {
        const size_t row = (size_t)layer * (size_t)s->n + position + (size_t)t;
        memcpy(s->ids + row * k, r[t].ids, sizeof(int) * k);
        memcpy(s->weights + row * k, r[t].weights, sizeof(float) * k);
        s->margins[row] = r[t].margin;
    }
}

static void seen_init(struct seen *s, const struct sl_config *c, int n)
{
    const size_t rows = (size_t)c->n_layers * (size_t)n;
    *s = (struct seen){.c = c, .n = n};
    for (int i = 0; i < POINTS; i++)
        s->arrays[i] = calloc(rows * (size_t)c->hidden_size, sizeof(float));
    s->ids = calloc(rows * (size_t)c->top_k, sizeof(int));
    s->weights = calloc(rows * (size_t)c->top_k, sizeof(float));
    s->margins = calloc(rows, sizeof(float));
}

static void seen_free(struct seen *s)
{
    for (int i = 0; i < POINTS; i++) free(s->arrays[i]);
    free(s->ids);
    free(s->weights);
    free(s->margins);
}

/* Largest difference over the largest golden magnitude; the array's layers picked from got. */
static double relative(const struct golden_array *a, const float *got, size_t per_layer)
{
    double max = 0;
    double diff = 0;
    const int n_layers = a->n_layers ? a->n_layers : 1;
    assert_int_equal(a->count, (size_t)n_layers * per_layer);
    for (int l = 0; l < n_layers; l++) {
        const float *mine = got + (size_t)(a->n_layers ? a->layers[l] : 0) * per_layer;
        const float *want = a->f + (size_t)l * per_layer;
        for (size_t i = 0; i < per_layer; i++) {
            max = fmax(max, fabs((double)want[i]));
            const double one = fabs((double)mine[i] - want[i]);
            if (!(one <= diff)) diff = one;
        }
    }
    return diff / max;
}

static void check_array(const char *model, const char *name, double rel)
{
    printf("%s trace %s: %.2e of the largest\n", model, name, rel);
    assert_true(rel < 1e-4);
}

static void check_state(const struct golden *g, const char *bytes, const char *model,
                        const struct sl_state *st)
{
    static const char *const names[] = {"kda_state", "kda_conv"};
    for (int i = 0; i < 2; i++) {
        struct golden_array a;
        golden_trace_array(g, bytes, names[i], &a);
        const size_t per = a.count / (size_t)a.n_layers;
        float *mine = calloc((size_t)st->cfg->n_layers * per, sizeof(float));
        assert_non_null(mine);
        for (int l = 0; l < a.n_layers; l++) {
            float *const *from = i ? st->kda_conv : st->kda_S;
            memcpy(mine + (size_t)a.layers[l] * per, from[a.layers[l]], sizeof(float) * per);
        }
        check_array(model, names[i], relative(&a, mine, per));
        free(mine);
    }
}

static void check_routes(const struct golden *g, const char *bytes, const char *model,
                         const struct seen *s)
{
    struct golden_array ids;
    struct golden_array a;
    golden_trace_array(g, bytes, "router_ids", &ids);
    const size_t per = (size_t)s->n * (size_t)s->c->top_k;
    for (int l = 0; l < ids.n_layers; l++)
        assert_memory_equal(s->ids + (size_t)ids.layers[l] * per, ids.i + (size_t)l * per,
                            sizeof(int) * per);
    golden_trace_array(g, bytes, "router_weights", &a);
    check_array(model, "router_weights", relative(&a, s->weights, per));
    golden_trace_array(g, bytes, "router_margin", &a);
    check_array(model, "router_margin", relative(&a, s->margins, (size_t)s->n));
}

static void check_trace(int i, int chunk)
{
    static const char *const names[POINTS] = {
        [SL_POINT_ATTN_IN] = "attn_in", [SL_POINT_ATTN_OUT] = "attn_out",
        [SL_POINT_FFN_IN] = "ffn_in",   [SL_POINT_FFN_OUT] = "ffn_out",
        [SL_POINT_RESID] = "resid",     [SL_POINT_FINAL] = "final"};
    struct golden g;
    golden_load(&g, models[i].source);
    char path[SL_PATH_MAX + 64];
    char *bytes;
    size_t len;
    struct sl_err err = {0};
    snprintf(path, sizeof path, "%s/trace-7.bin", g.dir);
    assert_int_equal(sl_read_file(&bytes, &len, path, 1 << 30, SL_E_SOURCE, &err), 0);
    struct golden_seq q;
    golden_seq_named(&g, "len-7", &q);

    struct golden_engine e;
    golden_open(&e, packs[i], &(struct golden_opts){.chunk = chunk});
    const struct sl_config *c = &e.pack->cfg;
    struct seen s;
    seen_init(&s, c, q.n_ids);
    sl_graph_observe(e.graph, &(struct sl_observer){.see = see, .ctx = &s});
    golden_feed(&e, q.ids, q.n_ids, NULL);

    for (int p = 0; p < POINTS; p++) {
        struct golden_array a;
        golden_trace_array(&g, bytes, names[p], &a);
        check_array(models[i].name, names[p],
                    relative(&a, s.arrays[p], (size_t)s.n * (size_t)c->hidden_size));
    }
    check_routes(&g, bytes, models[i].name, &s);
    check_state(&g, bytes, models[i].name, e.state);
    seen_free(&s);
    golden_close(&e);
    golden_free(&g);
    free(bytes);
}

/* ---- the other convention */

static void check_altnorm(int i)
{
    struct golden g;
    golden_load(&g, models[i].source);
    struct golden_engine e;
    golden_open(&e, packs[i], &(struct golden_opts){0});
    const int vocab = golden_vocab(&e);
    struct golden_seq q;
    golden_seq_named(&g, "len-7", &q);
    const size_t count = (size_t)q.n_ids * (size_t)vocab;
    float *want = golden_floats(&g, "logits-7-altnorm.f32", count);
    float *got = malloc(sizeof(float) * count);
    assert_non_null(got);
    golden_feed(&e, q.ids, q.n_ids, got);
    struct golden_diff d;
    golden_compare(&d, got, want, q.n_ids, vocab);
    printf("%s other epsilons: max |log-prob difference| %.2e\n", models[i].name, d.max_log_prob);
    assert_true(d.max_log_prob > models[i].altnorm);
    free(got);
    free(want);
    golden_close(&e);
    golden_free(&g);
}

static void logits_tiny_a(void **state)
{
    (void)state;
    check_logits(0);
}
static void logits_tiny_b(void **state)
{
    (void)state;
    check_logits(1);
}
static void greedy_tiny_a(void **state)
{
    (void)state;
    check_greedy(0);
}
static void greedy_tiny_b(void **state)
{
    (void)state;
    check_greedy(1);
}
static void trace_tiny_a(void **state)
{
    (void)state;
    check_trace(0, 7);
}
static void trace_tiny_b(void **state)
{
    (void)state;
    check_trace(1, 7);
}
static void trace_in_pieces(void **state)
{
    (void)state;
    check_trace(1, 3); /* 3 + 3 + 1 tokens: the observer sees each piece */
}
static void other_epsilons_differ(void **state)
{
    (void)state;
    check_altnorm(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_tiny_a),   cmocka_unit_test(logits_tiny_b),
        cmocka_unit_test(greedy_tiny_a),   cmocka_unit_test(greedy_tiny_b),
        cmocka_unit_test(trace_tiny_a),    cmocka_unit_test(trace_tiny_b),
        cmocka_unit_test(trace_in_pieces), cmocka_unit_test(other_epsilons_differ)};
    return cmocka_run_group_tests(tests, make_packs, remove_packs);
}
