/* Trace files: what is written is read back; nothing in a damaged or hostile one is believed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "offload/trace.h"
#include "tests/offload/pack_maker.h"

enum { LAYERS = 3, EXPERTS = 20, K = 4, TOKENS = 3000 };

struct scene {
    char dir[256], path[300];
};

static void open_scene(struct scene *c)
{
    pm_make_dir(c->dir);
    snprintf(c->path, sizeof c->path, "%s/routes", c->dir);
}

static int id_at(int token, int layer, int i)
{
    return (token * 7 + layer * 3 + i * 5) % EXPERTS;
}

static void write_trace(const struct scene *c, int tokens, bool keep)
{
    struct sl_trace_writer *w;
    struct sl_err err = {0};
    if (sl_trace_create(&w, c->path, LAYERS, EXPERTS, K, &err)) fail_msg("%s", err.text);
    for (int t = 0; t < tokens; t++)
        for (int l = 0; l < LAYERS; l++) {
            int ids[K];
            float weights[K];
            int n = 1 + (t + l) % K;
            for (int i = 0; i < n; i++) {
                ids[i] = id_at(t, l, i);
                weights[i] = (float)(t + i) / 8;
            }
            sl_trace_add(w, (uint64_t)t, l, n, ids, weights);
        }
    if (sl_trace_finish(w, keep, &err)) fail_msg("%s", err.text);
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct scene c;
    struct sl_trace *t;
    struct sl_err err = {0};
    open_scene(&c);
    write_trace(&c, TOKENS, true); /* several buffers of the writer */
    if (sl_trace_read(&t, c.path, &err)) fail_msg("%s", err.text);
    assert_int_equal(t->n_layers, LAYERS);
    assert_int_equal(t->n_experts, EXPERTS);
    assert_int_equal(t->k, K);
    assert_int_equal(t->n_records, TOKENS * LAYERS);
    for (uint64_t r = 0; r < t->n_records; r++) {
        const struct sl_trace_record *x = &t->records[r];
        int tok = (int)(r / LAYERS);
        int layer = (int)(r % LAYERS);
        assert_int_equal(x->position, tok);
        assert_int_equal(x->layer, layer);
        assert_int_equal(x->k, 1 + (tok + layer) % K);
        for (int i = 0; i < x->k; i++) {
            assert_int_equal(t->ids[x->first + (uint64_t)i], id_at(tok, layer, i));
            assert_true(t->weights[x->first + (uint64_t)i] == (float)(tok + i) / 8);
        }
    }
    sl_trace_free(t);
    pm_free_dir(c.dir);
}

static void an_unfinished_trace_leaves_nothing(void **state)
{
    (void)state;
    struct scene c;
    open_scene(&c);
    write_trace(&c, 10, false);
    assert_int_equal(rmdir(c.dir), 0);
    struct sl_trace_writer *w;
    struct sl_err err = {0};
    assert_int_equal(sl_trace_create(&w, "/nonexistent/x", 1, 1, 1, &err), SL_E_IO);
    assert_non_null(strstr(err.text, "/nonexistent/x"));
}

static void expect_refusal(const struct scene *c, const uint8_t *bytes, size_t len,
                           const char *word)
{
    struct sl_trace *t;
    struct sl_err err = {0};
    pm_write(c->path, bytes, len);
    int rc = sl_trace_read(&t, c->path, &err);
    if (rc != SL_E_SOURCE || !strstr(err.text, word) || !strstr(err.text, c->path))
        fail_msg("%d '%s' lacks '%s'", rc, err.text, word);
}

static void damage_is_named(void **state)
{
    (void)state;
    struct scene c;
    size_t len;
    static const struct {
        size_t at;
        uint8_t value[4];
        int n;
        const char *word;
    } bad[] = {
        {0, "X", 1, "not a route trace"},
        {8, {0, 0, 0, 0}, 4, "byte 8: n_layers is 0"},
        {8, {0xff, 0xff, 0xff, 0xff}, 4, "n_layers is 4294967295"},
        {12, {0, 0, 0, 0}, 4, "byte 12: n_experts is 0"},
        {12, {1, 0, 1, 0}, 4, "n_experts is 65537"},
        {16, {0, 0, 0, 0}, 4, "byte 16: k is 0"},
        {16, {21, 0, 0, 0}, 4, "k is 21"},
        {24, {3, 0}, 2, "byte 20: layer is 3"},
        {26, {0, 0}, 2, "k is 0"},
        {26, {5, 0}, 2, "k is 5"},
        {28, {20, 0}, 2, "an expert is 20"},
        {30, {0, 0, 0x80, 0x7f}, 4, "bits of a weight"},
        {48, {3, 0}, 2, "a repetition of an expert is 3"},
    };
    open_scene(&c);
    write_trace(&c, 4, true);
    uint8_t *sound = pm_read(c.path, &len);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint8_t *bytes = malloc(len);
        assert_non_null(bytes);
        memcpy(bytes, sound, len);
        memcpy(bytes + bad[i].at, bad[i].value, (size_t)bad[i].n);
        expect_refusal(&c, bytes, len, bad[i].word);
        free(bytes);
    }
    /* Cut anywhere but between records. */
    const size_t ends[] = {20, 20 + 14, 20 + 14 + 20, 20 + 14 + 20 + 26};
    size_t next = 0;
    for (size_t cut = 0; cut < ends[3]; cut++) {
        struct sl_trace *t;
        struct sl_err err = {0};
        if (cut == ends[next]) {
            pm_write(c.path, sound, cut);
            assert_int_equal(sl_trace_read(&t, c.path, &err), 0);
            assert_int_equal(t->n_records, next++);
            sl_trace_free(t);
        } else {
            expect_refusal(&c, sound, cut, cut < 20 ? "not a route trace" : "ends inside");
        }
    }
    free(sound);
    pm_free_dir(c.dir);
}

/* Random bytes behind a good head: an error or a trace whose numbers are in their bounds. */
static void noise_is_never_believed(void **state)
{
    (void)state;
    struct scene c;
    uint32_t rnd = 17;
    int read = 0;
    open_scene(&c);
    for (int round = 0; round < 3000; round++) {
        uint8_t bytes[20 + 120] = "SLTRACE1\x03\0\0\0\x04\0\0\0\x02\0\0";
        size_t len = 20 + (size_t)round % 120;
        struct sl_trace *t;
        for (size_t i = 20; i < len; i++) {
            rnd = rnd * 1664525u + 1013904223u;
            bytes[i] = (i % 2 || rnd >> 31) ? 0 : (uint8_t)((rnd >> 24) % 5);
        }
        pm_write(c.path, bytes, len);
        if (sl_trace_read(&t, c.path, NULL)) continue;
        read += t->n_records > 0;
        for (uint64_t r = 0; r < t->n_records; r++) {
            assert_true(t->records[r].layer < 3);
            assert_true(t->records[r].k >= 1 && t->records[r].k <= 2);
            assert_true(t->records[r].first + t->records[r].k <= t->n_ids);
        }
        for (uint64_t i = 0; i < t->n_ids; i++) assert_true(t->ids[i] < 4);
        sl_trace_free(t);
    }
    assert_true(read > 0);
    pm_free_dir(c.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(an_unfinished_trace_leaves_nothing),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(noise_is_never_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
