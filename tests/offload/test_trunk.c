/* The trunk in memory: every byte where its tensor says, every vector widened exactly, and the promised
 * number of bytes taken from the arena, no more and no less. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "offload/trunk.h"
#include "tests/offload/pack_maker.h"

static const struct sl_trunk_opts unchecked = {.check_crc = false};

struct scene {
    struct pm_pack m;
    struct sl_pack *p;
    struct sl_arena arena;
    struct sl_trunk *t;
};

static void open_scene(struct scene *s, const struct pm_spec *spec)
{
    struct sl_err err = {0};
    pm_make(&s->m, spec);
    s->p = pm_open(&s->m);
    size_t bytes = (size_t)sl_trunk_bytes(s->p) + 100;
    assert_int_equal(sl_arena_init(&s->arena, bytes, "test", &err), 0);
    assert_non_null(sl_arena_alloc(&s->arena, 100, 1)); /* an odd place to start */
    if (sl_trunk_open(&s->t, s->p, &s->arena, NULL, &err)) fail_msg("%s", err.text);
}

static void close_scene(struct scene *s)
{
    sl_trunk_close(s->t);
    sl_arena_free(&s->arena);
    sl_pack_close(s->p);
    pm_free(&s->m);
}

/* The definitions, written out: not the project's own conversions. */
static float widen(enum sl_fmt fmt, const uint8_t *p, int64_t i)
{
    float f;
    if (fmt == SL_FMT_F32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    unsigned h = p[2 * i] | (unsigned)p[2 * i + 1] << 8;
    if (fmt == SL_FMT_BF16) {
        uint32_t bits = h << 16;
        memcpy(&f, &bits, 4);
        return f;
    }
    int exponent = (int)(h >> 10 & 31);
    int mantissa = (int)(h & 1023);
    f = exponent ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24);
    return h >> 15 ? -f : f;
}

static void vectors_are_widened_exactly(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t n;
    } vectors[] = {{"model.layers.1.input_layernorm.weight", 80},
                   {"model.layers.2.self_attn.q_conv1d.weight", 48 * 4},
                   {"model.layers.2.self_attn.k_conv1d.weight", 48 * 4},
                   {"model.layers.3.self_attn.A_log", 16},
                   {"model.layers.3.self_attn.A_log", 12}, /* padded in the file */
                   {"model.layers.0.self_attention_res_proj.weight", 80},
                   {"model.norm.weight", 80}};
    struct scene s;
    open_scene(&s, NULL);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const struct sl_tensor *x = sl_pack_find(s.p, vectors[i].name);
        const float *v = NULL;
        struct sl_err err = {0};
        assert_non_null(x);
        uint8_t *raw = pm_tensor(&s.m, x);
        if (sl_trunk_vec(s.t, vectors[i].name, vectors[i].n, &v, &err)) fail_msg("%s", err.text);
        for (int64_t j = 0; j < vectors[i].n; j++) {
            float want = widen(x->fmt, raw, j);
            assert_memory_equal(&v[j], &want, sizeof want);
        }
        free(raw);
    }
    close_scene(&s);
}

static void matrices_are_the_bytes_of_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int rows, cols;
    } mats[] = {{"model.layers.2.self_attn.q_proj.weight", 48, 80},
                {"model.layers.0.mlp.gate_proj.weight", 33, 80},
                {"model.embed_tokens.weight", 100, 80},
                {"lm_head.weight", 100, 80}};
    struct scene s;
    open_scene(&s, NULL);
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++) {
        const struct sl_tensor *x = sl_pack_find(s.p, mats[i].name);
        struct sl_mat w;
        struct sl_err err = {0};
        assert_non_null(x);
        uint8_t *raw = pm_tensor(&s.m, x);
        if (sl_trunk_mat(s.t, mats[i].name, mats[i].rows, mats[i].cols, &w, &err))
            fail_msg("%s", err.text);
        assert_int_equal(w.fmt, x->fmt);
        assert_int_equal(w.rows, mats[i].rows);
        assert_int_equal(w.cols, mats[i].cols);
        assert_memory_equal(w.codes, raw, x->bytes);
        assert_null(w.scales);
        assert_null(w.row_scales);
        assert_null(w.table);
        free(raw);
    }
    close_scene(&s);
}

/* A matrix of one row is kept widened: as a matrix it is f32 with the same values. */
static void one_row_is_a_matrix_too(void **state)
{
    (void)state;
    struct scene s;
    struct sl_mat w;
    open_scene(&s, NULL);
    const char *name = "model.layers.1.self_attention_res_proj.weight";
    uint8_t *raw = pm_tensor(&s.m, sl_pack_find(s.p, name));
    assert_int_equal(sl_trunk_mat(s.t, name, 1, 80, &w, NULL), 0);
    assert_int_equal(w.fmt, SL_FMT_F32);
    for (int i = 0; i < 80; i++) {
        float want = widen(SL_FMT_BF16, raw, i);
        assert_memory_equal(w.codes + 4 * i, &want, 4);
    }
    free(raw);
    close_scene(&s);
}

static void expect_error(int rc, const struct sl_err *err, const char *w1, const char *w2)
{
    if (rc != SL_E_PACK || !strstr(err->text, w1) || !strstr(err->text, w2))
        fail_msg("code %d \"%s\", wanted \"%s\" and \"%s\"", rc, err->text, w1, w2);
}

static void wrong_shapes_and_names_are_refused(void **state)
{
    (void)state;
    struct scene s;
    struct sl_mat w;
    struct sl_err e = {0};
    const float *v;
    const char *q = "model.layers.2.self_attn.q_proj.weight";
    open_scene(&s, NULL);
    expect_error(sl_trunk_mat(s.t, "model.none", 1, 1, &w, &e), &e, "model.none", "missing");
    expect_error(sl_trunk_mat(s.t, q, 80, 48, &w, &e), &e, q, "[48,80], expected [80,48]");
    expect_error(sl_trunk_mat(s.t, "model.norm.weight", 1, 80, &w, &e), &e, "model.norm", "[80]");
    expect_error(sl_trunk_vec(s.t, "model.none", 1, &v, &e), &e, "model.none", "missing");
    expect_error(sl_trunk_vec(s.t, "model.norm.weight", 81, &v, &e), &e, "[80]", "at least 81");
    expect_error(sl_trunk_vec(s.t, "model.norm.weight", -1, &v, &e), &e, "[80]", "at least -1");
    expect_error(sl_trunk_vec(s.t, "model.layers.0.mlp.gate_proj.weight", 5, &v, &e), &e, "t8",
                 "vector");
    expect_error(sl_trunk_vec(s.t, q, 5, &v, &e), &e, "bf16", "vector");
    close_scene(&s);
}

static void the_promise_holds_to_the_byte(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.n_layers = 7});
    struct sl_pack *p = pm_open(&m);
    uint64_t bytes = sl_trunk_bytes(p);
    for (size_t before = 0; before < 5000; before += 1237) {
        struct sl_arena a;
        struct sl_trunk *t;
        assert_int_equal(sl_arena_init(&a, (size_t)bytes + before, "test", NULL), 0);
        assert_non_null(sl_arena_alloc(&a, before ? before : 1, 1));
        size_t mark = sl_arena_mark(&a);
        assert_int_equal(sl_trunk_open(&t, p, &a, &unchecked, NULL), 0);
        assert_int_equal(sl_arena_mark(&a) - mark, bytes);
        sl_trunk_close(t);
        sl_arena_free(&a);
    }
    struct sl_arena small;
    struct sl_trunk *t;
    struct sl_err err = {0};
    assert_int_equal(sl_arena_init(&small, (size_t)bytes - 4096, "test", NULL), 0);
    assert_int_equal(sl_trunk_open(&t, p, &small, &unchecked, &err), SL_E_BUDGET);
    assert_non_null(strstr(err.text, "trunk"));
    assert_null(t);
    sl_arena_free(&small);
    sl_pack_close(p);
    pm_free(&m);
}

/* 35 MB in one tensor: two pieces, and the seam between them. */
static void large_trunks_are_read_in_pieces(void **state)
{
    (void)state;
    struct scene s;
    struct sl_mat w;
    open_scene(&s, &(struct pm_spec){.big = true});
    assert_true(s.p->trunk_bytes > SL_PIECE_BYTES);
    assert_int_equal(sl_trunk_mat(s.t, "model.big.weight", 17000, 1030, &w, NULL), 0);
    uint8_t *raw = pm_tensor(&s.m, sl_pack_find(s.p, "model.big.weight"));
    assert_int_equal(memcmp(w.codes, raw, (size_t)17000 * 1030 * 2), 0);
    free(raw);
    close_scene(&s);
}

static void layers_that_share_bytes_are_held_apart(void **state)
{
    (void)state;
    struct scene s;
    struct sl_mat a;
    struct sl_mat b;
    open_scene(&s, &(struct pm_spec){.n_layers = 6, .alias_trunk = true});
    assert_int_equal(sl_trunk_mat(s.t, "model.layers.1.self_attn.q_proj.weight", 48, 80, &a, NULL),
                     0);
    assert_int_equal(sl_trunk_mat(s.t, "model.layers.5.self_attn.q_proj.weight", 48, 80, &b, NULL),
                     0);
    assert_ptr_not_equal(a.codes, b.codes);
    assert_memory_equal(a.codes, b.codes, sl_fmt_row_bytes(a.fmt, 80) * 48);
    assert_true(sl_trunk_bytes(s.p) > s.p->trunk_bytes + SL_PAGE);
    close_scene(&s);
}

static void a_changed_byte_is_named_when_asked(void **state)
{
    (void)state;
    struct pm_pack m;
    struct sl_arena a;
    struct sl_trunk *t;
    struct sl_err err = {0};
    pm_make(&m, NULL);
    struct sl_pack *p = pm_open(&m);
    const char *name = "model.layers.2.self_attn.q_proj.weight";
    assert_int_equal(sl_arena_init(&a, (size_t)sl_trunk_bytes(p), "test", NULL), 0);
    pm_flip(pm_path(&m, "trunk.bin"), sl_pack_find(p, name)->offset + 7, 0x20);
    assert_int_equal(sl_trunk_open(&t, p, &a, &unchecked, &err), 0);
    sl_trunk_close(t);
    sl_arena_release(&a, 0);
    expect_error(sl_trunk_open(&t, p, &a, NULL, &err), &err, "trunk.bin", name);
    assert_non_null(strstr(err.text, "crc32"));
    assert_null(t);
    sl_arena_release(&a, 0);
    pm_truncate(pm_path(&m, "trunk.bin"), 8192); /* after open */
    expect_error(sl_trunk_open(&t, p, &a, &unchecked, &err), &err, "trunk.bin", "ends at 8192");
    sl_arena_release(&a, 0);
    sl_interrupt();
    assert_int_equal(sl_trunk_open(&t, p, &a, &unchecked, &err), SL_E_INTR);
    sl_interrupt_clear();
    sl_arena_free(&a);
    sl_pack_close(p);
    pm_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_widened_exactly),
        cmocka_unit_test(matrices_are_the_bytes_of_the_file),
        cmocka_unit_test(one_row_is_a_matrix_too),
        cmocka_unit_test(wrong_shapes_and_names_are_refused),
        cmocka_unit_test(the_promise_holds_to_the_byte),
        cmocka_unit_test(large_trunks_are_read_in_pieces),
        cmocka_unit_test(layers_that_share_bytes_are_held_apart),
        cmocka_unit_test(a_changed_byte_is_named_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
