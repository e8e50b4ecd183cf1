/* See golden_engine.h. Packs are made in build/golden-PID-N, so that test programs may run side by
 * side. */
#include "tests/golden/golden_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "convert/convert.h"

static int n_packs;

static void pack_path(char *buf, int i)
{
    const char *build = getenv("BUILD");
    snprintf(buf, SL_PATH_MAX, "%s/golden-%d-%d.pack", build ? build : "build", (int)getpid(), i);
}

const char *golden_pack(char *buf, const char *source, int experts, int trunk)
{
    pack_path(buf, n_packs++);
    sl_remove_tree(buf);
    struct sl_convert_opts o = {.experts = experts, .trunk = trunk, .jobs = 1};
    struct sl_convert_report report;
    struct sl_err err = {0};
    if (sl_convert(source, buf, &o, &report, &err)) fail_msg("%s", err.text);
    return buf;
}

void golden_remove_packs(void)
{
    char path[SL_PATH_MAX];
    for (int i = 0; i < n_packs; i++) {
        pack_path(path, i);
        sl_remove_tree(path);
    }
    n_packs = 0;
}

static void must(int rc, const struct sl_err *err)
{
    if (rc) fail_msg("%d: %s", rc, err->text);
}

static uint64_t arena_bytes(const struct golden_engine *e, const struct sl_graph_opts *go,
                            uint64_t ctx, unsigned form)
{
    struct sl_state_bytes s;
    sl_state_price(&e->pack->cfg, ctx, form, &s);
    return sl_trunk_bytes(e->pack) + sl_model_bytes(e->pack) + s.kda + s.conv + s.mla_rows +
           s.mla_expanded + s.tables + sl_graph_bytes(&e->pack->cfg, go, sl_pool_threads(e->pool)) +
           4096;
}

void golden_open(struct golden_engine *e, const char *pack, const struct golden_opts *o)
{
    struct sl_err err = {0};
    memset(e, 0, sizeof *e);
    must(sl_pack_open(&e->pack, pack, NULL, 0, &err), &err);
    must(sl_pool_open(&e->pool, o->threads ? o->threads : 1, &err), &err);
    e->chunk = o->chunk ? o->chunk : 64;
    const uint64_t ctx = o->ctx ? o->ctx : 512;
    const struct sl_graph_opts go = {.max_chunk = e->chunk, .max_ctx = ctx, .fast = o->fast};
    const unsigned form = o->fast ? SL_STATE_FAST | SL_STATE_REWIND : !o->no_expanded;
    must(sl_arena_init(&e->arena, arena_bytes(e, &go, ctx, form), "test", &err), &err);
    const struct sl_trunk_opts to = {.budget = o->trunk_budget, .check_crc = true, .ops = o->ops};
    must(sl_trunk_open(&e->trunk, e->pack, &e->arena, &to, &err), &err);
    must(sl_model_open(&e->model, e->pack, e->trunk, &e->arena, &err), &err);
    struct sl_stream_opts ring = {.parts = e->model->parts,
                                  .n_parts = e->model->n_parts,
                                  .piece_bytes = o->ring_bytes,
                                  .n_pieces = o->ring_pieces ? o->ring_pieces : 3};
    for (int i = 0; i < ring.n_parts && !o->ring_bytes; i++) {
        const struct sl_tensor *t = ring.parts[i].tensor;
        const uint64_t group = t->bytes / (uint64_t)t->shape[0] * (uint64_t)ring.parts[i].group;
        const uint64_t least = sl_stream_least_piece(group);
        if (least > ring.piece_bytes) ring.piece_bytes = (uint32_t)least;
    }
    const struct sl_store_opts so = {
        .slot_budget_bytes = (uint64_t)o->slots * sl_store_slot_bytes(e->pack),
        .io = o->ops && !o->with_faults ? SL_IO_PREAD : o->io, /* faults are put into pread */
        .check_crc = true,
        .stream = ring.n_parts ? &ring : NULL,
        .ops = o->ops,
        .numa = o->numa};
    must(sl_store_open(&e->store, e->pack, &so, &err), &err);
    must(sl_state_open(&e->state, &e->pack->cfg, ctx, form, &e->arena, &err), &err);
    unsigned cpu = o->reference ? 0 : sl_cpu_detect();
    if (o->cpu) cpu &= o->cpu;
    sl_kernels_init(&e->k, cpu);
    must(sl_graph_open(&e->graph, e->model, &e->k, e->pool, e->store, &e->arena, &go, &err), &err);
}

void golden_close(struct golden_engine *e)
{
    sl_graph_close(e->graph);
    sl_store_close(e->store);
    sl_trunk_close(e->trunk);
    sl_pool_close(e->pool);
    sl_arena_free(&e->arena);
    sl_pack_close(e->pack);
}

int golden_vocab(const struct golden_engine *e)
{
    return e->pack->cfg.vocab_size;
}

void golden_feed(struct golden_engine *e, const int32_t *ids, int n, float *out)
{
    struct sl_err err = {0};
    for (int at = 0; at < n; at += e->chunk) {
        const int m = n - at < e->chunk ? n - at : e->chunk;
        float *rows = out ? out + (size_t)at * (size_t)golden_vocab(e) : NULL;
        must(sl_graph_feed(e->graph, e->state, ids + at, m, rows, m, &err), &err);
    }
}

int golden_rungs(unsigned masks[8])
{
    static const unsigned all[] = {SL_CPU_AVX2, SL_CPU_AVX2 | SL_CPU_AVX512,
                                   SL_CPU_AVX2 | SL_CPU_AVX512 | SL_CPU_AVX512VNNI |
                                       SL_CPU_AVX512VBMI,
                                   SL_CPU_NEON, SL_CPU_NEON | SL_CPU_NEONDOT};
    const unsigned have = sl_cpu_detect();
    int n = 0;
    masks[n++] = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if ((have & all[i]) == all[i]) masks[n++] = all[i];
    return n;
}

static int save(void *ctx, void *data, uint64_t bytes)
{
    struct golden_copy *c = ctx;
    unsigned char *grown = realloc(c->data, c->bytes + bytes);
    if (!grown) return -1;
    memcpy(grown + c->bytes, data, bytes);
    c->data = grown;
    c->bytes += bytes;
    return 0;
}

static int restore(void *ctx, void *data, uint64_t bytes)
{
    struct golden_copy *c = ctx;
    if (bytes > c->bytes - c->at) return -1;
    memcpy(data, c->data + c->at, bytes);
    c->at += bytes;
    return 0;
}

struct golden_copy golden_save(struct golden_engine *e)
{
    struct golden_copy c = {0};
    assert_int_equal(sl_state_each(e->state, save, &c), 0);
    return c;
}

void golden_restore(struct golden_engine *e, struct golden_copy *c)
{
    c->at = 0;
    assert_int_equal(sl_state_each(e->state, restore, c), 0);
    assert_int_equal(c->at, c->bytes);
}
