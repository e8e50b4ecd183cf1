/* Look-ahead inside the graph, and its maps on disk (lookahead.h). */
#include "runtime/lookahead.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "quant/stats_file.h"
#include "runtime/graph_parts.h"

#define ALIGN 64

/* ---- maps */

/* Section `lookahead`: whose maps these are. */
struct identity {
    char source[64]; /* sha256 of the source, hex */
    uint32_t n_layers, hidden, n_experts, ahead;
};

static struct identity identity_of(const struct sl_config *c, const char *source)
{
    struct identity id = {.n_layers = (uint32_t)c->n_layers,
                          .hidden = (uint32_t)c->hidden_size,
                          .n_experts = (uint32_t)c->n_experts,
                          .ahead = 1};
    const size_t n = strlen(source);
    memcpy(id.source, source, n < sizeof id.source ? n : sizeof id.source);
    return id;
}

static uint64_t map_bytes(const struct sl_config *c)
{
    return sl_fmt_row_bytes(SL_FMT_BF16, (uint64_t)c->hidden_size) * (uint64_t)c->n_experts;
}

static uint64_t bias_bytes(const struct sl_config *c)
{
    return sizeof(float) * (uint64_t)c->n_experts;
}

static bool find_file(char path[SL_PATH_MAX], const struct sl_pack *p)
{
    return sl_path_join(path, p->dir, SL_LOOKAHEAD_FILE) && access(path, F_OK) == 0;
}

uint64_t sl_ahead_maps_bytes(const struct sl_pack *p)
{
    char path[SL_PATH_MAX];
    const struct sl_config *c = &p->cfg;
    if (!find_file(path, p)) return 0;
    uint64_t bytes =
        sl_align_up(sizeof(struct sl_ahead_map) * (uint64_t)c->n_layers, ALIGN) + ALIGN;
    for (int l = 0; l < c->n_layers; l++)
        if (sl_ahead_has(c, l))
            bytes += sl_align_up(map_bytes(c), ALIGN) + sl_align_up(bias_bytes(c), ALIGN);
    return bytes;
}

static bool all_finite(const float *v, int n)
{
    bool ok = true;
    for (int i = 0; i < n; i++) ok &= isfinite(v[i]) != 0;
    return ok;
}

static int load_map(struct sl_ahead_map *map, const struct sl_stats_in *in, int layer,
                    const struct sl_config *c, const char *path, struct sl_arena *arena,
                    struct sl_err *err)
{
    char name[SL_STATS_NAME];
    uint8_t *codes = sl_arena_alloc(arena, map_bytes(c), ALIGN);
    float *bias = sl_arena_alloc(arena, bias_bytes(c), ALIGN);
    if (!codes || !bias)
        return sl_fail(err, SL_E_BUDGET, path, NULL, "look-ahead maps do not fit the arena");
    snprintf(name, sizeof name, "L%03d.ahead", layer);
    int rc = sl_stats_get(in, name, codes, map_bytes(c), err);
    if (rc) return rc;
    snprintf(name, sizeof name, "L%03d.ahead_bias", layer);
    rc = sl_stats_get(in, name, bias, bias_bytes(c), err);
    if (rc) return rc;
    if (!all_finite(bias, c->n_experts))
        return sl_fail(err, SL_E_SOURCE, path, name, "a value is not finite");
    map->w = (struct sl_mat){
        .fmt = SL_FMT_BF16, .rows = c->n_experts, .cols = c->hidden_size, .codes = codes};
    map->bias = bias;
    return 0;
}

int sl_ahead_maps_open(const struct sl_ahead_map **out, const struct sl_pack *p,
                       struct sl_arena *arena, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    const struct sl_config *c = &p->cfg;
    struct sl_stats_in *in = NULL;
    struct identity found;
    const struct identity want = identity_of(c, p->source_sha256);
    *out = NULL;
    if (!find_file(path, p)) return 0;
    const size_t n = sizeof(struct sl_ahead_map) * (size_t)c->n_layers;
    struct sl_ahead_map *maps = sl_arena_alloc(arena, n, ALIGN);
    if (!maps) return sl_fail(err, SL_E_BUDGET, path, NULL, "look-ahead maps do not fit the arena");
    memset(maps, 0, n);
    int rc = sl_stats_open(&in, path, err);
    if (!rc) rc = sl_stats_get(in, "lookahead", &found, sizeof found, err);
    if (!rc && memcmp(&found, &want, sizeof want) != 0)
        rc = sl_fail(
            err, SL_E_SOURCE, path, "lookahead",
            "maps of another model: %u layers, %u experts, hidden size %u, or another source",
            found.n_layers, found.n_experts, found.hidden);
    for (int l = 0; l < c->n_layers && !rc; l++)
        if (sl_ahead_has(c, l)) rc = load_map(&maps[l], in, l, c, path, arena, err);
    sl_stats_close(in);
    if (rc == SL_E_SOURCE) { /* it is a part of our pack */
        rc = SL_E_PACK;
        if (err) err->code = rc;
    }
    if (!rc) *out = maps;
    return rc;
}

int sl_ahead_maps_save(const struct sl_ahead_map *maps, const struct sl_config *c,
                       const char *source_sha256, const char *path, struct sl_err *err)
{
    struct sl_stats_out *o;
    const struct identity id = identity_of(c, source_sha256);
    int rc = sl_stats_create(&o, path, err);
    if (rc) return rc;
    rc = sl_stats_put(o, "lookahead", &id, sizeof id, err);
    for (int l = 0; l < c->n_layers && !rc; l++) {
        char name[SL_STATS_NAME];
        if (!sl_ahead_has(c, l)) continue;
        snprintf(name, sizeof name, "L%03d.ahead", l);
        rc = sl_stats_put(o, name, maps[l].w.codes, map_bytes(c), err);
        snprintf(name, sizeof name, "L%03d.ahead_bias", l);
        if (!rc) rc = sl_stats_put(o, name, maps[l].bias, bias_bytes(c), err);
    }
    if (rc) {
        sl_stats_discard(o);
        return rc;
    }
    return sl_stats_publish(o, err);
}

/* ---- prediction */

uint64_t sl_lookahead_bytes(const struct sl_config *c)
{
    return sl_align_up(sizeof(struct sl_lookahead), ALIGN) +
           sl_align_up(sizeof(float) * (uint64_t)c->hidden_size, ALIGN) +
           sl_align_up(sizeof(float) * (uint64_t)c->n_experts, ALIGN) + ALIGN;
}

int sl_lookahead_open(struct sl_lookahead **out, const struct sl_model *m,
                      const struct sl_ahead_map *maps, int n, struct sl_arena *arena,
                      struct sl_err *err)
{
    const struct sl_config *c = &m->cfg;
    *out = NULL;
    if (n < 1 || n > SL_LOOKAHEAD_MAX)
        return sl_fail(err, SL_E_ARG, NULL, "--lookahead", "%d is not from 1 to %d", n,
                       SL_LOOKAHEAD_MAX);
    struct sl_lookahead *la = sl_arena_alloc(arena, sizeof *la, ALIGN);
    float *x = sl_arena_alloc(arena, sizeof(float) * (size_t)c->hidden_size, ALIGN);
    float *scores = sl_arena_alloc(arena, sizeof(float) * (size_t)c->n_experts, ALIGN);
    if (!la || !x || !scores)
        return sl_fail(err, SL_E_BUDGET, NULL, "look-ahead", "buffers do not fit the arena");
    *la = (struct sl_lookahead){.m = m,
                                .maps = maps,
                                .n = n < c->n_experts ? n : c->n_experts,
                                .x = x,
                                .scores = scores,
                                .layer = -1};
    *out = la;
    return 0;
}

void sl_graph_look_ahead(struct sl_graph *g, struct sl_lookahead *la)
{
    g->ahead = la;
    if (la) la->layer = -1;
}

/* The n best of scores + bias, best first. */
static void choose(struct sl_lookahead *la, const float *bias)
{
    float keys[SL_LOOKAHEAD_MAX];
    int n = 0;
    for (int e = 0; e < la->m->cfg.n_experts; e++) {
        const float key = la->scores[e] + bias[e];
        int at = n;
        while (at > 0 && keys[at - 1] < key) at--;
        if (at == la->n) continue;
        if (n < la->n) n++;
        for (int i = n - 1; i > at; i--) {
            keys[i] = keys[i - 1];
            la->ids[i] = la->ids[i - 1];
        }
        keys[at] = key;
        la->ids[at] = e;
    }
    la->n_named = n;
}

void sl_graph_name_ahead(struct sl_graph *g)
{
    struct sl_lookahead *la = g->ahead;
    if (!la || g->n != 1 || !sl_ahead_has(g->c, g->l)) return;
    const struct sl_layer *next = &g->m->layers[g->l + 1];
    const struct sl_ahead_map *map = la->maps ? &la->maps[g->l] : NULL;
    sl_graph_mix_ahead(g, 0, la->x);
    g->segs[0] = (struct sl_seg){.w = map ? &map->w : &next->router,
                                 .x = la->x,
                                 .ldx = (size_t)g->c->hidden_size,
                                 .y = la->scores,
                                 .ldy = (size_t)g->c->n_experts,
                                 .n_tok = 1};
    sl_graph_mul(g, g->segs, 1);
    if (map) g->k.add(la->scores, la->scores, map->bias, g->c->n_experts);
    g->k.sigmoid(la->scores, la->scores, g->c->n_experts);
    choose(la, next->router_bias);
    la->layer = g->l + 1;
    const int queued = sl_store_prefetch_planes(g->store, la->layer, la->ids, la->n_named,
                                                sl_graph_ranks(g, la->layer));
    la->stats.named += (uint64_t)la->n_named;
    la->stats.queued += (uint64_t)queued;
}

void sl_graph_judge_ahead(struct sl_graph *g)
{
    struct sl_lookahead *la = g->ahead;
    if (!la || g->n != 1 || la->layer != g->l) return;
    for (int i = 0; i < la->n_named; i++)
        for (int j = 0; j < g->c->top_k; j++) la->stats.right += la->ids[i] == g->moe.ids[j];
    la->layer = -1;
}
