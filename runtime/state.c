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
    uint64_t S, conv, rows, expanded;
};

static struct layer_bytes layer_price(const struct sl_config *c, uint64_t ctx)
{
    const uint64_t d = (uint64_t)c->kda_head_dim;
    const uint64_t channels = (uint64_t)c->kda_heads * d;
    const uint64_t row = (uint64_t)c->kv_lora_rank + (uint64_t)c->qk_rope_dim;
    const uint64_t wide =
        (uint64_t)c->n_heads * (uint64_t)(c->qk_nope_dim + c->qk_rope_dim + c->v_head_dim);
    return (struct layer_bytes){
        .S = floats(channels, d),
        .conv = floats(3 * channels, (uint64_t)c->conv_kernel - 1),
        .rows = floats(row, ctx),
        .expanded = floats(wide, ctx),
    };
}

static uint64_t table_bytes(const struct sl_config *c)
{
    return sl_align_up(sizeof(struct sl_state), ALIGN) +
           4 * sl_align_up(sizeof(float *) * (uint64_t)c->n_layers, ALIGN);
}

static uint64_t n_kda_layers(const struct sl_config *c)
{
    uint64_t n = 0;
    for (int l = 0; l < c->n_layers; l++) n += c->is_kda[l];
    return n;
}

void sl_state_price(const struct sl_config *c, uint64_t ctx, bool expanded,
                    struct sl_state_bytes *out)
{
    const uint64_t n_kda = n_kda_layers(c);
    const uint64_t n_mla = (uint64_t)c->n_layers - n_kda;
    const struct layer_bytes one = layer_price(c, ctx);
    *out = (struct sl_state_bytes){
        .kda = times(one.S, n_kda),
        .conv = times(one.conv, n_kda),
        .mla_rows = times(one.rows, n_mla),
        .mla_expanded = expanded ? times(one.expanded, n_mla) : 0,
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

static int take_layer(struct sl_state *s, int l, bool expanded, struct sl_arena *a,
                      struct sl_err *err)
{
    const struct layer_bytes one = layer_price(s->cfg, s->ctx);
    if (s->cfg->is_kda[l]) {
        int rc = take(a, &s->kda_S[l], one.S, "KDA state", err);
        return rc ? rc : take(a, &s->kda_conv[l], one.conv, "convolution state", err);
    }
    int rc = take(a, &s->mla_rows[l], one.rows, "MLA rows", err);
    if (rc || !expanded) return rc;
    return take(a, &s->mla_expanded[l], one.expanded, "MLA expanded cache", err);
}

int sl_state_open(struct sl_state **out, const struct sl_config *c, uint64_t ctx, bool expanded,
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
    float ***const table[4] = {&s->kda_S, &s->kda_conv, &s->mla_rows, &s->mla_expanded};
    for (int i = 0; i < 4; i++) {
        *table[i] = (float **)tables;
        tables += sl_align_up(sizeof(float *) * (uint64_t)c->n_layers, ALIGN);
    }
    if (!expanded) s->mla_expanded = NULL;
    s->cfg = c;
    s->ctx = ctx;
    for (int l = 0; l < c->n_layers && !rc; l++) rc = take_layer(s, l, expanded, arena, err);
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
    const struct layer_bytes one = layer_price(s->cfg, s->ctx);
    for (int l = 0; l < s->cfg->n_layers; l++) {
        if (!s->cfg->is_kda[l]) continue;
        memset(s->kda_S[l], 0, one.S);
        memset(s->kda_conv[l], 0, one.conv);
    }
    s->position = 0;
    s->n_expanded = 0;
}

typedef int (*each_fn)(void *ctx, void *data, uint64_t bytes);

static uint64_t row_bytes(const struct sl_config *c)
{
    return ((uint64_t)c->kv_lora_rank + (uint64_t)c->qk_rope_dim) * sizeof(float);
}

static int each_recurrent(struct sl_state *s, int l, each_fn fn, void *ctx)
{
    const struct sl_config *c = s->cfg;
    const uint64_t d = (uint64_t)c->kda_head_dim;
    const uint64_t channels = (uint64_t)c->kda_heads * d;
    int rc = fn(ctx, s->kda_S[l], channels * d * sizeof(float));
    if (rc) return rc;
    return fn(ctx, s->kda_conv[l], 3 * channels * ((uint64_t)c->conv_kernel - 1) * sizeof(float));
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
        rc = s->cfg->is_kda[l] ? each_recurrent(s, l, fn, ctx)
                               : each_row(s, l, 0, s->position, fn, ctx);
    return rc;
}

int sl_state_each_recurrent(struct sl_state *s, each_fn fn, void *ctx)
{
    int rc = 0;
    for (int l = 0; l < s->cfg->n_layers && !rc; l++)
        if (s->cfg->is_kda[l]) rc = each_recurrent(s, l, fn, ctx);
    return rc;
}

int sl_state_each_row(struct sl_state *s, uint64_t from, uint64_t to, each_fn fn, void *ctx)
{
    int rc = 0;
    for (int l = 0; l < s->cfg->n_layers && !rc; l++)
        if (!s->cfg->is_kda[l]) rc = each_row(s, l, from, to, fn, ctx);
    return rc;
}

uint64_t sl_state_recurrent_bytes(const struct sl_config *c)
{
    const uint64_t d = (uint64_t)c->kda_head_dim;
    const uint64_t channels = (uint64_t)c->kda_heads * d;
    return n_kda_layers(c) * channels * (d + 3 * ((uint64_t)c->conv_kernel - 1)) * sizeof(float);
}

uint64_t sl_state_row_bytes(const struct sl_config *c)
{
    return ((uint64_t)c->n_layers - n_kda_layers(c)) * row_bytes(c);
}
