/* The probe: facts from made-up machines, a drive that is a file, and refusals. Speeds are not judged,
 * only that bytes add up. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "offload/probe.h"
#include "tests/offload/pack_maker.h"

static void gpu_lines(void **state)
{
    (void)state;
    struct sl_board b;
    memset(&b, 0, sizeof b);
    assert_true(sl_probe_gpu_line("NVIDIA H200, 143771, 5, 16\n", &b));
    assert_string_equal(b.gpu.name, "NVIDIA H200");
    assert_int_equal(b.gpu.vram_bytes, (uint64_t)143771 << 20);
    assert_true(b.gpu.link_gbps > 62.9 && b.gpu.link_gbps < 63.1);
    assert_true(sl_probe_gpu_line("Orin (nvgpu), 30000, [N/A], [N/A]\n", &b));
    assert_true(b.gpu.link_gbps == 0);
    static const char *const bad[] = {"",
                                      "\n",
                                      "NVIDIA-SMI has failed because it could not talk to it\n",
                                      "X, , 4, 16\n",
                                      "X, many, 4, 16\n",
                                      "X, 0, 4, 16\n",
                                      "X, 99999999999, 4, 16\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sl_board same = b;
        assert_false(sl_probe_gpu_line(bad[i], &b));
        assert_memory_equal(&b, &same, sizeof b);
    }
}

static void numa_nodes_of_a_tree(void **state)
{
    (void)state;
    char root[256];
    char path[400];
    pm_make_dir(root);
    assert_int_equal(sl_probe_numa_nodes(root), 1); /* no such folder: one node */
    static const char *const names[] = {"node0", "node1", "node12", "nodes", "node", "has_cpu"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/sys/devices/system/node/%s", root, names[i]);
        assert_int_equal(sl_make_dirs(path, NULL), 0);
    }
    assert_int_equal(sl_probe_numa_nodes(root), 3);
    pm_free_dir(root);
}

static void a_file_is_read_and_counted(void **state)
{
    (void)state;
    char dir[256];
    char path[300];
    pm_make_dir(dir);
    snprintf(path, sizeof path, "%s/bank", dir);
    const size_t n = 9 * 8192 + 100;
    uint8_t *data = calloc(1, n);
    assert_non_null(data);
    pm_write(path, data, n);
    static const int depths[] = {1, 3};
    struct sl_probe_drive o = {
        .path = path, .record_bytes = 8000, .seconds = 0.01, .depths = depths, .n_depths = 2};
    struct sl_board_drive d;
    struct sl_probe_drive_report r;
    struct sl_err err = {0};
    int rc = sl_probe_drive(&o, &d, &r, &err);
    if (rc && strstr(err.text, "page cache")) {
        assert_false(r.direct); /* a folder in memory: refused, and rightly */
        assert_true(r.kernel_bytes < r.bytes_read);
    } else {
        if (rc) fail_msg("%s", err.text);
        assert_int_equal(d.record_bytes, 8192);
        assert_int_equal(d.n_depths, 2);
        assert_true(d.read[0].depth == 1 && d.read[1].depth == 3);
        assert_true(d.read[0].gbps > 0 && d.read[1].gbps > 0);
        assert_true(r.bytes_read >= 4 * 8192 && r.bytes_read % 8192 == 0);
        if (r.counted) assert_true((double)r.kernel_bytes >= 0.95 * (double)r.bytes_read);
    }
    assert_int_equal(r.written_bytes, 0);

    o.record_bytes = 16384; /* four of them: too few to be random */
    assert_int_equal(sl_probe_drive(&o, &d, &r, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "8 records"));
    o.path = "/no/such/place";
    assert_int_equal(sl_probe_drive(&o, &d, &r, &err), SL_E_ARG);
    free(data);
    pm_free_dir(dir);
}

static void a_folder_gets_a_bounded_file(void **state)
{
    (void)state;
    char dir[256];
    pm_make_dir(dir);
    static const int depths[] = {2};
    struct sl_probe_drive o = {.path = dir,
                               .record_bytes = 4096,
                               .temp_bytes = 1 << 30,
                               .seconds = 0.01,
                               .depths = depths,
                               .n_depths = 1};
    struct sl_board_drive d;
    struct sl_probe_drive_report r;
    struct sl_err err = {0};
    int rc = sl_probe_drive(&o, &d, &r, &err);
    if (rc && !strstr(err.text, "page cache")) fail_msg("%s", err.text);
    assert_int_equal(r.written_bytes, 64 * 4096);
    assert_int_equal(rmdir(dir), 0); /* it was empty again */
    o.temp_bytes = 7 * 4096;
    pm_make_dir(dir);
    o.path = dir;
    assert_int_equal(sl_probe_drive(&o, &d, &r, &err), SL_E_NOSPACE);
    assert_int_equal(rmdir(dir), 0);
}

static void memory_and_products(void **state)
{
    (void)state;
    struct sl_pool *pool;
    struct sl_board b;
    struct sl_err err = {0};
    double read = 0;
    double copy = 0;
    static const enum sl_fmt fmts[] = {SL_FMT_F32, SL_FMT_T8, SL_FMT_M4, SL_FMT_W26};
    memset(&b, 0, sizeof b);
    assert_int_equal(sl_pool_open(&pool, 2, &err), 0);
    assert_int_equal(sl_probe_memory(pool, 1 << 20, 0.001, &read, &copy, &err), 0);
    assert_true(read > 0 && copy > 0);
    assert_int_equal(sl_probe_products(pool, fmts, 4, 1 << 20, 0.001, &b, &err), 0);
    assert_int_equal(b.cpu.n_muls, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(b.cpu.mul[i].fmt, fmts[i]);
        assert_true(b.cpu.mul[i].decode > 0 && b.cpu.mul[i].prefill > 0);
    }
    static const enum sl_fmt none[] = {SL_FMT_NONE};
    assert_int_equal(sl_probe_products(pool, none, 1, 1 << 20, 0.001, &b, &err), SL_E_ARG);
    sl_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpu_lines),
        cmocka_unit_test(numa_nodes_of_a_tree),
        cmocka_unit_test(a_file_is_read_and_counted),
        cmocka_unit_test(a_folder_gets_a_bounded_file),
        cmocka_unit_test(memory_and_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
