/* State memory: one block a layer and kind, all taken at open, so that the planner's price is the
 * arena's count.
 *
 * Every block is rounded up to a cache line; a caller that keeps the arena's mark on such a line gets
 * exactly the bytes that sl_state_price() says. KDA state is reset to zero, which is its meaning at
 * position 0; MLA rows need no clearing, because positions at or beyond s->position are never read. */
#include "runtime/state.h"

#include <string.h>

#include "base/size.h"

#define ALIGN 64
enum { N_TABLES = 5 };

/* a * b * 4 bytes rounded up to a line; UINT64_MAX when it overflows. */
static uint64_t floats(uint64_t a, uint64_t b)
{
    uint64_t n;
    if (!sl_mul_u64(a, b, &n) || !sl_mul_u64(n, sizeof(float), &n) || n > UINT64_MAX - ALIGN)
        return UINT64_MAX;
    return sl_align_up(n, ALIGN);
}

static uint64_t times(uint64_t each, uint64_t n)
{
    uint64_t out;
    return n == 0 ? 0 : sl_mul_u64(each, n, &out) ? out : UINT64_MAX;
}

struct layer_bytes {
    uint64_t S, tile, conv, rows, expanded;
};

static uint64_t history_rows(const struct sl_config *c, unsigned form)
{
    return (uint64_t)c->conv_kernel - 1 + (form & SL_STATE_REWIND ? SL_KDA_TILE : 0);
}

static struct layer_bytes layer_price(const struct sl_config *c, uint64_t ctx, unsigned form)
{
    const uint64_t d = (uint64_t)c->kda_head_dim;
    const uint64_t channels = (uint64_t)c->kda_heads * d;
    const uint64_t row = (uint64_t)c->kv_lora_rank + (uint64_t)c->qk_rope_dim;
    const uint64_t wide =
        (uint64_t)c->n_heads * (uint64_t)(c->qk_nope_dim + c->qk_rope_dim + c->v_head_dim);
    return (struct layer_bytes){
        .S = floats(channels, d),
        .tile = form & SL_STATE_FAST ? floats(channels, 3 * SL_KDA_TILE) : 0,
        .conv = floats(3 * channels, history_rows(c, form)),
        .rows = floats(row, ctx),
        .expanded = floats(wide, ctx),
    };
}

static uint64_t table_bytes(const struct sl_config *c)
{
    return sl_align_up(sizeof(struct sl_state), ALIGN) +
           N_TABLES * sl_align_up(sizeof(float *) * (uint64_t)c->n_layers, ALIGN);
}

static uint64_t n_kda_layers(const struct sl_config *c)
{
    uint64_t n = 0;
    for (int l = 0; l < c->n_layers; l++) n += c->is_kda[l];
    return n;
}

void sl_state_price(const struct sl_config *c, uint64_t ctx, unsigned form,
                    struct sl_state_bytes *out)
{
    const uint64_t n_kda = n_kda_layers(c);
    const uint64_t n_mla = (uint64_t)c->n_layers - n_kda;
    const struct layer_bytes one = layer_price(c, ctx, form);
    *out = (struct sl_state_bytes){
        .kda = times(one.S + one.tile, n_kda),
        .conv = times(one.conv, n_kda),
        .mla_rows = times(one.rows, n_mla),
        .mla_expanded = form & SL_STATE_EXPANDED ? times(one.expanded, n_mla) : 0,
        .tables = table_bytes(c),
    };
}

static int take(struct sl_arena *a, void *out, uint64_t bytes, const char *what, struct sl_err *err)
{
    void *p = bytes > SIZE_MAX - ALIGN ? NULL : sl_arena_alloc(a, bytes, ALIGN);
    memcpy(out, &p, sizeof p);
    if (p) return 0;
    return sl_fail(err, SL_E_BUDGET, NULL, what, "%llu bytes do not fit the arena",
                   (unsigned long long)bytes);
}

static int take_layer(struct sl_state *s, int l, struct sl_arena *a, struct sl_err *err)
{
    const struct layer_bytes one = layer_price(s->cfg, s->ctx, s->form);
    if (s->cfg->is_kda[l]) {
        int rc = take(a, &s->kda_S[l], one.S, "KDA state", err);
        if (!rc && one.tile) rc = take(a, &s->kda_tile[l], one.tile, "KDA tile", err);
        return rc ? rc : take(a, &s->kda_conv[l], one.conv, "convolution state", err);
    }
    int rc = take(a, &s->mla_rows[l], one.rows, "MLA rows", err);
    if (rc || !(s->form & SL_STATE_EXPANDED)) return rc;
    return take(a, &s->mla_expanded[l], one.expanded, "MLA expanded cache", err);
}

int sl_state_open(struct sl_state **out, const struct sl_config *c, uint64_t ctx, unsigned form,
                  struct sl_arena *arena, struct sl_err *err)
{
    *out = NULL;
    if (ctx == 0 || ctx > (uint64_t)INT32_MAX)
        return sl_fail(err, SL_E_ARG, NULL, "ctx", "%llu positions is outside 1 to %d",
                       (unsigned long long)ctx, INT32_MAX);
    const size_t mark = sl_arena_mark(arena);
    unsigned char *tables;
    int rc = take(arena, &tables, table_bytes(c), "state tables", err);
    if (rc) return rc;
    memset(tables, 0, table_bytes(c));
    struct sl_state *s = (struct sl_state *)tables;
    tables += sl_align_up(sizeof *s, ALIGN);
    float ***const table[N_TABLES] = {&s->kda_S, &s->kda_conv, &s->kda_tile, &s->mla_rows,
                                      &s->mla_expanded};
    for (int i = 0; i < N_TABLES; i++) {
        *table[i] = (float **)tables;
        tables += sl_align_up(sizeof(float *) * (uint64_t)c->n_layers, ALIGN);
    }
    if (!(form & SL_STATE_EXPANDED)) s->mla_expanded = NULL;
    s->cfg = c;
    s->ctx = ctx;
    s->form = form;
    s->conv_rows = (int)history_rows(c, form);
    for (int l = 0; l < c->n_layers && !rc; l++) rc = take_layer(s, l, arena, err);
    if (rc) {
        sl_arena_release(arena, mark);
        return rc;
    }
    sl_state_reset(s);
    *out = s;
    return 0;
}

void sl_state_reset(struct sl_state *s)
{
    const struct layer_bytes one = layer_price(s->cfg, s->ctx, s->form);
    for (int l = 0; l < s->cfg->n_layers; l++) {
        if (!s->cfg->is_kda[l]) continue;
        memset(s->kda_S[l], 0, one.S);
        memset(s->kda_conv[l], 0, one.conv);
        if (one.tile) memset(s->kda_tile[l], 0, one.tile);
    }
    sl_state_place(s, 0);
}

void sl_state_place(struct sl_state *s, uint64_t position)
{
    s->position = s->oldest = position;
    s->n_expanded = 0;
}

/* One row of the tile has to stay: without any, S would have to be the tile's before. */
uint64_t sl_state_rollback_room(const struct sl_state *s)
{
    if (!(s->form & SL_STATE_REWIND) || s->position <= s->oldest) return 0;
    const uint64_t in_tile = (uint64_t)sl_state_tile_rows(s->position) - 1;
    const uint64_t since = s->position - s->oldest;
    return since < in_tile ? since : in_tile;
}

uint64_t sl_state_rewind_span(const struct sl_state *s)
{
    return s->form & SL_STATE_REWIND ? SL_KDA_TILE - s->position % SL_KDA_TILE : 1;
}

int sl_state_rollback(struct sl_state *s, uint64_t n, struct sl_err *err)
{
    const uint64_t room = sl_state_rollback_room(s);
    if (n > room)
        return sl_fail(err, SL_E_ARG, NULL, "rollback",
                       "%llu tokens at position %llu, at most %llu", (unsigned long long)n,
                       (unsigned long long)s->position, (unsigned long long)room);
    s->position -= n;
    if (s->n_expanded > s->position) s->n_expanded = s->position;
    return 0;
}

typedef int (*each_fn)(void *ctx, void *data, uint64_t bytes);

static uint64_t row_bytes(const struct sl_config *c)
{
    return ((uint64_t)c->kv_lora_rank + (uint64_t)c->qk_rope_dim) * sizeof(float);
}

/* The taps - 1 rows that the next token reads, oldest first. */
static int each_conv(struct sl_state *s, int l, each_fn fn, void *ctx)
{
    const struct sl_config *c = s->cfg;
    const uint64_t channels = (uint64_t)c->kda_heads * (uint64_t)c->kda_head_dim;
    const uint64_t rows = (uint64_t)c->conv_kernel - 1;
    int rc = 0;
    if (!(s->form & SL_STATE_FAST))
        return fn(ctx, s->kda_conv[l], 3 * channels * rows * sizeof(float));
    for (uint64_t i = 0; i < 3; i++)
        for (uint64_t r = 0; r < rows && !rc; r++) {
            const int slot = sl_state_conv_slot(s, s->position + (uint64_t)s->conv_rows - rows + r);
            rc = fn(ctx, s->kda_conv[l] + (i * (uint64_t)s->conv_rows + (uint64_t)slot) * channels,
                    channels * sizeof(float));
        }
    return rc;
}

/* Rows that mean something at this position: what lies behind them is left from other tokens. */
static int each_tile(struct sl_state *s, int l, each_fn fn, void *ctx)
{
    const struct sl_config *c = s->cfg;
    const size_t d = (size_t)c->kda_head_dim;
    const size_t rows = (size_t)sl_state_tile_rows(s->position);
    int rc = 0;
    for (size_t i = 0; rows && i < 3 * (size_t)c->kda_heads && !rc; i++)
        rc = fn(ctx, s->kda_tile[l] + i * SL_KDA_TILE * d, rows * d * sizeof(float));
    return rc;
}

static uint64_t tile_bytes(const struct sl_config *c)
{
    return (uint64_t)c->kda_heads * sl_kda_tile_floats(c->kda_head_dim) * sizeof(float);
}

static int each_recurrent(struct sl_state *s, int l, bool one_size, each_fn fn, void *ctx)
{
    const struct sl_config *c = s->cfg;
    const uint64_t d = (uint64_t)c->kda_head_dim;
    int rc = fn(ctx, s->kda_S[l], (uint64_t)c->kda_heads * d * d * sizeof(float));
    if (!rc) rc = each_conv(s, l, fn, ctx);
    if (rc || !(s->form & SL_STATE_FAST)) return rc;
    return one_size ? fn(ctx, s->kda_tile[l], tile_bytes(c)) : each_tile(s, l, fn, ctx);
}

static int each_row(struct sl_state *s, int l, uint64_t from, uint64_t to, each_fn fn, void *ctx)
{
    const uint64_t row = row_bytes(s->cfg);
    return fn(ctx, (unsigned char *)s->mla_rows[l] + from * row, (to - from) * row);
}

int sl_state_each(struct sl_state *s, each_fn fn, void *ctx)
{
    int rc = 0;
    for (int l = 0; l < s->cfg->n_layers && !rc; l++)
        rc = s->cfg->is_kda[l] ? each_recurrent(s, l, false, fn, ctx)
                               : each_row(s, l, 0, s->position, fn, ctx);
    return rc;
}

int sl_state_each_recurrent(struct sl_state *s, each_fn fn, void *ctx)
{
    int rc = 0;
    for (int l = 0; l < s->cfg->n_layers && !rc; l++)
        if (s->cfg->is_kda[l]) rc = each_recurrent(s, l, true, fn, ctx);
    return rc;
}

int sl_state_each_row(struct sl_state *s, uint64_t from, uint64_t to, each_fn fn, void *ctx)
{
    int rc = 0;
    for (int l = 0; l < s->cfg->n_layers && !rc; l++)
        if (!s->cfg->is_kda[l]) rc = each_row(s, l, from, to, fn, ctx);
    return rc;
}

uint64_t sl_state_recurrent_bytes(const struct sl_config *c, unsigned form)
{
    const uint64_t d = (uint64_t)c->kda_head_dim;
    const uint64_t channels = (uint64_t)c->kda_heads * d;
    const uint64_t floats = channels * (d + 3 * ((uint64_t)c->conv_kernel - 1));
    return n_kda_layers(c) * (floats * sizeof(float) + (form & SL_STATE_FAST ? tile_bytes(c) : 0));
}

uint64_t sl_state_row_bytes(const struct sl_config *c)
{
    return ((uint64_t)c->n_layers - n_kda_layers(c)) * row_bytes(c);
}
