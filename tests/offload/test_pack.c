/* Opening sound packs: what the struct holds equals what was written, and banks are found. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "tests/offload/pack_maker.h"

static void pack_holds_what_was_written(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.vision = true});
    struct sl_pack *p = pm_open(&m);
    assert_string_equal(p->dir, m.dir);
    assert_int_equal(p->cfg.n_layers, 4);
    assert_int_equal(p->cfg.n_experts, 5);
    assert_string_equal(p->source_prefix, "language_model.");
    assert_int_equal(p->source_payload_bytes, 123456);
    assert_int_equal(p->experts_fmt, SL_FMT_M4);
    assert_int_equal(p->trunk_fmt, SL_FMT_BF16);
    assert_int_equal(p->trunk_bytes, pm_size(pm_path(&m, "trunk.bin")));
    assert_int_equal(p->vision_bytes, pm_size(pm_path(&m, "vision.bin")));
    assert_int_equal(p->n_tensors, 4 * 7 + 3);
    assert_int_equal(p->n_vision, 2);
    assert_int_equal(p->slot_bytes, 3 * SL_PAGE);
    assert_int_equal(p->n_banks, 3);
    assert_int_equal(p->bank_of[0], -1);
    for (int l = 1; l < 4; l++) {
        assert_int_equal(p->bank_of[l], l - 1);
        assert_string_equal(p->banks[l - 1].label, pm_bank_name(&m, l));
    }
    uint64_t banks = 0;
    for (int l = 1; l < 4; l++) banks += pm_size(pm_path(&m, pm_bank_name(&m, l)));
    assert_int_equal(sl_pack_bank_bytes(p), banks);
    for (int i = 1; i < p->n_tensors; i++)
        assert_true(p->tensors[i].offset >= p->tensors[i - 1].offset + p->tensors[i - 1].bytes);
    sl_pack_close(p);
    pm_free(&m);
}

static void tensors_are_found_by_name(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.vision = true});
    struct sl_pack *p = pm_open(&m);
    const struct sl_tensor *t = sl_pack_find(p, "model.layers.2.self_attn.q_conv1d.weight");
    assert_non_null(t);
    assert_string_equal(t->name, "model.layers.2.self_attn.q_conv1d.weight");
    assert_int_equal(t->fmt, SL_FMT_F32);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->shape[0], 48);
    assert_int_equal(t->shape[2], 4);
    assert_int_equal(t->bytes, 48 * 4 * 4);
    uint8_t *want = pm_tensor(&m, t);
    uint8_t *got = malloc(t->bytes);
    assert_int_equal(sl_pread_all(p->trunk_fd, got, t->bytes, t->offset, "trunk", SL_E_PACK, NULL),
                     0);
    assert_memory_equal(got, want, t->bytes);
    free(want);
    free(got);
    assert_null(sl_pack_find(p, "model.layers.2.self_attn.q_conv1d.weigh"));
    assert_null(sl_pack_find(p, ""));
    assert_null(sl_pack_find(p, "mm_projector.proj.0.weight"));
    assert_non_null(sl_pack_find_vision(p, "mm_projector.proj.0.weight"));
    assert_null(sl_pack_find_vision(p, "lm_head.weight"));
    sl_pack_close(p);
    pm_free(&m);
}

/* Views must point at the planes of the layout, with the shapes of gate, up and down. */
static void record_views_point_at_planes(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, NULL);
    struct sl_pack *p = pm_open(&m);
    for (int x = 0; x < 5; x++) {
        const struct sl_bank_entry *e = &p->banks[0].entries[x];
        uint32_t bytes;
        uint8_t *r = pm_record(&m, 1, x, &bytes);
        struct sl_mat mat[SL_N_MATS];
        enum sl_fmt fmt[SL_N_MATS];
        pm_formats(x, fmt);
        sl_record_views(e, r, 96, 64, mat);
        for (int i = 0; i < SL_N_MATS; i++) {
            assert_int_equal(mat[i].fmt, fmt[i]);
            assert_int_equal(mat[i].rows, i == SL_DOWN ? 96 : 64);
            assert_int_equal(mat[i].cols, i == SL_DOWN ? 64 : 96);
            assert_ptr_equal(mat[i].codes, r + e->planes[i][0].codes);
            assert_ptr_equal(mat[i].scales, r + e->planes[i][0].scales);
            if (fmt[i] == SL_FMT_M4)
                assert_ptr_equal(mat[i].row_scales, r + e->planes[i][0].row_scales);
            else
                assert_null(mat[i].row_scales);
            assert_null(mat[i].table);
        }
        free(r);
    }
    sl_pack_close(p);
    pm_free(&m);
}

static void layers_may_share_banks_and_trunk_ranges(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.n_layers = 6, .alias_banks = true, .alias_trunk = true});
    struct sl_pack *p = pm_open(&m);
    assert_int_equal(p->n_banks, 1);
    for (int l = 1; l < 6; l++) assert_int_equal(p->bank_of[l], 0);
    const struct sl_tensor *a = sl_pack_find(p, "model.layers.1.self_attn.q_proj.weight");
    const struct sl_tensor *b = sl_pack_find(p, "model.layers.5.self_attn.q_proj.weight");
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(a->offset, b->offset);
    assert_true(a != b);
    assert_int_equal(p->layer_range[1].offset, p->layer_range[5].offset);
    sl_pack_close(p);
    pm_free(&m);
}

static void move(const char *from, const char *to_dir, const char *name)
{
    char to[600];
    snprintf(to, sizeof to, "%s/%s", to_dir, name);
    assert_int_equal(rename(from, to), 0);
}

/* Order: folders given now, the recorded folder, PACK/experts. */
static void banks_are_searched_in_order(void **state)
{
    (void)state;
    struct pm_pack m;
    struct sl_pack *p;
    struct sl_err err = {0};
    char other[256];
    char absolute[SL_PATH_MAX];
    pm_make(&m, NULL);
    pm_make_dir(other);
    move(pm_path(&m, "experts/L002.bank"), other, "L002.bank");
    assert_int_equal(sl_pack_open(&p, m.dir, NULL, 0, &err), SL_E_PACK);
    const char *dirs[] = {"/nonexistent", other};
    assert_int_equal(sl_pack_open(&p, m.dir, dirs, 2, &err), SL_E_PACK);
    assert_non_null(strstr(err.text, "/nonexistent: --bank-dir: ")); /* a drive is not there */
    dirs[0] = m.dir;                                                 /* holds no banks */
    assert_int_equal(sl_pack_open(&p, m.dir, dirs, 2, &err), 0);
    assert_non_null(strstr(p->banks[1].path, other));
    assert_string_equal(p->banks[1].label, p->banks[1].path); /* outside: named in full */
    sl_pack_close(p);

    /* Recorded as an absolute folder. */
    assert_non_null(realpath(other, absolute));
    cJSON *root = pm_load(&m);
    cJSON *bank = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "banks"), 2);
    cJSON_ReplaceItemInObject(bank, "dir", cJSON_CreateString(absolute));
    pm_save(&m, root);
    p = pm_open(&m);
    sl_pack_close(p);

    /* Recorded elsewhere, but someone put it back into the pack. */
    char back[600];
    snprintf(back, sizeof back, "%s/L002.bank", other);
    move(back, pm_path(&m, "experts"), "L002.bank");
    p = pm_open(&m);
    assert_string_equal(p->banks[1].label, "experts/L002.bank");
    sl_pack_close(p);

    /* In two places: the recorded folder wins over PACK/experts, a folder given now over both. */
    size_t len;
    uint8_t *bytes = pm_read(pm_path(&m, "experts/L002.bank"), &len);
    pm_write(back, bytes, len);
    free(bytes);
    p = pm_open(&m);
    assert_non_null(strstr(p->banks[1].path, absolute));
    sl_pack_close(p);
    const char *given = pm_path(&m, "experts");
    assert_int_equal(sl_pack_open(&p, m.dir, &given, 1, &err), 0);
    assert_string_equal(p->banks[1].label, "experts/L002.bank");
    sl_pack_close(p);
    assert_int_equal(unlink(back), 0);
    p = pm_open(&m);
    assert_string_equal(p->banks[1].label, "experts/L002.bank");
    sl_pack_close(p);
    pm_free_dir(other);
    pm_free(&m);
}

static void unknown_keys_are_ignored(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, NULL);
    cJSON *root = pm_load(&m);
    cJSON_AddStringToObject(root, "colour", "blue");
    cJSON_AddNumberToObject(cJSON_GetObjectItem(root, "source"), "weight", 7);
    cJSON *t =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItem(root, "tensors"), "lm_head.weight");
    cJSON_AddNullToObject(t, "note");
    pm_save(&m, root);
    sl_pack_close(pm_open(&m));
    pm_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack_holds_what_was_written),
        cmocka_unit_test(tensors_are_found_by_name),
        cmocka_unit_test(record_views_point_at_planes),
        cmocka_unit_test(layers_may_share_banks_and_trunk_ranges),
        cmocka_unit_test(banks_are_searched_in_order),
        cmocka_unit_test(unknown_keys_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
