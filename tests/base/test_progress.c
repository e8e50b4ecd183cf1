/* The progress line: numbers that agree with each other, silence where nobody looks. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/progress.h"

static int saved_stderr = -1;

static void stderr_to(int fd)
{
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
}

static void stderr_back(void)
{
    fflush(stderr);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
}

static int temporary(void)
{
    char path[] = "/tmp/sluice_test_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    return fd;
}

static void content(int fd, char *buf, size_t n)
{
    ssize_t got = pread(fd, buf, n - 1, 0);
    assert_true(got >= 0);
    buf[got] = '\0';
}

static void quiet_elsewhere(void **state)
{
    (void)state;
    unsetenv("SLUICE_PROGRESS");
    int fd = temporary();
    stderr_to(fd);
    struct sl_progress *p = sl_progress_open("convert", "layers", 10, 100);
    sl_progress_add(p, 1, 10);
    usleep(250000);
    sl_progress_add(p, 1, 10);
    sl_progress_close(p);
    stderr_back();
    char text[64];
    content(fd, text, sizeof text);
    assert_string_equal(text, "");
    close(fd);
    sl_progress_add(NULL, 1, 1);
    sl_progress_skip(NULL, 1, 1);
    sl_progress_close(NULL);
}

static void a_line_counts_old_work_but_not_in_the_rate(void **state)
{
    (void)state;
    setenv("SLUICE_PROGRESS", "1", 1);
    int fd = temporary();
    stderr_to(fd);
    struct sl_progress *p = sl_progress_open("convert", "layers", 92, 1447000000000u);
    sl_progress_skip(p, 30, 400000000000u);
    usleep(300000);
    sl_progress_add(p, 1, 89000000000u);
    sl_progress_close(p);
    stderr_back();
    char text[1024];
    content(fd, text, sizeof text);
    close(fd);
    const char *line = strstr(text, "\n"); /* one line at the add, one at the end */
    assert_non_null(line);
    static const char want[] = "convert  31/92 layers  489/1447 GB  ";
    assert_int_equal(strncmp(text, want, strlen(want)), 0);
    assert_int_equal(strncmp(line + 1, want, strlen(want)), 0);
    double rate = 0;
    int eta = -1;
    assert_int_equal(sscanf(text + strlen(want), "%lf GB/s  eta %ds\n", &rate, &eta), 2);
    /* 89 GB in at least 0.3 s: with the 400 GB of the earlier run it would exceed this bound */
    assert_true(rate > 0 && rate < 300);
    double left = 958.0 / rate;
    assert_true(eta >= (int)left && eta <= (int)left + 1);
}

static void without_units_and_without_bytes(void **state)
{
    (void)state;
    setenv("SLUICE_PROGRESS", "1", 1);
    int fd = temporary();
    stderr_to(fd);
    struct sl_progress *p = sl_progress_open("verify", NULL, 0, 2500000);
    sl_progress_add(p, 0, 500000);
    sl_progress_close(p);
    p = sl_progress_open("scan", "shards", 96, 0);
    sl_progress_add(p, 5, 0);
    sl_progress_close(p);
    p = sl_progress_open("idle", NULL, 0, 0);
    sl_progress_close(p);
    stderr_back();
    char text[1024];
    content(fd, text, sizeof text);
    close(fd);
    assert_non_null(strstr(text, "verify  0.50/2.50 MB  "));
    assert_non_null(strstr(text, "\nscan  5/96 shards  eta "));
    assert_non_null(strstr(text, "\nidle  eta ?\n"));
}

static void *add_many(void *arg)
{
    for (int i = 0; i < 20000; i++) sl_progress_add(arg, 1, 1000);
    return NULL;
}

static void workers_add_together(void **state)
{
    (void)state;
    setenv("SLUICE_PROGRESS", "1", 1);
    int fd = temporary();
    stderr_to(fd);
    struct sl_progress *p = sl_progress_open("read", "records", 80000, 80000000);
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, add_many, p);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    sl_progress_close(p);
    stderr_back();
    char text[65536];
    content(fd, text, sizeof text);
    close(fd);
    assert_non_null(strstr(text, "read  80000/80000 records  80.0/80.0 MB  "));
    assert_non_null(strstr(text, "eta 0s\n"));
}

static void a_terminal_line_fits_and_is_cleared(void **state)
{
    (void)state;
    unsetenv("SLUICE_PROGRESS");
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    char name[64];
    int slave = -1;
    if (master >= 0 && !grantpt(master) && !unlockpt(master) &&
        !ptsname_r(master, name, sizeof name))
        slave = open(name, O_RDWR | O_NOCTTY);
    if (slave < 0) {
        if (master >= 0) close(master);
        print_message("SKIP no pseudo-terminal\n");
        skip();
    }
    struct winsize ws = {.ws_row = 24, .ws_col = 30};
    ioctl(slave, TIOCSWINSZ, &ws);
    stderr_to(slave);
    struct sl_progress *p = sl_progress_open("convert", "layers", 92, 1447000000000u);
    usleep(250000);
    sl_progress_add(p, 31, 489000000000u);
    sl_progress_close(p);
    stderr_back();
    char text[512];
    ssize_t got = read(master, text, sizeof text - 1);
    assert_true(got > 0);
    text[got] = '\0';
    assert_string_equal(text, "\rconvert  31/92 layers  489/14\033[K\r\033[K");
    close(slave);
    close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quiet_elsewhere),
        cmocka_unit_test(a_line_counts_old_work_but_not_in_the_rate),
        cmocka_unit_test(without_units_and_without_bytes),
        cmocka_unit_test(workers_add_together),
        cmocka_unit_test(a_terminal_line_fits_and_is_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
