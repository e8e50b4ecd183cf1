/* export --format hf gives back every tensor of the checkpoint, and refuses what it cannot give. The
 * comparison is by name and byte between two opened checkpoints, so opening checks the rest: names,
 * shapes, dtypes, offsets, index. */
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
#include "base/json.h"
#include "offload/pack.h"
#include "tests/convert/checkpoint_copy.h"
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

static int export_to(const char *pack, const char *dst, uint64_t cut, int jobs, struct sl_err *err)
{
    struct sl_pack *p;
    if (sl_pack_open(&p, pack, NULL, 0, err)) fail_msg("%s", err->text);
    int rc = sl_export_hf_cut(p, dst, jobs, cut, err);
    sl_pack_close(p);
    return rc;
}

static struct sl_source *open_source(const char *dir)
{
    struct sl_source *s;
    struct sl_err err = {0};
    if (sl_source_open(&s, dir, NULL, &err)) fail_msg("%s", err.text);
    return s;
}

static void expect_equal(const char *a, const char *b)
{
    struct sl_source *x = open_source(a);
    struct sl_source *y = open_source(b);
    struct sl_err err = {0};
    assert_int_equal(x->n_tensors, y->n_tensors);
    assert_true(x->payload_bytes == y->payload_bytes);
    assert_string_equal(x->prefix, y->prefix);
    for (uint32_t i = 0; i < x->n_tensors; i++) {
        const struct sl_src_tensor *t = &x->tensors[i];
        uint32_t at;
        if (!sl_strmap_get(y->by_name, t->name, strlen(t->name), &at))
            fail_msg("%s lacks %s", b, t->name);
        const struct sl_src_tensor *u = &y->tensors[at];
        assert_int_equal(t->dtype, u->dtype);
        assert_int_equal(t->n_dims, u->n_dims);
        assert_memory_equal(t->shape, u->shape, sizeof t->shape);
        assert_true(t->bytes == u->bytes);
        uint8_t *p = malloc(t->bytes + 1);
        uint8_t *q = malloc(t->bytes + 1);
        assert_true(p && q);
        if (sl_source_read(x, t, 0, p, t->bytes, &err)) fail_msg("%s", err.text);
        if (sl_source_read(y, u, 0, q, u->bytes, &err)) fail_msg("%s", err.text);
        if (memcmp(p, q, t->bytes) != 0) fail_msg("%s differs", t->name);
        free(p);
        free(q);
    }
    assert_int_equal(x->n_extra_files, y->n_extra_files);
    for (int i = 0; i < x->n_extra_files; i++) {
        char *p;
        char *q;
        size_t n;
        size_t m;
        char path[600];
        snprintf(path, sizeof path, "%s/%s", x->dir, x->extra_files[i]);
        if (sl_read_file(&p, &n, path, 1 << 26, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
        snprintf(path, sizeof path, "%s/%s", y->dir, x->extra_files[i]);
        if (sl_read_file(&q, &m, path, 1 << 26, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
        if (n != m || memcmp(p, q, n) != 0) fail_msg("%s differs", path);
        free(p);
        free(q);
    }
    sl_source_close(x);
    sl_source_close(y);
}

static void round_trip(const char *src, enum sl_fmt experts, uint64_t cut, int jobs)
{
    struct sl_convert_opts o = pt_opts();
    struct sl_err err = {0};
    const char *pack = pt_path(&room, "pack");
    const char *again = pt_path(&room, "again");
    o.experts = experts;
    pt_convert(src, pack, &o);
    if (export_to(pack, again, cut, jobs, &err)) fail_msg("%s", err.text);
    expect_equal(src, again);
    /* And that checkpoint makes the same weights again. */
    pt_convert(again, pt_path(&room, "pack-2"), &o);
    struct sl_pack *p;
    struct sl_pack *q;
    assert_int_equal(sl_pack_open(&p, pack, NULL, 0, &err), 0);
    assert_int_equal(sl_pack_open(&q, pt_path(&room, "pack-2"), NULL, 0, &err), 0);
    for (int i = 0; i < p->n_tensors; i++)
        assert_int_equal(p->tensors[i].crc32, q->tensors[i].crc32);
    for (int b = 0; b < p->n_banks; b++)
        assert_memory_equal(p->banks[b].entries, q->banks[b].entries,
                            p->banks[b].n_experts * sizeof *p->banks[b].entries);
    sl_pack_close(p);
    sl_pack_close(q);
    pt_remove(pack);
    pt_remove(again);
    pt_remove(pt_path(&room, "pack-2"));
}

static void test_every_tensor_comes_back(void **state)
{
    (void)state;
    round_trip(TINY_A, SL_FMT_M4, 16 << 20, 1);
    round_trip(TINY_A, SL_FMT_MXFP4, 777, 3);
    round_trip("tests/fixtures/tiny-b", SL_FMT_M4, 5000, 2);
    round_trip("models/k3-nano", SL_FMT_M4, 1 << 16, 2);
}

static int rank_of(const char *dtype)
{
    static const char *const order[] = {"F32", "BF16", "F16", "U8"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(dtype, order[i])) return i;
    return -1;
}

/* The order of the safetensors writer, and so the header bytes and file sizes of the release: widest
 * type first, then by name as text, data in the same order, no metadata, padded to 8 bytes. */
static void test_shards_are_ordered_as_released(void **state)
{
    struct sl_convert_opts o = pt_opts();
    struct sl_err err = {0};
    (void)state;
    pt_convert(TINY_A, pt_path(&room, "ordered.pack"), &o);
    if (export_to(pt_path(&room, "ordered.pack"), pt_path(&room, "ordered"), 16 << 20, 2, &err))
        fail_msg("%s", err.text);
    for (int i = 1; i <= 10; i++) {
        char path[600];
        char *text;
        size_t len;
        cJSON *head;
        snprintf(path, sizeof path, "%s/%s", pt_path(&room, "ordered"), cc_shard_name(i));
        if (sl_read_file(&text, &len, path, 1 << 26, SL_E_IO, &err)) fail_msg("%s", err.text);
        uint64_t n = sl_le64(text);
        assert_true(n % 8 == 0 && n + 8 < len);
        if (sl_json_parse(&head, text + 8, n, path, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
        double at = 0;
        int rank = 0;
        const char *name = "";
        for (const cJSON *t = head->child; t; t = t->next) {
            const cJSON *offsets = cJSON_GetObjectItem(t, "data_offsets");
            int r = rank_of(cJSON_GetStringValue(cJSON_GetObjectItem(t, "dtype")));
            assert_true(cJSON_GetArrayItem(offsets, 0)->valuedouble == at);
            at = cJSON_GetArrayItem(offsets, 1)->valuedouble;
            if (r < rank || (r == rank && strcmp(t->string, name) <= 0))
                fail_msg("%s: %s stands behind %s", path, t->string, name);
            rank = r;
            name = t->string;
        }
        assert_true(at == (double)(len - 8 - n));
        cJSON_Delete(head);
        free(text);
    }
    pt_remove(pt_path(&room, "ordered"));
    pt_remove(pt_path(&room, "ordered.pack"));
}

/* What a random checkpoint does not have: codes of -0, scales of zero blocks, vision, no prefix. */
static void test_corners_come_back(void **state)
{
    struct cc_copy c;
    struct cc_shard s;
    static const char globals[] = "model-00010-of-000010.safetensors";
    static const uint8_t minus_zero[16] = {0x88, 0x88, 0x80, 0x08, 0x8f};
    (void)state;
    cc_open(&c);
    cc_shard_load(&c, globals, &s);
    cc_shard_add(&s, "mm_projector.proj.0.weight", "BF16", 2, (const int64_t[]){5, 7});
    cc_shard_add(&s, "vision_tower.a \"b\" \\ c.weight", "F16", 3, (const int64_t[]){2, 3, 4});
    cc_shard_add(&s, "vision_tower.d.weight", "F32", 1, (const int64_t[]){9});
    for (size_t i = 0; i < s.bytes && i < 100; i++) s.data[s.bytes - 1 - i] = (uint8_t)(i * 91 + 1);
    cc_shard_save(&c, globals, &s);
    cc_index_set(&c, "mm_projector.proj.0.weight", globals);
    cc_index_set(&c, "vision_tower.a \"b\" \\ c.weight", globals);
    cc_index_set(&c, "vision_tower.d.weight", globals);
    pt_poke(c.dir, "model.layers.2.block_sparse_moe.experts.5.w1.weight_packed", 0, minus_zero, 16);
    pt_poke(c.dir, "model.layers.2.block_sparse_moe.experts.5.w2.weight_packed", 16, minus_zero,
            16);
    pt_poke(c.dir, "model.layers.2.block_sparse_moe.experts.5.w1.weight_scale", 0,
            (const uint8_t[]){0, 254, 1}, 3);
    pt_poke(c.dir, "model.layers.0.self_attn.A_log", 4 * 31, (const uint8_t[]){1, 2, 3, 4}, 4);
    round_trip(c.dir, SL_FMT_M4, 16 << 20, 1);
    round_trip(c.dir, SL_FMT_MXFP4, 40, 2);
    cc_close(&c);
}

static void test_lossy_pack_is_refused(void **state)
{
    static const enum sl_fmt trunk[] = {SL_FMT_T8, SL_FMT_T6, SL_FMT_T4};
    static const enum sl_fmt experts[] = {SL_FMT_W26, SL_FMT_W36, SL_FMT_P36, SL_FMT_W16};
    const char *pack = pt_path(&room, "lossy");
    const char *dst = pt_path(&room, "never");
    (void)state;
    for (int i = 0; i < 7; i++) {
        struct sl_convert_opts o = pt_opts();
        struct sl_err err = {0};
        if (i < 3)
            o.trunk = trunk[i];
        else
            o.experts = experts[i - 3];
        pt_convert(TINY_A, pack, &o);
        assert_int_equal(export_to(pack, dst, 16 << 20, 1, &err), SL_E_SOURCE);
        const char *first = i < 3 ? "model.layers.0.self_attn.q_proj.weight"
                                  : "model.layers.1.block_sparse_moe.experts.0.w1";
        const char *fmt = sl_fmt_name(i < 3 ? o.trunk : o.experts);
        cc_expect_text(&err, SL_E_SOURCE, (const char *const[]){first, fmt, NULL});
        assert_int_equal(sl_exit_status(err.code), 3);
        assert_false(pt_exists(dst));
        pt_remove(pack);
    }
}

/* A pack whose bytes changed is told by its checksums, and the folder that was begun is gone. */
static void test_damage_is_noticed(void **state)
{
    static const struct {
        const char *file, *say;
        long at;
    } spots[] = {{"trunk.bin", "self_attention_res_proj", 4096 + 10},
                 {"experts/L008.bank", "expert 0", 2 * 4096 + 1}};
    struct sl_convert_opts o = pt_opts();
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *pack = pt_path(&room, "hurt");
        const char *dst = pt_path(&room, "never");
        struct sl_err err = {0};
        char path[600];
        pt_convert(TINY_A, pack, &o);
        snprintf(path, sizeof path, "%s/%s", pack, spots[i].file);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        fseek(f, spots[i].at, SEEK_SET);
        int byte = fgetc(f);
        fseek(f, spots[i].at, SEEK_SET);
        fputc(byte ^ 16, f);
        fclose(f);
        assert_int_equal(export_to(pack, dst, 16 << 20, 2, &err), SL_E_PACK);
        cc_expect_text(&err, SL_E_PACK, (const char *const[]){spots[i].say, "crc32", NULL});
        assert_false(pt_exists(dst));
        pt_remove(pack);
    }
}

static void test_target_must_be_empty(void **state)
{
    struct sl_convert_opts o = pt_opts();
    struct sl_err err = {0};
    const char *pack = pt_path(&room, "p");
    const char *dst = pt_path(&room, "taken");
    (void)state;
    pt_convert(TINY_A, pack, &o);
    assert_int_equal(mkdir(dst, 0777), 0);
    if (export_to(pack, dst, 16 << 20, 1, &err)) fail_msg("%s", err.text);
    assert_int_equal(export_to(pack, dst, 16 << 20, 1, &err), SL_E_ARG);
    cc_expect_text(&err, SL_E_ARG, (const char *const[]){"not empty", NULL});
    expect_equal(TINY_A, dst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tensor_comes_back),
        cmocka_unit_test(test_shards_are_ordered_as_released),
        cmocka_unit_test(test_corners_come_back),
        cmocka_unit_test(test_lossy_pack_is_refused),
        cmocka_unit_test(test_damage_is_noticed),
        cmocka_unit_test(test_target_must_be_empty),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
