/* The cost model: totals of the released shape against the published ones, and what must hold whatever
 * the rates are: more slots or a faster board never make a token slower. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "convert/pack_shape.h"
#include "offload/plan_cost.h"
#include "offload/store.h"

static struct sl_pack *k3(enum sl_fmt experts, enum sl_fmt trunk)
{
    struct sl_config c;
    struct sl_pack *p = NULL;
    struct sl_err err = {0};
    sl_config_k3(&c);
    if (sl_pack_of_shape(&p, &c, experts, trunk, &err)) fail_msg("%s", err.text);
    return p;
}

static struct sl_pack_work *work_of(const struct sl_pack *p)
{
    struct sl_pack_work *w = NULL;
    struct sl_err err = {0};
    if (sl_pack_work_open(&w, p, &err)) fail_msg("%s", err.text);
    return w;
}

static uint64_t tensor_payload(const struct sl_pack *p)
{
    uint64_t n = 0;
    for (int i = 0; i < p->n_tensors; i++) n += p->tensors[i].bytes;
    return n;
}

/* Spec 4.2 and 4.3, to the byte: these are properties of the release. */
static void released_totals(void **state)
{
    (void)state;
    struct sl_pack *p = k3(SL_FMT_MXFP4, SL_FMT_BF16);
    struct sl_pack_work *w = work_of(p);
    uint64_t matrices = UINT64_C(56728125440);
    assert_int_equal(tensor_payload(p),
                     2 * (matrices + UINT64_C(4400128)) + 4 * UINT64_C(11122432));
    assert_int_equal(p->n_tensors, 23 + 68 * (5404 - 6 * 896) + 24 * (5398 - 6 * 896) + 5 - 1 + 1);
    assert_int_equal(w->expert_records, 92 * 896);
    assert_int_equal(w->layers[1].record_bytes, 17547264); /* a multiple of 4096 already */
    assert_int_equal(w->expert_token_bytes, UINT64_C(17547264) * 16 * 92);
    assert_int_equal(w->active_weights, UINT64_C(104174092288));
    assert_int_equal(w->row_bytes, 14336);
    sl_pack_work_close(w);
    sl_pack_close(p);
}

/* Bytes a layer: records follow from the formats of spec 3 (m4: 4 bits, 4 bits a block of 32, a byte a
 * row; w26: 64 bits and a scale nibble a block, 2 bytes a row and a table of 64 a matrix). */
static uint64_t layer_bytes(enum sl_fmt fmt)
{
    uint64_t bytes = 0;
    const uint64_t shape[3][2] = {{3072, 3584}, {3072, 3584}, {3584, 3072}};
    for (int m = 0; m < 3; m++) {
        uint64_t rows = shape[m][0];
        uint64_t blocks = shape[m][1] / 32;
        bytes += fmt == SL_FMT_M4    ? rows * (blocks * 16 + blocks / 2 + 1)
                 : fmt == SL_FMT_W26 ? rows * (blocks * 8 + blocks / 2 + 2) + 64
                                     : rows * (blocks * 12 + blocks / 2 + 2) + 128;
    }
    return 896 * ((bytes + 4095) / 4096 * 4096);
}

static void banks_of_a_layer(void **state)
{
    (void)state;
    static const struct {
        enum sl_fmt fmt;
        double gb;
    } cases[] = {{SL_FMT_M4, 15.27}, {SL_FMT_W36, 11.58}, {SL_FMT_W26, 7.88}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_pack *p = k3(cases[i].fmt, SL_FMT_T8);
        const struct sl_bank *b = &p->banks[p->bank_of[1]];
        uint64_t records = b->file_bytes - sl_bank_first_record(b->n_experts);
        /* Planes start on 64 bytes, which these shapes keep by themselves. */
        assert_int_equal(records, layer_bytes(cases[i].fmt));
        assert_true(records >= (cases[i].gb - 0.005) * 1e9 &&
                    records < (cases[i].gb + 0.005) * 1e9);
        sl_pack_close(p);
    }
}

static void trunk_of_a_format(void **state)
{
    (void)state;
    struct sl_pack *p = k3(SL_FMT_M4, SL_FMT_T8);
    /* 34 bytes for 32 weights of every matrix but the small ones, which stay bf16. */
    uint64_t low = 0;
    uint64_t kept = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sl_tensor *t = &p->tensors[i];
        uint64_t n = t->n_dims == 2 ? (uint64_t)t->shape[0] * (uint64_t)t->shape[1] : 0;
        if (t->fmt == SL_FMT_T8) {
            assert_int_equal(t->bytes, n / 32 * 34);
            low += n;
        } else {
            kept += t->bytes;
        }
    }
    assert_int_equal(tensor_payload(p), low / 32 * 34 + kept);
    assert_true(tensor_payload(p) > 60.2e9 && tensor_payload(p) < 61.4e9);
    sl_pack_close(p);
}

static void formats_of_other_places_are_refused(void **state)
{
    (void)state;
    struct sl_config c;
    struct sl_pack *p;
    struct sl_err err = {0};
    sl_config_k3(&c);
    assert_int_equal(sl_pack_of_shape(&p, &c, SL_FMT_T8, SL_FMT_T8, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "--experts"));
    assert_int_equal(sl_pack_of_shape(&p, &c, SL_FMT_M4, SL_FMT_M4, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "--trunk"));
    c.latent_size = 3585; /* no block of 32 */
    assert_int_equal(sl_pack_of_shape(&p, &c, SL_FMT_M4, SL_FMT_T8, &err), SL_E_ARG);
    assert_null(p);
}

static void hit_range(void **state)
{
    (void)state;
    struct sl_pack *p = k3(SL_FMT_M4, SL_FMT_T8);
    struct sl_pack_work *w = work_of(p);
    double low;
    double high;
    sl_cost_hits(w, 0, &low, &high);
    assert_true(low == 0 && high == 0);
    sl_cost_hits(w, 92 * 16 - 1, &low,
                 &high); /* the public figure needs a token's records in slots */
    double before = high;
    sl_cost_hits(w, 92 * 16, &low, &high);
    assert_true(before < 0.1 && high == 0.295);
    double last_low = 0;
    double last_high = 0;
    for (uint64_t n = 17; n <= w->expert_records; n += 997) {
        sl_cost_hits(w, n, &low, &high);
        assert_true(low >= last_low && high >= last_high && low <= high && high <= 1);
        assert_true(low == (double)n / (double)w->expert_records);
        last_low = low;
        last_high = high;
    }
    sl_cost_hits(w, w->expert_records, &low, &high);
    assert_true(low == 1 && high == 1);
    sl_pack_work_close(w);
    sl_pack_close(p);
}

static struct sl_board board(void)
{
    struct sl_board b;
    struct sl_err err = {0};
    if (sl_board_open(&b, "boards/desktop-64.json", &err)) fail_msg("%s", err.text);
    return b;
}

/* Each rate made ten times better in turn: nothing gets slower; what binds gets faster. */
static void faster_parts_never_slow_a_token(void **state)
{
    (void)state;
    struct sl_pack *p = k3(SL_FMT_M4, SL_FMT_T8);
    struct sl_pack_work *w = work_of(p);
    struct sl_board base = board();
    const struct sl_cost_in in = {.work = w,
                                  .board = &base,
                                  .n_slots = 3000,
                                  .trunk_streamed_bytes = UINT64_C(20000000000),
                                  .chunk = 512,
                                  .position = 1000};
    struct sl_token_cost a;
    struct sl_prompt_cost pa;
    sl_cost_token(&in, 0.1, &a);
    sl_cost_prompt(&in, 4000, &pa);
    assert_true(a.seconds >= a.drive_s - 1e-9 && a.seconds >= a.compute_s - 1e-9);
    double sum = a.attention_s + a.experts_s + a.wait_s + a.head_s;
    assert_true(sum > 0.999 * a.seconds && sum < 1.001 * a.seconds);
    double best = a.seconds;
    for (int part = 0; part < 4; part++) {
        struct sl_board b = base;
        if (part == 0) b.drive[0].read[0].gbps *= 10;
        if (part == 1) b.memory.read_gbps *= 10;
        if (part == 2) b.cpu.cores *= 10;
        if (part == 3) b.drive[b.n_drives++] = b.drive[0];
        struct sl_cost_in x = in;
        x.board = &b;
        struct sl_token_cost t;
        struct sl_prompt_cost pt;
        sl_cost_token(&x, 0.1, &t);
        sl_cost_prompt(&x, 4000, &pt);
        assert_true(t.seconds <= a.seconds && pt.seconds <= pa.seconds);
        assert_int_equal(t.drive_bytes, a.drive_bytes);
        if (t.seconds < best) best = t.seconds;
    }
    assert_true(best < a.seconds);
    sl_pack_work_close(w);
    sl_pack_close(p);
}

static void bytes_of_a_token_follow_the_misses(void **state)
{
    (void)state;
    struct sl_pack *p = k3(SL_FMT_M4, SL_FMT_T8);
    struct sl_pack_work *w = work_of(p);
    struct sl_board b = board();
    struct sl_cost_in in = {.work = w, .board = &b, .n_slots = 3000, .chunk = 512};
    struct sl_token_cost none;
    struct sl_token_cost half;
    struct sl_token_cost all;
    struct sl_token_cost streamed;
    sl_cost_token(&in, 0, &none);
    sl_cost_token(&in, 0.5, &half);
    sl_cost_token(&in, 1, &all);
    /* Layers are rounded down to whole bytes one by one. */
    assert_true(w->expert_token_bytes - none.drive_bytes < 100);
    assert_true(w->expert_token_bytes / 2 - half.drive_bytes < 100);
    assert_int_equal(all.drive_bytes, 0);
    assert_true(none.seconds > half.seconds && half.seconds > all.seconds);
    assert_string_equal(sl_cost_bound(&none), "drive");
    in.trunk_streamed_bytes = w->trunk_token_bytes;
    sl_cost_token(&in, 1, &streamed);
    assert_true(w->trunk_token_bytes - streamed.drive_bytes < 200);
    in.position = 4000; /* expanded again for every token, or kept */
    sl_cost_token(&in, 1, &none);
    in.expanded_keys = true;
    sl_cost_token(&in, 1, &half);
    assert_true(half.seconds < none.seconds && half.seconds > all.seconds);
    sl_pack_work_close(w);
    sl_pack_close(p);
}

/* A prompt in one chunk reads each expert at most once; more chunks read more. */
static void a_prompt_is_one_sweep_a_chunk(void **state)
{
    (void)state;
    struct sl_pack *p = k3(SL_FMT_M4, SL_FMT_T8);
    struct sl_pack_work *w = work_of(p);
    struct sl_board b = board();
    struct sl_cost_in in = {.work = w, .board = &b, .n_slots = 3000, .chunk = 30000};
    struct sl_prompt_cost one;
    struct sl_prompt_cost eight;
    sl_cost_prompt(&in, 30000, &one);
    assert_int_equal(one.chunks, 1);
    assert_true(one.drive_bytes <= w->expert_bytes &&
                one.drive_bytes > 0.99 * (double)w->expert_bytes);
    in.chunk = 3750;
    sl_cost_prompt(&in, 30000, &eight);
    assert_int_equal(eight.chunks, 8);
    /* Seven of the eight find what has a slot: 3,000 of 82,432. */
    double want = (1 + 7 * (1 - 3000.0 / (double)w->expert_records)) * (double)one.drive_bytes;
    assert_true((double)eight.drive_bytes > 0.99 * want && (double)eight.drive_bytes < 1.01 * want);
    assert_true(eight.seconds > one.seconds);
    in.sweep = (struct sl_sweep_in){.n_slots = 3000,
                                    .slot_bytes = sl_store_slot_bytes(p),
                                    .n_records = w->expert_records,
                                    .n_moe = w->n_moe,
                                    .n_experts = w->n_experts,
                                    .top_k = w->top_k,
                                    .panel = 512,
                                    .most = 30000,
                                    .token_bytes = 600000};
    sl_cost_prompt(&in, 30000, &eight); /* the slots' memory holds all of it */
    assert_int_equal(eight.chunks, 1);
    assert_int_equal(eight.chunk, 30000);
    assert_int_equal(eight.lent_bytes, 30000 * UINT64_C(600000));
    assert_true(eight.drive_bytes == one.drive_bytes);
    in.sweep.most = 512;
    sl_cost_prompt(&in, 30000, &eight);
    assert_int_equal(eight.chunks, 59);
    in.sweep.n_slots = 0;
    in.chunk = 3750;
    in.n_slots = w->expert_records; /* all stay: read once, whatever the chunk */
    sl_cost_prompt(&in, 30000, &eight);
    assert_true((double)eight.drive_bytes < 1.01 * (double)one.drive_bytes);
    assert_true(sl_distinct_experts(896, 16, 1) > 15.99 && sl_distinct_experts(896, 16, 1) < 16.01);
    assert_true(sl_distinct_experts(896, 16, 1e6) <= 896);
    sl_pack_work_close(w);
    sl_pack_close(p);
}

static void assumptions_are_said(void **state)
{
    (void)state;
    struct sl_pack *p = k3(SL_FMT_M4, SL_FMT_T8);
    struct sl_pack_work *w = work_of(p);
    struct sl_board b = board();
    struct sl_cost_in in = {.work = w, .board = &b};
    char text[640];
    sl_cost_assumptions(&in, text, sizeof text);
    assert_non_null(strstr(text, "Arithmetic was not measured"));
    assert_non_null(strstr(text, "GPU is not used"));
    assert_non_null(strstr(text, "vendors' figures"));
    b.measured = true;
    b.gpu.name[0] = '\0';
    b.cpu.n_muls = 1;
    b.cpu.mul[0] = (struct sl_board_mul){SL_FMT_M4, 10, 10};
    sl_cost_assumptions(&in, text, sizeof text);
    assert_string_equal(text, "");
    sl_pack_work_close(w);
    sl_pack_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_totals),
        cmocka_unit_test(banks_of_a_layer),
        cmocka_unit_test(trunk_of_a_format),
        cmocka_unit_test(formats_of_other_places_are_refused),
        cmocka_unit_test(hit_range),
        cmocka_unit_test(faster_parts_never_slow_a_token),
        cmocka_unit_test(bytes_of_a_token_follow_the_misses),
        cmocka_unit_test(a_prompt_is_one_sweep_a_chunk),
        cmocka_unit_test(assumptions_are_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
