/* Every kept input of tests/fuzz/corpus/TARGET/ through its target, the starting inputs too, and a few
 * thousand edits of each sound file: what the fuzzers found once, without clang. A target fails by an
 * assertion or a crash. */
#define _GNU_SOURCE
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/fuzz/fuzz_targets.h"

static int replay_folder(const struct fz_target *t)
{
    char dir[300];
    int n = 0;
    snprintf(dir, sizeof dir, "tests/fuzz/corpus/%s", t->name);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[600];
        size_t size;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        uint8_t *p = fz_read(path, &size);
        t->run(p, size);
        free(p);
        n++;
    }
    if (d) closedir(d);
    return n;
}

static uint32_t rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* Sound files with one to three edits, checksums good half of the time. */
static void edit_some(const struct fz_target *t, int n)
{
    uint64_t s = 20260101;
    for (int i = 0; i < n; i++) {
        uint8_t in[1 + 3 * 8];
        size_t edits = 1 + rnd(&s) % 3;
        in[0] = (uint8_t)(1 | (rnd(&s) & 2));
        for (size_t k = 0; k < edits * 8; k++) in[1 + k] = (uint8_t)rnd(&s);
        /* Headers are at the front. */
        for (size_t k = 0; k < edits; k++)
            if (rnd(&s) % 2) in[1 + 8 * k + 2] = 0;
        t->run(in, 1 + edits * 8);
    }
}

static void test_target(void **state)
{
    const struct fz_target *t = *state;
    uint8_t *p;
    size_t size;
    int n = 0;
    for (int i = 0; (p = t->seed(i, &size)); i++, n++) {
        t->run(p, size);
        free(p);
    }
    assert_true(n > 0);
    t->run((const uint8_t *)"", 0);
    replay_folder(t);
    edit_some(t, 400);
}

int main(void)
{
    struct CMUnitTest tests[64];
    memset(tests, 0, sizeof tests);
    for (int i = 0; i < fz_n_targets && i < 64; i++) {
        tests[i].name = fz_targets[i].name;
        tests[i].test_func = test_target;
        tests[i].initial_state = (void *)(uintptr_t)&fz_targets[i];
    }
    return _cmocka_run_group_tests("fuzz_replay", tests, (size_t)fz_n_targets, NULL, NULL);
}
