/* Statistics: the container refuses every damage, sums come back bit for bit, Gram products equal the
 * plain double loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/file.h"
#include "quant/calib.h"
#include "tests/kernels/kernel_check.h"

static char dir[64], path[96];

static int setup(void **s)
{
    (void)s;
    strcpy(dir, "/tmp/sluice-calib-XXXXXX");
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/x.stats", dir);
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    sl_remove_tree(dir);
    return 0;
}

static float value(void)
{
    return (float)(kc_below(2001) - 1000) / 256.0f;
}

static void gram_equals_the_plain_loop(void **s)
{
    (void)s;
    struct sl_kernels k;
    sl_kernels_init(&k, sl_cpu_detect());
    for (int round = 0; round < 12; round++) {
        int n = 1 + kc_below(70), d = 1 + kc_below(150), ld = d + kc_below(5);
        float *x = calloc((size_t)n * (size_t)ld, sizeof *x);
        float *work = malloc(sl_gram_work_floats(n, d) * sizeof *work);
        double *g = calloc((size_t)d * (size_t)d, sizeof *g);
        float *f = calloc((size_t)d * (size_t)d, sizeof *f);
        for (int i = 0; i < n * ld; i++) x[i] = value();
        sl_gram_pack(work, x, (size_t)ld, n, d);
        int cut = kc_below(d + 1);
        sl_gram_add_f64(g, work, n, d, 0, cut, &k);
        sl_gram_add_f64(g, work, n, d, cut, d, &k);
        sl_gram_add_f32(f, work, n, d, 0, d, &k);
        for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++) {
                double sum = 0, size = 0;
                for (int t = 0; t < n; t++) {
                    double p = (double)x[t * ld + i] * (double)x[t * ld + j];
                    sum += p;
                    size += fabs(p);
                }
                assert_true(fabs(g[i * d + j] - sum) <= 1e-5 * size);
                assert_true((double)f[i * d + j] == g[i * d + j]);
            }
        free(x);
        free(work);
        free(g);
        free(f);
    }
}

static void margins_fall_into_bins(void **s)
{
    (void)s;
    assert_int_equal(sl_margin_bin(-0.5f), 0);
    assert_int_equal(sl_margin_bin(-9.0f), 0);
    assert_int_equal(sl_margin_bin(0.0f), 32);
    assert_int_equal(sl_margin_bin(-0.001f), 31);
    assert_int_equal(sl_margin_bin(0.49999f), 63);
    assert_int_equal(sl_margin_bin(7.0f), 63);
    assert_int_equal(sl_margin_bin((float)NAN), 0);
}

static const struct sl_calib_shape shape = {
    .n_layers = 3, .latent = 32, .width = 64, .n_experts = 5, .top_k = 2};
static const uint8_t is_moe[3] = {0, 1, 1};

static struct sl_calib *filled(bool per_expert)
{
    struct sl_calib *c;
    assert_int_equal(sl_calib_open(&c, &shape, is_moe, per_expert, NULL), 0);
    c->tokens = 77;
    c->windows = 3;
    for (int l = 1; l < 3; l++) {
        struct sl_calib_layer *y = &c->layers[l];
        for (int i = 0; i < 32 * 32; i++) y->latent[i] = (double)value() / 3;
        for (int i = 0; i < 5 * 32; i++) y->latent_diag[i] = (double)value() / 7;
        for (int i = 0; i < 5 * 64; i++) y->hidden_diag[i] = (double)value() / 9;
        for (int i = 0; i < 5; i++) y->counts[i] = (uint64_t)kc_below(1000);
        for (int i = 0; i < 5 * SL_MARGIN_BINS; i++) y->margins[i] = (uint32_t)kc_below(50);
        for (int i = 0; per_expert && i < 5 * 32 * 32; i++) y->latent_e[i] = value();
        for (int i = 0; per_expert && i < 5 * 64 * 64; i++) y->hidden_e[i] = value();
    }
    return c;
}

static void sums_come_back(void **s)
{
    (void)s;
    for (int per = 0; per < 2; per++) {
        struct sl_calib *a = filled(per), *b;
        char *meta, *first, *again;
        size_t n1, n2;
        assert_int_equal(sl_calib_save(a, path, "{\"a\":1}", NULL), 0);
        assert_int_equal(sl_read_file(&first, &n1, path, 1 << 24, SL_E_SOURCE, NULL), 0);
        assert_int_equal(sl_calib_load(&b, path, &shape, is_moe, &meta, NULL), 0);
        assert_string_equal(meta, "{\"a\":1}");
        assert_int_equal(b->per_expert, per);
        assert_int_equal(b->tokens, 77);
        assert_int_equal(b->windows, 3);
        assert_null(b->layers[0].latent);
        assert_memory_equal(a->layers[2].latent, b->layers[2].latent, 32 * 32 * sizeof(double));
        assert_memory_equal(a->layers[1].hidden_diag, b->layers[1].hidden_diag,
                            5 * 64 * sizeof(double));
        if (per)
            assert_memory_equal(a->layers[2].hidden_e, b->layers[2].hidden_e, 5 * 64 * 64 * 4);
        else
            assert_null(b->layers[2].hidden_e);
        assert_int_equal(sl_calib_save(b, path, meta, NULL), 0);
        assert_int_equal(sl_read_file(&again, &n2, path, 1 << 24, SL_E_SOURCE, NULL), 0);
        assert_int_equal(n1, n2);
        assert_memory_equal(first, again, n1);
        free(first);
        free(again);
        free(meta);
        sl_calib_close(a);
        sl_calib_close(b);
    }
}

static void another_shape_is_refused(void **s)
{
    (void)s;
    struct sl_calib *a = filled(false), *b = NULL;
    struct sl_calib_shape other = shape;
    struct sl_err err = {0};
    char *meta;
    assert_int_equal(sl_calib_save(a, path, "{}", NULL), 0);
    other.latent = 64;
    assert_int_equal(sl_calib_load(&b, path, &other, is_moe, &meta, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "another model"));
    assert_null(b);
    sl_calib_close(a);
}

/* Every single byte changed, every cut: an error that names the file, or sums that are the same. */
static void damage_is_refused(void **s)
{
    (void)s;
    struct sl_calib *a = filled(false), *b;
    char *file, *meta;
    size_t n;
    int refused = 0;
    assert_int_equal(sl_calib_save(a, path, "{}", NULL), 0);
    assert_int_equal(sl_read_file(&file, &n, path, 1 << 24, SL_E_SOURCE, NULL), 0);
    for (size_t i = 0; i < n; i += i < 64 || i > n - 800 ? 1 : 97) {
        struct sl_err err = {0};
        file[i] ^= 0x40;
        assert_int_equal(sl_write_file(path, file, n, NULL), 0);
        file[i] ^= 0x40;
        int rc = sl_calib_load(&b, path, &shape, is_moe, &meta, &err);
        if (rc == 0) {
            sl_calib_close(b);
            free(meta);
            fail_msg("byte %zu of %zu changed unnoticed", i, n);
        }
        assert_int_equal(rc, SL_E_SOURCE);
        assert_non_null(strstr(err.text, "x.stats"));
        refused++;
    }
    for (size_t len = 0; len < n; len += 1 + n / 53) {
        struct sl_err err = {0};
        assert_int_equal(sl_write_file(path, file, len, NULL), 0);
        assert_int_equal(sl_calib_load(&b, path, &shape, is_moe, &meta, &err), SL_E_SOURCE);
    }
    assert_true(refused > 800);
    free(file);
    sl_calib_close(a);
}

static void a_missing_file_is_named(void **s)
{
    (void)s;
    struct sl_stats_in *in;
    struct sl_err err = {0};
    assert_int_equal(sl_stats_open(&in, "/tmp/sluice-no-such.stats", &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "sluice-no-such.stats"));
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_calib");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gram_equals_the_plain_loop),
        cmocka_unit_test(margins_fall_into_bins),
        cmocka_unit_test_setup_teardown(sums_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(another_shape_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_refused, setup, teardown),
        cmocka_unit_test(a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
