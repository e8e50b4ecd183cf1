/* What a conversion writes: the same bytes for any number of jobs and any cut, sizes that the dry run
 * foretold, verbatim trunk and vision, records that decode to the source (decoded here by the block
 * headers alone), and the refusals that must leave nothing behind. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "kernels/block_m4.h"
#include "offload/pack.h"
#include "quant/t8.h"
#include "tests/convert/checkpoint_copy.h"
#include "tests/convert/pack_tree.h"

#define TINY_A "tests/fixtures/tiny-a"
#define TINY_B "tests/fixtures/tiny-b"

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

/* Converts and expects failure with a text that holds every part. */
static void expect_refused(const char *src, const char *dst, const struct sl_convert_opts *o,
                           int code, const char *const *parts)
{
    struct sl_err err = {0};
    struct sl_convert_report report;
    int rc = sl_convert(src, dst, o, &report, &err);
    if (rc != code) fail_msg("%d, expected %d: %s", rc, code, err.text);
    cc_expect_text(&err, code, parts);
}

/* ---- same bytes ---------------------------------------------------------------------------------- */

static void same_for_jobs(const char *src, enum sl_fmt experts, enum sl_fmt trunk)
{
    const int jobs[] = {1, 2, 5};
    const uint64_t cuts[] = {0, 777, 5000, 1 << 16};
    struct sl_convert_opts o = pt_opts();
    const char *want = pt_path(&room, "want");
    o.experts = experts;
    o.trunk = trunk;
    pt_convert(src, want, &o);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 4; k++) {
            const char *got = pt_path(&room, "got");
            o.jobs = jobs[i];
            o.task_bytes = cuts[k];
            pt_convert(src, got, &o);
            pt_expect_same(want, got);
            pt_remove(got);
        }
    pt_remove(want);
}

static void test_jobs_and_cuts_never_show(void **state)
{
    (void)state;
    same_for_jobs(TINY_A, SL_FMT_M4, SL_FMT_BF16);
    same_for_jobs(TINY_A, SL_FMT_MXFP4, SL_FMT_T8);
    same_for_jobs(TINY_B, SL_FMT_M4, SL_FMT_T8);
    same_for_jobs(TINY_B, SL_FMT_MXFP4, SL_FMT_BF16);
}

/* Tables are trained, paths searched and scales chosen: none of it by whoever came first. */
static void test_low_bits_do_not_depend_on_jobs(void **state)
{
    static const struct {
        enum sl_fmt experts, trunk;
    } kinds[] = {{SL_FMT_W26, SL_FMT_T6},
                 {SL_FMT_W36, SL_FMT_T4},
                 {SL_FMT_P36, SL_FMT_T8},
                 {SL_FMT_W16, SL_FMT_BF16}};
    const char *want = pt_path(&room, "want"), *got = pt_path(&room, "got");
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct sl_convert_opts o = pt_opts();
        o.experts = kinds[i].experts;
        o.trunk = kinds[i].trunk;
        pt_convert(TINY_A, want, &o);
        for (int jobs = 2; jobs <= 5; jobs += 3) {
            o.jobs = jobs;
            o.task_bytes = jobs == 2 ? 777 : 5000;
            pt_convert(TINY_A, got, &o);
            pt_expect_same(want, got);
            pt_remove(got);
        }
        pt_remove(want);
    }
}

static void test_dry_run_is_exact(void **state)
{
    (void)state;
    static const enum sl_fmt experts[] = {SL_FMT_M4,  SL_FMT_MXFP4, SL_FMT_M4,  SL_FMT_MXFP4,
                                          SL_FMT_W26, SL_FMT_W36,   SL_FMT_P36, SL_FMT_W16};
    static const enum sl_fmt trunk[] = {SL_FMT_BF16, SL_FMT_BF16, SL_FMT_T8, SL_FMT_T8,
                                        SL_FMT_T6,   SL_FMT_T4,   SL_FMT_T8, SL_FMT_BF16};
    for (int i = 0; i < 8; i++) {
        struct sl_convert_report dry;
        struct sl_convert_report real;
        struct sl_err err = {0};
        struct sl_convert_opts o = pt_opts();
        const char *dst = pt_path(&room, "deep/er");
        o.experts = experts[i];
        o.trunk = trunk[i];
        o.dry_run = true;
        if (sl_convert(TINY_A, dst, &o, &dry, &err)) fail_msg("%s", err.text);
        assert_false(pt_exists(pt_path(&room, "deep")));
        o.dry_run = false;
        if (sl_convert(TINY_A, dst, &o, &real, &err)) fail_msg("%s", err.text);
        assert_true(dry.total_bytes == pt_bytes(dst));
        assert_true(dry.total_bytes == real.total_bytes);
        assert_true(dry.trunk_bytes == real.trunk_bytes && dry.bank_bytes == real.bank_bytes);
        assert_true(dry.other_bytes == real.other_bytes);
        assert_true(dry.total_bytes ==
                    dry.trunk_bytes + dry.bank_bytes + dry.vision_bytes + dry.other_bytes);
        struct sl_pack *p = pt_open_pack(dst);
        assert_true(p->trunk_bytes == dry.trunk_bytes);
        assert_true(sl_pack_bank_bytes(p) == dry.bank_bytes);
        sl_pack_close(p);
        pt_remove(pt_path(&room, "deep"));
    }
}

/* ---- contents ------------------------------------------------------------------------------------ */

static struct sl_source *open_source(const char *dir)
{
    struct sl_source *s;
    struct sl_err err = {0};
    if (sl_source_open(&s, dir, NULL, &err)) fail_msg("%s", err.text);
    return s;
}

static uint8_t *source_bytes(const struct sl_source *s, const struct sl_src_tensor *t)
{
    struct sl_err err = {0};
    uint8_t *buf = malloc(t->bytes + 1);
    assert_non_null(buf);
    if (sl_source_read(s, t, 0, buf, t->bytes, &err)) fail_msg("%s", err.text);
    return buf;
}

static uint8_t *file_bytes(int fd, uint64_t offset, uint64_t n)
{
    struct sl_err err = {0};
    uint8_t *buf = malloc(n + 1);
    assert_non_null(buf);
    if (sl_pread_all(fd, buf, n, offset, "pack", SL_E_PACK, &err)) fail_msg("%s", err.text);
    return buf;
}

static void check_tensor(const struct sl_source *s, const struct sl_tensor *t, int fd)
{
    const struct sl_src_tensor *from = sl_source_find(s, t->name);
    if (!from) {
        fail_msg("%s is not in the source", t->name);
        return;
    }
    assert_int_equal(t->n_dims, from->n_dims);
    for (int d = 0; d < t->n_dims; d++) assert_true(t->shape[d] == from->shape[d]);
    uint8_t *want = source_bytes(s, from);
    uint8_t *got = file_bytes(fd, t->offset, t->bytes);
    if (t->fmt == SL_FMT_T8) {
        uint64_t row = sl_fmt_row_bytes(SL_FMT_T8, (uint64_t)t->shape[1]);
        uint8_t *one = malloc(row);
        assert_non_null(one);
        for (int64_t r = 0; r < t->shape[0]; r++) {
            assert_int_equal(sl_t8_encode_bf16(want + (uint64_t)r * (uint64_t)t->shape[1] * 2,
                                               (int)t->shape[1], one),
                             -1);
            if (memcmp(one, got + (uint64_t)r * row, row) != 0)
                fail_msg("%s: row %d", t->name, (int)r);
        }
        free(one);
    } else {
        assert_true(t->bytes == from->bytes);
        if (memcmp(want, got, t->bytes) != 0) fail_msg("%s differs from the source", t->name);
    }
    if (sl_crc32(0, got, t->bytes) != t->crc32) fail_msg("%s: crc32", t->name);
    free(want);
    free(got);
}

/* Scales of a matrix by block_m4.h, codes as they lie. */
static void check_matrix(const struct sl_bank_entry *e, int m, const uint8_t *record, int rows,
                         int cols, const uint8_t *codes, const uint8_t *scales)
{
    const struct sl_plane_offsets *o = &e->planes[m][0];
    int blocks = cols / 32;
    size_t row_offsets = (size_t)(blocks + 1) / 2;
    assert_memory_equal(record + o->codes, codes, (size_t)rows * (size_t)cols / 2);
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++) {
            int want = scales[r * blocks + b];
            int got = e->fmt[m] == SL_FMT_M4
                          ? sl_m4_scale(record + o->scales + (size_t)r * row_offsets,
                                        record[o->row_scales + (uint32_t)r], b)
                          : record[o->scales + (uint32_t)(r * blocks + b)];
            if (got != want)
                fail_msg("matrix %d, row %d, block %d: %d, not %d", m, r, b, got, want);
        }
}

static void check_expert(const struct sl_source *s, const struct sl_pack *p, int layer, int expert)
{
    const struct sl_bank *bank = &p->banks[p->bank_of[layer]];
    const struct sl_bank_entry *e = &bank->entries[expert];
    const struct sl_src_tensor *t[6];
    uint8_t *record = file_bytes(bank->fd, e->offset, e->bytes);
    sl_source_expert(s, layer, expert, t);
    assert_int_equal(sl_crc32(0, record, e->bytes), e->crc32);
    for (int m = 0; m < SL_N_MATS; m++) {
        uint8_t *codes = source_bytes(s, t[2 * m]);
        uint8_t *scales = source_bytes(s, t[2 * m + 1]);
        check_matrix(e, m, record, (int)t[2 * m]->shape[0], (int)t[2 * m]->shape[1] * 2, codes,
                     scales);
        free(codes);
        free(scales);
    }
    free(record);
}

static void check_pack(const char *src, const char *dst)
{
    struct sl_source *s = open_source(src);
    struct sl_pack *p = pt_open_pack(dst);
    for (int i = 0; i < p->n_tensors; i++) check_tensor(s, &p->tensors[i], p->trunk_fd);
    for (int i = 0; i < p->n_vision; i++) check_tensor(s, &p->vision[i], p->vision_fd);
    for (int l = 0; l < p->cfg.n_layers; l++)
        for (int x = 0; p->bank_of[l] >= 0 && x < p->cfg.n_experts; x++) check_expert(s, p, l, x);
    sl_pack_close(p);
    sl_source_close(s);
}

static void test_contents_equal_the_source(void **state)
{
    static const char *const sources[] = {TINY_A, TINY_B, "models/k3-nano"};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int f = 0; f < 2; f++) {
            struct sl_convert_opts o = pt_opts();
            const char *dst = pt_path(&room, "contents");
            o.experts = f ? SL_FMT_MXFP4 : SL_FMT_M4;
            o.trunk = f ? SL_FMT_T8 : SL_FMT_BF16;
            o.task_bytes = 10000;
            pt_convert(sources[i], dst, &o);
            check_pack(sources[i], dst);
            pt_remove(dst);
        }
}

/* The inventory says which matrices --trunk t8 touches: none of the router, decay and beta. */
static void test_t8_keeps_small_matrices(void **state)
{
    struct sl_convert_opts o = pt_opts();
    const char *dst = pt_path(&room, "t8");
    (void)state;
    o.trunk = SL_FMT_T8;
    pt_convert(TINY_A, dst, &o);
    struct sl_pack *p = pt_open_pack(dst);
    static const struct {
        const char *name;
        enum sl_fmt fmt;
    } want[] = {
        {"model.layers.1.self_attn.q_proj.weight", SL_FMT_T8},
        {"model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", SL_FMT_T8},
        {"model.embed_tokens.weight", SL_FMT_T8},
        {"lm_head.weight", SL_FMT_T8},
        {"model.layers.1.block_sparse_moe.gate.weight", SL_FMT_BF16},
        {"model.layers.1.self_attn.f_a_proj.weight", SL_FMT_BF16},
        {"model.layers.1.self_attn.b_proj.weight", SL_FMT_BF16},
        {"model.layers.1.mlp_res_proj.weight", SL_FMT_BF16},
        {"model.layers.1.self_attn.A_log", SL_FMT_F32},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct sl_tensor *t = sl_pack_find(p, want[i].name);
        assert_non_null(t);
        if (t->fmt != want[i].fmt) fail_msg("%s is %s", want[i].name, sl_fmt_name(t->fmt));
    }
    sl_pack_close(p);
    pt_remove(dst);
}

/* Re-encoding goes through the same plan, so the way does not show. */
static void test_pack_as_source(void **state)
{
    struct sl_convert_opts m4 = pt_opts();
    struct sl_convert_opts mx = pt_opts();
    struct sl_convert_opts t8 = pt_opts();
    (void)state;
    mx.experts = SL_FMT_MXFP4;
    t8.trunk = SL_FMT_T8;
    t8.task_bytes = 3000;
    pt_convert(TINY_A, pt_path(&room, "m4"), &m4);
    pt_convert(TINY_A, pt_path(&room, "mx"), &mx);
    pt_convert(TINY_A, pt_path(&room, "t8"), &t8);
    pt_convert(pt_path(&room, "mx"), pt_path(&room, "m4-again"), &m4);
    pt_convert(pt_path(&room, "m4"), pt_path(&room, "mx-again"), &mx);
    pt_convert(pt_path(&room, "m4"), pt_path(&room, "t8-again"), &t8);
    pt_expect_same(pt_path(&room, "m4"), pt_path(&room, "m4-again"));
    pt_expect_same(pt_path(&room, "mx"), pt_path(&room, "mx-again"));
    pt_expect_same(pt_path(&room, "t8"), pt_path(&room, "t8-again"));
    expect_refused(pt_path(&room, "t8"), pt_path(&room, "no"), &m4, SL_E_SOURCE,
                   (const char *const[]){"model.layers.0.", "t8", "lossy", NULL});
    m4.free_source = true;
    expect_refused(pt_path(&room, "mx"), pt_path(&room, "no"), &m4, SL_E_ARG,
                   (const char *const[]){"--free-source", "packs", NULL});
    assert_false(pt_exists(pt_path(&room, "no")));
}

/* A damaged pack must not pass its damage on under fresh checksums. */
static void test_damaged_pack_as_source(void **state)
{
    static const struct {
        const char *file, *say;
        long at;
    } spots[] = {{"trunk.bin", "crc32", 4096 + 10},
                 {"experts/L003.bank", "expert 0", 2 * 4096 + 77}};
    struct sl_convert_opts o = pt_opts();
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *src = pt_path(&room, "damaged");
        const char *dst = pt_path(&room, "no");
        char path[600];
        pt_convert(TINY_A, src, &o);
        snprintf(path, sizeof path, "%s/%s", src, spots[i].file);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        fseek(f, spots[i].at, SEEK_SET);
        int byte = fgetc(f);
        fseek(f, spots[i].at, SEEK_SET);
        fputc(byte ^ 1, f);
        fclose(f);
        expect_refused(src, dst, &o, SL_E_PACK, (const char *const[]){spots[i].say, NULL});
        pt_remove(src);
        pt_remove(dst);
    }
}

/* ---- scales -------------------------------------------------------------------------------------- */

#define SCALE   "model.layers.3.block_sparse_moe.experts.7.w3.weight_scale"
#define SCALE_2 "model.layers.3.block_sparse_moe.experts.7.w2.weight_scale"

/* tiny-b: latent 64, so a row of w1 and w3 has two blocks and can hold a wide spread. */
static void test_matrix_that_m4_cannot_hold(void **state)
{
    const char *src = pt_path(&room, "wide");
    const char *dst = pt_path(&room, "wide.pack");
    struct sl_convert_opts o = pt_opts();
    struct sl_convert_report report;
    struct sl_err err = {0};
    (void)state;
    pt_copy_checkpoint(TINY_B, src);
    pt_poke(src, SCALE, 10, (const uint8_t[]){100, 84}, 2); /* row 5: a spread of 16 */
    pt_poke(src, "model.layers.4.block_sparse_moe.experts.2.w1.weight_scale", 4,
            (const uint8_t[]){100, 85}, 2); /* 15 is still held */
    if (sl_convert(src, dst, &o, &report, &err)) fail_msg("%s", err.text);
    assert_true(report.m4_escapes == 1);
    check_pack(src, dst);
    struct sl_pack *p = pt_open_pack(dst);
    const struct sl_bank *b = &p->banks[p->bank_of[3]];
    for (int x = 0; x < p->cfg.n_experts; x++)
        for (int m = 0; m < SL_N_MATS; m++)
            assert_int_equal(b->entries[x].fmt[m], x == 7 && m == SL_UP ? SL_FMT_MXFP4 : SL_FMT_M4);
    assert_int_equal(p->banks[p->bank_of[4]].entries[2].fmt[SL_GATE], SL_FMT_M4);
    assert_true(pt_bytes(dst) == report.total_bytes);
    sl_pack_close(p);
    pt_convert(dst, pt_path(&room, "wide-again.pack"), &o);
    pt_expect_same(dst, pt_path(&room, "wide-again.pack"));
    pt_remove(src);
    pt_remove(dst);
    pt_remove(pt_path(&room, "wide-again.pack"));
}

static void test_nan_scale(void **state)
{
    const char *src = pt_path(&room, "nan");
    const char *dst = pt_path(&room, "nan.pack");
    (void)state;
    pt_copy_checkpoint(TINY_B, src);
    for (int f = 0; f < 2; f++)
        for (int dry = 0; dry < 2; dry++) {
            struct sl_convert_opts o = pt_opts();
            o.experts = f ? SL_FMT_MXFP4 : SL_FMT_M4;
            o.dry_run = dry;
            o.jobs = 2;
            pt_poke(src, SCALE, 2 * 6 + 1, (const uint8_t[]){255}, 1);
            pt_poke(src, SCALE_2, 3, (const uint8_t[]){255}, 1); /* the earlier one is named */
            expect_refused(
                src, dst, &o, SL_E_SOURCE,
                (const char *const[]){".safetensors: ", SCALE, "row 6, block 1", "255", NULL});
            assert_false(pt_exists(dst));
            pt_poke(src, SCALE, 2 * 6, (const uint8_t[]){254, 254}, 2);
            pt_poke(src, SCALE_2, 3, (const uint8_t[]){120}, 1);
            pt_convert(src, dst, &o);
            pt_remove(dst);
        }
    pt_remove(src);
}

static void test_zero_and_largest_scales(void **state)
{
    const char *src = pt_path(&room, "edge");
    const char *dst = pt_path(&room, "edge.pack");
    const struct sl_convert_opts o = pt_opts();
    (void)state;
    pt_copy_checkpoint(TINY_B, src);
    pt_poke(src, SCALE, 0, (const uint8_t[]){0, 0, 254, 254, 0, 15, 254, 239}, 8);
    pt_convert(src, dst, &o);
    check_pack(src, dst);
    pt_remove(src);
    pt_remove(dst);
}

/* A trunk value that t8 cannot hold is named; bf16 carries it. */
static void test_infinite_weight(void **state)
{
    static const char name[] = "model.layers.2.self_attn.q_proj.weight";
    const char *src = pt_path(&room, "inf");
    const char *dst = pt_path(&room, "inf.pack");
    struct sl_convert_opts o = pt_opts();
    (void)state;
    pt_copy_checkpoint(TINY_B, src);
    pt_poke(src, name, 2 * (80 * 9 + 4), (const uint8_t[]){0x80, 0x7f}, 2);
    o.trunk = SL_FMT_T8;
    expect_refused(src, dst, &o, SL_E_SOURCE, (const char *const[]){name, "row 9, column 4", NULL});
    pt_remove(dst);
    o.trunk = SL_FMT_BF16;
    pt_convert(src, dst, &o);
    check_pack(src, dst);
    pt_remove(src);
    pt_remove(dst);
}

/* ---- vision -------------------------------------------------------------------------------------- */

static void add_vision(const struct cc_copy *c)
{
    static const struct {
        const char *name, *dtype;
        int n_dims;
        int64_t shape[4];
    } list[] = {
        {"vision_tower.patch_embed.proj.weight", "BF16", 4, {8, 3, 5, 5}},
        {"vision_tower.patch_embed.pos_emb.weight", "F32", 3, {4, 4, 8}},
        {"mm_projector.proj.0.weight", "F16", 2, {33, 70}},
        {"vision_tower.encoder.final_layernorm.weight", "BF16", 1, {3000}},
    };
    struct cc_shard s;
    static const char shard[] = "model-00010-of-000010.safetensors";
    cc_shard_load(c, shard, &s);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        size_t from = s.bytes;
        cc_shard_add(&s, list[i].name, list[i].dtype, list[i].n_dims, list[i].shape);
        for (size_t b = from; b < s.bytes; b++) s.data[b] = (uint8_t)(b * 37 + (b >> 7));
        cc_index_set(c, list[i].name, shard);
    }
    cc_shard_save(c, shard, &s);
}

static void test_vision_is_carried_or_dropped(void **state)
{
    struct cc_copy c;
    struct sl_convert_opts o = pt_opts();
    const char *dst = pt_path(&room, "vision");
    const char *without = pt_path(&room, "blind");
    (void)state;
    cc_open(&c);
    add_vision(&c);
    o.task_bytes = 1000;
    pt_convert(c.dir, dst, &o);
    check_pack(c.dir, dst);
    struct sl_pack *p = pt_open_pack(dst);
    assert_int_equal(p->n_vision, 4);
    assert_true(p->vision_bytes % SL_PAGE == 0 && p->vision_fd >= 0);
    for (int i = 0; i < 4; i++) assert_true(p->vision[i].offset % SL_PAGE == 0);
    sl_pack_close(p);
    pt_convert(dst, pt_path(&room, "vision-again"), &o);
    pt_expect_same(dst, pt_path(&room, "vision-again"));

    o.drop_vision = true;
    pt_convert(c.dir, without, &o);
    p = pt_open_pack(without);
    assert_int_equal(p->n_vision, 0);
    assert_true(p->vision_bytes == 0 && p->vision_fd < 0);
    sl_pack_close(p);
    assert_false(pt_exists(pt_path(&room, "blind/vision.bin")));
    pt_convert(dst, pt_path(&room, "blind-again"), &o);
    pt_expect_same(without, pt_path(&room, "blind-again"));
    cc_close(&c);
}

/* ---- places -------------------------------------------------------------------------------------- */

static void test_bank_dirs(void **state)
{
    struct sl_convert_opts o = pt_opts();
    const char *dst = pt_path(&room, "spread");
    const char *dirs[2] = {pt_path(&room, "drive-1"), pt_path(&room, "drive-2/deep")};
    char cwd[400];
    char want[600];
    (void)state;
    o.bank_dirs = dirs;
    o.n_bank_dirs = 2;
    pt_convert(TINY_A, dst, &o);
    assert_false(pt_exists(pt_path(&room, "spread/experts")));
    assert_true(pt_exists(pt_path(&room, "drive-1/L001.bank")));
    assert_true(pt_exists(pt_path(&room, "drive-2/deep/L002.bank")));
    assert_true(pt_exists(pt_path(&room, "drive-1/L007.bank")));
    check_pack(TINY_A, dst);
    /* The banks of one pack are never overwritten by another's. */
    expect_refused(TINY_A, pt_path(&room, "other"), &o, SL_E_ARG,
                   (const char *const[]){"L001.bank", "not of this conversion", NULL});
    assert_false(pt_exists(pt_path(&room, "other")));
    /* A relative folder is stored absolute: the pack is found from anywhere. */
    dirs[0] = "build/convert-test-banks";
    o.n_bank_dirs = 1;
    pt_remove(dirs[0]);
    pt_convert(TINY_A, pt_path(&room, "relative"), &o);
    struct sl_pack *p = pt_open_pack(pt_path(&room, "relative"));
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(want, sizeof want, "%s/build/convert-test-banks/L001.bank", cwd);
    assert_string_equal(p->banks[0].path, want);
    sl_pack_close(p);
    pt_remove(dirs[0]);
}

static void test_refused_targets(void **state)
{
    struct sl_convert_opts o = pt_opts();
    const char *dst = pt_path(&room, "target");
    (void)state;
    pt_convert(TINY_A, dst, &o);
    expect_refused(TINY_A, dst, &o, SL_E_ARG,
                   (const char *const[]){"already holds a finished pack", NULL});
    assert_int_equal(mkdir(pt_path(&room, "full"), 0777), 0);
    FILE *f = fopen(pt_path(&room, "full/mine.txt"), "w");
    assert_non_null(f);
    fclose(f);
    expect_refused(TINY_A, pt_path(&room, "full"), &o, SL_E_ARG,
                   (const char *const[]){"not empty", NULL});
    expect_refused(TINY_A, pt_path(&room, "full/mine.txt"), &o, SL_E_ARG,
                   (const char *const[]){"not a folder", NULL});
    assert_true(pt_exists(pt_path(&room, "full/mine.txt")));
    assert_int_equal(mkdir(pt_path(&room, "empty"), 0777), 0);
    pt_convert(TINY_A, pt_path(&room, "empty"), &o); /* the control */
    pt_expect_same(dst, pt_path(&room, "empty"));
    o.experts = SL_FMT_F32;
    expect_refused(TINY_A, pt_path(&room, "no"), &o, SL_E_ARG,
                   (const char *const[]){"--experts", NULL});
    o = pt_opts();
    expect_refused(pt_path(&room, "nowhere"), pt_path(&room, "no"), &o, SL_E_SOURCE,
                   (const char *const[]){"nowhere", NULL});
    assert_false(pt_exists(pt_path(&room, "no")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs_and_cuts_never_show),
        cmocka_unit_test(test_low_bits_do_not_depend_on_jobs),
        cmocka_unit_test(test_dry_run_is_exact),
        cmocka_unit_test(test_contents_equal_the_source),
        cmocka_unit_test(test_t8_keeps_small_matrices),
        cmocka_unit_test(test_pack_as_source),
        cmocka_unit_test(test_damaged_pack_as_source),
        cmocka_unit_test(test_matrix_that_m4_cannot_hold),
        cmocka_unit_test(test_nan_scale),
        cmocka_unit_test(test_zero_and_largest_scales),
        cmocka_unit_test(test_infinite_weight),
        cmocka_unit_test(test_vision_is_carried_or_dropped),
        cmocka_unit_test(test_bank_dirs),
        cmocka_unit_test(test_refused_targets),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
