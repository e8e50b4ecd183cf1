/* Synthetic packs: bytes that depend on the seed alone, sizes foretold, layers that share bytes on the
 * drive and nothing else, contents that are valid and of the promised size in every format, routing that
 * is skewed as promised when the model runs, and failures that leave nothing. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "base/file.h"
#include "convert/synth.h"
#include "convert/synth_fill.h"
#include "convert/synth_routes.h"
#include "kernels/block_m4.h"
#include "kernels/kernels.h"
#include "offload/pack.h"
#include "quant/m4.h"
#include "runtime/engine.h"
#include "tests/convert/pack_tree.h"

static struct pt_room room;
static struct sl_config cfg; /* 9 layers: KDA and MLA, dense and MoE, columns that fill no block */

static int setup(void **state)
{
    (void)state;
    pt_open(&room);
    sl_config_k3(&cfg);
    cfg.n_layers = 9;
    cfg.hidden_size = 144;
    cfg.vocab_size = 512;
    cfg.intermediate_size = 200;
    cfg.n_heads = 2;
    cfg.q_lora_rank = 48;
    cfg.kv_lora_rank = 40;
    cfg.kda_heads = 3;
    cfg.kda_head_dim = 32;
    cfg.n_experts = 40;
    cfg.top_k = 4;
    cfg.moe_intermediate_size = 96; /* an odd number of blocks, for m4's last nibble */
    cfg.latent_size = 64;
    cfg.bos_id = 300;
    cfg.eos_id = 301;
    cfg.pad_id = 511;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pt_close(&room);
    return 0;
}

static struct sl_synth_opts opts(enum sl_fmt experts, enum sl_fmt trunk)
{
    return (struct sl_synth_opts){
        .cfg = &cfg, .experts = experts, .trunk = trunk, .seed = 7, .jobs = 1};
}

static struct sl_synth_report make(const char *dst, const struct sl_synth_opts *o)
{
    struct sl_synth_report r;
    struct sl_err err = {0};
    if (sl_synth(dst, o, &r, &err)) fail_msg("%s", err.text);
    return r;
}

static void verify(const struct sl_pack *p)
{
    struct sl_verify_report r;
    struct sl_err err = {0};
    if (sl_pack_verify(p, NULL, NULL, NULL, &r, &err)) fail_msg("%s", err.text);
}

/* ---- bytes --------------------------------------------------------------------------------------- */

static void test_seed_alone_decides(void **state)
{
    const char *a = pt_path(&room, "a"), *b = pt_path(&room, "b");
    char why[256];
    (void)state;
    struct sl_synth_opts o = opts(SL_FMT_M4, SL_FMT_T8);
    o.alias_banks = 3;
    make(a, &o);
    o.jobs = 3;
    make(b, &o);
    pt_expect_same(a, b);
    pt_remove(b);
    o.seed = 8;
    make(b, &o);
    assert_false(pt_same(a, b, why, sizeof why));
    pt_remove(a);
    pt_remove(b);
}

static void test_dry_run_is_exact(void **state)
{
    const char *a = pt_path(&room, "a");
    (void)state;
    struct sl_synth_opts o = opts(SL_FMT_MXFP4, SL_FMT_BF16);
    o.alias_trunk = 1;
    o.dry_run = true;
    uint64_t want = make(a, &o).total_bytes;
    assert_false(pt_exists(a));
    o.dry_run = false;
    assert_true(make(a, &o).total_bytes == want);
    assert_true(pt_bytes(a) == want);
    pt_remove(a);
}

/* ---- sharing ------------------------------------------------------------------------------------- */

static void test_layers_share_bytes_on_the_drive(void **state)
{
    const char *a = pt_path(&room, "a"), *b = pt_path(&room, "b");
    (void)state;
    struct sl_synth_opts o = opts(SL_FMT_M4, SL_FMT_T8);
    uint64_t whole = make(b, &o).trunk_bytes;
    o.alias_banks = 3;
    o.alias_trunk = 2;
    struct sl_synth_report r = make(a, &o);
    struct sl_pack *p = pt_open_pack(a);
    struct sl_pack *q = pt_open_pack(b);
    verify(p);
    assert_true(p->synthetic && q->synthetic);
    assert_int_equal(p->n_banks, 3);
    assert_int_equal(q->n_banks, 8);
    assert_true(p->trunk_bytes < whole);
    assert_true(r.unshared_bytes == q->trunk_bytes + sl_pack_bank_bytes(q));
    assert_int_equal(p->n_tensors, q->n_tensors);
    /* 0 KDA and dense; 1 2 4 5 6 8 KDA; 3 7 MLA: the third of a kind is its first again. */
    static const int like[9] = {0, 1, 2, 3, 1, 2, 1, 7, 2};
    for (int l = 0; l < 9; l++) {
        assert_true(p->layer_range[l].offset == p->layer_range[like[l]].offset);
        assert_true(p->layer_range[l].bytes == q->layer_range[l].bytes);
        assert_int_equal(p->bank_of[l], l ? (l - 1) % 3 : -1);
    }
    assert_int_equal(r.n_trunk_layers, 5);
    sl_pack_close(p);
    sl_pack_close(q);
    pt_remove(a);
    pt_remove(b);
}

/* ---- contents ------------------------------------------------------------------------------------ */

/* Also expects no common part: a mean adds up over a row until every output carries it. */
static double rms_of(const struct sl_mat *w)
{
    double sum = 0, mean = 0;
    const double n = (double)w->rows * w->cols;
    float *row = malloc((size_t)w->cols * sizeof *row);
    assert_non_null(row);
    for (int i = 0; i < w->rows; i++) {
        sl_mat_decode_row(w, i, row);
        for (int k = 0; k < w->cols; k++) {
            sum += (double)row[k] * row[k];
            mean += row[k] / n;
        }
    }
    free(row);
    const double rms = sqrt(sum / n);
    if (n > 5000 && !(fabs(mean) < 0.05 * rms)) fail_msg("mean %g of rms %g", mean, rms);
    return rms;
}

/* bf16 and power-of-two scales are up to sqrt(2) off; a NaN fails. */
static void expect_rms(const char *what, double got, double want)
{
    if (!(got > 0.6 * want && got < 1.6 * want)) fail_msg("%s: %g, expected %g", what, got, want);
}

static void check_trunk(const struct sl_pack *p)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sl_tensor *t = &p->tensors[i];
        struct sl_synth_rule rule;
        const int cols = (int)t->shape[t->n_dims - 1];
        sl_synth_rule_of(&rule, &p->cfg, t->name, cols);
        if (t->fmt == SL_FMT_F32 || rule.kind != SL_SYNTH_RANDOM) continue;
        uint8_t *bytes = malloc((size_t)t->bytes);
        struct sl_err err = {0};
        assert_non_null(bytes);
        if (sl_pread_all(p->trunk_fd, bytes, t->bytes, t->offset, "trunk", SL_E_PACK, &err))
            fail_msg("%s", err.text);
        const struct sl_mat w = {
            .fmt = t->fmt, .rows = (int)t->shape[0], .cols = cols, .codes = bytes};
        expect_rms(t->name, rms_of(&w), rule.rms);
        const size_t row_bytes = (size_t)(t->bytes / (uint64_t)t->shape[0]);
        for (int r = 0; t->fmt == SL_FMT_T8 && r < w.rows; r++)
            for (int k = 0; k < (cols + 31) / 32 * 32; k++) {
                const uint8_t code = bytes[(size_t)r * row_bytes + (size_t)k];
                assert_true(code != 0x80 && (k < cols || !code));
            }
        free(bytes);
    }
}

static void check_record(const struct sl_pack *p, const struct sl_bank *b, int expert)
{
    const struct sl_config *c = &p->cfg;
    const struct sl_bank_entry *e = &b->entries[expert];
    struct sl_mat w[SL_N_MATS];
    struct sl_err err = {0};
    uint8_t *record = malloc(e->bytes);
    uint8_t scales[96 * 3];
    assert_non_null(record);
    if (sl_pread_all(b->fd, record, e->bytes, e->offset, b->path, SL_E_PACK, &err))
        fail_msg("%s", err.text);
    sl_record_views(e, record, c->latent_size, c->moe_intermediate_size, w);
    for (int m = 0; m < SL_N_MATS; m++) {
        expect_rms(b->label, rms_of(&w[m]), 1 / sqrt(w[m].cols));
        if (w[m].fmt != SL_FMT_M4) continue;
        assert_true((size_t)w[m].rows * (size_t)(w[m].cols / 32) <= sizeof scales);
        assert_true(sl_m4_decode(w[m].scales, w[m].row_scales, w[m].rows, w[m].cols, scales));
    }
    free(record);
}

static void test_contents_are_valid(void **state)
{
    static const enum sl_fmt experts[] = {SL_FMT_M4,  SL_FMT_MXFP4, SL_FMT_W36,
                                          SL_FMT_P36, SL_FMT_W26,   SL_FMT_W16};
    static const enum sl_fmt trunk[] = {SL_FMT_T8, SL_FMT_BF16, SL_FMT_T6, SL_FMT_T4};
    const char *a = pt_path(&room, "a");
    (void)state;
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) {
        const struct sl_synth_opts o = opts(experts[i], trunk[i % 4]);
        make(a, &o);
        struct sl_pack *p = pt_open_pack(a);
        verify(p);
        check_trunk(p);
        for (int b = 0; b < p->n_banks; b++)
            for (int x = 0; x < cfg.n_experts; x += 13) check_record(p, &p->banks[b], x);
        sl_pack_close(p);
        pt_remove(a);
    }
}

/* ---- routing ------------------------------------------------------------------------------------- */

static void test_popularity_is_what_was_asked(void **state)
{
    static const struct {
        int n, k;
        double reuse;
    } cases[] = {{896, 16, 0.3}, {896, 16, 0.1}, {64, 4, 0.3}, {40, 4, 0.5}, {256, 8, 0.6}};
    double p[896];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double sum = 0, squares = 0;
        assert_true(sl_synth_popularity(p, cases[i].n, cases[i].k, cases[i].reuse) > 0);
        for (int r = 0; r < cases[i].n; r++) {
            assert_true(p[r] > 0 && p[r] < 1 && (!r || p[r] <= p[r - 1]));
            sum += p[r];
            squares += p[r] * p[r];
        }
        assert_true(fabs(sum - cases[i].k) < 1e-6);
        assert_true(fabs(squares / cases[i].k - cases[i].reuse) < 1e-3);
    }
    assert_true(sl_synth_popularity(p, 8, 4, 0.3) == 0); /* half of them are chosen anyway */
    assert_true(p[0] == 0.5 && p[7] == 0.5);
    /* A bias of p = 1/2 puts the middle of the scores on the threshold; more popular is higher. */
    assert_true(fabs(sl_synth_bias(0.5, 1) + 0.5) < 1e-9);
    assert_true(sl_synth_bias(0.9, 1) > sl_synth_bias(0.1, 1));
    assert_true(fabs(sl_synth_bias(0.158655253931457, 1) + 1 / (1 + exp(-1))) < 1e-9);
}

enum { N_TOKENS = 80 };

/* Share of a token's experts that the token before it chose too; *top: share of all choices that fell on
 * the tenth of the experts that was chosen most. */
static double reuse_of(const int32_t *routes, int layer, double *top)
{
    const size_t step = (size_t)cfg.n_layers * (size_t)cfg.top_k;
    const int32_t *r = routes + (size_t)layer * (size_t)cfg.top_k;
    int *use = calloc((size_t)cfg.n_experts, sizeof *use);
    int again = 0;
    assert_non_null(use);
    for (int t = 0; t < N_TOKENS; t++, r += step)
        for (int i = 0; i < cfg.top_k; i++) {
            use[r[i]]++;
            for (int k = 0; t && k < cfg.top_k; k++) again += r[i] == (r - step)[k];
        }
    int most = 0;
    for (int n = 0; n < cfg.n_experts / 10; n++) {
        int best = 0;
        for (int e = 0; e < cfg.n_experts; e++)
            if (use[e] > use[best]) best = e;
        most += use[best];
        use[best] = 0;
    }
    free(use);
    *top = (double)most / (N_TOKENS * cfg.top_k);
    return (double)again / ((N_TOKENS - 1) * cfg.top_k);
}

/* The model's depth and router at a small width: numbers stay finite through 93 layers (the engine says
 * where not), tokens reuse experts of their neighbours as often as promised, in every layer. */
static void test_routing_of_a_run(void **state)
{
    const char *a = pt_path(&room, "a");
    (void)state;
    cfg.n_layers = 93; /* kinds of all of them are there since setup */
    cfg.hidden_size = 256;
    cfg.n_experts = 896;
    cfg.top_k = 16;
    struct sl_synth_opts o = opts(SL_FMT_M4, SL_FMT_T8);
    o.alias_banks = 2;
    o.alias_trunk = 1;
    make(a, &o);

    sluice_error e = {0};
    sluice_pack *p;
    sluice_session *lead, *follow;
    const sluice_options so = {
        .ctx = N_TOKENS + 1, .ram_bytes = 1000000000, .chunk = 40, .threads = 2};
    if (sluice_pack_open(&p, a, &so, &e) || sluice_session_open(&lead, p, &so, &e) ||
        sluice_session_open(&follow, p, &so, &e) || sluice_follow_routes(follow, lead, &e))
        fail_msg("%s", e.text);
    int32_t ids[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++) ids[i] = i * 37 % 512;
    if (sluice_feed(lead, ids, N_TOKENS, &e)) fail_msg("%s", e.text);
    double all = 0, tops = 0;
    for (int l = 1; l < cfg.n_layers; l++) {
        double top;
        double reuse = reuse_of(lead->routes, l, &top);
        if (reuse < 0.2 || reuse > 0.5) fail_msg("layer %d: reuse %g", l, reuse);
        all += reuse;
        tops += top;
    }
    all /= cfg.n_layers - 1;
    tops /= cfg.n_layers - 1;
    print_message("reuse %.3f, designed %.2f; busiest tenth takes %.2f\n", all, SL_SYNTH_REUSE,
                  tops);
    assert_true(all > 0.25 && all < 0.40);
    assert_true(tops > 0.5);
    const float *logits = sluice_logits(lead);
    for (int i = 0; i < cfg.vocab_size; i++) assert_true(isfinite(logits[i]));
    sluice_session_close(follow);
    sluice_session_close(lead);
    sluice_pack_close(p);
    pt_remove(a);
}

/* ---- failures ------------------------------------------------------------------------------------ */

static void expect_refused(const char *dst, const struct sl_synth_opts *o, int code,
                           const char *part)
{
    struct sl_err err = {0};
    int rc = sl_synth(dst, o, NULL, &err);
    if (rc != code || !strstr(err.text, part)) fail_msg("%d: %s", rc, err.text);
}

static void test_refusals_leave_nothing(void **state)
{
    const char *a = pt_path(&room, "a");
    struct sl_config small = cfg;
    struct sl_err err = {0};
    (void)state;
    struct sl_synth_opts o = opts(SL_FMT_T8, SL_FMT_T8);
    expect_refused(a, &o, SL_E_ARG, "--experts");
    o = opts(SL_FMT_M4, SL_FMT_M4);
    expect_refused(a, &o, SL_E_ARG, "--trunk");
    o = opts(SL_FMT_M4, SL_FMT_T8);
    small.vocab_size = 255;
    o.cfg = &small;
    expect_refused(a, &o, SL_E_ARG, "vocab_size");
    o.cfg = &cfg;
    expect_refused(pt_path(&room, "no/such/folder"), &o, SL_E_IO, "No such file");
    assert_false(pt_exists(a));
    assert_int_equal(sl_make_dirs(pt_path(&room, "a/other"), &err), 0);
    expect_refused(a, &o, SL_E_ARG, "is not empty");
    assert_true(pt_exists(pt_path(&room, "a/other")));
    pt_remove(a);
}

static void test_full_disk_is_told_before_writing(void **state)
{
    const char *a = pt_path(&room, "a");
    struct sl_config k3;
    (void)state;
    sl_config_k3(&k3);
    struct sl_synth_opts o = opts(SL_FMT_M4, SL_FMT_BF16);
    o.cfg = &k3;
    o.dry_run = true;
    struct sl_synth_report r = make(a, &o);
    if (!r.missing_bytes) {
        print_message("SKIP 1.5 TB are free here\n");
        skip();
    }
    assert_true(r.missing_bytes > r.total_bytes - r.free_bytes);
    o.dry_run = false;
    expect_refused(a, &o, SL_E_NOSPACE, "are missing");
    assert_false(pt_exists(a));
}

/* A write that fails in the middle of a bank, with trunk and banks already in place. */
static void test_failed_write_leaves_nothing(void **state)
{
    const char *a = pt_path(&room, "a");
    struct sl_err err = {0};
    struct rlimit old, low;
    (void)state;
    struct sl_synth_opts o = opts(SL_FMT_M4, SL_FMT_T8);
    struct sl_synth_report r = make(a, &o);
    pt_remove(a);
    cfg.n_experts = 2000; /* banks are larger than the trunk now, so the limit falls on a bank */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = r.trunk_bytes * 8;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    int rc = sl_synth(a, &o, NULL, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    if (rc != SL_E_IO || !strstr(err.text, "L001.bank")) fail_msg("%d: %s", rc, err.text);
    assert_false(pt_exists(a));
    assert_int_equal(sl_make_dirs(a, &err), 0); /* a folder of the user's stays, empty */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    rc = sl_synth(a, &o, NULL, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, SL_E_IO);
    assert_true(pt_exists(a) && pt_bytes(a) == 0);
    make(a, &o);
    pt_remove(a);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_seed_alone_decides),
        T(test_dry_run_is_exact),
        T(test_layers_share_bytes_on_the_drive),
        T(test_contents_are_valid),
        T(test_popularity_is_what_was_asked),
        T(test_routing_of_a_run),
        T(test_refusals_leave_nothing),
        T(test_full_disk_is_told_before_writing),
        T(test_failed_write_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
