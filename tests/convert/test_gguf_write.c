/* GGUF out and in again: what a pack holds comes back, whatever the cut of the work, and a pack that
 * cannot be given back is refused by name. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "convert/export_gguf.h"
#include "convert/input.h"
#include "kernels/half.h"
#include "offload/pack.h"
#include "runtime/tokenizer.h"
#include "tests/convert/pack_tree.h"

#define TINY_A "tests/fixtures/tiny-a"

static struct pt_room room;

static int setup(void **state)
{
    (void)state;
    pt_open(&room);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pt_close(&room);
    return 0;
}

static const char *token_bytes(void *ctx, int id, size_t *len)
{
    return sl_tokenizer_bytes(ctx, id, len);
}

static int export_to(const char *dir, const char *dst, uint64_t cut, int jobs,
                     struct sl_export_gguf_report *r, struct sl_err *err)
{
    char files[600];
    struct sl_tokenizer *t;
    struct sl_pack *p = pt_open_pack(dir);
    snprintf(files, sizeof files, "%s/tokenizer", dir);
    assert_int_equal(sl_tokenizer_open(&t, files, p->cfg.vocab_size, SL_E_PACK, err), 0);
    const struct sl_gguf_vocab v = {.n = sl_tokenizer_n_vocab(t),
                                    .n_ordinary = sl_tokenizer_n_ordinary(t),
                                    .bytes = token_bytes,
                                    .ctx = t};
    const struct sl_export_gguf_opts o = {.vocab = &v, .jobs = jobs, .task_bytes = cut};
    int rc = sl_export_gguf(p, dst, &o, r, err);
    sl_tokenizer_close(t);
    sl_pack_close(p);
    return rc;
}

static void must_export(const char *dir, const char *dst, uint64_t cut, int jobs)
{
    struct sl_export_gguf_report r;
    struct sl_err err = {0};
    uint64_t bytes = 0;
    if (export_to(dir, dst, cut, jobs, &r, &err)) fail_msg("%s", err.text);
    assert_int_equal(sl_file_size(dst, &bytes, SL_E_IO, &err), 0);
    assert_true(bytes == r.total_bytes);
}

/* ---- what comes back ------------------------------------------------------------------------------- */

static uint8_t *read_tensor(const struct sl_pack *p, const struct sl_tensor *t)
{
    uint8_t *data = malloc(t->bytes + 1);
    struct sl_err err = {0};
    assert_non_null(data);
    if (sl_pread_all(p->trunk_fd, data, t->bytes, t->offset, "trunk.bin", SL_E_PACK, &err))
        fail_msg("%s", err.text);
    return data;
}

static float f32_at(const uint8_t *p, size_t i)
{
    uint32_t bits = sl_le32(p + 4 * i);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static const struct sl_tensor *find(const struct sl_pack *p, const char *layer, const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", layer, name);
    const struct sl_tensor *t = sl_pack_find(p, full);
    if (!t) fail_msg("no %s", full);
    return t;
}

/* got: the product in b; its factors in a. */
static void check_product(const struct sl_pack *a, const struct sl_pack *b, const char *layer,
                          const char *score, const char *norm, const char *proj)
{
    const struct sl_tensor *t = find(b, layer, score);
    uint8_t *got = read_tensor(b, t);
    uint8_t *n = read_tensor(a, find(a, layer, norm));
    uint8_t *q = read_tensor(a, find(a, layer, proj));
    assert_int_equal(t->fmt, SL_FMT_F32);
    for (int64_t i = 0; i < t->shape[0]; i++) {
        float want = sl_bf16_to_f32(sl_le16(n + 2 * i)) * sl_bf16_to_f32(sl_le16(q + 2 * i));
        assert_true(f32_at(got, (size_t)i) == want);
    }
    free(got);
    free(n);
    free(q);
}

static void check_products(const struct sl_pack *a, const struct sl_pack *b)
{
    check_product(a, b, "", "model.output_res_score", "model.output_attn_res_norm.weight",
                  "model.output_attn_res_proj.weight");
    for (int l = 0; l < a->cfg.n_layers; l++) {
        char layer[64];
        snprintf(layer, sizeof layer, "model.layers.%d.", l);
        check_product(a, b, layer, "attn_res_score", "self_attention_res_norm.weight",
                      "self_attention_res_proj.weight");
        check_product(a, b, layer, "ffn_res_score", "mlp_res_norm.weight", "mlp_res_proj.weight");
        if (!a->cfg.is_kda[l]) continue;
        uint8_t *got = read_tensor(b, find(b, layer, "self_attn.ssm_a"));
        uint8_t *log = read_tensor(a, find(a, layer, "self_attn.A_log"));
        for (int h = 0; h < a->cfg.kda_heads; h++) {
            double want = -exp((double)f32_at(log, (size_t)h));
            assert_true(fabs((double)f32_at(got, (size_t)h) / want - 1) < 1.2e-7); /* 1 ulp */
        }
        free(got);
        free(log);
    }
}

static bool is_factor(const char *name)
{
    return strstr(name, "_res_norm.weight") || strstr(name, "_res_proj.weight") ||
           strstr(name, ".A_log");
}

/* Everything but products: the same format and the same bytes; experts: the same records. */
static void check_same(const struct sl_pack *a, const struct sl_pack *b)
{
    int n = 0;
    for (int i = 0; i < a->n_tensors; i++) {
        const struct sl_tensor *t = &a->tensors[i];
        if (is_factor(t->name)) continue;
        const struct sl_tensor *u = find(b, "", t->name);
        if (t->fmt != u->fmt || t->bytes != u->bytes || t->crc32 != u->crc32)
            fail_msg("%s differs", t->name);
        n++;
    }
    assert_true(n > 50);
    for (int k = 0; k < a->n_banks; k++)
        assert_memory_equal(a->banks[k].entries, b->banks[k].entries,
                            a->banks[k].n_experts * sizeof *a->banks[k].entries);
    struct sl_config c = a->cfg;
    assert_memory_equal(&c, &b->cfg, sizeof c);
}

static void same_file(const char *a, const char *b)
{
    char *x;
    char *y;
    size_t n;
    size_t m;
    struct sl_err err = {0};
    assert_int_equal(sl_read_file(&x, &n, a, (uint64_t)1 << 30, SL_E_IO, &err), 0);
    assert_int_equal(sl_read_file(&y, &m, b, (uint64_t)1 << 30, SL_E_IO, &err), 0);
    assert_int_equal(n, m);
    assert_true(!memcmp(x, y, n));
    free(x);
    free(y);
}

static void round_trip(const char *src, enum sl_fmt experts)
{
    char pack[300];
    char again[300];
    char file[300];
    char other[300];
    struct sl_convert_opts o = pt_opts();
    o.experts = experts;
    o.drop_vision = true;
    snprintf(pack, sizeof pack, "%s/pack", room.dir);
    snprintf(again, sizeof again, "%s/again", room.dir);
    snprintf(file, sizeof file, "%s/one.gguf", room.dir);
    snprintf(other, sizeof other, "%s/two.gguf", room.dir);
    pt_convert(src, pack, &o);
    must_export(pack, file, 0, 1);
    must_export(pack, other, 777, 3); /* no byte depends on how the work is cut */
    same_file(file, other);
    unlink(other);
    pt_convert(file, again, &o);
    struct sl_pack *a = pt_open_pack(pack);
    struct sl_pack *b = pt_open_pack(again);
    check_same(a, b);
    check_products(a, b);
    sl_pack_close(a);
    sl_pack_close(b);
    must_export(again, other, 0, 2); /* the same file from the pack that came from it */
    same_file(file, other);
    unlink(file);
    unlink(other);
    pt_remove(pack);
    pt_remove(again);
}

static void test_everything_comes_back(void **state)
{
    (void)state;
    round_trip(TINY_A, SL_FMT_M4);
    round_trip("models/k3-nano", SL_FMT_MXFP4);
}

/* t8 <-> Q8_0 row by row; kv_b is split and transposed there, so it comes back as the numbers it is. */
static void test_t8_trunks_become_q8_0(void **state)
{
    struct sl_convert_opts o = pt_opts();
    char pack[300];
    char again[300];
    char file[300];
    int n_t8 = 0;
    (void)state;
    snprintf(pack, sizeof pack, "%s/t8", room.dir);
    snprintf(again, sizeof again, "%s/t8-again", room.dir);
    snprintf(file, sizeof file, "%s/t8.gguf", room.dir);
    o.trunk = SL_FMT_T8;
    pt_convert("models/k3-nano", pack, &o);
    must_export(pack, file, 5000, 2);
    o.trunk = SL_FMT_BF16;
    pt_convert(file, again, &o);
    struct sl_pack *a = pt_open_pack(pack);
    struct sl_pack *b = pt_open_pack(again);
    for (int i = 0; i < a->n_tensors; i++) {
        const struct sl_tensor *t = &a->tensors[i];
        if (t->fmt != SL_FMT_T8) continue;
        const struct sl_tensor *u = find(b, "", t->name);
        if (!strstr(t->name, "kv_b_proj")) {
            assert_int_equal(u->fmt, SL_FMT_T8);
            assert_int_equal(u->crc32, t->crc32);
            n_t8++;
            continue;
        }
        uint64_t cols = (uint64_t)t->shape[1];
        uint64_t row_bytes = sl_fmt_row_bytes(SL_FMT_T8, cols);
        uint8_t *x = read_tensor(a, t);
        uint8_t *y = read_tensor(b, u);
        assert_int_equal(u->fmt, SL_FMT_F32);
        for (uint64_t r = 0; r < (uint64_t)t->shape[0]; r++)
            for (uint64_t c = 0; c < cols; c++) {
                const uint8_t *row = x + r * row_bytes;
                float scale = sl_f16_to_f32(sl_le16(row + cols + 2 * (c / 32)));
                assert_true(f32_at(y, r * cols + c) == (float)(int8_t)row[c] * scale);
            }
        free(x);
        free(y);
    }
    assert_true(n_t8 > 20);
    sl_pack_close(a);
    sl_pack_close(b);
}

/* ---- refusals -------------------------------------------------------------------------------------- */

static void refused(const char *pack, int code, const char *what)
{
    char dst[300];
    struct sl_export_gguf_report r;
    struct sl_err err = {0};
    snprintf(dst, sizeof dst, "%s/no.gguf", room.dir);
    int rc = export_to(pack, dst, 0, 1, &r, &err);
    if (rc != code || !strstr(err.text, what))
        fail_msg("code %d, \"%s\" does not say \"%s\"", rc, err.text, what);
    assert_int_equal(access(dst, F_OK), -1);
    strcat(dst, ".tmp");
    assert_int_equal(access(dst, F_OK), -1);
}

static void test_refusals(void **state)
{
    struct sl_convert_opts o = pt_opts();
    struct sl_export_gguf_report r;
    struct sl_err err = {0};
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/p", room.dir);
    o.experts = SL_FMT_W26;
    pt_convert(TINY_A, path, &o);
    refused(path, SL_E_SOURCE, "stored as w26: this pack is lossy");
    pt_remove(path);
    o = pt_opts();
    o.trunk = SL_FMT_T6;
    pt_convert(TINY_A, path, &o);
    refused(path, SL_E_SOURCE, "stored as t6, which GGUF cannot hold");
    pt_remove(path);
    o = pt_opts();
    pt_convert(TINY_A, path, &o);
    assert_int_equal(export_to(path, room.dir, 0, 1, &r, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "is a folder"));
    /* A damaged trunk or record is found while it is written, and leaves nothing. */
    struct sl_pack *p = pt_open_pack(path);
    const struct sl_tensor *t = find(p, "", "model.layers.1.self_attn.o_proj.weight");
    uint64_t at = t->offset + 3;
    char label[300];
    snprintf(label, sizeof label, "%s", p->banks[0].path);
    uint64_t record = p->banks[0].entries[2].offset + 40;
    sl_pack_close(p);
    char trunk[320];
    snprintf(trunk, sizeof trunk, "%s/trunk.bin", path);
    FILE *f = fopen(trunk, "r+be");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    int was = getc(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    putc(was ^ 4, f);
    assert_int_equal(fclose(f), 0);
    refused(path, SL_E_PACK, "trunk.bin: model.layers.1.self_attn.o_proj.weight: crc32");
    f = fopen(trunk, "r+be");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    putc(was, f);
    assert_int_equal(fclose(f), 0);
    f = fopen(label, "r+be");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)record, SEEK_SET), 0);
    was = getc(f);
    assert_int_equal(fseek(f, (long)record, SEEK_SET), 0);
    putc(was ^ 1, f);
    assert_int_equal(fclose(f), 0);
    refused(path, SL_E_PACK, "expert 2: crc32");
}

static void test_a_pack_from_gguf_is_no_checkpoint(void **state)
{
    struct sl_convert_opts o = pt_opts();
    struct sl_err err = {0};
    char pack[300];
    char again[300];
    char file[300];
    (void)state;
    snprintf(pack, sizeof pack, "%s/p", room.dir);
    snprintf(again, sizeof again, "%s/q", room.dir);
    snprintf(file, sizeof file, "%s/p.gguf", room.dir);
    pt_convert(TINY_A, pack, &o);
    must_export(pack, file, 0, 1);
    pt_convert(file, again, &o);
    struct sl_pack *p = pt_open_pack(again);
    assert_int_equal(sl_export_hf(p, pt_path(&room, "no"), 1, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "model.output_res_score: this pack came from GGUF"));
    assert_false(pt_exists(pt_path(&room, "no")));
    sl_pack_close(p);
    /* But it can be encoded anew, as any lossless pack. */
    o.experts = SL_FMT_MXFP4;
    o.trunk = SL_FMT_T8;
    pt_convert(again, pt_path(&room, "r"), &o);
    p = pt_open_pack(pt_path(&room, "r"));
    assert_int_equal(sl_pack_find(p, "lm_head.weight")->fmt, SL_FMT_T8);
    sl_pack_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_everything_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_t8_trunks_become_q8_0, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_pack_from_gguf_is_no_checkpoint, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
