/* The planner for any machine: limits from trees of made-up control groups, what must hold between the
 * plans of growing memory, and the split of a trunk that does not fit. The released shape throughout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "convert/pack_shape.h"
#include "runtime/engine.h"
#include "tests/offload/pack_maker.h"

#define GB UINT64_C(1000000000)

static struct sluice_pack k3;

static int open_k3(void **state)
{
    (void)state;
    struct sl_config c;
    struct sl_err err = {0};
    sl_config_k3(&c);
    pthread_mutex_init(&k3.lock, NULL);
    return sl_pack_of_shape(&k3.pack, &c, SL_FMT_M4, SL_FMT_T8, &err);
}

static int close_k3(void **state)
{
    (void)state;
    sl_pack_close(k3.pack);
    pthread_mutex_destroy(&k3.lock);
    return 0;
}

static struct sl_engine_opts options(uint64_t ram, bool stream)
{
    const sluice_options o = {.ram_bytes = ram, .threads = 16, .ctx = 4096};
    struct sl_engine_opts eo;
    struct sl_err err = {0};
    if (sl_engine_options(&k3.pack->cfg, &o, &eo, &err)) fail_msg("%s", err.text);
    eo.stream_trunk = stream;
    return eo;
}

static int plan(uint64_t ram, bool stream, struct sl_engine_plan *out, struct sl_err *err)
{
    struct sl_engine_opts o = options(ram, stream);
    struct sl_engine_machine m = {.process_bytes = 16000000};
    sl_budget_limit_of(1000 * GB, SL_NO_LIMIT, ram, &m.limit);
    return sl_engine_plan_on(&k3, &o, &m, out, err);
}

static uint64_t sum_of_groups(const struct sl_engine_plan *p)
{
    uint64_t n = 0;
    for (int i = 0; i < p->info.n_groups; i++) n += p->info.groups[i].planned_bytes;
    return n;
}

static void more_memory_is_never_worse(void **state)
{
    (void)state;
    uint64_t slots = 0;
    for (uint64_t ram = 64 * GB; ram <= 900 * GB; ram += 11 * GB) {
        struct sl_engine_plan p;
        struct sl_err err = {0};
        if (plan(ram, false, &p, &err)) fail_msg("%s", err.text);
        assert_true(p.info.planned_peak_bytes <= ram);
        assert_int_equal(sum_of_groups(&p), p.info.planned_peak_bytes);
        /* A longer chunk and expanded keys may take slots back, an eighth and their bytes at most. */
        if (slots && p.info.n_slots < slots)
            assert_true(p.expanded || p.info.n_slots > slots - slots / 4);
        slots = p.info.n_slots;
    }
    assert_true(slots > 40000);
}

/* Each term on its own is in the refusal, and the number it advises works while one byte less does
 * not. */
static void refusal_names_every_term(void **state)
{
    (void)state;
    static const char *const terms[] = {
        "trunk ",       "tables ", "KDA state ", "convolution state ", "MLA cache ",
        "activations ", "logits ", "threads ",   "expert slots ",      "process "};
    struct sl_engine_plan p;
    struct sl_err err = {0};
    assert_int_equal(plan(5 * GB, false, &p, &err), SL_E_BUDGET);
    for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++)
        if (!strstr(err.text, terms[i])) fail_msg("no '%s' in: %s", terms[i], err.text);
    assert_true(p.info.n_groups > 0); /* the table is there for who wants to show it */
    const char *advice = strstr(err.text, "--ram 5.00 GB");
    assert_non_null(advice);
    unsigned long long least = 0;
    const char *at = strstr(err.text, "smallest that works: --ram ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "smallest that works: --ram %llu", &least), 1);
    assert_int_equal(plan(least, false, &p, &err), 0);
    assert_int_equal(plan(least - 1, false, &p, &err), SL_E_BUDGET);
}

static void a_trunk_that_does_not_fit_is_split(void **state)
{
    (void)state;
    struct sl_engine_plan p;
    struct sl_err err = {0};
    uint64_t all = sl_trunk_bytes(k3.pack);
    uint64_t streamed = UINT64_MAX;
    bool expanded = false;
    assert_int_equal(plan(12 * GB, false, &p, &err), SL_E_BUDGET);
    for (uint64_t ram = 4 * GB; ram < 62 * GB; ram += 3 * GB) {
        if (plan(ram, true, &p, &err)) fail_msg("%s", err.text);
        assert_true(p.info.planned_peak_bytes <= ram);
        assert_int_equal(sum_of_groups(&p), p.info.planned_peak_bytes);
        assert_true(p.trunk_ring_bytes > 0 && p.trunk_resident_bytes < all);
        /* Each GB holds a GB of it, but where expanded keys fit for the first time: to expand them
         * again costs more than to read as many bytes of trunk. */
        assert_true(p.trunk_streamed_bytes < streamed || (p.expanded && !expanded));
        expanded = p.expanded;
        /* What is neither held nor streamed is the embedding, of which a token reads one row. */
        assert_true(p.trunk_streamed_bytes <= all - p.trunk_resident_bytes);
        streamed = p.trunk_streamed_bytes;
    }
    if (plan(64 * GB, true, &p, &err)) fail_msg("%s", err.text);
    assert_int_equal(p.trunk_ring_bytes, 0);
    assert_int_equal(p.trunk_streamed_bytes, 0);
    assert_int_equal(p.trunk_resident_bytes, all);
    assert_int_equal(plan(GB, true, &p, &err), SL_E_BUDGET); /* the floor is not zero */
    assert_non_null(strstr(err.text, "trunk ring "));
}

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

/* The same numbers from a v1 and a v2 tree lead to the same plan; a limit up the tree counts. */
static void limits_of_control_groups(void **state)
{
    (void)state;
    struct sl_engine_plan plans[2];
    for (int v2 = 0; v2 < 2; v2++) {
        char root[256];
        struct sl_engine_machine m;
        struct sl_err err = {0};
        struct sl_engine_opts o = options(0, false);
        pm_make_dir(root);
        put(root, "proc/meminfo", "MemTotal: 524288000 kB\n");
        put(root, "proc/self/cgroup", v2 ? "0::/a/b\n" : "4:memory:/a/b\n");
        put(root,
            v2 ? "sys/fs/cgroup/a/memory.max" : "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "90000000000\n");
        put(root,
            v2 ? "sys/fs/cgroup/a/b/memory.max" : "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            v2 ? "max\n" : "9223372036854771712\n");
        if (sl_engine_machine_here(&k3, root, 0, &m, &err)) fail_msg("%s", err.text);
        m.process_bytes = 16000000; /* of this test program it would differ */
        m.peak_bytes = 0;
        if (sl_engine_plan_on(&k3, &o, &m, &plans[v2], &err)) fail_msg("%s", err.text);
        assert_int_equal(plans[v2].info.limit_bytes, 90 * GB - ((uint64_t)1 << 30));
        assert_true(plans[v2].info.planned_peak_bytes <= plans[v2].info.limit_bytes);

        put(root,
            v2 ? "sys/fs/cgroup/a/b/memory.max" : "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            "8000000000\n");
        struct sl_engine_plan small;
        if (sl_engine_machine_here(&k3, root, 0, &m, &err)) fail_msg("%s", err.text);
        assert_int_equal(sl_engine_plan_on(&k3, &o, &m, &small, &err), SL_E_BUDGET);
        assert_non_null(strstr(err.text, "cgroup limit 8.00 GB"));
        pm_free_dir(root);
    }
    assert_int_equal(plans[0].info.n_slots, plans[1].info.n_slots);
    assert_int_equal(plans[0].info.planned_peak_bytes, plans[1].info.planned_peak_bytes);
}

/* What the user fixed stays: a chunk that was asked for neither grows nor shrinks. */
static void the_users_chunk_stays(void **state)
{
    (void)state;
    struct sl_engine_plan p;
    struct sl_err err = {0};
    struct sl_engine_opts o = options(200 * GB, false);
    struct sl_engine_machine m = {.process_bytes = 16000000};
    sl_budget_limit_of(1000 * GB, SL_NO_LIMIT, 200 * GB, &m.limit);
    if (sl_engine_plan_on(&k3, &o, &m, &p, &err)) fail_msg("%s", err.text);
    assert_true(p.info.chunk > 512); /* experts stream: a sweep a chunk */
    o.chunk = 48;
    if (sl_engine_plan_on(&k3, &o, &m, &p, &err)) fail_msg("%s", err.text);
    assert_int_equal(p.info.chunk, 48);
}

/* A loan of the slots' memory makes one sweep of 30,000 tokens, and takes nothing beside the plan. */
static void a_long_prompt_is_one_sweep(void **state)
{
    (void)state;
    struct sl_engine_opts o = options(200 * GB, false);
    struct sl_engine_machine m = {.process_bytes = 16000000};
    struct sl_err err = {0};
    o.ctx = 32768;
    sl_budget_limit_of(1000 * GB, SL_NO_LIMIT, 200 * GB, &m.limit);
    struct sl_engine_plan p;
    if (sl_engine_plan_on(&k3, &o, &m, &p, &err)) fail_msg("%s", err.text);
    struct sl_sweep_choice c;
    sl_sweep_choose(&p.sweep, 30000, &c);
    assert_int_equal(c.n_chunks, 1);
    assert_int_equal(p.info.panel, 512);
    assert_int_equal(p.info.chunk, 32768);
    const uint64_t need = sl_graph_lent_bytes(&k3.pack->cfg, 30000, false);
    assert_true(need <= c.lent_bytes);
    assert_true(c.lent_bytes - need < 1 << 20);
    assert_true(c.lent_bytes + 17 * p.info.slot_bytes <= p.slot_budget);
    /* A token takes nine vectors of the stream, sixteen outputs, one latent row, and its routes. */
    const uint64_t floats = 9 * 7168 + 9 + 16 * 3584 + 3584 + 16;
    const uint64_t token = floats * 4 + UINT64_C(3) * 16 * 4 + UINT64_C(93) * 16 * 2;
    assert_true(need >= 30000 * token && need < 30000 * token + 4096);
    o.ctx = 4096;
    struct sl_engine_plan shorter;
    if (sl_engine_plan_on(&k3, &o, &m, &shorter, &err)) fail_msg("%s", err.text);
    assert_int_equal(shorter.info.chunk, 4096);
    /* Activations grow with the context by attention's scratch alone. */
    assert_true(p.info.groups[SL_EG_ACTIVATIONS].planned_bytes <
                2 * shorter.info.groups[SL_EG_ACTIVATIONS].planned_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_memory_is_never_worse),
        cmocka_unit_test(refusal_names_every_term),
        cmocka_unit_test(a_trunk_that_does_not_fit_is_split),
        cmocka_unit_test(limits_of_control_groups),
        cmocka_unit_test(the_users_chunk_stays),
        cmocka_unit_test(a_long_prompt_is_one_sweep),
    };
    return cmocka_run_group_tests(tests, open_k3, close_k3);
}
