/* Banks and data files that are cut, swapped or made to hurt: refused with file, expert and field; the
 * same pack without the change opens. Edits stand behind correct crcs: they test what the crc cannot. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/offload/pack_maker.h"

#define HEAD(field)                                                                                \
    -1, offsetof(struct sl_bank_header, field), sizeof(((struct sl_bank_header *)0)->field)
#define ENTRY(i, field)                                                                            \
    i, offsetof(struct sl_bank_entry, field), sizeof(((struct sl_bank_entry *)0)->field)
#define PLANE(i, m, s, of) i, offsetof(struct sl_bank_entry, planes[m][s].of), 4
#define BYTE(i, field)     i, offsetof(struct sl_bank_entry, field), 1

static const struct {
    int entry; /* -1: header */
    size_t at, width;
    uint64_t add; /* to the little-endian number there, wrapping */
    const char *w1;
} lies[] = {
    {-1, 3, 1, 1, "magic"},
    {HEAD(version), 1, "version: 2, expected 1"},
    {HEAD(version), UINT32_MAX, "version: 0, expected 1"},
    {HEAD(n_experts), UINT32_MAX, "n_experts: 4, expected 5"},
    {HEAD(n_experts), UINT32_MAX - 5, "n_experts: 4294967295"},
    {HEAD(index_offset), 4096, "index_offset: 8192"},
    {HEAD(index_offset), -(uint64_t)4096, "index_offset: 0"},
    {HEAD(entry_bytes), 128, "entry_bytes: 256"},
    {HEAD(file_bytes), 4096, "file_bytes"},
    {HEAD(file_bytes), -(uint64_t)4096, "file_bytes"},
    {-1, offsetof(struct sl_bank_header, reserved) + 19, 1, 1, "not zero"},
    {ENTRY(0, offset), 12288, "expert 0: offset"},
    {ENTRY(2, offset), -(uint64_t)12288, "expert 2: offset"}, /* the same bytes as expert 1 */
    {ENTRY(4, offset), 12288, "expert 4: offset"},            /* the end of the file */
    {ENTRY(4, offset), (uint64_t)1 << 63, "expert 4: offset"},
    {ENTRY(3, offset), 64, "expert 3: offset"},
    {ENTRY(3, bytes), 4096, "expert 3: bytes 16384"},
    {ENTRY(3, bytes), -(uint64_t)12288, "expert 3: bytes 0"},
    {ENTRY(3, bytes), 1, "expert 3: bytes 12289"},
    {BYTE(1, fmt[SL_UP]), 78, "expert 1: up format 99"},
    {BYTE(1, fmt[SL_GATE]), -(uint64_t)19, "expert 1: gate format 2"},
    {BYTE(1, fmt[SL_GATE]), -(uint64_t)1, "expert 1:"}, /* mxfp4: other planes */
    {BYTE(1, fmt[SL_DOWN]), -(uint64_t)21, "expert 1: down format 0"},
    {BYTE(1, n_planes), 1, "expert 1: n_planes 2"},
    {ENTRY(1, base_bytes), -(uint64_t)4096, "expert 1: base_bytes 8192"},
    {PLANE(1, SL_DOWN, 0, codes), 64, "expert 1: down codes"},
    {PLANE(1, SL_DOWN, 0, codes), 0xf0000000, "expert 1: down codes"},
    {PLANE(1, SL_GATE, 0, scales), 1, "expert 1: gate scales"},
    {PLANE(1, SL_GATE, 0, row_scales), 4, "expert 1: gate row scales"},
    {PLANE(1, SL_GATE, 0, table), 1, "expert 1: gate table at 0"},
    {PLANE(1, SL_UP, 1, codes), 1, "expert 1: up refinement codes at 0"},
    {ENTRY(4, reserved), 1, "expert 4: reserved"},
    {ENTRY(4, base_crc32), 1, "expert 4: base_crc32 1, expected 0"},
};

static void lies_behind_good_crcs_are_named(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, NULL);
    char path[600];
    snprintf(path, sizeof path, "%s", pm_path(&m, pm_bank_name(&m, 2)));
    size_t len;
    uint8_t *good = pm_read(path, &len);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct sl_bank_header h;
        struct sl_bank_entry *index;
        char what[64];
        uint64_t v = 0;
        pm_read_index(path, &h, &index);
        uint8_t *to = lies[i].entry < 0 ? (uint8_t *)&h : (uint8_t *)&index[lies[i].entry];
        memcpy(&v, to + lies[i].at, lies[i].width);
        v += lies[i].add;
        memcpy(to + lies[i].at, &v, lies[i].width);
        pm_write_index(path, &h, index, 5);
        snprintf(what, sizeof what, "case %zu, entry %d, byte %zu", i, lies[i].entry, lies[i].at);
        pm_expect_refusal(m.dir, what, "experts/L002.bank: ", lies[i].w1);
        pm_write(path, good, len);
        free(index);
    }
    sl_pack_close(pm_open(&m));
    free(good);
    pm_free(&m);
}

static void broken_crcs_are_named(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, NULL);
    char path[600];
    snprintf(path, sizeof path, "%s", pm_path(&m, pm_bank_name(&m, 3)));
    static const struct {
        uint64_t at;
        const char *w1;
    } flips[] = {{0, "magic: not a bank"},
                 {12, "header: crc32"},
                 {offsetof(struct sl_bank_header, header_crc32), "header: crc32"},
                 {64, "header: bytes after its fields"},
                 {4095, "header: bytes after its fields"},
                 {4096, "index: crc32"},
                 {4096 + 5 * 128 - 1, "index: crc32"},
                 {4096 + 5 * 128, "index: padding"},
                 {8191, "index: padding"}};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        pm_flip(path, flips[i].at, 0x40);
        pm_expect_refusal(m.dir, flips[i].w1, "experts/L003.bank: ", flips[i].w1);
        pm_flip(path, flips[i].at, 0x40);
    }
    sl_pack_close(pm_open(&m));
    /* A byte of a record is not open's business: records are not read. */
    pm_flip(path, 8192, 0x40);
    sl_pack_close(pm_open(&m));
    pm_free(&m);
}

static void files_of_another_size_or_kind_are_named(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.vision = true});
    static const char *const files[] = {"trunk.bin", "vision.bin", "experts/L001.bank",
                                        "experts/L003.bank"};
    for (int i = 0; i < 4; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s", pm_path(&m, files[i]));
        size_t len;
        uint8_t *good = pm_read(path, &len);
        const uint64_t sizes[] = {0, 1, 63, 4096, len - 4096, len - 1, len + 1, len + 4096};
        for (int j = 0; j < 8; j++) {
            if (sizes[j] == len) continue;
            pm_truncate(path, sizes[j]);
            char number[32];
            snprintf(number, sizeof number, "%llu bytes", (unsigned long long)sizes[j]);
            pm_expect_refusal(m.dir, files[i], files[i], number);
            pm_write(path, good, len);
        }
        assert_int_equal(unlink(path), 0);
        pm_expect_refusal(m.dir, "file missing", files[i], i < 2 ? "No such file" : "not found");
        assert_int_equal(mkdir(path, 0777), 0);
        pm_expect_refusal(m.dir, "a folder in its place", files[i], "");
        assert_int_equal(rmdir(path), 0);
        /* A pipe must be refused, not waited for. */
        assert_int_equal(mkfifo(path, 0666), 0);
        pm_expect_refusal(m.dir, "a pipe in its place", files[i], "not a regular file");
        assert_int_equal(unlink(path), 0);
        pm_write(path, good, len);
        sl_pack_close(pm_open(&m));
        free(good);
    }
    pm_free(&m);
}

static void all_missing_banks_are_listed(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, NULL);
    assert_int_equal(unlink(pm_path(&m, "experts/L001.bank")), 0);
    assert_int_equal(unlink(pm_path(&m, "experts/L003.bank")), 0);
    pm_expect_refusal(m.dir, "two missing",
                      "2 bank files not found: experts/L001.bank, experts/L003.bank;",
                      "--bank-dir");
    pm_free(&m);

    /* More than a line holds: the count is right, and the list says that it goes on. */
    pm_make(&m, &(struct pm_spec){
                    .n_layers = 120, .n_experts = 2, .top_k = 1, .latent = 32, .width = 32});
    for (int l = 1; l < 120; l++) assert_int_equal(unlink(pm_path(&m, pm_bank_name(&m, l))), 0);
    pm_expect_refusal(m.dir, "all missing", "119 bank files not found: experts/L001.bank, ",
                      ", ...; give");
    pm_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_behind_good_crcs_are_named),
        cmocka_unit_test(broken_crcs_are_named),
        cmocka_unit_test(files_of_another_size_or_kind_are_named),
        cmocka_unit_test(all_missing_banks_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
