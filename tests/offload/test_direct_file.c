/* Direct reads: the right bytes under every misbehaviour of pread, honest ends, and no growth of the
 * page cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/size.h"
#include "tests/offload/faulty_reader.h"
#include "tests/offload/pack_maker.h"

#define FILE_BYTES (5 * 4096 + 1234)

struct scene {
    char dir[256], path[300];
    uint8_t *want; /* [FILE_BYTES] */
    uint8_t *buf;  /* page-aligned, [8 * 4096] */
    int fd;
    struct sl_direct_file f;
    struct faulty_reader faults;
};

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    pm_make_dir(s->dir);
    snprintf(s->path, sizeof s->path, "%s/data", s->dir);
    s->want = malloc(FILE_BYTES);
    s->buf = aligned_alloc(4096, 8 * 4096);
    assert_non_null(s->want);
    assert_non_null(s->buf);
    for (int i = 0; i < FILE_BYTES; i++) s->want[i] = (uint8_t)(i * 2654435761u >> 13);
    pm_write(s->path, s->want, FILE_BYTES);
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC);
    assert_true(s->fd >= 0);
    assert_int_equal(fsync(s->fd), 0);
    fr_init(&s->faults);
    sl_direct_open(&s->f, s->path, s->fd, &s->faults.ops);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    sl_direct_close(&s->f);
    close(s->fd);
    fr_free(&s->faults);
    pm_free_dir(s->dir);
    free(s->want);
    free(s->buf);
    free(s);
    return 0;
}

static void expect_bytes(struct scene *s, size_t n, uint64_t off)
{
    memset(s->buf, 0xee, 8 * 4096);
    assert_int_equal(sl_direct_read(&s->f, s->buf, n, off), n);
    assert_memory_equal(s->buf, s->want + off, n);
    /* Room beyond n, up to the page, may be written; beyond that it may not. */
    for (size_t i = sl_align_up(n, 4096); i < 8 * 4096; i++) assert_int_equal(s->buf[i], 0xee);
}

static void all_lengths_and_the_end(void **state)
{
    struct scene *s = *state;
    expect_bytes(s, FILE_BYTES, 0);
    expect_bytes(s, 4096, 8192);
    expect_bytes(s, 1, 4096);
    expect_bytes(s, 5000, 4096);
    expect_bytes(s, 1234, 5 * 4096);
    assert_int_equal(sl_direct_read(&s->f, s->buf, 4096, 5 * 4096), 1234);
    assert_int_equal(sl_direct_read(&s->f, s->buf, 8192, 4 * 4096), 4096 + 1234);
    assert_int_equal(sl_direct_read(&s->f, s->buf, 4096, 6 * 4096), 0);
    assert_int_equal(sl_direct_read(&s->f, s->buf, 4096, 400 * 4096), 0);
    assert_int_equal(sl_direct_read(&s->f, s->buf, 0, 0), 0);
    assert_int_equal(sl_direct_read(&s->f, s->buf, 4096, UINT64_MAX - 4095), -EOVERFLOW);
}

static void short_and_interrupted_reads_go_on(void **state)
{
    struct scene *s = *state;
    static const int64_t counts[] = {1, 100, 511, 512, 4095, 4096, 4097, 8192, 10000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        fr_clear(&s->faults);
        fr_add(&s->faults, FR_SHORT, 0, UINT64_MAX, counts[i], -1);
        expect_bytes(s, FILE_BYTES, 0);
        expect_bytes(s, 9000, 4096);
        assert_int_equal(sl_direct_read(&s->f, s->buf, 8192, 4 * 4096), 4096 + 1234);
    }
    fr_clear(&s->faults);
    fr_add(&s->faults, FR_ERRNO, 0, UINT64_MAX, EINTR, 5);
    int before = fr_reads(&s->faults);
    expect_bytes(s, FILE_BYTES, 0);
    assert_true(fr_reads(&s->faults) >= before + 6);
}

static void errors_are_returned(void **state)
{
    struct scene *s = *state;
    fr_add(&s->faults, FR_ERRNO, 0, UINT64_MAX, EIO, 1);
    assert_int_equal(sl_direct_read(&s->f, s->buf, 4096, 0), -EIO);
    expect_bytes(s, 4096, 0); /* and forgotten */
    /* In the middle, after good bytes. */
    fr_clear(&s->faults);
    fr_add(&s->faults, FR_SHORT, 0, 1, 4096, 1);
    fr_add(&s->faults, FR_ERRNO, 1, UINT64_MAX, EIO, 1);
    assert_int_equal(sl_direct_read(&s->f, s->buf, 12288, 0), -EIO);
}

/* A drive may ask for more than page alignment: EINVAL sends the rest to the plain descriptor. */
static void a_refused_direct_read_is_done_plainly(void **state)
{
    struct scene *s = *state;
    if (!sl_direct_in_effect(&s->f)) {
        print_message("SKIP O_DIRECT is not in effect here\n");
        skip();
    }
    fr_add(&s->faults, FR_ERRNO, 0, UINT64_MAX, EINVAL, 1);
    expect_bytes(s, FILE_BYTES, 0);
    assert_int_equal(fr_reads(&s->faults), 2);
}

static void another_file_of_that_name_is_not_used(void **state)
{
    struct scene *s = *state;
    struct sl_direct_file other;
    char path[320];
    snprintf(path, sizeof path, "%s2", s->path);
    pm_write(path, "not it", 6);
    sl_direct_open(&other, path, s->fd, NULL);
    assert_false(sl_direct_in_effect(&other));
    memset(s->buf, 0, 4096);
    assert_int_equal(sl_direct_read(&other, s->buf, 4096, 0), 4096);
    assert_memory_equal(s->buf, s->want, 4096);
    sl_direct_close(&other);
    sl_direct_open(&other, "/nonexistent/file", s->fd, NULL);
    assert_false(sl_direct_in_effect(&other));
    assert_int_equal(sl_direct_read(&other, s->buf, 4096, 0), 4096);
    sl_direct_close(&other);
}

static int resident_pages(struct scene *s)
{
    unsigned char vec[6];
    void *map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, s->fd, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mincore(map, FILE_BYTES, vec), 0);
    assert_int_equal(munmap(map, FILE_BYTES), 0);
    int n = 0;
    for (int i = 0; i < 6; i++) n += vec[i] & 1;
    return n;
}

/* Direct or not, what was read does not stay in the cache; a plain read shows that it would have. */
static void the_page_cache_does_not_grow(void **state)
{
    struct scene *s = *state;
    struct sl_direct_file plain = {.plain_fd = s->fd, .direct_fd = -1, .ops = s->f.ops};
    struct statfs fs;
    assert_int_equal(fstatfs(s->fd, &fs), 0);
    assert_int_equal(posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    if (fs.f_type == 0x01021994 || resident_pages(s)) {
        print_message("SKIP this file system lives in the page cache\n");
        skip();
    }
    expect_bytes(s, FILE_BYTES, 0);
    assert_int_equal(resident_pages(s), 0);
    assert_int_equal(sl_direct_read(&plain, s->buf, FILE_BYTES, 0), FILE_BYTES);
    assert_memory_equal(s->buf, s->want, FILE_BYTES);
    assert_int_equal(resident_pages(s), 0);
    assert_int_equal(pread(s->fd, s->buf, FILE_BYTES, 0), FILE_BYTES);
    assert_true(resident_pages(s) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_lengths_and_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(short_and_interrupted_reads_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(errors_are_returned, setup, teardown),
        cmocka_unit_test_setup_teardown(a_refused_direct_read_is_done_plainly, setup, teardown),
        cmocka_unit_test_setup_teardown(another_file_of_that_name_is_not_used, setup, teardown),
        cmocka_unit_test_setup_teardown(the_page_cache_does_not_grow, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
