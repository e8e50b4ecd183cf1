/* Limits from made-up machines (folders with proc/ and sys/), and the arithmetic of groups. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/size.h"
#include "offload/budget.h"
#include "tests/offload/pack_maker.h"

#define GIB ((uint64_t)1 << 30)

/* Writes root/path, folders included. */
static void put(const char *root, const char *path, const char *text)
{
    char full[700];
    snprintf(full, sizeof full, "%s/%s", root, path);
    char *slash = strrchr(full, '/');
    *slash = '\0';
    assert_int_equal(sl_make_dirs(full, NULL), 0);
    *slash = '/';
    pm_write(full, text, strlen(text));
}

static struct sl_memory_limit limit_of(const char *root, uint64_t ram)
{
    struct sl_memory_limit l;
    struct sl_err err = {0};
    if (sl_budget_machine_limit(root, ram, &l, &err)) fail_msg("%s", err.text);
    return l;
}

static const char meminfo_64g[] = "MemTotal:       67108864 kB\nMemFree:         1000 kB\n";

static void physical_memory_with_a_reserve(void **state)
{
    (void)state;
    char root[256];
    pm_make_dir(root);
    struct sl_memory_limit l;
    struct sl_err err = {0};
    assert_int_equal(sl_budget_machine_limit(root, 0, &l, &err), SL_E_IO);
    assert_non_null(strstr(err.text, "MemTotal"));
    put(root, "proc/meminfo", meminfo_64g);
    l = limit_of(root, 0);
    assert_int_equal(l.physical_bytes, 64 * GIB);
    assert_true(l.cgroup_bytes == SL_NO_LIMIT && l.ram_bytes == SL_NO_LIMIT);
    assert_int_equal(l.limit_bytes, 64 * GIB);
    assert_int_equal(l.reserve_bytes, 8 * GIB);
    assert_string_equal(l.source, "physical memory");
    put(root, "proc/meminfo", "MemTotal: 4194304 kB\n");
    assert_int_equal(limit_of(root, 0).reserve_bytes, GIB); /* a quarter */
    pm_free_dir(root);
}

static void the_users_number_is_a_promise(void **state)
{
    (void)state;
    char root[256];
    pm_make_dir(root);
    put(root, "proc/meminfo", meminfo_64g);
    struct sl_memory_limit l = limit_of(root, 10 * GIB);
    assert_int_equal(l.limit_bytes, 10 * GIB);
    assert_int_equal(l.reserve_bytes, 0);
    assert_string_equal(l.source, "--ram");
    l = limit_of(root, 64 * GIB); /* all of it, because someone said so */
    assert_int_equal(l.limit_bytes, 64 * GIB);
    assert_int_equal(l.reserve_bytes, 0);
    l = limit_of(root, 100 * GIB); /* more than there is: the machine decides */
    assert_int_equal(l.limit_bytes, 64 * GIB);
    assert_int_equal(l.reserve_bytes, 8 * GIB);
    assert_string_equal(l.source, "physical memory");
    pm_free_dir(root);
}

static void v2_limits_hold_up_the_tree(void **state)
{
    (void)state;
    char root[256];
    pm_make_dir(root);
    put(root, "proc/meminfo", meminfo_64g);
    put(root, "proc/self/cgroup", "0::/user/app/job\n");
    put(root, "sys/fs/cgroup/user/app/job/memory.max", "max\n");
    assert_true(limit_of(root, 0).cgroup_bytes == SL_NO_LIMIT);
    put(root, "sys/fs/cgroup/user/memory.max", "34359738368\n"); /* 32 GiB, two levels up */
    struct sl_memory_limit l = limit_of(root, 0);
    assert_int_equal(l.cgroup_bytes, 32 * GIB);
    assert_int_equal(l.limit_bytes, 32 * GIB);
    assert_int_equal(l.reserve_bytes, GIB); /* 1/16 is 2 GiB */
    assert_string_equal(l.source, "cgroup limit");
    put(root, "sys/fs/cgroup/user/app/job/memory.max", "8589934592\n"); /* nested, smaller */
    assert_int_equal(limit_of(root, 0).limit_bytes, 8 * GIB);
    assert_int_equal(limit_of(root, 0).reserve_bytes, GIB / 2);
    put(root, "sys/fs/cgroup/user/app/memory.max", "17179869184\n"); /* larger: no change */
    assert_int_equal(limit_of(root, 0).limit_bytes, 8 * GIB);
    put(root, "sys/fs/cgroup/user/app/memory.high", "4294967296\n"); /* throttles: a ceiling */
    assert_int_equal(limit_of(root, 0).limit_bytes, 4 * GIB);
    put(root, "sys/fs/cgroup/memory.max",
        "2147483648\n"); /* the mount itself: a container's view */
    assert_int_equal(limit_of(root, 0).limit_bytes, 2 * GIB);
    assert_int_equal(limit_of(root, GIB).limit_bytes, GIB);
    put(root, "proc/self/cgroup", "0::/\n");
    assert_int_equal(limit_of(root, 0).limit_bytes, 2 * GIB);
    put(root, "proc/self/cgroup", "0::/../../elsewhere\n"); /* outside our namespace */
    assert_int_equal(limit_of(root, 0).limit_bytes, 2 * GIB);
    pm_free_dir(root);
}

static void v1_limits_and_their_huge_numbers(void **state)
{
    (void)state;
    char root[256];
    pm_make_dir(root);
    put(root, "proc/meminfo", meminfo_64g);
    put(root, "proc/self/cgroup", "12:cpu,cpuacct:/docker/abc\n7:memory:/docker/abc\n1:name=x:/\n");
    put(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_true(limit_of(root, 0).cgroup_bytes == SL_NO_LIMIT);
    put(root, "sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "34359738368\n");
    assert_int_equal(limit_of(root, 0).limit_bytes, 32 * GIB);
    /* Inside a container the host's path is not there, and the mount is the container's group. */
    put(root, "proc/self/cgroup", "7:memory:/docker/of/the/host\n0::/\n");
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "6442450944\n");
    assert_int_equal(limit_of(root, 0).limit_bytes, 6 * GIB);
    /* Another controller's group is not ours. */
    put(root, "proc/self/cgroup", "7:memory2:/docker\n8:cpu:/docker\n");
    assert_true(limit_of(root, 0).cgroup_bytes == SL_NO_LIMIT);
    pm_free_dir(root);
}

static void malformed_limits_are_no_limits(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "\n", "-1\n", "12x\n", "99999999999999999999999\n", " 5\n", "18446744073709551615\n"};
    char root[256];
    pm_make_dir(root);
    put(root, "proc/meminfo", meminfo_64g);
    put(root, "proc/self/cgroup", "0::/a\nnonsense\n:\n::\n");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(root, "sys/fs/cgroup/a/memory.max", texts[i]);
        assert_true(limit_of(root, 0).cgroup_bytes == SL_NO_LIMIT);
    }
    put(root, "sys/fs/cgroup/a/memory.max", "1073741824"); /* no newline: the control */
    assert_int_equal(limit_of(root, 0).cgroup_bytes, GIB);
    pm_free_dir(root);
}

static void this_machine_answers(void **state)
{
    (void)state;
    struct sl_memory_limit l = limit_of("", 0);
    assert_true(l.physical_bytes > ((uint64_t)64 << 20));
    assert_true(l.limit_bytes <= l.physical_bytes && l.reserve_bytes < l.limit_bytes);
}

static const struct sl_memory_limit ram_1000 = {.physical_bytes = 5000,
                                                .cgroup_bytes = SL_NO_LIMIT,
                                                .ram_bytes = 1000,
                                                .limit_bytes = 1000,
                                                .source = "--ram"};

static void what_is_left_goes_to_slots(void **state)
{
    (void)state;
    struct sl_budget b;
    struct sl_err err = {0};
    uint64_t n;
    sl_budget_init(&b, &ram_1000);
    sl_budget_add(&b, "trunk", 300);
    sl_budget_add(&b, "state", 100);
    sl_budget_add(&b, "trunk", 50);
    assert_int_equal(b.n_groups, 2);
    assert_int_equal(sl_budget_total(&b), 450);
    assert_int_equal(sl_budget_left(&b), 550);
    assert_int_equal(sl_budget_take_rest(&b, "slots", 100, 2, 99, &n, &err), 0);
    assert_int_equal(n, 5);
    assert_int_equal(sl_budget_total(&b), 950);
    assert_int_equal(sl_budget_left(&b), 50);

    sl_budget_init(&b, &ram_1000);
    assert_int_equal(sl_budget_take_rest(&b, "slots", 100, 2, 7, &n, &err), 0);
    assert_int_equal(n, 7); /* no more than there are records */

    struct sl_memory_limit reserved = ram_1000;
    reserved.reserve_bytes = 400;
    sl_budget_init(&b, &reserved);
    assert_int_equal(sl_budget_take_rest(&b, "slots", 100, 2, 99, &n, &err), 0);
    assert_int_equal(n, 6);
}

/* The number in the refusal must work, and one byte less must not. */
static void a_refusal_names_terms_and_the_ram_that_works(void **state)
{
    (void)state;
    struct sl_err err = {0};
    for (uint64_t unit = 97; unit < 400; unit += 101) {
        struct sl_memory_limit l = ram_1000;
        struct sl_budget b;
        uint64_t n;
        uint64_t ram;
        sl_budget_init(&b, &l);
        sl_budget_add(&b, "trunk", 801);
        sl_budget_add(&b, "KDA state", 100);
        assert_int_equal(sl_budget_take_rest(&b, "expert slots", unit, 3, 99, &n, &err),
                         SL_E_BUDGET);
        assert_int_equal(n, 3);
        assert_non_null(strstr(err.text, "trunk 801 B"));
        assert_non_null(strstr(err.text, "KDA state 100 B"));
        assert_non_null(strstr(err.text, "expert slots "));
        assert_non_null(strstr(err.text, "(--ram "));
        const char *hint = strstr(err.text, "--ram ");
        hint = strstr(hint + 1, "works: --ram ");
        assert_non_null(hint);
        assert_true(sl_parse_size(hint + strlen("works: --ram "), &ram));
        for (int less = 0; less < 2; less++) {
            l.limit_bytes = l.ram_bytes = ram - (uint64_t)less;
            sl_budget_init(&b, &l);
            sl_budget_add(&b, "trunk", 801);
            sl_budget_add(&b, "KDA state", 100);
            assert_int_equal(sl_budget_take_rest(&b, "expert slots", unit, 3, 99, &n, &err),
                             less ? SL_E_BUDGET : 0);
        }
    }
    /* More than the machine has: no --ram helps, and the line says so. */
    struct sl_budget b;
    sl_budget_init(&b, &ram_1000);
    sl_budget_add(&b, "trunk", 5001);
    assert_int_equal(sl_budget_check(&b, &err), SL_E_BUDGET);
    assert_null(strstr(err.text, "works: --ram"));
    assert_non_null(strstr(err.text, "this machine allows"));
}

static void hostile_sizes_do_not_wrap(void **state)
{
    (void)state;
    struct sl_budget b;
    struct sl_err err = {0};
    uint64_t n;
    sl_budget_init(&b, &ram_1000);
    sl_budget_add(&b, "a", UINT64_MAX - 5);
    sl_budget_add(&b, "b", 10);
    assert_true(sl_budget_total(&b) == UINT64_MAX);
    assert_int_equal(sl_budget_check(&b, &err), SL_E_BUDGET);
    sl_budget_init(&b, &ram_1000);
    assert_int_equal(sl_budget_take_rest(&b, "slots", UINT64_MAX / 2, 3, 9, &n, &err), SL_E_BUDGET);
    /* More groups than there is room for: summed, not lost. */
    static const char *const names[] = {"c0",  "c1",  "c2",  "c3",  "c4",  "c5",  "c6",
                                        "c7",  "c8",  "c9",  "c10", "c11", "c12", "c13",
                                        "c14", "c15", "c16", "c17", "c18", "c19", "c20",
                                        "c21", "c22", "c23", "c24", "c25", "c26", "c27"};
    sl_budget_init(&b, &ram_1000);
    for (int i = 0; i < 28; i++) sl_budget_add(&b, names[i], 10);
    assert_int_equal(b.n_groups, SL_BUDGET_GROUPS);
    assert_int_equal(sl_budget_total(&b), 280);
}

/* Touching 64 MiB shows in both numbers; giving it back shows in one. */
static void process_memory_follows_use(void **state)
{
    (void)state;
    const size_t bytes = (size_t)64 << 20;
    uint64_t rss0;
    uint64_t rss1;
    uint64_t rss2;
    uint64_t peak;
    if (!sl_process_memory(&rss0, &peak)) {
        print_message("SKIP /proc/self/status does not tell memory\n");
        skip();
    }
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    memset(p, 1, bytes);
    assert_true(sl_process_memory(&rss1, &peak));
    assert_true(rss1 >= rss0 + bytes / 2 && peak >= rss1 - bytes / 8);
    assert_int_equal(munmap(p, bytes), 0);
    assert_true(sl_process_memory(&rss2, &peak));
    /* Linux sums its counters lazily: even the peak may read a few pages a core less than before. */
    assert_true(rss2 <= rss1 - bytes / 2 && peak >= rss1 - bytes / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(physical_memory_with_a_reserve),
        cmocka_unit_test(the_users_number_is_a_promise),
        cmocka_unit_test(v2_limits_hold_up_the_tree),
        cmocka_unit_test(v1_limits_and_their_huge_numbers),
        cmocka_unit_test(malformed_limits_are_no_limits),
        cmocka_unit_test(this_machine_answers),
        cmocka_unit_test(what_is_left_goes_to_slots),
        cmocka_unit_test(a_refusal_names_terms_and_the_ram_that_works),
        cmocka_unit_test(hostile_sizes_do_not_wrap),
        cmocka_unit_test(process_memory_follows_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
