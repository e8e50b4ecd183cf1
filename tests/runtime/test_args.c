/* Command lines from tables: every spelling of a value, what wins, and what is refused. The help page
 * and the lines on stderr are checked by tests/cli/usage.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "runtime/args.h"

struct values {
    bool json, n_given;
    int64_t n;
    uint64_t ram;
    double temp;
    const char *text, *device;
    struct sl_arg_list dirs;
    const char *pos[SL_ARG_POS_MAX];
};

static int parse(struct values *v, const char *const *words)
{
    static const char *const devices[] = {"cpu", NULL};
    char *argv[32] = {(char *)(uintptr_t) "run"};
    int argc = 1;
    while (words[argc - 1]) {
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
        argc++;
    }
    *v = (struct values){.n = 7, .temp = 1};
    const struct sl_arg_opt opts[] = {
        {.name = "--json", .kind = SL_ARG_FLAG, .out = &v->json, .group = "Output", .help = "x"},
        {.name = "-n",
         .kind = SL_ARG_INT,
         .out = &v->n,
         .group = "Text",
         .help = "x",
         .given = &v->n_given},
        {.name = "-p", .kind = SL_ARG_STRING, .out = &v->text, .group = "Text", .help = "x"},
        {.name = "--temp",
         .kind = SL_ARG_FLOAT,
         .out = &v->temp,
         .group = "Text",
         .help = "x",
         .min = 0,
         .max = 10},
    };
    const struct sl_arg_opt more[] = {
        {.name = "--ram", .kind = SL_ARG_SIZE, .out = &v->ram, .group = "Memory", .help = "x"},
        {.name = "--dir", .kind = SL_ARG_REPEAT, .out = &v->dirs, .group = "Memory", .help = "x"},
        {.name = "--device",
         .kind = SL_ARG_STRING,
         .out = &v->device,
         .group = "Memory",
         .help = "x",
         .choices = devices},
    };
    const struct sl_arg_cmd cmd = {
        .name = "run",
        .about = "x",
        .example = "sluice run",
        .pos = {"PACK", "TEXT"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .more = more,
        .n_more = SL_ARG_COUNT(more),
    };
    return sl_args_parse(&cmd, argc, argv, v->pos);
}

#define PARSE(v, ...) parse(v, (const char *const[]){__VA_ARGS__, NULL})

static void test_spellings(void **state)
{
    (void)state;
    struct values v;
    assert_int_equal(PARSE(&v, "a"), SL_ARGS_GO);
    assert_int_equal(v.n, 7);
    assert_false(v.n_given);
    assert_string_equal(v.pos[0], "a");
    assert_null(v.pos[1]);
    assert_int_equal(PARSE(&v, "-n", "5", "a", "--json", "--ram=8GiB", "b"), SL_ARGS_GO);
    assert_int_equal(v.n, 5);
    assert_true(v.n_given && v.json);
    assert_int_equal(v.ram, UINT64_C(8) << 30);
    assert_string_equal(v.pos[1], "b");
    assert_int_equal(PARSE(&v, "-n5", "a", "--temp=0.5"), SL_ARGS_GO);
    assert_int_equal(v.n, 5);
    assert_true(v.temp == 0.5);
    /* A value may look like an option, be empty, or be a lone dash. */
    assert_int_equal(PARSE(&v, "a", "-p", "--json"), SL_ARGS_GO);
    assert_string_equal(v.text, "--json");
    assert_false(v.json);
    assert_int_equal(PARSE(&v, "-", "-p", ""), SL_ARGS_GO);
    assert_string_equal(v.pos[0], "-");
    assert_string_equal(v.text, "");
    assert_int_equal(PARSE(&v, "-p=x=y", "a"), SL_ARGS_GO);
    assert_string_equal(v.text, "x=y");
    assert_int_equal(PARSE(&v, "--json", "--", "--json", "-n"), SL_ARGS_GO);
    assert_string_equal(v.pos[0], "--json");
    assert_string_equal(v.pos[1], "-n");
}

static void test_repeats(void **state)
{
    (void)state;
    struct values v;
    assert_int_equal(PARSE(&v, "a", "-n", "1", "-n", "2", "--dir", "x", "--dir=y"), SL_ARGS_GO);
    assert_int_equal(v.n, 2);
    assert_int_equal(v.dirs.n, 2);
    assert_string_equal(v.dirs.v[0], "x");
    assert_string_equal(v.dirs.v[1], "y");
}

static void test_refusals(void **state)
{
    (void)state;
    struct values v;
    assert_int_equal(PARSE(&v, "--json"), 2);        /* no PACK */
    assert_int_equal(PARSE(&v, "a", "b", "c"), 2);   /* one too many */
    assert_int_equal(PARSE(&v, "a", "-n"), 2);       /* no value */
    assert_int_equal(PARSE(&v, "a", "-n", "-1"), 2); /* negative */
    assert_int_equal(PARSE(&v, "a", "-n", "1x"), 2);
    assert_int_equal(PARSE(&v, "a", "-n", ""), 2);
    assert_int_equal(PARSE(&v, "a", "-n", "99999999999999999999"), 2);
    assert_int_equal(PARSE(&v, "a", "--temp", "11"), 2);
    assert_int_equal(PARSE(&v, "a", "--temp", "nan"), 2);
    assert_int_equal(PARSE(&v, "a", "--ram", "0"), 2);
    assert_int_equal(PARSE(&v, "a", "--json=1"), 2);
    assert_int_equal(PARSE(&v, "a", "--jso"), 2); /* no abbreviations */
    assert_int_equal(PARSE(&v, "a", "-x"), 2);
    assert_int_equal(PARSE(&v, "a", "--device", "cuda"), 2);
    assert_int_equal(PARSE(&v, "a", "--device", "cpu"), SL_ARGS_GO); /* the control */
}

static void test_nearest(void **state)
{
    (void)state;
    const char *const list[] = {"--threads", "--temp", "-n", "--ids"};
    assert_string_equal(sl_args_nearest("--thread", list, 4), "--threads");
    assert_string_equal(sl_args_nearest("--tmep", list, 4), "--temp");
    assert_null(sl_args_nearest("--window", list, 4));
    assert_null(sl_args_nearest("-x", list, 4)); /* one letter is near to everything */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
