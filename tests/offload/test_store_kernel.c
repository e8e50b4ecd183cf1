/* The store's counters beside the kernel's: bytes fetched from storage, and pages left in the cache. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/store_bench.h"
#include "tests/offload/pack_maker.h"

enum { FILE_BYTES = 24 << 20, RECORD = 11 * 4096 };

struct scene {
    char dir[256], path[300];
};

/* Random bytes on the drive, none of them in the page cache. */
static void make_file(struct scene *c)
{
    uint32_t *bytes = malloc(FILE_BYTES);
    uint32_t rnd = 1;
    assert_non_null(bytes);
    for (size_t i = 0; i < FILE_BYTES / sizeof *bytes; i++)
        bytes[i] = rnd = rnd * 1664525u + 1013904223u;
    pm_make_dir(c->dir);
    snprintf(c->path, sizeof c->path, "%s/file", c->dir);
    pm_write(c->path, bytes, FILE_BYTES);
    free(bytes);
    int fd = open(c->path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
}

static size_t pages_in_cache(const struct scene *c)
{
    size_t n = FILE_BYTES / SL_PAGE;
    size_t resident = 0;
    unsigned char *in = malloc(n);
    int fd = open(c->path, O_RDONLY | O_CLOEXEC);
    void *map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(in && fd >= 0 && map != MAP_FAILED);
    assert_int_equal(mincore(map, FILE_BYTES, in), 0);
    for (size_t i = 0; i < n; i++) resident += in[i] & 1;
    munmap(map, FILE_BYTES);
    close(fd);
    free(in);
    return resident;
}

static void compare(enum sl_io io)
{
    struct scene c;
    struct sl_bench_io_report r;
    struct sl_err err = {0};
    make_file(&c);
    size_t before = pages_in_cache(&c);
    const struct sl_bench_io_opts o = {
        .path = c.path, .record_bytes = RECORD, .depth = 4, .seconds = 0.1, .io = io};
    if (sl_bench_io(&o, &r, &err)) fail_msg("%s", err.text);
    size_t after = pages_in_cache(&c);
    pm_free_dir(c.dir);
    assert_int_equal(r.io, io);
    assert_int_equal(r.n_records, FILE_BYTES / RECORD);
    assert_int_equal(r.bytes_read, r.reads * RECORD);
    if (io == SL_IO_MMAP) { /* the control: this way does go through the cache */
        assert_true(after > before);
        return;
    }
    if (!r.direct) {
        printf("SKIP %s: this file system has no direct reads\n", sl_io_name(io));
        skip();
    }
    print_message("%s: ours %llu, kernel %llu, pages in cache %zu -> %zu\n", sl_io_name(io),
                  (unsigned long long)r.bytes_read, (unsigned long long)r.kernel_bytes, before,
                  after);
    assert_true(after <= before + 1);
    if (!r.counted || !r.kernel_bytes) {
        printf("SKIP %s: the kernel keeps no account of reads here\n", sl_io_name(io));
        skip();
    }
    uint64_t off = r.kernel_bytes > r.bytes_read ? r.kernel_bytes - r.bytes_read
                                                 : r.bytes_read - r.kernel_bytes;
    assert_true(off * 100 <= r.bytes_read);
}

static void preads_are_what_the_kernel_counts(void **state)
{
    (void)state;
    compare(SL_IO_PREAD);
}

static void uring_reads_are_what_the_kernel_counts(void **state)
{
    (void)state;
    if (!pm_can_read(SL_IO_URING)) skip();
    compare(SL_IO_URING);
}

static void a_mapping_fills_the_page_cache(void **state)
{
    (void)state;
    compare(SL_IO_MMAP);
}

static void a_folder_gets_a_file_and_loses_it(void **state)
{
    (void)state;
    char dir[256];
    struct sl_bench_io_report r;
    struct sl_err err = {0};
    pm_make_dir(dir);
    struct sl_bench_io_opts o = {
        .path = dir, .record_bytes = 5000, .temp_bytes = 100 * 8192, .depth = 3};
    if (sl_bench_io(&o, &r, &err)) fail_msg("%s", err.text);
    assert_int_equal(r.record_bytes, 8192);
    assert_int_equal(r.n_records, 100);
    assert_true(r.reads >= 3);
    assert_int_equal(rmdir(dir), 0); /* nothing is left in it */
    pm_make_dir(dir);
    o.temp_bytes = 7 * 8192;
    assert_int_equal(sl_bench_io(&o, &r, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "hold 7 records of 8192; depth 3 needs 8"));
    assert_int_equal(rmdir(dir), 0);
    o.depth = 65;
    assert_int_equal(sl_bench_io(&o, &r, &err), SL_E_ARG);
    o.depth = 1;
    o.path = "/nonexistent/file";
    assert_int_equal(sl_bench_io(&o, &r, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "/nonexistent/file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preads_are_what_the_kernel_counts),
        cmocka_unit_test(uring_reads_are_what_the_kernel_counts),
        cmocka_unit_test(a_mapping_fills_the_page_cache),
        cmocka_unit_test(a_folder_gets_a_file_and_loses_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
